"""Schemas of the registry: what is remembered, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ottla.client.registry import RegisteredSchema
from ottla.rest import schema_data
from ottla.rest.schema_data import SchemaData
from ottla.schemas.data.framing import frame
from ottla.web.app import HttpError


class Registry:
    """A registry whose schemas are set by the test."""

    def __init__(self) -> None:
        self.schemas: dict[int, RegisteredSchema] = {}
        self.requests: list[int] = []

    def by_id(self, schema_id: int) -> RegisteredSchema | None:
        self.requests.append(schema_id)
        return self.schemas.get(schema_id)

    def resolve(self, schema: RegisteredSchema) -> dict[str, str]:
        return {}


async def call(function: Callable[[], Any]) -> Any:
    return function()


def test_unknown_id_is_asked_for_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(schema_data.time, "monotonic", lambda: now[0])
    registry = Registry()
    data = SchemaData(registry, call)  # type: ignore[arg-type]
    payload = frame(7, b"\x02a")

    def read() -> Any:
        asyncio.run(data.load([payload, None, b"no frame"]))
        return data.decode("AVRO", payload)

    for _ in range(2):
        with pytest.raises(HttpError) as error:
            read()
        assert error.value.error_code == 42205
    assert registry.requests == [7]
    registry.schemas[7] = RegisteredSchema(7, "AVRO", '"string"')
    now[0] += 10
    assert read() == "a"
    now[0] += 10
    assert read() == "a"
    assert registry.requests == [7, 7]


def test_ids_that_are_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_data, "_KEPT_MAX", 10)
    data = SchemaData(Registry(), call)  # type: ignore[arg-type]
    for schema_id in range(100):
        asyncio.run(data.load([frame(schema_id, b"")]))
    assert len(data._codecs) == len(data._unknown) == 10
