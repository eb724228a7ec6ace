"""Every route of the registry: status, error code and body, over HTTP. One broker and one instance for all tests."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from edge_broker import edge_broker
from registry_process import RegistryProcess

JSON = "application/vnd.schemaregistry.v1+json"
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryProcess]:
    with edge_broker() as broker, RegistryProcess(broker.bootstrap) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test has."""
    return f"test-{next(_NUMBERS)}"


def record(name: str, **fields: Any) -> str:
    rows = [
        {"name": key, "type": "int"} | ({} if value is None else {"default": value}) for key, value in fields.items()
    ]
    return json.dumps({"type": "record", "name": name.replace("-", "_"), "fields": rows}, separators=(",", ":"))


def error(registry: RegistryProcess, method: str, path: str, body: Any = None) -> tuple[int, int]:
    status, answer = registry.ask(method, path, body)
    assert set(answer) == {"error_code", "message"}
    assert answer["message"]
    return status, answer["error_code"]


# -- the service ------------------------------------------------------------------------------------------------------


def test_root_answers_an_empty_object_to_probes(registry: RegistryProcess) -> None:
    assert registry.ask("GET", "/") == (200, {})
    assert registry.ask("POST", "/", {}) == (200, {})
    assert registry.client.head(f"{registry.url}/").status_code == 200


def test_service_describes_itself(registry: RegistryProcess, name: str) -> None:
    registry.register(name, '"int"')  # waits for the election
    assert registry.get("/v1/metadata/id")["scope"]["clusters"]["schema-registry-cluster"] == "schema-registry"
    assert registry.get("/v1/metadata/version")["version"]
    assert registry.get("/v1/metadata/deployment") == {"attributes": []}
    assert registry.get("/_health")["healthy"] is True
    assert registry.get("/master_available") == {"master_available": True}


def test_answer_has_the_media_type_that_the_client_accepts(registry: RegistryProcess) -> None:
    for accept, expected in [
        ("*/*", JSON), (JSON, JSON), ("application/json", "application/json"),
        ("application/vnd.schemaregistry+json; q=0.9, application/json; q=0.5", "application/vnd.schemaregistry+json"),
    ]:  # fmt: skip
        answer = registry.client.get(f"{registry.url}/subjects", headers={"accept": accept})
        assert answer.headers["content-type"].partition(";")[0] == expected
    assert registry.client.get(f"{registry.url}/subjects", headers={"accept": "text/html"}).status_code == 406


@pytest.mark.parametrize("content_type", [JSON, "application/json", "application/octet-stream"])
def test_body_is_read_with_every_media_type_of_clients(registry: RegistryProcess, name: str, content_type: str) -> None:
    body = json.dumps({"schema": '"string"'})
    answer = httpx.post(
        f"{registry.url}/subjects/{name}/versions", content=body, headers={"content-type": content_type}
    )
    assert answer.status_code == 200


def test_unknown_members_and_a_slash_at_the_end_are_tolerated(registry: RegistryProcess, name: str) -> None:
    body = {"schema": '"int"', "unknown": {"a": [1]}, "schemaTagsToAdd": None}
    assert registry.ask("POST", f"/subjects/{name}/versions/", body)[0] == 200
    assert registry.ask("GET", "/config/") == (200, {"compatibilityLevel": "BACKWARD"})


def test_body_that_is_not_an_object_is_refused(registry: RegistryProcess, name: str) -> None:
    path = f"{registry.url}/subjects/{name}/versions"
    for content, status in [
        (b"", 400),
        (b"{", 400),
        (b"[]", 422),
        (b'"x"', 422),
        (b"\xff", 400),
        (b"[" * 100_000, 400),
    ]:
        assert registry.client.post(path, content=content).status_code == status
    assert error(registry, "POST", f"/subjects/{name}/versions", {"schema": 1}) == (422, 422)
    assert error(registry, "GET", f"/subjects/{name}/versions") == (404, 40401)


def test_registrations_at_the_same_time_have_ids_of_their_own(registry: RegistryProcess, name: str) -> None:
    """Those that wait are made in one transaction, also with equal schemas, equal subjects and schemas that fail."""

    def register(number: int) -> tuple[int, Any]:
        kind = number % 4
        text = record(name, same=None) if kind == 0 else record(name, **{f"f{number}": None})
        text = '{"type": "record"}' if kind == 1 else text
        subject = f"{name}-one" if kind == 2 else f"{name}-{number}"
        return registry.ask("POST", f"/subjects/{subject}/versions", {"schema": text})

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(register, range(64)))
    assert [status for status, _ in answers[1::4]] == [422] * 16
    # A new field without a default is incompatible: one registration of the shared subject has come first.
    assert sorted(status for status, _ in answers[2::4]) == [200] + [409] * 15
    assert len({answer["id"] for _, answer in answers[0::4]}) == 1
    assert len({answer["id"] for _, answer in answers[3::4]}) == 16
    for number in range(3, 64, 4):
        found = registry.get(f"/schemas/ids/{answers[number][1]['id']}")
        assert (found["subject"], found["schema"]) == (f"{name}-{number}", record(name, **{f"f{number}": None}))


# -- schemas --------------------------------------------------------------------------------------------------------


def test_schema_is_found_by_id(registry: RegistryProcess, name: str) -> None:
    text = record(name, x=None)
    schema_id = registry.register(name, text)
    found = registry.get(f"/schemas/ids/{schema_id}")
    assert found["schema"] == text
    assert "schemaType" not in found
    assert registry.get(f"/schemas/ids/{schema_id}/schema") == json.loads(text)
    assert registry.get(f"/schemas/ids/{schema_id}/subjects") == [name]
    assert registry.get(f"/schemas/ids/{schema_id}/versions") == [{"subject": name, "version": 1}]
    assert registry.get(f"/schemas/ids/{schema_id}?fetchMaxId=true")["maxId"] >= schema_id
    assert registry.get(f"/schemas/guids/{found['guid']}")["schema"] == text
    assert registry.get(f"/schemas/guids/{found['guid']}/ids") == [{"context": ".", "id": schema_id}]


def test_answers_and_lookups_follow_changes_although_they_are_kept(registry: RegistryProcess, name: str) -> None:
    text = json.dumps(json.loads(record(name, x=None)), indent=1)  # not in the canonical form
    schema_id = registry.register(name, text)
    paths = (f"/schemas/ids/{schema_id}", f"/schemas/ids/{schema_id}?subject={name}", f"/subjects/{name}/versions/1")
    for path in paths:
        assert registry.get(path) == registry.get(path)
        assert "deleted" not in registry.get(path)
    for _ in range(2):
        assert registry.ask("POST", f"/subjects/{name}", {"schema": text})[1]["id"] == schema_id
    registry.ask("DELETE", f"/subjects/{name}")
    for path in paths[:2]:
        assert registry.get(path)["deleted"] is True
    assert error(registry, "GET", paths[2]) == (404, 40401)
    assert error(registry, "POST", f"/subjects/{name}", {"schema": text}) == (404, 40401)
    assert registry.ask("POST", f"/subjects/{name}?deleted=true", {"schema": text})[1]["id"] == schema_id
    registry.ask("DELETE", f"/subjects/{name}?permanent=true")
    assert error(registry, "GET", paths[0]) == (404, 40403)
    assert registry.register(name, text) > schema_id


@pytest.mark.parametrize("path", ["", "/schema", "/subjects", "/versions"])
def test_unknown_id_is_40403(registry: RegistryProcess, path: str) -> None:
    assert error(registry, "GET", f"/schemas/ids/2000000000{path}") == (404, 40403)
    assert error(registry, "GET", f"/schemas/ids/x{path}") == (404, 404)


def test_unknown_guid_is_40403(registry: RegistryProcess) -> None:
    assert error(registry, "GET", "/schemas/guids/00000000-0000-0000-0000-000000000000") == (404, 40403)
    assert error(registry, "GET", "/schemas/guids/x/ids") == (404, 40403)


def test_schemas_are_listed_with_filters_and_pages(registry: RegistryProcess, name: str) -> None:
    assert registry.get("/schemas/types") == ["JSON", "PROTOBUF", "AVRO"]
    registry.register(name, record(name, x=None))
    registry.register(name, record(name, x=None, y=0))
    registry.register(f"{name}-b", record(name, z=None))
    path = f"/schemas?subjectPrefix={name}"
    assert [(row["subject"], row["version"]) for row in registry.get(path)] == [(name, 1), (name, 2), (f"{name}-b", 1)]
    assert [row["version"] for row in registry.get(f"{path}&latestOnly=true")] == [2, 1]
    assert [row["version"] for row in registry.get(f"{path}&offset=1&limit=1")] == [2]
    registry.ask("DELETE", f"/subjects/{name}")
    assert len(registry.get(path)) == 1
    assert len(registry.get(f"{path}&deleted=true")) == 3


# -- subjects ---------------------------------------------------------------------------------------------------------


def test_registration_answers_the_id_and_is_idempotent(registry: RegistryProcess, name: str) -> None:
    text = record(name, x=None)
    first, second = (registry.ask("POST", f"/subjects/{name}/versions", {"schema": text}) for _ in range(2))
    assert first == second
    assert first[1]["version"] == 1
    assert registry.get(f"/subjects/{name}/versions") == [1]


def test_lookup_finds_a_version_by_its_schema(registry: RegistryProcess, name: str) -> None:
    text = record(name, x=None)
    assert error(registry, "POST", f"/subjects/{name}", {"schema": text}) == (404, 40401)
    schema_id = registry.register(name, text)
    status, found = registry.ask("POST", f"/subjects/{name}", {"schema": text})
    assert (status, found["subject"], found["version"], found["id"], found["schema"]) == (200, name, 1, schema_id, text)
    assert error(registry, "POST", f"/subjects/{name}", {"schema": '"long"'}) == (404, 40403)
    assert error(registry, "POST", f"/subjects/{name}", {"schema": "{"}) == (422, 42201)


def test_versions_are_read(registry: RegistryProcess, name: str) -> None:
    texts = [record(name, x=None), record(name, x=None, y=0)]
    for text in texts:
        registry.register(name, text)
    path = f"/subjects/{name}/versions"
    assert registry.get(path) == [1, 2]
    assert registry.get(f"{path}/1")["schema"] == texts[0]
    assert registry.get(f"{path}/latest")["version"] == registry.get(f"{path}/-1")["version"] == 2
    assert registry.get(f"{path}/2/schema") == json.loads(texts[1])
    assert registry.get(f"{path}/1/referencedby") == []
    assert error(registry, "GET", f"{path}/3") == (404, 40402)
    assert error(registry, "GET", f"{path}/0") == error(registry, "GET", f"{path}/x") == (422, 42202)
    assert error(registry, "GET", "/subjects/missing/versions/1") == (404, 40401)
    assert error(registry, "GET", "/subjects/missing/versions") == (404, 40401)


def test_subjects_are_listed_with_prefix_and_deleted_ones(registry: RegistryProcess, name: str) -> None:
    for number in range(3):
        registry.register(f"{name}/{number}".replace("/", "%2F"), '"string"')
    names = [f"{name}/{number}" for number in range(3)]
    path = f"/subjects?subjectPrefix={name}/"
    assert registry.get(path) == names
    assert registry.get(f"{path}&offset=1&limit=1") == names[1:2]
    registry.ask("DELETE", f"/subjects/{name}%2F1")
    assert registry.get(path) == [names[0], names[2]]
    assert registry.get(f"{path}&deleted=true") == names
    assert registry.get(f"{path}&deletedOnly=true") == [names[1]]


def test_deletion_answers_versions(registry: RegistryProcess, name: str) -> None:
    registry.register(name, record(name, x=None))
    registry.register(name, record(name, x=None, y=0))
    path = f"/subjects/{name}"
    assert error(registry, "DELETE", f"{path}?permanent=true") == (404, 40405)
    assert error(registry, "DELETE", f"{path}/versions/1?permanent=true") == (404, 40407)
    assert registry.ask("DELETE", f"{path}/versions/1") == (200, 1)
    assert error(registry, "DELETE", f"{path}/versions/1") == (404, 40406)
    assert registry.get(f"{path}/versions") == [2]
    assert registry.get(f"{path}/versions?deleted=true") == [1, 2]
    assert registry.get(f"{path}/versions?deletedOnly=true") == [1]
    assert registry.get(f"{path}/versions?deletedAsNegative=true") == [-1, 2]
    assert registry.get(f"{path}/versions/1?deleted=true")["deleted"] is True
    assert registry.ask("DELETE", path) == (200, [2])
    assert error(registry, "GET", f"{path}/versions?deletedAsNegative=true") == (404, 40401)
    assert registry.get(f"{path}/versions?deletedAsNegative=true&deleted=true") == [-1, -2]
    assert error(registry, "DELETE", path) == (404, 40404)
    assert registry.ask("DELETE", f"{path}?permanent=true") == (200, [1, 2])
    assert error(registry, "DELETE", path) == (404, 40401)
    assert error(registry, "DELETE", f"{path}/versions/1") == (404, 40401)


def test_references_are_resolved_and_protected(registry: RegistryProcess, name: str) -> None:
    registry.register(f"{name}-b", record(f"{name}_b", x=None))
    text = json.dumps({"type": "record", "name": "A", "fields": [{"name": "b", "type": f"{name}_b".replace("-", "_")}]})
    references = [{"name": f"{name}_b".replace("-", "_"), "subject": f"{name}-b", "version": 1}]
    schema_id = registry.register(name, text, references=references)
    assert registry.get(f"/schemas/ids/{schema_id}")["references"] == references
    assert registry.get(f"/subjects/{name}-b/versions/1/referencedby") == [schema_id]
    assert error(registry, "DELETE", f"/subjects/{name}-b") == (422, 42206)


def test_names_that_cannot_be_subjects_are_refused(registry: RegistryProcess) -> None:
    for subject in ("%00", "__GLOBAL", ":.t:", "a%0Ab"):
        assert error(registry, "POST", f"/subjects/{subject}/versions", {"schema": '"int"'}) == (422, 42208)


def test_latest_version_with_metadata_is_found(registry: RegistryProcess, name: str) -> None:
    registry.register(name, record(name, x=None), metadata={"properties": {"major": "1"}})
    registry.register(name, record(name, x=None, y=0), metadata={"properties": {"major": "2"}})
    path = f"/subjects/{name}/metadata"
    assert registry.get(f"{path}?key=major&value=1")["version"] == 1
    assert error(registry, "GET", f"{path}?key=major&value=3") == (404, 40403)
    assert error(registry, "GET", "/subjects/missing/metadata?key=a&value=b") == (404, 40401)


def test_tags_make_a_new_version(registry: RegistryProcess, name: str) -> None:
    registry.register(name, record(name, x=None))
    entity = {"entityType": "sr_field", "entityPath": f"{name}.x".replace("-", "_")}
    body = {"tagsToAdd": [{"schemaEntity": entity, "tags": ["PII"]}]}
    status, answer = registry.ask("POST", f"/subjects/{name}/versions/1/tags", body)
    assert (status, answer.get("version")) == (200, 2), answer
    found = registry.get(f"/subjects/{name}/versions/2?findTags=*")
    assert found["schemaTags"] == [{"schemaEntity": entity, "tags": ["PII"]}]
    assert "PII" in found["schema"]
    assert error(registry, "POST", "/subjects/missing/versions/1/tags", body) == (404, 40401)


def test_rules_are_merged_with_those_of_the_latest_version(registry: RegistryProcess, name: str) -> None:
    def rules(*names: str) -> dict[str, Any]:
        return {"domainRules": [{"name": each, "type": "CEL"} for each in names]}

    def names_of(version: int) -> list[str]:
        found = registry.get(f"/subjects/{name}/versions/{version}")["ruleSet"]["domainRules"]
        return [rule["name"] for rule in found]

    registry.register(name, record(name, x=None), ruleSet=rules("old"))
    registry.register(name, record(name, x=None, y=0), ruleSet=rules("a", "b"))
    path = f"/subjects/{name}/versions/1/tags"
    assert registry.ask("POST", path, {"rulesToMerge": rules("c"), "rulesToRemove": ["a"]})[0] == 200
    assert names_of(3) == ["b", "c"]
    tag = {"schemaEntity": {"entityType": "sr_field", "entityPath": f"{name}.x".replace("-", "_")}, "tags": ["PII"]}
    assert registry.ask("POST", path, {"tagsToAdd": [tag]})[0] == 200
    assert names_of(4) == ["b", "c"]
    for body, code in [
        ({"rulesToMerge": rules("c"), "ruleSet": rules("d")}, 42210), ({"rulesToMerge": rules("1")}, 42210),
        ({"rulesToMerge": "x"}, 422), ({"rulesToRemove": 5}, 422), ({"newVersion": "x"}, 422),
    ]:  # fmt: skip
        assert error(registry, "POST", path, body) == (422, code)


# -- compatibility, configuration, mode, contexts ---------------------------------------------------------------------


def test_compatibility_is_checked_without_a_change(registry: RegistryProcess, name: str) -> None:
    registry.register(name, record(name, x=None))
    bad, good = {"schema": record(name, x=None, y=None)}, {"schema": record(name, x=None, y=0)}
    path = f"/compatibility/subjects/{name}/versions"
    assert registry.ask("POST", f"{path}/latest", good) == (200, {"is_compatible": True})
    assert registry.ask("POST", path, bad) == (200, {"is_compatible": False})
    status, verdict = registry.ask("POST", f"{path}/1?verbose=true", bad)
    assert (status, verdict["is_compatible"]) == (200, False)
    text = " ".join(verdict["messages"])
    assert all(part in text for part in ("READER_FIELD_MISSING_DEFAULT_VALUE", "/fields/1", "oldSchemaVersion: 1"))
    assert error(registry, "POST", f"{path}/2", good) == (404, 40402)
    assert error(registry, "POST", "/compatibility/subjects/missing/versions/1", good) == (404, 40402)
    assert registry.ask("POST", "/compatibility/subjects/missing/versions/latest", good)[1]["is_compatible"] is True
    assert error(registry, "POST", f"{path}/latest", {"schema": "{"}) == (422, 42201)
    status, verdict = registry.ask("POST", f"{path}/latest?verbose=true", {"schema": "{"})
    assert (status, verdict["is_compatible"], len(verdict["messages"])) == (200, False, 1)
    assert error(registry, "POST", f"/subjects/{name}/versions", bad) == (409, 40901)
    assert registry.get(f"/subjects/{name}/versions") == [1]


def test_configuration_of_a_subject(registry: RegistryProcess, name: str) -> None:
    path = f"/config/{name}"
    assert error(registry, "GET", path) == (404, 40408)
    assert registry.get(f"{path}?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}
    assert registry.ask("PUT", path, {"compatibility": "full"}) == (200, {"compatibility": "FULL"})
    assert registry.ask("PUT", path, {"normalize": True})[1] == {"compatibility": "FULL", "normalize": True}
    assert registry.get(path) == {"compatibilityLevel": "FULL", "normalize": True}
    assert error(registry, "PUT", path, {"compatibility": "SOME"}) == (422, 42203)
    rules = {"domainRules": [{"name": "1", "type": "CEL"}]}
    assert error(registry, "PUT", path, {"defaultRuleSet": rules}) == (422, 42210)
    assert registry.ask("DELETE", path)[1]["compatibilityLevel"] == "FULL"
    assert error(registry, "DELETE", path) == (404, 40401)


def test_global_configuration(registry: RegistryProcess) -> None:
    assert registry.ask("PUT", "/config", {"compatibility": "FULL_TRANSITIVE"})[0] == 200
    assert registry.get("/config") == {"compatibilityLevel": "FULL_TRANSITIVE"}
    assert registry.ask("DELETE", "/config")[0] == 200
    assert registry.get("/config") == {"compatibilityLevel": "BACKWARD"}


def test_mode_of_a_subject(registry: RegistryProcess, name: str) -> None:
    path = f"/mode/{name}"
    assert error(registry, "GET", path) == (404, 40409)
    assert registry.get(f"{path}?defaultToGlobal=true") == {"mode": "READWRITE"}
    assert registry.ask("PUT", path, {"mode": "READONLY"}) == (200, {"mode": "READONLY"})
    assert error(registry, "POST", f"/subjects/{name}/versions", {"schema": '"int"'}) == (422, 42205)
    assert error(registry, "PUT", path, {"mode": "SOME"}) == (422, 42204)
    assert error(registry, "PUT", path, {"mode": "FORWARD"}) == (422, 42204)  # for all contexts only
    assert registry.ask("DELETE", path) == (200, {"mode": "READONLY"})
    assert error(registry, "DELETE", path) == (404, 40401)
    assert registry.ask("DELETE", f"{path}?recursive=true") == (200, {})
    registry.register(name, '"int"')
    assert error(registry, "PUT", path, {"mode": "IMPORT"}) == (422, 42205)
    assert registry.ask("PUT", f"{path}?force=true", {"mode": "IMPORT"})[0] == 200
    assert registry.get("/mode") == {"mode": "READWRITE"}


def test_context_has_its_own_subjects_and_ids(registry: RegistryProcess, name: str) -> None:
    base = f"/contexts/.{name}"
    status, answer = registry.ask("POST", f"{base}/subjects/s/versions", {"schema": '"bytes"'})
    assert (status, answer["id"]) == (200, 1)
    assert f".{name}" in registry.get("/contexts")
    assert registry.get(f"{base}/subjects") == [f":.{name}:s"]
    assert registry.get(f"{base}/schemas/ids/1")["schema"] == '"bytes"'
    assert registry.get(f"/schemas/ids/1?subject=:.{name}:")["schema"] == '"bytes"'
    assert registry.get(f"/subjects/:.{name}:s/versions") == [1]
    assert registry.ask("PUT", f"{base}/config", {"compatibility": "NONE"})[0] == 200
    assert registry.get(f"/config/:.{name}:") == {"compatibilityLevel": "NONE"}
    assert registry.get(f"{base}/config/s?defaultToGlobal=true")["compatibilityLevel"] == "NONE"
    assert error(registry, "DELETE", base) == (422, 42211)
    registry.ask("DELETE", f"{base}/subjects/s")
    registry.ask("DELETE", f"{base}/subjects/s?permanent=true")
    assert registry.ask("DELETE", base) == (204, None)
    assert f".{name}" not in registry.get("/contexts")


@pytest.mark.parametrize("spelling", ["{}", ".{}", ":.{}:"])
def test_context_of_a_path_has_one_name_however_it_is_spelled(
    registry: RegistryProcess, name: str, spelling: str
) -> None:
    """These are the requests of franz-go's CreateSchema. As with Confluent's registry, answers have the full names."""
    name = f"{name}-{len(spelling)}"
    base, subject = f"/contexts/{spelling.format(name)}", f":.{name}:s"
    status, made = registry.ask("POST", f"{base}/subjects/s/versions", {"schema": '"bytes"'})
    assert (status, made["id"]) == (200, 1)
    assert registry.get(f"{base}/schemas/ids/1/versions") == [{"subject": subject, "version": 1}]
    assert registry.get(f"{base}/schemas/ids/1/subjects") == [subject]
    found = registry.get(f"{base}/subjects/{subject}/versions/1")
    assert (found["subject"], found["version"], found["id"]) == (subject, 1, 1)
    assert registry.get(f"/schemas/ids/1/versions?subject=:.{name}:") == [{"subject": subject, "version": 1}]


def test_other_contexts_are_searched_for_a_version_and_a_schema(registry: RegistryProcess, name: str) -> None:
    subject = f"{name}-s"
    registry.register(subject, '"int"')
    for text in ('"int"', '"long"'):
        registry.register(f":.{name}:{subject}", text)
    assert registry.get(f"/subjects/{subject}/versions/1")["subject"] == subject
    assert registry.get(f"/subjects/{subject}/versions/2")["subject"] == f":.{name}:{subject}"
    assert registry.ask("POST", f"/subjects/{subject}", {"schema": '"long"'})[1]["subject"] == f":.{name}:{subject}"
    assert error(registry, "POST", f"/subjects/{subject}", {"schema": '"string"'}) == (404, 40403)
    assert registry.get(f"/subjects/{subject}/versions") == [1]
    registry.register(f":.{name}:{name}-other", '"int"')
    assert error(registry, "GET", f"/subjects/{name}-other/versions") == (404, 40401)


def test_name_that_is_reserved_for_settings_is_refused(registry: RegistryProcess) -> None:
    assert error(registry, "POST", "/subjects/:.__GLOBAL:a/versions", {"schema": '"int"'}) == (422, 42208)
    assert registry.get("/config/:.__GLOBAL:") == {"compatibilityLevel": "BACKWARD"}


def test_alias_is_followed(registry: RegistryProcess, name: str) -> None:
    registry.register(name, '"double"')
    assert registry.ask("PUT", f"/config/{name}-alias", {"alias": name})[0] == 200
    assert registry.get(f"/subjects/{name}-alias/versions/latest")["subject"] == name


def test_unknown_path_and_method_answer_with_codes(registry: RegistryProcess) -> None:
    assert error(registry, "GET", "/nothing") == (404, 404)
    assert error(registry, "PATCH", "/subjects") == (405, 405)


def test_openapi_document_has_every_route_and_health_is_public(registry: RegistryProcess, name: str) -> None:
    registry.register(name, '"int"')  # waits for the election
    paths = registry.get("/openapi.json")["paths"]
    for path in ("/subjects/{subject}/versions", "/schemas/ids/{id}", "/contexts/{context}/config", "/mode/{subject}"):
        assert path in paths
    assert registry.client.get(f"{registry.url}/health").status_code == 200
    assert "text/html" in registry.client.get(f"{registry.url}/docs").headers["content-type"]
