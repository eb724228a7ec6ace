"""Values with schemas of a registry as columns, without Spark: reader and writer schemas, causes, requests."""

from __future__ import annotations

import io
import json
import pickle
import socket
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from registry_stand_in import RegistryStandIn, registry_stand_in

from ottla.client.errors import PropertyRefused
from ottla.client.registry import RegistryError, RegistryUnreachable
from ottla.schemas.data.framing import frame
from ottla.spark import registry_schemas
from ottla.spark.avro import AvroDecoder, AvroEncoder
from ottla.spark.derived_schemas import derived_schema
from ottla.spark.json_schema import JsonDecoder, JsonEncoder
from ottla.spark.protobuf import ProtobufDecoder, ProtobufEncoder
from ottla.spark.registry_schemas import (
    ENVIRONMENT,
    PinnedSchema,
    RegistrySchemas,
    RegistrySettings,
    close_registries,
    pin_schema,
    register_schema,
)
from ottla.spark.wire_format import SchemaRefused

FIRST = {
    "type": "record", "name": "Order",
    "fields": [{"name": "id", "type": "int"}, {"name": "customer", "type": "string"}, {"name": "old", "type": "int"}],
}  # fmt: skip
SECOND = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "buyer", "type": "string", "aliases": ["customer"]},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[RegistryStandIn, str]]:
    with registry_stand_in() as running:
        yield running


@pytest.fixture
def registry(server: tuple[RegistryStandIn, str]) -> Iterator[RegistryStandIn]:
    """An empty registry, of which this process knows nothing."""
    close_registries()
    server[0].subjects.clear()
    server[0].requests = 0
    yield server[0]
    close_registries()


@pytest.fixture
def settings(server: tuple[RegistryStandIn, str]) -> RegistrySettings:
    return RegistrySettings(server[1])


def avro(schema: Any, row: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), row)
    return stream.getvalue()


def binary(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def test_avro_values_of_two_versions_are_resolved_to_the_reader_and_ids_fetched_once(
    registry: RegistryStandIn, settings: RegistrySettings
) -> None:
    first = registry.add("orders-value", json.dumps(FIRST))["id"]
    second = registry.add("orders-value", json.dumps(SECOND))["id"]
    source = RegistrySchemas(settings, pin_schema(settings, "orders-value"))
    values = binary(
        frame(first, avro(FIRST, {"id": 1, "customer": "Ada", "old": 7})),
        frame(second, avro(SECOND, {"id": 2**40, "buyer": "Bob", "currency": "USD"})),
        frame(99, b"x"), b"no frame", b"\0\0", None, frame(first, b"\x02"),
    )  # fmt: skip
    for _ in range(3):
        # Each task unpickles the source; the process keeps the schemas.
        sent: RegistrySchemas = pickle.loads(pickle.dumps(source))  # noqa: S301 - written here
        rows, causes = AvroDecoder(sent, framed=True).decode(values)
    assert rows.to_pylist()[:2] == [
        {"id": 1, "buyer": "Ada", "currency": "EUR"}, {"id": 2**40, "buyer": "Bob", "currency": "USD"},
    ]  # fmt: skip
    assert causes[:2] == [None, None]
    assert causes[2:6] == [
        "unknown schema id: 99", "bad magic: the first byte is 110, not 0",
        "truncated: 2 bytes are too few for a schema id", "null value",
    ]  # fmt: skip
    assert str(causes[6]).startswith(f"truncated: schema id {first}")
    # the subject, the first version and the unknown id; the second version is the reader's
    assert registry.requests == 3


def test_unknown_id_is_found_once_it_is_registered(
    registry: RegistryStandIn, settings: RegistrySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add("orders-value", json.dumps(SECOND))
    decoder = AvroDecoder(RegistrySchemas(settings, pin_schema(settings, "orders-value")), framed=True)
    value = binary(frame(2, avro(FIRST, {"id": 1, "customer": "Ada", "old": 7})))
    assert decoder.decode(value)[1] == ["unknown schema id: 2"]
    registry.add("orders-value", json.dumps(FIRST))
    # The client remembers ids that do not exist for 5 s.
    monkeypatch.setattr("ottla.client.registry._UNKNOWN_S", 0.0)
    registry_schemas._registries[settings].client._unknown.clear()
    assert decoder.decode(value)[1] == [None]


def test_registry_that_fails_fails_the_task_and_rejects_no_value(
    registry: RegistryStandIn, settings: RegistrySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.add("orders-value", json.dumps(SECOND))
    reader = pin_schema(settings, "orders-value")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    gone = AvroDecoder(RegistrySchemas(RegistrySettings(nobody), reader), framed=True)
    with pytest.raises(RegistryUnreachable, match=f"does not answer: {nobody}"):
        gone.decode(binary(frame(5, b"x")))
    failing = AvroDecoder(RegistrySchemas(settings, reader), framed=True)
    monkeypatch.setattr(registry, "answer", lambda *_: (401, {"error_code": 40101, "message": "who are you?"}))
    with pytest.raises(RegistryError, match="40101: who are you"):
        failing.decode(binary(frame(5, b"x")))


def test_schemas_of_other_types_and_unresolvable_ones_are_causes_with_their_id(
    registry: RegistryStandIn, settings: RegistrySettings
) -> None:
    registry.add("orders-value", json.dumps(SECOND))
    other = registry.add("other", '{"type": "object"}', "JSON")["id"]
    foreign = registry.add("foreign", json.dumps({"type": "record", "name": "Order", "fields": []}))["id"]
    decoder = AvroDecoder(RegistrySchemas(settings, pin_schema(settings, "orders-value")), framed=True)
    for _ in range(2):
        _, causes = decoder.decode(binary(frame(other, b"{}"), frame(foreign, b"")))
        assert str(causes[0]).startswith(f"type mismatch: schema id {other}: its schema is of type JSON")
        assert f"schema id {foreign}: its values cannot be resolved" in str(causes[1])


def test_reader_version_can_be_chosen_and_must_exist(registry: RegistryStandIn, settings: RegistrySettings) -> None:
    registry.add("orders-value", json.dumps(FIRST))
    registry.add("orders-value", json.dumps(SECOND))
    assert pin_schema(settings, "orders-value", "1") == PinnedSchema("orders-value", 1, "AVRO", json.dumps(FIRST), 1)
    with pytest.raises(SchemaRefused, match="no version latest of subject absent"):
        pin_schema(settings, "absent")


def test_avro_references_are_part_of_the_schema(registry: RegistryStandIn, settings: RegistrySettings) -> None:
    address = {
        "type": "record", "name": "Address", "namespace": "shop", "fields": [{"name": "city", "type": "string"}],
    }  # fmt: skip
    order = {
        "type": "record", "name": "Order", "fields": [
            {"name": "from", "type": "shop.Address"}, {"name": "to", "type": "shop.Address"},
        ],
    }  # fmt: skip
    registry.add("address", json.dumps(address))
    made = registry.add("orders-value", json.dumps(order))
    made["references"] = [{"name": "shop.Address", "subject": "address", "version": 1}]
    pinned = pin_schema(settings, "orders-value")
    assert pinned.references == (("shop.Address", json.dumps(address)),)
    decoder = AvroDecoder(RegistrySchemas(settings, pinned), framed=True)
    rows, causes = decoder.decode(binary(frame(made["id"], b"\x06Ulm\x08Bonn")))
    assert (rows.to_pylist(), causes) == ([{"from": {"city": "Ulm"}, "to": {"city": "Bonn"}}], [None])


def test_protobuf_is_read_by_field_numbers_without_protoc(
    registry: RegistryStandIn, settings: RegistrySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.spark.protobuf.compile_proto", None)
    head = 'syntax = "proto3"; package shop; import "money.proto"; import "google/protobuf/timestamp.proto";'
    first = f"{head} message Order {{ int32 id = 1; string customer = 2; }}"
    time = "google.protobuf.Timestamp"
    second = f"{head} message Order {{ int64 id = 1; string buyer = 2; Money paid = 3; {time} at = 4; }}"
    registry.add("money", 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }', "PROTOBUF")
    for text in (first, second):
        made = registry.add("orders-value", text, "PROTOBUF")
        made["references"] = [{"name": "money.proto", "subject": "money", "version": 1}]
    source = RegistrySchemas(settings, pin_schema(settings, "orders-value"))
    encoder = ProtobufEncoder(source.latest(), None, schema_id=source.reader.id)
    written = encoder.encode(pa.array([{"id": 2**40, "buyer": "Bob", "paid": {"cents": 5}, "at": None}], encoder.type))
    decoder = ProtobufDecoder(source, None, framed=True)
    rows, causes = decoder.decode(binary(frame(2, b"\x08\x07\x12\x03Ada", (0,)), *written.to_pylist(), frame(9, b"")))
    assert rows.to_pylist()[:2] == [
        {"id": 7, "buyer": "Ada", "paid": None, "at": None},
        {"id": 2**40, "buyer": "Bob", "paid": {"cents": 5}, "at": None},
    ]
    assert causes == [None, None, "unknown schema id: 9"]


def test_entries_of_map_fields_are_no_messages_in_the_indexes(settings: RegistrySettings) -> None:
    text = 'syntax = "proto3"; message A { map<string, int32> m = 1; message B { int32 n = 1; } }'
    source = RegistrySchemas(settings, PinnedSchema("s", 1, "PROTOBUF", text))
    encoder = ProtobufEncoder(source.latest(), "A.B", schema_id=1)
    value = encoder.encode(pa.array([{"n": 5}], encoder.type))[0].as_py()
    assert value == frame(1, b"\x08\x05", (0, 0))
    rows, causes = ProtobufDecoder(source, "A.B", framed=True).decode(binary(value))
    assert (rows.to_pylist(), causes) == ([{"n": 5}], [None])


JSON_SCHEMA = {
    "type": "object", "required": ["id"],
    "properties": {
        "id": {"type": "integer"}, "price": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "at": {"type": "string", "format": "date-time"}, "day": {"type": ["string", "null"], "format": "date"},
        "tags": {"type": "array", "items": {"type": "string"}}, "more": {},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "buyer": {"$ref": "customer.json"}, "kind": {"enum": ["a", "b"]}, "raw": {"$ref": "#/definitions/raw"},
    },
    "definitions": {"raw": {"type": "string", "contentEncoding": "base64"}},
}  # fmt: skip


def json_source(registry: RegistryStandIn, settings: RegistrySettings) -> RegistrySchemas:
    customer = {"type": "object", "properties": {"name": {"type": "string"}}}
    registry.add("customer", json.dumps(customer), "JSON")
    made = registry.add("orders-value", json.dumps(JSON_SCHEMA), "JSON")
    made["references"] = [{"name": "customer.json", "subject": "customer", "version": 1}]
    return RegistrySchemas(settings, pin_schema(settings, "orders-value"))


def json_decoder(source: RegistrySchemas) -> JsonDecoder:
    return JsonDecoder(source, dict(source.reader.references), framed=True)


def test_json_becomes_the_columns_of_the_schema(registry: RegistryStandIn, settings: RegistrySettings) -> None:
    source = json_source(registry, settings)
    decoder = json_decoder(source)
    value = {
        "id": 1.0, "price": 2, "at": "2026-01-02T03:04:05+01:00", "day": "2026-01-02", "tags": ["x"], "unknown": 1,
        "more": {"a": [1]}, "counts": {"n": 3}, "buyer": {"name": "Ada", "age": 3}, "kind": "a", "raw": "AAE=",
    }  # fmt: skip
    rows, causes = decoder.decode(binary(frame(2, json.dumps(value).encode()), frame(1, b"{}")))
    assert causes == [None, None]
    [row, empty] = rows.to_pylist(maps_as_pydicts="strict")
    assert row == {
        "id": 1, "price": 2.0, "at": datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC), "day": date(2026, 1, 2), "tags": ["x"],
        "more": '{"a":[1]}', "counts": {"n": 3}, "buyer": {"name": "Ada"}, "kind": "a", "raw": b"\0\1",
    }  # fmt: skip
    assert set(empty.values()) == {None}
    encoder = JsonEncoder(source.latest(), dict(source.reader.references), schema_id=2)
    again = encoder.encode(pa.array([row, None], encoder.type))
    assert again[1].as_py() is None
    assert decoder.decode(again)[0].to_pylist(maps_as_pydicts="strict")[0] == row
    with pytest.raises(SchemaRefused, match="id is null, and the schema requires it"):
        encoder.encode(pa.array([{"price": 1.0}], encoder.type))


def test_json_that_does_not_fit_the_columns_is_rejected_with_place_and_id(
    registry: RegistryStandIn, settings: RegistrySettings
) -> None:
    decoder = json_decoder(json_source(registry, settings))
    payloads = {
        b"{": "not JSON: schema id 2", b'{"id": NaN}': "not JSON: schema id 2", b"null": "null value: schema id 2",
        b"[]": "type mismatch: schema id 2: an array is not an object",
        b'{"id": "1"}': "type mismatch: schema id 2: id: a string is not an integer",
        b'{"id": true}': "type mismatch: schema id 2: id: a boolean is not an integer",
        b'{"id": 9223372036854775808}': "type mismatch: schema id 2: id: the integer has more than 64 bits",
        b'{"tags": ["a", 1]}': "type mismatch: schema id 2: tags[1]: an integer is not a string",
        b'{"buyer": {"name": 1}}': "type mismatch: schema id 2: buyer.name: an integer is not a string",
        b'{"at": "2026-01-02T03:04:05"}': "type mismatch: schema id 2: at: the time has no time zone",
        b'{"raw": "?"}': "type mismatch: schema id 2: raw: no base64",
    }  # fmt: skip
    _, causes = decoder.decode(binary(*(frame(2, payload) for payload in payloads), frame(77, b"{}"), b"{}"))
    for cause, expected in zip(causes, payloads.values(), strict=False):
        assert str(cause).startswith(expected)
    assert causes[-2:] == ["unknown schema id: 77", "bad magic: the first byte is 123, not 0"]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"type": "null"}', "permits nothing but null"),
        ('{"type": "object", "properties": {"a": {"$ref": "#"}}}', "contains itself"),
        ("{", "cannot be used"),
    ],
)
def test_json_schema_without_columns_is_refused(schema: str, why: str) -> None:
    pinned = PinnedSchema("s", 1, "JSON", schema)
    with pytest.raises(SchemaRefused, match=why):
        json_decoder(RegistrySchemas(RegistrySettings("http://127.0.0.1:1"), pinned))


ROWS = pa.struct(
    [
        ("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("day", pa.date32()),
        ("raw", pa.binary()), ("tags", pa.list_(pa.string())), ("counts", pa.map_(pa.string(), pa.int64())),
        ("inner", pa.struct([("flag", pa.bool_())])),
    ]
)  # fmt: skip
ROW = {
    "id": 1, "name": "Ada", "at": datetime(2026, 1, 2, tzinfo=UTC), "day": date(2026, 1, 2), "raw": b"\0",
    "tags": ["x", None], "counts": {"n": 3}, "inner": {"flag": True},
}  # fmt: skip


def test_derived_schema_is_registered_once_and_rows_survive(
    registry: RegistryStandIn, settings: RegistrySettings
) -> None:
    rows = [ROW, dict.fromkeys(ROW)]
    avro_schema = register_schema(settings, "a-value", "AVRO", derived_schema("AVRO", ROWS, "my-topic"))
    assert register_schema(settings, "a-value", "AVRO", derived_schema("AVRO", ROWS, "my-topic")) == avro_schema
    assert registry.requests == 1
    assert json.loads(avro_schema.text)["name"] == "my_topic"
    values = AvroEncoder(avro_schema.compiled, schema_id=avro_schema.id).encode(pa.array(rows, ROWS))
    decoded, causes = AvroDecoder(RegistrySchemas(settings, avro_schema), framed=True).decode(values)
    assert (decoded.to_pylist(maps_as_pydicts="strict"), causes) == (rows, [None, None])

    json_schema = register_schema(settings, "j-value", "JSON", derived_schema("JSON", ROWS, "1"))
    values = JsonEncoder(json_schema.compiled, {}, schema_id=json_schema.id).encode(pa.array(rows, ROWS))
    decoded, causes = json_decoder(RegistrySchemas(settings, json_schema)).decode(values)
    assert (decoded.to_pylist(maps_as_pydicts="strict"), causes) == (rows, [None, None])


def test_schema_that_must_not_be_registered_is_looked_up(registry: RegistryStandIn, settings: RegistrySettings) -> None:
    with pytest.raises(SchemaRefused, match=r"subject t-value .* does not have the schema"):
        register_schema(settings, "t-value", "AVRO", json.dumps(FIRST), auto_register=False)
    assert registry.subjects == {}
    known = registry.add("t-value", json.dumps(FIRST))["id"]
    assert register_schema(settings, "t-value", "AVRO", json.dumps(FIRST), auto_register=False).id == known
    with pytest.raises(SchemaRefused, match=r"cannot be registered under subject t-value.*40901"):
        register_schema(settings, "t-value", "AVRO", '"refused"')


def test_types_without_a_counterpart_are_refused() -> None:
    decimal = pa.struct([("price", pa.decimal128(9, 2))])
    assert json.loads(derived_schema("AVRO", decimal, "t"))["fields"][0]["type"][1]["logicalType"] == "decimal"
    encoder = AvroEncoder(derived_schema("AVRO", decimal, "t"), schema_id=1)
    assert encoder.encode(pa.array([{"price": Decimal("1.50")}], decimal))[0].as_py() == frame(1, b"\x02\x04\x00\x96")
    for schema_type, rows, why in (
        ("JSON", decimal, "no type for decimal"),
        ("PROTOBUF", decimal, "numbers of Protobuf's fields"),
        ("AVRO", pa.struct([("a b", pa.int64())]), "'a b' is not the name"),
        ("AVRO", pa.struct([("a", pa.map_(pa.int64(), pa.int64()))]), "no type for map"),
    ):
        with pytest.raises(SchemaRefused, match=why):
            derived_schema(schema_type, rows, "t")


def test_settings_come_from_properties_or_the_environment_and_hide_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"schema.registry.url": "http://a:1", "schema.registry.basic.auth.user.info": "ada:topsecret"}
    settings = RegistrySettings.parse({**given, "security.protocol": "PLAINTEXT"})
    assert settings == RegistrySettings("http://a:1", (("basic.auth.user.info", "ada:topsecret"),))
    assert "topsecret" not in repr(settings)
    assert "topsecret" not in repr(RegistrySchemas(settings, PinnedSchema("s", 1, "AVRO", "{}")))
    monkeypatch.setenv(ENVIRONMENT, "http://b:2")
    assert RegistrySettings.parse({}).url == "http://b:2"
    monkeypatch.delenv(ENVIRONMENT)
    with pytest.raises(PropertyRefused, match=r"set schema\.registry\.url"):
        RegistrySettings.parse({})
    with pytest.raises(PropertyRefused, match=r"unknown property schema\.registry\.uri"):
        RegistrySettings.parse({**given, "schema.registry.uri": "http://a:1"})
