"""Reads quarantine tables: Delta tables in the directory `quarantine` of a pipeline's storage.

The queries run in DataFusion, which is part of deltalake, while the pipeline runs or not. An installation without the
extra spark has no deltalake; NoTables then says how to get it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ottla.model import extras
from ottla.model.errors import OttlaError
from ottla.quarantine.rows import QuarantinedRow, row_of

_DIRECTORY: Final = "quarantine"
_TABLES_MAX: Final = 500
#: causes of one table; further ones are not shown
CAUSES_MAX: Final = 200
_ORDER: Final = '"_topic", "_partition", "_offset"'
_COLUMNS: Final = '"_cause", "_topic", "_partition", "_offset", "_timestamp", "key", "value", "headers", "row"'


class NoTables(OttlaError):
    """Quarantine tables cannot be read. The message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The rows of a table that have the same cause."""

    text: str
    count: int
    #: of the newest record
    last_ms: int | None


def find_tables(storages: list[str]) -> dict[str, str]:
    """Return the paths of the quarantine tables in these storages by name; a name that occurs again gets a number."""
    found: dict[str, str] = {}
    for storage in storages:
        folder = Path(storage) / _DIRECTORY
        if "://" in storage or not folder.is_dir():
            continue
        for path in sorted(folder.iterdir())[:_TABLES_MAX]:
            if (path / "_delta_log").is_dir():
                name, number = path.name, 2
                while name in found:
                    name, number = f"{path.name}~{number}", number + 1
                found[name] = str(path)
    return found


def read_causes(path: str) -> list[Cause]:
    """Return the causes in a table, the most frequent first. Raise NoTables."""
    sql = (
        'SELECT "_cause" AS cause, count(*) AS rows, max("_timestamp") AS last FROM quarantined GROUP BY "_cause" '
        f"ORDER BY rows DESC, cause LIMIT {CAUSES_MAX}"
    )
    return [
        Cause(
            text=str(row["cause"] or ""),
            count=int(row["rows"]),
            last_ms=None if row["last"] is None else round(row["last"].timestamp() * 1000),
        )
        for row in _query(path, sql)
    ]


def read_rows(path: str, cause: str, *, newest: bool, count_max: int) -> Iterator[QuarantinedRow]:
    """Yield rows with a cause: the newest ones, or in the order of their topics. Raise NoTables."""
    order = '"_timestamp" DESC' if newest else _ORDER
    sql = f"SELECT {_COLUMNS} FROM quarantined WHERE {_is(cause)} ORDER BY {order} LIMIT {count_max:d}"
    return map(row_of, _query(path, sql))


def read_row(path: str, topic: str, partition: int, offset: int) -> QuarantinedRow | None:
    """Return the row of one record; None if the table has none. Raise NoTables."""
    sql = (
        f'SELECT {_COLUMNS} FROM quarantined WHERE "_topic" = {_text(topic)} AND "_partition" = {partition:d} '
        f'AND "_offset" = {offset:d} LIMIT 1'
    )
    return next(map(row_of, _query(path, sql)), None)


def _is(cause: str) -> str:
    return f'"_cause" = {_text(cause)}' if cause else '("_cause" IS NULL OR "_cause" = \'\')'


def _text(value: str) -> str:
    """Return a literal of SQL. DataFusion has no escape but the doubled quote."""
    doubled = value.replace("'", "''")
    return f"'{doubled}'"


def _query(path: str, sql: str) -> Iterator[Mapping[str, Any]]:
    try:
        import pyarrow as pa
        from deltalake import DeltaTable, QueryBuilder
        from deltalake.exceptions import DeltaError
    except ImportError as error:
        raise NoTables(extras.missing(error.name or "deltalake", extras.SPARK)) from None
    try:
        builder = QueryBuilder()
        builder.register("quarantined", DeltaTable(path))
        for batch in builder.execute(sql):
            yield from pa.record_batch(batch).to_pylist()
    except (DeltaError, ValueError, RuntimeError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].strip(" .")
        raise NoTables(f"{Path(path).name} cannot be read: {reason}") from None
