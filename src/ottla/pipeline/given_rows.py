"""The inputs of a flow under test: rows that a test gives, as DataFrames in the columns that the flow reads.

Inputs that the flow decodes are records: fields are encoded, so that the decoding of the flow is part of the test.
A record can also be given as bytes, to see what becomes of one that cannot be decoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.pipeline.declaration import Source
from ottla.pipeline.lineage import OFFSET, PARTITION, RAW_COLUMNS, TIMESTAMP, TOPIC
from ottla.pipeline.row_values import BadValue, convert_row, convert_value
from ottla.spark import formats
from ottla.spark.spark_internals import arrow_schema_of
from ottla.spark.table_log import INSERT
from ottla.spark.table_schema import CHANGE_TYPE
from ottla.spark.wire_format import SchemaRefused, frame

Rows = Sequence[Mapping[str, Any]]

#: of records and rows without a time of their own
TIMESTAMP_DEFAULT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_RAW_TYPES: Final = {"BINARY": BinaryType(), "STRING": StringType(), "INT": IntegerType(), "BIGINT": LongType(),
                     "TIMESTAMP": TimestampType(), RAW_COLUMNS["headers"]: ArrayType(_HEADER)}  # fmt: skip
RAW_SCHEMA: Final = StructType([StructField(name, _RAW_TYPES[kind]) for name, kind in RAW_COLUMNS.items()])
#: before the names of columns of the record, where those of the value are beside them
_RAW: Final = "__raw_"
#: of given rows that become framed values. Registries count from 1, so no producer has it.
_SCHEMA_ID: Final = (1 << 31) - 1


def accept_given_rows(source: Source) -> Source:
    """Return a source that also decodes given rows: values with their schema id have the schema of the source."""
    framing = source.framing
    if framing is None or framing.any_id:
        return source
    return replace(source, framing=replace(framing, schema_files={**framing.schema_files, _SCHEMA_ID: None}))


def given_rows(spark: SparkSession, schema: StructType, rows: Rows, topic: str) -> DataFrame:
    """Return rows of a stored flow. Positions that a row does not have are those of one topic, in the given order."""
    return frame_of(spark, schema, [_row(at, row, schema, topic) for at, row in enumerate(rows)])


def key_encoder(format: formats.RegistryFormat | None, kind: DataType) -> Callable[[Any], Any]:
    """Return the function that makes the key of a record of a given `_key`: of this type, or {base64: BYTES}."""
    if format is None:
        return lambda key: key
    encoder = formats.make_encoder(format)
    arrow = arrow_schema_of(StructType([StructField("key", kind)])).field(0).type

    def encode(key: Any) -> Any:
        if key is None or (isinstance(key, Mapping) and list(key) == ["base64"]):
            return key
        return encoder.encode(pa.array([convert_value(key, kind)], arrow))[0].as_py()

    return encode


def given_records(
    spark: SparkSession,
    source: Source,
    format: formats.Format | None,
    fields: StructType,
    rows: Rows,
    *,
    encode_key: Callable[[Any], Any],
) -> DataFrame:
    """Return records of a source, in the columns of the raw zone. `fields` is the schema of its decoded values.

    A row with `value` (text, bytes, or a mapping for JSON) is a record; the columns of another one are the fields of
    its value. `_key` is the key of the record in both.
    """
    records, encoded = [], []
    for at, row in enumerate(rows):
        about = {name: value for name, value in row.items() if _is_about_record(name, fields)}
        own = {name: value for name, value in row.items() if name not in about}
        renamed = {name: value for name, value in about.items() if name != "_key"}
        if "_key" in about:
            with _in_row(at, "_key: "):
                renamed["key"] = encode_key(about["_key"])
        record = _row(at, renamed, RAW_SCHEMA, source.topic)
        if format is None or ("value" in own and "value" not in fields.names):
            record["value"] = _record_value(at, own)
        elif isinstance(format, formats.Json):
            record["value"] = _json_value(at, own, fields, framed=format.framed)
        else:
            own = _checked(at, own, fields)
            encoded.append({**{_RAW + name: value for name, value in record.items()}, **own})
            continue
        records.append(record)
    result = frame_of(spark, RAW_SCHEMA, records)
    if encoded:
        assert format is not None and not isinstance(format, formats.Json), "these are encoded above"
        result = result.unionByName(_encode(spark, format, fields, encoded))
    return result


def frame_of(spark: SparkSession, schema: StructType, rows: Rows) -> DataFrame:
    """Return rows of converted values as a DataFrame; a column that a row does not have is null."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema_of(schema))
    return spark.createDataFrame(table, schema=schema)


def json_text(value: Any) -> str:
    """Return a value as JSON. Decimals keep their digits, times are text.

    >>> json_text({"a": [Decimal("1.50"), None, True], "at": datetime(2026, 1, 31, tzinfo=UTC)})
    '{"a": [1.50, null, true], "at": "2026-01-31T00:00:00+00:00"}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(name))}: {json_text(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(json_text, value)) + "]"
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date):
        return json.dumps(value.isoformat())
    return json.dumps(value)


def _is_about_record(name: str, fields: StructType) -> bool:
    """Return whether a column belongs to the record and not to its value."""
    return name.startswith("_") or (name in ("key", "headers") and name not in fields.names)


def _record_value(at: int, own: Mapping[str, Any]) -> bytes | None:
    for name in own:
        if name != "value":
            raise BadValue(f"row {at + 1}: a record has no {name!r}; write it inside of 'value'")
    value = own.get("value")
    if isinstance(value, list) or (isinstance(value, Mapping) and list(value) != ["base64"]):
        return json_text(value).encode()
    with _in_row(at, "value: "):
        converted: bytes | None = convert_value(value, BinaryType())
    return converted


def _json_value(at: int, own: Mapping[str, Any], fields: StructType, *, framed: bool) -> bytes:
    # Only names are checked: a value of a wrong type is a record that cannot be decoded.
    _checked(at, dict.fromkeys(own), fields)
    payload = json_text(own).encode()
    return frame(_SCHEMA_ID, payload) if framed else payload


def _encode(
    spark: SparkSession,
    format: formats.Avro | formats.Protobuf | formats.JsonSchema,
    fields: StructType,
    rows: Rows,
) -> DataFrame:
    about = [StructField(_RAW + field.name, field.dataType) for field in RAW_SCHEMA]
    flat = frame_of(spark, StructType([*about, *fields]), rows)
    if format.framed and format.schema_id is None:
        format = replace(format, schema_id=_SCHEMA_ID)
    encoded = formats.encode(flat, format, columns=fields.names, into=f"{_RAW}value")
    return encoded.select(*(F.col(_RAW + name).alias(name) for name in RAW_SCHEMA.names))


def _row(at: int, row: Mapping[str, Any], schema: StructType, topic: str) -> dict[str, Any]:
    """Return a converted row, with a position if it has none."""
    position = {TOPIC: topic, PARTITION: 0, OFFSET: at, TIMESTAMP: TIMESTAMP_DEFAULT, CHANGE_TYPE: INSERT}
    known = {name: value for name, value in position.items() if name in schema.names}
    return known | _checked(at, row, schema)


def _checked(at: int, row: Mapping[str, Any], schema: StructType) -> dict[str, Any]:
    with _in_row(at):
        return convert_row(row, schema)


@contextmanager
def _in_row(at: int, part: str = "") -> Iterator[None]:
    """Name the row, and the part of it, in errors of the block. Raise BadValue."""
    try:
        yield
    except (BadValue, SchemaRefused) as bad:
        raise BadValue(f"row {at + 1}: {part}{bad}") from None
