"""Scenarios of kafka-topics, kafka-get-offsets and kafka-delete-records."""

from __future__ import annotations

from tool_actions import records
from tool_scenarios import Scenario, Step, file

CLUSTER_CHECKS = (
    "the cluster checks settings, with its own words; Java's tool knows those of Kafka and checks them first"
)


def _topics(arguments: str, **more: str) -> Step:
    return Step("kafka-topics", arguments, **more)  # type: ignore[arg-type]


_TOPICS = Scenario(
    name="topics",
    is_alone=True,
    steps=[
        _topics("--version"),
        _topics("--help"),
        _topics(""),
        _topics("{b} --list"),
        _topics("{b} --create --topic orders --partitions 3"),
        _topics("{b} --create --topic orders"),
        _topics("{b} --create --topic orders --if-not-exists"),
        _topics(
            "{b} --create --topic a.b --replication-factor 1 --config retention.ms=1 --config cleanup.policy=delete"
        ),
        _topics("{b} --create --topic by-hand --replica-assignment 0,0"),
        _topics("{b} --create --topic bad --replica-assignment 0:0"),
        _topics("{b} --create --topic bad --replica-assignment 0:1,0"),
        _topics("{b} --create --topic bad --replica-assignment 0,x"),
        _topics("{b} --create --topic bad --replica-assignment 7"),
        _topics("{b} --create --topic bad --partitions 0"),
        _topics("{b} --create --topic bad --partitions x"),
        _topics("{b} --create --topic bad --partitions 3 --partitions 4"),
        _topics("{b} --create --topic bad --replication-factor 0"),
        _topics("{b} --create --topic bad --replication-factor 3"),
        _topics("{b} --create --topic bad --config nonsense=1", differs=CLUSTER_CHECKS),
        _topics("{b} --create --topic bad --config retention.ms=x", differs=CLUSTER_CHECKS),
        _topics("{b} --create --topic bad --config retention.ms"),
        _topics("{b} --create --topic 'b d'"),
        _topics("{b} --create --topic orders --partitions 3 --replica-assignment 0"),
        _topics("{b} --create"),
        _topics("{b} --list"),
        _topics("{b} --list --topic 'or.*, a.b'"),
        _topics("{b} --list --topic nothing"),
        _topics("{b} --list --exclude-internal"),
        _topics("{b} --list --topic '['"),
        _topics("{b} --describe"),
        _topics("{b} --describe --topic orders"),
        _topics("{b} --describe --topic=orders --partition-size-limit-per-response 1"),
        _topics("{b} --describe --topic nothing"),
        _topics("{b} --describe --topic nothing --if-exists"),
        _topics("{b} --describe --if-exists"),
        _topics("{b} --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ"),
        _topics("{b} --describe --topic-id AAAAAAAAAAAAAAAAAAAAAQ --if-exists"),
        _topics("{b} --describe --topic-id x"),
        _topics("{b} --describe --topics-with-overrides"),
        _topics("{b} --describe --under-replicated-partitions"),
        _topics("{b} --describe --unavailable-partitions"),
        _topics("{b} --describe --under-min-isr-partitions"),
        _topics("{b} --describe --at-min-isr-partitions --topic orders"),
        _topics("{b} --describe --under-replicated-partitions --topics-with-overrides"),
        _topics("{b} --alter --topic orders --partitions 5"),
        _topics("{b} --alter --topic orders --partitions 2"),
        _topics("{b} --alter --topic orders --partitions 6 --replica-assignment 0,0,0,0,0,0"),
        _topics("{b} --alter --topic orders"),
        _topics("{b} --alter --topic nothing --partitions 5"),
        _topics("{b} --alter --topic nothing --partitions 5 --if-exists"),
        _topics("{b} --alter --topic orders --config retention.ms=1"),
        _topics("{b} --alter --topic orders --partitions 7 --delete-config x"),
        _topics("{b} --delete --topic nothing"),
        _topics("{b} --delete --topic nothing --if-exists"),
        _topics("{b} --delete --topic 'by-.*'"),
        _topics("{b} --delete --topic orders --if-not-exists"),
        _topics("{b} --delete --if-exists"),
        _topics("{b} --list"),
        _topics("--list"),
        _topics("--zookeeper {server} --list"),
        _topics("{b} --list --describe"),
        _topics("{b} --lis"),
        _topics("-bootstrap-server={server} -list"),
        file("client.properties", "client.id=me\nrequest.timeout.ms=20000\n"),
        _topics("{b} --list --command-config {dir}/client.properties"),
        _topics("{b} --list --command-config {dir}/nothing.properties"),
    ],
)


def _offsets(arguments: str) -> Step:
    return Step("kafka-get-offsets", arguments)


_OFFSETS = Scenario(
    name="get-offsets",
    steps=[
        _topics("{b} --create --topic off-a --partitions 3"),
        _topics("{b} --create --topic off-b"),
        records("off-a", 5),
        records("off-a", 2, partition=2),
        _offsets(""),
        _offsets("--version"),
        _offsets("--topic off-a"),
        _offsets("{b} --topic off-a"),
        _offsets("{b} --topic 'off-.*'"),
        _offsets("{b} --topic off-a --partitions 0,2"),
        _offsets("{b} --topic off-a --partitions 0,x"),
        _offsets("{b} --topic off-a --time earliest"),
        _offsets("{b} --topic off-a --time -2"),
        _offsets("{b} --topic off-a --time -1"),
        _offsets("{b} --topic off-a --time latest --exclude-internal-topics"),
        _offsets("{b} --topic off-a --time max-timestamp"),
        _offsets("{b} --topic off-a --time -3"),
        _offsets("{b} --topic off-a --time earliest-local"),
        _offsets("{b} --topic off-a --time 1700000000003"),
        _offsets("{b} --topic off-a --time 1800000000000"),
        _offsets("{b} --topic off-a --time soon"),
        _offsets("{b} --topic nothing"),
        _offsets("{b} --topic-partitions off-a:1"),
        _offsets("{b} --topic-partitions off-a:0-2,off-b"),
        _offsets("{b} --topic-partitions off-a:1-,off-b:-1"),
        _offsets("{b} --topic-partitions off-a:-2"),
        _offsets("{b} --topic-partitions 'off-.*:0'"),
        _offsets("{b} --topic-partitions off-a:x"),
        _offsets("{b} --topic-partitions off-a --topic off-a"),
        _offsets("--bootstrap-server nonsense --topic off-a"),
        _offsets("--broker-list {server} --topic off-a"),
    ],
)

_DELETED_JSON = """{"partitions": [{"topic": "del-a", "partition": 0, "offset": 3},
 {"topic": "del-a", "partition": 1, "offset": -1}, {"topic": "del-b", "partition": 0, "offset": 99}], "version": 1}"""


def _delete(arguments: str, *, unordered: bool = False) -> Step:
    return Step("kafka-delete-records", arguments, unordered=unordered)


_DELETE = Scenario(
    name="delete-records",
    steps=[
        _topics("{b} --create --topic del-a --partitions 2"),
        _topics("{b} --create --topic del-b"),
        records("del-a", 5),
        records("del-a", 4, partition=1),
        records("del-b", 4),
        file("all.json", _DELETED_JSON),
        file("twice.json", _DELETED_JSON.replace("del-b", "del-a")),
        file("version.json", _DELETED_JSON.replace('"version": 1', '"version": 2')),
        file("missing.json", "{}"),
        file("broken.json", "{"),
        _delete("{b} --offset-json-file {dir}/all.json", unordered=True),
        Step("kafka-get-offsets", "{b} --topic 'del-.*' --time earliest"),
        _delete("{b} --offset-json-file {dir}/twice.json"),
        _delete("{b} --offset-json-file {dir}/version.json"),
        _delete("{b} --offset-json-file {dir}/missing.json"),
        _delete("{b} --offset-json-file {dir}/broken.json"),
        _delete("{b} --offset-json-file {dir}/nothing.json"),
        _delete("{b}"),
        _delete("--version"),
        _delete("--help"),
    ],
)

SCENARIOS = (_TOPICS, _OFFSETS, _DELETE)
