#!/bin/bash
# The quick start of Apache Kafka with ZooKeeper, and what its later versions do before: an id, and directories.
set -eux
KAFKA_CLUSTER_ID="$(bin/kafka-storage.sh random-uuid)"
test ${#KAFKA_CLUSTER_ID} = 22
bin/zookeeper-server-start.sh -daemon config/zookeeper.properties
bin/kafka-server-start.sh -daemon config/server.properties

bin/kafka-topics.sh --create --topic quickstart-events --bootstrap-server localhost:9092
bin/kafka-topics.sh --describe --topic quickstart-events --bootstrap-server localhost:9092
printf 'This is my first event\nThis is my second event\n' |
  bin/kafka-console-producer.sh --topic quickstart-events --bootstrap-server localhost:9092
bin/kafka-console-consumer.sh --topic quickstart-events --from-beginning --max-messages 2 --bootstrap-server localhost:9092
bin/kafka-topics.sh --delete --topic quickstart-events --bootstrap-server localhost:9092
bin/kafka-topics.sh --list --bootstrap-server localhost:9092

bin/zookeeper-shell.sh localhost:2181 ls /brokers/ids
bin/kafka-server-stop.sh --node-id=0
