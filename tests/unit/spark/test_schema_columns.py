"""Rows with decoded keys and values as Spark expects them, and columns as encoded ones; without a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from ottla.spark import schema_columns
from ottla.spark.columns import HEADERS_TYPE, RowsRefused
from ottla.spark.formats import make_decoder, registry_format
from ottla.spark.options import OptionError
from ottla.spark.reading import ColumnsRefused
from ottla.spark.registry_schemas import PinnedSchema, RegistrySchemas, RegistrySettings
from ottla.spark.schema_columns import DecodedColumns, EncodedColumns, added_fields
from ottla.spark.schema_options import SchemaOptions
from ottla.spark.spark_internals import spark_type_of
from ottla.spark.wire_format import SchemaRefused

SCHEMA = {
    "type": "record", "name": "R", "fields": [
        {"name": "l", "type": {"type": "array", "items": "int"}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": ["null", "string"]}}},
        {"name": "d", "type": {"type": "int", "logicalType": "date"}},
        {"name": "n", "type": {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}},
        {"name": "t", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
        {"name": "more", "type": "string", "default": "none"},
    ],
}  # fmt: skip
PINNED = PinnedSchema("t-value", 1, "AVRO", json.dumps(SCHEMA), 3)
OPTIONS = SchemaOptions(
    part="value", schema_type="AVRO", registry=RegistrySettings("http://127.0.0.1:1"), subject="t-value",
    version="latest", message=None, schema=None, auto_register=True, use_latest=True,
)  # fmt: skip
ROW = {"l": [1, 2], "m": {"a": ["x", None]}, "d": date(2026, 1, 1), "n": Decimal("1.50"), "t": datetime(2026, 1, 1)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions that the registry was asked for. It has one schema."""
    versions: list[str] = []

    def pin(_: RegistrySettings, subject: str, version: str) -> PinnedSchema:
        versions.append(version)
        return PINNED

    monkeypatch.setattr(schema_columns, "pin_schema", pin)
    return versions


def rows_of(schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    columns = DecodedColumns.of([OPTIONS], schema)
    assert columns is not None
    return columns.converter()


def with_headers(rows: pa.RecordBatch, *headers: list[dict[str, Any]] | None) -> pa.RecordBatch:
    """Return rows with the headers of their records, by default none."""
    return rows.append_column("headers", pa.array(headers or [None] * len(rows), HEADERS_TYPE))


def test_rows_survive_encoding_and_decoding_in_the_types_of_spark(asked: list[str]) -> None:
    kind = make_decoder(registry_format(OPTIONS.registry, PINNED)).type
    given = pa.struct([field for field in kind if field.name != "more"])
    values = pa.RecordBatch.from_arrays([pa.array([ROW, None], given), pa.array([b"k", b"l"])], names=["value", "key"])
    [encoded] = EncodedColumns({"value": registry_format(OPTIONS.registry, PINNED)}).encode(iter([values]))
    assert encoded.schema.names == ["value", "key"] and encoded.column(0)[1].as_py() is None
    rows = rows_of(StructType([StructField("value", spark_type_of(pa.binary())), *added_fields([OPTIONS])]))(
        with_headers(encoded)
    )
    [row, deleted] = rows.to_pylist(maps_as_pydicts="strict")
    assert row["decoded"] == {**ROW, "more": "none"} and row["_cause"] is None
    assert (deleted["decoded"], deleted["_cause"]) == (None, "null value")
    assert str(rows.schema.field("decoded").type.field("l").type) == "list<element: int32>"


def test_version_of_the_dataframe_is_read_by_all_processes(asked: list[str]) -> None:
    schema = StructType(added_fields([OPTIONS]))
    assert schema["decoded"].metadata == {"ottla.schema.version": 3}
    columns = DecodedColumns.of([OPTIONS], schema)
    assert columns is not None and columns.read_columns == ["value", "headers"]
    assert asked == ["latest", "3"]
    assert DecodedColumns.of([OPTIONS], StructType([StructField("key", StringType())])) is None


def test_columns_of_other_types_are_refused(asked: list[str]) -> None:
    with pytest.raises(ColumnsRefused, match="the column decoded is of type struct<"):
        DecodedColumns.of([OPTIONS], StructType([StructField("decoded", LongType())]))
    with pytest.raises(ColumnsRefused, match="the column _cause is of type string, not bigint"):
        DecodedColumns.of([OPTIONS], StructType([StructField("_cause", LongType())]))


def test_rows_that_do_not_fit_the_schema_are_refused(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def writer(**fields: Any) -> EncodedColumns:
        value = StructType([StructField(name, kind) for name, kind in fields.items()])
        return EncodedColumns.of([OPTIONS], StructType([StructField("value", value)]))

    with pytest.raises(RowsRefused, match="has no field x, y"):
        writer(x=LongType(), y=LongType(), more=StringType())
    with pytest.raises(RowsRefused, match="value must be a struct"):
        EncodedColumns.of([OPTIONS], StructType([StructField("value", StringType())]))
    writer(more=StringType())
    days = pa.array([{"l": [1 << 40]}], pa.struct([("l", pa.list_(pa.int64()))]))
    too_large = pa.RecordBatch.from_arrays([days], names=["value"])
    with pytest.raises(SchemaRefused, match="a row does not fit the schema"):
        list(EncodedColumns({"value": registry_format(OPTIONS.registry, PINNED)}).encode(iter([too_large])))
    json_schema = PinnedSchema("t-value", 1, "JSON", "{}", 1)
    monkeypatch.setattr(schema_columns, "pin_schema", lambda *_: json_schema)
    with pytest.raises(OptionError, match=r"of type JSON: set value\.format to json"):
        writer(more=StringType())


KEY_OPTIONS = replace(OPTIONS, part="key", subject="t-key")
RECORD_KEY = json.dumps({"type": "record", "name": "K", "fields": [{"name": "id", "type": "long"}]})
#: a schema of keys in each language, a key, and the column that it becomes
KEYS = {
    "record": ("AVRO", RECORD_KEY, {"id": 7}, "struct<id:bigint>"),
    "long": ("AVRO", '"long"', 7, "bigint"),
    "string": ("JSON", '{"type": "string"}', "a", "string"),
    "object": ("JSON", '{"type": "object", "properties": {"id": {"type": "integer"}}}', {"id": 7}, "struct<id:bigint>"),
    "message": ("PROTOBUF", 'syntax = "proto3"; message K { int64 id = 1; }', {"id": 7}, "struct<id:bigint>"),
}


@pytest.mark.parametrize(("schema_type", "text", "key", "column"), KEYS.values(), ids=KEYS)
def test_keys_of_all_languages_are_structs_or_primitives(
    monkeypatch: pytest.MonkeyPatch, schema_type: str, text: str, key: Any, column: str
) -> None:
    pinned = PinnedSchema("t-key", 5, schema_type, text, 1)
    monkeypatch.setattr(schema_columns, "pin_schema", lambda *_: pinned)
    options = replace(KEY_OPTIONS, schema_type=schema_type)
    fields = [StructField("key", BinaryType()), *added_fields([options])]
    assert [(field.name, field.dataType.simpleString()) for field in fields[1:]] == [
        ("decoded_key", column), ("_key_cause", "string"),
    ]  # fmt: skip
    writer = EncodedColumns.of([options], StructType([StructField("key", fields[1].dataType)]))
    kind = make_decoder(registry_format(options.registry, pinned)).type
    [written] = writer.encode(iter([pa.RecordBatch.from_arrays([pa.array([key, None], kind)], names=["key"])]))
    assert written.column(0)[0].as_py()[:5] == b"\0\0\0\0\5"
    given = pa.array([*written.column(0).to_pylist(), b"no frame"])
    reader = DecodedColumns.of([options], StructType(fields))
    assert reader is not None and reader.read_columns == ["key", "headers"]
    rows = reader.converter()(with_headers(pa.RecordBatch.from_arrays([given], names=["key"]))).to_pylist()
    # A record without a key is no error: there is nothing to decode.
    assert [(row["decoded_key"], row["_key_cause"]) for row in rows] == [
        (key, None), (None, None), (None, "bad magic: the first byte is 110, not 0"),
    ]  # fmt: skip


def test_keys_and_values_have_schemas_and_versions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = {"t-value": PINNED, "t-key": PinnedSchema("t-key", 2, "AVRO", '"long"', 9)}
    monkeypatch.setattr(schema_columns, "pin_schema", lambda _, subject, version: pins[subject])
    fields = added_fields([OPTIONS, KEY_OPTIONS])
    assert [field.name for field in fields] == ["decoded", "_cause", "decoded_key", "_key_cause"]
    assert [fields[at].metadata for at in (0, 2)] == [{"ottla.schema.version": 3}, {"ottla.schema.version": 9}]
    reader = DecodedColumns.of([OPTIONS, KEY_OPTIONS], StructType([fields[2]]))
    assert reader is not None and list(reader.formats) == ["key"] and reader.read_columns == ["key", "headers"]


def test_keys_that_do_not_fit_the_schema_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_columns, "pin_schema", lambda *_: PinnedSchema("t-key", 2, "AVRO", '"int"', 1))

    def writer(*fields: StructField) -> EncodedColumns:
        return EncodedColumns.of([KEY_OPTIONS], StructType([*fields, StructField("value", BinaryType())]))

    with pytest.raises(RowsRefused, match=r"with key\.format, the rows need a column key"):
        writer()
    with pytest.raises(RowsRefused, match=r"key is struct<id:bigint>, and the schema of subject t-key has int"):
        writer(StructField("key", StructType([StructField("id", LongType())])))
    too_large = pa.RecordBatch.from_arrays([pa.array([1 << 40])], names=["key"])
    with pytest.raises(SchemaRefused, match="a row does not fit the schema"):
        list(writer(StructField("key", LongType())).encode(iter([too_large])))


@pytest.mark.parametrize(
    ("schema_type", "kind", "expected"),
    [
        ("AVRO", pa.int64(), '"long"'),
        ("AVRO", pa.struct([("id", pa.int32())]),
         '{"type": "record", "name": "t_key", "fields": [{"name": "id", "type": ["null", "int"], "default": null}]}'),
        ("JSON", pa.string(),
         '{"$schema": "http://json-schema.org/draft-07/schema#", "title": "t_key", "type": "string"}'),
    ],
)  # fmt: skip
def test_schema_of_keys_is_derived_from_their_column(
    monkeypatch: pytest.MonkeyPatch, schema_type: str, kind: pa.DataType, expected: str
) -> None:
    asked: list[tuple[str, str]] = []

    def register(_: Any, subject: str, schema_type: str, text: str, *, auto_register: bool) -> PinnedSchema:
        asked.append((subject, text))
        return PinnedSchema(subject, 1, schema_type, text)

    monkeypatch.setattr(schema_columns, "register_schema", register)
    options = replace(KEY_OPTIONS, use_latest=False, schema_type=schema_type)
    EncodedColumns.of([options], StructType([StructField("key", spark_type_of(kind))]))
    assert asked == [("t-key", expected)]


def test_schema_id_in_a_header_counts_more_than_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = PinnedSchema("t-key", 5, "AVRO", '"long"', 1)
    monkeypatch.setattr(schema_columns, "pin_schema", lambda *_: pinned)
    monkeypatch.setattr(RegistrySchemas, "find_guid", lambda _, guid: 5 if guid.endswith("1") else None)
    reader = DecodedColumns.of([KEY_OPTIONS], StructType(added_fields([KEY_OPTIONS])))
    assert reader is not None
    headers = [[{"key": "__key_schema_id", "value": b"\1" + bytes(15) + bytes([last])}] for last in (1, 2)]
    # Without its header, the first key would have an unknown id, and the last one is framed.
    keys = pa.RecordBatch.from_arrays([pa.array([b"\0", b"\2", b"\0\0\0\0\5\4"])], names=["key"])
    rows = reader.converter()(with_headers(keys, *headers, None)).to_pylist()
    assert rows == [
        {"decoded_key": 0, "_key_cause": None},
        {"decoded_key": None, "_key_cause": "unknown schema id: 00000000-0000-0000-0000-000000000002"},
        {"decoded_key": 2, "_key_cause": None},
    ]
