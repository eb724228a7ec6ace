"""What clients saw of a broker; `checker.py` tells what it proves. `ottla.testing.history` is for transactions.

A history has the sends of every producer, in the order in which each made them, with what became of them; and every
record that any reader was given, in the order in which it came. Values are unique, so a record tells who sent it.

    ACKNOWLEDGED   the broker said: it is there, at this offset; -1 if the client does not know the offset
    REFUSED        the broker said: it is not there and will not be (the first and only attempt was answered so)
    UNKNOWN        anything else, such as a time-out: it may be there or not, both are right
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

Anomalies = dict[str, list[str]]


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Outcome(Enum):
    UNKNOWN = 0
    ACKNOWLEDGED = 1
    REFUSED = 2


@dataclass(slots=True)
class Send:
    """One record on its way; the outcome is filled in when the client hears of it."""

    producer: str
    place: Place
    value: str
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1

    def acknowledged(self, offset: int) -> None:
        self.outcome, self.offset = Outcome.ACKNOWLEDGED, offset

    def refused(self) -> None:
        self.outcome = Outcome.REFUSED


@dataclass(slots=True)
class Reader:
    """What one consumer was given after it was put at the start offset of each partition."""

    name: str
    start_offsets: dict[Place, int]
    records: dict[Place, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))

    def read(self, place: Place, offset: int, value: str) -> None:
        self.records[place].append((offset, value))


@dataclass(slots=True)
class History:
    """Sends and reads; threads may add to it at the same time."""

    sends: list[Send] = field(default_factory=list)
    #: read while it was written
    tails: list[Reader] = field(default_factory=list)
    #: read everything after the last send was settled
    final: Reader | None = None

    def send(self, producer: str, place: Place, value: str) -> Send:
        send = Send(producer, place, value)
        self.sends.append(send)
        return send

    def count(self, outcome: Outcome) -> int:
        return sum(send.outcome is outcome for send in self.sends)
