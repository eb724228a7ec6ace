"""Avro and Protobuf without Spark: types, rejects and their causes, Confluent's wire format."""

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
from google.protobuf import descriptor_pb2, message_factory

from ottla.spark.avro import AvroDecoder, AvroEncoder
from ottla.spark.proto_text import compile_proto
from ottla.spark.protobuf import ProtobufDecoder, ProtobufEncoder, find_message, message_indexes
from ottla.spark.wire_format import (
    Cause,
    OneSchema,
    Rejected,
    SchemaRefused,
    SchemasById,
    decode_indexes,
    encode_indexes,
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


def test_rows_get_the_schema_of_the_highest_id_unless_told_otherwise() -> None:
    assert SchemasById({1: "a", 7: "b"}).latest() == "b"
    assert SchemasById({1: "a", 7: "b"}, rows=1).latest() == "a"
    with pytest.raises(SchemaRefused, match="no schema for id 3"):
        SchemasById({1: "a"}, rows=3)


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
    decoder = AvroDecoder(OneSchema(schema), framed=True)
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


# -- Protobuf -------------------------------------------------------------------------------------------------------

_PROTO = """
syntax = "proto3";
package shop.v1;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";

option java_package = "com.example"; // passed over

message Customer { string name = 1; }

/* An order of the shop. */
message Order {
  enum State { UNKNOWN = 0; PAID = 1 [deprecated = true]; reserved 5; }
  message Line { string sku = 1; uint32 quantity = 2 [json_name = "qty"]; }
  reserved 50 to 60, 70;
  int64 id = 1;
  State state = 2;
  repeated Line lines = 3;
  map<string, Line> by_sku = 4;
  google.protobuf.Timestamp at = 5;
  oneof payment { string card = 6; Customer invoice = 7; }
  optional int32 discount = 8;
  repeated int32 codes = 9 [packed = true];
  uint64 hash = 10;
  bytes raw = 11;
  double total = 12;
  google.protobuf.Duration took = 13;
  google.protobuf.StringValue note = 14;
  google.protobuf.Struct extra = 15;
  map<int32, string> names = 16;
  bool done = 17;
}
service Orders { rpc Get (Order) returns (Order) { option idempotency_level = IDEMPOTENT; } }
"""
_ORDER = {
    "id": 7,
    "state": "PAID",
    "lines": [{"sku": "a", "quantity": 2}, {"sku": "b", "quantity": 4_000_000_000}],
    "by_sku": {"a": {"sku": "a", "quantity": 1}},
    "at": _AT,
    "card": None,
    "invoice": {"name": "Ann"},
    "discount": 0,
    "codes": [1, -1],
    "hash": Decimal((1 << 64) - 1),
    "raw": b"\xff",
    "total": 1.5,
    "took": -1_500_000,
    "note": "",
    "extra": '{"a": 1.0}',
    "names": {1: "one"},
    "done": True,
}
_EMPTY_ORDER = {
    **dict.fromkeys(_ORDER),
    "id": 0,
    "state": "UNKNOWN",
    "lines": [],
    "by_sku": {},
    "codes": [],
    "hash": Decimal(0),
    "raw": b"",
    "total": 0.0,
    "names": {},
    "done": False,
}


def decode_proto(*values: bytes | None, framed: bool = False) -> tuple[list[Any], list[str | None]]:
    decoder = ProtobufDecoder(OneSchema(_PROTO), "shop.v1.Order", framed=framed)
    rows, causes = decoder.decode(pa.array(values, pa.binary()))
    return rows.to_pylist(maps_as_pydicts="strict"), causes


def encode_proto(*rows: Any, schema_id: int | None = None) -> list[Any]:
    encoder = ProtobufEncoder(_PROTO, "shop.v1.Order", schema_id=schema_id)
    return list(encoder.encode(pa.array(rows, encoder.type)).to_pylist())


def test_every_protobuf_type_becomes_a_column_and_bytes_again() -> None:
    values = encode_proto(_ORDER, None)
    assert values[1] is None
    assert decode_proto(values[0], b"") == ([_ORDER, _EMPTY_ORDER], [None, None])


def test_protobuf_rejects_say_why_and_the_others_stay() -> None:
    [good] = encode_proto(_ORDER)
    rows, causes = decode_proto(good, None, good[:-1], b"\x0f", b"\x0a\x7f")
    assert rows[0] == _ORDER and rows[1:] == [None] * 4
    kinds = [cause and cause.split(":")[0] for cause in causes]
    assert kinds == [None, "null value", "truncated", "type mismatch", "truncated"]


def test_enum_number_without_a_name_is_kept_as_digits() -> None:
    assert decode_proto(b"\x10\x09")[0][0]["state"] == "9"


def test_framed_protobuf_names_its_message_by_indexes() -> None:
    [value] = encode_proto(_ORDER, schema_id=3)
    assert value[:7] == b"\0\0\0\0\3\2\2"
    rows, causes = decode_proto(value, frame(3, b"", (0,)), frame(3, b"", (1,)), b"\0\0\0\0\3", framed=True)
    assert rows == [_ORDER, None, _EMPTY_ORDER, None]
    assert causes[1] == "type mismatch: message indexes [0] are not those of shop.v1.Order"
    assert str(causes[3]).startswith(Cause.TRUNCATED)


def test_unknown_id_and_schema_without_the_message_are_rejects() -> None:
    other = 'syntax = "proto3"; message Other { int32 x = 1; }'
    decoder = ProtobufDecoder(SchemasById({1: _PROTO, 2: other}, rows=1), "shop.v1.Order", framed=True)
    _, causes = decoder.decode(pa.array([frame(1, b"", (1,)), frame(2, b"", (0,)), frame(9, b"", (0,))]))
    assert causes[0] is None and causes[2] == "unknown schema id: 9"
    assert causes[1] == "type mismatch: the schema has no message shop.v1.Order: it has Other"


def test_descriptor_set_is_a_schema_too() -> None:
    files = descriptor_pb2.FileDescriptorSet(file=[compile_proto(_PROTO)])
    by_bytes = ProtobufDecoder(OneSchema(files.SerializeToString()), "shop.v1.Order", framed=False)
    assert by_bytes.type == ProtobufDecoder(OneSchema(_PROTO), "shop.v1.Order", framed=False).type


def test_first_message_is_taken_when_none_is_named() -> None:
    assert find_message(_PROTO, None).full_name == "shop.v1.Customer"


def test_indexes_lead_to_nested_messages() -> None:
    assert message_indexes(find_message(_PROTO, "shop.v1.Order.Line")) == (1, 0)


def test_proto2_has_labels_and_defaults() -> None:
    text = """
    message M {
      required int32 a = 1;
      optional string b = 2 [default = "x"];
      repeated sint64 c = 0x3;
      enum E { option allow_alias = true; P = -1; Q = 1; R = 1; }
      optional E e = 4;
    }
    """
    message = message_factory.GetMessageClass(find_message(text, "M"))(a=1, c=[-5], e=-1)
    decoder = ProtobufDecoder(OneSchema(text), "M", framed=False)
    rows, _ = decoder.decode(pa.array([message.SerializeToString()]))
    assert rows.to_pylist() == [{"a": 1, "b": None, "c": [-5], "e": "P"}]
    assert message.b == "x"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('syntax = "proto3"; message M { int32 a = x; }', "x is not a number"),
        ('syntax = "proto3";\n\nmessage M { Missing a = 1; }', "type Missing is not in"),
        ('syntax = "proto3"; import "other.proto";', "import of other.proto cannot be followed"),
        ("message M { int32 a = 1; }", "proto2 needs optional"),
        ('syntax = "proto3";\nmessage M {', "line 2 .* ends too early"),
        ('syntax = "proto3"; message M { M next = 1; }', "contains itself"),
        ('syntax = "proto3"; message M { int32 a = 1; int32 a = 2; }', "cannot be used"),
        ("edition = '2023';", "edition is not known"),
    ],
)
def test_proto_text_that_cannot_be_read_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SchemaRefused, match=complaint):
        ProtobufDecoder(OneSchema(text), None, framed=False)


def test_row_that_does_not_fit_its_message_is_refused() -> None:
    with pytest.raises(SchemaRefused, match=r"does not fit shop\.v1\.Order"):
        ProtobufEncoder(_PROTO, "shop.v1.Order", schema_id=None).encode(pa.array([{"state": "LOST"}]))
