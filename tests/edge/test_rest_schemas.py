"""The REST proxy with a schema registry: Avro and JSON Schema in versions 2 and 3."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from registry_stand_in import RegistryStandIn, registry_stand_in
from rest_process import RestClient, error_of, rest_process

from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker

AVRO = "application/vnd.kafka.avro.v2+json"
JSON_SCHEMA = "application/vnd.kafka.jsonschema.v2+json"
WAIT_S = 60
USER = json.dumps({
    "type": "record", "name": "User", "namespace": "n",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": ["null", "int"], "default": None}],
})  # fmt: skip
OLDER = json.dumps({"type": "record", "name": "User", "namespace": "n", "fields": [{"name": "name", "type": "string"}]})
OBJECT = json.dumps({"title": "Thing", "type": "object"})


@pytest.fixture(scope="module")
def proxy(rest_broker: BrokerProcess) -> Iterator[tuple[RestClient, RegistryStandIn]]:
    """A proxy with a registry."""
    with registry_stand_in() as (registry, url), rest_process(rest_broker.bootstrap, "--registry", url) as client:
        client.find_cluster()
        yield client, registry


def stored(broker: BrokerProcess, topic: str) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer.consume(1, WAIT_S)
    finally:
        consumer.close()


def produce_v2(rest: RestClient, topic: str, body: Any, media_type: str = AVRO) -> Any:
    return rest.post(f"/topics/{topic}", body, headers={"content-type": media_type})


def read_v2(rest: RestClient, topic: str, form: str, media_type: str) -> list[Any]:
    made = rest.post(f"/consumers/{topic}", {"format": form, "auto.offset.reset": "earliest"})
    path = f"/consumers/{topic}/instances/{made.json()['instance_id']}"
    rest.post(f"{path}/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    deadline = time.monotonic() + WAIT_S
    records: list[Any] = []
    try:
        while not records and time.monotonic() < deadline:
            found = rest.get(f"{path}/records", headers={"accept": media_type})
            assert found.status_code == 200, found.text
            records = found.json()
    finally:
        rest.delete(path)
    return records


def test_avro_is_produced_and_consumed_with_version_2(
    proxy: tuple[RestClient, RegistryStandIn], rest_broker: BrokerProcess
) -> None:
    rest, registry = proxy
    rest.create_topic("s-avro")
    values = [{"name": "a", "age": {"int": 5}}, {"name": "b", "age": None}]
    records = [{"key": "k", "value": values[0]}, {"value": values[1]}, {"value": None}]
    found = produce_v2(rest, "s-avro", {"records": records, "key_schema": '"string"', "value_schema": USER})
    assert found.status_code == 200, found.text
    key, value = registry.find("s-avro-key", '"string"'), registry.find("s-avro-value", USER)
    assert key is not None
    assert value is not None
    assert (found.json()["key_schema_id"], found.json()["value_schema_id"]) == (key["id"], value["id"])
    (message,) = stored(rest_broker, "s-avro")
    assert message.value() == b"\0" + value["id"].to_bytes(4, "big") + b"\x02a\x02\x0a"
    again = produce_v2(rest, "s-avro", {"records": [{"value": values[0]}], "value_schema_id": value["id"]})
    assert again.json()["value_schema_id"] == value["id"]
    read = read_v2(rest, "s-avro", "avro", AVRO)
    assert [(each["key"], each["value"]) for each in read] == [
        ("k", values[0]), (None, values[1]), (None, None), (None, values[0]),
    ]  # fmt: skip


def test_json_schema_is_produced_and_consumed_with_version_2(proxy: tuple[RestClient, RegistryStandIn]) -> None:
    rest, registry = proxy
    rest.create_topic("s-json")
    found = produce_v2(rest, "s-json", {"records": [{"value": {"a": [1]}}], "value_schema": OBJECT}, JSON_SCHEMA)
    assert found.status_code == 200, found.text
    assert registry.subjects["s-json-value"][0]["schemaType"] == "JSON"
    assert [each["value"] for each in read_v2(rest, "s-json", "jsonschema", JSON_SCHEMA)] == [{"a": [1]}]


def test_version_3_finds_schemas_by_id_version_text_subject_and_latest(
    proxy: tuple[RestClient, RegistryStandIn],
) -> None:
    rest, registry = proxy
    rest.create_topic("s-find")
    older, newer = registry.add("s-find-value", OLDER), registry.add("s-find-value", USER)
    named = registry.add("n.User", USER)
    plain, full = {"name": "a"}, {"name": "a", "age": None}
    cases: list[tuple[dict[str, Any], tuple[str, int, int]]] = [
        ({"data": full}, ("s-find-value", newer["id"], 2)),
        ({"schema_version": 1, "data": plain}, ("s-find-value", older["id"], 1)),
        ({"schema_id": older["id"], "data": plain}, ("s-find-value", older["id"], 1)),
        ({"type": "AVRO", "schema": OLDER, "data": plain}, ("s-find-value", older["id"], 1)),
        ({"subject": "n.User", "data": full}, ("n.User", named["id"], 1)),
        ({"subject_name_strategy": "RECORD_NAME", "schema_id": named["id"], "data": full}, ("n.User", named["id"], 1)),
        (
            {"type": "AVRO", "subject_name_strategy": "TOPIC_RECORD_NAME", "schema": USER, "data": full},
            ("s-find-n.User", named["id"], 1),
        ),
    ]
    for part, (subject, schema_id, version) in cases:
        line = rest.post("topics/s-find/records", {"value": part}).json()
        assert line["error_code"] == 200, (part, line)
        described = line["value"]
        assert (described["type"], described["subject"]) == ("AVRO", subject)
        assert (described["schema_id"], described["schema_version"]) == (schema_id, version)
    batch = rest.post("topics/s-find/records:batch", {"entries": [{"id": "1", "value": {"data": full}}]}).json()
    assert batch["successes"][0]["value"]["schema_id"] == newer["id"]


def test_schemas_are_looked_up_once(proxy: tuple[RestClient, RegistryStandIn]) -> None:
    rest, registry = proxy
    rest.create_topic("s-once")
    record = {"value": {"type": "AVRO", "schema": USER, "data": {"name": "a", "age": None}}}
    assert rest.post("topics/s-once/records", record).json()["error_code"] == 200
    before = registry.requests
    found = rest.request("POST", "topics/s-once/records", content=json.dumps(record) * 100)
    assert len(found.text.splitlines()) == 100
    assert registry.requests == before


def test_errors_of_schemas_have_codes_and_send_nothing(proxy: tuple[RestClient, RegistryStandIn]) -> None:
    rest, registry = proxy
    rest.create_topic("s-errors")
    registry.add("s-errors-value", USER)
    cases: list[tuple[dict[str, Any], int]] = [
        ({"data": {"age": 5}}, 42203),
        ({"data": {"name": "a", "age": 5}}, 42203),
        ({"data": "x"}, 42203),
        ({"schema_id": 999, "data": 1}, 42205),
        ({"subject": "none", "data": 1}, 42207),
        ({"type": "AVRO", "schema": "{", "data": 1}, 42205),
        ({"type": "AVRO", "schema": '{"type":"nothing"}', "data": 1}, 42205),
        ({"type": "AVRO", "schema": '{"type":"record","name":"refused","fields":[]}', "data": {}}, 42207),
        ({"type": "PROTOBUF", "schema": "message A {}", "data": {}}, 42205),
        ({"schema": USER, "data": 1}, 400),
        ({"schema_id": 1, "schema_version": 1, "data": 1}, 400),
        ({"subject_name_strategy": "RECORD_NAME", "data": 1}, 400),
        ({"subject_name_strategy": "OTHER", "data": 1}, 400),
        ({"type": "JSONSCHEMA", "data": {}}, 400),
        ({"schema_id": "1", "data": 1}, 400),
    ]
    for part, code in cases:
        assert rest.post("topics/s-errors/records", {"value": part}).json()["error_code"] == code, part
    for body, expected in (
        ({"records": [{"value": {"name": "a"}}]}, (422, 42202)),
        ({"records": [{"key": "a", "value": None}]}, (422, 42201)),
        ({"records": [{"value": {"other": 1}}], "value_schema": USER}, (422, 42203)),
        ({"records": [{"value": 1}], "value_schema": "{"}, (422, 42205)),
        ({"records": [{"value": 1}], "value_schema_id": 999}, (422, 42205)),
    ):
        assert error_of(produce_v2(rest, "s-errors", body)) == expected, body
    assert rest.get("/topics/s-errors/partitions/0/offsets").json()["end_offset"] == 0


def test_registry_that_does_not_answer_is_an_error(rest_broker: BrokerProcess) -> None:
    with rest_process(rest_broker.bootstrap, "--registry", "http://127.0.0.1:9") as rest:
        rest.find_cluster()
        rest.create_topic("s-silent")
        body = {"records": [{"value": 1}], "value_schema": '"int"'}
        assert error_of(produce_v2(rest, "s-silent", body)) == (408, 40801)
