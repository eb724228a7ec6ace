"""Scenarios of kafka-topics, kafka-configs, kafka-get-offsets and kafka-delete-records."""

from __future__ import annotations

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

SCENARIOS = (_TOPICS,)
