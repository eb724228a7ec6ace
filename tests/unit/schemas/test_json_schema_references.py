"""`$ref` resolves inside of the schema and to registered schemas, and never to the network."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from ottla.schemas.json_schema.documents import Documents
from ottla.schemas.schema import Budget, InvalidSchema, Resolved, SchemaTooComplex

MODERN = "https://json-schema.org/draft/2020-12/schema"


def load(schema: object, texts: dict[str, object] | None = None) -> Documents:
    return Documents(
        json.dumps(schema), Resolved(texts={name: json.dumps(text) for name, text in (texts or {}).items()}), Budget()
    )


def target(schema: dict[str, Any], texts: dict[str, object] | None = None) -> object:
    """Return what the `$ref` of the property "a" names."""
    documents = load(schema, texts)
    holder = documents.root["properties"]["a"]
    return documents.target(holder["$ref"], documents.scope_of(holder))


def with_reference(reference: str, **others: object) -> dict[str, Any]:
    return {"properties": {"a": {"$ref": reference}}, **others}


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (with_reference("#/definitions/x", definitions={"x": {"type": "string"}}), {"type": "string"}),
        (with_reference("#/$defs/x", definitions={"x": {"type": "string"}}), {"type": "string"}),
        (with_reference("#/definitions/a~1b~0c%25", definitions={"a/b~c%": {"type": "null"}}), {"type": "null"}),
        (with_reference("#/anyOf/1", anyOf=[True, {"type": "string"}]), {"type": "string"}),
        (with_reference("#/components/x", components={"x": {"type": "string"}}), {"type": "string"}),
        (with_reference("#x", definitions={"y": {"$id": "#x", "type": "string"}}), {"$id": "#x", "type": "string"}),
        (
            with_reference("#x", **{"$schema": MODERN, "$defs": {"y": {"$anchor": "x"}}}),
            {"$anchor": "x"},
        ),
        (
            with_reference("other.json", **{"$id": "http://x/y.json", "definitions": {"y": {"$id": "other.json"}}}),
            {"$id": "other.json"},
        ),
        (
            with_reference("#/definitions/t", **{"$id": "urn:example:a", "definitions": {"t": {"type": "null"}}}),
            {"type": "null"},
        ),
        (with_reference("#/definitions/t", definitions={"t": True}), True),
        (with_reference("http://json-schema.org/draft-07/schema#"), {"type": ["object", "boolean"]}),
    ],
)
def test_reference_inside_of_the_schema_resolves(schema: dict[str, Any], found: object) -> None:
    assert target(schema) == found


@pytest.mark.parametrize(
    ("reference", "own_id", "name"),
    [
        ("common.json", None, "common.json"),
        ("./common.json", None, "common.json"),
        ("common.json", "http://example.com/schemas/root.json", "common.json"),
        ("common.json", "http://example.com/schemas/root.json", "http://example.com/schemas/common.json"),
        ("http://example.com/common.json", None, "http://example.com/common.json"),
        ("http://example.com/common.json#", None, "http://example.com/common.json"),
        ("urn:example:common", None, "urn:example:common"),
        ("common.json", "mem://input/root", "common.json"),
    ],
)
def test_reference_to_a_registered_schema_resolves_by_name(reference: str, own_id: str | None, name: str) -> None:
    schema = with_reference(reference, **({"$id": own_id} if own_id else {}))
    assert target(schema, {name: {"type": "string"}}) == {"type": "string"}


def test_reference_resolves_into_a_registered_schema_and_on_to_the_next() -> None:
    texts = {
        "b.json": {"definitions": {"x": {"type": "string"}}},
        "a.json": {"definitions": {"y": {"$ref": "b.json#/definitions/x"}}},
    }
    assert target(with_reference("a.json#/definitions/y"), texts) == {"$ref": "b.json#/definitions/x"}


def test_relative_reference_in_a_registered_schema_is_relative_to_that_schema() -> None:
    texts = {"a.json": {"$ref": "#/definitions/z", "definitions": {"z": {"type": "integer"}}}}
    load(with_reference("a.json", definitions={}), texts)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "http://example.com/remote.json",
            "'http://example.com/remote.json' is outside of the schema and is not fetched",
        ),
        ("https://example.com/remote.json#/x", "not fetched"),
        ("file:///etc/passwd", "not fetched"),
        ("ftp://example.com/x", "not fetched"),
        ("other.json", "'other.json' is neither in the schema nor among its references"),
        ("jar:file:/x!/y", "neither"),
        ("#/definitions/missing", "'#/definitions/missing' names nothing in the schema"),
        ("#missing", "names nothing"),
        ("#/required", "names a value that is not a schema"),
        ("#/anyOf/2", "names nothing"),
        ("#/anyOf/99999999999999999999", "names nothing"),
        ("#/anyOf/x", "names nothing"),
        ("http://[", "not a valid address"),
    ],
)
def test_reference_to_something_unknown_is_rejected_and_named(
    reference: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_connection(*_: object) -> None:
        raise AssertionError("a reference opened a connection")

    monkeypatch.setattr(socket.socket, "connect", no_connection)
    monkeypatch.setattr(socket, "getaddrinfo", no_connection)
    with pytest.raises(InvalidSchema, match=message.replace("[", r"\[")):
        load(with_reference(reference, anyOf=[True, True], required=["a"]))


def test_invalid_registered_schema_is_named() -> None:
    with pytest.raises(InvalidSchema, match=r"in the reference 'a\.json': /type: "):
        load(with_reference("a.json"), {"a.json": {"type": "text"}})


def test_schema_and_references_together_have_a_limit() -> None:
    text = {"description": "x" * (3 << 20)}
    with pytest.raises(SchemaTooComplex, match="the schema and its references have more than 8 MB"):
        load(with_reference("a", description="x" * (3 << 20)), {"a": text, "b": text})


def test_place_that_only_a_reference_calls_a_schema_is_checked() -> None:
    with pytest.raises(InvalidSchema, match="type"):
        load(with_reference("#/components/x", components={"x": {"type": "text"}}))


def test_recursive_references_resolve() -> None:
    load({"properties": {"next": {"$ref": "#"}, "tree": {"items": {"$ref": "#/properties/tree"}}}})
