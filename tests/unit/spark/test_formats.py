"""Avro without Spark: types, rejects and their causes, Confluent's wire format."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from ottla.schemas.data.framing import encode_indexes
from ottla.spark.avro import AvroDecoder, AvroEncoder
from ottla.spark.wire_format import (
    Cause,
    OneSchema,
    Rejected,
    SchemaRefused,
    SchemasById,
    decode_indexes,
    frame,
    read_schema,
    unframe,
)


def avro_bytes(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return stream.getvalue()


def record(**fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def decode_avro(schema: Any, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    rows, causes = AvroDecoder(OneSchema(json.dumps(schema)), framed=False).decode(pa.array(values, pa.binary()))
    return rows.to_pylist(maps_as_pydicts="strict"), causes


# -- the wire format ------------------------------------------------------------------------------------------------


def test_frame_is_a_zero_and_four_bytes_of_id() -> None:
    assert frame(258, b"xy") == b"\0\0\0\1\2xy"
    assert unframe(b"\0\0\0\1\2xy") == (258, b"xy")


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (b"", "truncated"),
        (b"\0\0\0", "truncated"),
        (b"{}", "bad magic: the first byte is 123, not 0"),
        (b'{"a":1}', "bad magic"),
    ],
)
def test_value_without_a_frame_is_rejected(value: bytes, cause: str) -> None:
    with pytest.raises(Rejected, match=cause):
        unframe(value)


@pytest.mark.parametrize(
    ("indexes", "data"), [((0,), b"\0"), ((1,), b"\2\2"), ((2, 0), b"\4\4\0"), ((64,), b"\2\x80\1")]
)
def test_message_indexes_are_zigzag_numbers_and_the_first_message_is_one_byte(
    indexes: tuple[int, ...], data: bytes
) -> None:
    assert encode_indexes(indexes) == data
    assert decode_indexes(data + b"rest") == (indexes, b"rest")


@pytest.mark.parametrize("data", [b"", b"\4\2", b"\x80"])
def test_message_indexes_that_end_early_are_rejected(data: bytes) -> None:
    with pytest.raises(Rejected, match=Cause.TRUNCATED):
        decode_indexes(data)


def test_schema_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text('"string"')
    (tmp_path / "a.desc").write_bytes(b"\x0a\x00")
    assert read_schema(str(tmp_path / "a.avsc")).latest() == '"string"'
    assert read_schema(str(tmp_path / "a.desc")).latest() == b"\x0a\x00"


def test_rows_have_the_schema_of_the_highest_id_without_a_reader_schema() -> None:
    assert SchemasById({1: "a", 7: "b"}).latest() == "b"
    assert SchemasById({1: "a", 7: "b"}, reader="c").latest() == "c"
    with pytest.raises(SchemaRefused, match="is empty"):
        SchemasById({})


# -- Avro -----------------------------------------------------------------------------------------------------------

_AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)

_EVERYTHING = record(
    flag="boolean",
    small="int",
    big="long",
    f="float",
    d="double",
    s="string",
    b="bytes",
    fixed={"type": "fixed", "name": "F", "size": 2},
    enum={"type": "enum", "name": "E", "symbols": ["A", "B"]},
    maybe=["null", "string"],
    number=["null", "int", "long"],
    items={"type": "array", "items": {"type": "record", "name": "Item", "fields": [{"name": "q", "type": "int"}]}},
    again=["null", "Item"],
    tags={"type": "map", "values": ["null", "long"]},
    day={"type": "int", "logicalType": "date"},
    millis={"type": "long", "logicalType": "timestamp-millis"},
    micros=["null", {"type": "long", "logicalType": "timestamp-micros"}],
    local={"type": "long", "logicalType": "local-timestamp-millis"},
    price={"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
    uid={"type": "string", "logicalType": "uuid"},
    clock={"type": "int", "logicalType": "time-millis"},
    either=["null", "string", "long", "Item"],
)
_ROW = {
    "flag": True,
    "small": 1,
    "big": 1 << 40,
    "f": 0.5,
    "d": 0.25,
    "s": "é",
    "b": b"\xff",
    "fixed": b"ab",
    "enum": "B",
    "maybe": None,
    "number": 5,
    "items": [{"q": 1}, {"q": 2}],
    "again": {"q": 3},
    "tags": {"x": 1, "y": None},
    "day": date(2026, 1, 2),
    "millis": _AT,
    "micros": _AT.replace(microsecond=678901),
    "local": _AT.replace(tzinfo=None),
    "price": Decimal("12.30"),
    "uid": "2b4c1c0e-6f0e-4e52-9d0a-0f3b6b0f5a11",
    "clock": 1000,
}


@pytest.mark.parametrize(
    ("either", "members"),
    [
        (None, None),
        ("text", {"member0": "text", "member1": None, "member2": None}),
        (7, {"member0": None, "member1": 7, "member2": None}),
        ({"q": 9}, {"member0": None, "member1": None, "member2": {"q": 9}}),
    ],
)
def test_every_avro_type_becomes_a_column(either: Any, members: Any) -> None:
    from datetime import time

    value = avro_bytes(_EVERYTHING, {**_ROW, "clock": time(0, 0, 1), "either": either})
    rows, causes = decode_avro(_EVERYTHING, value)
    assert causes == [None] and rows == [{**_ROW, "either": members}]


def test_avro_rejects_say_why_and_the_others_stay() -> None:
    schema = record(id="long", name="string")
    good = avro_bytes(schema, {"id": 1, "name": "abc"})
    rows, causes = decode_avro(schema, good, None, good[:-1], good + b"!", b"\2\6\xff\xff\xff", b"")
    assert rows == [{"id": 1, "name": "abc"}, None, None, None, None, None]
    kinds = [cause and cause.split(":")[0] for cause in causes]
    assert kinds == [None, "null value", "truncated", "type mismatch", "type mismatch", "truncated"]
    assert causes[3] == "type mismatch: 1 bytes are left"


def test_time_that_no_column_holds_is_a_reject() -> None:
    schema = record(at={"type": "long", "logicalType": "timestamp-millis"})
    values = [avro_bytes(record(at="long"), {"at": at}) for at in (0, 1 << 62)]
    rows, causes = decode_avro(schema, *values)
    assert rows[0]["at"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert rows[1] is None and str(causes[1]).startswith(Cause.TYPE_MISMATCH)


def test_framed_avro_is_resolved_from_the_schema_it_was_written_with() -> None:
    first, second = record(id="int"), record(id="long", note=["null", "string"])
    second["fields"][1]["default"] = None
    source = SchemasById({1: json.dumps(first), 2: json.dumps(second)})
    values = [
        frame(1, avro_bytes(first, {"id": 1})),
        frame(2, avro_bytes(second, {"id": 2, "note": "n"})),
        frame(3, b"\2"),
    ]
    rows, causes = AvroDecoder(source, framed=True).decode(pa.array(values))
    assert rows.to_pylist() == [{"id": 1, "note": None}, {"id": 2, "note": "n"}, None]
    assert causes == [None, None, "unknown schema id: 3"]


def test_avro_rows_survive_the_way_there_and_back() -> None:
    schema = json.dumps(record(**{field["name"]: field["type"] for field in _EVERYTHING["fields"][:-1]}))
    decoder = AvroDecoder(OneSchema(schema, any_id=True), framed=True)
    rows = pa.array([_ROW, None], decoder.type)
    values = AvroEncoder(schema, schema_id=9).encode(rows)
    assert values[1].as_py() is None and unframe(values[0].as_py())[0] == 9
    assert decoder.decode(values)[0].equals(rows)


def test_avro_field_that_rows_leave_out_has_its_default() -> None:
    schema = record(id="long", kind="string")
    schema["fields"][1]["default"] = "plain"
    [value] = AvroEncoder(json.dumps(schema), schema_id=None).encode(pa.array([{"id": 1}])).to_pylist()
    assert decode_avro(schema, value)[0] == [{"id": 1, "kind": "plain"}]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "is not JSON"),
        ('{"type": "recrd", "name": "R"}', "cannot be used"),
        (json.dumps(record(next=["null", "R"])), "contains itself"),
    ],
)
def test_avro_schema_that_cannot_be_used_is_refused(schema: str, text: str) -> None:
    with pytest.raises(SchemaRefused, match=text):
        AvroDecoder(OneSchema(schema), framed=False)


def test_row_that_does_not_fit_its_avro_schema_is_refused() -> None:
    with pytest.raises(SchemaRefused, match="does not fit the Avro schema"):
        AvroEncoder(json.dumps(record(id="long")), schema_id=None).encode(pa.array([{"id": None}]))
