"""How the values of a topic are decoded and encoded: what a source or a topic sink declares, as a format of Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from ottla.pipeline.declaration import Declaration, Framing, RegistrySchema, Source, TopicSink
from ottla.pipeline.layout import resolve
from ottla.pipeline.pinned_schemas import registry_settings
from ottla.spark.derived_schemas import derived_schema
from ottla.spark.formats import Avro, Format, Json, Protobuf, registry_format
from ottla.spark.registry_schemas import SCHEMA_TYPES, PinnedSchema, RegistrySettings, register_schema
from ottla.spark.spark_internals import arrow_schema_of
from ottla.spark.wire_format import OneSchema, SchemasById, SchemaSource, read_schema_file

#: of schemas that a test does not register
_UNREGISTERED_ID: Final = (1 << 31) - 1


def source_format(source: Source, declaration: Declaration) -> Format | None:
    """Return the format of a source; None if its values stay bytes or text. Raise OSError if a schema is missing."""
    if source.registry is not None:
        assert source.registry.pinned is not None, "pin_schemas comes before a plan"
        return registry_format(registry_settings(declaration), source.registry.pinned, source.message)
    framing = source.framing or Framing()
    framed = source.framing is not None
    if source.format == "json":
        schema = ", ".join(str(column) for column in source.columns)
        return Json(schema, framed=framed, ids=tuple(framing.schema_files), any_id=framing.any_id)
    if source.format in ("bytes", "string"):
        return None
    schemas = _schemas(source, framing, declaration)
    if source.format == "avro":
        return Avro(schemas, framed=framed)
    return Protobuf(schemas, message=source.message, framed=framed)


def sink_format(
    sink: TopicSink, declaration: Declaration, columns: StructType, *, register: bool = True
) -> Format | None:
    """Return the format of a topic sink for these columns; None if it writes one column as bytes.

    A schema of a registry is registered, or looked up, unless `register` is false. Raise OSError without a schema file,
    SchemaRefused if the registry refuses the schema, ClientError if the registry fails.
    """
    if sink.registry is not None:
        # Values that only a test sees are decoded with the schema that they were encoded with.
        settings = registry_settings(declaration) if register else RegistrySettings("")
        pinned = sink.registry.pinned
        if pinned is None:
            pinned = _registered(sink, sink.registry, declaration, columns, settings, register=register)
        return registry_format(settings, pinned, sink.message)
    if sink.format == "json":
        return Json("", schema_id=sink.schema_id)
    if sink.format in ("bytes", "string"):
        return None
    schemas = OneSchema(read_schema_file(resolve(declaration, sink.schema_file or "")))
    if sink.format == "avro":
        return Avro(schemas, schema_id=sink.schema_id)
    return Protobuf(schemas, message=sink.message, schema_id=sink.schema_id)


def _registered(
    sink: TopicSink,
    schema: RegistrySchema,
    declaration: Declaration,
    columns: StructType,
    settings: RegistrySettings,
    *,
    register: bool,
) -> PinnedSchema:
    schema_type = SCHEMA_TYPES[sink.format]
    if sink.schema_file is not None:
        with open(resolve(declaration, sink.schema_file), encoding="utf-8") as file:
            text = file.read()
    else:
        text = derived_schema(schema_type, pa.struct(list(arrow_schema_of(columns))), sink.topic)
    if not register:
        return PinnedSchema(schema.subject, _UNREGISTERED_ID, schema_type, text)
    return register_schema(settings, schema.subject, schema_type, text, auto_register=schema.register)


def _schemas(source: Source, framing: Framing, declaration: Declaration) -> SchemaSource:
    reader = read_schema_file(resolve(declaration, source.schema_file or ""))
    if not framing.schema_files:
        return OneSchema(reader, any_id=framing.any_id)
    writers = {
        schema_id: reader if file is None else read_schema_file(resolve(declaration, file))
        for schema_id, file in framing.schema_files.items()
    }
    return SchemasById(writers, reader=reader)
