"""Records with a schema: what happens without a library, and with a schema that cannot be used."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from ottla.admin.failure import Failure
from ottla.cli.schema_records import RecordDecoder, SchemaChoice, make_encoder
from ottla.client.registry import RegisteredSchema
from ottla.schemas.data.framing import frame


class Registry:
    """A registry with one schema, which has the id 1."""

    def __init__(self, schema_type: str, text: str) -> None:
        self._schema = RegisteredSchema(1, schema_type, text)

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        return self._schema if schema_id == 1 else None

    def resolve(self, schema: RegisteredSchema) -> dict[str, str]:
        return {}


class Message:
    """A record whose value has the schema 1."""

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return frame(1, b"\x02")

    def timestamp(self) -> tuple[int, int]:
        return 0, 0

    headers = key


def decode(registry: Any, schema_type: str, *, skip_bad: bool = False) -> Any:
    message: Any = Message()
    return RecordDecoder(registry, {"value": schema_type}, skip_bad=skip_bad).decode(message)


def test_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name.startswith(("ottla.schemas.protobuf", "ottla.schemas.data.proto"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    registry: Any = Registry("PROTOBUF", 'syntax = "proto3"; message A { int32 a = 1; }')
    with pytest.raises(Failure) as failure:
        make_encoder(registry, "orders", "value", "PROTOBUF", SchemaChoice(schema_id=1))
    assert "pip install -e '.[edge]'" in failure.value.message
    # It concerns every record, so that none is skipped.
    with pytest.raises(Failure, match="pip install"):
        decode(registry, "PROTOBUF", skip_bad=True)


def test_schema_that_cannot_be_used_is_an_error_of_its_records(capsys: pytest.CaptureFixture[str]) -> None:
    registry: Any = Registry("AVRO", '{"type": "nothing"}')
    with pytest.raises(Failure, match="schema 1 for the value cannot be used"):
        make_encoder(registry, "orders", "value", "AVRO", SchemaChoice(schema_id=1))
    with pytest.raises(Failure, match=r"^orders, partition 2, offset 7: the value has schema 1, which cannot be used"):
        decode(registry, "AVRO")
    assert decode(registry, "AVRO", skip_bad=True) is None
    assert capsys.readouterr().err.startswith("skipped orders, partition 2, offset 7: ")


def test_decoded_message_has_json_text() -> None:
    registry: Any = Registry("AVRO", '"long"')
    found = decode(registry, "AVRO")
    assert (found.key(), found.value(), found.offset()) == (None, b"1", 7)
