"""Records and topics that must be refused, and the code by which each client learns why."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic as ConfluentTopic
from drivers import DEADLINE_S, Record, Refused
from drivers.confluent import Confluent
from drivers.kafka_python import KafkaPython
from drivers.parameters import NewTopic, every_client, every_python_client

pytestmark = pytest.mark.client

_INVALID_TOPIC = 17
_INVALID_TIMESTAMP = 32
_INVALID_REPLICA_ASSIGNMENT = 39
_POLICY_VIOLATION = 44
_INVALID_RECORD = 87
_KEY_MISSING_CODES = (_INVALID_RECORD, -1)


@every_client
def test_record_without_key_is_refused_by_a_compacted_topic(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"cleanup.policy": "compact"})
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(value=b"no key")])
    # kcat has a text only.
    assert refused.value.code in _KEY_MISSING_CODES
    client.produce(topic, [Record(value=b"with key", key=b"k")])
    assert [each.record.value for each in client.consume(topic, 1)] == [b"with key"]


@every_python_client
def test_record_from_the_future_is_refused(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"message.timestamp.after.max.ms": "3600000"})
    tomorrow_ms = int(time.time() * 1000) + 86_400_000
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(value=b"tomorrow", timestamp_ms=tomorrow_ms)])
    assert refused.value.code == _INVALID_TIMESTAMP


@every_python_client
def test_record_from_the_past_is_refused_when_the_topic_says_so(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"message.timestamp.before.max.ms": "3600000"})
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(value=b"old", timestamp_ms=1_700_000_000_000)])
    assert refused.value.code == _INVALID_TIMESTAMP


def test_more_replicas_than_there_can_be_are_not_waited_for(confluent: Confluent, new_topic: NewTopic) -> None:
    """Kafka counts min.insync.replicas only up to the replication factor."""
    topic = new_topic(config={"min.insync.replicas": "2"})
    confluent.produce(topic, [Record(value=b"one is enough")], acks=-1)
    assert confluent.watermarks(topic, 0) == (0, 1)


def test_compression_of_the_topic_wins_over_the_clients(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic(config={"compression.type": "zstd"})
    records = [
        Record(value=b"%d " % n * 100, key=b"k", headers=(("h", None),), timestamp_ms=1000 + n) for n in range(50)
    ]
    confluent.produce(topic, records, codec="gzip")
    assert [each.record for each in confluent.consume(topic, 50)] == records


# -- topics ------------------------------------------------------------------------------------------------------------


def test_replicas_can_be_assigned_by_hand(confluent: Confluent, unused_name: str) -> None:
    broker = confluent.controller()
    _create(confluent, ConfluentTopic(unused_name, 2, replica_assignment=[[broker], [broker]]))
    assert confluent.partition_leaders(unused_name) == {0: broker, 1: broker}


def test_replicas_cannot_be_assigned_twice_or_to_nobody(confluent: Confluent, unused_name: str) -> None:
    broker = confluent.controller()
    for replicas in ([broker, broker], [broker + 1000]):
        with pytest.raises(KafkaException) as raised:
            _create(confluent, ConfluentTopic(unused_name, 1, replica_assignment=[replicas]))
        assert raised.value.args[0].code() == _INVALID_REPLICA_ASSIGNMENT


def test_names_that_differ_in_dots_and_underscores_collide(kafka_python: KafkaPython, unused_name: str) -> None:
    kafka_python.create_topic(f"{unused_name}.a_b")
    with pytest.raises(Refused) as refused:
        kafka_python.create_topic(f"{unused_name}_a.b")
    assert refused.value.code == _INVALID_TOPIC


def test_records_of_a_compacted_topic_cannot_be_deleted(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic(config={"cleanup.policy": "compact"})
    confluent.produce(topic, [Record(value=b"v", key=b"k")])
    with pytest.raises(Refused) as refused:
        confluent.delete_records(topic, 0, 1)
    assert refused.value.code == _POLICY_VIOLATION


def _create(confluent: Confluent, topic: ConfluentTopic) -> None:
    (future,) = confluent.admin.create_topics([topic]).values()
    future.result(DEADLINE_S)
