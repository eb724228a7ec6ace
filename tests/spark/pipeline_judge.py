"""Compare the outputs of the campaign's pipeline with its input; read by librdkafka (read_committed) and deltalake."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from deltalake import DeltaTable
from kill_judge import values_of_topic
from pipeline_file import (
    ACCEPTED_TIERS,
    LATE,
    LATEST,
    REJECTED,
    RESULT,
    SCORED,
    STAGED,
    UNDECODABLE,
    Row,
    is_undecodable,
    row_of,
)

_ID = re.compile(rb'"id": (\d+)')
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """Everything that the pipeline has written."""

    #: ids of the staged events, and of the records that could not be decoded
    staged: Sequence[int]
    undecodable: Sequence[int]
    #: the outputs of the flow ``scored``
    result: Sequence[Row]
    topic: Sequence[Row]
    rejected: Sequence[Row]
    late: Sequence[Row]
    #: the table with one row per account
    latest: Sequence[Row]

    @classmethod
    def read(cls, storage: Path, bootstrap: str) -> Outputs:
        staged = _columns(storage / STAGED, "id")
        return cls(
            staged=[number for (number,) in staged],
            undecodable=[_id_of(value) for (value,) in _columns(storage / UNDECODABLE, "value")],
            result=list(_rows(storage / RESULT)),
            topic=[_row_of_json(value) for value in values_of_topic(bootstrap, SCORED)],
            rejected=[_row_of_json(value) for (value,) in _columns(storage / REJECTED, "row")],
            late=list(_rows(storage / LATE)),
            latest=list(_rows(storage / LATEST)),
        )

    def problems(self, events: int) -> list[str]:
        """Return a line for each kind of difference from what the events ``0`` to ``events - 1`` must give."""
        numbers = range(events)
        undecodable = [number for number in numbers if is_undecodable(number)]
        decoded = [number for number in numbers if not is_undecodable(number)]
        rows = chain(self.result, self.rejected, self.late)
        return [
            *_differences("undecodable records", self.undecodable, undecodable),
            *_differences("staged events", self.staged, decoded),
            *_differences("events in result, quarantine and late rows", [row.id for row in rows], decoded),
            *_differences("rows of the topic, compared with the table", self.topic, self.result),
            *_differences("rows per account, compared with a replay", self.latest, replay(self.result)),
            *_listed("rows with changed values", self._changed()),
            *_listed("rows with the tier of another output", self._misplaced()),
        ]

    def _changed(self) -> list[Row]:
        rows = chain(self.result, self.rejected, self.late)
        return [row for row in rows if row != row_of(row.id, row.tier)]

    def _misplaced(self) -> list[Row]:
        accepted = [row for row in self.rejected if row.tier in ACCEPTED_TIERS]
        return accepted + [row for row in chain(self.result, self.late) if row.tier not in ACCEPTED_TIERS]


def replay(rows: Iterable[Row]) -> Collection[Row]:
    """Return the row of each account with the largest id, which is the sequence."""
    latest: dict[str, Row] = {}
    for row in rows:
        known = latest.get(row.account)
        if known is None or row.id > known.id:
            latest[row.account] = row
    return latest.values()


def _differences(what: str, found: Iterable[object], expected: Iterable[object]) -> Iterator[str]:
    found_counts, expected_counts = Counter(found), Counter(expected)
    yield from _listed(f"{what}: missing", (expected_counts - found_counts).elements())
    yield from _listed(f"{what}: unexpected or repeated", (found_counts - expected_counts).elements())


def _listed(what: str, examples: Iterable[object]) -> Iterator[str]:
    every = list(examples)
    if every:
        yield f"{what}: {len(every)}, such as {', '.join(map(str, every[:_SHOWN]))}"


def _columns(table: Path, *names: str) -> Iterator[tuple[object, ...]]:
    """Yield the rows of a table; none if the pipeline has not created it."""
    if not table.exists():
        return
    columns = DeltaTable(str(table)).to_pyarrow_table(columns=list(names))
    yield from zip(*(columns[name].to_pylist() for name in names), strict=True)


def _rows(table: Path) -> Iterator[Row]:
    return (Row(*values) for values in _columns(table, *Row._fields))


def _row_of_json(value: str | bytes) -> Row:
    fields = json.loads(value)
    return Row(fields["id"], fields["account"], fields["amount"], fields.get("tier"))


def _id_of(value: bytes) -> int:
    found = _ID.search(value)
    assert found is not None, f"a record that was not produced: {value!r}"
    return int(found[1])
