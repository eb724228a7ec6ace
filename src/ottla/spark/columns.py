"""The columns of a topic, which are those of Spark's Kafka connector, with the types that Spark expects in Arrow.

Not in the decoder or encoder, because processes that plan or commit need no numba, which takes long to load.
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
#: what rows to be written may have, in Spark's words for types; other columns are ignored
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
    """Refuse a schema (Spark's simple names of the types) before anything runs. ``encoded`` columns have any type."""
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
