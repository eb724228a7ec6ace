"""Producing and consuming as each client does it: acknowledgements, sizes, timestamps, many partitions, long polls."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError
from confluent_kafka import TopicPartition as Place
from drivers import CODECS, DEADLINE_S, Record, Refused
from drivers.aio import Aiokafka
from drivers.aio import poll as aio_poll
from drivers.confluent import Confluent
from drivers.confluent import poll as confluent_poll
from drivers.kafka_python import KafkaPython
from drivers.kafka_python import poll as kafka_python_poll
from drivers.parameters import NewTopic, every_client, every_python_client
from kafka import TopicPartition

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.client

MEGABYTE = 1 << 20
_MESSAGE_TOO_LARGE = 10
_ATTRIBUTES_AT = 21
_CODEC_MASK = 7
#: how long a fetch may wait; clients want it below 30 s. A consumer that is woken has its record earlier
_LONG_POLL_S = 25


@every_client
@pytest.mark.parametrize("acks", [0, 1, -1])
def test_records_arrive_with_every_kind_of_acknowledgement(client: Any, new_topic: NewTopic, acks: int) -> None:
    topic = new_topic()
    records = [Record(value=f"{acks} {n}".encode()) for n in range(10)]
    client.produce(topic, records, acks=acks)
    assert [each.record.value for each in client.consume(topic, 10)] == [record.value for record in records]


@every_client
def test_idempotent_producer_writes_every_record_once(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    records = [Record(value=b"%d" % n) for n in range(500)]
    client.produce(topic, records, idempotent=True)
    received = client.consume(topic, 500)
    assert [each.record.value for each in received] == [record.value for record in records]
    assert [each.offset for each in received] == list(range(500))


@every_client
@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_stored_as_the_client_compressed_them(
    client: Any, new_topic: NewTopic, ottla_broker: BrokerProcess, codec: str
) -> None:
    if codec not in client.codecs:
        pytest.skip(f"{client.name} needs a package of its own for {codec}")
    topic = new_topic()
    client.produce(topic, [Record(value=b"compressible " * 1000)], codec=codec)
    stored = (Path(ottla_broker.data) / f"{topic}-0" / f"{0:020d}.log").read_bytes()
    assert CODECS[stored[_ATTRIBUTES_AT + 1] & _CODEC_MASK] == codec


@every_client
def test_message_of_a_megabyte_comes_back_whole(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": str(2 * MEGABYTE)})
    value = b"0123456789abcdef" * (MEGABYTE // 16)
    client.produce(topic, [Record(value=value), Record(value=b"after")])
    assert [each.record.value for each in client.consume(topic, 2)] == [value, b"after"]


@every_python_client
def test_message_over_the_limit_is_refused(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"max.message.bytes": "100000"})
    with pytest.raises(Refused) as refused:
        client.produce(topic, [Record(value=b"x" * 100_001)])
    assert refused.value.code == _MESSAGE_TOO_LARGE


@every_client
def test_log_append_time_topic_stamps_records_with_the_brokers_clock(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    before_ms = time.time_ns() // 1_000_000
    client.produce(topic, [client.expresses(Record(value=b"%d" % n, timestamp_ms=1000 + n)) for n in range(3)])
    after_ms = time.time_ns() // 1_000_000
    for each in client.consume(topic, 3):
        assert each.append_time
        assert each.record.timestamp_ms is not None
        assert before_ms <= each.record.timestamp_ms <= after_ms


@every_client
def test_consumer_starts_in_the_middle_of_a_batch(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, [Record(value=b"%d" % n) for n in range(100)], codec="gzip")
    received = client.consume(topic, 3, offset=57)
    assert [(each.offset, each.record.value) for each in received] == [(57, b"57"), (58, b"58"), (59, b"59")]


@every_client
def test_megabytes_come_back_in_order_across_segments(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic(config={"segment.bytes": str(MEGABYTE)})
    source = random.Random(7)
    values = [source.randbytes(5000).hex().encode() for _ in range(800)]
    client.produce(topic, [Record(value=value) for value in values])
    assert [each.record.value for each in client.consume(topic, len(values))] == values


@pytest.mark.parametrize("limit", [1, 5000])
def test_batch_larger_than_the_clients_limit_is_delivered(
    confluent: Confluent, kafka_python: KafkaPython, new_topic: NewTopic, limit: int
) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        confluent.produce(topic, [Record(value=b"x" * 20_000)] * 3, partition=partition)
    with confluent.consumer(fetch_message_max_bytes=limit) as consumer:
        consumer.assign([Place(topic, 0, 0), Place(topic, 1, 0)])
        assert [len(message.value() or b"") for message in confluent_poll(consumer, 6)] == [20_000] * 6
    with kafka_python.consumer(max_partition_fetch_bytes=limit, fetch_max_bytes=limit) as reader:
        reader.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        reader.seek_to_beginning()
        assert [len(message.value) for message in kafka_python_poll(reader, 6)] == [20_000] * 6


# -- long polls: a consumer that waits is woken by what is written later ----------------------------------------------


@pytest.fixture
def write_later(confluent: Confluent) -> Iterator[Any]:
    """Writes a record from another thread, shortly."""
    timers: list[threading.Timer] = []

    def schedule(topic: str) -> None:
        timer = threading.Timer(0.3, confluent.produce, (topic, [Record(value=b"later")]))
        timers.append(timer)
        timer.start()

    yield schedule
    for timer in timers:
        timer.join()


def test_waiting_confluent_consumer_is_woken(confluent: Confluent, new_topic: NewTopic, write_later: Any) -> None:
    topic = new_topic()
    with confluent.consumer(fetch_wait_max_ms=_LONG_POLL_S * 1000) as consumer:
        consumer.assign([Place(topic, 0, 0)])
        assert not consumer.consume(1, 0.2)
        write_later(topic)
        started = time.monotonic()
        (message,) = confluent_poll(consumer, 1)
    assert message.value() == b"later"
    assert time.monotonic() - started < _LONG_POLL_S


def test_waiting_aiokafka_consumer_is_woken(aiokafka: Aiokafka, new_topic: NewTopic, write_later: Any) -> None:
    topic = new_topic()

    async def receive() -> float:
        async with aiokafka.consumer(fetch_max_wait_ms=_LONG_POLL_S * 1000) as consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            assert not await consumer.getmany(timeout_ms=200)
            write_later(topic)
            started = time.monotonic()
            (message,) = await aio_poll(consumer, 1)
            assert message.value == b"later"
            return time.monotonic() - started

    assert asyncio.run(receive()) < _LONG_POLL_S


def test_waiting_kafka_python_consumer_is_woken(
    kafka_python: KafkaPython, new_topic: NewTopic, write_later: Any
) -> None:
    topic = new_topic()
    with kafka_python.consumer(fetch_max_wait_ms=_LONG_POLL_S * 1000) as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        assert not consumer.poll(200)
        write_later(topic)
        started = time.monotonic()
        (message,) = kafka_python_poll(consumer, 1)
    assert message.value == b"later"
    assert time.monotonic() - started < _LONG_POLL_S


# -- many partitions ---------------------------------------------------------------------------------------------------

TOPICS, PARTITIONS = 20, 50


@pytest.fixture(scope="module")
def many_topics(confluent: Confluent, new_topic: NewTopic) -> list[str]:
    """Topics with many partitions, each with one record that names its place."""
    topics = [new_topic(partitions=PARTITIONS) for _ in range(TOPICS)]
    failures: list[KafkaError] = []
    producer = confluent.producer({"enable.idempotence": True})
    for topic in topics:
        for partition in range(PARTITIONS):
            producer.produce(
                topic, f"{topic} {partition}".encode(), partition=partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )  # fmt: skip
    assert not producer.flush(DEADLINE_S)
    assert not failures
    return topics


def _everything(topics: list[str]) -> Counter[str]:
    return Counter(f"{topic} {partition}" for topic in topics for partition in range(PARTITIONS))


def test_confluent_reads_a_thousand_partitions(confluent: Confluent, many_topics: list[str]) -> None:
    with confluent.consumer() as consumer:
        places = [Place(topic, number, OFFSET_BEGINNING) for topic in many_topics for number in range(PARTITIONS)]
        consumer.assign(places)
        messages = confluent_poll(consumer, TOPICS * PARTITIONS)
    assert Counter(message.value().decode() for message in messages) == _everything(many_topics)


def test_kafka_python_reads_a_thousand_partitions(kafka_python: KafkaPython, many_topics: list[str]) -> None:
    with kafka_python.consumer() as consumer:
        places = [TopicPartition(topic, number) for topic in many_topics for number in range(PARTITIONS)]
        consumer.assign(places)
        consumer.seek_to_beginning()
        messages = kafka_python_poll(consumer, TOPICS * PARTITIONS)
    assert Counter(message.value.decode() for message in messages) == _everything(many_topics)


def test_aiokafka_reads_a_thousand_partitions(aiokafka: Aiokafka, many_topics: list[str]) -> None:
    async def receive() -> Counter[str]:
        async with aiokafka.consumer() as consumer:
            places = [TopicPartition(topic, number) for topic in many_topics for number in range(PARTITIONS)]
            consumer.assign(places)
            await consumer.seek_to_beginning()
            return Counter(message.value.decode() for message in await aio_poll(consumer, len(places)))

    assert asyncio.run(receive()) == _everything(many_topics)


def test_fetch_session_reports_only_the_partition_that_has_news(
    confluent: Confluent, kafka_python: KafkaPython, many_topics: list[str]
) -> None:
    topic = many_topics[0]
    with kafka_python.consumer() as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
        consumer.seek_to_beginning()
        kafka_python_poll(consumer, PARTITIONS)
        for number in (7, 31):
            confluent.produce(topic, [Record(value=b"news")], partition=number)
        news = kafka_python_poll(consumer, 2)
    assert sorted(message.partition for message in news) == [7, 31]


# -- what a consumer is told when it asks for what is not there -------------------------------------------------------


@every_python_client
def test_offset_behind_the_end_is_refused(client: Any, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.produce(topic, [Record(value=b"only")])
    with pytest.raises((Refused, _out_of_range_of(client))):
        client.consume(topic, 1, offset=1000)


def _out_of_range_of(client: Any) -> type[Exception]:
    """The Python clients raise an error of their own when a position is lost and no reset is wanted."""
    if isinstance(client, Aiokafka):
        from aiokafka.errors import OffsetOutOfRangeError as AioError

        return AioError
    from kafka.errors import OffsetOutOfRangeError

    return OffsetOutOfRangeError


def test_consumer_resets_to_the_end_when_its_offset_is_gone(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"old")])
    with confluent.consumer(auto_offset_reset="latest", enable_partition_eof=True) as consumer:
        consumer.assign([Place(topic, 0, 1000)])
        deadline = time.monotonic() + DEADLINE_S
        while (found := consumer.poll(0.5)) is None:
            assert time.monotonic() < deadline
        assert found.error().code() == KafkaError._PARTITION_EOF
        assert found.offset() == 1


def test_end_position_skips_what_was_written_before(confluent: Confluent, new_topic: NewTopic) -> None:
    topic = new_topic()
    confluent.produce(topic, [Record(value=b"before")])
    with confluent.consumer(enable_partition_eof=True) as consumer:
        consumer.assign([Place(topic, 0, OFFSET_END)])
        deadline = time.monotonic() + DEADLINE_S
        while (found := consumer.poll(0.5)) is None:
            assert time.monotonic() < deadline
        assert found.error().code() == KafkaError._PARTITION_EOF
        confluent.produce(topic, [Record(value=b"after")])
        (message,) = confluent_poll(consumer, 1)
    assert message.value() == b"after"
