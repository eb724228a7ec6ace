"""Protobuf without Spark: types, schemas in texts and files, rejects and their causes."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory

from ottla.spark import protobuf
from ottla.spark.proto_compiler import compile_proto
from ottla.spark.protobuf import ProtobufDecoder, ProtobufEncoder, find_message, message_indexes
from ottla.spark.wire_format import OneSchema, SchemaRefused, SchemasById, frame, read_schema

pytest.importorskip("grpc_tools", reason="grpcio-tools is missing: pip install '.[protobuf]'")

_AT = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
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
    decoder = ProtobufDecoder(OneSchema(_PROTO, any_id=framed), "shop.v1.Order", framed=framed)
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
    assert causes[1] == "type mismatch: schema id 3: message indexes [0] are not those of shop.v1.Order"
    assert causes[3] == "truncated: schema id 3: the message indexes are not complete"


def test_protobuf_value_with_an_unknown_schema_id_is_rejected() -> None:
    decoder = ProtobufDecoder(SchemasById({1: _PROTO}), "shop.v1.Order", framed=True)
    _, causes = decoder.decode(pa.array([frame(1, b"", (1,)), frame(9, b"", (0,))]))
    assert causes == [None, "unknown schema id: 9"]


def test_descriptor_set_is_a_schema_too() -> None:
    by_bytes = ProtobufDecoder(OneSchema(compile_proto(_PROTO)), "shop.v1.Order", framed=False)
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


def test_groups_editions_and_extensions_are_read() -> None:
    text = """
    edition = "2023";
    import "google/protobuf/descriptor.proto";
    extend google.protobuf.FieldOptions { string unit = 50000; }
    message M {
      extensions 100 to max;
      string name = 1 [(unit) = "}; ]"];
      Inner inner = 2 [features.message_encoding = DELIMITED];
      repeated Inner more = 3 [features.message_encoding = DELIMITED];
      message Inner { int32 x = 1; int32 y = 010; }
    }
    """
    row = {"name": "a", "inner": {"x": 1, "y": None}, "more": [{"x": 2, "y": 3}, {"x": None, "y": None}]}
    encoder = ProtobufEncoder(text, "M", schema_id=None)
    values = encoder.encode(pa.array([row], encoder.type))
    decoded, causes = ProtobufDecoder(OneSchema(text), "M", framed=False).decode(values)
    assert (decoded.to_pylist(), causes) == ([row], [None])


def test_enum_of_an_imported_file_is_a_name() -> None:
    text = """
    syntax = "proto3";
    import "google/protobuf/struct.proto";
    message M { google.protobuf.NullValue nothing = 1; }
    """
    assert ProtobufDecoder(OneSchema(text), None, framed=False).type == pa.struct([("nothing", pa.string())])


def test_proto_file_imports_files_beside_it(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "price.proto").write_text('syntax = "proto3"; message Price { int64 cents = 1; }')
    main = 'syntax = "proto3"; import "parts/price.proto"; message M { Price price = 1; }'
    (tmp_path / "main.proto").write_text(main)
    schema = read_schema(str(tmp_path / "main.proto"))
    assert ProtobufDecoder(schema, None, framed=False).type == pa.struct(
        [("price", pa.struct([("cents", pa.int64())]))]
    )
    with pytest.raises(SchemaRefused, match=r'line 1: Import "parts/price\.proto" was not found'):
        find_message(main, None)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('syntax = "proto3";\n\nmessage M { Missing a = 1; }', 'line 3: "Missing" is not defined'),
        ('syntax = "proto3";\nmessage M { reserved 1; int32 a = 1;', "line 2: Reached end of input"),
        ('syntax = "proto3"; message M { M next = 1; }', "contains itself"),
    ],
)
def test_proto_text_that_cannot_be_used_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(SchemaRefused, match=complaint):
        ProtobufDecoder(OneSchema(text), None, framed=False)


def test_schema_travels_to_tasks_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from ottla.spark.formats import Protobuf

    format = Protobuf(SchemasById({1: _PROTO, 4: _PROTO}, reader=_PROTO), "shop.v1.Order")
    monkeypatch.setattr(protobuf, "compile_proto", lambda text: pytest.fail("a task has no compiler"))
    assert ProtobufDecoder(format.schemas, format.message, framed=True).type.num_fields == 17


def test_text_without_the_compiler_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SchemaRefused, match=r"pip install -e '\.\[spark,protobuf\]'"):
        compile_proto('syntax = "proto3"; message NeverCompiled {}')


def test_row_that_does_not_fit_its_message_is_refused() -> None:
    with pytest.raises(SchemaRefused, match=r"does not fit shop\.v1\.Order"):
        ProtobufEncoder(_PROTO, "shop.v1.Order", schema_id=None).encode(pa.array([{"state": "LOST"}]))
