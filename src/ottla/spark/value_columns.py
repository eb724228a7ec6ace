"""What ``value.format`` does: values of a topic as a struct in the rows of a reader, and the reverse in a writer.

The reader schema is chosen when Spark asks for the columns of a DataFrame. Its version is stored in the metadata of the
column ``decoded``, so that the process that plans the read, and the tasks, use the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from ottla.spark.columns import RowsRefused
from ottla.spark.derived_schemas import derived_schema
from ottla.spark.formats import (
    CAUSE,
    DECODED,
    Avro,
    JsonSchema,
    Protobuf,
    make_decoder,
    make_encoder,
    registry_format,
)
from ottla.spark.options import OptionError
from ottla.spark.reading import ColumnsRefused, Convert
from ottla.spark.registry_schemas import LATEST, PinnedSchema, pin_schema, register_schema
from ottla.spark.spark_internals import arrow_schema_of, spark_type_of
from ottla.spark.value_options import FORMAT, ValueOptions
from ottla.spark.wire_format import SchemaRefused

ADDED: Final = (DECODED, CAUSE)
_VERSION: Final = "ottla.schema.version"
_VALUE: Final = "value"


def added_fields(values: ValueOptions) -> list[StructField]:
    """Return the columns that decoding adds, with the version of the schema in their metadata."""
    pinned = _pin(values, values.version)
    decoder = make_decoder(registry_format(values.registry, pinned, values.message))
    return [
        StructField(DECODED, spark_type_of(decoder.type), metadata={_VERSION: pinned.version}),
        StructField(CAUSE, StringType()),
    ]


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """Adds the decoded columns to rows. Spark pickles it for the tasks."""

    format: Avro | Protobuf | JsonSchema
    #: all columns of the rows, as Spark expects them
    schema: pa.Schema

    @classmethod
    def of(cls, values: ValueOptions, schema: StructType) -> Self | None:
        """Return what to add to rows of this schema; None if it has none of the decoded columns.

        Raise ColumnsRefused if the columns have other types than the schema of the registry.
        """
        if not any(name in ADDED for name in schema.fieldNames()):
            return None
        stored = next((field.metadata for field in schema.fields if field.name == DECODED), {})
        pinned = _pin(values, str(stored.get(_VERSION, values.version)))
        format = registry_format(values.registry, pinned, values.message)
        rows = spark_type_of(make_decoder(format).type)
        for field in schema.fields:
            if field.name == DECODED and field.dataType != rows:
                raise ColumnsRefused(
                    f"the column {DECODED} is of type {rows.simpleString()}, not {field.dataType.simpleString()}"
                )
            if field.name == CAUSE and field.dataType != StringType():
                raise ColumnsRefused(f"the column {CAUSE} is of type string, not {field.dataType.simpleString()}")
        return cls(format, arrow_schema_of(schema))

    @property
    def read_columns(self) -> list[str]:
        """The columns of the topic that are needed."""
        names = [name for name in self.schema.names if name not in ADDED]
        return names if _VALUE in names else [*names, _VALUE]

    def converter(self) -> Convert:
        """Return the function that adds the columns, with a decoder of its own."""
        decoder = make_decoder(self.format)

        def add(rows: pa.RecordBatch) -> pa.RecordBatch:
            decoded, causes = decoder.decode(rows.column(_VALUE))
            added: Mapping[str, pa.Array] = {DECODED: decoded, CAUSE: pa.array(causes, pa.string())}
            arrays = [added[name] if name in added else rows.column(name) for name in self.schema.names]
            # Spark names the items of arrays and maps differently.
            cast = [array.cast(field.type) for array, field in zip(arrays, self.schema, strict=True)]
            return pa.RecordBatch.from_arrays(cast, schema=self.schema)

        return add


@dataclass(frozen=True, slots=True)
class EncodedValues:
    """Encodes the column ``value`` of rows. Spark pickles it for the tasks."""

    format: Avro | Protobuf | JsonSchema

    @classmethod
    def of(cls, values: ValueOptions, schema: StructType) -> Self:
        """Return the encoder for rows with these columns; the schema is registered or looked up here, on the driver.

        Raise RowsRefused if ``value`` is no struct, or has fields that the schema does not have.
        """
        field = next((each for each in schema.fields if each.name == _VALUE), None)
        if field is None or not isinstance(field.dataType, StructType):
            raise RowsRefused(f"with {FORMAT}, the column value must be a struct: write struct(*) AS value")
        rows = pa.struct(list(arrow_schema_of(field.dataType)))
        if values.use_latest:
            pinned = _pin(values, LATEST)
        else:
            text = values.schema or derived_schema(values.schema_type, rows, values.subject.removesuffix("-value"))
            pinned = register_schema(
                values.registry, values.subject, values.schema_type, text, auto_register=values.auto_register
            )
        format = registry_format(values.registry, pinned, values.message)
        known = [each.name for each in make_encoder(format).type]
        unknown = [each.name for each in rows if each.name not in known]
        if unknown:
            raise RowsRefused(f"the schema of subject {values.subject} has no field {', '.join(unknown)}: leave it out")
        return cls(format)

    def encode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with bytes in the column ``value``. Raise SchemaRefused if a row does not fit."""
        encoder = make_encoder(self.format)
        for batch in batches:
            at = batch.schema.get_field_index(_VALUE)
            rows = batch.column(at)
            given = [field for field in encoder.type if rows.type.get_field_index(field.name) >= 0]
            try:
                arrays = [rows.field(field.name).cast(field.type) for field in given]
            except pa.ArrowInvalid as error:
                raise SchemaRefused(f"a row does not fit the schema ({error}): cast its columns") from None
            typed = pa.StructArray.from_arrays(arrays, fields=given, mask=rows.is_null())
            yield batch.set_column(at, pa.field(_VALUE, pa.binary()), encoder.encode(typed))


def _pin(values: ValueOptions, version: str) -> PinnedSchema:
    pinned = pin_schema(values.registry, values.subject, version)
    if pinned.schema_type != values.schema_type:
        raise OptionError(
            f"subject {values.subject} has a schema of type {pinned.schema_type}: set {FORMAT} to "
            f"{pinned.schema_type.lower()}"
        )
    return pinned
