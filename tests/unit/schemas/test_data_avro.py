"""Avro data: the same bytes and the same JSON as fastavro, clear errors, and limits for hostile bytes."""

from __future__ import annotations

import io
import json
import math
import random
from typing import Any

import fastavro
import fastavro.utils
import pytest

from ottla.schemas.data.codec import Codec, codec_for
from ottla.schemas.data.misfit import DATA_DEPTH_MAX, DataMisfit
from ottla.schemas.schema import InvalidSchema

ORDER: dict[str, Any] = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}, "default": "NEW"},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line",
            "fields": [{"name": "sku", "type": "string"}, {"name": "price", "type": "float", "default": 0.5}],
        }}, "default": []},
        {"name": "tags", "type": {"type": "map", "values": ["int", "shop.State"]}, "default": {"n": 1}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}, "default": "\u00ff\u0000"},
        {"name": "raw", "type": "bytes", "default": ""},
        {"name": "parent", "type": ["null", "Order"], "default": None},
    ],
}  # fmt: skip


def avro(schema: Any, references: dict[str, str] | None = None) -> Codec:
    return codec_for("AVRO", json.dumps(schema), references or {})


def zigzag(number: int) -> bytes:
    return avro("long").encode(number)


def random_type(source: random.Random, depth: int, names: list[str]) -> Any:
    """Return a random Avro type without logical types."""
    primitives = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
    kind = source.choice(primitives * 2 + (["record", "enum", "fixed", "array", "map", "union"] if depth else []))
    if kind in ("record", "enum", "fixed"):
        names.append(f"n.T{len(names)}")
        named = {"type": kind, "name": names[-1]}
        if kind == "enum":
            return {**named, "symbols": ["A", "B", "C"]}
        if kind == "fixed":
            return {**named, "size": source.randrange(4)}
        count = source.randrange(1, 4)  # fastavro does not print an empty record
        return {
            **named,
            "fields": [{"name": f"f{each}", "type": random_type(source, depth - 1, names)} for each in range(count)],
        }
    if kind == "array":
        return {"type": "array", "items": random_type(source, depth - 1, names)}
    if kind == "map":
        return {"type": "map", "values": random_type(source, depth - 1, names)}
    if kind == "union":
        # The types that fastavro can tell apart by their Python values.
        return source.sample(["null", "boolean", "long", "double", "bytes", "string"], source.randrange(1, 5))
    return kind


def test_bytes_and_json_are_those_of_fastavro() -> None:
    """Random schemas: fastavro writes the bytes and prints the JSON, and both directions must agree."""
    checked = 0
    for seed in range(150):
        source = random.Random(seed)
        random.seed(seed)  # fastavro's generator uses the module's state
        schema = random_type(source, 3, [])
        parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
        codec = avro(schema)
        for value in fastavro.utils.generate_many(parsed, 3):
            data, text = io.BytesIO(), io.StringIO()
            fastavro.schemaless_writer(data, parsed, value)
            read = fastavro.schemaless_reader(io.BytesIO(data.getvalue()), parsed, None)
            fastavro.json_writer(text, parsed, [read])
            found = codec.decode(data.getvalue())
            # A float is printed with its shortest digits here, and with those of a double by fastavro.
            assert codec.encode(found) == data.getvalue(), (seed, schema)
            assert codec.encode(json.loads(text.getvalue())) == data.getvalue(), (seed, schema)
            checked += 1
    assert checked == 450


def test_missing_fields_get_their_defaults() -> None:
    codec = avro(ORDER)
    found = codec.decode(codec.encode({"id": 1, "lines": [{"sku": "a"}]}))
    assert found == {
        "id": 1, "note": None, "state": "NEW", "lines": [{"sku": "a", "price": 0.5}], "tags": {"n": {"int": 1}},
        "hash": "\u00ff\u0000", "raw": "", "parent": None,
    }  # fmt: skip
    nested = {
        "id": 2,
        "parent": {"shop.Order": {"id": 3, "note": {"string": "x"}}},
        "tags": {"s": {"shop.State": "PAID"}},
    }
    found = codec.decode(codec.encode(nested))
    assert found["parent"]["shop.Order"]["note"] == {"string": "x"}
    assert found["tags"] == {"s": {"shop.State": "PAID"}}


@pytest.mark.parametrize("number", [0.1, 1.0, -3.5, 1e-40, 3.4028234663852886e38, 16777216.0, 0.30000001192092896])
def test_float_is_printed_with_its_shortest_digits(number: float) -> None:
    codec = avro("float")
    data = codec.encode(number)
    assert codec.encode(codec.decode(data)) == data
    assert len(repr(codec.decode(data))) <= len(repr(number))


def test_numbers_that_json_does_not_have_are_strings() -> None:
    for kind in ("float", "double"):
        codec = avro(kind)
        for text in ("NaN", "Infinity", "-Infinity"):
            assert codec.decode(codec.encode(text)) == text
    assert avro("double").encode("Infinity") == avro("double").encode(math.inf)


def test_types_of_references_are_known() -> None:
    item = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
    cart = {
        "type": "record",
        "name": "Cart",
        "fields": [{"name": "items", "type": {"type": "array", "items": "shop.Item"}}],
    }
    codec = avro(cart, {"shop.Item": json.dumps(item)})
    value = {"items": [{"sku": "a"}]}
    assert codec.decode(codec.encode(value)) == value
    with pytest.raises(InvalidSchema, match=r"shop\.Item"):
        avro(cart)


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        ([], "", "must be an object"),
        ({}, "", "'id' of shop.Order is missing"),
        ({"id": "1"}, "/id", "integer of 64 bits"),
        ({"id": 1 << 63}, "/id", "integer of 64 bits"),
        ({"id": True}, "/id", "not true"),
        ({"id": 1.0}, "/id", "not the number 1.0"),
        ({"id": 1, "note": "x"}, "/note", 'null or {"string": …}'),
        ({"id": 1, "note": {"int": 1}}, "/note", "not as an object"),
        ({"id": 1, "note": {"string": 1}}, "/note/string", "a string is expected"),
        ({"id": 1, "note": {"string": "\ud800"}}, "/note/string", "surrogate"),
        ({"id": 1, "state": "OLD"}, "/state", "not a symbol"),
        ({"id": 1, "lines": [{"sku": "a"}, {"sku": 2}]}, "/lines/1/sku", "a string is expected"),
        ({"id": 1, "lines": [{"sku": "a", "price": 1e39}]}, "/lines/0/price", "too large for a float"),
        ({"id": 1, "lines": {}}, "/lines", "an array is expected"),
        ({"id": 1, "tags": {"a/b": None}}, "/tags/a~1b", "a union is written as"),
        ({"id": 1, "hash": "abc"}, "/hash", "has 2 bytes"),
        ({"id": 1, "raw": "\u0100"}, "/raw", "up to"),
        ({"id": 1, "other": 1}, "", "has no field 'other'"),
    ],
)
def test_error_names_the_place_and_the_reason(value: Any, place: str, reason: str) -> None:
    with pytest.raises(DataMisfit) as error:
        avro(ORDER).encode(value)
    assert error.value.place == place
    assert reason in str(error.value)


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("string", b"\x08ab", "the bytes end at 3"),
        ("string", b"\x01", "the bytes end"),
        ("string", b"\x02\xff", "not UTF-8"),
        ("string", b"\x02ab", "1 bytes follow"),
        ("long", b"", "middle of a number"),
        ("long", b"\xff" * 20, "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        ("int", zigzag(1 << 31), "more than 32 bits"),
        ("boolean", b"\x02", "0 or 1"),
        (["null", "int"], b"\x04", "no branch 2"),
        (["null", "int"], b"\x01", "no branch -1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no symbol 1"),
        ({"type": "array", "items": "int"}, b"\x02", "middle of a number"),
        ({"type": "map", "values": "string"}, b"\x02\x02a\x09", "the bytes end"),
    ],
)
def test_bytes_that_do_not_fit_are_an_error(schema: Any, data: bytes, reason: str) -> None:
    with pytest.raises(DataMisfit, match=reason):
        avro(schema).decode(data)


def test_blocks_with_a_size_are_read() -> None:
    """An array may be written in blocks, and a block with a negative count names its size in bytes."""
    codec = avro({"type": "array", "items": "int"})
    assert codec.decode(b"\x03\x04\x02\x04\x02\x06\x00") == [1, 2, 3]


def test_items_that_take_no_bytes_are_limited() -> None:
    for items in ("null", {"type": "record", "name": "E", "fields": []}, {"type": "fixed", "name": "F", "size": 0}):
        codec = avro({"type": "array", "items": items})
        assert len(codec.decode(zigzag(1000) + b"\0")) == 1000
        with pytest.raises(DataMisfit, match="take no bytes"):
            codec.decode(zigzag(1 << 60) + b"\0")


def test_records_that_multiply_are_limited() -> None:
    """Each record has two of the next one: 2**40 values in no bytes, and as many bytes of defaults."""
    inner: Any = "null"
    for level in range(40):
        name = f"R{level}"
        inner = {
            "type": "record", "name": name,
            "fields": [{"name": "a", "type": inner, "default": {} if level else None},
                       {"name": "b", "type": f"R{level - 1}" if level else "null", "default": {} if level else None}],
        }  # fmt: skip
    codec = avro(inner)
    with pytest.raises(DataMisfit, match="take no bytes"):
        codec.decode(b"")
    with pytest.raises(DataMisfit, match="is missing"):
        codec.encode({})


def test_defaults_of_many_records_are_limited() -> None:
    wide = {"type": "array", "items": {
        "type": "record", "name": "W", "fields": [{"name": "text", "type": "string", "default": "x" * 100_000}],
    }}  # fmt: skip
    codec = avro(wide)
    assert len(codec.encode([{}] * 10)) > 1_000_000
    with pytest.raises(DataMisfit, match="exceed"):
        codec.encode([{}] * 1000)


def test_depth_is_limited_in_both_directions() -> None:
    codec = avro(ORDER)
    value: Any = {"id": 0}
    for number in range(DATA_DEPTH_MAX - 1):
        value = {"id": number, "parent": {"shop.Order": value}}
    assert codec.decode(codec.encode(value))["id"] == DATA_DEPTH_MAX - 2
    for number in range(10):
        value = {"id": number, "parent": {"shop.Order": value}}
    with pytest.raises(DataMisfit, match="inside of each other"):
        codec.encode(value)
    chain = avro({"type": "record", "name": "L", "fields": [{"name": "n", "type": ["null", "L"]}]})
    assert chain.decode(b"\x02" * 5 + b"\x00") is not None
    with pytest.raises(DataMisfit, match="inside of each other"):
        chain.decode(b"\x02" * 1_000_000)


def test_long_chain_of_records_is_encoded() -> None:
    names = [
        {"type": "record", "name": f"C{each}", "fields": [{"name": "n", "type": ["null", f"C{each + 1}"]}]}
        for each in range(60)
    ]
    codec = avro([*names, {"type": "record", "name": "C60", "fields": []}])
    value = {"C0": {"n": {"C1": {"n": None}}}}
    assert codec.decode(codec.encode(value)) == value
