"""The routes of associations: status, error code and body; and confluent-kafka's strategy that uses them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.common.schema_registry_client import (
    AssociationCreateOrUpdateInfo,
    AssociationCreateOrUpdateRequest,
    Schema,
)
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext, SerializationError
from edge_broker import edge_broker
from registry_process import RegistryProcess

_NUMBERS = itertools.count()
INT, TEXT = '"int"', '"string"'
WEAK, STRONG = {"lifecycle": "WEAK", "frozen": False}, {"lifecycle": "STRONG", "frozen": True}


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryProcess]:
    with edge_broker() as broker, RegistryProcess(broker.bootstrap) as running:
        yield running


@pytest.fixture
def client(registry: RegistryProcess) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as made:
        yield made


@pytest.fixture
def topic() -> str:
    """The name of a topic that no other test has. Its id is `id-` and the name."""
    return f"topic-{next(_NUMBERS)}"


def request(topic: str, *associations: dict[str, Any], **members: Any) -> dict[str, Any]:
    names = {"resourceName": topic, "resourceNamespace": "lkc1", "resourceId": f"id-{topic}", "resourceType": "topic"}
    return names | {"associations": list(associations)} | members


def weak(subject: str, kind: str = "value", **members: Any) -> dict[str, Any]:
    return {"subject": subject, "associationType": kind, "lifecycle": "WEAK", **members}


def strong(schema: str = INT, kind: str = "value", **members: Any) -> dict[str, Any]:
    return {"associationType": kind, "lifecycle": "STRONG", "schema": {"schema": schema}, **members}


def create(registry: RegistryProcess, body: dict[str, Any], **query: str) -> Any:
    path = "/associations?" + "&".join(f"{name}={value}" for name, value in query.items())
    status, answer = registry.ask("POST", path, body)
    assert status == 200, answer
    return answer


def refused(registry: RegistryProcess, method: str, path: str, body: Any = None) -> tuple[int, int]:
    status, answer = registry.ask(method, path, body)
    assert set(answer) == {"error_code", "message"}
    return status, answer["error_code"]


def names(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["resourceName"], row["associationType"]) for row in rows]


# -- creation and lists -----------------------------------------------------------------------------------------------


def test_weak_association_is_created_and_listed_by_subject_name_and_id(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    created = create(registry, request(topic, weak(topic), weak(topic, "key")))
    link = {"subject": topic, "lifecycle": "WEAK", "frozen": False}
    assert created == request(topic, link | {"associationType": "value"}, link | {"associationType": "key"})
    rows = registry.get(f"/associations/subjects/{topic}")
    assert names(rows) == [(topic, "key"), (topic, "value")]
    assert rows == registry.get(f"/associations/resources/lkc1/{topic}")
    assert (
        rows
        == registry.get(f"/associations/resources/-/{topic}")
        == registry.get(f"/associations/resources/id-{topic}")
    )
    row = rows[0]
    assert row.pop("createTs") == row.pop("updateTs") > 0
    assert len(row.pop("guid")) == 36
    assert row == link | {
        "resourceName": topic, "resourceNamespace": "lkc1", "resourceId": f"id-{topic}", "resourceType": "topic",
        "associationType": "key",
    }  # fmt: skip


def test_lists_have_filters_and_pages(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    create(registry, request(topic, weak(topic), weak(topic, "key")))
    for path in (f"subjects/{topic}", f"resources/lkc1/{topic}", f"resources/id-{topic}"):
        assert names(registry.get(f"/associations/{path}?associationType=value")) == [(topic, "value")]
        assert len(registry.get(f"/associations/{path}?associationType=value&associationType=key")) == 2
        assert registry.get(f"/associations/{path}?lifecycle=STRONG") == []
        assert registry.get(f"/associations/{path}?resourceType=other") == []
        assert names(registry.get(f"/associations/{path}?offset=1&limit=1")) == [(topic, "value")]
        assert refused(registry, "GET", f"/associations/{path}?lifecycle=x") == (404, 404)
    assert registry.get(f"/associations/resources/other/{topic}") == []
    assert (topic, "key") in names(registry.get("/associations/resources/lkc1/-"))
    assert registry.get("/associations/resources/unknown") == []


def test_strong_association_registers_its_schema_under_the_subject_of_the_topic(
    registry: RegistryProcess, topic: str
) -> None:
    value, key = (
        {"associationType": kind, "schema": {"schema": text}} for kind, text in [("value", TEXT), ("key", INT)]
    )
    created = create(registry, request(topic, value, key))
    found = {row["associationType"]: row for row in created["associations"]}
    for kind, text in [("value", TEXT), ("key", INT)]:
        subject = f":.lkc1:{topic}-{kind}"
        assert {name: found[kind][name] for name in ("subject", *STRONG)} == {"subject": subject, **STRONG}
        assert found[kind]["schema"] == registry.get(f"/subjects/{subject}/versions/latest")
        assert found[kind]["schema"]["schema"] == text
    assert found["value"]["schema"]["id"] != found["key"]["schema"]["id"]
    # The same request again changes nothing, and names nothing that it has changed.
    assert create(registry, request(topic, value, key)) == {
        name: each for name, each in request(topic).items() if name != "associations"
    }
    assert len(registry.get(f"/associations/resources/id-{topic}")) == 2


def test_schemas_are_listed_by_association(registry: RegistryProcess, topic: str) -> None:
    registry.register(f"{topic}-a", INT)
    registry.register(f"{topic}-b", INT)
    create(registry, request(topic, weak(f"{topic}-a")))
    path = f"/schemas?subjectPrefix={topic}"
    (row,) = registry.get(f"{path}&lifecycle=WEAK&associationType=value")
    assert (row["subject"], names(row["associations"])) == (f"{topic}-a", [(topic, "value")])
    assert [row["subject"] for row in registry.get(f"{path}&lifecycle=NONE")] == [f"{topic}-b"]
    assert registry.get(f"{path}&associationType=key") == []
    assert refused(registry, "GET", f"{path}&lifecycle=x") == (404, 404)


def test_dry_run_checks_and_changes_nothing(registry: RegistryProcess, topic: str) -> None:
    body = request(topic, strong(), resourceId=None)
    expected = {"resourceName": topic, "resourceNamespace": "lkc1", "resourceType": "topic"}
    assert create(registry, body, dryRun="true") == expected
    assert registry.get(f"/associations/resources/lkc1/{topic}") == []
    assert refused(registry, "GET", f"/subjects/:.lkc1:{topic}-value/versions") == (404, 40401)
    create(registry, request(topic, strong()))
    assert create(registry, body, dryRun="true") == expected
    assert (
        refused(registry, "POST", "/associations?dryRun=true", request(topic, strong("x"), resourceId=None))[0] == 422
    )


def test_subject_takes_the_context_of_the_path_or_parameter(registry: RegistryProcess, topic: str) -> None:
    registry.register(f":.ctx:{topic}", INT)
    status, answer = registry.ask("POST", "/contexts/.ctx/associations", request(topic, weak(topic)))
    assert (status, answer["associations"][0]["subject"]) == (200, f":.ctx:{topic}")
    assert create(registry, request(f"{topic}b", weak(topic)), context="ctx")["associations"][0]["subject"] == (
        f":.ctx:{topic}"
    )
    assert len(registry.get(f"/contexts/.ctx/associations/subjects/{topic}")) == 2
    assert refused(registry, "POST", "/associations?context=a:b", request(topic, weak(topic))) == (400, 400)


# -- conflicts and errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        request(""), request("a/b", weak("x")), request("a" * 257, weak("x")),
        request("a", weak("x"), resourceNamespace=""), request("a", weak("x"), resourceId=""),
        request("a", weak("x"), resourceType="other"), request("a"), request("a", weak("x", "other")),
        request("a", weak("x"), weak("y")), request("a", {"lifecycle": "WEAK"}), request("a", weak("")),
        request("a", weak("x", frozen=True)), request("a", weak("x", schema={"schema": INT})),
        request("a", weak(":.lkc1:a-value")), request("a", strong(subject="x")), request("a", strong(frozen=False)),
        request("a", {"lifecycle": "STRONG"}), request("a", weak("x") | {"lifecycle": "other"}),
        request("a", strong(), {"associationType": "key", "subject": "x"}),
    ],
)  # fmt: skip
def test_invalid_association_is_42212(registry: RegistryProcess, body: dict[str, Any]) -> None:
    assert refused(registry, "POST", "/associations", body) == (422, 42212)


def test_members_of_a_wrong_type_are_422(registry: RegistryProcess, topic: str) -> None:
    for body in ({"resourceName": 1}, request(topic, resourceId=1), request(topic, weak("x", normalize=1))):
        assert refused(registry, "POST", "/associations", body) == (422, 422)
    assert refused(registry, "POST", "/associations", [])[0] == 422


def test_second_association_of_a_topic_is_40903(registry: RegistryProcess, topic: str) -> None:
    registry.register(f"{topic}-a", INT)
    registry.register(f"{topic}-b", INT)
    create(registry, request(topic, weak(f"{topic}-a")))
    assert refused(registry, "POST", "/associations", request(topic, weak(f"{topic}-b"))) == (409, 40903)
    other = f"{topic}b"
    create(registry, request(other, strong()))
    assert refused(registry, "POST", "/associations", request(other, strong(TEXT))) == (409, 40903)


def test_subject_of_a_strong_association_has_no_other(registry: RegistryProcess, topic: str) -> None:
    create(registry, request(topic, strong()))
    subject = f":.lkc1:{topic}-value"
    assert refused(registry, "POST", "/associations", request(f"{topic}b", weak(subject))) == (409, 40905)
    # A new topic of the same name, whose predecessor has left its association.
    body = request(topic, strong(), resourceId="another")
    assert refused(registry, "POST", "/associations", body) == (409, 40904)


def test_association_with_a_subject_without_schemas_is_40907(registry: RegistryProcess, topic: str) -> None:
    assert refused(registry, "POST", "/associations", request(topic, weak(topic))) == (409, 40907)


def test_schema_of_an_association_is_checked(registry: RegistryProcess, topic: str) -> None:
    assert refused(registry, "POST", "/associations", request(topic, strong("{"))) == (422, 42201)
    registry.register(f":.lkc1:{topic}-value", INT)
    assert refused(registry, "POST", "/associations", request(topic, strong(TEXT))) == (422, 42212)
    create(registry, request(topic, strong(INT)))


def test_strong_association_and_references_exclude_each_other(registry: RegistryProcess, topic: str) -> None:
    record = json.dumps({"type": "record", "name": "A", "fields": []})
    subject = f":.lkc1:{topic}-value"
    reference = {"references": [{"name": "A", "subject": subject, "version": 1}]}
    create(registry, request(topic, strong(record)))
    body = {"schema": '"A"', **reference}
    assert refused(registry, "POST", f"/subjects/{topic}/versions", body) == (422, 42205)
    other = f":.lkc1:{topic}b-value"
    registry.register(other, record)
    registry.register(topic, '"A"', references=[{"name": "A", "subject": other, "version": 1}])
    assert refused(registry, "POST", "/associations", request(f"{topic}b", strong(record))) == (422, 42206)


def test_read_only_subject_keeps_its_associations(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    create(registry, request(topic, weak(topic)))
    assert registry.ask("PUT", f"/mode/{topic}", {"mode": "READONLY"})[0] == 200
    assert refused(registry, "POST", "/associations", request(f"{topic}b", weak(topic))) == (422, 42205)
    assert refused(registry, "DELETE", f"/associations/resources/id-{topic}") == (422, 42205)


def test_import_copies_a_strong_association_without_a_schema(registry: RegistryProcess, topic: str) -> None:
    subject = f":.import{topic}:{topic}-value"
    body = request(topic, {"lifecycle": "STRONG"}, resourceNamespace=f"import{topic}")
    assert registry.ask("PUT", f"/mode/{subject}", {"mode": "IMPORT"})[0] == 200
    assert refused(registry, "POST", "/associations", body) == (409, 40907)
    registry.register(subject, INT, id=7, version=1)
    with_schema = request(topic, strong(), resourceNamespace=f"import{topic}")
    assert refused(registry, "POST", "/associations", with_schema) == (422, 42212)
    assert registry.ask("PUT", f"/associations/resources/id-{topic}", body)[0] == 200


# -- updates and deletion ---------------------------------------------------------------------------------------------


def test_put_creates_weak_associations_only(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    path = f"/associations/resources/id-{topic}"
    status, answer = registry.ask("PUT", path, request(topic, {"subject": topic}, resourceId=None))
    assert (status, answer) == (200, request(topic, {"subject": topic, "associationType": "value", **WEAK}))
    # What the topic has is not repeated.
    assert registry.ask("PUT", path, request(topic, {"lifecycle": "WEAK"})) == (
        200, {name: each for name, each in request(topic).items() if name != "associations"},
    )  # fmt: skip
    for body in (
        request(topic, weak("other")), request(topic, strong()), request(topic, weak(topic, frozen=True)),
        request(topic, {"lifecycle": "STRONG", "frozen": True}), request(topic, strong(kind="key")),
        request(topic, {"associationType": "key", "lifecycle": "STRONG"}), request(topic, weak(topic), resourceId="x"),
        request(topic, {"associationType": "key"}),
    ):  # fmt: skip
        assert refused(registry, "PUT", path, body) == (422, 42212)


def test_associations_are_deleted_by_type(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    create(registry, request(topic, weak(topic), weak(topic, "key")))
    path = f"/associations/resources/id-{topic}"
    assert registry.ask("DELETE", f"{path}?associationType=key&dryRun=true") == (204, None)
    assert registry.ask("DELETE", f"{path}?associationType=key") == (204, None)
    assert names(registry.get(path)) == [(topic, "value")]
    assert refused(registry, "DELETE", f"{path}?associationType=key") == (404, 40410)
    assert registry.ask("DELETE", path) == (204, None)
    assert refused(registry, "DELETE", path) == (404, 40410)


def test_frozen_association_is_deleted_with_its_subject(registry: RegistryProcess, topic: str) -> None:
    create(registry, request(topic, strong()))
    path, subject = f"/associations/resources/id-{topic}", f":.lkc1:{topic}-value"
    assert refused(registry, "DELETE", path) == (409, 40908)
    assert registry.ask("DELETE", f"{path}?cascadeLifecycle=true") == (204, None)
    assert registry.get(path) == []
    assert refused(registry, "GET", f"/subjects/{subject}/versions?deleted=true") == (404, 40401)


def test_subject_with_an_association_is_not_deleted(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    registry.register(topic, '"long"')
    create(registry, request(topic, weak(topic)))
    assert refused(registry, "DELETE", f"/subjects/{topic}") == (409, 40904)
    assert registry.ask("DELETE", f"/subjects/{topic}/versions/1") == (200, 1)
    assert registry.ask("DELETE", f"/subjects/{topic}/versions/1?permanent=true") == (200, 1)
    assert refused(registry, "DELETE", f"/subjects/{topic}/versions/2") == (409, 40907)


# -- several requests in one ------------------------------------------------------------------------------------------


def test_batch_answers_each_request(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    requests = [
        request(topic, weak(topic, opType="CREATE"), weak(topic, "key", opType="UPSERT")),
        request("a/b", weak(topic, opType="CREATE")),
        request(f"{topic}b", strong(opType="CREATE")),
        request(f"{topic}c", weak("missing", opType="CREATE")),
        request(f"{topic}d", weak(topic, opType="OTHER")),
        request(f"{topic}e", strong("{", opType="CREATE")),
    ]
    status, answer = registry.ask("POST", "/associations:batchMutate", {"requests": requests})
    assert status == 207
    results = answer["results"]
    links = [{"subject": topic, "associationType": kind, **WEAK} for kind in ("key", "value")]
    assert results[0] == {"result": request(topic, *links)}
    assert results[2]["result"]["associations"][0]["schema"]["schema"] == INT
    assert [row.get("error", {}).get("error_code") for row in results] == [None, 42212, None, 40907, 42212, 42201]


def test_batch_deletes_and_creates(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    create(registry, request(topic, weak(topic)))
    create(registry, request(f"{topic}b", strong()))
    gone, kept = {"opType": "DELETE", "associationType": "value"}, weak(topic, "key", opType="CREATE")
    requests = [request(topic, gone, kept), request(f"{topic}b", gone)]
    path = "/associations:batchMutate"
    assert registry.ask("POST", f"{path}?dryRun=true", {"requests": requests})[0] == 207
    assert names(registry.get(f"/associations/resources/id-{topic}")) == [(topic, "value")]
    first, second = registry.ask("POST", path, {"requests": requests})[1]["results"]
    assert [row["associationType"] for row in first["result"]["associations"]] == ["key"]
    assert second["error"]["error_code"] == 40908
    again = request(f"{topic}b", gone | {"cascadeLifecycle": True})
    assert registry.ask("POST", path, {"requests": [again]})[1] == {"results": [{"result": {
        name: each for name, each in again.items() if name != "associations"
    }}]}  # fmt: skip
    assert refused(registry, "POST", path, {"requests": []}) == (422, 42212)
    twice = registry.ask("POST", path, {"requests": [request(topic, kept, gone | {"associationType": "key"})]})[1]
    assert twice["results"][0]["error"]["error_code"] == 42212


def test_batch_get_finds_by_id_and_by_name(registry: RegistryProcess, topic: str) -> None:
    registry.register(topic, INT)
    create(registry, request(topic, weak(topic)))
    by_id, by_name = {"resourceId": f"id-{topic}"}, {"resourceName": topic, "resourceNamespace": "lkc1"}
    requests = [by_id, by_name, by_id | {"associationTypes": ["key"]}, {"resourceName": topic}, {}]
    status, answer = registry.ask("POST", "/associations:batchGet", {"requests": requests})
    link = {"subject": topic, "associationType": "value", **WEAK}
    assert status == 207
    assert answer["results"][:2] == [{"result": request(topic, link)}] * 2
    assert answer["results"][2] == {"result": by_id | {"resourceType": "topic"}}
    assert [row["error"]["error_code"] for row in answer["results"][3:]] == [42212, 42212]
    path = "/associations:batchGet?includeSchemas=true"
    (row,) = registry.ask("POST", path, {"requests": [by_id]})[1]["results"]
    assert row["result"]["associations"][0]["schema"]["schema"] == INT
    assert refused(registry, "POST", "/associations:batchGet", {}) == (422, 42212)


# -- confluent-kafka --------------------------------------------------------------------------------------------------


def test_client_of_confluent_creates_finds_and_deletes_associations(client: SchemaRegistryClient, topic: str) -> None:
    info = AssociationCreateOrUpdateInfo(association_type="value", lifecycle="STRONG", schema=Schema(INT, "AVRO"))
    body = AssociationCreateOrUpdateRequest(topic, "lkc1", f"id-{topic}", "topic", [info])
    created = client.create_association(body)
    assert created.associations[0].subject == f":.lkc1:{topic}-value"
    assert created.associations[0].schema.schema_str == INT
    (found,) = client.get_associations_by_resource_name(topic, "-", "topic", ["key", "value"], offset=0, limit=5)
    assert (found.subject, found.resource_id, found.frozen) == (f":.lkc1:{topic}-value", f"id-{topic}", True)
    with pytest.raises(SchemaRegistryError) as refusal:
        client.delete_associations(f"id-{topic}")
    assert (refusal.value.http_status_code, refusal.value.error_code) == (409, 40908)
    client.delete_associations(f"id-{topic}", "topic", ["value"], cascade_lifecycle=True)
    assert client.get_associations_by_resource_name(topic, "-") == []


def test_serializer_with_the_associated_strategy_uses_the_subject_of_the_topic(
    registry: RegistryProcess, client: SchemaRegistryClient, topic: str
) -> None:
    subject = f"{topic}-shared"
    schema_id = registry.register(subject, INT)
    create(registry, request(topic, weak(subject)))

    def serializer(**settings: Any) -> AvroSerializer:
        conf = {"subject.name.strategy.type": "ASSOCIATED", "auto.register.schemas": False}
        return AvroSerializer(client, INT, conf=conf | {"subject.name.strategy.conf": settings})

    place = SerializationContext(topic, MessageField.VALUE)
    for settings in ({}, {"subject.name.strategy.kafka.cluster.id": "lkc1"}):
        data = serializer(**settings)(7, place)
        assert data is not None
        assert int.from_bytes(data[1:5], "big") == schema_id
    # Without an association: the subject of the topic's name, or an error.
    other = SerializationContext(f"{topic}b", MessageField.VALUE)
    other_id = registry.register(f"{topic}b-value", INT)
    data = serializer()(7, other)
    assert data is not None
    assert int.from_bytes(data[1:5], "big") == other_id
    with pytest.raises(SerializationError, match="No associated subject"):
        serializer(**{"subject.name.strategy.fallback.type": "NONE"})(7, other)
