"""How the values of a topic are decoded and encoded: what a source or a topic sink declares, as a format of Spark."""

from __future__ import annotations

from ottla.pipeline.declaration import Declaration, Framing, Source, TopicSink
from ottla.pipeline.layout import resolve
from ottla.spark.formats import Avro, Format, Json, Protobuf
from ottla.spark.wire_format import OneSchema, SchemasById, SchemaSource, read_schema_file


def source_format(source: Source, declaration: Declaration) -> Format | None:
    """Return the format of a source; None if its values stay bytes or text. Raise OSError if a schema is missing."""
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


def sink_format(sink: TopicSink, declaration: Declaration) -> Format | None:
    """Return the format of a topic sink; None if it writes one column as bytes. Raise OSError without its schema."""
    if sink.format == "json":
        return Json("", schema_id=sink.schema_id)
    if sink.format in ("bytes", "string"):
        return None
    schemas = OneSchema(read_schema_file(resolve(declaration, sink.schema_file or "")))
    if sink.format == "avro":
        return Avro(schemas, schema_id=sink.schema_id)
    return Protobuf(schemas, message=sink.message, schema_id=sink.schema_id)


def _schemas(source: Source, framing: Framing, declaration: Declaration) -> SchemaSource:
    reader = read_schema_file(resolve(declaration, source.schema_file or ""))
    if not framing.schema_files:
        return OneSchema(reader, any_id=framing.any_id)
    writers = {
        schema_id: reader if file is None else read_schema_file(resolve(declaration, file))
        for schema_id, file in framing.schema_files.items()
    }
    return SchemasById(writers, reader=reader)
