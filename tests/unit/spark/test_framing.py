"""Confluent's framing with several schema ids: what is resolved, what is rejected, what is refused before a value."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
import fastavro.utils
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.avro import AvroDecoder, AvroEncoder
from ottla.spark.avro_resolution import why_unresolvable
from ottla.spark.protobuf import ProtobufDecoder, ProtobufEncoder
from ottla.spark.wire_format import OneSchema, Rejected, SchemaRefused, SchemasById, decode_indexes, frame, unframe

pytest.importorskip("grpc_tools", reason="grpcio-tools is missing: pip install '.[protobuf]'")


def record(*fields: dict[str, Any], name: str = "Order", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def column(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def avro_bytes(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(json.dumps(schema))), row)
    return stream.getvalue()


def decode_avro(reader: Any, writers: dict[int, Any], *values: bytes) -> tuple[list[Any], list[str | None]]:
    source = SchemasById({number: json.dumps(one) for number, one in writers.items()}, reader=json.dumps(reader))
    rows, causes = AvroDecoder(source, framed=True).decode(pa.array(values, pa.binary()))
    return rows.to_pylist(), causes


# -- bytes of another implementation --------------------------------------------------------------------------------
# Written by the serializers of confluent-kafka 2.16.1 with its mock registry, which gave the ids 1 to 6.

_V1 = record(column("id", "int"), column("amount", "int"), namespace="shop")
_V2 = record(
    column("id", "long"), column("total", "double"), column("note", ["null", "string"], default=None), namespace="shop"
)
_READER = record(
    column("id", "long"),
    column("total", "double", aliases=["amount"]),
    column("note", ["null", "string"], default=None),
    namespace="shop",
)
_AVRO_1 = b"\x00\x00\x00\x00\x01\x0e\x06"
_AVRO_2 = b"\x00\x00\x00\x00\x02\x10\x00\x00\x00\x00\x00\x00\x04@\x02\x02x"
_PROTO = """
syntax = "proto3";
package shop;
message Customer { string name = 1; }
message Order { int64 id = 1; message Line { string sku = 1; } }
"""
_MESSAGES = [
    ("shop.Customer", 3, {"name": "Ann"}, b"\x00\x00\x00\x00\x03\x00\n\x03Ann"),
    ("shop.Order", 4, {"id": 300}, b"\x00\x00\x00\x00\x04\x02\x02\x08\xac\x02"),
    ("shop.Order.Line", 5, {"sku": "s"}, b"\x00\x00\x00\x00\x05\x04\x02\x00\n\x01s"),
]
_JSON_6 = b'\x00\x00\x00\x00\x06{"id":1}'


def test_avro_values_of_two_schema_ids_become_rows_of_one_schema() -> None:
    rows, causes = decode_avro(_READER, {1: _V1, 2: _V2}, _AVRO_1, _AVRO_2)
    assert causes == [None, None]
    assert rows == [{"id": 7, "total": 3.0, "note": None}, {"id": 8, "total": 2.5, "note": "x"}]


def test_avro_values_are_written_as_confluents_serializer_writes_them() -> None:
    [first] = AvroEncoder(json.dumps(_V1), schema_id=1).encode(pa.array([{"id": 7, "amount": 3}])).to_pylist()
    row = {"id": 8, "total": 2.5, "note": "x"}
    [second] = AvroEncoder(json.dumps(_V2), schema_id=2).encode(pa.array([row])).to_pylist()
    assert (first, second) == (_AVRO_1, _AVRO_2)


@pytest.mark.parametrize(("name", "schema_id", "row", "value"), _MESSAGES)
def test_protobuf_values_are_read_and_written_as_confluents_serializer_writes_them(
    name: str, schema_id: int, row: dict[str, Any], value: bytes
) -> None:
    encoder = ProtobufEncoder(_PROTO, name, schema_id=schema_id)
    assert encoder.encode(pa.array([row], encoder.type)).to_pylist() == [value]
    decoded, causes = ProtobufDecoder(SchemasById({schema_id: _PROTO}), name, framed=True).decode(pa.array([value]))
    assert (decoded.to_pylist(), causes) == ([row], [None])


def test_json_values_are_framed_as_confluents_serializer_frames_them() -> None:
    assert frame(6, b'{"id":1}') == _JSON_6


# -- rejected values ------------------------------------------------------------------------------------------------


def test_unknown_schema_id_is_rejected_and_not_decoded_with_another_schema() -> None:
    rows, causes = decode_avro(_READER, {1: _V1, 2: _V2}, _AVRO_1, frame(3, _AVRO_1[5:]))
    assert rows[1] is None
    assert causes == [None, "unknown schema id: 3"]


def test_one_schema_accepts_framed_values_only_if_any_id_is_asked_for() -> None:
    schema = json.dumps(_V1)
    with pytest.raises(SchemaRefused, match="no schema id is known"):
        AvroDecoder(OneSchema(schema), framed=True)
    with pytest.raises(SchemaRefused, match="no schema id is known"):
        ProtobufDecoder(OneSchema(_PROTO), "shop.Order", framed=True)
    rows, _ = AvroDecoder(OneSchema(schema, any_id=True), framed=True).decode(pa.array([frame(99, _AVRO_1[5:])]))
    assert rows.to_pylist() == [{"id": 7, "amount": 3}]


def test_causes_name_the_schema_id() -> None:
    values = (_AVRO_1[:-1], _AVRO_1 + b"!", b"\0\0\0", b"\1\0\0\0\1\x0e")
    assert decode_avro(_READER, {1: _V1}, *values)[1] == [
        "truncated: schema id 1",
        "type mismatch: schema id 1: 1 bytes are left",
        "truncated: 3 bytes are too few for a schema id",
        "bad magic: the first byte is 1, not 0",
    ]


@pytest.mark.parametrize(
    ("written", "read", "good", "bad", "cause"),
    [
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "A",
            "B",
            "B not found",
        ),
        (["null", "int"], "int", 5, None, "not found in int"),
        (["string", "int"], ["null", "int"], 5, "x", "not found in"),
    ],
    ids=["enum", "null", "union"],
)
def test_value_that_the_reader_schema_cannot_hold_is_rejected_and_the_query_goes_on(
    written: Any, read: Any, good: Any, bad: Any, cause: str
) -> None:
    writer, reader = record(column("x", written)), record(column("x", read))
    values = [frame(1, avro_bytes(writer, {"x": value})) for value in (good, bad)]
    rows, causes = decode_avro(reader, {1: writer}, *values)
    assert rows == [{"x": good}, None]
    assert causes[0] is None and str(causes[1]).startswith("type mismatch: schema id 1: ") and cause in str(causes[1])


# -- schemas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "read", "cause"),
    [
        ("int", "long", None),
        ("long", "double", None),
        ("string", "bytes", None),
        ("long", "int", "the field x is written as long and read as int"),
        ("string", "int", "the field x is written as string and read as int"),
        ("int", ["null", "long"], None),
        (["null", "int"], ["null", "string"], "written as int and read as string"),
        (["null", "int", "string"], ["null", "string"], None),
        ("null", ["null", "int"], None),
        ("null", "int", "written as null and read as int"),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, None),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, "an item of the field x"),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, "a value of the field x"),
        ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "written as map and read as array"),
        (record(name="A"), record(name="B"), "is a A and the reader's type is B"),
        (record(name="A"), record(name="B", aliases=["A"]), None),
        (record(name="A", namespace="n"), record(name="A"), None),
        (record(name="A"), record(column("y", "int"), name="A"), "has no field y, and the reader has no default"),
        (record(name="A"), record(column("y", "int", default=1), name="A"), None),
        (record(column("z", "int"), name="A"), record(column("y", "long", aliases=["z"]), name="A"), None),
        ({"type": "fixed", "name": "F", "size": 2}, {"type": "fixed", "name": "F", "size": 3}, "has 2 bytes"),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["B"]},
            "no symbol that the reader knows",
        ),
        (
            {"type": "int", "logicalType": "time-millis"},
            {"type": "long", "logicalType": "time-micros"},
            "written as time-millis and read as time-micros",
        ),
    ],
)
def test_writer_schema_that_cannot_be_resolved_is_refused_before_a_value_is_read(
    written: Any, read: Any, cause: str | None
) -> None:
    writer, reader = record(column("x", written)), record(column("x", read))
    found = why_unresolvable(writer, reader)
    assert (found is None) == (cause is None) and str(cause or "") in str(found or "")
    if cause is None:
        # fastavro resolves what is accepted, and so the check is not too lax.
        random.seed(7)
        values = [avro_bytes(writer, row) for row in fastavro.utils.generate_many(writer, 5)]
        rejected = [why for why in decode_avro(reader, {1: writer}, *(frame(1, one) for one in values))[1] if why]
        assert all("not found in" in why for why in rejected) and (isinstance(written, list) or not rejected)
    else:
        with pytest.raises(SchemaRefused, match="schema id 1: its values cannot be resolved"):
            decode_avro(reader, {1: writer})


def test_timestamps_of_the_writer_are_converted_to_the_unit_of_the_reader() -> None:
    def at(unit: str) -> dict[str, Any]:
        return record(column("at", {"type": "long", "logicalType": f"timestamp-{unit}"}))

    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    values = [frame(1, avro_bytes(at("millis"), {"at": moment})), frame(2, avro_bytes(at("micros"), {"at": moment}))]
    in_millis = moment - timedelta(microseconds=901)
    writers = {1: at("millis"), 2: at("micros")}
    assert decode_avro(at("micros"), writers, *values) == ([{"at": in_millis}, {"at": moment}], [None, None])
    assert decode_avro(at("millis"), writers, *values) == ([{"at": in_millis}, {"at": in_millis}], [None, None])


def test_schema_that_cannot_be_parsed_is_refused_with_its_id() -> None:
    with pytest.raises(SchemaRefused, match="schema id 2: the Avro schema is not JSON"):
        AvroDecoder(SchemasById({1: json.dumps(_V1), 2: "{"}, reader=json.dumps(_V1)), framed=True)


def test_promoted_number_finds_its_member_of_a_union() -> None:
    writer, reader = record(column("x", "int")), record(column("x", ["null", "string", "double"]))
    rows, causes = decode_avro(reader, {1: writer}, frame(1, avro_bytes(writer, {"x": 5})))
    assert causes == [None] and rows == [{"x": {"member0": None, "member1": 5.0}}]


def proto(fields: str) -> str:
    return f'syntax = "proto3"; message Other {{ int32 a = 1; }} message Order {{ {fields} }}'


def test_protobuf_values_of_two_schema_ids_are_read_by_field_number() -> None:
    old = 'syntax = "proto3"; message Order { int32 id = 1; string gone = 2; }'
    new = proto("int64 order_id = 1; double total = 3;")
    source = SchemasById({1: old, 2: new}, reader=new)
    values = [frame(1, b"\x08\x07\x12\x01x", (0,)), frame(2, b"\x08\x08", (1,)), frame(1, b"\x08\x07", (1,))]
    rows, causes = ProtobufDecoder(source, "Order", framed=True).decode(pa.array(values))
    assert rows.to_pylist() == [{"order_id": 7, "total": 0.0}, {"order_id": 8, "total": 0.0}, None]
    assert causes == [None, None, "type mismatch: schema id 1: message indexes [1] are not those of Order"]


@pytest.mark.parametrize(
    ("written", "cause"),
    [
        ("string id = 1;", "the field 1 of Order is written as string and read as int64"),
        ("sint64 id = 1;", "written as sint64 and read as int64"),
        ("bool id = 1;", None),
        ("Line line = 2; message Line { fixed32 n = 1; }", "the field 1 of Order.Line is written as fixed32"),
        ("Line line = 2; message Line { uint32 n = 1; Line inner = 2; }", None),
        ("float other = 9;", None),
    ],
)
def test_protobuf_field_with_another_encoding_is_refused(written: str, cause: str | None) -> None:
    reader = proto("int64 id = 1; Line line = 2; message Line { int32 n = 1; }")
    source = SchemasById({7: proto(written)}, reader=reader)
    if cause is None:
        assert ProtobufDecoder(source, "Order", framed=True).type is not None
        return
    with pytest.raises(SchemaRefused, match=f"schema id 7: .*{cause}"):
        ProtobufDecoder(source, "Order", framed=True)


def test_schema_of_an_id_without_the_message_is_refused() -> None:
    source = SchemasById({1: proto(""), 2: 'syntax = "proto3"; message Other { int32 x = 1; }'}, reader=proto(""))
    with pytest.raises(SchemaRefused, match="schema id 2: the schema has no message Order: it has Other"):
        ProtobufDecoder(source, "Order", framed=True)


# -- properties -----------------------------------------------------------------------------------------------------

_IDS = st.integers(0, 2**31 - 1)


@given(_IDS, st.binary(max_size=20), st.lists(st.integers(0, 300), min_size=1, max_size=5))
def test_framing_survives_a_round_trip(schema_id: int, payload: bytes, indexes: Sequence[int]) -> None:
    assert unframe(frame(schema_id, payload)) == (schema_id, payload)
    found, rest = unframe(frame(schema_id, payload, indexes))
    assert found == schema_id and decode_indexes(rest) == (tuple(indexes), payload)


@given(st.binary(max_size=12))
def test_any_bytes_are_decoded_or_rejected(value: bytes) -> None:
    rows, causes = decode_avro(_READER, {1: _V1, 2: _V2}, value, b"\0\0\0\0\2" + value)
    assert [row is None for row in rows] == [cause is not None for cause in causes]
    decoder = ProtobufDecoder(SchemasById({1: _PROTO}), "shop.Order", framed=True)
    messages, why = decoder.decode(pa.array([value, b"\0\0\0\0\1" + value], pa.binary()))
    assert [row is None for row in messages.to_pylist()] == [cause is not None for cause in why]
    try:
        schema_id, rest = unframe(value)
    except Rejected:
        return
    assert frame(schema_id, rest) == value


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(-(2**31), 2**31 - 1)), max_size=8))
def test_rows_of_several_ids_survive_a_round_trip(written: list[tuple[int, int]]) -> None:
    first, second = AvroEncoder(json.dumps(_V1), schema_id=1), AvroEncoder(json.dumps(_V2), schema_id=2)
    values = [
        first.encode(pa.array([{"id": number, "amount": number}], first.type))[0].as_py()
        if schema_id == 1
        else second.encode(pa.array([{"id": number, "total": number, "note": "n"}], second.type))[0].as_py()
        for schema_id, number in written
    ]
    rows, causes = decode_avro(_READER, {1: _V1, 2: _V2}, *values)
    assert causes == [None] * len(written)
    expected = [{"id": number, "total": float(number), "note": None if one == 1 else "n"} for one, number in written]
    assert rows == expected
