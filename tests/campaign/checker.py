"""What may never happen: anomalies of a history, committed offsets that go back, replicas with different bytes.

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
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from campaign.history import Anomalies, History, Outcome, Place, Reader, Send
from campaign.report import shorten

_HEADER = 12


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


# -- committed offsets ----------------------------------------------------------------------------------------------


class Commit(NamedTuple):
    """An offset that a group committed, and when the answer came; or that a request returned, and when it was sent."""

    partition: int
    offset: int
    time: float


def check_commits(commits: Iterable[Commit], observed: Iterable[Commit]) -> list[str]:
    """Return a line for each observed offset that is lower than one that was committed or observed before."""
    events = [(each.time, 0, each) for each in commits] + [(each.time, 1, each) for each in observed]
    highest: dict[int, int] = {}
    problems = []
    for _, is_observed, each in sorted(events):
        before = highest.get(each.partition, -1)
        if is_observed and each.offset < before:
            problems.append(f"the committed offset of partition {each.partition} went back: {before} to {each.offset}")
        highest[each.partition] = max(before, each.offset)
    return shorten(problems)


def check_replicas(directories: Mapping[int, Path], topic: str, high_watermarks: Mapping[int, int]) -> list[str]:
    """Return a line for each partition whose replicas differ below its high watermark. No broker may run.

    ``directories`` has the data directory of each broker. Every broker must have a replica of every partition.
    """
    problems = []
    for partition, high_watermark in high_watermarks.items():
        logs = {
            broker: _committed_bytes(directory / f"{topic}-{partition}", high_watermark)
            for broker, directory in directories.items()
        }
        if len(set(logs.values())) != 1:
            sizes = {broker: len(data) for broker, data in logs.items()}
            problems.append(f"replicas of {topic}-{partition} differ below offset {high_watermark}; bytes: {sizes}")
    return problems


def _committed_bytes(directory: Path, high_watermark: int) -> bytes:
    """Return the batches of a log that start below the high watermark."""
    data = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
    position = 0
    while position + _HEADER <= len(data) and int.from_bytes(data[position : position + 8], "big") < high_watermark:
        position += _HEADER + int.from_bytes(data[position + 8 : position + _HEADER], "big")
    return data[:position]


def longest_gap(times: Iterable[float], since: float, until: float) -> float:
    """Return the longest time between two of some times, which are in order.

    A gap counts if it ends after ``since``: it starts at the last time before. ``until`` ends the last gap.
    """
    known = [each for each in times if each <= until]
    first = next((number for number, each in enumerate(known) if each >= since), len(known))
    points = [*(known[max(first - 1, 0) :] or [since]), until]
    return max(after - before for before, after in pairwise(points))
