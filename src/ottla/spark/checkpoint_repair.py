"""Repair of a checkpoint whose offsets the log no longer has: because of retention, a truncation or a recreated topic.

A checkpoint of Spark has a file ``offsets/N`` with the end offsets of each batch N that was planned, and a file
``commits/N`` for each batch that was completed. The next batch starts at the end of the last completed one.

    state = read_checkpoint("lake/_checkpoints/shop/orders-v1")
    positions = compare(state, log_ranges)
    backup = apply_repair(state, positions, "earliest")

``apply_repair`` replaces the end offsets of the last completed batch, and removes a batch that was planned and not
completed, with the state that it has written on a local disk, so that Spark plans it again. If a sink has that batch
already, it refuses the new one, because its offsets differ. A copy of both offset files stays in the checkpoint. The
query must not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple
from uuid import uuid4

from pyarrow import fs

from ottla.model.errors import OttlaError
from ottla.model.types import TopicPartition
from ottla.spark.checkpoint_files import CheckpointFiles, checksum_file
from ottla.spark.offsets import PartitionOffsets
from ottla.spark.source_offsets import HEADER_LINES, batch_ids, read_offset_lines
from ottla.spark.stored_files import FileSystemUnusable, is_local, open_filesystem, replace_file, sync_files

#: the only version of Spark's offset log that is known here
_VERSION: Final = "v1"
#: directory of the copies, beside Spark's own directories
_BACKUPS: Final = "ottla-repair"

#: where to continue in a partition whose log ends before the checkpoint
Target = Literal["earliest", "latest"]


class RepairRefused(OttlaError):
    """A checkpoint that cannot be repaired; the text says why."""


class LogRange(NamedTuple):
    """The offsets that a partition has: from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """A file of Spark's offset log."""

    batch_id: int
    #: version, metadata, and one line for each source of the query
    lines: tuple[str, ...]

    def sources(self) -> Iterator[tuple[int, PartitionOffsets]]:
        """Yield number and offsets of each source that reads topics; other sources have other documents."""
        for number, line in enumerate(self.lines[HEADER_LINES:]):
            try:
                yield number, PartitionOffsets.from_json(line)
            except ValueError:
                continue

    def with_offsets(self, changed: Mapping[int, Mapping[TopicPartition, int]]) -> OffsetFile:
        """Return the file with other offsets of these sources. All other lines stay as they are."""
        lines = list(self.lines)
        for number, offsets in self.sources():
            if changed.get(number):
                lines[HEADER_LINES + number] = str(PartitionOffsets(offsets | dict(changed[number])))
        return OffsetFile(self.batch_id, tuple(lines))

    @property
    def content(self) -> bytes:
        # Spark writes no newline after the last line.
        return "\n".join(self.lines).encode()


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """The last batches of a checkpoint."""

    location: str
    #: the last batch that was completed; None before the first
    completed: OffsetFile | None
    #: the batch after it, if Spark has planned it and not completed it
    planned: OffsetFile | None

    @property
    def partitions(self) -> set[TopicPartition]:
        files = (file for file in (self.completed, self.planned) if file is not None)
        return {tp for file in files for _, offsets in file.sources() for tp in offsets}


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """One partition of one source: what the checkpoint says, and what the log has."""

    source: int
    topic_partition: TopicPartition
    #: the next offset to read; None if no batch was completed with this partition
    start: int | None
    #: the end of the batch that was planned and not completed
    planned_end: int | None
    #: None if the partition does not exist
    log: LogRange | None

    @property
    def state(self) -> Literal["ok", "absent", "deleted", "truncated", "unreadable batch"]:
        """Return what is wrong.

        ``deleted``: retention or a deletion removed records before they were read. ``truncated``: the log ends before
        the next offset. ``unreadable batch``: only the planned batch asks for offsets that the log does not have.
        """
        if self.log is None:
            return "absent"
        if self.start is not None and self.start > self.log.end:
            return "truncated"
        if self.start is not None and self.start < self.log.start:
            return "deleted"
        if self.planned_end is not None and not (self.start or 0) <= self.planned_end <= self.log.end:
            return "unreadable batch"
        return "ok"

    def new_start(self, target: Target | None) -> int | None:
        """Return the next offset to read after the repair; None if ``target`` has to be chosen first."""
        if self.log is None or self.state in ("ok", "unreadable batch"):
            return self.start
        if self.state == "deleted":
            return self.log.start
        return {"earliest": self.log.start, "latest": self.log.end, None: None}[target]

    def skipped(self, target: Target | None) -> int | None:
        """Return how many offsets the repair skips; None if ``target`` has to be chosen first."""
        if self.log is None or self.state not in ("deleted", "truncated"):
            return 0
        if self.state == "deleted":
            assert self.start is not None
            return self.log.start - self.start
        return {"earliest": 0, "latest": self.log.end - self.log.start, None: None}[target]

    def read_again(self, target: Target | None) -> int | None:
        """Return how many offsets are read that may have been read before; None if ``target`` has to be chosen."""
        if self.log is None or self.state != "truncated":
            return 0
        return {"earliest": self.log.end - self.log.start, "latest": 0, None: None}[target]


def read_checkpoint(location: str) -> CheckpointState:
    """Return the last batches of a checkpoint. Raise RepairRefused if it is none, or one of another version."""
    location = location.rstrip("/")
    try:
        planned_ids, completed_ids = batch_ids(f"{location}/offsets"), batch_ids(f"{location}/commits")
    except FileSystemUnusable as error:
        raise RepairRefused(f"{location} cannot be opened: {error}") from None
    if not planned_ids:
        raise RepairRefused(f"{location} has no offsets of a batch: name the checkpoint directory of a query")
    last = planned_ids[-1]
    if last in completed_ids:
        return CheckpointState(location, _read_file(location, last), None)
    if last == 0:
        return CheckpointState(location, None, _read_file(location, 0))
    if last - 1 not in completed_ids or last - 1 not in planned_ids:
        raise RepairRefused(
            f"{location}: batch {last} was planned and batch {last - 1} was not completed, which Spark does not do: "
            "the checkpoint is damaged, restore it from a backup"
        )
    return CheckpointState(location, _read_file(location, last - 1), _read_file(location, last))


def compare(state: CheckpointState, logs: Mapping[TopicPartition, LogRange]) -> list[Position]:
    """Return the positions of all partitions of a checkpoint, by source, topic and partition."""
    starts = {} if state.completed is None else dict(state.completed.sources())
    ends = {} if state.planned is None else dict(state.planned.sources())
    return [
        Position(
            source=number,
            topic_partition=tp,
            start=starts.get(number, {}).get(tp),
            planned_end=ends.get(number, {}).get(tp),
            log=logs.get(tp),
        )
        for number in sorted({*starts, *ends})
        for tp in sorted({*starts.get(number, ()), *ends.get(number, ())})
    ]


def apply_repair(state: CheckpointState, positions: list[Position], target: Target | None) -> str | None:
    """Change the checkpoint and return the directory with the copies of the old files; None if nothing is wrong.

    Raise RepairRefused, and change nothing, if ``target`` is needed and None, or if the checkpoint has changed since
    it was read.
    """
    wrong = [position for position in positions if position.state not in ("ok", "absent")]
    if not wrong:
        return None
    changed: dict[int, dict[TopicPartition, int]] = {}
    for position in wrong:
        new = position.new_start(target)
        if position.state == "truncated" and new is None:
            raise RepairRefused(f"{position.topic_partition} ends before its checkpoint: choose earliest or latest")
        if new is not None and new != position.start:
            changed.setdefault(position.source, {})[position.topic_partition] = new
    if read_checkpoint(state.location) != state:
        raise RepairRefused(f"{state.location} has changed: stop the query, then repair again")
    backup = f"{state.location}/{_BACKUPS}/{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"
    for file in (state.completed, state.planned):
        if file is not None:
            replace_file(f"{backup}/offsets-{file.batch_id}", file.content)
    # In this order: the checkpoint is valid after a crash between any two of the steps.
    if state.planned is not None:
        # Spark would keep this state, although the next batch with this number reads other offsets.
        CheckpointFiles(state.location).delete_repeated_state()
        _delete_file(f"{state.location}/offsets/{state.planned.batch_id}")
    if state.completed is not None and changed:
        uri = f"{state.location}/offsets/{state.completed.batch_id}"
        _delete_checksum(uri)
        replace_file(uri, state.completed.with_offsets(changed).content)
    return backup


# -- files ----------------------------------------------------------------------------------------------------------


def _read_file(location: str, batch_id: int) -> OffsetFile:
    name = f"{location}/offsets/{batch_id}"
    lines = read_offset_lines(location, batch_id) or []
    if len(lines) <= HEADER_LINES:
        raise RepairRefused(f"{name} is not complete: restore the checkpoint from a backup")
    if lines[0] != _VERSION:
        raise RepairRefused(f"{name} has version {lines[0]!r} of Spark's offset log: only {_VERSION} can be repaired")
    return OffsetFile(batch_id, tuple(lines))


def _delete_file(uri: str) -> None:
    filesystem, path = open_filesystem(uri)
    filesystem.delete_file(path)
    _delete_checksum(uri)
    if is_local(uri):
        sync_files([path])


def _delete_checksum(uri: str) -> None:
    """Delete Hadoop's checksum of a local file, because Spark refuses a file that differs from it."""
    filesystem, path = open_filesystem(uri)
    checksum = checksum_file(path)
    if filesystem.get_file_info(checksum).type == fs.FileType.File:
        filesystem.delete_file(checksum)
