"""KIP-467: librdkafka reports INVALID_RECORD for the invalid records of a batch, and another error for the others."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import KafkaError, Producer

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient

pytestmark = pytest.mark.broker


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("count", [10, 5000], ids=["decoded on the loop", "decoded by the opener"])
def test_delivery_reports_name_the_records_without_a_key(
    ottla_broker: BrokerProcess, count: int, idempotent: bool
) -> None:
    topic = f"record-errors-{count}-{idempotent}"
    with RawClient(ottla_broker.bootstrap) as client:
        client.create_topic(topic, config={"cleanup.policy": "compact"})
    producer = Producer(
        {
            "bootstrap.servers": ottla_broker.bootstrap,
            "linger.ms": 60_000,
            "batch.num.messages": count,
            "enable.idempotence": idempotent,
        }
    )
    reports: dict[int, KafkaError | None] = {}

    def note(number: int, error: KafkaError | None) -> None:
        reports[number] = error

    invalid = {number for number in range(count) if number % 5 in (0, 1, 3)}
    for number in range(count):
        key = None if number in invalid else b"key"
        producer.produce(topic, b"value", key, 0, lambda error, _, n=number: note(n, error))
    # Without flush(), which would send what is in the queue so far: a batch of its own is valid if its records are, and
    # librdkafka reports all records of a batch as invalid if one is.
    deadline = time.monotonic() + 120
    while len(reports) < count and time.monotonic() < deadline:
        producer.poll(1)
    codes = {number: error.code() if error else 0 for number, error in reports.items()}
    assert {number for number, code in codes.items() if code == KafkaError.INVALID_RECORD} == invalid
    others = {code for number, code in codes.items() if number not in invalid}
    assert others == {KafkaError._INVALID_DIFFERENT_RECORD}
