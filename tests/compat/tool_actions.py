"""What scenarios of Kafka's commands need besides commands: records, members of groups."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition
from tool_scenarios import Do, Place

_T0_MS = 1_700_000_000_000
_WAIT_S = 60.0


def records(topic: str, count: int, *, partition: int = 0, prefix: str = "v") -> Do:
    """Return a step that appends records with the keys k0, k1, ... and one millisecond between their timestamps."""

    def produce(place: Place) -> None:
        producer = Producer({"bootstrap.servers": place.server, "linger.ms": 0})
        for number in range(count):
            producer.produce(
                topic, f"{prefix}{number}", f"k{number}", partition=partition, timestamp=_T0_MS + number,
                headers=[("h", b"1")] if number % 2 else None,
            )  # fmt: skip
        assert producer.flush(_WAIT_S) == 0

    return Do(produce)


def committed(group: str, topic: str, offsets: dict[int, int]) -> Do:
    """Return a step that commits offsets of a group without members."""

    def commit(place: Place) -> None:
        consumer = Consumer({"bootstrap.servers": place.server, "group.id": group})
        consumer.commit(offsets=[TopicPartition(topic, *each) for each in offsets.items()], asynchronous=False)
        consumer.close()

    return Do(commit)


def member(group: str, topic: str, *, protocol: str = "classic", client_id: str = "me") -> Do:
    """Return a step that joins a group until the scenario ends, and commits what it has read."""

    def join(place: Place) -> None:
        settings = {"session.timeout.ms": 45_000} if protocol == "classic" else {}
        consumer = Consumer({
            "bootstrap.servers": place.server, "group.id": group, "client.id": client_id, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False, **settings,
        })  # fmt: skip
        place.stack.callback(consumer.close)
        consumer.subscribe([topic])
        deadline = time.monotonic() + _WAIT_S
        while not consumer.assignment():
            consumer.poll(0.1)
            assert time.monotonic() < deadline, "the member got no partitions"

    return Do(join)
