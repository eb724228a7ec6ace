// franz-go as a command: produce and consume one partition without a group, and a walk through its admin client.
// Groups are in group.go, transactions in transaction.go, requests about a cluster in cluster.go.
//
//	franz produce BOOTSTRAP TOPIC PARTITION CODEC ACKS IDEMPOTENT BATCH_BYTES_MAX < records    JSON, one per line
//	franz consume BOOTSTRAP TOPIC PARTITION OFFSET COUNT                                       JSON, one per line
//	franz admin   BOOTSTRAP TOPIC                                                              one JSON object
//	franz group   BOOTSTRAP TOPIC GROUP classic|consumer                                       one JSON object
//	franz transaction BOOTSTRAP FROM_TOPIC TO_TOPIC NAME                                       one JSON object
//	franz abort-empty BOOTSTRAP TOPIC NAME TIMES                                               one JSON object
//	franz cluster BOOTSTRAP OPERATION ARGUMENTS                                                JSON
//	franz acls BOOTSTRAP VERB ARGUMENTS                                                        see acls.go
//	franz failover BOOTSTRAP TOPIC GROUP                                                       lines, see failover.go
//	franz versions BOOTSTRAP                                                                   lines
//	franz secure TOPIC < ways to connect                                                       JSON, see secure.go
//
// Keys, values and header values are base64 or null, as encoding/json writes a []byte.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const deadline = 20 * time.Second

type header struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

type record struct {
	Key         []byte   `json:"key"`
	Value       []byte   `json:"value"`
	Headers     []header `json:"headers"`
	TimestampMs *int64   `json:"timestamp_ms"`
	Offset      int64    `json:"offset"`
	AppendTime  bool     `json:"append_time"`
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	var err error
	switch command, arguments := os.Args[1], os.Args[2:]; command {
	case "produce":
		err = produce(ctx, arguments)
	case "consume":
		err = consume(ctx, arguments)
	case "admin":
		err = admin(ctx, arguments)
	case "group":
		err = group(ctx, arguments)
	case "transaction":
		err = transaction(ctx, arguments)
	case "abort-empty":
		err = abortEmpty(ctx, arguments)
	case "cluster":
		err = cluster(ctx, arguments)
	case "acls":
		err = acls(ctx, arguments)
	case "failover":
		err = failover(arguments)
	case "versions":
		err = versions(ctx, arguments)
	case "secure":
		err = secure(ctx, arguments)
	default:
		err = fmt.Errorf("unknown command %q", command)
	}
	if err == nil {
		return
	}
	var refused *kerr.Error
	if errors.As(err, &refused) {
		fmt.Fprintf(os.Stderr, "refused %d %s\n", refused.Code, refused.Message)
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}

func produce(ctx context.Context, arguments []string) error {
	bootstrap, topic, codec, acks := arguments[0], arguments[1], arguments[3], arguments[4]
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
	numbers, err := integers(arguments[2], arguments[6])
	if err != nil {
		return err
	}
	acknowledgements := map[string]kgo.Acks{"-1": kgo.AllISRAcks(), "0": kgo.NoAck(), "1": kgo.LeaderAck()}
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[codec]), kgo.RequiredAcks(acknowledgements[acks]),
		kgo.ProducerBatchMaxBytes(int32(numbers[1])),
	}
	if arguments[5] != "true" {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	var batch []*kgo.Record
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var each record
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			return err
		}
		out := &kgo.Record{Topic: topic, Partition: int32(numbers[0]), Key: each.Key, Value: each.Value}
		for _, h := range each.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
		if each.TimestampMs != nil {
			out.Timestamp = time.UnixMilli(*each.TimestampMs)
		}
		batch = append(batch, out)
	}
	return client.ProduceSync(ctx, batch...).FirstErr()
}

func consume(ctx context.Context, arguments []string) error {
	numbers, err := integers(arguments[2:5]...)
	if err != nil {
		return err
	}
	partition, offset, count := int32(numbers[0]), numbers[1], numbers[2]
	places := map[string]map[int32]kgo.Offset{arguments[1]: {partition: kgo.NewOffset().At(offset)}}
	client, err := kgo.NewClient(kgo.SeedBrokers(arguments[0]), kgo.ConsumePartitions(places))
	if err != nil {
		return err
	}
	defer client.Close()
	out := json.NewEncoder(os.Stdout)
	for count > 0 {
		fetches := client.PollFetches(ctx)
		for _, failure := range fetches.Errors() {
			return failure.Err
		}
		for each := fetches.RecordIter(); !each.Done() && count > 0; count-- {
			if err := out.Encode(received(each.Next())); err != nil {
				return err
			}
		}
	}
	return nil
}

func integers(texts ...string) ([]int64, error) {
	var numbers []int64
	for _, text := range texts {
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

func received(each *kgo.Record) record {
	timestamp := each.Timestamp.UnixMilli()
	out := record{
		Key: each.Key, Value: each.Value, TimestampMs: &timestamp, Offset: each.Offset,
		AppendTime: each.Attrs.TimestampType() == 1, Headers: []header{},
	}
	for _, h := range each.Headers {
		out.Headers = append(out.Headers, header{h.Key, h.Value})
	}
	return out
}

// admin creates the topic, grows it, writes, asks for offsets, changes a setting, deletes records and the topic.
// Print the version of Kafka that franz-go infers from the APIs of each broker.
func versions(ctx context.Context, arguments []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(arguments[0]))
	if err != nil {
		return err
	}
	defer client.Close()
	brokers, err := kadm.NewClient(client).ApiVersions(ctx)
	if err != nil {
		return err
	}
	for _, broker := range brokers {
		fmt.Println(broker.VersionGuess())
	}
	return nil
}

func admin(ctx context.Context, arguments []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(arguments[0]), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	topic, adm, out := arguments[1], kadm.NewClient(client), map[string]any{}
	if _, err := adm.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("1000000")}, topic); err != nil {
		return err
	}
	_, err = adm.CreateTopic(ctx, 2, 1, nil, topic)
	out["created again"] = code(err)
	if _, err := adm.UpdatePartitions(ctx, 4, topic); err != nil {
		return err
	}
	for n := range int64(5) {
		each := &kgo.Record{Topic: topic, Value: []byte("x"), Timestamp: time.UnixMilli(1_700_000_000_000 + n*1000)}
		if err := client.ProduceSync(ctx, each).FirstErr(); err != nil {
			return err
		}
	}
	if out["offsets"], err = offsets(ctx, adm, topic); err != nil {
		return err
	}
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: kadm.StringPtr("54321")}}
	if altered, err := adm.AlterTopicConfigs(ctx, change, topic); err != nil || altered[0].Err != nil {
		return errors.Join(err, altered[0].Err)
	}
	settings, err := adm.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return err
	}
	for _, each := range settings[0].Configs {
		if each.Key == "max.message.bytes" || each.Key == "retention.ms" {
			out[each.Key] = each.MaybeValue()
		}
	}
	cut := kadm.Offsets{}
	cut.AddOffset(topic, 0, 3, -1)
	deleted, err := adm.DeleteRecords(ctx, cut)
	if err != nil {
		return err
	}
	low, _ := deleted.Lookup(topic, 0)
	out["low watermark"] = low.LowWatermark
	described, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return err
	}
	out["partitions"] = len(described[topic].Partitions)
	if _, err := adm.DeleteTopic(ctx, topic); err != nil {
		return err
	}
	_, err = adm.DeleteTopic(ctx, topic)
	out["deleted again"] = code(err)
	return json.NewEncoder(os.Stdout).Encode(out)
}

func offsets(ctx context.Context, adm *kadm.Client, topic string) ([]int64, error) {
	var found []int64
	ask := []func() (kadm.ListedOffsets, error){
		func() (kadm.ListedOffsets, error) { return adm.ListStartOffsets(ctx, topic) },
		func() (kadm.ListedOffsets, error) { return adm.ListEndOffsets(ctx, topic) },
		func() (kadm.ListedOffsets, error) { return adm.ListMaxTimestampOffsets(ctx, topic) },
		func() (kadm.ListedOffsets, error) { return adm.ListOffsetsAfterMilli(ctx, 1_700_000_001_500, topic) },
	}
	for _, each := range ask {
		listed, err := each()
		if err != nil {
			return nil, err
		}
		place, _ := listed.Lookup(topic, 0)
		if place.Err != nil {
			return nil, place.Err
		}
		found = append(found, place.Offset)
	}
	return found, nil
}

func code(err error) int16 {
	var refused *kerr.Error
	if errors.As(err, &refused) {
		return refused.Code
	}
	return 0
}
