"""Schemas of a registry in a declaration: how they are written, what is wrong, and what a run pins."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.client.registry import RegistryUnreachable
from ottla.pipeline import pinned_schemas
from ottla.pipeline.declaration import Declaration, RegistrySchema, TopicSink
from ottla.pipeline.edits import decide
from ottla.pipeline.flow_digest import canonical
from ottla.pipeline.flow_record import Checkpoint, describe, write_record
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout
from ottla.pipeline.pinned_schemas import SchemasUnavailable, pin_schemas, registry_settings
from ottla.pipeline.sdp.export import export
from ottla.pipeline.source_options import cluster_options
from ottla.spark.registry_schemas import ENVIRONMENT, PinnedSchema

Read = Callable[..., Declaration]
Problems = Callable[..., list[str]]

TEXT = """
    name: shop
    storage: lake
    properties: {schema.registry.url: http://127.0.0.1:1, schema.registry.basic.auth.user.info: "ada:geheim"}
    sources:
      orders: {topic: orders, format: avro, schema: {registry: orders-value}}
    flows:
      staged: {zone: staging, from: orders, to: [{table: staged}, {topic: out, format: avro, SINK}]}
"""
AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})


def text_with(sink: str = "schema: {registry: out-value}", **replaced: str) -> str:
    text = textwrap.dedent(TEXT).replace("SINK", sink)
    for old, new in replaced.items():
        text = text.replace(old, new)
    return text


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[PinnedSchema]:
    """The versions of every subject; the latest is the last."""
    versions = [PinnedSchema("orders-value", 7, "AVRO", AVRO, 1)]

    def pin(_: Any, subject: str, version: str) -> PinnedSchema:
        found = versions[-1] if version == "latest" else versions[int(version) - 1]
        return replace(found, subject=subject)

    monkeypatch.setattr(pinned_schemas, "pin_schema", pin)
    return versions


def test_source_and_sink_name_a_subject(read: Read) -> None:
    declaration = read(text_with())
    source = declaration.sources["orders"]
    assert source.registry == RegistrySchema(subject="orders-value", version="latest")
    assert (source.framing, source.columns) == (None, ())
    [sink] = declaration.topic_sinks
    assert sink.registry == RegistrySchema(subject="out-value")
    assert declaration.needs_registry
    [sink] = read(text_with("schema: {registry: s, register: false}")).topic_sinks
    assert sink.registry == RegistrySchema(subject="s", register=False)
    [sink] = read(text_with("schema: {registry: s, version: 3}")).topic_sinks
    assert sink.registry == RegistrySchema(subject="s", version="3")


def test_json_value_may_have_a_field_named_registry(read: Read) -> None:
    text = textwrap.dedent(TEXT).replace("format: avro, schema: {registry: orders-value}", "format: json, schema: X")
    text = text.replace("{topic: out, format: avro, SINK}", "{topic: out}")
    source = read(text.replace("X", "{registry: string}")).sources["orders"]
    assert [column.name for column in source.columns] == ["registry"] and source.registry is None
    source = read(text.replace("X", "{registry: orders-value, version: 2}")).sources["orders"]
    assert source.registry == RegistrySchema(subject="orders-value", version="2")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("{registry: orders-value}", "{registry: orders-value, version: newest}", "'version' is 'newest'"),
        ("{registry: orders-value}", "{registry: orders-value, register: true}", "without a version registers"),
        ("{registry: orders-value}", "{registry: orders-value, subject: x}", "unknown key 'subject'"),
        ("{registry: orders-value}", "{registry: a}, framing: {confluent: any_id}", "have Confluent's framing"),
        ("{registry: orders-value}", "id BIGINT", "needs its own schema language"),
        (
            "{registry: out-value}",
            "{registry: out-value}, schema_id: 7, framing: confluent",
            "have Confluent's framing",
        ),
        ("{registry: out-value}", "id BIGINT", "from a file or a registry"),
        ("{registry: out-value}", "{registry: a, version: 1}, schema_file: x.avsc", "version of the registry"),
        ("format: avro, schema: {registry: out-value}", "format: protobuf, schema: {registry: a}", "has no schema"),
        ("format: avro, schema: {registry: out-value}", "format: bytes, value: id, schema: {registry: a}", "no schema"),
    ],
)
def test_schema_that_cannot_be_is_a_problem(problems: Problems, old: str, new: str, what: str) -> None:
    found = problems(text_with().replace(old, new))
    assert any(what in line for line in found), found


def test_run_pins_the_versions_that_are_there(read: Read, registered: list[PinnedSchema]) -> None:
    declaration = pin_schemas(read(text_with("schema: {registry: out-value, version: 1}")))
    source = declaration.sources["orders"]
    assert [str(column) for column in source.columns] == ["`id` BIGINT"]
    assert source.registry is not None and source.registry.pinned == registered[0]
    assert [sink.registry and sink.registry.pinned for sink in declaration.topic_sinks] == [
        replace(registered[0], subject="out-value")
    ]
    assert not declaration.needs_registry
    registered.append(replace(registered[0], id=8, version=2))
    assert pin_schemas(declaration) is declaration


def test_schemas_that_cannot_be_fetched_name_the_source(
    read: Read, registered: list[PinnedSchema], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered.append(replace(registered[0], schema_type="JSON"))
    with pytest.raises(SchemasUnavailable, match=r"source orders: .* of type JSON.*write format: json"):
        pin_schemas(read(text_with()))
    registered[-1] = replace(registered[0], text='"string"')
    with pytest.raises(SchemasUnavailable, match="source orders: the schema of subject orders-value has no fields"):
        pin_schemas(read(text_with()))

    def unreachable(*_: Any) -> PinnedSchema:
        raise RegistryUnreachable("the schema registry does not answer")

    monkeypatch.setattr(pinned_schemas, "pin_schema", unreachable)
    with pytest.raises(SchemasUnavailable, match="source orders: the schema registry does not answer"):
        pin_schemas(read(text_with()))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(SchemasUnavailable, match=r"set schema\.registry\.url, .*'properties' in"):
        pin_schemas(read(text_with().replace("schema.registry.url: http://127.0.0.1:1, ", "").replace(
            'schema.registry.basic.auth.user.info: "ada:geheim"', "")))  # fmt: skip


def test_new_version_changes_the_digest_and_plan_says_so(read: Read, registered: list[PinnedSchema]) -> None:
    declared = read(text_with())
    first = Graph(pin_schemas(declared))
    record = describe(first, first.declaration.flows["staged"])
    more = {"name": "note", "type": "string", "default": ""}
    wider = {**json.loads(AVRO), "fields": [*json.loads(AVRO)["fields"], more]}
    registered.append(replace(registered[0], id=8, version=2, text=json.dumps(wider)))
    second = Graph(pin_schemas(declared))
    changed = describe(second, second.declaration.flows["staged"])
    assert changed["digest"] != record["digest"]
    checkpoint = Checkpoint(path="", exists=True, record=json.loads(json.dumps(record)))
    decision = decide(changed, checkpoint)
    assert decision.plan == "keeps state"
    reasons = " ".join(decision.reasons)
    assert "the schema of source orders is version 2 of orders-value, before version 1 of orders-value" in reasons
    assert "column note of orders was added" in reasons


def test_batch_that_is_not_completed_is_repeated_with_its_version(
    read: Read, registered: list[PinnedSchema], tmp_path: Path
) -> None:
    declared = replace(read(text_with()), storage=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    graph = Graph(pin_schemas(declared, continues=True))
    flow = graph.declaration.flows["staged"]
    registered.append(replace(registered[0], id=8, version=2))
    checkpoint = Path(Layout.of(declared).checkpoint(flow))
    for log, numbers in (("offsets", "01"), ("commits", "0")):
        (checkpoint / log).mkdir(parents=True)
        for number in numbers:
            (checkpoint / log / number).write_text("v1")
    write_record(str(checkpoint), describe(graph, flow))

    def version_of(declaration: Declaration) -> int | None:
        schema = declaration.sources["orders"].registry
        assert schema is not None and schema.pinned is not None
        return schema.pinned.version

    assert version_of(pin_schemas(declared, continues=True)) == 1
    assert version_of(pin_schemas(declared)) == 2
    (checkpoint / "commits" / "1").write_text("v1")
    assert version_of(pin_schemas(declared, continues=True)) == 2


def test_flow_without_a_registry_keeps_the_digest_of_earlier_releases(read: Read) -> None:
    source = read(text_with()).sources["orders"]
    described = canonical(TopicSink(topic="t", key="id", place=source.place))
    assert isinstance(described, dict) and described["key"] == "id"
    assert not described.keys() & {"registry", "key_format", "key_registry", "key_message"}
    described = canonical(replace(source, registry=None))
    assert isinstance(described, dict) and described["key_format"] == "bytes"
    assert not described.keys() & {"registry", "key_registry", "key_message", "key_type"}


def test_properties_of_the_registry_are_not_those_of_the_cluster(read: Read) -> None:
    declaration = read(text_with())
    assert cluster_options(declaration) == {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    settings = registry_settings(declaration)
    assert dict(settings.properties) == {"basic.auth.user.info": "ada:geheim"}
    assert "geheim" not in repr(settings)


def test_export_fetches_schemas_when_it_is_run_and_has_no_password(read: Read, tmp_path: Path) -> None:
    project = export(read(text_with("schema: {registry: out-value, version: latest}, value: id")))
    (module,) = project.files.values()
    assert "geheim" not in module
    assert 'REGISTRY = RegistrySettings.parse({"schema.registry.url": "http://127.0.0.1:1", ' in module
    assert 'os.environ["OTTLA_SCHEMA_REGISTRY_BASIC_AUTH_USER_INFO"]' in module and "import os" in module
    assert 'formats.registry_format(REGISTRY, pin_schema(REGISTRY, "orders-value", "latest"))' in module
    project = export(read(text_with()))
    assert any("its schema is derived from types" in note.why and note.left_out for note in project.notes)
    project = export(
        read(text_with("schema: {registry: o}, schema_file: r.avsc, value: id"), {"r.avsc": AVRO.encode()})
    )
    (module,) = project.files.values()
    assert 'register_schema(REGISTRY, "o", "AVRO", (ROOT / "schemas/r.avsc").read_text())' in module


#: a source and a sink whose keys have schemas of the registry
KEYED = {
    "format: avro, schema: {registry: orders-value}":
        "format: string, key_format: avro, key_schema: {registry: orders-key}",
    "format: avro, SINK": "key: [value], key_format: json, key_schema: {registry: out-key}",
}  # fmt: skip


def keyed_text(**replaced: str) -> str:
    text = textwrap.dedent(TEXT)
    for old, new in (KEYED | replaced).items():
        text = text.replace(old, new)
    return text


def test_keys_of_source_and_sink_name_a_subject(read: Read) -> None:
    declaration = read(keyed_text())
    source = declaration.sources["orders"]
    assert (source.key_format, source.key_registry) == ("avro", RegistrySchema(subject="orders-key", version="latest"))
    [sink] = declaration.topic_sinks
    assert (sink.key, sink.key_columns, sink.key_format) == (("value",), ("value",), "json")
    assert (sink.key_registry, sink.registry) == (RegistrySchema(subject="out-key"), None)
    assert declaration.needs_registry
    [sink] = read(keyed_text(**{"key: [value]": "key: value"})).topic_sinks
    assert (sink.key, sink.key_columns) == ("value", ("value",))


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (", key_schema: {registry: orders-key}", "", "key_format avro needs the schema of the keys; add key_schema:"),
        ("key_format: avro, ", "", "keys have a schema only with a format; add key_format: avro or json or protobuf"),
        ("key_format: avro", "key_format: string", "keys have a schema only with a format"),
        ("key_format: avro", "key_format: xml", "key_format 'xml' is not known"),
        ("{registry: orders-key}", "orders-key", "key_schema is text; write a mapping with the keys registry"),
        ("{registry: orders-key}", "{registry: orders-key, register: true}", "without a version registers"),
        ("key_format: avro", "key_format: avro, key_message: K", "only keys of format protobuf have messages"),
        ("key: [value], ", "", "there is no key that could be encoded; add key: COLUMN"),
        (", key_format: json, key_schema: {registry: out-key}", "", "a list of columns is a key with a schema"),
        ("key_format: json", "key_format: protobuf", "cannot be derived from columns; add version: latest to it"),
        ("key_format: json", "key_format: string", "key_format 'string' is not known"),
        ("key: [value]", "key: [valeu]", "key names 'valeu', which is not a column of the rows; write value"),
    ],
)
def test_key_that_cannot_be_is_a_problem(problems: Problems, old: str, new: str, what: str) -> None:
    text = keyed_text()
    assert problems(text) == [] and old in text
    found = problems(text.replace(old, new))
    assert any(what in line for line in found), found


def test_run_pins_the_schemas_of_keys(read: Read, registered: list[PinnedSchema]) -> None:
    versioned = {"{registry: out-key}": "{registry: out-key, version: 1}", "key_format: json": "key_format: avro"}
    declaration = pin_schemas(read(keyed_text(**versioned)))
    source = declaration.sources["orders"]
    assert source.key_type == "STRUCT<`id`: BIGINT>" and source.key_registry is not None
    assert source.key_registry.pinned == replace(registered[0], subject="orders-key")
    [sink] = declaration.topic_sinks
    assert sink.key_registry is not None and sink.key_registry.pinned is not None
    assert not declaration.needs_registry
    registered.append(replace(registered[0], text='"long"'))
    assert pin_schemas(read(keyed_text())).sources["orders"].key_type == "BIGINT"
    registered[-1] = replace(registered[0], schema_type="JSON")
    with pytest.raises(SchemasUnavailable, match=r"source orders: keys: .* of type JSON.*write key_format: json"):
        pin_schemas(read(keyed_text()))
    registered[-1] = replace(registered[0], text='"null"')
    with pytest.raises(SchemasUnavailable, match="keys: the schema of subject orders-key permits nothing but null"):
        pin_schemas(read(keyed_text()))


def test_new_version_of_keys_is_an_edit(read: Read, registered: list[PinnedSchema]) -> None:
    declared = read(keyed_text())
    first = Graph(pin_schemas(declared))
    record = describe(first, first.declaration.flows["staged"])
    assert record["columns"]["orders"]["_key"] == "STRUCT<`id`: BIGINT>"
    assert record["sink_schemas"] == [{"subject": "out-key", "version": None}]
    registered.append(replace(registered[0], id=8, version=2, text='"long"'))
    second = Graph(pin_schemas(declared))
    changed = describe(second, second.declaration.flows["staged"])
    assert changed["digest"] != record["digest"]
    decision = decide(changed, Checkpoint(path="", exists=True, record=record))
    reasons = " ".join(decision.reasons)
    assert "the schema of the keys of source orders is version 2 of orders-key, before version 1 of" in reasons


def test_export_decodes_and_encodes_keys(read: Read) -> None:
    project = export(read(keyed_text(**{"{registry: out-key}": "{registry: out-key, version: latest}, value: value"})))
    (module,) = project.files.values()
    assert (
        'ORDERS_FORMAT_OF_KEYS = formats.registry_format(REGISTRY, pin_schema(REGISTRY, "orders-key", "latest"))'
        in module
    )
    assert 'column="key", into="__decoded_key", cause="__key_cause", headers="headers")' in module
    assert "concat('key: ', __key_cause)" in module and '"__decoded_key AS _key"' in module
    assert 'F.struct("value"), into="__key")' in module and '"__key AS key"' in module
    notes = export(read(keyed_text())).notes
    assert any("the schema of its keys is derived from types" in note.why and note.left_out for note in notes)
