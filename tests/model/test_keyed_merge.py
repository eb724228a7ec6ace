"""The merge of keyed tables against a replay of all events in sequence order."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.keyed_merge import (
    DELETE,
    ORIGIN,
    ROW,
    TABLE,
    TOMBSTONE,
    Decision,
    MergeRule,
    decide,
    decide_stream,
)
from ottla.spark.table_schema import HISTORY_COLUMNS

_COLUMNS = [("k", pa.string()), ("s", pa.int64()), ("o", pa.int64()), ("v", pa.int64())]
_SCHEMA = pa.schema([*_COLUMNS, (ORIGIN, pa.int32())])
_HISTORY_SCHEMA = pa.schema(
    [*_COLUMNS, ("valid_from", pa.int64()), ("valid_to", pa.int64()), ("is_current", pa.bool_()), (ORIGIN, pa.int32())]
)
Row = dict[str, Any]


@dataclass
class Model:
    """A keyed table in memory: what a merge reads and writes, without files."""

    rule: MergeRule
    #: so many rows are handed over at a time
    piece: int = 1
    rows: list[Row] = field(default_factory=list)
    tombstones: list[Row] = field(default_factory=list)

    def merge(self, batch: list[Row]) -> list[Decision]:
        """Merge rows; those with `delete` set are deletes."""
        events = [{**row, ORIGIN: TABLE} for row in self.rows]
        events += [{**row, ORIGIN: TOMBSTONE} for row in self.tombstones]
        events += [{**row, ORIGIN: DELETE if row.get("delete") else ROW} for row in batch]
        order = (*self.rule.keys, *self.rule.sequence, ORIGIN)
        events.sort(key=lambda row: [(row[name] is not None, row[name]) for name in order])
        arrow = pa.Table.from_pylist(events, _HISTORY_SCHEMA if self.rule.history else _SCHEMA)
        decisions = list(decide_stream(arrow.to_batches(self.piece), self.rule))
        self.rows = [row for one in decisions for part in (one.kept, one.inserted, one.updated) for row in plain(part)]
        if self.rule.sequence:
            self.tombstones += [row for one in decisions for row in plain(one.tombstones)]
        return decisions

    def found(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: (row["k"] is not None, row["k"], row["s"], row["o"]))


def plain(rows: pa.Table) -> list[Row]:
    return list(rows.drop_columns([ORIGIN]).to_pylist())


def changes(decisions: list[Decision]) -> dict[str, list[tuple[Any, ...]]]:
    """Key and value of all rows that changed, by the kind of change."""
    kinds = ("inserted", "updated", "deleted")
    found = {kind: [(row["k"], row["v"]) for one in decisions for row in plain(getattr(one, kind))] for kind in kinds}
    return {kind: sorted(rows) for kind, rows in found.items() if rows}


def row(key: str | None, sequence: int, value: int = 0, *, offset: int = 0, delete: bool = False) -> Row:
    return {"k": key, "s": sequence, "o": offset, "v": value, **({"delete": True} if delete else {})}


NEWEST = MergeRule(keys=("k",), sequence=("s", "o"))
ARRIVAL = MergeRule(keys=("k",), sequence=())
HISTORY = MergeRule(keys=("k",), sequence=("s", "o"), history=True)


@st.composite
def events(draw: st.DrawFn) -> list[Row]:
    """Rows and deletes with distinct sequences (s, o), in any order."""
    keys, at = st.sampled_from(["a", "b", "c", None]), st.integers(0, 5)
    places = draw(st.lists(st.tuples(at, st.integers(0, 4)), unique=True, max_size=14))
    return [
        row(draw(keys), sequence, draw(st.integers(0, 2)), offset=offset, delete=draw(st.integers(0, 3)) == 0)
        for sequence, offset in places
    ]


def replay(found: list[Row], *, history: bool) -> list[Row]:
    """The table after all events in the order of their sequence."""
    versions: dict[str | None, list[Row]] = {}
    for event in sorted(found, key=lambda one: (one["s"], one["o"])):
        mine = versions.setdefault(event["k"], [])
        if mine and mine[-1]["is_current"]:
            mine[-1] |= {"valid_to": event["s"], "is_current": False}
        if not event.get("delete"):
            mine.append({**event, "valid_from": event["s"], "valid_to": None, "is_current": True})
    rows = [one for mine in versions.values() for one in mine if history or one["is_current"]]
    rows = [{name: value for name, value in one.items() if history or name not in HISTORY_COLUMNS} for one in rows]
    return sorted(rows, key=lambda one: (one["k"] is not None, one["k"], one["s"], one["o"]))


@pytest.mark.parametrize("rule", [NEWEST, HISTORY], ids=["newest", "history"])
@given(found=events(), cuts=st.lists(st.integers(0, 14), max_size=4), piece=st.integers(1, 5))
def test_any_order_and_split_into_batches_gives_the_table_of_a_replay_in_sequence_order(
    rule: MergeRule, found: list[Row], cuts: list[int], piece: int
) -> None:
    table = Model(rule, piece=piece)
    bounds = [0, *sorted(min(cut, len(found)) for cut in cuts), len(found)]
    for start, end in itertools.pairwise(bounds):
        table.merge(found[start:end])
    assert table.found() == replay(found, history=rule.history)


@pytest.mark.parametrize("rule", [NEWEST, HISTORY], ids=["newest", "history"])
@given(found=events(), cuts=st.lists(st.integers(0, 14), max_size=4))
def test_changes_of_each_batch_lead_from_the_table_before_to_the_table_after(
    rule: MergeRule, found: list[Row], cuts: list[int]
) -> None:
    table, followed = Model(rule), dict[tuple[Any, ...], Row]()
    place = ("k", "s", "o") if rule.history else ("k",)
    bounds = [0, *sorted(min(cut, len(found)) for cut in cuts), len(found)]
    for start, end in itertools.pairwise(bounds):
        before = dict(followed)
        for one in table.merge(found[start:end]):
            for kind in ("inserted", "updated", "deleted"):
                for each in plain(getattr(one, kind)):
                    at = tuple(each[name] for name in place)
                    assert (at in before) == (kind != "inserted")
                    assert kind == "inserted" or (before[at] == each) == (kind == "deleted"), "only real changes"
                    followed.pop(at, None) if kind == "deleted" else followed.update({at: each})
    assert sorted(map(repr, followed.values())) == sorted(map(repr, table.rows))


@given(found=events())
def test_batch_that_is_merged_twice_changes_nothing_the_second_time(found: list[Row]) -> None:
    for rule in (NEWEST, HISTORY):
        table = Model(rule)
        table.merge(found)
        assert changes(table.merge(found)) == {}


def test_older_record_in_a_later_batch_changes_nothing() -> None:
    table = Model(NEWEST)
    assert changes(table.merge([row("a", 5, 1), row("b", 5, 1)])) == {"inserted": [("a", 1), ("b", 1)]}
    assert changes(table.merge([row("a", 4, 2), row("b", 6, 2)])) == {"updated": [("b", 2)]}
    assert [(one["k"], one["v"]) for one in table.found()] == [("a", 1), ("b", 2)]


def test_deleted_key_returns_with_a_newer_record_only() -> None:
    table = Model(NEWEST)
    table.merge([row("a", 1, 1)])
    assert changes(table.merge([row("a", 3, delete=True)])) == {"deleted": [("a", 1)]}
    assert changes(table.merge([row("a", 2, 2)])) == {}
    assert changes(table.merge([row("a", 4, 4)])) == {"inserted": [("a", 4)]}


def test_delete_that_is_older_than_the_row_changes_nothing() -> None:
    table = Model(NEWEST)
    table.merge([row("a", 3, 1)])
    assert changes(table.merge([row("a", 2, delete=True)])) == {}


def test_row_of_equal_sequence_is_decided_by_the_later_batch_then_by_its_text() -> None:
    table = Model(NEWEST)
    table.merge([row("a", 1, 5), row("a", 1, 9), row("a", 1, 7)])
    assert [one["v"] for one in table.found()] == [9]
    assert changes(table.merge([row("a", 1, 3)])) == {"updated": [("a", 3)]}
    assert changes(table.merge([row("a", 1, 8), row("a", 1, delete=True)])) == {"deleted": [("a", 3)]}
    assert changes(table.merge([row("a", 1, 4)])) == {"inserted": [("a", 4)]}


def test_without_a_sequence_the_later_batch_decides() -> None:
    table = Model(ARRIVAL)
    table.merge([row("a", 5, 1), row("b", 5, 1)])
    assert changes(table.merge([row("a", 4, 2), row("b", 5, 1)])) == {"updated": [("a", 2)]}
    assert changes(table.merge([row("a", 1, delete=True)])) == {"deleted": [("a", 2)]}
    assert changes(table.merge([row("a", 0, 3)])) == {"inserted": [("a", 3)]}


def test_late_version_is_placed_between_its_neighbours() -> None:
    table = Model(HISTORY)
    table.merge([row("a", 1, 1), row("a", 9, 9)])
    assert changes(table.merge([row("a", 4, 4)])) == {"inserted": [("a", 4)], "updated": [("a", 1)]}
    table.merge([row("a", 6, delete=True)])
    assert [[one[name] for name in ("v", *HISTORY_COLUMNS)] for one in table.found()] == [
        [1, 1, 4, False], [4, 4, 6, False], [9, 9, None, True],
    ]  # fmt: skip


def test_values_of_nested_columns_are_compared() -> None:
    schema = pa.schema([("k", pa.int64()), ("tags", pa.list_(pa.string())), (ORIGIN, pa.int32())])
    rows = [
        {"k": 1, "tags": ["x"], ORIGIN: TABLE}, {"k": 1, "tags": ["x"], ORIGIN: ROW},
        {"k": 2, "tags": None, ORIGIN: TABLE}, {"k": 2, "tags": ["y"], ORIGIN: ROW},
    ]  # fmt: skip
    one = decide(pa.Table.from_pylist(rows, schema), MergeRule(keys=("k",), sequence=()))
    assert (one.kept["k"].to_pylist(), one.updated["k"].to_pylist()) == ([1], [2])
