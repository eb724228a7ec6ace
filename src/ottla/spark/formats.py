"""Bytes of a topic as columns, and columns as bytes: JSON, Avro and Protobuf, with Confluent's schema ids or without.

    orders = decode(rows, Avro(read_schema("order.avsc"), framed=True))
    good, bad = accepted(orders), rejected(orders)

``decode`` loses no row: what cannot be decoded has null in ``decoded`` and a text in ``_cause``, and its bytes are
still in their column. A cause begins with one of ``wire_format.Cause``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from ottla.spark.avro import AvroDecoder, AvroEncoder
from ottla.spark.protobuf import ProtobufDecoder, ProtobufEncoder, compile_schemas
from ottla.spark.spark_internals import spark_type_of
from ottla.spark.wire_format import Cause, SchemaRefused, SchemaSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DECODED = "decoded"
CAUSE = "_cause"
_CORRUPT = "_corrupt"
_HEADER_BYTES = 5


@dataclass(frozen=True, slots=True)
class Json:
    """JSON objects. Schema is Spark's: ``id bigint, at timestamp``, or a StructType."""

    schema: str | StructType
    #: the value begins with a schema id
    framed: bool = False
    #: ids that are accepted; empty is any
    ids: Sequence[int] = ()
    #: written before a value by ``encode``
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class Avro:
    schemas: SchemaSource
    framed: bool = False
    schema_id: int | None = None


@dataclass(frozen=True, slots=True)
class Protobuf:
    #: texts of .proto files are compiled at once, so that tasks need no compiler
    schemas: SchemaSource
    #: full name; the first message of the schema when it is left out
    message: str | None = None
    framed: bool = False
    schema_id: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schemas", compile_schemas(self.schemas))


Format = Json | Avro | Protobuf


def decode(
    rows: DataFrame, format: Format, *, column: str = "value", into: str = DECODED, cause: str = CAUSE
) -> DataFrame:
    """Rows with a column more that has the decoded value, and one that says why it has not."""
    if isinstance(format, Json):
        return _decode_json(rows, format, column, into, cause)
    work = _Decode(format)

    def decode_values(values: pa.Array) -> pa.Array:
        return work.run(values)

    result = StructType([StructField("value", work.type), StructField("cause", StringType())])
    both = _vectorised(decode_values, result)(F.col(column))
    return _split(rows.withColumn(_CORRUPT, both), F.col(_CORRUPT)["value"], F.col(_CORRUPT)["cause"], into, cause)


def accepted(rows: DataFrame, *, cause: str = CAUSE) -> DataFrame:
    """The rows that were decoded."""
    return rows.where(F.col(cause).isNull()).drop(cause)


def rejected(rows: DataFrame, *, into: str = DECODED, cause: str = CAUSE) -> DataFrame:
    """The rows that were not: all columns they came with, and the cause."""
    return rows.where(F.col(cause).isNotNull()).drop(into)


def encode(rows: DataFrame, format: Format, *, columns: Sequence[str] | None = None, into: str = "value") -> DataFrame:
    """Rows with a column more of bytes that hold ``columns``, or all; the other columns stay."""
    names = list(columns if columns is not None else rows.columns)
    packed = F.struct(*(F.col(f"`{name}`") for name in names))
    if isinstance(format, Json):
        text = F.to_json(packed).cast("binary")
        return rows.withColumn(into, text if format.schema_id is None else F.concat(_header(format.schema_id), text))
    work = _Encode(format)
    unknown = sorted(set(names) - set(work.type.fieldNames()))
    if unknown:
        raise SchemaRefused(f"the schema has no field {', '.join(unknown)}: leave them out of columns")
    # Cast first, so that a column that does not fit is found by Spark, which can say which.
    typed = packed.cast(StructType([work.type[name] for name in names]))

    def encode_rows(values: pa.Array) -> pa.Array:
        return work.run(values)

    return rows.withColumn(into, _vectorised(encode_rows, BinaryType())(typed))


# -- Avro and Protobuf ----------------------------------------------------------------------------------------------


def _vectorised(work: Callable[[pa.Array], pa.Array], result: DataType) -> Callable[[Column], Column]:
    # Spark's stubs ask for an argument of which Spark itself warns: the kind is found by the annotations.
    made = F.arrow_udf(work, result)  # type: ignore[call-overload]
    # Otherwise a filter on the cause is moved below, and every value is decoded once for it and once for its row.
    once: Callable[[Column], Column] = made.asNondeterministic()
    return once


class _Work:
    """What tasks do with a column. Schemas are compiled where they are used: nothing compiled travels."""

    def __init__(self, format: Avro | Protobuf) -> None:
        self.format = format

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.format,)


class _Decode(_Work):
    @cached_property
    def decoder(self) -> AvroDecoder | ProtobufDecoder:
        if isinstance(self.format, Avro):
            return AvroDecoder(self.format.schemas, framed=self.format.framed)
        return ProtobufDecoder(self.format.schemas, self.format.message, framed=self.format.framed)

    @property
    def type(self) -> Any:
        return spark_type_of(self.decoder.type)

    def run(self, values: pa.Array) -> pa.Array:
        decoded, causes = self.decoder.decode(values)
        return pa.StructArray.from_arrays([decoded, pa.array(causes, pa.string())], names=["value", "cause"])


class _Encode(_Work):
    @cached_property
    def encoder(self) -> AvroEncoder | ProtobufEncoder:
        schema = self.format.schemas.latest()
        if isinstance(self.format, Avro):
            return AvroEncoder(schema, schema_id=self.format.schema_id)
        return ProtobufEncoder(schema, self.format.message, schema_id=self.format.schema_id)

    @property
    def type(self) -> Any:
        return spark_type_of(self.encoder.type)

    def run(self, rows: pa.Array) -> pa.Array:
        return self.encoder.encode(rows)


# -- JSON -----------------------------------------------------------------------------------------------------------


def _decode_json(rows: DataFrame, format: Json, column: str, into: str, cause: str) -> DataFrame:
    """By Spark's own parser, which keeps the text of what it could not read."""
    value = F.col(column)
    framing = _framing_cause(value, format) if format.framed else F.lit(None).cast("string")
    text = (F.substring(value, _HEADER_BYTES + 1, 1 << 30) if format.framed else value).cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = F.from_json(text, _with_corrupt(format.schema), options)
    # With a random number in it, Spark does not parse a second time for a filter on the cause.
    once = F.rand().alias("once")
    work = F.struct(parsed.alias("row"), text.alias("text"), framing.alias("framing"), once)
    found = F.col(_CORRUPT)
    row, raw = found["row"], found["text"]
    why = (
        F.when(value.isNull(), str(Cause.NULL_VALUE))
        .when(found["framing"].isNotNull(), found["framing"])
        .when(F.trim(raw) == "", str(Cause.NOT_JSON))
        .when(F.trim(raw) == "null", str(Cause.NULL_VALUE))
        .when(row.isNull(), F.lit(str(Cause.TYPE_MISMATCH)))
        .when(row[_CORRUPT].isNull(), F.lit(None).cast("string"))
        # A second look, for broken rows only: is it JSON at all?
        .when(F.get_json_object(raw, "$").isNull(), str(Cause.NOT_JSON))
        .otherwise(str(Cause.TYPE_MISMATCH))
    )
    clean = F.when(why.isNull(), row.dropFields(_CORRUPT))
    return _split(rows.withColumn(_CORRUPT, work), clean, why, into, cause)


def _with_corrupt(schema: str | StructType) -> str | StructType:
    """Return the schema with a column for text that is not JSON of this schema.

    A DDL text stays text: to parse it would ask Spark, which Spark forbids in the functions of a declarative pipeline.
    """
    if isinstance(schema, StructType):
        return StructType([*schema.fields, StructField(_CORRUPT, StringType())])
    return f"{schema}, {_CORRUPT} STRING"


def _framing_cause(value: Column, format: Json) -> Column:
    magic = F.hex(F.substring(value, 1, 1))
    schema_id = F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")
    why = F.when((F.length(value) > 0) & (magic != "00"), str(Cause.BAD_MAGIC)).when(
        F.length(value) < _HEADER_BYTES, str(Cause.TRUNCATED)
    )
    if format.ids:
        unknown = F.concat(F.lit(f"{Cause.UNKNOWN_ID}: "), schema_id.cast("string"))
        why = why.when(~schema_id.isin(*format.ids), unknown)
    return why


def _header(schema_id: int) -> Column:
    return F.unhex(F.lit(f"00{schema_id:08x}"))


def _split(rows: DataFrame, value: Column, why: Column, into: str, cause: str) -> DataFrame:
    # Not with drop(): Spark Connect would analyse the plan for it, which fails in a declarative pipeline.
    return rows.withColumns({into: value, cause: why}).selectExpr(f"* EXCEPT ({_CORRUPT})")
