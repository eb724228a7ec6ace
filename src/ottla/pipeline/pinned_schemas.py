"""The schemas of a pipeline in a schema registry: fetched once when a run starts, so that all its batches use the same.

A source with the version `latest` has the version that is the latest then. `ottla pipeline plan` shows a version that
differs from that of the last run. A batch that the last run did not complete is repeated with the versions that it had:
outputs that have a part of it refuse the rest from another computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from pyspark.sql.types import DataType, NullType

from ottla.client.errors import ClientError
from ottla.client.registry import RegistryUnreachable
from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import Declaration, Flow, RegistrySchema, Sink, Source, TopicSink
from ottla.pipeline.flow_record import read_checkpoint
from ottla.pipeline.layout import Layout
from ottla.pipeline.schema import BadType, Column, parse_type
from ottla.spark.formats import make_decoder, registry_format
from ottla.spark.registry_schemas import (
    LATEST,
    PREFIX,
    SCHEMA_TYPES,
    URL,
    PinnedSchema,
    RegistrySettings,
    pin_schema,
)
from ottla.spark.spark_internals import spark_type_of
from ottla.spark.wire_format import SchemaRefused

Fetch = Callable[[RegistrySchema, str, str], PinnedSchema]


class SchemasUnavailable(OttlaError):
    """A schema of the pipeline cannot be fetched from its registry, or not be used."""


def registry_settings(declaration: Declaration) -> RegistrySettings:
    """Return how to reach the registry of a pipeline. Raise PropertyRefused if its address is missing or wrong."""
    return RegistrySettings.parse(
        {name: value for name, value in declaration.properties.items() if name.startswith(PREFIX)}
    )


def pin_schemas(declaration: Declaration, *, continues: bool = False) -> Declaration:
    """Return the declaration with the schemas that its registry has now; those that are pinned already stay.

    With `continues`, subjects of an unfinished batch keep the version of that batch. Raise SchemasUnavailable if the
    registry does not answer, or if a schema is missing or has no columns; OSError if checkpoints cannot be read.
    """
    if not declaration.needs_registry:
        return declaration
    try:
        settings = registry_settings(declaration)
    except ClientError as error:
        raise SchemasUnavailable(f"{error}; see 'properties' in {declaration.file}") from None
    fetch = partial(_fetch, settings, _versions_in_use(declaration) if continues else {})
    sources = {name: _pin_source(settings, fetch, source) for name, source in declaration.sources.items()}
    flows = {name: _pin_sinks(fetch, flow) for name, flow in declaration.flows.items()}
    return replace(declaration, sources=sources, flows=flows)


def _versions_in_use(declaration: Declaration) -> dict[str, str]:
    """Return the versions of subjects with which batches were begun that are not completed."""
    layout = Layout.of(declaration)
    found: dict[str, int] = {}
    for flow in declaration.flows.values():
        checkpoint = read_checkpoint(layout.checkpoint(flow)) if flow.kind == "table" else None
        if checkpoint is None or checkpoint.record is None or not checkpoint.has_unfinished_batch:
            continue
        sources = checkpoint.record["sources"].values()
        schemas = [source.get(key) for source in sources for key in ("registry", "key_registry")]
        for schema in filter(None, (*schemas, *checkpoint.record.get("sink_schemas", ()))):
            if schema["version"] is not None:
                found[schema["subject"]] = max(schema["version"], found.get(schema["subject"], 0))
    return {subject: str(version) for subject, version in found.items()}


def _pin_source(settings: RegistrySettings, fetch: Fetch, source: Source) -> Source:
    called, schema, key = f"source {source.name}", source.registry, source.key_registry
    if schema is not None and schema.pinned is None:
        pinned = fetch(schema, source.format, called)
        fields = getattr(_type_of(settings, pinned, source.message, called), "fields", None)
        if not fields:
            raise SchemasUnavailable(f"{called}: the schema of subject {schema.subject} has no fields")
        columns = tuple(Column(each.name, _type_text(each.dataType.simpleString())) for each in fields)
        source = replace(source, columns=columns, registry=replace(schema, pinned=pinned))
    if key is not None and key.pinned is None:
        called = f"{called}: keys"
        pinned = fetch(key, source.key_format, called)
        rows = _type_of(settings, pinned, source.key_message, called)
        source = replace(source, key_type=_type_text(rows.simpleString()), key_registry=replace(key, pinned=pinned))
    return source


def _type_of(settings: RegistrySettings, pinned: PinnedSchema, message: str | None, called: str) -> DataType:
    """Return the type of decoded values or keys in Spark. Raise SchemasUnavailable if they have none."""
    try:
        found = spark_type_of(make_decoder(registry_format(settings, pinned, message)).type)
    except SchemaRefused as error:
        raise SchemasUnavailable(f"{called}: subject {pinned.subject}: {error}") from None
    if isinstance(found, NullType):
        raise SchemasUnavailable(f"{called}: the schema of subject {pinned.subject} permits nothing but null")
    return found


def _pin_sinks(fetch: Fetch, flow: Flow) -> Flow:
    sinks: list[Sink] = []
    for sink in flow.sinks:
        if isinstance(sink, TopicSink):
            called = f"flow {flow.name}: topic {sink.topic}"
            registry = _pin_written(fetch, sink.registry, sink.format, called)
            key_registry = _pin_written(fetch, sink.key_registry, sink.key_format or "", f"{called}: keys")
            sink = replace(sink, registry=registry, key_registry=key_registry)
        sinks.append(sink)
    return replace(flow, sinks=tuple(sinks))


def _pin_written(fetch: Fetch, schema: RegistrySchema | None, form: str, called: str) -> RegistrySchema | None:
    """Return the schema with the version that it names; as it is if it names none or has it already."""
    if schema is None or schema.version is None or schema.pinned is not None:
        return schema
    return replace(schema, pinned=fetch(schema, form, called))


def _fetch(
    settings: RegistrySettings, in_use: Mapping[str, str], schema: RegistrySchema, form: str, called: str
) -> PinnedSchema:
    version = schema.version or LATEST
    try:
        pinned = pin_schema(
            settings, schema.subject, in_use.get(schema.subject, LATEST) if version == LATEST else version
        )
    except RegistryUnreachable as error:
        remedy = f"start it with 'ottla registry', or correct {URL}"
        raise SchemasUnavailable(f"{called}: {error}; {remedy}") from None
    except (ClientError, SchemaRefused) as error:
        raise SchemasUnavailable(f"{called}: {error}") from None
    if pinned.schema_type != SCHEMA_TYPES[form]:
        raise SchemasUnavailable(
            f"{called}: subject {schema.subject} has a schema of type {pinned.schema_type}, and the format is {form}: "
            f"write {'key_format' if called.endswith(': keys') else 'format'}: {pinned.schema_type.lower()}"
        )
    return pinned


def _type_text(simple: str) -> str:
    """Return a type as declarations write it, so that it compares equal to the type of a declared column."""
    try:
        return parse_type(simple)
    except BadType:
        return simple.upper()
