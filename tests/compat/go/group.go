package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	members    = 2
	partitions = 4
	perPlace   = 5
)

// member is a consumer that remembers what it owns and what it was given.
type member struct {
	client *kgo.Client
	mutex  sync.Mutex
	owned  map[int32]bool
	read   map[int32]int
}

// group lets two members share a topic of four partitions, writes to each partition once they do, commits, and asks
// the admin client about the group: while the members are there, when they have left, and when it is deleted.
func group(ctx context.Context, arguments []string) error {
	bootstrap, topic, name, protocol := arguments[0], arguments[1], arguments[2], arguments[3]
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer client.Close()
	adm, out := kadm.NewClient(client), map[string]any{}
	if _, err := adm.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		return err
	}
	all, err := share(ctx, client, bootstrap, topic, name, protocol)
	if err != nil {
		return err
	}
	counts := map[int32]int{}
	var held []int
	for _, each := range all {
		held = append(held, len(each.read))
		for partition, count := range each.read {
			counts[partition] += count
		}
	}
	out["partitions of each member"], out["records of each partition"] = held, counts
	if err := describe(ctx, adm, name, topic, protocol, out); err != nil {
		return err
	}
	for _, each := range all {
		each.client.Close()
	}
	if err := afterwards(ctx, adm, name, topic, protocol, out); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func share(ctx context.Context, writer *kgo.Client, bootstrap, topic, name, protocol string) ([]*member, error) {
	var all []*member
	failed := make(chan error, members)
	for number := range members {
		each, err := join(ctx, bootstrap, topic, name, protocol, fmt.Sprintf("member-%d", number))
		if err != nil {
			return nil, err
		}
		all = append(all, each)
		go func() { failed <- each.poll(ctx) }()
	}
	balanced := func() bool {
		for _, each := range all {
			if len(each.places()) != partitions/members {
				return false
			}
		}
		return true
	}
	if err := until(ctx, failed, balanced); err != nil {
		return nil, fmt.Errorf("the members do not share the partitions: %w", err)
	}
	for number := range partitions * perPlace {
		each := &kgo.Record{Topic: topic, Partition: int32(number % partitions), Value: []byte("x")}
		if err := writer.ProduceSync(ctx, each).FirstErr(); err != nil {
			return nil, err
		}
	}
	complete := func() bool {
		sum := 0
		for _, each := range all {
			each.mutex.Lock()
			for _, count := range each.read {
				sum += count
			}
			each.mutex.Unlock()
		}
		return sum >= partitions*perPlace
	}
	if err := until(ctx, failed, complete); err != nil {
		return nil, fmt.Errorf("not all records came: %w", err)
	}
	for _, each := range all {
		if err := each.client.CommitUncommittedOffsets(ctx); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func join(ctx context.Context, bootstrap, topic, name, protocol, id string) (*member, error) {
	each := &member{owned: map[int32]bool{}, read: map[int32]int{}}
	change := func(owns bool) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, changed map[string][]int32) {
			each.mutex.Lock()
			defer each.mutex.Unlock()
			for _, partition := range changed[topic] {
				if each.owned[partition] = owns; !owns {
					delete(each.owned, partition)
				}
			}
		}
	}
	if protocol == "consumer" {
		// How this version is told to use it.
		ctx = context.WithValue(ctx, "opt_in_kafka_next_gen_balancer_beta", true)
	}
	var err error
	each.client, err = kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.ClientID(id),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.WithContext(ctx),
		kgo.HeartbeatInterval(200*time.Millisecond), kgo.FetchMaxWait(200*time.Millisecond),
		kgo.OnPartitionsAssigned(change(true)), kgo.OnPartitionsRevoked(change(false)), kgo.OnPartitionsLost(change(false)),
	)
	return each, err
}

func (each *member) places() []int32 {
	each.mutex.Lock()
	defer each.mutex.Unlock()
	var owned []int32
	for partition := range each.owned {
		owned = append(owned, partition)
	}
	return owned
}

func (each *member) poll(ctx context.Context) error {
	for {
		fetches := each.client.PollFetches(ctx)
		if fetches.IsClientClosed() {
			return nil
		}
		for _, failure := range fetches.Errors() {
			return failure.Err
		}
		each.mutex.Lock()
		fetches.EachRecord(func(r *kgo.Record) { each.read[r.Partition]++ })
		each.mutex.Unlock()
	}
}

func until(ctx context.Context, failed <-chan error, satisfied func() bool) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !satisfied() {
		select {
		case <-tick.C:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func describe(ctx context.Context, adm *kadm.Client, name, topic, protocol string, out map[string]any) error {
	listed, err := adm.ListGroupsByType(ctx, []string{protocol})
	if err != nil {
		return err
	}
	out["listed"] = listed[name].State
	if protocol == "consumer" {
		described, err := adm.DescribeConsumerGroups(ctx, name)
		if err != nil {
			return err
		}
		told := described[name]
		out["described"] = []any{told.State, told.AssignorName, len(told.Members), told.Epoch == told.AssignmentEpoch}
	} else {
		lags, err := adm.Lag(ctx, name)
		if err != nil {
			return err
		}
		told := lags[name]
		out["described"] = []any{told.State, told.Protocol, len(told.Members), told.ProtocolType}
		out["lag"] = told.Lag.Total()
	}
	_, err = adm.DeleteGroup(ctx, name)
	out["deleted with members"] = code(err)
	return nil
}

// afterwards commits in the group's name, asks for the lag, deletes one offset and then the group.
func afterwards(ctx context.Context, adm *kadm.Client, name, topic, protocol string, out map[string]any) error {
	back := kadm.Offsets{}
	back.AddOffset(topic, 0, 2, -1)
	if err := adm.CommitAllOffsets(ctx, name, back); err != nil {
		return err
	}
	if protocol == "classic" {
		// It describes groups in the classic way only.
		lags, err := adm.Lag(ctx, name)
		if err != nil {
			return err
		}
		out["lag afterwards"] = []any{lags[name].State, lags[name].Lag.Total()}
	}
	gone := kadm.TopicsSet{}
	gone.Add(topic, 1)
	deleted, err := adm.DeleteOffsets(ctx, name, gone)
	if err != nil || deleted.Error() != nil {
		return errors.Join(err, deleted.Error())
	}
	fetched, err := adm.FetchOffsets(ctx, name)
	if err != nil {
		return err
	}
	offsets := map[int32]int64{}
	fetched.Each(func(each kadm.OffsetResponse) { offsets[each.Partition] = each.At })
	out["offsets"] = offsets
	if _, err := adm.DeleteGroup(ctx, name); err != nil {
		return err
	}
	_, err = adm.DeleteGroup(ctx, name)
	out["deleted again"] = code(err)
	return nil
}
