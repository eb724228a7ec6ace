"""Which rows a keyed table has after a batch, decided for each key alone. Pure: Arrow tables in, Arrow tables out.

The input has all events of a key next to each other, in the order of their sequence. `__origin` says where an event
comes from:

    TOMBSTONE  an earlier delete of the key, whose sequence the table remembers
    TABLE      a row that the table has
    ROW        a row of the batch
    DELETE     a row of the batch that deletes the key

The event with the largest sequence decides, whichever batch it arrived in. Among events of equal sequence the later
batch decides: the input has them in the order of the list above, and of several rows of one batch the one that is
greater as text is the last. A rule without sequence columns orders all events like that, so that the batch decides.

With history, every row event is a version of the key: it is valid from its sequence until that of the next event,
which is a row or a delete. A version that arrives late shortens the version before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.spark.table_schema import IS_CURRENT, VALID_FROM, VALID_TO

ORIGIN: Final = "__origin"
TOMBSTONE, TABLE, ROW, DELETE = range(4)

_Indices = npt.NDArray[np.int64]
_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRule:
    """How rows of one key replace each other. Spark pickles it for the tasks."""

    keys: tuple[str, ...]
    #: compared in this order; empty: the later batch decides
    sequence: tuple[str, ...]
    history: bool = False

    def __post_init__(self) -> None:
        assert self.keys, "a table without keys is appended to"
        assert self.sequence or not self.history, "a version is valid from its sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The rows of some keys after a batch, by what happened to them."""

    #: as the table has them
    kept: pa.Table
    inserted: pa.Table
    updated: pa.Table
    #: rows that the table had and has no longer
    deleted: pa.Table
    #: deletes of the batch, for the table to remember
    tombstones: pa.Table
    #: how many rows of the batch were looked at
    events: int


def decide_stream(batches: Iterable[pa.RecordBatch], rule: MergeRule) -> Iterator[Decision]:
    """Yield decisions about all keys of sorted batches. The events of a key may be spread over several batches."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows = pa.Table.from_batches(waiting)
        start = int(np.flatnonzero(_starts(rows, rule.keys))[-1])
        # The next batch may have more events of the last key.
        if start:
            yield decide(rows.slice(0, start), rule)
            waiting = rows.slice(start).combine_chunks().to_batches()
    if waiting:
        yield decide(pa.Table.from_batches(waiting), rule)


def decide(rows: pa.Table, rule: MergeRule) -> Decision:
    """Return what becomes of all keys of ``rows``, which are sorted by key, sequence and origin."""
    rows = rows.combine_chunks()
    new_key = _starts(rows, rule.keys)
    new_sequence = new_key | _starts(rows, rule.sequence)
    rows = _order_ties(rows, new_sequence)
    origin = rows[ORIGIN].to_numpy()
    group = np.cumsum(new_key) - 1
    touched = np.zeros(group[-1] + 1, np.bool_)
    touched[group[origin >= ROW]] = True
    if rule.history:
        kept, inserted, updated, deleted = _versions(rows, rule, touched[group], new_key, new_sequence)
    else:
        kept, inserted, updated, deleted = _newest(rows, touched, group)
    untouched = rows.take(np.flatnonzero(~touched[group] & (origin == TABLE)))
    return Decision(
        kept=pa.concat_tables([untouched, kept]),
        inserted=inserted,
        updated=updated,
        deleted=deleted,
        tombstones=rows.take(np.flatnonzero(origin == DELETE)),
        events=int(np.count_nonzero(origin >= ROW)),
    )


def _newest(rows: pa.Table, touched: _Mask, group: _Indices) -> tuple[pa.Table, ...]:
    """Return kept, inserted, updated and deleted rows: the newest event of a key is its row, or the key has none."""
    origin = rows[ORIGIN].to_numpy()
    # Of several assignments to one element the last one stays.
    newest, old = np.empty(len(touched), np.int64), np.full(len(touched), -1, np.int64)
    newest[group] = np.arange(len(group))
    in_table = np.flatnonzero(origin == TABLE)
    old[group[in_table]] = in_table
    newest, old = newest[touched], old[touched]
    wins, there = origin[newest], old >= 0
    same = np.zeros(len(newest), np.bool_)
    compared = (wins == ROW) & there
    same[compared] = _same(rows, newest[compared], old[compared])
    return (
        rows.take(old[(wins == TABLE) | same]),
        rows.take(newest[(wins == ROW) & ~there]),
        rows.take(newest[compared & ~same]),
        rows.take(old[((wins == DELETE) | (wins == TOMBSTONE)) & there]),
    )


def _versions(
    rows: pa.Table, rule: MergeRule, touched: _Mask, new_key: _Mask, new_sequence: _Mask
) -> tuple[pa.Table, ...]:
    """Return kept, inserted, updated and deleted versions: a version ends where the next event of its key begins."""
    origin = rows[ORIGIN].to_numpy()
    begins = np.flatnonzero(new_sequence)
    # Of events with equal sequence the last one stays; the table's row among them is what it replaces.
    event = np.append(begins[1:], len(origin)) - 1
    old = np.full(len(event), -1, np.int64)
    in_table = np.flatnonzero(origin == TABLE)
    old[(np.cumsum(new_sequence) - 1)[in_table]] = in_table
    following = np.where(np.append(new_key[begins[1:]], True), -1, np.append(event[1:], -1))
    is_version = (origin[event] == TABLE) | (origin[event] == ROW)
    replaced = old[touched[event] & ~is_version & (old >= 0)]
    chosen = touched[event] & is_version
    event, old, following = event[chosen], old[chosen], following[chosen]
    sequence = rows[rule.sequence[0]].combine_chunks()
    validity = {
        VALID_FROM: sequence.take(event),
        VALID_TO: sequence.take(pa.array(following, mask=following < 0)),
        IS_CURRENT: pa.array(following < 0),
    }
    versions = rows.take(event)
    for name, values in validity.items():
        index = versions.column_names.index(name)
        versions = versions.set_column(index, name, values.cast(versions.schema.field(index).type))
    there = old >= 0
    same = np.zeros(len(event), np.bool_)
    before, after = rows.take(old[there]), versions.filter(pa.array(there))
    same[there] = _equal_rows(before, after)
    return (
        versions.filter(pa.array(same)),
        versions.filter(pa.array(~there)),
        versions.filter(pa.array(there & ~same)),
        rows.take(replaced),
    )


# -- comparisons ------------------------------------------------------------------------------------------------------


def _starts(rows: pa.Table, columns: Iterable[str]) -> _Mask:
    """Return where a row differs from the row before it in one of these columns; true for the first row."""
    differs = np.zeros(rows.num_rows, np.bool_)
    differs[0] = True
    for name in columns:
        column = rows[name].combine_chunks()
        differs[1:] |= ~_equal(column.slice(0, len(column) - 1), column.slice(1))
    return differs


def _order_ties(rows: pa.Table, new_sequence: _Mask) -> pa.Table:
    """Order rows of the batch that have equal sequences by their text. Others have an order by their origin."""
    origin = rows[ORIGIN].to_numpy()
    tied = np.zeros(rows.num_rows, np.bool_)
    tied[1:] = ~new_sequence[1:] & (origin[1:] == origin[:-1]) & (origin[1:] >= ROW)
    if not tied.any():
        return rows
    order = np.arange(rows.num_rows)
    edges = np.diff(np.concatenate([[False], tied, [False]]).astype(np.int8))
    for begin, end in zip(np.flatnonzero(edges == 1) - 1, np.flatnonzero(edges == -1), strict=True):
        texts = [repr(row) for row in rows.slice(begin, end - begin).to_pylist()]
        order[begin:end] = [begin + at for at in sorted(range(end - begin), key=texts.__getitem__)]
    return rows.take(order)


def _same(rows: pa.Table, ones: _Indices, others: _Indices) -> _Mask:
    return _equal_rows(rows.take(ones), rows.take(others))


def _equal_rows(ones: pa.Table, others: pa.Table) -> _Mask:
    """Return which rows have equal values in all columns but their origin."""
    equal = np.ones(ones.num_rows, np.bool_)
    for name in ones.column_names:
        if name != ORIGIN and equal.any():
            equal &= _equal(ones[name].combine_chunks(), others[name].combine_chunks())
    return equal


def _equal(ones: pa.Array, others: pa.Array) -> _Mask:
    """Return which values are equal. Null equals null."""
    if pa.types.is_nested(ones.type):
        pairs = zip(ones.to_pylist(), others.to_pylist(), strict=True)
        return np.fromiter((one == other for one, other in pairs), np.bool_, len(ones))
    both_null = pc.and_(pc.is_null(ones), pc.is_null(others))
    equal = pc.fill_null(pc.equal(ones, others), both_null)
    found: _Mask = equal.to_numpy(zero_copy_only=False)
    return found
