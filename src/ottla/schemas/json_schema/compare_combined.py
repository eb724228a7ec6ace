"""Compares two combined schemas (`allOf`, `anyOf`, `oneOf`, arrays of types).

The parts may stand in another order. Each part of the side that has fewer must get a partner of its own on the other
side that it is compatible with: a maximum matching in a bipartite graph. A pair of parts is compared only when the
search for the matching reaches it. The search tries equal parts and equal places first, so that unchanged parts cost
one comparison each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from ottla.schemas.json_schema.differences import Kind
from ottla.schemas.json_schema.model import CombinedNode, Node
from ottla.schemas.json_schema.report import Differences, Pair, Report, Steps


def compare_combined(report: Report, original: CombinedNode, update: CombinedNode) -> Steps:
    """Report the differences of two combined schemas."""
    before, after = original.parts, update.parts
    if original.criterion != update.criterion:
        is_extended = (
            update.criterion == "anyOf"
            or (len(before) == 1 and len(after) == 1)
            or (len(before) == 1 and update.criterion == "oneOf")
            or (len(after) == 1 and original.criterion == "allOf")
        )
        kind = Kind.COMBINED_TYPE_EXTENDED if is_extended else Kind.COMBINED_TYPE_CHANGED
        report.add(kind, original=original.raw, update=update.raw)
        if not is_extended:
            return
    before, after = _different(report, before), _different(report, after)
    if len(before) < len(after):
        kind = Kind.PRODUCT_TYPE_EXTENDED if update.criterion == "allOf" else Kind.SUM_TYPE_EXTENDED
        report.add(kind, original=original.raw, update=update.raw)
    elif len(before) > len(after):
        kind = Kind.PRODUCT_TYPE_NARROWED if original.criterion == "allOf" else Kind.SUM_TYPE_NARROWED
        report.add(kind, original=original.raw, update=update.raw)
    matching = _Matching(report, before, after)
    matched = yield from matching.find()
    for index, differences in sorted(matched, key=lambda found: found[0]):
        report.extend(differences, original.criterion, str(index))
    if len(matched) < min(len(before), len(after)):
        report.add(Kind.COMBINED_TYPE_SUBSCHEMAS_CHANGED, original=original.raw, update=update.raw)


def _different(report: Report, parts: list[Node]) -> list[Node]:
    """Return the parts without repetitions."""
    seen: dict[tuple[type[Node], str], Node] = {}
    for part in parts:
        report.spend(1 + len(part.key) // 50)
        seen.setdefault((type(part), part.key), part)
    return list(seen.values())


class _Matching:
    """Finds a maximum matching by augmenting paths, from the side with fewer parts (the rows)."""

    def __init__(self, report: Report, original: list[Node], update: list[Node]) -> None:
        self._report = report
        self._is_turned = len(original) > len(update)
        self._rows, self._columns = (update, original) if self._is_turned else (original, update)
        #: (row, column) -> the differences of a compatible pair; None for an incompatible one
        self._edges: dict[tuple[int, int], Differences | None] = {}
        self._column_of: dict[int, int] = {}
        self._row_of: dict[int, int] = {}
        places: dict[tuple[type[Node], str], int] = {}
        for column, part in enumerate(self._columns):
            places.setdefault((type(part), part.key), column)
        #: row -> the column of an equal part, or at the same place
        self._first = [places.get((type(part), part.key), row) for row, part in enumerate(self._rows)]

    def find(self) -> Generator[Pair, Differences, list[tuple[int, Differences]]]:
        """Return the place of each matched part of the original, and the differences from its partner."""
        for row, column in enumerate(self._first):
            if column not in self._row_of and (yield from self._fits(row, column)):
                self._column_of[row], self._row_of[column] = column, row
        for row in range(len(self._rows)):
            if row not in self._column_of and not (yield from self._augment(row)):
                # One row stays without a column, so no matching covers the smaller side.
                break
        matched: list[tuple[int, Differences]] = []
        for row, column in self._column_of.items():
            differences = self._edges[row, column]
            assert differences is not None
            matched.append((column if self._is_turned else row, differences))
        return matched

    def _augment(self, start: int) -> Generator[Pair, Differences, bool]:
        """Match one more row, and others with other columns if that helps."""
        came_from: dict[int, int] = {}
        rows = deque((start,))
        while rows:
            row = rows.popleft()
            for column in range(len(self._columns)):
                if column in came_from or not (yield from self._fits(row, column)):
                    continue
                came_from[column] = row
                if column in self._row_of:
                    rows.append(self._row_of[column])
                    continue
                while True:
                    row = came_from[column]
                    previous = self._column_of.get(row)
                    self._column_of[row], self._row_of[column] = column, row
                    if previous is None:
                        return True
                    column = previous
        return False

    def _fits(self, row: int, column: int) -> Generator[Pair, Differences, bool]:
        if (row, column) not in self._edges:
            pair = Pair(self._rows[row], self._columns[column])
            found = yield Pair(pair.update, pair.original) if self._is_turned else pair
            self._edges[row, column] = found if self._report.tolerates(found) else None
        return self._edges[row, column] is not None
