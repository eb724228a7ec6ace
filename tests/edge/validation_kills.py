"""Kill the broker, and stop the registry, while producers send valid and invalid records to a topic with dead letters.

    make campaign NAME=validation-kills KILLS=20 SEED=1

At the end every acknowledged valid record must be in the topic once, at its offset and in the order of its producer.
Every acknowledged invalid record must be in the dead-letter topic, where it may be twice, and never in the topic.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from registry_stand_in import RegistryStandIn, registry_stand_in

from campaign.processes import wait_until
from campaign.report import Report, shorten
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient

TOPIC, DEAD, PARTITIONS, PRODUCERS = "validated", "validated-dlq", 2, 2
VALID = b"\0\0\0\0\1"
_WAIT_S = 120.0


@dataclass
class Outcome:
    """What was acknowledged and found. `violations` is empty if all is well."""

    #: value -> partition and offset
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    dead_letters: int = 0
    repeated: int = 0
    violations: list[str] = field(default_factory=list)


class Sender(threading.Thread):
    """An idempotent producer that sends until it is stopped. Values are numbered, so that their order can be seen."""

    def __init__(self, number: int, broker: BrokerProcess, seed: int, outcome: Outcome) -> None:
        super().__init__(daemon=True)
        self.number, self.outcome = number, outcome
        self.random = Random(f"{seed}-{number}")
        self.stopped = threading.Event()
        self.producer = Producer({
            "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2, "log_level": 0,
            "batch.num.messages": 50, "compression.type": self.random.choice(("none", "lz4")),
        })  # fmt: skip

    def run(self) -> None:
        count = 0
        while not self.stopped.is_set():
            while len(self.producer) > 1000:
                self.producer.poll(0.01)
            prefix = VALID if self.random.random() < 0.7 else b"invalid"
            value = prefix + b"%d %09d" % (self.number, count)
            self.producer.produce(TOPIC, value, partition=count % PARTITIONS, on_delivery=self.note)
            self.producer.poll(0.0005)
            count += 1
        left = self.producer.flush(_WAIT_S)
        if left:
            self.outcome.violations.append(f"{left} records of producer {self.number} were not answered")

    def note(self, error: Any, message: Message) -> None:
        value, partition, offset = message.value(), message.partition(), message.offset()
        assert value is not None and partition is not None and offset is not None
        if error is not None:
            self.outcome.violations.append(f"{value!r} was refused: {error}")
        else:
            self.outcome.acknowledged[value] = partition, offset


def run(report: Report, *, kills: int, seed: int) -> None:
    outcome, random = Outcome(), Random(seed)
    with registry_stand_in() as (registry, url), BrokerProcess.start(settings={"schema.registry.url": url}) as broker:
        registry.add("any", '"string"')
        with RawClient(broker.bootstrap) as client:
            client.create_topic(TOPIC, PARTITIONS, {"schema.validation": "dlq"})
            client.create_topic(DEAD, PARTITIONS)
        senders = [Sender(number, broker, seed, outcome) for number in range(PRODUCERS)]
        for sender in senders:
            sender.start()
        try:
            for number in range(kills):
                _wait_for(outcome, len(outcome.acknowledged) + random.randint(100, 1000))
                registry.is_down = random.random() < 0.5
                broker.kill()
                broker.launch()
                if registry.is_down:
                    _wait_for_question(registry)
                    registry.is_down = False
                report.progress(number + 1, kills, f"kills, {len(outcome.acknowledged)} records acknowledged")
            _wait_for(outcome, len(outcome.acknowledged) + 100)
        finally:
            registry.is_down = False
            for sender in senders:
                sender.stopped.set()
            for sender in senders:
                sender.join(2 * _WAIT_S)
        _check(broker, outcome)
    report.problems_found(shorten(outcome.violations))
    report.figure(f"{kills} kills, {len(outcome.acknowledged)} records acknowledged")
    report.figure(f"{outcome.dead_letters} dead letters, of which {outcome.repeated} are there again")


def _wait_for(outcome: Outcome, count: int) -> None:
    wait_until(lambda: len(outcome.acknowledged) >= count, lambda: f"records; {outcome.violations[:3]}", _WAIT_S)


def _wait_for_question(registry: RegistryStandIn) -> None:
    """Wait until the registry has refused to answer."""
    asked = registry.requests
    wait_until(lambda: registry.requests > asked, "the broker asks the registry", _WAIT_S)


def _check(broker: BrokerProcess, outcome: Outcome) -> None:
    stored = _read(broker, TOPIC)
    dead = Counter(value for _, _, value in _read(broker, DEAD))
    outcome.dead_letters, outcome.repeated = len(dead), dead.total() - len(dead)
    places = {value: (partition, offset) for partition, offset, value in stored}
    for value, place in outcome.acknowledged.items():
        if value.startswith(VALID) and places.get(value) != place:
            outcome.violations.append(f"{value!r} was acknowledged at {place} and is at {places.get(value)}")
        if not value.startswith(VALID) and value not in dead:
            outcome.violations.append(f"{value!r} was acknowledged and is no dead letter")
    if len(places) != len(stored):
        outcome.violations.append(f"{len(stored) - len(places)} records are in the topic twice")
    wrong = [value for value in places if not value.startswith(VALID)] + [one for one in dead if one.startswith(VALID)]
    outcome.violations += [f"{value!r} is in the wrong topic" for value in wrong]
    for partition in range(PARTITIONS):
        for number in range(PRODUCERS):
            start = VALID + b"%d " % number
            own = [value for where, _, value in stored if where == partition and value.startswith(start)]
            if own != sorted(own):
                outcome.violations.append(f"records of producer {number} in partition {partition} changed their order")


def _read(broker: BrokerProcess, topic: str) -> list[tuple[int, int, bytes]]:
    """Return partition, offset and value of all records."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "check", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    found: list[Any] = []
    ends = 0
    while ends < PARTITIONS:
        message = consumer.poll(_WAIT_S)
        assert message is not None
        if message.error() is None:
            found.append((message.partition(), message.offset(), message.value()))
        else:
            ends += 1
    consumer.close()
    return found
