"""Follows the end of a topic: the newest records of each moment, and how many others there were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ottla.edge.console.records.decoding import Decoder
from ottla.edge.console.records.rows import row_of
from ottla.edge.console.records.scan import Budget, PartitionProgress, Scan, Wanted
from ottla.edge.console.records.source import LogRange, RecordSource

#: rows of one batch; people cannot read more of them before the next one
ROWS_MAX: Final = 200
#: for one batch: the rest is left out, so that a fast topic does not fill the memory of the console
_BUDGET: Final = Budget(records=20_000, bytes=16 << 20, seconds=1.0)


class Tail:
    """A live view of some partitions. Used by one thread at a time."""

    def __init__(self, wanted: Wanted, decoder: Decoder) -> None:
        self._wanted = Wanted(
            is_backward=True, test=wanted.test, rows=ROWS_MAX, with_uncommitted=wanted.with_uncommitted
        )
        self._decoder = decoder
        #: the next offset of each partition; empty before the first poll
        self._positions: dict[int, int] = {}
        self.scanned = 0
        self.matched = 0
        #: offsets that were not read, because there were too many
        self.left_out = 0

    def poll(self, source: RecordSource, partitions: Sequence[int]) -> list[dict[str, Any]]:
        """Return the records since the last poll, the newest first; none at the first poll. Blocks."""
        ranges = source.ranges(partitions)
        ends = {number: self._end(known) for number, known in ranges.items()}
        grown = {
            number: LogRange(self._positions[number], known.end, known.stable)
            for number, known in ranges.items()
            if number in self._positions and ends[number] > self._positions[number]
        }
        self._positions |= ends
        if not grown:
            return []
        return self._read(source, grown)

    def _read(self, source: RecordSource, grown: Mapping[int, LogRange]) -> list[dict[str, Any]]:
        progress = [
            PartitionProgress(number, known, self._end(known), chunk=2 * ROWS_MAX) for number, known in grown.items()
        ]
        scan = Scan(self._wanted, _BUDGET, progress, decoder=self._decoder, make_row=row_of)
        rows = scan.step(source, _BUDGET.seconds)
        self.scanned += scan.scanned
        self.matched += len(rows)
        self.left_out += scan.left
        return rows

    def _end(self, known: LogRange) -> int:
        return known.end if self._wanted.with_uncommitted else known.stable
