"""How values and keys of a topic are decoded and encoded: what a source or topic sink declares, as formats of Spark."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql.types import DataType, StructField, StructType

from ottla.pipeline.declaration import Declaration, Framing, RegistrySchema, Source, TopicSink
from ottla.pipeline.layout import resolve
from ottla.pipeline.pinned_schemas import registry_settings
from ottla.spark.derived_schemas import derived_schema
from ottla.spark.formats import Avro, Format, Json, Protobuf, RegistryFormat, registry_format
from ottla.spark.registry_schemas import SCHEMA_TYPES, PinnedSchema, RegistrySettings, register_schema
from ottla.spark.spark_internals import arrow_schema_of
from ottla.spark.wire_format import OneSchema, SchemasById, SchemaSource, read_schema_file

#: of schemas that a test does not register
_UNREGISTERED_ID: Final = (1 << 31) - 1


def source_key_format(source: Source, declaration: Declaration) -> RegistryFormat | None:
    """Return the format of the keys of a source; None if they stay bytes or text."""
    if source.key_registry is None:
        return None
    assert source.key_registry.pinned is not None, "pin_schemas comes before a plan"
    return registry_format(registry_settings(declaration), source.key_registry.pinned, source.key_message)


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
        settings = _written_settings(declaration, register=register)
        pinned = sink.registry.pinned
        if pinned is None:
            schema_type = SCHEMA_TYPES[sink.format]
            if sink.schema_file is not None:
                with open(resolve(declaration, sink.schema_file), encoding="utf-8") as file:
                    text = file.read()
            else:
                text = derived_schema(schema_type, pa.struct(list(arrow_schema_of(columns))), sink.topic)
            pinned = _registered(sink.registry, schema_type, text, settings, register=register)
        return registry_format(settings, pinned, sink.message)
    if sink.format == "json":
        return Json("", schema_id=sink.schema_id)
    if sink.format in ("bytes", "string"):
        return None
    schemas = OneSchema(read_schema_file(resolve(declaration, sink.schema_file or "")))
    if sink.format == "avro":
        return Avro(schemas, schema_id=sink.schema_id)
    return Protobuf(schemas, message=sink.message, schema_id=sink.schema_id)


def sink_key_format(
    sink: TopicSink, declaration: Declaration, kind: DataType, *, register: bool = True
) -> RegistryFormat | None:
    """Return the format of the keys of a topic sink, of this type; None if they have no schema. Raise as above."""
    if sink.key_registry is None or sink.key_format is None:
        return None
    settings = _written_settings(declaration, register=register)
    pinned = sink.key_registry.pinned
    if pinned is None:
        schema_type = SCHEMA_TYPES[sink.key_format]
        key = arrow_schema_of(StructType([StructField("key", kind)])).field(0).type
        text = derived_schema(schema_type, key, f"{sink.topic}_key")
        pinned = _registered(sink.key_registry, schema_type, text, settings, register=register)
    return registry_format(settings, pinned, sink.key_message)


def _written_settings(declaration: Declaration, *, register: bool) -> RegistrySettings:
    # Records that only a test sees are decoded with the schema that they were encoded with.
    return registry_settings(declaration) if register else RegistrySettings("")


def _registered(
    schema: RegistrySchema, schema_type: str, text: str, settings: RegistrySettings, *, register: bool
) -> PinnedSchema:
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
