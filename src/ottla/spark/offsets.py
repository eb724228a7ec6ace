"""Offsets of many partitions: their JSON, the range of a batch, and lost records. Pure.

The JSON is that of Spark's Kafka connector, ``{"topic":{"0":123}}``, so that a checkpoint moves between the two.
An offset is the next one to read. Spark compares offsets as text, so topics are always in the order of their names and
partitions in the order of their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple, Self

from ottla.model.errors import OttlaError
from ottla.model.types import TopicPartition

#: what a user writes for the two ends of a partition, as in Kafka's ListOffsets
EARLIEST = -2
LATEST = -1

JsonOffsets = dict[str, dict[str, int]]


class PartitionOffsets(dict[TopicPartition, int]):
    """An offset, or a timestamp, for each of some partitions."""

    @classmethod
    def from_json(cls, document: str | Mapping[str, Any]) -> Self:
        """Return the offsets of ``{"topic":{"0":123}}``, a text or a document. Raise ValueError for other forms."""
        topics = json.loads(document) if isinstance(document, str) else document
        offsets = cls()
        if not isinstance(topics, Mapping):
            raise ValueError(f'expected an object such as {{"topic":{{"0":123}}}}, got {topics!r}')
        for topic, partitions in topics.items():
            if not isinstance(partitions, Mapping):
                raise ValueError(f'topic {topic!r} needs an object such as {{"0":123}}, got {partitions!r}')
            for partition, offset in partitions.items():
                if not str(partition).isdecimal():
                    raise ValueError(f"topic {topic!r} has a partition {partition!r}, which is not a number")
                if not isinstance(offset, int) or isinstance(offset, bool):
                    raise ValueError(f"{topic}-{partition} needs a whole number, got {offset!r}")
                offsets[TopicPartition(topic, int(partition))] = offset
        return offsets

    def as_json(self) -> JsonOffsets:
        """Return the document; equal offsets have the same order."""
        document: JsonOffsets = {}
        for (topic, partition), offset in sorted(self.items()):
            document.setdefault(topic, {})[str(partition)] = offset
        return document

    def __str__(self) -> str:
        return compact_json(self.as_json())


def compact_json(document: object) -> str:
    """Return JSON without spaces, as Spark's Kafka connector writes it into checkpoints."""
    return json.dumps(document, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends, as options say it: offsets or timestamps, for all partitions or for each."""

    by_timestamp: bool = False
    everywhere: int | None = None
    each: PartitionOffsets = field(default_factory=PartitionOffsets)

    def of(self, partitions: Collection[TopicPartition], option: str) -> dict[TopicPartition, int]:
        """Return the bound of every partition. Raise ValueError if the options name other partitions."""
        if self.everywhere is not None:
            return dict.fromkeys(partitions, self.everywhere)
        missing, unknown = set(partitions) - set(self.each), set(self.each) - set(partitions)
        if missing or unknown:
            hint = "" if self.by_timestamp else "; -2 stands for earliest, -1 for latest"
            complaints = [f"it lacks {_names(missing)}"] if missing else []
            complaints += [f"{_names(unknown)} is not among the partitions to read"] if unknown else []
            raise ValueError(f"{option} must name every partition that is read: {' and '.join(complaints)}{hint}")
        return dict(self.each)


class OffsetRange(NamedTuple):
    """Offsets of one partition that one task reads; ``end`` is the first that it does not."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        return self.end - self.start


def split_ranges(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Divide ranges so that none is longer than ``max_records`` and there are about ``min_partitions`` of them."""
    pieces = sorted(range_ for range_ in ranges if range_.size > 0)
    if max_records is not None:
        pieces = [piece for range_ in pieces for piece in _cut(range_, -(-range_.size // max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    # A range with less than its share stays whole and leaves the remaining tasks to the larger ones.
    total = sum(piece.size for piece in pieces)
    whole = {piece for piece in pieces if round(piece.size / total * min_partitions) <= 1}
    total -= sum(piece.size for piece in whole)
    tasks = max(min_partitions - len(whole), 1)
    return [
        part
        for piece in pieces
        for part in _cut(piece, 1 if piece in whole else max(round(piece.size / total * tasks), 1))
    ]


def _cut(range_: OffsetRange, parts: int) -> list[OffsetRange]:
    parts = min(parts, range_.size)
    edges = [range_.start + range_.size * part // parts for part in range(parts + 1)]
    return [range_._replace(start=start, end=end) for start, end in pairwise(edges)]


def admit(start: Mapping[TopicPartition, int], latest: PartitionOffsets, rows_max: int) -> PartitionOffsets:
    """Return the end of a batch of ``rows_max`` offsets, divided among partitions by their unread offsets.

    Each partition with unread offsets advances by at least one, so with a limit below the number of partitions the
    batch is larger than the limit. Offsets are counted, not records: compaction and transactions leave gaps.
    """
    waiting = {tp: latest[tp] - start[tp] for tp in latest if tp in start and latest[tp] > start[tp]}
    if sum(waiting.values()) <= rows_max:
        return PartitionOffsets(latest)
    shares = dict.fromkeys(waiting, 1)
    rest, total = max(rows_max - len(waiting), 0), max(sum(waiting.values()) - len(waiting), 1)
    remainders = {}
    for tp, size in waiting.items():
        share, remainders[tp] = divmod(rest * (size - 1), total)
        shares[tp] += share
    # Offsets that are left after rounding down go to the partitions with the largest remainders.
    left = max(rows_max - sum(shares.values()), 0)
    for tp in sorted(remainders, key=lambda tp: (-remainders[tp], tp))[:left]:
        shares[tp] += 1
    return PartitionOffsets({tp: start[tp] + shares[tp] if tp in shares else offset for tp, offset in latest.items()})


class Cause(Enum):
    """Why offsets that should be read cannot be read."""

    RETENTION = "retention, or a deletion of records, overtook the reader"
    RECREATED = "the topic was deleted and created again under the same name"
    TRUNCATED = "the log ends before the offset: the topic was created again, or an unclean leader election cut it"
    TOPIC_DELETED = "the topic does not exist any more"
    PARTITION_MISSING = "the topic has fewer partitions than before: it was created again"
    NOT_SUBSCRIBED = "the partition exists but the source's options do not name it any more"
    ENDS_EARLY = "the log ends before the offset up to which it was to be read"
    NEW_PARTITION_SHORTENED = "the partition is new, and retention removed its first records before they were read"


@dataclass(frozen=True, slots=True)
class DataLoss:
    """One partition that cannot be read from the offset of the checkpoint or of the options."""

    topic_partition: TopicPartition
    cause: Cause
    #: the offset that should be read next
    start: int
    #: the offsets that the partition has now, where they are known
    log_start: int | None = None
    log_end: int | None = None

    def __str__(self) -> str:
        topic, partition = self.topic_partition
        held = ""
        if self.log_end is not None:
            first = "" if self.log_start is None else f"from {self.log_start} "
            held = f", the partition now holds offsets {first}up to {self.log_end}"
        return f"topic {topic}, partition {partition}: offset {self.start} was next{held}: {self.cause.value}"


#: an error names so many partitions
_LOSSES_SHOWN = 5


class DataLost(OttlaError):
    """Records were deleted before they were read, and ``failOnDataLoss`` is true. The text is one line."""

    def __init__(self, losses: Iterable[DataLoss]) -> None:
        self.losses = list(losses)
        shown = [str(loss) for loss in self.losses[:_LOSSES_SHOWN]]
        if len(self.losses) > _LOSSES_SHOWN:
            shown.append(f"{len(self.losses) - _LOSSES_SHOWN} more partitions")
        super().__init__(
            f"records were deleted before they were read: {'; '.join(shown)}; set failOnDataLoss to false "
            "(on_data_loss: continue in a pipeline) to continue without them, start with a new checkpoint, or stop "
            "the query and run 'ottla spark repair CHECKPOINT', which shows what can be skipped or read again"
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges that a batch reads, and the records that it should read and cannot."""

    ranges: list[OffsetRange]
    losses: list[DataLoss]


@dataclass(frozen=True, slots=True)
class Observed:
    """The state of the partitions of a batch in the cluster."""

    #: number of partitions of each topic that exists
    partition_counts: Mapping[str, int]
    topic_ids: Mapping[str, bytes]
    #: first offset of each partition that exists
    log_starts: Mapping[TopicPartition, int]
    #: topic ids from when the partitions were read before, as far as they are known
    former_ids: Mapping[str, bytes] = field(default_factory=dict)

    def recreated(self, topic: str) -> bool:
        former, now = self.former_ids.get(topic), self.topic_ids.get(topic)
        return former is not None and now is not None and former != now


def plan_ranges(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], observed: Observed) -> Plan:
    """Return the plan from ``start`` to ``end``. A partition that is not in ``start`` is new: it begins at earliest."""
    losses = vanished(start, end, observed)
    ranges = []
    topics_before = {tp.topic for tp in start}
    for tp in sorted(end):
        log_start = observed.log_starts.get(tp)
        if log_start is None:
            losses.append(DataLoss(tp, _cause_of_absence(tp, observed), start.get(tp, 0)))
            continue
        begin = start.get(tp)
        cause = None
        if begin is None:
            if log_start > 0 and tp.topic in topics_before:
                cause = Cause.NEW_PARTITION_SHORTENED
            begin = 0 if cause else log_start
        elif observed.recreated(tp.topic):
            cause = Cause.RECREATED
        elif begin < log_start:
            cause = Cause.RETENTION
        elif end[tp] < begin:
            cause = Cause.TRUNCATED
        if cause:
            losses.append(DataLoss(tp, cause, begin, log_start, end[tp]))
        # After a truncation it is unknown which of the offsets were read: reading continues at the new end.
        if cause is not Cause.TRUNCATED:
            first = log_start if cause else begin
            if end[tp] > first:
                ranges.append(OffsetRange(tp.topic, tp.partition, first, end[tp]))
    return Plan(ranges, losses)


def vanished(
    before: Mapping[TopicPartition, int], now: Collection[TopicPartition], observed: Observed
) -> list[DataLoss]:
    """Return the losses of partitions that were read and are not among those to read now."""
    return [DataLoss(tp, _cause_of_absence(tp, observed), before[tp]) for tp in sorted(before) if tp not in now]


def _cause_of_absence(tp: TopicPartition, observed: Observed) -> Cause:
    count = observed.partition_counts.get(tp.topic)
    if count is None:
        return Cause.TOPIC_DELETED
    return Cause.PARTITION_MISSING if tp.partition >= count else Cause.NOT_SUBSCRIBED


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in sorted(partitions))
