"""What clients saw of the broker, and what it proves.

A history has the sends of every producer, in the order in which each made them, with what became of them; and every
record that any reader was given, in the order in which it came. Values are unique, so a record tells who sent it.

    ACKNOWLEDGED   the broker said: it is there, at this offset; -1 if the client does not know the offset
    REFUSED        the broker said: it is not there and will not be (the first and only attempt was answered so)
    UNKNOWN        anything else, such as a time-out: it may be there or not, both are right

``check`` names what may never be seen:

    inconsistent-offsets   one offset held two values, in the eyes of a reader or of an acknowledgement
    duplicate              one value stands at two offsets
    lost-write             acknowledged or read by anybody, but missing from the final read, with later records there
    unseen                 the same, and nothing behind it was read either: the end of the log is gone
    refused-read           a value that was refused is there
    phantom                a value that nobody sent
    nonmonotonic-send      a producer's later record stands before an earlier one
    poll-skip              a reader was led past an offset, or its first record is not the one it asked for
    nonmonotonic-poll      a reader went back
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


def check(history: History) -> Anomalies:
    """Every anomaly by name, each with a line for a person; empty when the broker kept its word."""
    found: Anomalies = defaultdict(list)
    assert history.final is not None, "nothing is proven before everything was read"
    readers = [*history.tails, history.final]
    senders = {(send.place, send.value): send for send in history.sends}
    _check_offsets(history, readers, found)
    _check_values(senders, readers, found)
    _check_presence(history, readers, history.final, found)
    _check_send_order(history, history.final, found)
    for reader in readers:
        _check_read_order(reader, found)
    return dict(found)


def _check_offsets(history: History, readers: list[Reader], found: Anomalies) -> None:
    values: dict[tuple[Place, int], str] = {}
    offsets: dict[tuple[Place, str], int] = {}

    def note(place: Place, offset: int, value: str, witness: str) -> None:
        other = values.setdefault((place, offset), value)
        if other != value:
            found["inconsistent-offsets"].append(f"{place} offset {offset}: {other} and {value} ({witness})")
        elsewhere = offsets.setdefault((place, value), offset)
        if elsewhere != offset:
            found["duplicate"].append(f"{place} {value}: offsets {elsewhere} and {offset} ({witness})")

    for reader in readers:
        for place, records in reader.records.items():
            for offset, value in records:
                note(place, offset, value, reader.name)
    for send in history.sends:
        if send.outcome is Outcome.ACKNOWLEDGED and send.offset >= 0:
            note(send.place, send.offset, send.value, f"acknowledged to {send.producer}")


def _check_values(senders: dict[tuple[Place, str], Send], readers: list[Reader], found: Anomalies) -> None:
    for reader in readers:
        for place, records in reader.records.items():
            for offset, value in records:
                send = senders.get((place, value))
                if send is None:
                    found["phantom"].append(f"{place} offset {offset}: {value} ({reader.name})")
                elif send.outcome is Outcome.REFUSED:
                    found["refused-read"].append(f"{place} offset {offset}: {value} ({reader.name})")


def _check_presence(history: History, readers: list[Reader], final: Reader, found: Anomalies) -> None:
    present = {place: {value for _, value in records} for place, records in final.records.items()}
    end = {place: max(offset for offset, _ in records) for place, records in final.records.items() if records}
    proven = {
        (send.place, send.value, send.offset) for send in history.sends if send.outcome is Outcome.ACKNOWLEDGED
    } | {(place, value, at) for r in readers for place, records in r.records.items() for at, value in records}
    for place, value, offset in sorted(proven):
        if value not in present.get(place, ()):
            name = "lost-write" if offset <= end.get(place, -1) else "unseen"
            found[name].append(f"{place} {value}: was at offset {offset}")


def _check_send_order(history: History, final: Reader, found: Anomalies) -> None:
    where = {(place, value): offset for place, records in final.records.items() for offset, value in records}
    last: dict[tuple[str, Place], Send] = {}
    for send in history.sends:
        if (send.place, send.value) not in where:
            continue
        before = last.get((send.producer, send.place))
        if before is not None and where[send.place, send.value] < where[before.place, before.value]:
            found["nonmonotonic-send"].append(f"{send.place} {send.value} stands before {before.value}")
        last[send.producer, send.place] = send


def _check_read_order(reader: Reader, found: Anomalies) -> None:
    for place, records in reader.records.items():
        expected = reader.start_offsets[place]
        for offset, _ in records:
            if offset > expected:
                found["poll-skip"].append(f"{reader.name} {place}: offset {offset} where {expected} was due")
            elif offset < expected:
                found["nonmonotonic-poll"].append(f"{reader.name} {place}: offset {offset} after {expected - 1}")
            expected = offset + 1
