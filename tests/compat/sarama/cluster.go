package main

// The ClusterAdmin of sarama: topics with assignments, reassignments, elections, log directories, settings, groups.

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
)

type described struct {
	Leader   int32   `json:"leader"`
	Replicas []int32 `json:"replicas"`
	ISR      []int32 `json:"isr"`
	Offline  []int32 `json:"offline"`
}

func fail(err error) {
	var refused sarama.KError
	if errors.As(err, &refused) {
		fmt.Fprintf(os.Stderr, "refused %d %s\n", int16(refused), err)
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(1)
}

// cluster runs one operation: BOOTSTRAP OPERATION ARGUMENTS.
func cluster(arguments []string) error {
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Offsets.AutoCommit.Interval = 20 * time.Millisecond
	client, err := sarama.NewClient(strings.Split(arguments[0], ","), config)
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return err
	}
	defer admin.Close()
	operations := map[string]func(sarama.Client, sarama.ClusterAdmin, []string) (any, error){
		"create": create, "create-assigned": createAssigned, "grow": grow, "describe": describe, "reassign": reassign,
		"reassignments": reassignments, "elect": elect, "log-dirs": logDirs, "cluster": describeCluster,
		"set-broker-config": setBrokerConfig, "broker-config": brokerConfig, "groups": groups, "commit": commit,
		"offset": offset, "delete-group": deleteGroup,
	}
	operation, known := operations[arguments[1]]
	if !known {
		return fmt.Errorf("unknown operation %q", arguments[1])
	}
	result, err := operation(client, admin, arguments[2:])
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

func create(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	partitions, err := strconv.Atoi(arguments[1])
	if err != nil {
		return nil, err
	}
	factor, err := strconv.Atoi(arguments[2])
	if err != nil {
		return nil, err
	}
	detail := &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: int16(factor)}
	return nil, admin.CreateTopic(arguments[0], detail, false)
}

func assignments(text string) (lists [][]int32, err error) {
	err = json.Unmarshal([]byte(text), &lists)
	return lists, err
}

func createAssigned(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	lists, err := assignments(arguments[1])
	if err != nil {
		return nil, err
	}
	detail := &sarama.TopicDetail{NumPartitions: -1, ReplicationFactor: -1, ReplicaAssignment: map[int32][]int32{}}
	for number, replicas := range lists {
		detail.ReplicaAssignment[int32(number)] = replicas
	}
	return nil, admin.CreateTopic(arguments[0], detail, false)
}

func grow(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	total, err := strconv.Atoi(arguments[1])
	if err != nil {
		return nil, err
	}
	lists, err := assignments(arguments[2])
	if err != nil {
		return nil, err
	}
	return nil, admin.CreatePartitions(arguments[0], int32(total), lists, false)
}

func describe(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	found, err := admin.DescribeTopics(arguments)
	if err != nil {
		return nil, err
	}
	partitions := found[0].Partitions
	sort.Slice(partitions, func(a, b int) bool { return partitions[a].ID < partitions[b].ID })
	rows := []described{}
	for _, each := range partitions {
		rows = append(rows, described{each.Leader, each.Replicas, each.Isr, each.OfflineReplicas})
	}
	return rows, nil
}

// reassign moves partition 0. The replicas null cancel it.
func reassign(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	var replicas []int32
	if err := json.Unmarshal([]byte(arguments[1]), &replicas); err != nil {
		return nil, err
	}
	return nil, admin.AlterPartitionReassignments(arguments[0], [][]int32{replicas})
}

func reassignments(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	found, err := admin.ListPartitionReassignments(arguments[0], []int32{0})
	if err != nil {
		return nil, err
	}
	rows := [][][]int32{}
	for _, each := range found[arguments[0]] {
		rows = append(rows, [][]int32{each.Replicas, each.AddingReplicas, each.RemovingReplicas})
	}
	return rows, nil
}

func elect(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	kind := sarama.PreferredElection
	if arguments[1] == "unclean" {
		kind = sarama.UncleanElection
	}
	found, err := admin.ElectLeaders(kind, map[string][]int32{arguments[0]: {0}})
	if err != nil {
		return nil, err
	}
	return int16(found[arguments[0]][0].ErrorCode), nil
}

func logDirs(client sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	numbers := []int32{}
	for _, broker := range client.Brokers() {
		numbers = append(numbers, broker.ID())
	}
	found, err := admin.DescribeLogDirs(numbers)
	if err != nil {
		return nil, err
	}
	sizes := map[int32]map[int32]int64{}
	for broker, directories := range found {
		sizes[broker] = map[int32]int64{}
		for _, directory := range directories {
			for _, topic := range directory.Topics {
				for _, partition := range topic.Partitions {
					if topic.Topic == arguments[0] {
						sizes[broker][partition.PartitionID] = partition.Size
					}
				}
			}
		}
	}
	return sizes, nil
}

func describeCluster(_ sarama.Client, admin sarama.ClusterAdmin, _ []string) (any, error) {
	brokers, controller, err := admin.DescribeCluster()
	numbers := []int32{}
	for _, broker := range brokers {
		numbers = append(numbers, broker.ID())
	}
	sort.Slice(numbers, func(a, b int) bool { return numbers[a] < numbers[b] })
	return []any{controller, numbers}, err
}

func setBrokerConfig(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	entry := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &arguments[2]}
	entries := map[string]sarama.IncrementalAlterConfigsEntry{arguments[1]: entry}
	return nil, admin.IncrementalAlterConfig(sarama.BrokerResource, arguments[0], entries, false)
}

func brokerConfig(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	resource := sarama.ConfigResource{Type: sarama.BrokerResource, Name: arguments[0], ConfigNames: []string{arguments[1]}}
	found, err := admin.DescribeConfig(resource)
	if err != nil {
		return nil, err
	}
	return found[0].Value, nil
}

func groups(_ sarama.Client, admin sarama.ClusterAdmin, _ []string) (any, error) {
	found, err := admin.ListConsumerGroups()
	names := []string{}
	for name := range found {
		names = append(names, name)
	}
	return names, err
}

func commit(client sarama.Client, _ sarama.ClusterAdmin, arguments []string) (any, error) {
	number, err := strconv.ParseInt(arguments[2], 10, 64)
	if err != nil {
		return nil, err
	}
	offsets, err := sarama.NewOffsetManagerFromClient(arguments[0], client)
	if err != nil {
		return nil, err
	}
	partition, err := offsets.ManagePartition(arguments[1], 0)
	if err != nil {
		return nil, err
	}
	partition.MarkOffset(number, "")
	offsets.Commit()
	if err := partition.Close(); err != nil {
		return nil, err
	}
	return nil, offsets.Close()
}

func offset(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	found, err := admin.ListConsumerGroupOffsets(arguments[0], map[string][]int32{arguments[1]: {0}})
	if err != nil {
		return nil, err
	}
	return found.GetBlock(arguments[1], 0).Offset, nil
}

func deleteGroup(_ sarama.Client, admin sarama.ClusterAdmin, arguments []string) (any, error) {
	return nil, admin.DeleteConsumerGroup(arguments[0])
}
