"""Clients that live through a broker's stop, crash and start: nothing lost, nothing twice, nothing to do for them."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition as Place
from drivers import DEADLINE_S, Record
from drivers.aio import Aiokafka
from drivers.aio import poll as aio_poll
from drivers.confluent import Confluent
from drivers.confluent import poll as confluent_poll
from drivers.kafka_python import KafkaPython
from drivers.kafka_python import poll as kafka_python_poll
from kafka import TopicPartition

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.client


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start() as broker:
        yield broker


@pytest.fixture
def topic(broker: BrokerProcess, unused_name: str) -> str:
    Confluent(broker.bootstrap).create_topic(unused_name)
    return unused_name


@pytest.fixture(params=["stop", "kill"])
def come_back(broker: BrokerProcess, request: pytest.FixtureRequest) -> Any:
    """Ends the broker, cleanly or not, and starts it again."""

    def end_and_start() -> None:
        getattr(broker, request.param)()
        broker.launch()

    return end_and_start


def test_idempotent_producer_goes_on_after_a_restart(broker: BrokerProcess, topic: str, come_back: Any) -> None:
    confluent = Confluent(broker.bootstrap)
    failures: list[Any] = []
    producer = confluent.producer({"enable.idempotence": True, "linger.ms": 1})
    for number in range(3000):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
        producer.poll(0)
        if number in (1000, 2000):
            # Some of what was sent is on its way, some is waiting in the client.
            come_back()
    assert not producer.flush(DEADLINE_S)
    assert not failures
    assert [int(each.record.value or b"") for each in confluent.consume(topic, 3000)] == list(range(3000))
    assert confluent.watermarks(topic, 0) == (0, 3000)


def test_confluent_consumer_goes_on_after_a_restart(broker: BrokerProcess, topic: str, come_back: Any) -> None:
    confluent = Confluent(broker.bootstrap)
    confluent.produce(topic, [Record(value=b"before")])
    with confluent.consumer() as consumer:
        consumer.assign([Place(topic, 0, 0)])
        assert confluent_poll(consumer, 1)[0].value() == b"before"
        come_back()
        confluent.produce(topic, [Record(value=b"after")])
        (message,) = confluent_poll(consumer, 1)
    assert (message.offset(), message.value()) == (1, b"after")


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_kafka_python_consumer_goes_on_after_a_restart(broker: BrokerProcess, topic: str, come_back: Any) -> None:
    confluent, kafka_python = Confluent(broker.bootstrap), KafkaPython(broker.bootstrap)
    confluent.produce(topic, [Record(value=b"before")])
    with kafka_python.consumer() as consumer:
        place = TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek(place, 0)
        assert kafka_python_poll(consumer, 1)[0].value == b"before"
        come_back()
        confluent.produce(topic, [Record(value=b"after")])
        (message,) = kafka_python_poll(consumer, 1)
    assert (message.offset, message.value) == (1, b"after")
    # It forgets the socket of a connection that was refused: found here, not in the midst of another test.
    del consumer
    gc.collect()


def test_aiokafka_consumer_goes_on_after_a_restart(broker: BrokerProcess, topic: str, come_back: Any) -> None:
    confluent, aiokafka = Confluent(broker.bootstrap), Aiokafka(broker.bootstrap)
    confluent.produce(topic, [Record(value=b"before")])

    async def receive() -> tuple[int, bytes]:
        async with aiokafka.consumer() as consumer:
            place = TopicPartition(topic, 0)
            consumer.assign([place])
            consumer.seek(place, 0)
            assert (await aio_poll(consumer, 1))[0].value == b"before"
            # Here and not in a thread of its own: the broker would end with the thread that started it.
            come_back()
            confluent.produce(topic, [Record(value=b"after")])
            (message,) = await aio_poll(consumer, 1)
            return message.offset, message.value

    assert asyncio.run(receive()) == (1, b"after")


def test_topic_its_settings_and_its_start_survive(broker: BrokerProcess, topic: str, come_back: Any) -> None:
    confluent = Confluent(broker.bootstrap)
    confluent.produce(topic, [Record(value=b"%d" % number) for number in range(10)])
    confluent.set_topic_config(topic, "retention.ms", "123456789")
    confluent.delete_records(topic, 0, 4)
    confluent.create_partitions(topic, 3)
    come_back()
    later = Confluent(broker.bootstrap)
    assert later.watermarks(topic, 0) == (4, 10)
    assert later.topic_config(topic)["retention.ms"] == "123456789"
    assert set(later.partition_leaders(topic)) == {0, 1, 2}
