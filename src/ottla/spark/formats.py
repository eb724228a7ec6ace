"""Bytes of a topic as columns, and columns as bytes: JSON, Avro and Protobuf, with Confluent's framing or without.

    orders = decode(rows, Avro(SchemasById({1: old, 2: new}), framed=True))
    good, bad = accepted(orders), rejected(orders)

``decode`` keeps every row: a row that cannot be decoded has null in ``decoded`` and a text in ``_cause``, and its bytes
are still in their column. A cause begins with one of ``wire_format.Cause``. ``encode`` writes the framing if the format
has a ``schema_id``. ``registry_format`` is the format of values whose schemas are in a schema registry.
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
from ottla.spark.header_ids import frame_by_headers, header_name
from ottla.spark.json_schema import JsonDecoder, JsonEncoder
from ottla.spark.protobuf import ProtobufDecoder, ProtobufEncoder, compile_schemas
from ottla.spark.registry_schemas import PinnedSchema, RegistrySchemas, RegistrySettings
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
    #: values to decode begin with a schema id
    framed: bool = False
    #: schema ids that are accepted; values name their fields, so no schema is needed for each id
    ids: Sequence[int] = ()
    #: accept every schema id
    any_id: bool = False
    #: ``encode`` writes it before each value
    schema_id: int | None = None

    def __post_init__(self) -> None:
        if self.framed and not self.ids and not self.any_id:
            raise SchemaRefused("the values are framed and no schema id is known: give ids, or any_id=True")


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


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON with a schema of a registry; `Json` has a schema of Spark."""

    schemas: RegistrySchemas
    framed: bool = True
    schema_id: int | None = None


RegistryFormat = Avro | Protobuf | JsonSchema
Format = Json | RegistryFormat


def registry_format(settings: RegistrySettings, schema: PinnedSchema, message: str | None = None) -> RegistryFormat:
    """Return the format of framed values: rows have this schema, and ``encode`` writes its id."""
    schemas = RegistrySchemas(settings, schema)
    if schema.schema_type == "AVRO":
        return Avro(schemas, framed=True, schema_id=schema.id)
    if schema.schema_type == "PROTOBUF":
        return Protobuf(schemas, message, framed=True, schema_id=schema.id)
    return JsonSchema(schemas, schema_id=schema.id)


def decode(
    rows: DataFrame,
    format: Format,
    *,
    column: str = "value",
    into: str = DECODED,
    cause: str = CAUSE,
    headers: str | None = None,
) -> DataFrame:
    """Return the rows with two more columns: the decoded value, and the cause if the value cannot be decoded.

    `column` is `value` or `key`, and `headers` the column with the headers of the records. With schemas of a registry
    the schema id may be there.
    """
    if isinstance(format, Json):
        return _decode_json(rows, format, column, into, cause)
    work = _Decode(format)
    result = StructType([StructField("value", work.type), StructField("cause", StringType())])
    if headers is None or not isinstance(format.schemas, RegistrySchemas):

        def decode_values(values: pa.Array) -> pa.Array:
            return work.run(values)

        both = _vectorised(decode_values, result)(F.col(column))
    else:

        def decode_with_ids(values: pa.Array, ids: pa.Array) -> pa.Array:
            return work.run(values, ids, column)

        name = header_name(column)
        found = F.filter(F.col(headers), lambda header: header["key"] == name)
        both = _vectorised(decode_with_ids, result)(F.col(column), F.try_element_at(found, F.lit(-1))["value"])
    return _split(rows.withColumn(_CORRUPT, both), F.col(_CORRUPT)["value"], F.col(_CORRUPT)["cause"], into, cause)


def accepted(rows: DataFrame, *, cause: str = CAUSE) -> DataFrame:
    """Return the rows that were decoded."""
    return rows.where(F.col(cause).isNull()).drop(cause)


def rejected(rows: DataFrame, *, into: str = DECODED, cause: str = CAUSE) -> DataFrame:
    """Return the rows that were not decoded, with their own columns and the cause."""
    return rows.where(F.col(cause).isNotNull()).drop(into)


def encode(rows: DataFrame, format: Format, *, columns: Sequence[str] | None = None, into: str = "value") -> DataFrame:
    """Return the rows with one more column: ``columns``, by default all, encoded as bytes."""
    names = list(columns if columns is not None else rows.columns)
    packed = F.struct(*(F.col(f"`{name}`") for name in names))
    if isinstance(format, Json):
        text = F.to_json(packed).cast("binary")
        return rows.withColumn(into, text if format.schema_id is None else F.concat(_header(format.schema_id), text))
    work = _Encode(format)
    _check_fields(names, work.type)
    return _encode(rows, work, packed, names, into)


def encode_column(
    rows: DataFrame, format: RegistryFormat, column: Column, *, into: str, kind: DataType | None = None
) -> DataFrame:
    """Return the rows with one more column: this one, a struct or not, encoded as bytes. Null stays null.

    `kind` is its type. Without it a struct must have all fields of the schema: to find the type would ask Spark, which
    Spark forbids in the functions of a declarative pipeline.
    """
    work = _Encode(format)
    wanted: DataType = work.type
    if kind is not None:
        check_encodable(format, kind)
        names = kind.names if isinstance(kind, StructType) else None
    elif isinstance(wanted, StructType):
        names = wanted.names
        all_fields = F.struct(*(column[name].alias(name) for name in names))
        column = F.when(column.isNotNull(), all_fields)
    else:
        names = None
    return _encode(rows, work, column, names, into)


def check_encodable(format: RegistryFormat, kind: DataType) -> None:
    """Raise SchemaRefused if columns of this type cannot be encoded: no struct, or fields that the schema has not."""
    wanted: DataType = _Encode(format).type
    if isinstance(kind, StructType) != isinstance(wanted, StructType):
        raise SchemaRefused(f"the schema has {wanted.simpleString()}, not {kind.simpleString()}: select other columns")
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        _check_fields(kind.names, wanted)


def _check_fields(names: Sequence[str], wanted: StructType) -> None:
    unknown = sorted(set(names) - set(wanted.fieldNames()))
    if unknown:
        raise SchemaRefused(f"the schema has no field {', '.join(unknown)}: leave them out of columns")


def _encode(rows: DataFrame, work: _Encode, column: Column, names: Sequence[str] | None, into: str) -> DataFrame:
    """Encode a column; `names` are the fields of a struct."""
    kind: DataType = work.type if names is None else StructType([work.type[name] for name in names])

    def encode_rows(values: pa.Array) -> pa.Array:
        return work.run(values)

    # Cast first, so that a column that does not fit is found by Spark, which can say which.
    return rows.withColumn(into, _vectorised(encode_rows, BinaryType())(column.cast(kind)))


# -- Avro, Protobuf, JSON Schema ------------------------------------------------------------------------------------


def _vectorised(work: Callable[..., pa.Array], result: DataType) -> Callable[..., Column]:
    # Spark's stubs ask for an argument of which Spark itself warns: the kind is found by the annotations.
    made = F.arrow_udf(work, result)  # type: ignore[call-overload]
    # Otherwise a filter on the cause is moved below, and every value is decoded once for it and once for its row.
    once: Callable[..., Column] = made.asNondeterministic()
    return once


class _Work:
    """What tasks do with a column. Schemas are compiled where they are used: nothing compiled travels."""

    def __init__(self, format: RegistryFormat) -> None:
        self.format = format

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.format,)


def make_decoder(format: RegistryFormat) -> AvroDecoder | ProtobufDecoder | JsonDecoder:
    """Return the decoder of a format. Raise SchemaRefused if its schema cannot be used."""
    if isinstance(format, Avro):
        return AvroDecoder(format.schemas, framed=format.framed)
    if isinstance(format, Protobuf):
        return ProtobufDecoder(format.schemas, format.message, framed=format.framed)
    return JsonDecoder(format.schemas, dict(format.schemas.reader.references), framed=format.framed)


def make_encoder(format: RegistryFormat) -> AvroEncoder | ProtobufEncoder | JsonEncoder:
    """Return the encoder of a format. Raise SchemaRefused if its schema cannot be used."""
    schema = format.schemas.latest()
    if isinstance(format, Avro):
        return AvroEncoder(schema, schema_id=format.schema_id)
    if isinstance(format, Protobuf):
        return ProtobufEncoder(schema, format.message, schema_id=format.schema_id)
    return JsonEncoder(schema, dict(format.schemas.reader.references), schema_id=format.schema_id)


def decode_part(
    decoder: AvroDecoder | ProtobufDecoder | JsonDecoder,
    format: RegistryFormat,
    values: pa.Array,
    ids: pa.Array | None,
    part: str,
) -> tuple[pa.Array, list[str | None]]:
    """Return decoded keys or values and the causes of rejected ones. `ids` are headers with their schema ids."""
    if ids is None or ids.null_count == len(ids):
        return decoder.decode(values)
    assert isinstance(format.schemas, RegistrySchemas), "guids are looked up in a registry"
    framed, rejected = frame_by_headers(values, ids, part, format.schemas.find_guid)
    decoded, causes = decoder.decode(framed)
    for row, cause in rejected.items():
        causes[row] = cause
    return decoded, causes


class _Decode(_Work):
    @cached_property
    def decoder(self) -> AvroDecoder | ProtobufDecoder | JsonDecoder:
        return make_decoder(self.format)

    @property
    def type(self) -> Any:
        return spark_type_of(self.decoder.type)

    def run(self, values: pa.Array, ids: pa.Array | None = None, part: str = "") -> pa.Array:
        decoded, causes = decode_part(self.decoder, self.format, values, ids, part)
        return pa.StructArray.from_arrays([decoded, pa.array(causes, pa.string())], names=["value", "cause"])


class _Encode(_Work):
    @cached_property
    def encoder(self) -> AvroEncoder | ProtobufEncoder | JsonEncoder:
        return make_encoder(self.format)

    @property
    def type(self) -> Any:
        return spark_type_of(self.encoder.type)

    def run(self, rows: pa.Array) -> pa.Array:
        return self.encoder.encode(rows)


# -- JSON -----------------------------------------------------------------------------------------------------------


def _decode_json(rows: DataFrame, format: Json, column: str, into: str, cause: str) -> DataFrame:
    """Decode with Spark's own parser, which keeps the text of values that it cannot parse."""
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
        .when(F.trim(raw) == "", _json_cause(Cause.NOT_JSON, value, format))
        .when(F.trim(raw) == "null", _json_cause(Cause.NULL_VALUE, value, format))
        .when(row.isNull(), _json_cause(Cause.TYPE_MISMATCH, value, format))
        .when(row[_CORRUPT].isNull(), F.lit(None).cast("string"))
        # Only rejected rows are parsed a second time, to distinguish bytes that are no JSON from a wrong type.
        .when(F.get_json_object(raw, "$").isNull(), _json_cause(Cause.NOT_JSON, value, format))
        .otherwise(_json_cause(Cause.TYPE_MISMATCH, value, format))
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
    """Return the cause that ``unframe`` gives a value without a valid header, or an unknown id; null for the others."""
    size, magic = F.length(value), F.conv(F.hex(F.substring(value, 1, 1)), 16, 10)
    bad_magic = F.format_string(f"{Cause.BAD_MAGIC}: the first byte is %s, not 0", magic)
    truncated = F.format_string(f"{Cause.TRUNCATED}: %d bytes are too few for a schema id", size)
    why = F.when((size > 0) & (magic != "0"), bad_magic).when(size < _HEADER_BYTES, truncated)
    if not format.any_id:
        unknown = F.format_string(f"{Cause.UNKNOWN_ID}: %d", _schema_id(value))
        why = why.when(~_schema_id(value).isin(*format.ids), unknown)
    return why


def _json_cause(cause: Cause, value: Column, format: Json) -> Column:
    if not format.framed:
        return F.lit(str(cause))
    return F.format_string(f"{cause}: schema id %d", _schema_id(value))


def _schema_id(value: Column) -> Column:
    return F.conv(F.hex(F.substring(value, 2, 4)), 16, 10).cast("bigint")


def _header(schema_id: int) -> Column:
    return F.unhex(F.lit(f"00{schema_id:08x}"))


def _split(rows: DataFrame, value: Column, why: Column, into: str, cause: str) -> DataFrame:
    # Not with drop(): Spark Connect would analyse the plan for it, which fails in a declarative pipeline.
    return rows.withColumns({into: value, cause: why}).selectExpr(f"* EXCEPT ({_CORRUPT})")
