package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"

	"github.com/IBM/sarama"
)

// A way to connect: empty fields are not used. Ca and Certificate are files; Certificate has the key, too. SCRAM is left
// out, because sarama leaves it to a package of the application.
type way struct {
	Bootstrap   string `json:"bootstrap"`
	Ca          string `json:"ca"`
	Certificate string `json:"certificate"`
	Mechanism   string `json:"mechanism"`
	User        string `json:"user"`
	Password    string `json:"password"`
}

func (w way) config() (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
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
		config.Net.TLS.Enable = true
		config.Net.TLS.Config = settings
	}
	if w.Mechanism != "" {
		config.Net.SASL.Enable = true
		config.Net.SASL.Mechanism = sarama.SASLMechanism(w.Mechanism)
		config.Net.SASL.User = w.User
		config.Net.SASL.Password = w.Password
	}
	return config, nil
}

// Produces one record over each way, to the partition with the number of the way, and reads it.
func secure(arguments []string) error {
	lines := bufio.NewScanner(os.Stdin)
	for partition := int32(0); lines.Scan(); partition++ {
		var each way
		if err := json.Unmarshal(lines.Bytes(), &each); err != nil {
			return err
		}
		value, err := roundTrip(each, arguments[0], partition)
		if err != nil {
			return err
		}
		fmt.Println(value)
	}
	return lines.Err()
}

func roundTrip(over way, topic string, partition int32) (string, error) {
	config, err := over.config()
	if err != nil {
		return "", err
	}
	client, err := sarama.NewClient([]string{over.Bootstrap}, config)
	if err != nil {
		return "", err
	}
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return "", err
	}
	value := sarama.StringEncoder(fmt.Sprintf("record %d", partition))
	message := &sarama.ProducerMessage{Topic: topic, Partition: partition, Value: value}
	if _, _, err := producer.SendMessage(message); err != nil {
		return "", err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return "", err
	}
	records, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return "", err
	}
	found := <-records.Messages()
	if err := records.Close(); err != nil {
		return "", err
	}
	return string(found.Value), nil
}
