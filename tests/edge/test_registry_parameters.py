"""The query parameters of the registry's routes. One broker and one instance for all tests."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from edge_broker import edge_broker
from google.protobuf import descriptor_pb2
from registry_process import RegistryProcess

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryProcess]:
    with edge_broker() as broker, RegistryProcess(broker.bootstrap) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test has, and that can be part of an Avro name."""
    return f"p{next(_NUMBERS)}"


def record(name: str, *fields: dict[str, Any], **members: Any) -> str:
    return json.dumps({"type": "record", "name": name, **members, "fields": list(fields)}, separators=(",", ":"))


ID = {"name": "id", "type": "int"}


def register_with_reference(registry: RegistryProcess, name: str, context: str = "") -> int:
    """Register `{name}_inner` and a record that refers to it. Return the id of the latter."""
    registry.register(f"{context}{name}-inner", record(f"{name}_inner", ID))
    text = record(f"{name}_outer", {"name": "inner", "type": f"{name}_inner"})
    reference = {"name": f"{name}_inner", "subject": f"{name}-inner", "version": 1}
    return registry.register(f"{context}{name}", text, references=[reference])


# -- format and referenceFormat ---------------------------------------------------------------------------------------


def test_format_resolved_contains_the_referenced_types(registry: RegistryProcess, name: str) -> None:
    schema_id = register_with_reference(registry, name)
    for path in (f"/schemas/ids/{schema_id}", f"/subjects/{name}/versions/1"):
        plain, resolved = registry.get(path), registry.get(f"{path}?format=resolved")
        assert json.loads(plain["schema"])["fields"][0]["type"] == f"{name}_inner"
        assert json.loads(resolved["schema"])["fields"][0]["type"]["fields"] == [ID]
        assert resolved["guid"] == plain["guid"]
        assert registry.get(f"{path}/schema?format=resolved")["fields"][0]["type"]["name"] == f"{name}_inner"
    guid = registry.get(f"/schemas/ids/{schema_id}")["guid"]
    assert '"fields"' in registry.get(f"/schemas/guids/{guid}?format=resolved")["schema"].partition("inner")[2]
    body = {"schema": plain["schema"], "references": plain["references"]}
    status, found = registry.ask("POST", f"/subjects/{name}?format=resolved", body)
    assert (status, found["schema"]) == (200, resolved["schema"])
    status, again = registry.ask("POST", f"/subjects/{name}/versions?format=resolved", body)
    assert (status, again["id"], again["schema"]) == (200, schema_id, resolved["schema"])


def test_format_serialized_is_a_descriptor_in_base64(registry: RegistryProcess, name: str) -> None:
    text = f'syntax = "proto3";\npackage {name};\n\nmessage Order {{\n  int32 id = 1;\n}}\n'
    schema_id = registry.register(name, text, schemaType="PROTOBUF")
    for path in (f"/schemas/ids/{schema_id}", f"/subjects/{name}/versions/latest"):
        found = registry.get(f"{path}?format=serialized")
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(found["schema"]))
        assert (file.package, file.message_type[0].field[0].name) == (name, "id")
        assert registry.get(path)["schema"] == text


@pytest.mark.parametrize("schema_type", ["AVRO", "JSON", "PROTOBUF"])
def test_unknown_format_is_ignored(registry: RegistryProcess, name: str, schema_type: str) -> None:
    texts = {"AVRO": '"string"', "JSON": '{"type":"object"}', "PROTOBUF": 'syntax = "proto3";\n\nmessage M {}\n'}
    schema_id = registry.register(name, texts[schema_type], schemaType=schema_type)
    for path in (f"/schemas/ids/{schema_id}", f"/subjects/{name}/versions/1"):
        assert registry.get(f"{path}?format=of-the-future")["schema"] == registry.get(path)["schema"]


def test_reference_format_qualified_names_the_context(registry: RegistryProcess, name: str) -> None:
    context = f":.{name}:"
    schema_id = register_with_reference(registry, name, context)
    for path in (f"/schemas/ids/{schema_id}?subject={context}", f"/subjects/{context}{name}/versions/1?"):
        assert registry.get(path)["references"][0]["subject"] == f"{name}-inner"
        for parameter in ("referenceFormat", "reference_format"):  # the latter is sent by confluent-kafka for Python
            found = registry.get(f"{path}&{parameter}=qualified")
            assert found["references"][0]["subject"] == f"{context}{name}-inner"


@pytest.mark.parametrize("path", ["/schema", "/referencedby"])
def test_parts_of_versions_that_do_not_exist(registry: RegistryProcess, name: str, path: str) -> None:
    registry.register(name, '"int"')
    for version, expected in [("2", (404, 40402)), ("0", (422, 42202)), ("x", (422, 42202))]:
        status, answer = registry.ask("GET", f"/subjects/{name}/versions/{version}{path}")
        assert (status, answer["error_code"]) == expected
    status, answer = registry.ask("GET", f"/subjects/{name}-missing/versions/1{path}")
    assert (status, answer["error_code"]) == (404, 40401)


@pytest.mark.parametrize("path", ["/subjects", "/schemas", "/contexts"])
def test_page_that_is_not_a_number(registry: RegistryProcess, path: str) -> None:
    for query in ("limit=x", "offset=1.5"):
        status, answer = registry.ask("GET", f"{path}?{query}")
        assert (status, answer["error_code"]) == (404, 404)


# -- normalize, deleted, force ----------------------------------------------------------------------------------------


def test_normalize_finds_a_schema_that_is_written_differently(registry: RegistryProcess, name: str) -> None:
    first = {"schema": record(name, {"name": "id", "type": {"type": "int"}}, b="1", a="2")}
    second = {"schema": record(name, ID, a="2", b="1")}
    status, made = registry.ask("POST", f"/subjects/{name}/versions?normalize=true", first)
    assert status == 200
    assert registry.ask("POST", f"/subjects/{name}/versions?normalize=true", second)[1]["id"] == made["id"]
    assert registry.ask("POST", f"/subjects/{name}?normalize=true", second)[1]["version"] == 1
    assert registry.get(f"/subjects/{name}/versions") == [1]
    path = f"/compatibility/subjects/{name}/versions"
    assert registry.ask("POST", f"{path}?normalize=true", second) == (200, {"is_compatible": True})
    assert registry.ask("POST", f"{path}/1?normalize=true", second) == (200, {"is_compatible": True})


def test_lookup_finds_deleted_versions_if_it_is_asked_to(registry: RegistryProcess, name: str) -> None:
    body = {"schema": record(name, ID)}
    schema_id = registry.register(name, body["schema"])
    registry.ask("DELETE", f"/subjects/{name}")
    assert registry.ask("POST", f"/subjects/{name}", body)[1]["error_code"] == 40401
    status, found = registry.ask("POST", f"/subjects/{name}?deleted=true", body)
    assert (status, found["id"], found["deleted"]) == (200, schema_id, True)


def test_registration_with_force_skips_the_compatibility_check(registry: RegistryProcess, name: str) -> None:
    registry.register(name, '"string"')
    assert registry.ask("POST", f"/subjects/{name}/versions", {"schema": '"int"'})[0] == 409
    assert registry.ask("POST", f"/subjects/{name}/versions?force=true", {"schema": '"int"'})[1]["version"] == 2


# -- parameters of lists ----------------------------------------------------------------------------------------------


def test_uses_of_an_id_are_listed_with_deleted_ones_and_pages(registry: RegistryProcess, name: str) -> None:
    subjects = [f"{name}-{number}" for number in range(3)]
    for subject in subjects:
        schema_id = registry.register(subject, record(name, ID))
    registry.ask("DELETE", f"/subjects/{subjects[1]}")
    path = f"/schemas/ids/{schema_id}"
    assert registry.get(f"{path}/subjects") == [subjects[0], subjects[2]]
    assert registry.get(f"{path}/subjects?deleted=true") == subjects
    assert registry.get(f"{path}/subjects?deleted=true&offset=1&limit=1") == [subjects[1]]
    assert [row["subject"] for row in registry.get(f"{path}/versions")] == [subjects[0], subjects[2]]
    assert [row["subject"] for row in registry.get(f"{path}/versions?deleted=true&offset=1")] == subjects[1:]


def test_versions_and_referrers_have_pages(registry: RegistryProcess, name: str) -> None:
    schema_id = register_with_reference(registry, name)
    path = f"/subjects/{name}-inner/versions/1/referencedby"
    assert registry.get(f"{path}?offset=0&limit=1") == [schema_id]
    assert registry.get(f"{path}?offset=1") == []
    registry.ask("DELETE", f"/subjects/{name}")
    assert registry.get(path) == []
    assert registry.get(f"{path}?deleted=true") == [schema_id]
    registry.register(name, '"int"')
    assert registry.get(f"/subjects/{name}/versions?deleted=true&limit=1") == [1]
    assert registry.get(f"/subjects/{name}/versions?deleted=true&offset=1") == [2]


def test_schemas_are_listed_by_alias_and_by_the_type_of_a_rule(registry: RegistryProcess, name: str) -> None:
    rules = {"domainRules": [{"name": "r", "kind": "CONDITION", "type": "CEL", "mode": "WRITE", "expr": "true"}]}
    registry.register(f"{name}-rules", record(name, ID), ruleSet=rules)
    registry.register(f"{name}-plain", record(name, ID))
    registry.ask("PUT", f"/config/{name}-alias", {"alias": f"{name}-plain"})
    path = f"/schemas?subjectPrefix={name}-"
    assert [row["subject"] for row in registry.get(f"{path}&ruleType=CEL")] == [f"{name}-rules"]
    assert registry.get(f"{path}&ruleType=ENCRYPT") == []
    (found,) = registry.get(f"/schemas?subjectPrefix={name}-alias&aliases=true")
    assert (found["subject"], found["aliases"]) == (f"{name}-plain", [f"{name}-alias"])
    assert registry.get(f"/schemas?subjectPrefix={name}-alias") == []


def test_tags_of_a_schema_are_found_by_id(registry: RegistryProcess, name: str) -> None:
    tagged = {"name": "mail", "type": "string", "confluent:tags": ["PII"]}
    schema_id = registry.register(name, record(name, ID, tagged))
    entity = {"entityPath": f"{name}.mail", "entityType": "sr_field"}
    assert registry.get(f"/schemas/ids/{schema_id}?findTags=PII")["schemaTags"] == [
        {"schemaEntity": entity, "tags": ["PII"]}
    ]
    assert registry.get(f"/schemas/ids/{schema_id}?findTags=OTHER")["schemaTags"] == []
    assert "schemaTags" not in registry.get(f"/schemas/ids/{schema_id}")


# -- modes and imports ------------------------------------------------------------------------------------------------


def test_mode_of_a_context_is_deleted_with_those_of_its_subjects(registry: RegistryProcess, name: str) -> None:
    base = f"/contexts/.{name}/mode"
    assert registry.ask("PUT", base, {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert registry.ask("PUT", f"{base}/s", {"mode": "READWRITE"}) == (200, {"mode": "READWRITE"})
    assert registry.get(f"{base}/s") == {"mode": "READWRITE"}
    assert registry.get(f"{base}/other?defaultToGlobal=true") == {"mode": "READONLY"}
    assert registry.ask("DELETE", f"{base}?recursive=true") == (200, {"mode": "READONLY"})
    assert registry.ask("GET", f"{base}/s")[1]["error_code"] == 40409
    assert registry.get(f"{base}/s?defaultToGlobal=true") == {"mode": "READWRITE"}


def test_global_mode_is_set_and_deleted(registry: RegistryProcess, name: str) -> None:
    assert registry.ask("PUT", "/mode", {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert registry.ask("POST", f"/subjects/{name}/versions", {"schema": '"int"'})[1]["error_code"] == 42205
    assert registry.ask("DELETE", "/mode") == (200, {"mode": "READONLY"})
    assert registry.get("/mode") == {"mode": "READWRITE"}


def test_import_keeps_ids_and_versions(registry: RegistryProcess, name: str) -> None:
    subject = f":.{name}:s"
    body = {"schema": record(name, ID), "id": 4711, "version": 5}
    assert registry.ask("POST", f"/subjects/{subject}/versions", body)[1]["error_code"] == 42205
    assert registry.ask("PUT", f"/mode/{subject}", {"mode": "IMPORT"}) == (200, {"mode": "IMPORT"})
    status, made = registry.ask("POST", f"/subjects/{subject}/versions", body)
    assert (status, made["id"], made["version"]) == (200, 4711, 5)
    other = {"schema": '"int"', "id": 4711, "version": 6}
    assert registry.ask("POST", f"/subjects/{subject}/versions", other)[1]["error_code"] == 42205
    assert registry.ask("POST", f"/subjects/{subject}/versions", {"schema": '"int"'})[1]["error_code"] == 42205


def test_forward_is_a_mode_of_all_contexts_together(registry: RegistryProcess, name: str) -> None:
    for path in ("/mode", f"/mode/{name}", f"/mode/:.{name}:", "/mode/:.__GLOBAL:s"):
        assert registry.ask("PUT", path, {"mode": "FORWARD"})[1]["error_code"] == 42204
    assert registry.ask("PUT", "/mode/:.__GLOBAL:", {"mode": "FORWARD"}) == (200, {"mode": "FORWARD"})
    assert registry.ask("DELETE", "/mode/:.__GLOBAL:") == (200, {"mode": "FORWARD"})


def test_modes_of_subjects_are_deleted_with_a_context_that_has_none(registry: RegistryProcess, name: str) -> None:
    assert registry.ask("PUT", f"/mode/:.{name}:s", {"mode": "READONLY"})[0] == 200
    assert registry.ask("DELETE", f"/mode/:.{name}:")[1]["error_code"] == 40401
    assert registry.ask("DELETE", f"/mode/:.{name}:?recursive=true") == (200, {})
    assert registry.ask("GET", f"/mode/:.{name}:s")[1]["error_code"] == 40409


# -- contexts, references, versions -----------------------------------------------------------------------------------


def test_prefix_without_a_context_is_one_of_the_default_context(registry: RegistryProcess, name: str) -> None:
    inside, outside = f":.{name}:{name}", f"{name}-s"
    registry.register(inside, '"int"')
    registry.register(outside, '"int"')
    assert {inside, outside} <= set(registry.get("/subjects"))
    default = set(registry.get("/subjects?subjectPrefix="))
    assert outside in default
    assert inside not in default
    assert registry.get(f"/subjects?subjectPrefix=:*:{name}") == [inside, outside]
    assert inside not in {row["subject"] for row in registry.get("/schemas")}
    assert [row["subject"] for row in registry.get(f"/schemas?subjectPrefix=:*:{name}")] == [inside, outside]
    assert registry.get(f"/contexts/.{name}/subjects") == [inside]
    assert outside in registry.get("/contexts/:.:/subjects")


def test_contexts_are_listed_below_a_context_too(registry: RegistryProcess, name: str) -> None:
    """Clients can be configured with the URL of a context, and send all requests there."""
    registry.register(f":.{name}:s", '"int"')
    assert registry.get(f"/contexts/.{name}/contexts?contextPrefix=.{name}") == [f".{name}"]


def test_new_schema_cannot_refer_to_a_deleted_version(registry: RegistryProcess, name: str) -> None:
    register_with_reference(registry, name)
    registry.ask("DELETE", f"/subjects/{name}")
    registry.ask("DELETE", f"/subjects/{name}-inner")
    body = {
        "schema": record(f"{name}_other", {"name": "inner", "type": f"{name}_inner"}),
        "references": [{"name": f"{name}_inner", "subject": f"{name}-inner", "version": 1}],
    }
    assert registry.ask("POST", f"/subjects/{name}/versions", body)[1]["error_code"] == 42201
    assert registry.ask("POST", f"/compatibility/subjects/{name}/versions", body)[1]["error_code"] == 42201


def test_reference_to_the_latest_version_is_stored_with_its_number(registry: RegistryProcess, name: str) -> None:
    registry.register(f"{name}-inner", record(f"{name}_inner", ID))
    registry.register(f"{name}-inner", record(f"{name}_inner", ID, {"name": "x", "type": "int", "default": 0}))
    text = record(name, {"name": "inner", "type": f"{name}_inner"})
    latest = {"name": f"{name}_inner", "subject": f"{name}-inner", "version": -1}
    schema_id = registry.register(name, text, references=[latest])
    assert registry.get(f"/schemas/ids/{schema_id}")["references"] == [{**latest, "version": 2}]
    assert registry.get(f"/subjects/{name}-inner/versions/2/referencedby") == [schema_id]
    assert registry.register(name, text, references=[latest]) == schema_id
    assert registry.ask("POST", f"/subjects/{name}", {"schema": text, "references": [latest]})[1]["version"] == 1


def test_version_that_a_client_names_is_a_property_of_the_metadata(registry: RegistryProcess, name: str) -> None:
    body = {"schema": record(name, ID)}
    path = f"/subjects/{name}/versions"

    def register(**members: Any) -> int:
        status, answer = registry.ask("POST", path, {**body, **members})
        return int(answer["version"]) if status == 200 else int(answer["error_code"])

    def numbered(version: object) -> dict[str, Any]:
        return {"metadata": {"properties": {"confluent:version": str(version)}}}

    # -1 is the latest version, and a new one only if its schema or its metadata differ.
    assert [register(), register(version=-1), register(version=2), register(version=-1)] == [1, 1, 2, 2]
    assert registry.get(f"{path}/2")["metadata"]["properties"] == {"confluent:version": "2"}
    assert "metadata" not in registry.get(f"{path}/1")
    assert register(version=2) == 42201  # not the next one
    assert [register(**numbered(1)), register(**numbered(2)), register(**numbered(-1))] == [1, 2, 3]
    assert registry.get(f"{path}/3")["metadata"]["properties"] == {"confluent:version": "3"}
    lookup = f"/subjects/{name}"
    found = [registry.ask("POST", lookup, {**body, **numbered(number)})[1]["version"] for number in (1, 2, 3)]
    assert found == [1, 2, 3]
    assert registry.ask("POST", lookup, body)[1]["version"] == 1
    assert register(metadata={"properties": {"owner": "a"}}) == 4
    assert register(version=-1) == 5
    assert registry.get(f"{path}/5")["metadata"]["properties"] == {"owner": "a", "confluent:version": "5"}


def test_checks_of_new_schemas_can_be_turned_off(registry: RegistryProcess, name: str) -> None:
    body = {"schema": record(name, {"name": "id", "type": "string", "default": None})}
    check = f"/compatibility/subjects/{name}/versions/latest"
    for path in (check, f"/subjects/{name}/versions"):
        assert registry.ask("POST", path, body)[1]["error_code"] == 42201
    registry.ask("PUT", f"/config/{name}", {"validateNewSchemas": False})
    assert registry.ask("POST", check, body) == (200, {"is_compatible": True})
    assert registry.ask("POST", f"/subjects/{name}/versions", body)[0] == 200


def test_id_of_a_registered_schema_may_be_sent_again(registry: RegistryProcess, name: str) -> None:
    schema_id = registry.register(name, '"float"')
    assert registry.register(name, '"float"', id=schema_id) == schema_id
    other = {"schema": '"float"', "id": schema_id + 1000}
    assert registry.ask("POST", f"/subjects/{name}/versions", other)[1]["error_code"] == 42205


def test_messages_have_the_words_that_clients_look_for(registry: RegistryProcess, name: str) -> None:
    """confluent-kafka's own tests search messages of the registry for these words."""
    registry.register(name, record(name, ID))
    incompatible = {"schema": record(name, ID, {"name": "x", "type": "int"})}
    for method, path, body, words in [
        ("GET", f"/subjects/{name}/versions/a", None, "The specified version 'a' is not a valid version id"),
        ("GET", f"/subjects/{name}/versions/9", None, "Version 9 not found"),
        ("GET", "/subjects/missing/versions/1", None, "Subject 'missing' not found"),
        ("GET", "/schemas/ids/999999", None, "Schema 999999 not found"),
        ("POST", f"/subjects/{name}", {"schema": "{"}, "Invalid schema"),
        ("POST", f"/subjects/{name}/versions", incompatible, "Schema being registered is incompatible with an earlier"),
        ("PUT", "/config", {"compatibility": "SOME"}, "Invalid compatibility level"),
    ]:
        assert words in registry.ask(method, path, body)[1]["message"]


def test_empty_metadata_and_empty_rules_share_an_id(registry: RegistryProcess, name: str) -> None:
    """Both have the same guid by Confluent's rule, so an id that was found by guid must not be refused."""
    first = registry.register(f"{name}-1", record(name, ID), metadata={})
    assert registry.register(f"{name}-2", record(name, ID), ruleSet={}) == first
