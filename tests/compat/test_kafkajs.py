"""kafkajs: its producer and its admin client; what it wrote is read back with another client. Groups: next door."""

from __future__ import annotations

from typing import Any

import pytest
from drivers import Record, Refused
from drivers.confluent import Confluent
from drivers.kafkajs import KafkaJs
from drivers.parameters import NewTopic

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

_T0_MS = 1_700_000_000_000
_TOPIC = 2


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_records_arrive_with_every_kind_of_acknowledgement(
    kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic, acks: int
) -> None:
    topic = new_topic()
    kafkajs.produce(topic, [Record(value=b"%d" % n) for n in range(10)], acks=acks)
    assert [each.record.value for each in confluent.consume(topic, 10)] == [b"%d" % n for n in range(10)]


def test_idempotent_producer_writes_every_record_once(
    kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic
) -> None:
    topic = new_topic()
    kafkajs.produce(topic, [Record(value=b"%d" % n) for n in range(100)], idempotent=True, codec="gzip")
    assert [each.record.value for each in confluent.consume(topic, 100)] == [b"%d" % n for n in range(100)]
    assert confluent.watermarks(topic, 0) == (0, 100)


def test_message_over_the_limit_is_refused(kafkajs: KafkaJs, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "10000"})
    with pytest.raises(Refused) as refused:
        kafkajs.produce(topic, [Record(value=b"x" * 10_001)])
    assert refused.value.code == 10


def test_topic_lives_from_creation_to_deletion(kafkajs: KafkaJs, unused_name: str) -> None:
    wanted = {"topics": [{"topic": unused_name, "numPartitions": 2, "replicationFactor": 1}], "waitForLeaders": True}
    found = kafkajs.administer(
        ("createTopics", wanted),
        ("createTopics", wanted),
        ("listTopics",),
        ("createPartitions", {"topicPartitions": [{"topic": unused_name, "count": 5}]}),
        ("fetchTopicMetadata", {"topics": [unused_name]}),
        ("deleteTopics", {"topics": [unused_name]}),
        ("listTopics",),
    )
    created, again, listed, grown, described, deleted, listed_later = _without_errors(found)
    # kafkajs turns "exists already" into false by itself.
    assert (created, again) == (True, False)
    assert unused_name in listed
    assert not grown
    assert len(described["topics"][0]["partitions"]) == 5
    assert not deleted
    assert unused_name not in listed_later


def test_settings_are_described_and_changed(kafkajs: KafkaJs, new_topic: NewTopic) -> None:
    topic = new_topic(config={"retention.ms": "1000000"})
    resource = {"type": _TOPIC, "name": topic}
    names = ["retention.ms", "max.message.bytes"]
    change = {**resource, "configEntries": [{"name": "max.message.bytes", "value": "54321"}]}
    question = {"includeSynonyms": False, "resources": [{**resource, "configNames": names}]}
    before, _, after = _without_errors(
        kafkajs.administer(
            ("describeConfigs", question),
            ("alterConfigs", {"validateOnly": False, "resources": [change]}),
            ("describeConfigs", question),
        )
    )
    # Its change is not incremental: what is not named again falls back to its default.
    assert _values(before) == {"retention.ms": "1000000", "max.message.bytes": "1048588"}
    assert _values(after) == {"retention.ms": "604800000", "max.message.bytes": "54321"}


def test_offsets_and_deleted_records_are_told(kafkajs: KafkaJs, new_topic: NewTopic) -> None:
    topic = new_topic()
    kafkajs.produce(topic, [Record(value=b"x", timestamp_ms=_T0_MS + n * 1000) for n in range(5)])
    timed, _, offsets = _without_errors(
        kafkajs.administer(
            ("fetchTopicOffsetsByTimestamp", topic, _T0_MS + 1500),
            ("deleteTopicRecords", {"topic": topic, "partitions": [{"partition": 0, "offset": "3"}]}),
            ("fetchTopicOffsets", topic),
        )
    )
    assert timed == [{"partition": 0, "offset": "2"}]
    assert [(each["low"], each["high"]) for each in offsets] == [("3", "5")]


def test_cluster_is_described(kafkajs: KafkaJs, ottla_broker: BrokerProcess) -> None:
    (found,) = _without_errors(kafkajs.administer(("describeCluster",)))
    assert [(broker["host"], broker["port"]) for broker in found["brokers"]] == [("127.0.0.1", ottla_broker.port)]
    assert found["controller"] == found["brokers"][0]["nodeId"]


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (("createTopics", {"topics": [{"topic": "kafkajs-none", "numPartitions": 0}]}), 37),
        (("createTopics", {"topics": [{"topic": "kafkajs-many", "replicationFactor": 3}]}), 38),
        (("createTopics", {"topics": [{"topic": "not a name"}]}), 17),
        (("deleteTopics", {"topics": ["kafkajs-nowhere"]}), 3),
        (("createPartitions", {"topicPartitions": [{"topic": "kafkajs-nowhere", "count": 2}]}), 3),
    ],
)
def test_errors_reach_the_application(kafkajs: KafkaJs, call: tuple[Any, ...], code: int) -> None:
    (found,) = kafkajs.administer(call)
    assert isinstance(found, Refused)
    assert found.code == code


def _without_errors(found: list[Any]) -> list[Any]:
    for each in found:
        if isinstance(each, Refused):
            raise each
    return found


def _values(described: dict[str, Any]) -> dict[str, str]:
    return {entry["configName"]: entry["configValue"] for entry in described["resources"][0]["configEntries"]}
