#!/bin/sh
# Produces and consumes Avro records with curl alone: through the REST proxy, with a schema of the registry.
set -eu
cd "$(dirname "$0")"
REGISTRY=${REGISTRY:-http://127.0.0.1:8081}
REST=${REST:-http://127.0.0.1:8082}
TOPIC=${TOPIC:-sales}
V2='application/vnd.kafka.v2+json'
AVRO='application/vnd.kafka.avro.v2+json'
JSON='application/json'

# A schema inside of JSON: its quotes need a backslash.
quoted() { sed 's/"/\\"/g' "$1" | tr -d '\n'; }
# The value of a text or a number in an answer.
member() { sed "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/"; }

echo '1. Create a topic'
CLUSTER=$(curl -sf "$REST/v3/clusters" | member cluster_id)
TOPICS=$REST/v3/clusters/$CLUSTER/topics
curl -sf "$TOPICS" -H "content-type: $JSON" -d '{"topic_name": "'"$TOPIC"'", "partitions_count": 1}' -o /dev/null

echo '2. Register the schema of its values'
ID=$(curl -sf "$REGISTRY/subjects/$TOPIC-value/versions" -H "content-type: $JSON" \
  -d '{"schema": "'"$(quoted order-1.avsc)"'"}' | member id)

echo '3. Produce: two records with version 2 of the API, a third one with version 3'
curl -sf "$REST/topics/$TOPIC" -H "content-type: $AVRO" -d '{"value_schema_id": '"$ID"', "records": [
  {"value": {"id": 1, "customer": "Ada", "amount": 10, "coupon": "spring"}},
  {"value": {"id": 2, "customer": "Grace", "amount": 20, "coupon": ""}}]}' -o /dev/null
curl -sf "$TOPICS/$TOPIC/records" -H "content-type: $JSON" -d '{"value": {"schema_version": 1,
  "data": {"id": 3, "customer": "Alan", "amount": 30, "coupon": ""}}}' -o /dev/null

echo '4. A record that does not fit the schema is refused:'
curl -s "$TOPICS/$TOPIC/records" -H "content-type: $JSON" -d '{"value": {"schema_version": 1,
  "data": {"id": "four"}}}' | member error_code

echo '5. Consume with a consumer instance of a group:'
# base_uri names the proxy that owns the instance. A GET waits for up to 20 seconds for records, and returns those that
# have arrived: it is repeated until all are here.
BASE=$(curl -sf "$REST/consumers/$TOPIC-readers" -H "content-type: $V2" -d '{"format": "avro",
  "auto.offset.reset": "earliest", "auto.commit.enable": "false", "consumer.request.timeout.ms": "20000"}' |
  sed 's/.*"base_uri": *"\([^"]*\)".*/\1/')
curl -sf "$BASE/subscription" -H "content-type: $V2" -d '{"topics": ["'"$TOPIC"'"]}'
RECORDS=
while [ "$(echo "$RECORDS" | grep -c topic)" -lt 3 ]; do
  FOUND=$(curl -sf "$BASE/records" -H "accept: $AVRO")
  RECORDS="$RECORDS$(echo "$FOUND" | sed 's/},{"topic"/}\n{"topic"/g; s/^\[//; s/\]$/\n/')
"
done
echo "$RECORDS" | grep topic
curl -sf -X POST "$BASE/offsets" -H "content-type: $V2" -o /dev/null
curl -sf -X DELETE "$BASE"
