"""A consumer of assigned partitions whose coordinator moves while librdkafka asks for committed offsets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.edge.rest import group_consumer
from ottla.edge.rest.errors import KafkaRefusal
from ottla.edge.rest.group_consumer import GroupConsumer
from ottla.edge.rest.kafka import kafka_partition
from ottla.model.types import TopicPartition

NOT_COORDINATOR = 16
GROUP_AUTHORIZATION_FAILED = 30


class Failure:
    """An error of librdkafka, in the place of a message."""

    def __init__(self, code: int) -> None:
        self._code = code

    def error(self) -> Any:
        return self

    def code(self) -> int:
        return self._code

    def str(self) -> str:
        return "failed"


class Consumer:
    """What a GroupConsumer uses of confluent-kafka's consumer."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.assigned: list[list[tuple[str, int, int]]] = []

    def assign(self, partitions: list[Any]) -> None:
        self.assigned.append([(each.topic, each.partition, each.offset) for each in partitions])

    def assignment(self) -> list[Any]:
        return [kafka_partition(TopicPartition(topic, partition)) for topic, partition, _ in self.assigned[-1]]

    def position(self, partitions: list[Any]) -> list[Any]:
        """Partition 0 was read up to offset 7; partition 1 has no position."""
        offsets = {0: 7, 1: -1001}
        return [kafka_partition(TopicPartition(p.topic, p.partition), offsets[p.partition]) for p in partitions]

    def poll(self, timeout: float) -> Failure | None:
        return Failure(self.errors.pop(0)) if self.errors else None


async def consume(consumer: Consumer) -> GroupConsumer:
    made = GroupConsumer(consumer, asyncio.get_running_loop())  # type: ignore[arg-type]
    made.assign([TopicPartition("t", 0), TopicPartition("t", 1)])
    for _ in range(3):
        made.poll()
    return made


def test_partitions_are_assigned_again_when_the_coordinator_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_consumer, "_ASSIGN_AGAIN_S", 0.0)
    consumer = Consumer(NOT_COORDINATOR)
    made = asyncio.run(consume(consumer))
    first = [("t", 0, -1001), ("t", 1, -1001)]
    assert consumer.assigned == [first, [("t", 0, 7), ("t", 1, -1001)]]
    assert made.take(1, lambda message: message) == ([], 0)


def test_other_errors_are_reported() -> None:
    consumer = Consumer(GROUP_AUTHORIZATION_FAILED)
    made = asyncio.run(consume(consumer))
    assert len(consumer.assigned) == 1
    with pytest.raises(KafkaRefusal):
        made.take(1, lambda message: message)
