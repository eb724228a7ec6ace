"""Keys and values of records: JSON, schemas of the registry, text and bytes, and that no bytes break a page."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client.errors import ClientError
from ottla.client.registry import RegisteredSchema
from ottla.edge.console.records import showing
from ottla.edge.console.records.decoding import DECODED_BYTES_MAX, Codecs, Decoded, Decoder, LazyPart
from ottla.schemas.data.codec import codec_for
from ottla.schemas.data.framing import frame

AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "name", "type": "string"}]})
#: an array whose items take no bytes
BOMB = json.dumps({"type": "array", "items": "null"})
JSON_SCHEMA = json.dumps({"type": "object", "title": "Order", "properties": {"id": {"type": "integer"}}})
PROTOBUF = 'syntax = "proto3"; message Order { string name = 1; message Line { int64 count = 1; } }'
GUID = "6f9b1f0e-32a6-4b1c-8f43-0e5a5a3c7c11"


class FakeRegistry:
    """Schemas 1 to 4; counts how often it is asked for an unknown one."""

    def __init__(self, *, is_down: bool = False) -> None:
        self.schemas = {
            1: RegisteredSchema(1, "AVRO", AVRO), 2: RegisteredSchema(2, "JSON", JSON_SCHEMA),
            3: RegisteredSchema(3, "PROTOBUF", PROTOBUF), 4: RegisteredSchema(4, "AVRO", "{"),
            5: RegisteredSchema(5, "AVRO", BOMB), 6: RegisteredSchema(6, "XML", "<a/>"),
        }  # fmt: skip
        self.is_down = is_down
        self.unknown = 0
        self.asked = 0

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema | None:
        self.asked += 1
        if self.is_down:
            raise ClientError("the schema registry does not answer")
        self.unknown += schema_id not in self.schemas
        return self.schemas.get(schema_id)

    def id_of_guid(self, guid: str) -> int | None:
        return 1 if guid == GUID else None

    def resolve(self, schema: RegisteredSchema) -> dict[str, str]:
        return {}


def decoder(registry: FakeRegistry | None = None) -> Decoder:
    return Decoder(registry, Codecs())


def decode(data: bytes | None, header: bytes | None = None) -> Decoded:
    return decoder(FakeRegistry()).decode(data, header)


def framed(schema_id: int, value: Any) -> bytes:
    schema = FakeRegistry().schemas[schema_id]
    return frame(schema_id, codec_for(schema.schema_type, schema.text, {}).encode(value))


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [
        (None, "null", None), (b"", "empty", ""), (b'{"a": 1}', "json", {"a": 1}), (b"[1]", "json", [1]),
        (b'"x"', "json", "x"), (b"42", "text", 42), (b"true", "text", True), (b"c-42", "text", "c-42"),
        ("für".encode(), "text", "für"), (b"\xff\xfe\x01", "binary", None), (b"{broken", "text", "{broken"),
        (b"\x01\x02\x03\x04", "binary", None), (b"a\tb\r\nc", "text", "a\tb\r\nc"), (b"NaN", "text", "NaN"),
        (b"1e999", "text", "1e999"), (b"9" * 5000, "text", "9" * 5000), (b"[" * 100_000, "text", "[" * 100_000),
        (b"\x00\x00", "binary", None),
    ],
    ids=lambda each: repr(each)[:20],
)  # fmt: skip
def test_bytes_without_a_schema_are_json_text_or_bytes(data: bytes | None, kind: str, value: Any) -> None:
    found = decode(data)
    assert (found.kind, found.data) == (kind, value)


@pytest.mark.parametrize(
    ("schema_id", "value", "kind"),
    [(1, {"name": "Ana"}, "avro"), (2, {"id": 7}, "json-schema"), (3, {"name": "Ana"}, "protobuf")],
)
def test_framed_values_are_decoded_with_their_schema(schema_id: int, value: Any, kind: str) -> None:
    found = decode(framed(schema_id, value))
    assert (found.kind, found.data, found.schema_id, found.schema_name) == (kind, value, schema_id, "Order")
    assert found.has_structure and not found.problem


def test_value_is_decoded_by_the_id_or_the_guid_in_its_header() -> None:
    payload = framed(1, {"name": "Ana"})[5:]
    assert decode(payload, b"\0\0\0\0\x01").data == {"name": "Ana"}
    found = decode(payload, b"\x01" + UUID(GUID).bytes)
    assert (found.data, found.schema_id) == ({"name": "Ana"}, 1)
    assert "no schema" in decode(payload, b"\x01" + bytes(16)).problem
    assert decode(payload, b"nonsense").kind in ("text", "binary")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\0\0\0\0\x63rest", "no schema 99"), (b"\0\0\0\0\x01\xff", "does not fit schema 1"),
        (b"\0\0\0\0\x04{}", "schema 4 cannot be used"), (b"\0\0\0\0\x06<a/>", "schema 6 cannot be used"),
        (b"\0\0\0\0\x05\xfe\xff\xff\xff\x0f\x00", "does not fit schema 5"),
        (b"x" * (DECODED_BYTES_MAX + 1), "larger than 8 MiB"),
    ],
    ids=["unknown", "misfit", "invalid schema", "unknown type", "bomb", "large"],
)  # fmt: skip
def test_value_that_cannot_be_decoded_says_why(data: bytes, problem: str) -> None:
    found = decode(data)
    assert problem in found.problem
    assert found.kind in ("text", "binary")


def test_without_a_registry_a_framed_value_says_how_to_decode_it() -> None:
    found = decoder().decode(framed(1, {"name": "Ana"}))
    assert found.schema_id == 1 and "--registry" in found.problem


def test_registry_that_does_not_answer_is_asked_once() -> None:
    registry = FakeRegistry(is_down=True)
    each = decoder(registry)
    found = [each.decode(framed(1, {"name": "Ana"})) for _ in range(100)]
    assert registry.asked == 1
    assert {row.problem for row in found} == {"the schema registry does not answer"}


def test_registry_is_asked_for_few_unknown_ids() -> None:
    registry = FakeRegistry()
    each = decoder(registry)
    for number in range(10_000):
        each.decode(b"\0" + number.to_bytes(4, "big") + b"payload")
    assert registry.unknown == 20


def test_schema_that_cannot_be_used_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(
        "ottla.edge.console.records.decoding.codec_for", lambda *words: made.append(words) or codec_for(*words)
    )
    each = decoder(FakeRegistry())
    for _ in range(5):
        assert "cannot be used" in each.decode(b"\0\0\0\0\x04{}").problem
    assert len(made) == 1


def part(data: bytes | None) -> LazyPart:
    return LazyPart(data, None, decoder(FakeRegistry()))


def test_text_is_found_in_bytes_in_decoded_values_and_behind_escapes() -> None:
    assert part(b"Out of STOCK").contains("of stock")
    assert part("FÜR".encode()).contains("für")
    assert part(framed(1, {"name": "Ana"})).contains("ana")
    assert part(framed(1, {"name": "Ana"})).contains('{"name"')
    assert part(b'{"a": "f\\u00fcr"}').contains("für")
    assert not part(None).contains("") and not part(b"abc").contains("x")


#: bytes behind the id of a schema
FRAMED = st.builds(frame, st.integers(0, 7), st.binary(max_size=40))


@given(data=st.binary(max_size=60) | FRAMED)
def test_any_bytes_can_be_shown(data: bytes) -> None:
    found = decode(data)
    text, _ = showing.line(found)
    assert "\n" not in text and len(text) <= showing.LINE_CHARACTERS * 8
    shown = [text, showing.pretty(found)[0], showing.raw(found)[0], json.dumps(showing.tree(found.data))]
    for each in shown:
        each.encode()
        assert not any(sign in each for sign in "\0\x1b\u202e\x7f")
    assert "".join(row["bytes"] for row in showing.hex_rows(data)).replace(" ", "") == data.hex() or len(data) > 16
    part(data).contains("x")


def test_line_of_a_large_value_is_cut_without_encoding_the_rest() -> None:
    large = {"name": "x" * 1_000_000, "more": list(range(100_000))}
    text, is_cut = showing.line(Decoded("avro", large, "", 1))
    assert is_cut and len(text) <= showing.LINE_CHARACTERS
    assert showing.line(decode(b'{"a":\n  1}')) == ('{"a": 1}', False)


def test_tree_is_limited_in_width_and_depth() -> None:
    nodes, is_cut = showing.tree({"a": [1, "x"], "b": {}, "c": None})
    assert [(each["step"], each.get("name")) for each in nodes] == [
        ("open", ""), ("open", "a"), ("leaf", "0"), ("leaf", "1"), ("close", None), ("leaf", "b"), ("leaf", "c"),
        ("close", None),
    ]  # fmt: skip
    assert not is_cut
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    for value in (list(range(10_000)), deep):
        nodes, is_cut = showing.tree(value)
        steps = [each["step"] for each in nodes]
        assert is_cut and len(nodes) <= showing.TREE_NODES + showing.TREE_DEPTH + 2
        assert steps.count("open") == steps.count("close") <= showing.TREE_DEPTH + 1
