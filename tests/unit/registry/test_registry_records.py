"""The records of the topic `_schemas`: the format of Confluent's registry."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from ottla.edge.registry.answers import version_json
from ottla.edge.registry.records import (
    Association,
    SchemaVersion,
    config_record,
    context_record,
    delete_subject_record,
    guid_of,
    mode_record,
    noop_record,
)
from ottla.edge.registry.state import State
from ottla.schemas.schema import Reference

ASSOCIATION = Association("t", "lkc1", "topic", "value", "s", "i", "g", "WEAK", is_frozen=False)
TEXT = '{"type":"record","name":"A","fields":[]}'


def test_key_has_its_members_in_the_order_of_confluent() -> None:
    """The topic is compacted by the bytes of keys, so both products must write the same bytes."""
    row = SchemaVersion("orders-value", 3, 7, TEXT)
    assert row.key() == b'{"keytype":"SCHEMA","subject":"orders-value","version":3,"magic":1}'
    assert config_record(None, None).key == b'{"keytype":"CONFIG","subject":null,"magic":0}'
    assert mode_record("s", "READONLY").key == b'{"keytype":"MODE","subject":"s","magic":0}'
    assert delete_subject_record("s", 2).key == b'{"keytype":"DELETE_SUBJECT","subject":"s","magic":0}'
    assert context_record(".t").key == b'{"keytype":"CONTEXT","tenant":"default","context":".t","magic":0}'
    assert noop_record().key == b'{"keytype":"NOOP","magic":0}'
    assert ASSOCIATION.key() == (
        b'{"keytype":"ASSOC","tenant":"default","resourceName":"t","resourceNamespace":"lkc1","resourceType":"topic",'
        b'"associationType":"value","subject":"s","magic":0}'
    )


def test_association_is_stored_in_the_format_of_confluent() -> None:
    assert json.loads(ASSOCIATION.record().value or b"") == {
        "guid": "g", "tenant": "default", "resourceName": "t", "resourceNamespace": "lkc1", "resourceId": "i",
        "resourceType": "topic", "associationType": "value", "subject": "s", "lifecycle": "WEAK", "frozen": False,
    }  # fmt: skip


def test_association_is_changed_and_deleted_by_its_key() -> None:
    state, record = State(), ASSOCIATION.record()
    state.apply(record.key, record.value, 0, 100)
    changed = replace(ASSOCIATION, lifecycle="STRONG", is_frozen=True, resource_id="j").record()
    state.apply(changed.key, changed.value, 1, 200)
    (row,) = state.associations.of_subject("s")
    assert (row.lifecycle, row.created_ms, row.updated_ms) == ("STRONG", 100, 200)
    assert list(state.associations.of_name("t", "-")) == list(state.associations.of_id("j")) == [row]
    assert list(state.associations.of_id("i")) == []
    state.apply(record.key, None, 2, 300)
    assert list(state.associations.of_name("-", "-")) == []


def test_value_of_an_avro_schema_has_no_type_and_no_empty_members() -> None:
    value = json.loads(SchemaVersion("s", 1, 1, TEXT).record().value or b"")
    assert list(value) == ["subject", "version", "id", "md5", "schema", "deleted"]


def test_version_is_read_as_it_was_written() -> None:
    row = SchemaVersion(
        ":.t:s", 2, 5, "message A {}", "PROTOBUF", (Reference("a.proto", "a", 1),), {"properties": {"owner": "x"}},
        {"domainRules": [{"name": "r", "type": "CEL", "mode": "WRITE"}]}, is_deleted=True, offset=9, timestamp_ms=10,
    )  # fmt: skip
    value = row.record().value
    assert value is not None
    assert SchemaVersion.parse(json.loads(value), 9, 10) == row


def test_topic_of_an_old_registry_is_read() -> None:
    """Registries before 7.0 wrote no md5, no type and no references; before 5.0 keys had magic 0."""
    state = State()
    state.apply(
        b'{"subject":"s","version":1,"magic":0,"keytype":"SCHEMA"}',
        b'{"subject":"s","version":1,"id":1,"schema":"\\"string\\"","deleted":false}', 0, 0,
    )  # fmt: skip
    row = state.get("s", 1)
    assert row is not None
    assert (row.text, row.schema_type, row.guid) == ('"string"', "AVRO", guid_of('"string"', (), None, None))


def test_record_of_an_unknown_kind_is_ignored() -> None:
    state = State()
    state.apply(b'{"keytype":"ASSOC","tenant":"default"}', b"{}", 0, 0)
    state.apply(b"not json", None, 1, 0)
    state.apply(b'{"keytype":"SCHEMA"}', b'{"subject":1}', 2, 0)
    assert state.subjects(deleted=True) == []


def test_guid_depends_on_text_references_metadata_and_rules() -> None:
    guids = {
        guid_of(TEXT, (), None, None),
        guid_of(TEXT, (Reference("n", "s", 1),), None, None),
        guid_of(TEXT, (Reference("n", "s", 2),), None, None),
        guid_of(TEXT, (), {}, None),
        guid_of(TEXT, (), {"properties": {"a": "b"}}, None),
        guid_of(TEXT, (), None, {"domainRules": [{"name": "r"}]}),
    }
    assert len(guids) == 6
    # The MD5 of the text alone, as a UUID.
    assert guid_of('"string"', (), None, None) == "095d71cf-1255-6b9d-5e33-0ad575b3df5d"


#: values for each member of a record
JUNK: tuple[Any, ...] = (
    None, True, 1.5, -1, 2**40, "a", "", [], [1], [{}], [{"version": "x"}], {}, {"a": 1}, {"properties": []},
    {"domainRules": [1]}, {"domainRules": 1},
)  # fmt: skip
MEMBERS = {
    "SCHEMA": {
        "subject": "a", "version": 1, "id": 1, "schema": '"int"', "schemaType": "AVRO", "references": [],
        "metadata": None, "ruleSet": None, "deleted": False, "md5": None,
    },
    "CONFIG": {"compatibilityLevel": "FULL", "alias": None, "defaultMetadata": None, "overrideRuleSet": None},
    "MODE": {"mode": "READWRITE"},
    "DELETE_SUBJECT": {"subject": "a", "version": 1},
    "CLEAR_SUBJECT": {"subject": "a"},
    "CONTEXT": {"context": ".x"},
    "NOOP": {"idsMax": {".": 5}},
    "OTHER": {},
}  # fmt: skip


def read_everything(state: State) -> None:
    for subject in state.subjects(deleted=True):
        for row in state.versions(subject, deleted=True):
            json.dumps(version_json(row))
            state.versions_of_id(".", row.id)
    for place in (None, "a", ":.x:"):
        state.config_in_scope(place)
        state.mode_in_scope(place)
    state.aliases()
    assert isinstance(state.id_max("."), int)
    assert all(isinstance(name, str) for name in state.context_names())


def test_records_of_other_producers_do_no_harm() -> None:
    """Whatever a client appends to the topic is applied or ignored, and does not break later requests."""
    rows: list[tuple[bytes, bytes | None]] = [
        (text, value) for text in (b"", b"x", b"[]", b"1", b"\xff", b"[" * 100_000) for value in (None, b"{}", b"[")
    ]
    for kind, members in MEMBERS.items():
        for junk in JUNK:
            key = {"keytype": kind, "subject": "a", "version": 1, "context": ".x", "magic": 1}
            rows += [(json.dumps(key | {name: junk}).encode(), json.dumps(members).encode()) for name in key]
            rows += [(json.dumps(key).encode(), json.dumps(members | {name: junk}).encode()) for name in members]
            rows.append((json.dumps(key).encode(), json.dumps(junk).encode()))
    for key_bytes, value in rows:
        state = State()
        state.apply(*SchemaVersion("a", 1, 1, '"int"').record(), 0, 0)
        state.apply(key_bytes, value, 1, 1)
        read_everything(state)
