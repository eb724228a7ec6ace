"""Protobuf data: canonical JSON, message indexes, imports, and limits for hostile bytes."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.schemas.data.codec import Codec, codec_for
from ottla.schemas.data.framing import encode_indexes
from ottla.schemas.data.misfit import DataMisfit
from ottla.schemas.schema import InvalidSchema

SHOP = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/any.proto";
import "money.proto";
message Order {
  int64 order_id = 1;
  money.Amount total = 2;
  repeated string tags = 3;
  map<string, int32> counts = 4;
  State state = 5;
  optional bool gift = 6;
  bytes hash = 7;
  google.protobuf.Timestamp at = 8;
  google.protobuf.Any extra = 9;
  double rate = 10;
  message Line { string sku = 1; }
}
message Customer { string name = 1; message Address { message Street { string name = 1; } Street street = 1; } }
enum State { NEW = 0; PAID = 1; }
"""
MONEY = """
syntax = "proto3"; package money; import "currency.proto"; message Amount { int32 units = 1; Currency currency = 2; }
"""
CURRENCY = 'syntax = "proto3"; package money; enum Currency { EUR = 0; CZK = 1; }'


@pytest.fixture(scope="module")
def codec() -> Codec:
    return codec_for("PROTOBUF", SHOP, {"currency.proto": CURRENCY, "money.proto": MONEY})


def test_canonical_json_is_written_and_read(codec: Codec) -> None:
    value = {
        "orderId": "7", "total": {"units": 5, "currency": "CZK"}, "tags": ["a"], "counts": {"x": 1}, "state": "PAID",
        "gift": False, "hash": "/wA=", "at": "2026-01-02T03:04:05Z", "rate": "NaN",
        "extra": {"@type": "type.googleapis.com/shop.Customer", "name": "Ann"},
    }  # fmt: skip
    assert codec.name == "shop.Order"
    assert codec.decode(codec.encode(value)) == value


def test_original_names_and_numbers_are_accepted(codec: Codec) -> None:
    found = codec.decode(codec.encode({"order_id": 7, "state": 1}))
    assert (found["orderId"], found["state"]) == ("7", "PAID")


def test_fields_that_have_their_default_are_printed(codec: Codec) -> None:
    assert codec.encode({}) == b"\0"
    found = codec.decode(b"\0")
    assert found == {"orderId": "0", "tags": [], "counts": {}, "state": "NEW", "hash": "", "rate": 0.0}


def test_message_indexes_choose_the_message(codec: Codec) -> None:
    assert codec.encode({"orderId": "1"})[:1] == b"\0"
    assert codec.decode(encode_indexes((0, 0)) + b"\x0a\x01s") == {"sku": "s"}
    assert codec.decode(encode_indexes((1,)) + b"\x0a\x03Ann") == {"name": "Ann"}
    assert codec.decode(encode_indexes((1, 0, 0)) + b"\x0a\x01x") == {"name": "x"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not complete"),
        (encode_indexes((2,)), "no message with the indexes"),
        (encode_indexes((1, 1)), "no message with the indexes"),
        (encode_indexes((-1,)), "no message with the indexes"),
        (b"\0\x08", "shop.Order"),
        (b"\0\x1a\x01\xff", "shop.Order"),
        (b"\0\x42\x0a\x08" + b"\xff" * 8 + b"\x7f", "at"),
    ],
)
def test_bytes_that_do_not_fit_are_an_error(codec: Codec, data: bytes, reason: str) -> None:
    with pytest.raises(DataMisfit, match=reason):
        codec.decode(data)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (5, "shop.Order must be an object"),
        ({"other": 1}, 'no field named "other"'),
        ({"orderId": "x"}, "order_?[iI]d"),
        ({"total": {"units": 1 << 40}}, "units"),
        ({"state": "OLD"}, "state"),
        ({"tags": ["\ud800"]}, "tags"),
        ({"extra": {"@type": "type.googleapis.com/shop.Unknown"}}, "shop.Unknown"),
    ],
)
def test_data_that_do_not_fit_are_an_error(codec: Codec, value: Any, reason: str) -> None:
    with pytest.raises(DataMisfit, match=reason):
        codec.encode(value)


def test_required_fields_of_proto2_are_checked() -> None:
    codec = codec_for("PROTOBUF", 'syntax = "proto2"; message A { required int32 a = 1; optional int32 b = 2; }', {})
    assert codec.decode(codec.encode({"a": 1})) == {"a": 1}
    with pytest.raises(DataMisfit, match="a"):
        codec.encode({"b": 1})


def test_file_without_message_is_no_schema_of_data() -> None:
    with pytest.raises(InvalidSchema, match="no message"):
        codec_for("PROTOBUF", 'syntax = "proto3"; enum E { A = 0; }', {})


def test_defaults_of_many_messages_are_limited() -> None:
    fields = "".join(f"int32 f{number} = {number};" for number in range(1, 201))
    codec = codec_for("PROTOBUF", f'syntax = "proto3"; message A {{ repeated B b = 1; }} message B {{ {fields} }}', {})
    assert len(codec.decode(b"\0" + b"\x0a\x00" * 10)["b"][9]) == 200
    with pytest.raises(DataMisfit, match="have their default"):
        codec.decode(b"\0" + b"\x0a\x00" * 10_000)


def test_large_data_with_few_messages_are_decoded() -> None:
    fields = "".join(f"int32 f{number} = {number};" for number in range(1, 101))
    large = f"message A {{ repeated int32 b = 1; map<int32, C> m = 2; repeated C c = 3; }} message C {{ {fields} }}"
    codec = codec_for("PROTOBUF", f'syntax = "proto3"; {large}', {})
    found = codec.decode(codec.encode({"b": [1] * 20_000, "m": {"1": {"f2": 3}}, "c": [{"f1": 1}] * 10}))
    assert (len(found["b"]), found["m"]["1"]["f2"], found["c"][9]["f1"]) == (20_000, 3, 1)


def test_depth_is_limited(codec: Codec) -> None:
    recursive = codec_for("PROTOBUF", 'syntax = "proto3"; message A { A a = 1; }', {})
    value: Any = {}
    for _ in range(50):
        value = {"a": value}
    assert recursive.decode(recursive.encode(value)) == value
    for _ in range(200):
        value = {"a": value}
    with pytest.raises(DataMisfit):
        recursive.encode(value)
    data = b""
    for _ in range(5000):
        data = b"\x0a" + _length(data) + data
    with pytest.raises(DataMisfit):
        recursive.decode(b"\0" + data)


def test_any_inside_of_any_is_limited(codec: Codec) -> None:
    url = b"type.googleapis.com/google.protobuf.Any"
    data = b""
    for _ in range(2000):
        data = b"\x0a" + _length(url) + url + b"\x12" + _length(data) + data
    with pytest.raises(DataMisfit):
        codec.decode(b"\0\x4a" + _length(data) + data)


def _length(data: bytes) -> bytes:
    number, out = len(data), bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
