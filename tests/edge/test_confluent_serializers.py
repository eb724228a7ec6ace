"""confluent-kafka's registry client and serializers against `ottla registry`: unchanged, with all three formats."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_samples import FIRST, SECOND, context_of, message_class
from edge_broker import edge_broker
from registry_process import RegistryProcess

pytest.importorskip("authlib", reason="confluent-kafka[schemaregistry] is not installed")

from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def registry() -> Iterator[RegistryProcess]:
    with edge_broker() as broker, RegistryProcess(broker.bootstrap) as running:
        yield running


@pytest.fixture
def client(registry: RegistryProcess) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": registry.url}) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_NUMBERS)}"


def test_registry_client_manages_subjects(client: SchemaRegistryClient, topic: str) -> None:
    schema = Schema(json.dumps(FIRST), "AVRO")
    schema_id = client.register_schema(topic, schema)
    assert client.register_schema(topic, schema) == schema_id
    assert json.loads(client.get_schema(schema_id).schema_str) == FIRST
    assert client.lookup_schema(topic, schema).version == client.get_latest_version(topic).version == 1
    assert topic in client.get_subjects()
    assert client.get_versions(topic) == [1]
    assert client.test_compatibility(topic, Schema(json.dumps(SECOND), "AVRO")) is True
    assert client.set_compatibility(topic, "NONE")["compatibility"] == "NONE"
    assert client.get_compatibility(topic) == "NONE"
    assert client.register_schema(topic, Schema('"string"', "AVRO")) != schema_id
    assert client.delete_version(topic, 1) == 1
    assert client.delete_subject(topic) == [2]
    assert client.delete_subject(topic, permanent=True)
    with pytest.raises(SchemaRegistryError) as error:
        client.get_versions(topic)
    assert (error.value.http_status_code, error.value.error_code) == (404, 40401)


def test_old_and_new_avro_data_are_read_with_both_schemas(client: SchemaRegistryClient, topic: str) -> None:
    context = context_of(topic)
    client.set_compatibility(f"{topic}-value", "NONE")
    old = AvroSerializer(client, json.dumps(FIRST))({"id": 1, "customer": "a", "old": 5}, context)
    new = AvroSerializer(client, json.dumps(SECOND))({"id": 2, "buyer": "b", "currency": "CZK"}, context)
    assert client.get_versions(f"{topic}-value") == [1, 2]
    read_new = AvroDeserializer(client, json.dumps(SECOND))
    assert read_new(old, context) == {"id": 1, "buyer": "a", "currency": "EUR"}
    assert read_new(new, context) == {"id": 2, "buyer": "b", "currency": "CZK"}
    assert AvroDeserializer(client)(old, context) == {"id": 1, "customer": "a", "old": 5}


def test_incompatible_schema_stops_the_avro_serializer(client: SchemaRegistryClient, topic: str) -> None:
    AvroSerializer(client, json.dumps(FIRST))({"id": 1, "customer": "a", "old": 5}, context_of(topic))
    broken = {**FIRST, "fields": [{"name": "other", "type": "string"}]}
    with pytest.raises(SchemaRegistryError) as error:
        AvroSerializer(client, json.dumps(broken))({"other": "x"}, context_of(topic))
    assert (error.value.http_status_code, error.value.error_code) == (409, 40901)


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [(record_subject_name_strategy, "shop.Order"), (topic_record_subject_name_strategy, "{topic}-shop.Order")],
)
def test_subject_name_strategies(client: SchemaRegistryClient, topic: str, strategy: Any, subject: str) -> None:
    serialize = AvroSerializer(client, json.dumps(FIRST), conf={"subject.name.strategy": strategy})
    serialize({"id": 1, "customer": "a", "old": 5}, context_of(topic))
    assert subject.format(topic=topic) in client.get_subjects()


def test_latest_version_is_used_if_a_client_asks_for_it(client: SchemaRegistryClient, topic: str) -> None:
    client.register_schema(f"{topic}-value", Schema(json.dumps(FIRST), "AVRO"))
    conf = {"auto.register.schemas": False, "use.latest.version": True}
    data = AvroSerializer(client, None, conf=conf)({"id": 1, "customer": "a", "old": 5}, context_of(topic))
    assert data is not None
    assert int.from_bytes(data[1:5]) == client.get_latest_version(f"{topic}-value").schema_id


def test_avro_references(client: SchemaRegistryClient, topic: str) -> None:
    inner = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "sku", "type": "string"}]}
    client.register_schema(f"{topic}-item", Schema(json.dumps(inner), "AVRO"))
    outer = {"type": "record", "name": "Cart", "fields": [{"name": "item", "type": "shop.Item"}]}
    schema = Schema(json.dumps(outer), "AVRO", [SchemaReference("shop.Item", f"{topic}-item", 1)])
    data = AvroSerializer(client, schema)({"item": {"sku": "x"}}, context_of(topic))
    assert AvroDeserializer(client)(data, context_of(topic)) == {"item": {"sku": "x"}}


def test_json_schema(client: SchemaRegistryClient, topic: str) -> None:
    schema = json.dumps({
        "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
        "properties": {"id": {"type": "integer"}}, "required": ["id"],
    })  # fmt: skip
    data = JSONSerializer(schema, client)({"id": 1}, context_of(topic))
    assert JSONDeserializer(None, schema_registry_client=client)(data, context_of(topic)) == {"id": 1}
    assert client.get_latest_version(f"{topic}-value").schema.schema_type == "JSON"


def test_protobuf(client: SchemaRegistryClient, topic: str) -> None:
    first, second = message_class("shop", "id"), message_class("shop", "id", "sum")
    conf = {"use.deprecated.format": False}
    old = ProtobufSerializer(first, client, conf)(first(id=7), context_of(topic))
    new = ProtobufSerializer(second, client, conf)(second(id=8, sum=9), context_of(topic))
    assert client.get_versions(f"{topic}-value") == [1, 2]
    read = ProtobufDeserializer(second, conf, client)
    assert [(row.id, row.sum) for row in (read(old, context_of(topic)), read(new, context_of(topic)))] == [
        (7, 0),
        (8, 9),
    ]
    stored = client.get_latest_version(f"{topic}-value").schema
    assert stored.schema_type == "PROTOBUF"
    assert "int32 sum = 2;" in stored.schema_str
