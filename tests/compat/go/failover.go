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

	"github.com/twmb/franz-go/pkg/kgo"
)

// failover writes and reads until the input says so: BOOTSTRAP TOPIC GROUP.
func failover(arguments []string) error {
	seeds, topic, group := strings.Split(arguments[0], ","), arguments[1], arguments[2]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds...), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.DefaultProduceTopic(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.AutoCommitInterval(500*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	var mutex sync.Mutex
	say := func(kind string, text string) {
		mutex.Lock()
		defer mutex.Unlock()
		fmt.Println(kind, text)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	commands := make(chan string)
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			commands <- lines.Text()
		}
	}()
	go func() {
		for ctx.Err() == nil {
			fetches := client.PollFetches(ctx)
			fetches.EachError(func(_ string, _ int32, err error) {
				if ctx.Err() == nil {
					say("E", "fetch: "+err.Error())
				}
			})
			fetches.EachRecord(func(each *kgo.Record) { say("R", string(each.Value)) })
		}
	}()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for number := 0; ; number++ {
		select {
		case command := <-commands:
			if command == "stop" {
				ticks.Stop()
				if err := client.Flush(ctx); err != nil {
					return err
				}
				say("S", "stopped")
				<-commands
			}
			return nil
		case <-ticks.C:
			value := fmt.Sprint("v", number)
			client.Produce(ctx, kgo.StringRecord(value), func(_ *kgo.Record, err error) {
				if err != nil {
					say("E", "produce: "+err.Error())
				} else {
					say("A", value)
				}
			})
		}
	}
}
