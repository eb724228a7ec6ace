#!/bin/bash
# Three brokers on one machine, as courses start them: copies of server.properties with another id, port and directory.
set -eux
for n in 1 2; do
  sed -e "s/^broker.id=0/broker.id=$n/" -e "s|^#listeners=PLAINTEXT://:9092|listeners=PLAINTEXT://:$((9092 + n))|" \
    -e "s|^log.dirs=.*|log.dirs=/tmp/kafka-logs-$n|" config/server.properties > config/server-$n.properties
done
bin/zookeeper-server-start.sh -daemon config/zookeeper.properties
bin/kafka-server-start.sh -daemon config/server.properties
bin/kafka-server-start.sh -daemon config/server-1.properties
bin/kafka-server-start.sh -daemon config/server-2.properties
until [ "$(bin/kafka-broker-api-versions.sh --bootstrap-server localhost:9092,localhost:9093,localhost:9094 | grep -c 'id:')" = 3 ]; do
  :
done

bin/kafka-topics.sh --create --bootstrap-server localhost:9092 --replication-factor 3 --partitions 1 --topic my-replicated-topic
bin/kafka-topics.sh --describe --bootstrap-server localhost:9092 --topic my-replicated-topic
printf 'my test message 1\nmy test message 2\n' |
  bin/kafka-console-producer.sh --bootstrap-server localhost:9092,localhost:9093,localhost:9094 --topic my-replicated-topic
bin/kafka-console-consumer.sh --bootstrap-server localhost:9092,localhost:9093 --from-beginning --max-messages 2 \
  --topic my-replicated-topic --group readers
bin/kafka-consumer-groups.sh --bootstrap-server localhost:9092 --list
bin/kafka-consumer-groups.sh --bootstrap-server localhost:9092 --describe --group readers
bin/kafka-consumer-groups.sh --bootstrap-server localhost:9092 --group readers --topic my-replicated-topic \
  --reset-offsets --to-earliest --execute
bin/kafka-console-consumer.sh --bootstrap-server localhost:9092 --max-messages 2 --topic my-replicated-topic --group readers \
  --property print.key=true

bin/kafka-configs.sh --bootstrap-server localhost:9092 --entity-type topics --entity-name my-replicated-topic --alter \
  --add-config retention.ms=600000
bin/kafka-configs.sh --bootstrap-server localhost:9092 --entity-type topics --entity-name my-replicated-topic --describe
bin/kafka-get-offsets.sh --bootstrap-server localhost:9092 --topic my-replicated-topic

cat > topics-to-move.json <<'JSON'
{"topics": [{"topic": "my-replicated-topic"}], "version": 1}
JSON
cat > reassignment.json <<'JSON'
{"version": 1, "partitions": [{"topic": "my-replicated-topic", "partition": 0, "replicas": [2, 1]}]}
JSON
bin/kafka-reassign-partitions.sh --bootstrap-server localhost:9092 --topics-to-move-json-file topics-to-move.json \
  --broker-list 0,1,2 --generate
bin/kafka-reassign-partitions.sh --bootstrap-server localhost:9092 --reassignment-json-file reassignment.json --execute
until bin/kafka-reassign-partitions.sh --bootstrap-server localhost:9092 --reassignment-json-file reassignment.json --verify |
  grep 'is completed\.$\|is complete\.$'; do
  :
done
bin/kafka-leader-election.sh --bootstrap-server localhost:9092 --election-type preferred --all-topic-partitions
bin/kafka-topics.sh --describe --bootstrap-server localhost:9092 --topic my-replicated-topic

bin/kafka-server-stop.sh --node-id=2
until bin/kafka-topics.sh --describe --bootstrap-server localhost:9092 --topic my-replicated-topic | grep -P 'Leader: 1\t'; do
  :
done
bin/kafka-console-consumer.sh --bootstrap-server localhost:9092 --from-beginning --max-messages 2 --topic my-replicated-topic
bin/kafka-producer-perf-test.sh --topic my-replicated-topic --num-records 1000 --record-size 100 --throughput -1 \
  --producer-props bootstrap.servers=localhost:9092
bin/kafka-consumer-perf-test.sh --bootstrap-server localhost:9092 --topic my-replicated-topic --messages 1000
bin/kafka-topics.sh --bootstrap-server localhost:9092 --delete --topic my-replicated-topic
for n in 0 1; do
  bin/kafka-server-stop.sh --node-id=$n
done
