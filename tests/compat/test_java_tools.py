"""Apache Kafka's command-line tools against this broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from drivers import Record
from drivers.confluent import Confluent
from drivers.java import (
    API_VERSIONS,
    CLUSTER_ID,
    CONFIGS,
    CONSUMER,
    DELETE_RECORDS,
    FEATURES,
    LOG_DIRS,
    OFFSETS,
    PERFORMANCE,
    TOPICS,
    VERIFIABLE_PRODUCER,
    JavaTools,
)
from drivers.parameters import NewTopic

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

_T0_MS = 1_700_000_000_000


def test_topics_are_created_described_grown_and_deleted(
    java_tools: JavaTools, confluent: Confluent, unused_name: str
) -> None:
    topic = "--topic", unused_name
    java_tools.run(TOPICS, "--create", *topic, "--partitions", "2", "--config", "retention.ms=12345")
    assert "TopicExistsException" in java_tools.run(TOPICS, "--create", *topic, fails=True)
    java_tools.run(TOPICS, "--alter", *topic, "--partitions", "3")
    described = java_tools.run(TOPICS, "--describe", *topic)
    assert "PartitionCount: 3\tReplicationFactor: 1\tConfigs: retention.ms=12345" in described
    java_tools.run(TOPICS, "--delete", *topic)
    assert unused_name not in confluent.list_topics()


def test_configs_are_altered_and_described(java_tools: JavaTools, confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    entity = "--entity-type", "topics", "--entity-name", topic
    java_tools.run(CONFIGS, "--alter", *entity, "--add-config", "retention.ms=12345,cleanup.policy=[delete,compact]")
    described = java_tools.run(CONFIGS, "--describe", *entity)
    assert "cleanup.policy=delete,compact sensitive=false" in described
    assert "retention.ms=12345 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=12345" in described
    java_tools.run(CONFIGS, "--alter", *entity, "--delete-config", "cleanup.policy,retention.ms")
    found = confluent.topic_config(topic)
    assert (found["cleanup.policy"], found["retention.ms"]) == ("delete", "604800000")


def test_group_configs_are_altered_and_described(java_tools: JavaTools) -> None:
    entity = "--entity-type", "groups", "--entity-name", "java-timed"
    java_tools.run(CONFIGS, "--alter", *entity, "--add-config", "consumer.session.timeout.ms=50000")
    described, listed = java_tools.run_all((CONFIGS, "--describe", *entity), (CONFIGS, "--describe", *entity[:2]))
    assert "consumer.session.timeout.ms=50000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:" in described
    assert "java-timed" in listed
    java_tools.run(CONFIGS, "--alter", *entity, "--delete-config", "consumer.session.timeout.ms")
    refused = java_tools.run(CONFIGS, "--alter", *entity, "--add-config", "consumer.session.timeout.ms=1", fails=True)
    assert "InvalidConfigurationException" in refused


def test_broker_configs_are_described(java_tools: JavaTools, confluent: Confluent) -> None:
    broker = "--entity-type", "brokers", "--entity-name", str(confluent.controller())
    assert "log.retention.hours=168" in java_tools.run(CONFIGS, "--describe", *broker, "--all")


def test_offsets_of_every_kind_are_told(java_tools: JavaTools, confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"x", timestamp_ms=_T0_MS + n * 1000) for n in (0, 9, 3, 4)])
    confluent.delete_records(topic, 0, 1)
    kinds = ("latest", "max-timestamp", "earliest-local", str(_T0_MS + 2000))
    found = java_tools.run_all(*((OFFSETS, "--topic", topic, "--time", kind) for kind in kinds))
    assert found == [f"{topic}:0:{offset}\n" for offset in (4, 1, 1, 1)]


def test_records_are_deleted(java_tools: JavaTools, confluent: Confluent, new_topic: NewTopic, tmp_path: Path) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"x")] * 5)
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 3}], "version": 1}))
    assert "low_watermark: 3" in java_tools.run(DELETE_RECORDS, "--offset-json-file", str(plan))
    assert confluent.watermarks(topic, 0) == (3, 5)


def test_log_dirs_cluster_and_versions_are_described(
    java_tools: JavaTools, confluent: Confluent, new_topic: NewTopic, ottla_broker: BrokerProcess
) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"x" * 1000)])
    log_dirs, cluster, versions = java_tools.run_all(
        (LOG_DIRS, "--describe", "--topic-list", topic), (CLUSTER_ID,), (API_VERSIONS,)
    )
    (directory,) = json.loads(log_dirs.splitlines()[-1])["brokers"][0]["logDirs"]
    assert directory["logDir"] == ottla_broker.data
    assert [(p["partition"], p["size"] > 1000) for p in directory["partitions"]] == [(f"{topic}-0", True)]
    assert cluster.startswith("Cluster ID: ")
    assert "Produce(0): 0 to 13 [usable: 13]" in versions
    assert "Fetch(1): 4 to 18 [usable: 18]" in versions


def test_producer_performance_is_measured(java_tools: JavaTools, confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    options = "--topic", topic, "--record-size", "200", "--throughput", "-1"
    said = java_tools.run(PERFORMANCE, *options, "--num-records", "5000", "--command-property", "compression.type=lz4")
    assert said.startswith("5000 records sent")
    assert sum(confluent.watermarks(topic, number)[1] for number in range(3)) == 5000


def test_verifiable_producer_is_answered_for_every_record(java_tools: JavaTools, new_topic: NewTopic) -> None:
    said = java_tools.run(VERIFIABLE_PRODUCER, "--topic", new_topic(), "--max-messages", "50", "--acks", "-1")
    summary = json.loads(said.splitlines()[-1])
    assert (summary["sent"], summary["acked"]) == (50, 50)


def test_console_consumer_starts_where_it_is_told(
    java_tools: JavaTools, confluent: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"%d" % n) for n in range(5)], codec="snappy")
    place = "--topic", topic, "--partition", "0", "--max-messages"
    found = java_tools.run_all(
        (CONSUMER, *place, "5", "--offset", "earliest"),
        (CONSUMER, *place, "2", "--offset", "3", "--isolation-level", "read_committed"),
    )
    assert [said.split() for said in found] == [list("01234"), ["3", "4"]]


def test_features_are_those_of_kafka_4_3(java_tools: JavaTools) -> None:
    described = [line.split() for line in java_tools.run(FEATURES, "describe").splitlines()]
    assert [(words[1], words[3], words[5], words[7]) for words in described] == [
        ("group.version", "0", "1", "1"),
        ("metadata.version", "3.3-IV3", "4.3-IV0", "4.3-IV0"),
        ("transaction.version", "0", "2", "2"),
    ]
