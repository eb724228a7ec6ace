#!/bin/sh
# Evolves the schema of the topic, and produces a record with each version. Run curl.sh first.
set -eu
cd "$(dirname "$0")"
REGISTRY=${REGISTRY:-http://127.0.0.1:8081}
REST=${REST:-http://127.0.0.1:8082}
TOPIC=${TOPIC:-sales}
SUBJECT=$TOPIC-value
JSON='application/json'

quoted() { sed 's/"/\\"/g' "$1" | tr -d '\n'; }
member() { sed "s/.*\"$1\": *\"\{0,1\}\([^\",}]*\).*/\1/"; }
send() { curl -s -X "$1" "$REGISTRY$2" -H "content-type: $JSON" -d "$3"; }

CLUSTER=$(curl -sf "$REST/v3/clusters" | member cluster_id)

# step FILE WHAT DATA: prints the verdict of each level, then registers the schema with BACKWARD.
step() {
  body='{"schema": "'$(quoted "$1")'"}'
  verdicts=
  for level in FORWARD FULL BACKWARD; do
    send PUT "/config/$SUBJECT" '{"compatibility": "'$level'"}' >/dev/null
    verdict=$(send POST "/compatibility/subjects/$SUBJECT/versions/latest" "$body" | member is_compatible)
    verdicts="$verdicts $verdict"
  done
  set -- "$1" "$2" "$3" $verdicts
  answer=$(send POST "/subjects/$SUBJECT/versions" "$body")
  case $answer in
    *error_code*) result="refused: $(echo "$answer" | member error_code)" ;;
    *) result="version $(curl -s "$REGISTRY/subjects/$SUBJECT/versions/latest" | member version)" ;;
  esac
  printf '%-24s %-26s %-9s %-8s %-6s %s\n' "$1" "$2" "$6" "$4" "$5" "$result"
  if [ -n "$3" ]; then
    curl -sf "$REST/v3/clusters/$CLUSTER/topics/$TOPIC/records" -H "content-type: $JSON" \
      -d '{"value": {"schema_version": '"${result#version }"', "data": '"$3"'}}' -o /dev/null
  fi
}

printf '%-24s %-26s %-9s %-8s %-6s %s\n' schema change BACKWARD FORWARD FULL 'registered with BACKWARD'
step order-2.avsc 'rename with an alias' '{"id": 4, "buyer": "Edsger", "amount": 40, "coupon": ""}'
step order-3.avsc 'widen int to long' '{"id": 5, "buyer": "Barbara", "amount": 5000000000, "coupon": ""}'
step order-4-no-default.avsc 'add without a default' ''
step order-4.avsc 'add with a default' '{"id": 6, "buyer": "Donald", "amount": 60, "coupon": "", "currency": "USD"}'
step order-5.avsc 'remove, had a default' '{"id": 7, "buyer": "Leslie", "amount": 70, "currency": "USD"}'
