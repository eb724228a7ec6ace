package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// A way to connect: empty fields are not used. Ca and Certificate are files; Certificate has the key, too.
type way struct {
	Bootstrap   string `json:"bootstrap"`
	Ca          string `json:"ca"`
	Certificate string `json:"certificate"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
	Token       string `json:"token"`
	IsToken     bool   `json:"is_token"`
}

func (w way) options() ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(w.Bootstrap)}
	if w.Ca != "" {
		pem, err := os.ReadFile(w.Ca)
		if err != nil {
			return nil, err
		}
		settings := &tls.Config{RootCAs: x509.NewCertPool()}
		settings.RootCAs.AppendCertsFromPEM(pem)
		if w.Certificate != "" {
			pair, err := tls.LoadX509KeyPair(w.Certificate, w.Certificate)
			if err != nil {
				return nil, err
			}
			settings.Certificates = []tls.Certificate{pair}
		}
		options = append(options, kgo.DialTLSConfig(settings))
	}
	credentials := scram.Auth{User: w.User, Pass: w.Password, IsToken: w.IsToken}
	mechanisms := map[string]sasl.Mechanism{
		"PLAIN":         plain.Auth{User: w.User, Pass: w.Password}.AsMechanism(),
		"SCRAM-SHA-256": credentials.AsSha256Mechanism(),
		"SCRAM-SHA-512": credentials.AsSha512Mechanism(),
		"OAUTHBEARER":   oauth.Auth{Token: w.Token}.AsMechanism(),
	}
	if w.Mechanism != "" {
		options = append(options, kgo.SASL(mechanisms[w.Mechanism]))
	}
	return options, nil
}

// Produces one record over each way, to the partition with the number of the way, and reads it.
func secure(ctx context.Context, arguments []string) error {
	lines := bufio.NewScanner(os.Stdin)
	for partition := int32(0); lines.Scan(); partition++ {
		var each way
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			return err
		}
		value, err := roundTrip(ctx, each, arguments[0], partition)
		if err != nil {
			return err
		}
		fmt.Println(value)
	}
	return lines.Err()
}

func roundTrip(ctx context.Context, over way, topic string, partition int32) (string, error) {
	options, err := over.options()
	if err != nil {
		return "", err
	}
	places := map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().AtStart()}}
	options = append(options, kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ConsumePartitions(places))
	client, err := kgo.NewClient(options...)
	if err != nil {
		return "", err
	}
	defer client.Close()
	value := []byte(fmt.Sprintf("record %d", partition))
	out := &kgo.Record{Topic: topic, Partition: partition, Value: value}
	if err := client.ProduceSync(ctx, out).FirstErr(); err != nil {
		return "", err
	}
	for {
		fetches := client.PollFetches(ctx)
		for _, failure := range fetches.Errors() {
			return "", failure.Err
		}
		for _, each := range fetches.Records() {
			return string(each.Value), nil
		}
	}
}
