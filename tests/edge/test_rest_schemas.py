"""The REST proxy with a schema registry: Avro, JSON Schema and Protobuf in versions 2 and 3."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_samples import OBJECT, OLDER, ORDER, USER, confluent_serde, stored
from registry_stand_in import RegistryStandIn, registry_stand_in
from rest_process import RestClient, error_of, rest_process

from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker

AVRO = "application/vnd.kafka.avro.v2+json"
JSON_SCHEMA = "application/vnd.kafka.jsonschema.v2+json"
PROTOBUF = "application/vnd.kafka.protobuf.v2+json"
WAIT_S = 60


@pytest.fixture(scope="module")
def proxy(rest_broker: BrokerProcess) -> Iterator[tuple[RestClient, RegistryStandIn]]:
    """A proxy with a registry."""
    with registry_stand_in() as (registry, url), rest_process(rest_broker.bootstrap, "--registry", url) as client:
        client.find_cluster()
        yield client, registry


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


def test_json_data_are_validated_when_they_are_read(
    proxy: tuple[RestClient, RegistryStandIn], rest_broker: BrokerProcess
) -> None:
    rest, registry = proxy
    rest.create_topic("s-invalid")
    schema_id = registry.add("s-invalid-value", OBJECT, "JSON")["id"]
    producer = Producer({"bootstrap.servers": rest_broker.bootstrap})
    producer.produce("s-invalid", b"\0" + schema_id.to_bytes(4, "big") + b'{"a":5}')
    assert producer.flush(WAIT_S) == 0
    made = rest.post("/consumers/s-invalid", {"format": "jsonschema", "auto.offset.reset": "earliest"}).json()
    path = f"/consumers/s-invalid/instances/{made['instance_id']}"
    rest.post(f"{path}/assignments", {"partitions": [{"topic": "s-invalid", "partition": 0}]})
    found = rest.get(f"{path}/records", headers={"accept": JSON_SCHEMA})
    while found.status_code == 200:
        found = rest.get(f"{path}/records", headers={"accept": JSON_SCHEMA})
    rest.delete(path)
    assert error_of(found) == (422, 42203)
    assert "/a: array is expected, not the number 5: s-invalid-0 at offset 0" in found.json()["message"]


def test_protobuf_is_produced_and_consumed_with_version_2(
    proxy: tuple[RestClient, RegistryStandIn], rest_broker: BrokerProcess
) -> None:
    rest, registry = proxy
    rest.create_topic("s-proto")
    records = [{"key": {"id": 1}, "value": {"id": 7, "note": "x"}}, {"value": {}}, {"value": None}]
    body = {"records": records, "key_schema": ORDER, "value_schema": ORDER}
    found = produce_v2(rest, "s-proto", body, PROTOBUF)
    assert found.status_code == 200, found.text
    assert registry.subjects["s-proto-value"][0]["schemaType"] == "PROTOBUF"
    (message,) = stored(rest_broker, "s-proto")
    schema_id = found.json()["value_schema_id"].to_bytes(4, "big")
    assert message.value() == b"\0" + schema_id + b"\0" + b"\x08\x07\x12\x01x"
    read = read_v2(rest, "s-proto", "protobuf", PROTOBUF)
    assert [(each["key"], each["value"]) for each in read] == [
        ({"id": 1, "note": ""}, {"id": 7, "note": "x"}), (None, {"id": 0, "note": ""}), (None, None),
    ]  # fmt: skip


def test_protobuf_is_produced_with_version_3(proxy: tuple[RestClient, RegistryStandIn]) -> None:
    rest, registry = proxy
    rest.create_topic("s-proto3")
    registry.add("s-proto3-value", ORDER, "PROTOBUF")
    parts = [
        {"type": "PROTOBUF", "schema": ORDER, "data": {"id": 1}},
        {"schema_version": 1, "data": {"id": 2}},
        {"data": {"id": 3}},
    ]
    for part in parts:
        line = rest.post("topics/s-proto3/records", {"value": part}).json()
        assert (line["error_code"], line["value"]["type"]) == (200, "PROTOBUF"), line
    named = {"type": "PROTOBUF", "subject_name_strategy": "RECORD_NAME", "schema": ORDER, "data": {"id": 4}}
    assert rest.post("topics/s-proto3/records", {"value": named}).json()["value"]["subject"] == "shop.Order"
    assert [each["value"]["id"] for each in read_v2(rest, "s-proto3", "protobuf", PROTOBUF)] == [1, 2, 3, 4]


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
    foreign = registry.add("s-foreign-value", '"int"')
    cases: list[tuple[dict[str, Any], int]] = [
        ({"data": {"age": 5}}, 400),
        ({"data": {"name": "a", "age": 5}}, 400),
        ({"data": "x"}, 400),
        ({"schema_id": 999, "data": 1}, 42205),
        # It has not been compared with the schemas of this subject.
        ({"schema_id": foreign["id"], "data": 1}, 42205),
        ({"subject": "none", "data": 1}, 42207),
        ({"type": "AVRO", "schema": "{", "data": 1}, 42205),
        ({"type": "AVRO", "schema": '{"type":"nothing"}', "data": 1}, 42205),
        ({"type": "AVRO", "schema": '{"type":"record","name":"refused","fields":[]}', "data": {}}, 42207),
        ({"type": "PROTOBUF", "schema": "message A {", "data": {}}, 42205),
        ({"type": "PROTOBUF", "subject": "s-other", "schema": ORDER, "data": {"id": "x"}}, 400),
        ({"type": "PROTOBUF", "subject": "s-other", "schema": ORDER, "data": {"unknown": 1}}, 400),
        ({"type": "JSONSCHEMA", "subject": "s-other", "schema": OBJECT, "data": {"a": 5}}, 400),
        ({"type": "JSONSCHEMA", "subject": "s-other", "schema": OBJECT, "data": "text"}, 400),
        ({"type": "JSONSCHEMA", "schema": '{"$ref":"http://127.0.0.1:9/x"}', "data": 1}, 42205),
        ({"schema": USER, "data": 1}, 400),
        ({"schema_id": 1, "schema_version": 1, "data": 1}, 400),
        ({"subject_name_strategy": "RECORD_NAME", "data": 1}, 400),
        ({"subject_name_strategy": "OTHER", "data": 1}, 400),
        ({"type": "JSONSCHEMA", "data": {}}, 400),
        ({"schema_id": "1", "data": 1}, 400),
    ]
    for part, code in cases:
        line = rest.post("topics/s-errors/records", {"value": part}).json()
        assert line["error_code"] == min(code, 422), part
        assert line["message"].startswith(f"Error: {code} : " if code > 422 else "Bad Request: "), part
    for body, expected in (
        ({"records": [{"value": {"name": "a"}}]}, (422, 42202)),
        ({"records": [{"key": "a", "value": None}]}, (422, 42201)),
        ({"records": [{"value": {"other": 1}}], "value_schema": USER}, (422, 42203)),
        ({"records": [{"value": 1}], "value_schema": "{"}, (422, 42205)),
        ({"records": [{"value": 1}], "value_schema_id": 999}, (422, 42205)),
        ({"records": [{"value": 1}], "value_schema_id": "999"}, (422, 42205)),
        ({"records": [{"value": 1}], "value_schema_id": foreign["id"]}, (422, 42205)),
        ({"records": [{"value": 1}], "value_schema_id": "one"}, (400, 400)),
    ):
        assert error_of(produce_v2(rest, "s-errors", body)) == expected, body
    assert rest.get("/topics/s-errors/partitions/0/offsets").json()["end_offset"] == 0


def test_registry_that_does_not_answer_is_an_error(rest_broker: BrokerProcess) -> None:
    with rest_process(rest_broker.bootstrap, "--registry", "http://127.0.0.1:9") as rest:
        rest.find_cluster()
        rest.create_topic("s-silent")
        body = {"records": [{"value": 1}], "value_schema": '"int"'}
        assert error_of(produce_v2(rest, "s-silent", body)) == (408, 40801)


@pytest.mark.parametrize(
    ("form", "media_type", "text", "value"),
    [
        ("avro", AVRO, USER, {"name": "a", "age": None}),
        ("jsonschema", JSON_SCHEMA, OBJECT, {"a": [1.5]}),
        ("protobuf", PROTOBUF, ORDER, {"id": 7, "note": "x"}),
    ],
    ids=["avro", "jsonschema", "protobuf"],
)
def test_serializers_of_confluent_kafka_read_and_write_the_same_bytes(
    proxy: tuple[RestClient, RegistryStandIn],
    rest_broker: BrokerProcess,
    form: str,
    media_type: str,
    text: str,
    value: Any,
) -> None:
    pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")
    from confluent_kafka.schema_registry import SchemaRegistryClient

    rest, registry = proxy
    topic = f"s-both-{form}"
    rest.create_topic(topic)
    found = produce_v2(rest, topic, {"records": [{"value": value}], "value_schema": text}, media_type)
    assert found.status_code == 200, found.text
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize, deserialize = confluent_serde(form, text, client, topic)
        (message,) = stored(rest_broker, topic)
        assert deserialize(message.value()) == value
        producer = Producer({"bootstrap.servers": rest_broker.bootstrap})
        producer.produce(topic, serialize(value))
    assert producer.flush(WAIT_S) == 0
    read: list[Any] = []
    while len(read) < 2:
        read = read_v2(rest, topic, form, media_type)
    assert [each["value"] for each in read] == [value, value]
