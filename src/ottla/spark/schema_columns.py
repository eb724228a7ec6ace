"""What ``value.format`` and ``key.format`` do: decoded columns in the rows of a reader, and the reverse in a writer.

The reader schemas are chosen when Spark asks for the columns of a DataFrame. Their versions are stored in the metadata
of the decoded columns, so that the process that plans the read, and the tasks, use the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
from pyspark.sql.types import StringType, StructField, StructType

from ottla.spark.columns import RowsRefused
from ottla.spark.derived_schemas import derived_schema
from ottla.spark.formats import (
    CAUSE,
    DECODED,
    RegistryFormat,
    decode_part,
    make_decoder,
    make_encoder,
    registry_format,
)
from ottla.spark.header_ids import find_header_ids
from ottla.spark.options import OptionError
from ottla.spark.reading import ColumnsRefused, Convert
from ottla.spark.registry_schemas import LATEST, PinnedSchema, pin_schema, register_schema
from ottla.spark.schema_options import Part, SchemaOptions
from ottla.spark.spark_internals import arrow_schema_of, spark_type_of
from ottla.spark.wire_format import SchemaRefused, without_absent

#: the columns that decoding a part adds: what it is, and why it cannot be decoded
ADDED: Final[Mapping[Part, tuple[str, str]]] = {"value": (DECODED, CAUSE), "key": ("decoded_key", "_key_cause")}
_VERSION: Final = "ottla.schema.version"
#: serializers may put schema ids there
_HEADERS: Final = "headers"


def added_fields(schemas: Sequence[SchemaOptions]) -> list[StructField]:
    """Return the columns that decoding adds, with the versions of the schemas in their metadata."""
    fields = []
    for options in schemas:
        decoded, cause = ADDED[options.part]
        pinned = _pin(options, options.version)
        decoder = make_decoder(registry_format(options.registry, pinned, options.message))
        fields.append(StructField(decoded, spark_type_of(decoder.type), metadata={_VERSION: pinned.version}))
        fields.append(StructField(cause, StringType()))
    return fields


@dataclass(frozen=True, slots=True)
class DecodedColumns:
    """Adds the decoded columns to rows. Spark pickles it for the tasks."""

    formats: Mapping[Part, RegistryFormat]
    #: all columns of the rows, as Spark expects them
    schema: pa.Schema

    @classmethod
    def of(cls, schemas: Sequence[SchemaOptions], schema: StructType) -> Self | None:
        """Return what to add to rows of this schema; None if it has none of the decoded columns.

        Raise ColumnsRefused if the columns have other types than the schemas of the registry.
        """
        formats = {
            options.part: _format(options, schema)
            for options in schemas
            if any(name in ADDED[options.part] for name in schema.fieldNames())
        }
        return cls(formats, arrow_schema_of(schema)) if formats else None

    @property
    def read_columns(self) -> list[str]:
        """The columns of the topic that are needed."""
        added = {name for part in self.formats for name in ADDED[part]}
        names = [name for name in self.schema.names if name not in added]
        return [*names, *(name for name in (*self.formats, _HEADERS) if name not in names)]

    def converter(self) -> Convert:
        """Return the function that adds the columns, with decoders of its own."""
        decoders = {part: make_decoder(format) for part, format in self.formats.items()}

        def add(rows: pa.RecordBatch) -> pa.RecordBatch:
            added: dict[str, pa.Array] = {}
            for part, decoder in decoders.items():
                given = rows.column(part)
                ids = find_header_ids(rows.column(_HEADERS), part)
                decoded, causes = decode_part(decoder, self.formats[part], given, ids, part)
                if part == "key":
                    causes = without_absent(given, causes)
                added |= zip(ADDED[part], (decoded, pa.array(causes, pa.string())), strict=True)
            arrays = [added[name] if name in added else rows.column(name) for name in self.schema.names]
            # Spark names the items of arrays and maps differently.
            cast = [array.cast(field.type) for array, field in zip(arrays, self.schema, strict=True)]
            return pa.RecordBatch.from_arrays(cast, schema=self.schema)

        return add


@dataclass(frozen=True, slots=True)
class EncodedColumns:
    """Encodes the columns ``value`` and ``key`` of rows. Spark pickles it for the tasks."""

    formats: Mapping[Part, RegistryFormat]

    @classmethod
    def of(cls, schemas: Sequence[SchemaOptions], schema: StructType) -> Self:
        """Return the encoder for rows with these columns; schemas are registered or looked up here, on the driver.

        Raise RowsRefused if ``value`` is not a struct, if there is no ``key``, or if they do not fit their schemas.
        """
        return cls({options.part: _written_format(options, schema) for options in schemas})

    def encode(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with bytes in the encoded columns. Raise SchemaRefused if a row does not fit."""
        encoders = {part: make_encoder(format) for part, format in self.formats.items()}
        for batch in batches:
            for part, encoder in encoders.items():
                at = batch.schema.get_field_index(part)
                encoded = encoder.encode(_typed(batch.column(at), encoder.type))
                batch = batch.set_column(at, pa.field(part, pa.binary()), encoded)
            yield batch


def _format(options: SchemaOptions, schema: StructType) -> RegistryFormat:
    """Return the format that decodes a part. Raise ColumnsRefused if its columns have other types."""
    decoded, cause = ADDED[options.part]
    stored = next((field.metadata for field in schema.fields if field.name == decoded), {})
    pinned = _pin(options, str(stored.get(_VERSION, options.version)))
    format = registry_format(options.registry, pinned, options.message)
    rows = spark_type_of(make_decoder(format).type)
    for name, kind in ((decoded, rows), (cause, StringType())):
        for field in schema.fields:
            if field.name == name and field.dataType != kind:
                raise ColumnsRefused(
                    f"the column {name} is of type {kind.simpleString()}, not {field.dataType.simpleString()}"
                )
    return format


def _written_format(options: SchemaOptions, schema: StructType) -> RegistryFormat:
    field = next((each for each in schema.fields if each.name == options.part), None)
    if options.part == "value" and (field is None or not isinstance(field.dataType, StructType)):
        raise RowsRefused(f"with {options.format_option}, the column value must be a struct: write struct(*) AS value")
    if field is None:
        raise RowsRefused(f"with {options.format_option}, the rows need a column key: add it, or leave the option out")
    rows = arrow_schema_of(StructType([field])).field(0).type
    if options.use_latest:
        pinned = _pin(options, LATEST)
    else:
        text = options.schema or derived_schema(options.schema_type, rows, _record_name(options))
        pinned = register_schema(
            options.registry, options.subject, options.schema_type, text, auto_register=options.auto_register
        )
    format = registry_format(options.registry, pinned, options.message)
    kind = make_encoder(format).type
    if pa.types.is_struct(kind) != pa.types.is_struct(rows):
        wanted = spark_type_of(kind).simpleString()
        raise RowsRefused(
            f"the column {options.part} is {field.dataType.simpleString()}, and the schema of subject "
            f"{options.subject} has {wanted}: select that"
        )
    known = [each.name for each in kind] if pa.types.is_struct(kind) else ()
    unknown = [each.name for each in rows if each.name not in known] if pa.types.is_struct(rows) else ()
    if unknown:
        raise RowsRefused(f"the schema of subject {options.subject} has no field {', '.join(unknown)}: leave it out")
    return format


def _record_name(options: SchemaOptions) -> str:
    """Return the name of the record in a derived schema: that of the topic, for keys followed by _key."""
    topic = options.subject.removesuffix(f"-{options.part}")
    return f"{topic}_key" if options.part == "key" else topic


def _typed(rows: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the types of a schema; fields that it does not have stay out. Raise SchemaRefused."""
    try:
        if not pa.types.is_struct(kind):
            return rows.cast(kind)
        given = [field for field in kind if rows.type.get_field_index(field.name) >= 0]
        arrays = [rows.field(field.name).cast(field.type) for field in given]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaRefused(f"a row does not fit the schema ({error}): cast its columns") from None
    return pa.StructArray.from_arrays(arrays, fields=given, mask=rows.is_null())


def _pin(options: SchemaOptions, version: str) -> PinnedSchema:
    pinned = pin_schema(options.registry, options.subject, version)
    if pinned.schema_type != options.schema_type:
        raise OptionError(
            f"subject {options.subject} has a schema of type {pinned.schema_type}: set {options.format_option} to "
            f"{pinned.schema_type.lower()}"
        )
    return pinned
