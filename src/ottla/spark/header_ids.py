"""Schema ids in record headers, put in front of keys and values, where decoders expect them. No Spark.

Serializers with ids in headers leave keys and values without framing. The header ``__key_schema_id`` or
``__value_schema_id`` has a one byte and the guid of the schema, or a zero byte and its id; for Protobuf the message
indexes follow. A header counts more than the bytes in front, as with Confluent's deserializers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from ottla.schemas.data.framing import HEADER_BYTES, frame
from ottla.spark.wire_format import Cause, Rejected

_GUID_END: Final = 17

#: returns the id of the schema with a guid; None if the registry has none
FindGuid = Callable[[str], int | None]


def header_name(part: str) -> str:
    """Return the name of the header with the schema id of a key or a value.

    >>> header_name("key")
    '__key_schema_id'
    """
    return f"__{part}_schema_id"


def find_header_ids(headers: pa.Array, part: str) -> pa.Array | None:
    """Return the header with the schema id of each row, the last one if there are several; None if no row has one."""
    is_id = pc.equal(headers.flatten().field("key"), header_name(part))
    if not pc.any(is_id).as_py():
        return None
    ids: list[bytes | None] = [None] * len(headers)
    values = headers.flatten().field("value").filter(is_id).to_pylist()
    for row, value in zip(pc.list_parent_indices(headers).filter(is_id).to_pylist(), values, strict=True):
        ids[row] = value
    return pa.array(ids, pa.binary())


def frame_by_headers(
    values: pa.Array, ids: pa.Array, part: str, find_guid: FindGuid
) -> tuple[pa.Array, dict[int, str]]:
    """Return keys or values with the ids of their headers in front; and by row, why a header names no schema.

    Rows with such a cause are null. Rows without a header stay as they are.
    """
    prefixes: dict[bytes, bytes | str] = {}
    framed: list[bytes | None] = values.to_pylist()
    causes: dict[int, str] = {}
    for row, (value, header) in enumerate(zip(framed, ids.to_pylist(), strict=True)):
        if value is None or header is None:
            continue
        if header not in prefixes:
            prefixes[header] = _prefix(header, part, find_guid)
        prefix = prefixes[header]
        if isinstance(prefix, str):
            framed[row], causes[row] = None, prefix
        else:
            framed[row] = prefix + value
    return pa.array(framed, pa.binary()), causes


def _prefix(header: bytes, part: str, find_guid: FindGuid) -> bytes | str:
    """Return the framing that a header stands for, or the cause of rejection."""
    if header[:1] == b"\0" and len(header) >= HEADER_BYTES:
        return header
    if header[:1] == b"\1" and len(header) >= _GUID_END:
        guid = str(UUID(bytes=header[1:_GUID_END]))
        schema_id = find_guid(guid)
        if schema_id is None:
            return str(Rejected(Cause.UNKNOWN_ID, guid))
        return frame(schema_id, header[_GUID_END:])
    cause = Cause.TRUNCATED if header[:1] in (b"", b"\0", b"\1") else Cause.BAD_MAGIC
    return str(Rejected(cause, f"the header {header_name(part)} has no schema id"))
