"""Rows with decoded values as Spark expects them, and structs as encoded values; without a session."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from ottla.spark import value_columns
from ottla.spark.columns import RowsRefused
from ottla.spark.formats import make_decoder, registry_format
from ottla.spark.options import OptionError
from ottla.spark.reading import ColumnsRefused
from ottla.spark.registry_schemas import PinnedSchema, RegistrySettings
from ottla.spark.spark_internals import spark_type_of
from ottla.spark.value_columns import DecodedColumns, EncodedValues, added_fields
from ottla.spark.value_options import ValueOptions
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
OPTIONS = ValueOptions(
    schema_type="AVRO", registry=RegistrySettings("http://127.0.0.1:1"), subject="t-value", version="latest",
    message=None, schema=None, auto_register=True, use_latest=True,
)  # fmt: skip
ROW = {"l": [1, 2], "m": {"a": ["x", None]}, "d": date(2026, 1, 1), "n": Decimal("1.50"), "t": datetime(2026, 1, 1)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The versions that the registry was asked for. It has one schema."""
    versions: list[str] = []

    def pin(_: RegistrySettings, subject: str, version: str) -> PinnedSchema:
        versions.append(version)
        return PINNED

    monkeypatch.setattr(value_columns, "pin_schema", pin)
    return versions


def rows_of(schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    columns = DecodedColumns.of(OPTIONS, schema)
    assert columns is not None
    return columns.converter()


def test_rows_survive_encoding_and_decoding_in_the_types_of_spark(asked: list[str]) -> None:
    kind = make_decoder(registry_format(OPTIONS.registry, PINNED)).type
    given = pa.struct([field for field in kind if field.name != "more"])
    values = pa.RecordBatch.from_arrays([pa.array([ROW, None], given), pa.array([b"k", b"l"])], names=["value", "key"])
    [encoded] = EncodedValues(registry_format(OPTIONS.registry, PINNED)).encode(iter([values]))
    assert encoded.schema.names == ["value", "key"] and encoded.column(0)[1].as_py() is None
    rows = rows_of(StructType([StructField("value", spark_type_of(pa.binary())), *added_fields(OPTIONS)]))(encoded)
    [row, deleted] = rows.to_pylist(maps_as_pydicts="strict")
    assert row["decoded"] == {**ROW, "more": "none"} and row["_cause"] is None
    assert (deleted["decoded"], deleted["_cause"]) == (None, "null value")
    assert str(rows.schema.field("decoded").type.field("l").type) == "list<element: int32>"


def test_version_of_the_dataframe_is_read_by_all_processes(asked: list[str]) -> None:
    schema = StructType(added_fields(OPTIONS))
    assert schema["decoded"].metadata == {"ottla.schema.version": 3}
    columns = DecodedColumns.of(OPTIONS, schema)
    assert columns is not None and columns.read_columns == ["value"]
    assert asked == ["latest", "3"]
    assert DecodedColumns.of(OPTIONS, StructType([StructField("key", StringType())])) is None


def test_columns_of_other_types_are_refused(asked: list[str]) -> None:
    with pytest.raises(ColumnsRefused, match="the column decoded is of type struct<"):
        DecodedColumns.of(OPTIONS, StructType([StructField("decoded", LongType())]))
    with pytest.raises(ColumnsRefused, match="the column _cause is of type string, not bigint"):
        DecodedColumns.of(OPTIONS, StructType([StructField("_cause", LongType())]))


def test_rows_that_do_not_fit_the_schema_are_refused(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def writer(**fields: Any) -> EncodedValues:
        value = StructType([StructField(name, kind) for name, kind in fields.items()])
        return EncodedValues.of(OPTIONS, StructType([StructField("value", value)]))

    with pytest.raises(RowsRefused, match="has no field x, y"):
        writer(x=LongType(), y=LongType(), more=StringType())
    with pytest.raises(RowsRefused, match="value must be a struct"):
        EncodedValues.of(OPTIONS, StructType([StructField("value", StringType())]))
    writer(more=StringType())
    days = pa.array([{"l": [1 << 40]}], pa.struct([("l", pa.list_(pa.int64()))]))
    too_large = pa.RecordBatch.from_arrays([days], names=["value"])
    with pytest.raises(SchemaRefused, match="a row does not fit the schema"):
        list(EncodedValues(registry_format(OPTIONS.registry, PINNED)).encode(iter([too_large])))
    json_schema = PinnedSchema("t-value", 1, "JSON", "{}", 1)
    monkeypatch.setattr(value_columns, "pin_schema", lambda *_: json_schema)
    with pytest.raises(OptionError, match=r"of type JSON: set value\.format to json"):
        writer(more=StringType())
