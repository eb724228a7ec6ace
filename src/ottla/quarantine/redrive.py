"""Sends quarantined records to the topics that they came from, again.

    rows of the table ─► left out: sent already, sent too often, not in the topic any more ─► plan
    plan ─► records to their partitions, acknowledged by all in-sync replicas ─► marks in the topic of redrives

The topic of redrives is compacted and has a mark for each rejected record that was sent again, so that nothing is sent
twice from the same table. After a crash between the two steps, records without a mark are sent again: at least once.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure, NotFound
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.quarantine.rows import REPLAYS_MAX, QuarantinedRow, replay_count, replayed

TOPIC: Final = "_ottla_redrives"
#: records of one plan
RECORDS_MAX: Final = 1000
#: bytes of one batch, below the limit of a broker without settings
_BATCH_BYTES_MAX: Final = 500_000
_BATCH_RECORDS_MAX: Final = 1000
#: why a row is left out
SENT, LOOPING, LOST = "sent already", "sent too often", "not in its topic any more"
COMPUTED = "computed from several records"


@dataclass(slots=True)
class RedrivePlan:
    """The records to send, with the rows that they come from, and how many rows are left out."""

    records: list[tuple[QuarantinedRow, Record]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    #: whether the table may have more rows than a plan takes
    has_more: bool = False

    @property
    def by_place(self) -> dict[TopicPartition, list[Record]]:
        found: dict[TopicPartition, list[Record]] = {}
        for row, record in self.records:
            assert row.place is not None, "rows without a place are left out"
            found.setdefault(row.place, []).append(record)
        return found


def make_plan(
    client: AdminClient, rows: Iterable[QuarantinedRow], *, value: bytes | None = None, count_max: int = RECORDS_MAX
) -> RedrivePlan:
    """Return what would be sent. With ``value`` it takes the place of the records' own values. Raise Failure."""
    plan = RedrivePlan()
    sent = read_sent(client)
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    topics = client.topics()
    for row in rows:
        place = row.place
        if place is None:
            plan.left_out[COMPUTED] += 1
        elif row.id in sent:
            plan.left_out[SENT] += 1
        elif place.topic not in topics or place.partition >= len(topics[place.topic].partitions):
            plan.left_out[LOST] += 1
        elif row.replays >= REPLAYS_MAX:
            plan.left_out[LOOPING] += 1
        elif len(plan.records) >= count_max:
            plan.has_more = True
            break
        else:
            _add(client, plan, row, place, ranges)
            sent.add(row.id)  # the tables of several flows may have the same record
    if value is not None:
        plan.records = [(row, _with_value(record, value)) for row, record in plan.records]
    return plan


def _add(
    client: AdminClient,
    plan: RedrivePlan,
    row: QuarantinedRow,
    place: TopicPartition,
    ranges: dict[TopicPartition, tuple[int, int]],
) -> None:
    record: Record | None = Record(key=row.key, value=row.value, headers=list(row.headers))
    if not row.has_record:
        record = _original(client, place, row.offset or 0, ranges)
    if record is None:
        plan.left_out[LOST] += 1
    elif replay_count(record.headers) >= REPLAYS_MAX:
        plan.left_out[LOOPING] += 1
    else:
        plan.records.append((row, replayed(record, row.id)))


def _original(
    client: AdminClient, place: TopicPartition, offset: int, ranges: dict[TopicPartition, tuple[int, int]]
) -> Record | None:
    """Return the record from its topic; None if it was deleted or compacted away."""
    if place not in ranges:
        ranges.update(client.log_ranges([place]))
    start, end = ranges.get(place, (0, 0))
    if not start <= offset < end:
        return None
    return next(iter(client.read_records(place, offset, offset + 1)), None)


def _with_value(record: Record, value: bytes) -> Record:
    return Record(timestamp=record.timestamp, key=record.key, value=value, headers=record.headers)


def read_sent(client: AdminClient) -> set[str]:
    """Return the ids of the rows that were sent again."""
    if TOPIC not in client.topics():
        return set()
    place = TopicPartition(TOPIC, 0)
    start, end = client.log_ranges([place])[place]
    if end <= start:
        return set()
    return {(record.key or b"").decode(errors="surrogateescape") for record in client.read_records(place, start, end)}


def carry_out(client: AdminClient, plan: RedrivePlan) -> dict[TopicPartition, int]:
    """Send the records of a plan and mark their rows. Return how many were sent to each partition. Raise Failure."""
    if not plan.records:
        raise NotFound("nothing is left to send again")
    _create_topic(client)
    counts: dict[TopicPartition, int] = {}
    rows_of: Mapping[int, QuarantinedRow] = {id(record): row for row, record in plan.records}
    for place, records in plan.by_place.items():
        for part in _batches(records):
            client.append_batch(place, build_batch(list(part)))
            client.append_batch(TopicPartition(TOPIC, 0), build_batch([_mark(rows_of[id(one)]) for one in part]))
            counts[place] = counts.get(place, 0) + len(part)
    return counts


def _mark(row: QuarantinedRow) -> Record:
    now_ms = time.time_ns() // 1_000_000
    value = json.dumps({"cause": row.cause, "time_ms": now_ms, "replays": row.replays + 1}).encode()
    return Record(timestamp=now_ms, key=row.id.encode(errors="surrogateescape"), value=value)


def _create_topic(client: AdminClient) -> None:
    if TOPIC in client.topics():
        return
    (outcome,) = client.create_topics([TOPIC], 1, -1, {"cleanup.policy": "compact"}, dry_run=False)
    if outcome.failure is not None and TOPIC not in client.topics():
        raise Failure(f"the topic of redrives cannot be created: {outcome.failure.message}")
    client.await_topics([TOPIC])


def _batches(records: Sequence[Record]) -> Iterator[Sequence[Record]]:
    part: list[Record] = []
    size = 0
    for record in records:
        bytes_of = len(record.key or b"") + len(record.value or b"")
        bytes_of += sum(len(name) + len(value or b"") for name, value in record.headers) + 50
        if part and (size + bytes_of > _BATCH_BYTES_MAX or len(part) >= _BATCH_RECORDS_MAX):
            yield part
            part, size = [], 0
        part.append(record)
        size += bytes_of
    if part:
        yield part
