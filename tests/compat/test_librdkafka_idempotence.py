"""An idempotent librdkafka producer whose answers get lost: every record is stored once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from drivers import DEADLINE_S
from drivers.confluent import Confluent

from ottla.testing.proxy import PRODUCE, Fault, FaultProxy, Faults
from ottla.testing.pytest_plugin import StartBroker

pytestmark = pytest.mark.client

RECORDS = 600
PARTITIONS = 3


def test_batches_larger_than_a_small_segment_are_stored_once(start_ottla_broker: StartBroker) -> None:
    """A refused batch would make librdkafka raise its epoch and send again what it has no answer to.

    With RECORD_LIST_TOO_LARGE for these batches, two runs of 3,000 records had 39 and 73 duplicates.
    """
    with FaultProxy(seed=1) as proxy:
        broker = start_ottla_broker(settings={"advertised.listeners": f"PLAINTEXT://{proxy.address}"})
        proxy.target = broker.bootstrap
        confluent = Confluent(proxy.address)
        confluent.create_topic("small-segments", partitions=PARTITIONS, config={"segment.bytes": "16384"})
        proxy.faults = Faults(apis={PRODUCE}, rate=0.2, kinds=(Fault.LOSE_ANSWER,))
        _produce(confluent)
        assert any(happened.fault is Fault.LOSE_ANSWER for happened in proxy.happened)
        proxy.faults = None
        assert _stored(confluent) == Counter(range(RECORDS))


def _produce(confluent: Confluent) -> None:
    """Produce RECORDS records, with several batches in flight and batches on both sides of segment.bytes."""
    failures: list[Any] = []
    producer = confluent.producer(
        {
            "enable.idempotence": True, "linger.ms": 5, "log_level": 0, "retry.backoff.ms": 20,
            "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 20,
        }
    )  # fmt: skip
    for number in range(RECORDS):
        producer.produce(
            "small-segments", b"%d " % number + bytes(number % 4 * 700), partition=number % PARTITIONS,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0.01 if number % 10 == 0 else 0)
    assert not producer.flush(DEADLINE_S)
    assert not failures


def _stored(confluent: Confluent) -> Counter[int]:
    """Return how often each record is stored."""
    found: Counter[int] = Counter()
    for number in range(PARTITIONS):
        _, end = confluent.watermarks("small-segments", number)
        for received in confluent.consume("small-segments", end, partition=number):
            found[int((received.record.value or b"").split()[0])] += 1
    return found
