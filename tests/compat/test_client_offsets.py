"""Where a partition starts and ends, and where a moment lies in it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import OffsetSpec
from drivers import Record
from drivers.confluent import Confluent
from drivers.confluent import poll as confluent_poll
from drivers.kafka_python import KafkaPython
from drivers.parameters import NewTopic, every_python_client
from kafka import TopicPartition

pytestmark = pytest.mark.client

_T0_MS = 1_700_000_000_000


def _at(*seconds: int) -> list[Record]:
    return [Record(value=b"%d" % second, timestamp_ms=_T0_MS + second * 1000) for second in seconds]


@every_python_client
def test_watermarks_of_an_empty_partition_are_zero(client: Any, new_topic: NewTopic) -> None:
    assert client.watermarks(new_topic(), 0) == (0, 0)


@every_python_client
def test_watermarks_move_with_records_and_deletions(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, _at(*range(10)))
    assert client.delete_records(topic, 0, 4) == 4
    assert client.watermarks(topic, 0) == (4, 10)


@every_python_client
def test_offset_of_a_moment_is_the_first_record_not_older(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, _at(0, 10, 20), codec="gzip")
    client.produce(topic, _at(30, 40, 50))
    found = [client.offset_at(topic, 0, _T0_MS + ms) for ms in (-1, 0, 1, 10_000, 20_001, 30_000, 50_000, 50_001)]
    assert found == [0, 0, 1, 1, 3, 3, 5, None]


@every_python_client
def test_offset_of_a_moment_is_right_when_timestamps_go_back(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, _at(100, 50, 200, 60))
    assert [client.offset_at(topic, 0, _T0_MS + s * 1000) for s in (55, 101, 201)] == [0, 2, None]


@every_python_client
def test_offset_of_a_moment_is_found_across_segments(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"segment.bytes": "1048576"})
    filler = b"x" * 300_000
    client.produce(topic, [Record(value=filler, timestamp_ms=_T0_MS + second * 1000) for second in range(12)])
    assert [client.offset_at(topic, 0, _T0_MS + second * 1000 - 500) for second in (2, 5, 11)] == [2, 5, 11]


def test_admin_lists_first_last_timed_and_newest_offset(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    confluent.produce(topic, _at(1, 7, 3), codec="zstd")
    specs = [OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp(), OffsetSpec.for_timestamp(_T0_MS)]
    found = [confluent.list_offset(topic, 0, spec) for spec in specs]
    assert found == [(0, -1), (3, -1), (1, _T0_MS + 7000), (0, _T0_MS + 1000)]


def test_newest_offset_of_an_empty_partition_is_none(confluent: Confluent, new_topic: NewTopic) -> None:
    assert confluent.list_offset(new_topic(), 0, OffsetSpec.max_timestamp()) == (-1, -1)


def test_first_of_several_records_with_the_newest_timestamp_is_named(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    for records in (_at(1, 9), _at(9, 2), _at(9)):
        confluent.produce(topic, records)
    assert confluent.list_offset(topic, 0, OffsetSpec.max_timestamp()) == (1, _T0_MS + 9000)


def test_special_offsets_of_newer_versions_are_answered(kafka_python: KafkaPython, new_topic: NewTopic) -> None:
    topic = new_topic()
    kafka_python.produce(topic, _at(5, 8))
    place = TopicPartition(topic, 0)
    with kafka_python.admin() as admin:
        found = [admin.list_partition_offsets({place: spec})[place].offset for spec in (-2, -1, -3, -4, -5)]
    assert found == [0, 2, 1, 0, -1]


def test_seek_goes_back_and_forth(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    confluent.produce(topic, _at(*range(20)))
    values = []
    with confluent.consumer(fetch_wait_max_ms=10) as consumer:
        consumer.assign([Place(topic, 0, 0)])
        confluent_poll(consumer, 1)
        for offset in (15, 3, 19, 0):
            consumer.seek(Place(topic, 0, offset))
            values.append(int(confluent_poll(consumer, 1)[0].value()))
    assert values == [15, 3, 19, 0]


def test_seek_goes_back_and_forth_with_a_fetch_session(kafka_python: KafkaPython, new_topic: NewTopic) -> None:
    topic = new_topic()
    kafka_python.produce(topic, _at(*range(20)))
    values = []
    place = TopicPartition(topic, 0)
    with kafka_python.consumer(max_poll_records=1) as consumer:
        consumer.assign([place])
        for offset in (15, 3, 19, 0):
            consumer.seek(place, offset)
            values.append(int(next(consumer).value))
    assert values == [15, 3, 19, 0]
