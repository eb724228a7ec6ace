// segmentio/kafka-go as a command: one member of a group that reads COUNT records of a topic, commits them and leaves.
//
//	segmentio BOOTSTRAP TOPIC GROUP COUNT        a line for each record: partition, offset, value
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

func main() {
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
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{bootstrap}, GroupID: name, Topic: topic, StartOffset: kafka.FirstOffset,
		MaxWait: 200 * time.Millisecond,
	})
	for range wanted {
		message, err := reader.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if err := reader.CommitMessages(ctx, message); err != nil {
			return err
		}
		fmt.Println(message.Partition, message.Offset, string(message.Value))
	}
	return reader.Close()
}
