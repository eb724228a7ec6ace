#!/bin/bash
# The quick start of Apache Kafka 4: one broker that is its own controller.
set -eux
KAFKA_CLUSTER_ID="$(bin/kafka-storage.sh random-uuid)"
bin/kafka-storage.sh format --standalone -t $KAFKA_CLUSTER_ID -c config/server.properties
bin/kafka-server-start.sh -daemon config/server.properties

bin/kafka-topics.sh --create --topic quickstart-events --bootstrap-server localhost:9092
bin/kafka-topics.sh --describe --topic quickstart-events --bootstrap-server localhost:9092
printf 'This is my first event\nThis is my second event\n' |
  bin/kafka-console-producer.sh --topic quickstart-events --bootstrap-server localhost:9092
bin/kafka-console-consumer.sh --topic quickstart-events --from-beginning --max-messages 2 --bootstrap-server localhost:9092
bin/kafka-cluster.sh cluster-id --bootstrap-server localhost:9092
bin/kafka-server-stop.sh --node-id=1
