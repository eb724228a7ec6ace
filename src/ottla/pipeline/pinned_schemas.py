"""The schemas of a pipeline in a schema registry: fetched once when a run starts, so that all its batches use the same.

A source with the version `latest` has the version that is the latest then. `ottla pipeline plan` shows a version that
differs from that of the last run. A batch that the last run did not complete is repeated with the versions that it had:
outputs that have a part of it refuse the rest from another computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

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
        schemas = [source.get("registry") for source in checkpoint.record["sources"].values()]
        for schema in filter(None, (*schemas, *checkpoint.record.get("sink_schemas", ()))):
            if schema["version"] is not None:
                found[schema["subject"]] = max(schema["version"], found.get(schema["subject"], 0))
    return {subject: str(version) for subject, version in found.items()}


def _pin_source(settings: RegistrySettings, fetch: Fetch, source: Source) -> Source:
    schema = source.registry
    if schema is None or schema.pinned is not None:
        return source
    pinned = fetch(schema, source.format, f"source {source.name}")
    try:
        rows = spark_type_of(make_decoder(registry_format(settings, pinned, source.message)).type)
    except SchemaRefused as error:
        raise SchemasUnavailable(f"source {source.name}: subject {schema.subject}: {error}") from None
    fields = getattr(rows, "fields", None)
    if not fields:
        raise SchemasUnavailable(f"source {source.name}: the schema of subject {schema.subject} has no fields")
    columns = tuple(Column(each.name, _type_text(each.dataType.simpleString())) for each in fields)
    return replace(source, columns=columns, registry=replace(schema, pinned=pinned))


def _pin_sinks(fetch: Fetch, flow: Flow) -> Flow:
    sinks: list[Sink] = []
    for sink in flow.sinks:
        schema = sink.registry if isinstance(sink, TopicSink) else None
        if isinstance(sink, TopicSink) and schema is not None and schema.version is not None and schema.pinned is None:
            pinned = fetch(schema, sink.format, f"flow {flow.name}: topic {sink.topic}")
            sinks.append(replace(sink, registry=replace(schema, pinned=pinned)))
        else:
            sinks.append(sink)
    return replace(flow, sinks=tuple(sinks))


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
            f"write format: {pinned.schema_type.lower()}"
        )
    return pinned


def _type_text(simple: str) -> str:
    """Return a type as declarations write it, so that it compares equal to the type of a declared column."""
    try:
        return parse_type(simple)
    except BadType:
        return simple.upper()
