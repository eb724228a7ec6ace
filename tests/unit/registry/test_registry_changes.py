"""What a request changes: versions, ids, deletions, modes, configurations."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.unit.registry.registry_fixtures import FakeRegistry, number, record

from ottla.edge.registry import changes
from ottla.edge.registry.records import SchemaVersion
from ottla.edge.registry.requests import NewSchema
from ottla.edge.registry.state import State
from ottla.edge.web.app import HttpError

A = record("A", number("x"))
A_WITH_DEFAULT = record("A", number("x"), number("y", default=0))
A_WITHOUT_DEFAULT = record("A", number("x"), number("y"))
OTHER = record("B", number("x"))


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


def code_of(call: Callable[[], object]) -> int:
    with pytest.raises(HttpError) as error:
        call()
    return error.value.error_code


# -- registration ---------------------------------------------------------------------------------------------------


def test_schema_gets_the_same_id_in_every_subject(registry: FakeRegistry) -> None:
    first, second, third = (registry.register(name, A) for name in ("a", "b", "a"))
    assert [(row.subject, row.version, row.id) for row in (first, second, third)] == [
        ("a", 1, 1),
        ("b", 1, 1),
        ("a", 1, 1),
    ]
    assert len(registry.log) == 2


def test_incompatible_schema_is_refused_and_changes_nothing(registry: FakeRegistry) -> None:
    registry.register("a", A)
    assert code_of(lambda: registry.register("a", A_WITHOUT_DEFAULT)) == 40901
    assert len(registry.log) == 1
    assert registry.register("a", A_WITH_DEFAULT).version == 2
    assert registry.register("a", A_WITHOUT_DEFAULT, force=True).version == 3


def test_level_of_the_subject_takes_precedence_over_the_global_level(registry: FakeRegistry) -> None:
    registry.config(None, compatibility="NONE")
    registry.config("a", compatibility="FULL")
    registry.register("a", A)
    registry.register("b", A)
    assert code_of(lambda: registry.register("a", OTHER)) == 40901
    assert registry.register("b", OTHER).version == 2


def test_transitive_level_compares_with_every_version(registry: FakeRegistry) -> None:
    registry.config("a", compatibility="NONE")
    registry.register("a", OTHER)
    registry.register("a", A)
    registry.config("a", compatibility="BACKWARD")
    assert registry.register("a", A_WITH_DEFAULT).version == 3
    registry.config("a", compatibility="BACKWARD_TRANSITIVE")
    newer = record("A", number("x"), number("y", default=0), number("z", default=0))
    assert code_of(lambda: registry.register("a", newer)) == 40901


def test_compatibility_group_separates_major_versions(registry: FakeRegistry) -> None:
    registry.config("a", compatibilityGroup="major")
    registry.register("a", A, metadata={"properties": {"major": "1"}})
    assert code_of(lambda: registry.register("a", OTHER, metadata={"properties": {"major": "1"}})) == 40901
    assert registry.register("a", OTHER, metadata={"properties": {"major": "2"}}).version == 2


def test_lenient_policy_lets_a_property_be_added_to_an_open_object(registry: FakeRegistry) -> None:
    first = '{"type":"object","properties":{"a":{"type":"string"}}}'
    second = '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}}}'
    registry.register("a", first, schemaType="JSON")
    assert code_of(lambda: registry.register("a", second, schemaType="JSON")) == 40901
    registry.config("a", compatibilityPolicy="LENIENT")
    assert registry.register("a", second, schemaType="JSON").version == 2


@pytest.mark.parametrize("text", ["", "   ", "{", '{"type":"nothing"}', '{"type":"record","name":"A"}'])
def test_invalid_schema_is_refused(registry: FakeRegistry, text: str) -> None:
    assert code_of(lambda: registry.register("a", text)) == 42201


def test_unknown_type_and_missing_reference_are_refused(registry: FakeRegistry) -> None:
    assert code_of(lambda: registry.register("a", A, schemaType="XML")) == 42201
    references = [{"name": "B", "subject": "b", "version": 1}]
    assert code_of(lambda: registry.register("a", A, references=references)) == 42201


def test_soft_deleted_schema_gets_its_id_back_with_a_new_version(registry: FakeRegistry) -> None:
    registry.register("a", A)
    registry.register("a", A_WITH_DEFAULT)
    registry.delete("a")
    again = registry.register("a", A_WITH_DEFAULT)
    assert (again.version, again.id) == (3, 2)
    # The deleted version of the same schema is removed, as in Confluent's registry.
    assert [row.version for row in registry.state.versions("a", deleted=True)] == [1, 3]


def test_metadata_of_the_latest_version_is_taken_over(registry: FakeRegistry) -> None:
    registry.register("a", A, metadata={"properties": {"owner": "x"}})
    row = registry.register("a", A_WITH_DEFAULT)
    assert row.metadata == {"properties": {"owner": "x"}}
    assert registry.find("a", A_WITH_DEFAULT) == registry.state.get("a", 2)


def test_default_and_override_of_the_configuration_surround_the_metadata(registry: FakeRegistry) -> None:
    registry.config(
        "a", defaultMetadata={"properties": {"owner": "nobody", "team": "t"}},
        overrideMetadata={"properties": {"level": "gold"}},
    )  # fmt: skip
    row = registry.register("a", A, metadata={"properties": {"owner": "x", "level": "tin"}})
    assert row.metadata == {"properties": {"owner": "x", "team": "t", "level": "gold"}}


def test_configuration_of_a_subject_stands_alone_but_for_its_flags(registry: FakeRegistry) -> None:
    registry.config(None, compatibility="FULL", normalize=True, defaultMetadata={"properties": {"owner": "all"}})
    assert registry.state.config_in_scope("a")["compatibilityLevel"] == "FULL"
    registry.config("a", validateFields=True)
    assert registry.state.config_in_scope("a") == {
        "compatibilityLevel": "BACKWARD", "normalize": True, "validateFields": True,
    }  # fmt: skip
    assert registry.state.config("a") == {"compatibilityLevel": "BACKWARD", "validateFields": True}
    assert registry.register("a", A).metadata is None
    assert registry.register("b", A).metadata == {"properties": {"owner": "all"}}


# -- ids --------------------------------------------------------------------------------------------------------------


def test_id_of_a_deleted_schema_is_never_used_again_even_after_compaction(registry: FakeRegistry) -> None:
    registry.register("a", A)
    registry.register("b", OTHER)
    registry.delete("b")
    registry.delete("b", permanent=True)
    reader = FakeRegistry()
    reader.state = registry.replayed(compacted=True)
    reader.parser._state = reader.state
    assert reader.register("c", record("C")).id == 3


def test_imported_id_names_one_schema_with_one_metadata(registry: FakeRegistry) -> None:
    registry.mode(None, "IMPORT")
    registry.register("a", A, id=7, version=1, metadata={"properties": {"owner": "x"}})
    assert code_of(lambda: registry.register("b", A, id=7, version=1)) == 42205
    assert registry.register("b", A, id=7, version=1, metadata={"properties": {"owner": "x"}}).id == 7


def test_imported_schema_is_found_as_it_is_stored_although_clients_normalise(registry: FakeRegistry) -> None:
    registry.mode("a", "IMPORT")
    text = record("A", {"name": "x", "type": {"type": "int"}}, doc="")
    row = registry.register("a", text, id=7, version=1, normalize=True)
    new = NewSchema.parse({"schema": text})
    assert changes.find(registry.state, registry.parser, "a", new, normalize=True) == registry.state.get("a", 1)
    assert row.text == registry.parser.parse("a", "AVRO", text).text


def test_global_import_needs_all_contexts_without_schemas(registry: FakeRegistry) -> None:
    registry.register(":.t:a", A)
    assert code_of(lambda: registry.mode(None, "IMPORT")) == 42205
    registry.delete(":.t:a")
    registry.mode(None, "IMPORT")
    assert registry.state.versions(":.t:a", deleted=True) == []
    assert registry.replayed(compacted=True).versions(":.t:a", deleted=True) == []


def test_context_is_deleted_twice(registry: FakeRegistry) -> None:
    registry.register(":.t:a", A)
    assert code_of(lambda: changes.delete_context(registry.state, ".t")) == 42211
    registry.delete(":.t:a")
    registry.delete(":.t:a", permanent=True)
    registry.apply(changes.delete_context(registry.state, ".t"))
    assert registry.state.context_names() == ["."]
    assert changes.delete_context(registry.state, ".t") == []


def test_contexts_have_their_own_ids(registry: FakeRegistry) -> None:
    registry.register("a", A)
    row = registry.register(":.t:a", OTHER)
    assert (row.id, row.version) == (1, 1)
    assert registry.state.context_names() == [".", ".t"]
    assert registry.state.by_id(".t", 1) != registry.state.by_id(".", 1)


def test_import_chooses_id_and_version(registry: FakeRegistry) -> None:
    assert code_of(lambda: registry.register("a", A, id=7)) == 42205
    registry.mode("a", "IMPORT")
    row = registry.register("a", A, id=70, version=5)
    assert (row.id, row.version) == (70, 5)
    assert code_of(lambda: registry.register("a", OTHER, id=70, version=6)) == 42205
    assert code_of(lambda: registry.register("a", OTHER)) == 42205
    registry.mode("a", "READWRITE")
    assert registry.register("a", A_WITH_DEFAULT).id == 71


def test_stored_schema_with_a_name_of_older_rules_stays_usable(registry: FakeRegistry) -> None:
    old = record("A", number("größe"))
    assert code_of(lambda: registry.register("a", old)) == 42201
    registry.mode("a", "IMPORT")
    registry.register("a", old, id=1, version=1)
    registry.mode("a", "READWRITE")
    assert registry.find("a", old) is not None
    assert registry.register("a", record("A", number("size", default=0))).version == 2


# -- deletion and modes -----------------------------------------------------------------------------------------------


def test_deletion_is_soft_before_it_is_permanent(registry: FakeRegistry) -> None:
    registry.register("a", A)
    registry.register("a", A_WITH_DEFAULT)
    assert code_of(lambda: registry.delete("a", permanent=True)) == 40405
    assert code_of(lambda: registry.delete_version("a", 1, permanent=True)) == 40407
    assert registry.delete_version("a", 1) == 1
    assert code_of(lambda: registry.delete_version("a", 1)) == 40406
    assert registry.delete("a") == [2]
    assert code_of(lambda: registry.delete("a")) == 40404
    assert registry.find("a", A) is None
    assert registry.find("a", A, deleted=True) is not None
    assert registry.delete("a", permanent=True) == [1, 2]
    assert code_of(lambda: registry.delete("a")) == 40401
    assert registry.state.by_id(".", 1) is None


def test_referenced_version_cannot_be_deleted(registry: FakeRegistry) -> None:
    registry.register("b", record("B", number("x")))
    references = [{"name": "B", "subject": "b", "version": 1}]
    registry.register("a", record("A", {"name": "b", "type": "B"}), references=references)
    assert code_of(lambda: registry.delete("b")) == 42206
    assert code_of(lambda: registry.delete_version("b", 1)) == 42206
    registry.delete("a")
    registry.delete("b")
    assert code_of(lambda: registry.delete("b", permanent=True)) == 42206


@pytest.mark.parametrize("mode", ["READONLY", "READONLY_OVERRIDE"])
def test_read_only_mode_refuses_every_change(registry: FakeRegistry, mode: str) -> None:
    registry.register("a", A)
    registry.mode("a", mode)
    assert code_of(lambda: registry.register("a", A_WITH_DEFAULT)) == 42205
    assert code_of(lambda: registry.delete("a")) == 42205
    assert code_of(lambda: registry.config("a", compatibility="NONE")) == 42205
    registry.mode("a", None)
    assert registry.register("a", A_WITH_DEFAULT).version == 2


def test_import_mode_needs_a_subject_without_schemas(registry: FakeRegistry) -> None:
    registry.register("a", A)
    assert code_of(lambda: registry.mode("a", "IMPORT")) == 42205
    registry.mode("a", "IMPORT", force=True)
    registry.mode("a", "READWRITE")
    registry.delete("a")
    registry.mode("a", "IMPORT")
    assert registry.state.versions("a", deleted=True) == []


# -- all instances ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_instances_that_read_the_topic_agree_and_no_id_names_two_schemas(seed: int) -> None:
    random, registry = Random(seed), FakeRegistry()
    registry.config(":.__GLOBAL:", compatibility="NONE")
    expected = {40401, 40402, 40404, 40405, 40406, 40407, 42205}
    ids: dict[tuple[str, int], str] = {}
    for _ in range(120):
        subject = random.choice(["a", "b", "c", ":.t:a", ":.t:b"])
        try:
            action = random.random()
            if action < 0.6:
                row = registry.register(subject, record(random.choice("ABC"), number(random.choice("xyz"))))
                assert ids.setdefault((subject[:2], row.id), row.text) == row.text
            elif action < 0.75:
                registry.delete(subject, permanent=random.random() < 0.5)
            elif action < 0.9:
                registry.delete_version(subject, random.randint(1, 5), permanent=random.random() < 0.5)
            else:
                registry.mode(subject, random.choice(["READONLY", "READWRITE", None]))
        except HttpError as error:
            if error.error_code not in expected:
                raise
    for other in (registry.replayed(), registry.replayed(compacted=True)):
        assert visible(other) == visible(registry.state)


def visible(state: State) -> object:
    rows = [
        (row.subject, row.version, row.id, row.text, row.is_deleted) for row in state.all_versions(":*:", deleted=True)
    ]
    return rows, state.modes, state.configs, {name: state.id_max(name) for name in (".", ".t")}


def test_versions_of_the_same_change_have_different_ids(registry: FakeRegistry) -> None:
    registry.register("before", record("X"))
    rows: list[SchemaVersion] = []
    for subject, text in (("a", record("A")), ("b", record("B")), ("c", record("A")), (":.t:d", record("A"))):
        new = NewSchema.parse({"schema": text})
        row, _ = changes.register(registry.state, registry.parser, subject, new, normalize=False, others=rows)
        rows.append(row)
    assert [row.id for row in rows] == [2, 3, 2, 1]


def test_last_number_can_be_imported_and_has_no_successor(registry: FakeRegistry) -> None:
    registry.mode(None, "IMPORT")
    registry.register("a", A, id=2**31 - 1, version=2**31 - 1)
    registry.mode(None, "READWRITE", force=True)
    assert code_of(lambda: registry.register("b", OTHER)) == 42205
    assert code_of(lambda: registry.register("a", A_WITH_DEFAULT)) == 42205
    assert registry.register("b", A).id == 2**31 - 1
