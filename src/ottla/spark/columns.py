"""The columns of a topic, which are those of Spark's Kafka connector, with the types that Spark expects in Arrow.

A module of its own, because processes that plan or commit need neither the decoder nor the encoder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa

HEADERS_TYPE: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}

_TEXT = ("string", "binary")
_HEADERS = "array<struct<key:string,value:binary>>"
#: columns that are written, with the names of Spark's types that they may have; other columns are ignored
WRITTEN_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (_HEADERS,),
}


class RowsRefused(ValueError):
    """A DataFrame that cannot be written; the text names the column, and what it should be."""


def check_written_columns(types: Mapping[str, str], topic: str | None, *, encoded: Collection[str] = ()) -> None:
    """Raise RowsRefused if rows with these columns and types cannot be written. ``encoded`` columns have any type."""
    if "value" not in types:
        raise RowsRefused(
            f"Required attribute 'value' not found among {', '.join(types) or 'no columns'}: name a column value, of "
            "type string or binary"
        )
    if topic is None and "topic" not in types:
        raise RowsRefused(
            "topic option required when no 'topic' attribute is present. Set the option topic, or name a column so"
        )
    for name, allowed in WRITTEN_TYPES.items():
        if name in types and types[name] not in allowed and name not in encoded:
            raise RowsRefused(f"column {name} must be {' or '.join(allowed)}, it is {types[name]}: cast it")
