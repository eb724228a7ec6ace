package main

// Requests of an administrator of a cluster: topics with assignments, reassignments, elections, log directories, features,
// settings of brokers, transactions and groups. kadm does what it can; the rest are requests of kmsg.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const updateFeatures = 57

type described struct {
	Leader   int32   `json:"leader"`
	Replicas []int32 `json:"replicas"`
	ISR      []int32 `json:"isr"`
	Offline  []int32 `json:"offline"`
}

// cluster runs one operation: BOOTSTRAP OPERATION ARGUMENTS. It prints the result as JSON.
func cluster(ctx context.Context, arguments []string) error {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(arguments[0], ",")...)}
	if arguments[1] == "set-feature" {
		// kmsg 1.12 expects results in version 2 of UpdateFeatures. Kafka has removed them.
		versions := kversion.Stable()
		versions.SetMaxKeyVersion(updateFeatures, 1)
		options = append(options, kgo.MaxVersions(versions))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	operations := map[string]func(context.Context, *kgo.Client, *kadm.Client, []string) (any, error){
		"create": createReplicated, "create-assigned": createAssigned, "grow": grow, "describe": describeTopic,
		"reassign": reassign, "reassignments": reassignments, "elect": elect, "log-dirs": logDirs,
		"alter-log-dir": alterLogDir, "features": features, "set-feature": setFeature, "cluster": describeCluster, "quorum": quorum,
		"unregister": unregister, "set-broker-config": setBrokerConfig, "broker-config": brokerConfig,
		"transactions": transactions, "groups": groups, "commit": commit, "offset": offset, "delete-group": deleteGroup,
	}
	operation, known := operations[arguments[1]]
	if !known {
		return fmt.Errorf("unknown operation %q", arguments[1])
	}
	result, err := operation(ctx, client, kadm.NewClient(client), arguments[2:])
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

func createReplicated(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	numbers, err := integers(arguments[1:]...)
	if err != nil {
		return nil, err
	}
	_, err = adm.CreateTopic(ctx, int32(numbers[0]), int16(numbers[1]), nil, arguments[0])
	return nil, err
}

func createAssigned(ctx context.Context, client *kgo.Client, _ *kadm.Client, arguments []string) (any, error) {
	lists, err := assignments(arguments[1])
	if err != nil {
		return nil, err
	}
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = arguments[0], -1, -1
	for number, replicas := range lists {
		each := kmsg.NewCreateTopicsRequestTopicReplicaAssignment()
		each.Partition, each.Replicas = int32(number), replicas
		topic.ReplicaAssignment = append(topic.ReplicaAssignment, each)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	reply, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(reply.Topics[0].ErrorCode)
}

func assignments(text string) (lists [][]int32, err error) {
	err = json.Unmarshal([]byte(text), &lists)
	return lists, err
}

func grow(ctx context.Context, client *kgo.Client, _ *kadm.Client, arguments []string) (any, error) {
	total, err := strconv.Atoi(arguments[1])
	if err != nil {
		return nil, err
	}
	lists, err := assignments(arguments[2])
	if err != nil {
		return nil, err
	}
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = arguments[0], int32(total)
	for _, replicas := range lists {
		each := kmsg.NewCreatePartitionsRequestTopicAssignment()
		each.Replicas = replicas
		topic.Assignment = append(topic.Assignment, each)
	}
	request := kmsg.NewPtrCreatePartitionsRequest()
	request.Topics = append(request.Topics, topic)
	reply, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(reply.Topics[0].ErrorCode)
}

func describeTopic(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	found, err := adm.ListTopics(ctx, arguments[0])
	if err != nil {
		return nil, err
	}
	rows := []described{}
	for _, each := range found[arguments[0]].Partitions.Sorted() {
		rows = append(rows, described{each.Leader, each.Replicas, each.ISR, each.OfflineReplicas})
	}
	return rows, nil
}

// reassign moves partition 0. The replicas null cancel it.
func reassign(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	var replicas []int32
	if err := json.Unmarshal([]byte(arguments[1]), &replicas); err != nil {
		return nil, err
	}
	var request kadm.AlterPartitionAssignmentsReq
	request.Assign(arguments[0], 0, replicas)
	found, err := adm.AlterPartitionAssignments(ctx, request)
	if err != nil {
		return nil, err
	}
	return nil, found.Error()
}

func reassignments(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	var topics kadm.TopicsSet
	topics.Add(arguments[0], 0)
	found, err := adm.ListPartitionReassignments(ctx, topics)
	if err != nil {
		return nil, err
	}
	rows := [][][]int32{}
	for _, each := range found.Sorted() {
		rows = append(rows, [][]int32{each.Replicas, each.AddingReplicas, each.RemovingReplicas})
	}
	return rows, nil
}

func elect(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	how := kadm.ElectPreferredReplica
	if arguments[1] == "unclean" {
		how = kadm.ElectLiveReplica
	}
	var topics kadm.TopicsSet
	topics.Add(arguments[0], 0)
	found, err := adm.ElectLeaders(ctx, how, topics)
	if err != nil {
		return nil, err
	}
	return code(found[arguments[0]][0].Err), nil
}

func logDirs(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	found, err := adm.DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return nil, err
	}
	sizes := map[int32]map[int32]int64{}
	for broker, directories := range found {
		if err := directories.Error(); err != nil {
			return nil, err
		}
		sizes[broker] = map[int32]int64{}
		directories.EachPartition(func(each kadm.DescribedLogDirPartition) {
			if each.Topic == arguments[0] {
				sizes[broker][each.Partition] = each.Size
			}
		})
	}
	return sizes, nil
}

func alterLogDir(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	number, err := strconv.Atoi(arguments[1])
	if err != nil {
		return nil, err
	}
	var topics kadm.TopicsSet
	topics.Add(arguments[0], 0)
	var request kadm.AlterReplicaLogDirsReq
	request.Add(arguments[2], topics)
	found, err := adm.AlterBrokerReplicaLogDirs(ctx, int32(number), request)
	if err != nil {
		return nil, err
	}
	return code(found[arguments[0]][0].Err), nil
}

func features(ctx context.Context, client *kgo.Client, _ *kadm.Client, _ []string) (any, error) {
	request := kmsg.NewPtrApiVersionsRequest()
	request.ClientSoftwareName, request.ClientSoftwareVersion = "franz-go", "1"
	reply, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	levels := map[string]int16{}
	for _, each := range reply.FinalizedFeatures {
		levels[each.Name] = each.MaxVersionLevel
	}
	return levels, kerr.ErrorForCode(reply.ErrorCode)
}

func setFeature(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	numbers, err := integers(arguments[1:]...)
	if err != nil {
		return nil, err
	}
	update := kadm.FeatureUpdate{Feature: arguments[0], MaxVersionLevel: int16(numbers[0]), UpgradeType: int8(numbers[1])}
	_, err = adm.UpdateFeatures(ctx, false, update)
	return nil, err
}

func describeCluster(ctx context.Context, _ *kgo.Client, adm *kadm.Client, _ []string) (any, error) {
	found, err := adm.BrokerMetadata(ctx)
	if err != nil {
		return nil, err
	}
	return []any{found.Controller, found.Brokers.NodeIDs()}, nil
}

func quorum(ctx context.Context, client *kgo.Client, _ *kadm.Client, _ []string) (any, error) {
	partition := kmsg.NewDescribeQuorumRequestTopicPartition()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic, topic.Partitions = "__cluster_metadata", append(topic.Partitions, partition)
	request := kmsg.NewPtrDescribeQuorumRequest()
	request.Topics = append(request.Topics, topic)
	reply, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	voters := []int32{}
	for _, each := range reply.Topics[0].Partitions[0].CurrentVoters {
		voters = append(voters, each.ReplicaID)
	}
	return []any{reply.Topics[0].Partitions[0].LeaderID, voters}, kerr.ErrorForCode(reply.ErrorCode)
}

func unregister(ctx context.Context, client *kgo.Client, _ *kadm.Client, arguments []string) (any, error) {
	number, err := strconv.Atoi(arguments[0])
	if err != nil {
		return nil, err
	}
	request := kmsg.NewPtrUnregisterBrokerRequest()
	request.BrokerID = int32(number)
	reply, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, err
	}
	return nil, kerr.ErrorForCode(reply.ErrorCode)
}

func setBrokerConfig(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	number, err := strconv.Atoi(arguments[0])
	if err != nil {
		return nil, err
	}
	change := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: arguments[1], Value: &arguments[2]}}
	found, err := adm.AlterBrokerConfigs(ctx, change, int32(number))
	if err != nil {
		return nil, err
	}
	return nil, found[0].Err
}

func brokerConfig(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	number, err := strconv.Atoi(arguments[0])
	if err != nil {
		return nil, err
	}
	found, err := adm.DescribeBrokerConfigs(ctx, int32(number))
	if err != nil {
		return nil, err
	}
	for _, each := range found[0].Configs {
		if each.Key == arguments[1] {
			return each.MaybeValue(), found[0].Err
		}
	}
	return nil, errors.Join(found[0].Err, errors.New("the setting is missing"))
}

func transactions(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	listed, err := adm.ListTransactions(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	found, err := adm.DescribeTransactions(ctx, arguments...)
	if err != nil {
		return nil, err
	}
	states := map[string][]string{}
	for _, name := range arguments {
		states[name] = []string{listed[name].State, found[name].State}
	}
	return states, nil
}

func groups(ctx context.Context, _ *kgo.Client, adm *kadm.Client, _ []string) (any, error) {
	found, err := adm.ListGroups(ctx)
	return found.Groups(), err
}

func commit(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	number, err := strconv.ParseInt(arguments[2], 10, 64)
	if err != nil {
		return nil, err
	}
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: arguments[1], At: number, LeaderEpoch: -1})
	return nil, adm.CommitAllOffsets(ctx, arguments[0], offsets)
}

func offset(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	found, err := adm.FetchOffsets(ctx, arguments[0])
	if err != nil {
		return nil, err
	}
	each, _ := found.Lookup(arguments[1], 0)
	return each.At, each.Err
}

func deleteGroup(ctx context.Context, _ *kgo.Client, adm *kadm.Client, arguments []string) (any, error) {
	found, err := adm.DeleteGroup(ctx, arguments[0])
	if err != nil {
		return nil, err
	}
	return nil, found.Err
}
