"""Schema ids in record headers: which header counts, and what becomes of keys and values."""

from __future__ import annotations

from uuid import UUID

import pyarrow as pa
import pytest

from ottla.schemas.data.framing import frame
from ottla.spark.columns import HEADERS_TYPE
from ottla.spark.header_ids import find_header_ids, frame_by_headers

GUID = UUID("0f5e0c1a-0000-4000-8000-000000000001")
BY_GUID = b"\1" + GUID.bytes


def headers_of(*rows: list[tuple[str, bytes | None]] | None) -> pa.Array:
    return pa.array([None if row is None else [{"key": key, "value": value} for key, value in row] for row in rows],
                    HEADERS_TYPE)  # fmt: skip


def test_last_header_of_a_record_counts() -> None:
    headers = headers_of(
        None,
        [("a", b"x")],
        [("__value_schema_id", b"1"), ("a", None), ("__value_schema_id", b"2")],
        [],
        [("__key_schema_id", b"3")],
    )
    found = find_header_ids(headers, "value")
    assert found is not None and found.to_pylist() == [None, None, b"2", None, None]
    found = find_header_ids(headers.slice(3), "key")
    assert found is not None and found.to_pylist() == [None, b"3"]
    assert find_header_ids(headers.slice(0, 2), "value") is None
    assert find_header_ids(headers_of(), "value") is None


def test_ids_of_headers_are_put_in_front() -> None:
    asked: list[str] = []

    def find(guid: str) -> int | None:
        asked.append(guid)
        return 7

    values = pa.array([b"a", b"b", b"c", None, b"\0\0\0\0\3d"])
    # After the guid come the indexes of a Protobuf message; an id may be in a header, too.
    ids = pa.array([BY_GUID, BY_GUID + b"\2\0", b"\0\0\0\0\x09", BY_GUID, None])
    framed, causes = frame_by_headers(values, ids, "value", find)
    assert framed.to_pylist() == [
        frame(7, b"a"), frame(7, b"\2\0b"), frame(9, b"c"), None, frame(3, b"d"),
    ]  # fmt: skip
    assert causes == {} and asked == [str(GUID)] * 2


@pytest.mark.parametrize(
    ("header", "cause"),
    [
        (BY_GUID, f"unknown schema id: {GUID}"),
        (BY_GUID[:-1], "truncated: the header __key_schema_id has no schema id"),
        (b"\0\0\0", "truncated: the header __key_schema_id has no schema id"),
        (b"", "truncated: the header __key_schema_id has no schema id"),
        (b"\2" + GUID.bytes, "bad magic: the header __key_schema_id has no schema id"),
    ],
)
def test_header_without_a_schema_is_a_cause(header: bytes, cause: str) -> None:
    framed, causes = frame_by_headers(pa.array([b"a", b"b"]), pa.array([header, None]), "key", lambda _: None)
    assert framed.to_pylist() == [None, b"b"] and causes == {0: cause}
