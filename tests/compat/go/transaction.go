package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// transaction copies the records of a topic to another in a session of a group: aborted first, then committed. Then
// two clients have the same transactional id, and the admin client looks on.
func transaction(ctx context.Context, arguments []string) error {
	bootstrap, from, to, name := arguments[0], arguments[1], arguments[2], arguments[3]
	out := map[string]any{}
	copied, err := copyAll(ctx, bootstrap, from, to, name)
	if err != nil {
		return err
	}
	out["copied"] = copied
	if err := fence(ctx, bootstrap, to, name+"-fenced", out); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(out)
}

func copyAll(ctx context.Context, bootstrap, from, to, name string) ([]int, error) {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.TransactionalID(name), kgo.ConsumerGroup(name), kgo.ConsumeTopics(from),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(), kgo.DefaultProduceTopic(to), kgo.FetchMaxWait(200*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	defer session.Close()
	var copied []int
	for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		fetches := session.PollFetches(ctx)
		for _, failure := range fetches.Errors() {
			return nil, failure.Err
		}
		if err := session.Begin(); err != nil {
			return nil, err
		}
		count := 0
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(ctx, &kgo.Record{Value: r.Value}, nil)
			count++
		})
		// What is aborted must have been written.
		if err := session.Client().Flush(ctx); err != nil {
			return nil, err
		}
		done, err := session.End(ctx, commit)
		if err != nil {
			return nil, err
		}
		if done != bool(commit) {
			return nil, fmt.Errorf("the transaction ended with %v", done)
		}
		copied = append(copied, count)
	}
	return copied, nil
}

func fence(ctx context.Context, bootstrap, topic, name string, out map[string]any) error {
	start := func() (*kgo.Client, error) {
		for {
			// The id is free when what its last owner left open is aborted; a client does not ask twice.
			client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.TransactionalID(name), kgo.DefaultProduceTopic(topic))
			if err != nil {
				return nil, err
			}
			if err = client.BeginTransaction(); err == nil {
				err = client.ProduceSync(ctx, kgo.StringRecord("of "+name)).FirstErr()
			}
			if !errors.Is(err, kerr.ConcurrentTransactions) {
				return client, err
			}
			client.Close()
		}
	}
	zombie, err := start()
	if err != nil {
		return err
	}
	defer zombie.Close()
	adm := kadm.NewClient(zombie)
	described, err := adm.DescribeTransactions(ctx, name)
	if err != nil {
		return err
	}
	out["described"] = []any{described[name].State, described[name].Topics.Sorted()[0].Topic == topic}
	listed, err := adm.ListTransactions(ctx, nil, []string{"Ongoing"})
	if err != nil {
		return err
	}
	out["listed"] = listed[name].State
	owner, err := start()
	if err != nil {
		return err
	}
	defer owner.Close()
	var refused *kerr.Error
	if err := zombie.EndTransaction(ctx, kgo.TryCommit); errors.As(err, &refused) {
		out["zombie"] = refused.Code
	} else {
		return fmt.Errorf("the zombie was told %v", err)
	}
	return owner.EndTransaction(ctx, kgo.TryCommit)
}

// abortEmpty commits a transaction of one record and at once sends the EndTxn that aborts the next, empty one, again
// and again. It counts the EndTxn requests that were refused, by error code. The client itself sends no EndTxn for a
// transaction without records, so that each time is a client of its own.
func abortEmpty(ctx context.Context, arguments []string) error {
	bootstrap, topic, name := arguments[0], arguments[1], arguments[2]
	times, err := strconv.Atoi(arguments[3])
	if err != nil {
		return err
	}
	refused := map[int16]int{}
	for number := 0; number < times; number++ {
		code, err := commitThenAbort(ctx, bootstrap, topic, name, kgo.StringRecord(strconv.Itoa(number)))
		if err != nil {
			return err
		}
		if code != 0 {
			refused[code]++
		}
	}
	return json.NewEncoder(os.Stdout).Encode(refused)
}

func commitThenAbort(ctx context.Context, bootstrap, topic, name string, record *kgo.Record) (int16, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.TransactionalID(name), kgo.DefaultProduceTopic(topic), kgo.ProducerLinger(0),
	)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return 0, err
	}
	if err := client.ProduceSync(ctx, record).FirstErr(); err != nil {
		return 0, err
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return 0, err
	}
	request := kmsg.NewPtrEndTxnRequest()
	request.TransactionalID = name
	if request.ProducerID, request.ProducerEpoch, err = client.ProducerID(ctx); err != nil {
		return 0, err
	}
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return 0, err
	}
	if response.Version < 5 {
		return 0, fmt.Errorf("EndTxn version %d does not have an epoch for every transaction", response.Version)
	}
	return response.ErrorCode, nil
}
