// sarama as a command: one member of a group that reads COUNT records of a topic, commits them and leaves.
//
//	sarama BOOTSTRAP TOPIC GROUP COUNT        a line for each record: partition, offset, value
//	sarama cluster BOOTSTRAP OPERATION ...    an operation of its ClusterAdmin; the result as JSON (cluster.go)
//	sarama failover BOOTSTRAP TOPIC GROUP     a producer and a member while brokers are killed (failover.go)
//	sarama secure TOPIC < ways to connect     a record over each way (secure.go)
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

type handler struct {
	found chan<- *sarama.ConsumerMessage
}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			session.MarkMessage(message, "")
			session.Commit()
			h.found <- message
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	commands := map[string]func([]string) error{"cluster": cluster, "failover": failover, "secure": secure}
	if command, found := commands[os.Args[1]]; found {
		if err := command(os.Args[2:]); err != nil {
			fail(err)
		}
		return
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(bootstrap, topic, name, count string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wanted, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	group, err := sarama.NewConsumerGroup([]string{bootstrap}, name, config)
	if err != nil {
		return err
	}
	found := make(chan *sarama.ConsumerMessage, wanted)
	ended := make(chan error, 1)
	go func() { ended <- group.Consume(ctx, []string{topic}, handler{found}) }()
	for range wanted {
		select {
		case message := <-found:
			fmt.Println(message.Partition, message.Offset, string(message.Value))
		case err := <-ended:
			return fmt.Errorf("the member ended early: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return group.Close()
}
