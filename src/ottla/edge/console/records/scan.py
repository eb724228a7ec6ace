"""Searches a topic in steps, within a budget, and says where to resume.

    forward     each partition is read from its position to its end
    backward    from its position, the end at first, a chunk of older records is read in the order of the log; the next
                chunk is before it. Chunks grow until they have megabytes, because few records match a search

In each round every partition is read for a turn. The records that match are merged by time, and are rows of the
result in this order. When a page of rows is full, the position of each partition is behind its last row, so that the
next page begins with the next record: nothing is missing and nothing comes twice.

A scan is used by one thread at a time. It holds the rows of one round only.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.errors import ClientError, OffsetOutOfRange
from ottla.edge.console.records.decoding import Decoder
from ottla.edge.console.records.expression import Test
from ottla.edge.console.records.source import FETCH_BYTES, FETCH_BYTES_FIRST, LogRange, ReadBatch, RecordSource
from ottla.edge.console.records.view import ABORTED, OPEN, RecordView
from ottla.model.errors import InvalidRecord, OttlaError
from ottla.model.records import iterate_records

#: a turn of a partition ends after this many bytes
TURN_BYTES: Final = 4 << 20
#: a chunk that turns out to be larger is read again in smaller ones
_CHUNK_BYTES_MAX: Final = 32 << 20
_CHUNK_FIRST: Final = 500
_CHUNK_GROWTH: Final = 4
#: a round ends when the rows that wait to be merged have this many bytes
_HELD_BYTES_MAX: Final = 16 << 20
#: larger records become rows at once, so that their values need not be kept
_KEPT_BYTES_MAX: Final = 16 << 10
_DECOMPRESSED_BYTES_MAX: Final = 64 << 20
_PROBLEMS_MAX: Final = 20


class BadPosition(OttlaError):
    """The position of a search in a URL cannot be read."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a search may spend before it pauses."""

    records: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to search."""

    is_backward: bool
    #: None finds all records
    test: Test | None = None
    #: rows of a page
    rows: int
    #: whether records of aborted and open transactions are found, too
    with_uncommitted: bool = False


@dataclass(slots=True)
class PartitionProgress:
    """How far one partition was searched."""

    partition: int
    range: LogRange
    #: forward: the next offset to read; backward: all offsets from here on were read
    position: int
    scanned: int = 0
    matched: int = 0
    is_done: bool = False
    #: whether it could not be read; it is not read again before the search is resumed
    is_failed: bool = False
    #: offsets of the next chunk of a backward search
    chunk: int = _CHUNK_FIRST


@dataclass(slots=True)
class Found:
    """A row of the result before it is merged with those of other partitions."""

    timestamp: int
    offset: int
    size: int
    #: a RecordView, or a row that was made of it
    row: Any


@dataclass(slots=True)
class Turn:
    """What was read of one partition in one round."""

    progress: PartitionProgress
    #: in the order of the search
    found: list[Found] = field(default_factory=list)


class Scan:
    """A search of some partitions of a topic. `step` continues it."""

    def __init__(
        self,
        wanted: Wanted,
        budget: Budget,
        partitions: Sequence[PartitionProgress],
        *,
        decoder: Decoder,
        make_row: Callable[[RecordView], Any],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wanted = wanted
        self._budget = budget
        self.partitions = partitions
        self._decoder = decoder
        self._make_row = make_row
        self._now = now
        self.scanned = 0
        self.bytes = 0
        self.seconds = 0.0
        self.matched = 0
        #: records of aborted and open transactions that were not looked at
        self.hidden = 0
        #: why the search has paused: rows, records, bytes or time; end if nothing is left; empty while it runs
        self.pause = ""
        #: batches that could not be read, and records that were deleted meanwhile
        self.problems: list[str] = []
        self._until = 0.0
        self._is_first = True
        #: bytes of batches and of values, which compression makes smaller
        self._opened = 0
        #: bytes of the records that were found in the last round
        self._held = 0
        #: the partition that was read last
        self._last = -1

    def step(self, source: RecordSource, seconds: float, *, bytes_max: int | None = None) -> list[Any]:
        """Read for about this long, or until the search pauses, and return the rows that were found. Blocks.

        With ``bytes_max`` the step also ends when the records of its rows have so many bytes.
        """
        began = self._now()
        self._until = began + min(seconds, max(self._budget.seconds - self.seconds, 0.0))
        rows: list[Any] = []
        size = 0
        try:
            while not self.pause:
                rows += self._round(source)
                self._is_first = False
                size += self._held
                if self._now() >= self._until or (bytes_max is not None and size >= bytes_max):
                    break
        finally:
            self.seconds += self._now() - began
        if not self.pause and self.seconds >= self._budget.seconds:
            self.pause = "time"
        return rows

    def _round(self, source: RecordSource) -> list[Any]:
        turns: list[Turn] = []
        self._held = 0
        for progress in self._waiting():
            turns.append(self._turn(source, progress))
            self._last = progress.partition
            self._held += sum(each.size for each in turns[-1].found)
            if self.pause or self._held >= _HELD_BYTES_MAX or self._now() >= self._until:
                break
        rows = self._merged(turns)
        if self.matched >= self._wanted.rows:
            self.pause = "rows"
        elif not self._waiting():
            self.pause = "end"
        return rows

    def _waiting(self) -> list[PartitionProgress]:
        """Return the partitions that are not searched to their end, those after the last one first."""
        found = [each for each in self.partitions if not each.is_done and not each.is_failed]
        return sorted(found, key=lambda each: (each.partition <= self._last, each.partition))

    # -- turns --------------------------------------------------------------------------------------------------------

    def _turn(self, source: RecordSource, progress: PartitionProgress) -> Turn:
        turn = Turn(progress)
        try:
            if self._wanted.is_backward:
                self._backward(source, turn)
            else:
                self._forward(source, turn)
        except OffsetOutOfRange as error:
            self._deleted(progress, error)
        except ClientError as error:
            progress.is_failed = True
            self._note(f"partition {progress.partition} was not read: {error}")
        return turn

    def _forward(self, source: RecordSource, turn: Turn) -> None:
        progress, found = turn.progress, turn.found
        start, before = progress.position, self._opened
        end = progress.range.end if self._wanted.with_uncommitted else progress.range.stable
        for batch in self._batches(source, progress, start, end):
            for row in self._matches(progress, batch, start, end):
                found.append(row)
                progress.position = row.offset + 1
                if len(found) >= self._wanted.rows:
                    break
            else:
                progress.position = min(batch.header.next_offset, end)
            if len(found) >= self._wanted.rows or self._opened - before >= TURN_BYTES or self._is_spent():
                break
        else:
            progress.position = end
        progress.is_done = progress.position >= end

    def _backward(self, source: RecordSource, turn: Turn) -> None:
        """Read one chunk to its end, because its newest records are there."""
        progress = turn.progress
        end, before = progress.position, self._opened
        start = max(end - progress.chunk, progress.range.start)
        # One more than a page, so that the next page begins at a record that was left out of this one.
        found: deque[Found] = deque(maxlen=self._wanted.rows + 1)
        for batch in self._batches(source, progress, start, end):
            found.extend(self._matches(progress, batch, start, end))
            behind = min(batch.header.next_offset, end)
            if self._opened - before > _CHUNK_BYTES_MAX and behind < end:
                progress.chunk = max((behind - start) // 2, 1)
                return
        if self._opened - before < TURN_BYTES:
            progress.chunk *= _CHUNK_GROWTH
        progress.position = start
        progress.is_done = start <= progress.range.start
        turn.found = list(reversed(found))
        self._is_spent()

    def _batches(self, source: RecordSource, progress: PartitionProgress, start: int, end: int) -> Iterator[ReadBatch]:
        if start >= end:
            return iter(())
        size = FETCH_BYTES_FIRST if self._is_first else FETCH_BYTES
        return source.batches(progress.partition, start, end, stable=progress.range.stable, fetch_bytes=size)

    def _matches(self, progress: PartitionProgress, batch: ReadBatch, start: int, end: int) -> Iterator[Found]:
        """Yield the records of a batch between two offsets that match."""
        header = batch.header
        self.bytes += header.size_bytes
        self._opened += header.size_bytes
        if batch.is_marker:
            return
        if batch.state in (ABORTED, OPEN) and not self._wanted.with_uncommitted:
            self.hidden += header.record_count
            return
        test = self._wanted.test
        try:
            for record in iterate_records(batch.data, max_bytes=_DECOMPRESSED_BYTES_MAX):
                self._opened += len(record.value or b"")
                if not start <= record.offset < end:
                    continue
                progress.scanned += 1
                self.scanned += 1
                view = RecordView(progress.partition, header, record, state=batch.state, decoder=self._decoder)
                if test is None or test(view):
                    size = view.size
                    row = view if size <= _KEPT_BYTES_MAX else self._make_row(view)
                    yield Found(record.timestamp, record.offset, size, row)
        except InvalidRecord as error:
            self._note(f"partition {progress.partition}: the batch at offset {header.base_offset} is damaged: {error}")

    def _is_spent(self) -> bool:
        """Return whether the step or the whole search has used its budget; note it if it is the search."""
        if self.scanned >= self._budget.records:
            self.pause = "records"
        elif self.bytes >= self._budget.bytes:
            self.pause = "bytes"
        return bool(self.pause) or self._now() >= self._until

    def _deleted(self, progress: PartitionProgress, error: OffsetOutOfRange) -> None:
        """Continue behind records that retention has deleted meanwhile."""
        self._note(f"partition {progress.partition}: offsets before {error.log_start} were deleted during the search")
        end = min(progress.range.end, error.log_end)
        progress.range = LogRange(error.log_start, end, min(progress.range.stable, end))
        if self._wanted.is_backward:
            progress.is_done = progress.position <= error.log_start
            progress.position = min(progress.position, error.log_end)
        else:
            progress.position = max(progress.position, error.log_start)
            progress.is_done = progress.position >= end

    def _note(self, problem: str) -> None:
        if len(self.problems) < _PROBLEMS_MAX and problem not in self.problems:
            self.problems.append(problem)

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _merged(self, turns: Iterable[Turn]) -> list[Any]:
        """Return the rows of a round by time, as many as the page has room for; put the others back."""
        lists = {turn.progress.partition: deque(turn.found) for turn in turns}
        by_number = {turn.progress.partition: turn.progress for turn in turns}
        rows: list[Any] = []
        room = self._wanted.rows - self.matched
        choose = max if self._wanted.is_backward else min
        while any(lists.values()) and len(rows) < room:
            number = choose((each for each in lists if lists[each]), key=lambda each: lists[each][0].timestamp)
            row = lists[number].popleft().row
            rows.append(self._make_row(row) if isinstance(row, RecordView) else row)
            by_number[number].matched += 1
        for number, left in lists.items():
            if left:
                progress = by_number[number]
                progress.position = left[0].offset + 1 if self._wanted.is_backward else left[0].offset
                progress.is_done = False
        self.matched += len(rows)
        return rows

    # -- progress -----------------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        """Offsets that were not searched yet. Compaction and transaction markers leave fewer records than that."""
        return sum(_left(each, self._wanted) for each in self.partitions)

    def progress(self) -> dict[str, Any]:
        """Return the progress as values of JSON."""
        return {
            "has_search": self._wanted.test is not None,
            "scanned": self.scanned, "matched": self.matched, "bytes": self.bytes, "hidden": self.hidden,
            "left": self.left, "seconds": round(self.seconds, 3), "pause": self.pause, "problems": list(self.problems),
            "partitions": [
                {
                    "partition": each.partition, "scanned": each.scanned, "matched": each.matched,
                    "position": each.position, "start": each.range.start, "end": each.range.end,
                    "left": _left(each, self._wanted), "done": each.is_done, "failed": each.is_failed,
                }
                for each in self.partitions
            ],
        }  # fmt: skip

    def position_map(self) -> dict[int, int]:
        """Return where to resume, by partition; empty if nothing is left. A forward search is never at its end."""
        wanted = [each for each in self.partitions if not (self._wanted.is_backward and each.is_done)]
        return {each.partition: each.position for each in wanted}

    def positions(self) -> str:
        """Return where to resume, for a URL."""
        return "_".join(f"{number}.{position}" for number, position in self.position_map().items())


def _left(progress: PartitionProgress, wanted: Wanted) -> int:
    if progress.is_done:
        return 0
    if wanted.is_backward:
        return max(progress.position - progress.range.start, 0)
    end = progress.range.end if wanted.with_uncommitted else progress.range.stable
    return max(end - progress.position, 0)


def begin(
    ranges: Mapping[int, LogRange], wanted: Wanted, starts: Mapping[int, int] | None = None
) -> list[PartitionProgress]:
    """Return the partitions of a new search.

    ``starts`` has the offsets at which a forward search begins; without it, or for a backward search, it is the log's
    first or last offset.
    """
    found = []
    for number, known in sorted(ranges.items()):
        end = known.end if wanted.with_uncommitted else known.stable
        first = end if wanted.is_backward else (starts or {}).get(number, known.start)
        found.append(_progress(number, known, min(max(first, known.start), end), wanted))
    return found


def resume(ranges: Mapping[int, LogRange], wanted: Wanted, positions: Mapping[int, int]) -> list[PartitionProgress]:
    """Return the partitions of a search that continues at these positions; others were searched to their end."""
    found = []
    for number, position in sorted(positions.items()):
        if number in ranges:
            known = ranges[number]
            end = known.end if wanted.with_uncommitted else known.stable
            found.append(_progress(number, known, min(max(position, known.start), max(end, known.start)), wanted))
    return found


def _progress(number: int, known: LogRange, position: int, wanted: Wanted) -> PartitionProgress:
    # Without a search every record is a row, so that the first chunk need not be larger than a page.
    chunk = _CHUNK_FIRST if wanted.test is not None else max(wanted.rows, 1)
    made = PartitionProgress(number, known, position, chunk=chunk)
    made.is_done = not _left(made, wanted)
    return made


def parse_positions(text: str) -> dict[int, int]:
    """Return the positions of a URL by partition. Raise BadPosition.

    >>> parse_positions("0.88120_3.5")
    {0: 88120, 3: 5}
    """
    found = {}
    for part in text.split("_") if text else ():
        number, dot, offset = part.partition(".")
        if not (dot and number.isdigit() and offset.isdigit() and len(number) < 10 and len(offset) < 20):
            raise BadPosition(f"at: {part[:40]!r} is not PARTITION.OFFSET; begin the search again")
        found[int(number)] = int(offset)
    return found
