"""Which files of a table can have rows with given keys, by the statistics in Delta's log. Without Spark.

A file is left out only if it cannot have such a row: no given value of one key column is within its bounds.
Bounds in the log may be wider than the values, never narrower, except for two cases that are widened here. Delta
writers cut times to milliseconds, the upper bound too. Long texts are cut, and an upper bound that may have been cut
is not used.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from ottla.spark.table_log import AddedFile, snapshot_files

#: writers cut texts to 32 or 64 bytes
_CUT_BYTES: Final = 32
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The bounds of one column in one file."""

    #: None: all values are null
    low: Any
    #: None: no upper bound is known
    high: Any
    nulls: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedFile:
    file: AddedFile
    #: of each key column; None where nothing is known
    bounds: tuple[Bounds | None, ...]


def keyed_files(table: DeltaTable, keys: Sequence[str]) -> list[KeyedFile]:
    """Return the files of a version with the bounds of their keys."""
    actions = pa.table(table.get_add_actions(flatten=True))
    paths = [unquote(path) for path in actions["path"].to_pylist()]
    columns = [_bounds_of(actions, key) for key in keys]
    bounds = {path: tuple(column[index] for column in columns) for index, path in enumerate(paths)}
    return [KeyedFile(file=file, bounds=bounds[file.path]) for file in snapshot_files(table)]


def find_touched(files: Sequence[KeyedFile], keys: pa.RecordBatch, found: set[int]) -> None:
    """Add to ``found`` the index of each file that can have a row with one of these keys."""
    columns = [_Values(keys.column(index)) for index in range(keys.num_columns)]
    for index, file in enumerate(files):
        if index not in found and all(
            column.may_be_in(bounds) for column, bounds in zip(columns, file.bounds, strict=True)
        ):
            found.add(index)


class _Values:
    """The distinct values of a column, in order."""

    def __init__(self, column: pa.Array) -> None:
        self._nulls = column.null_count > 0
        self._sorted: list[Any] | None = None
        if _has_usable_bounds(column.type):
            self._sorted = sorted(pc.unique(column.drop_null()).to_pylist())

    def may_be_in(self, bounds: Bounds | None) -> bool:
        if bounds is None or self._sorted is None or (self._nulls and bounds.nulls):
            return True
        if bounds.low is None:
            return False
        at = bisect_left(self._sorted, bounds.low)
        return at < len(self._sorted) and (bounds.high is None or bool(self._sorted[at] <= bounds.high))


def _bounds_of(actions: pa.Table, column: str) -> list[Bounds | None]:
    if f"partition.{column}" in actions.column_names:
        values = actions[f"partition.{column}"]
        if not _has_usable_bounds(values.type):
            return [None] * len(actions)
        return [Bounds(low=value, high=value, nulls=value is None) for value in values.to_pylist()]
    names = (f"min.{column}", f"max.{column}", f"null_count.{column}")
    if any(name not in actions.column_names for name in names) or not _has_usable_bounds(actions[names[0]].type):
        return [None] * len(actions)
    lows, highs, nulls = (actions[name].to_pylist() for name in names)
    return [_bounds(*one) for one in zip(lows, highs, nulls, actions["num_records"].to_pylist(), strict=True)]


def _bounds(low: Any, high: Any, nulls: int | None, rows: int | None) -> Bounds | None:
    if nulls is None or rows is None:
        return None
    if nulls == rows:
        return Bounds(low=None, high=None, nulls=True)
    if low is None:
        return None
    if isinstance(high, datetime):
        high += _MILLISECOND
    if isinstance(high, str) and len(high.encode()) >= _CUT_BYTES:
        high = None
    return Bounds(low=low, high=high, nulls=nulls > 0)


def _has_usable_bounds(kind: pa.DataType) -> bool:
    """Return whether the log has exact bounds: those of fractions and bytes may have lost digits."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )
