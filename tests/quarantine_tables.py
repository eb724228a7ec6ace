"""Writes quarantine tables as pipelines do, without Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
_SCHEMA = pa.schema(
    [
        ("_cause", pa.string()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")), ("key", pa.binary()), ("value", pa.binary()),
        ("headers", pa.list_(_HEADER)), ("row", pa.string()),
    ]
)  # fmt: skip


def rejected(offset: int, cause: str = "bad date", **more: Any) -> dict[str, Any]:
    """Return a row of a record that could not be decoded."""
    return {
        "_cause": cause, "_topic": "orders", "_partition": 0, "_offset": offset,
        "_timestamp": datetime.fromtimestamp(1_700_000_000 + offset, UTC), "key": b"k%d" % offset,
        "value": b'{"id": %d}' % offset, "headers": [], "row": None, **more,
    }  # fmt: skip


def replays(count: object) -> list[dict[str, Any]]:
    return [{"key": "ottla.replay.count", "value": str(count).encode()}]


def write_quarantine(storage: Path, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Append rows to a quarantine table and return its path."""
    path = storage / "quarantine" / name
    path.mkdir(parents=True, exist_ok=True)
    write_deltalake(str(path), pa.Table.from_pylist(list(rows), schema=_SCHEMA), mode="append")
    return str(path)
