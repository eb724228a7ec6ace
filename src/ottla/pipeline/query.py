"""SQL over the tables of a pipeline, without Spark: DataFusion, which is part of the package deltalake.

A query sees the tables as they are when it starts, also while the pipeline runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError

from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import LATE, QUARANTINE, Declaration
from ottla.pipeline.layout import Layout
from ottla.spark.table_location import TableLocation


class QueryFailed(OttlaError):
    """A query cannot be executed. The text names the tables that exist."""


class Result(NamedTuple):
    """The first rows of a result, and whether there are more."""

    columns: list[str]
    rows: list[dict[str, Any]]
    has_more: bool


def run_query(declaration: Declaration, sql: str, rows_max: int) -> Result:
    """Return at most `rows_max` rows of a query over the tables of a pipeline. Raise QueryFailed."""
    tables = {name: location for name, location in tables_of(declaration) if location.exists()}
    builder = QueryBuilder()
    for name, location in tables.items():
        builder.register(name, location.table())
    try:
        reader = builder.execute(sql)
        rows: list[dict[str, Any]] = []
        columns = [str(name) for name in reader.schema.names]
        for batch in reader:
            rows += pa.record_batch(batch).to_pylist()
            if len(rows) > rows_max:
                break
    except (DeltaError, ValueError, RuntimeError, OSError) as error:
        names = ", ".join(sorted(tables)) or "none yet: run the pipeline first"
        reason = str(error).strip().splitlines()[0].strip(" .")
        raise QueryFailed(f"the query failed: {reason}; tables: {names}") from None
    return Result(columns, rows[:rows_max], len(rows) > rows_max)


def tables_of(declaration: Declaration) -> Iterator[tuple[str, TableLocation]]:
    """Yield the Delta tables of a pipeline with their names in queries, whether they exist or not.

    A table that has the name of a table of an earlier zone is called ZONE_TABLE.
    """
    layout = Layout.of(declaration)
    seen: set[str] = set()
    places = [
        (flow.zone, flow.table.name)
        for flow in declaration.flows.values()
        if flow.table is not None and flow.table.format == "delta" and flow.append_to is None and flow.kind != "view"
    ]
    for directory in (QUARANTINE, LATE):
        path = Path(layout.storage) / directory
        if "://" not in layout.storage and path.is_dir():
            places += [(directory, each.name) for each in sorted(path.iterdir())]
    for directory, table in places:
        name = f"{directory}_{table}" if table in seen else table
        seen.add(name)
        yield name, TableLocation.at(layout.table(directory, table))
