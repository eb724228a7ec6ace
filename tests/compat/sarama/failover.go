package main

// A producer and a member of a group that run while brokers are killed: see tests/compat/client_failover.py.

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

var printing sync.Mutex

func say(kind string, text string) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(kind, text)
}

type reader struct{}

func (reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			say("R", string(message.Value))
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
}

// failover writes and reads until the input says so: BOOTSTRAP TOPIC GROUP.
func failover(arguments []string) error {
	seeds, topic := strings.Split(arguments[0], ","), arguments[1]
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Producer.RequiredAcks = sarama.WaitForAll
	// Not idempotent: sarama sends batches that it retries out of order (IBM/sarama#2619), which a broker refuses.
	config.Producer.Retry.Max = 100
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Return.Errors = true
	producer, err := sarama.NewAsyncProducer(seeds, config)
	if err != nil {
		return err
	}
	group, err := sarama.NewConsumerGroup(seeds, arguments[2], config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for err := range group.Errors() {
			say("E", "consume: "+err.Error())
		}
	}()
	go func() {
		for ctx.Err() == nil {
			if err := group.Consume(ctx, []string{topic}, reader{}); err != nil && ctx.Err() == nil {
				say("E", "session: "+err.Error())
				time.Sleep(100 * time.Millisecond)
			}
		}
	}()
	var answered sync.WaitGroup
	go func() {
		for each := range producer.Successes() {
			value, _ := each.Value.Encode()
			say("A", string(value))
			answered.Done()
		}
	}()
	go func() {
		for each := range producer.Errors() {
			say("E", "produce: "+each.Err.Error())
			answered.Done()
		}
	}()
	commands := make(chan string)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			commands <- lines.Text()
		}
	}()
	ticks := time.NewTicker(5 * time.Millisecond)
	for number := 0; ; number++ {
		select {
		case <-commands:
			ticks.Stop()
			answered.Wait()
			say("S", "stopped")
			<-commands
			cancel()
			return nil
		case <-ticks.C:
			answered.Add(1)
			producer.Input() <- &sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(fmt.Sprint("v", number))}
		}
	}
}
