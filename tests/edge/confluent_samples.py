"""Schemas, stored records and the serializers of confluent-kafka, for tests of several services."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from ottla.testing.process import BrokerProcess

WAIT_S = 60
FIRST = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "customer", "type": "string"}, {"name": "old", "type": "int"}],
}  # fmt: skip
#: as the course evolves a schema: a field renamed with an alias, one widened, one added with a default, one removed
SECOND = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"}, {"name": "buyer", "type": "string", "aliases": ["customer"]},
        {"name": "currency", "type": "string", "default": "EUR"},
    ],
}  # fmt: skip
USER = json.dumps({
    "type": "record", "name": "User", "namespace": "n",
    "fields": [{"name": "name", "type": "string"}, {"name": "age", "type": ["null", "int"], "default": None}],
})  # fmt: skip
OLDER = json.dumps({"type": "record", "name": "User", "namespace": "n", "fields": [{"name": "name", "type": "string"}]})
OBJECT = json.dumps({"title": "Thing", "type": "object", "properties": {"a": {"type": "array"}}})
ORDER = (
    'syntax = "proto3"; package shop; message Order { int32 id = 1; string note = 2; } message Other { bool a = 1; }'
)


def stored(broker: BrokerProcess, topic: str) -> list[Any]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        return consumer.consume(1, WAIT_S)
    finally:
        consumer.close()


def context_of(topic: str, part: str = "value", headers: list[Any] | None = None) -> Any:
    """Return what serializers of confluent-kafka are told about a record: its topic, and `key` or `value`."""
    from confluent_kafka.serialization import SerializationContext

    return SerializationContext(topic, part, headers)


def message_class(package: str, *fields: str) -> Any:
    """Return the class of a message `Order` with int32 fields of these names."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, name in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=5, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Order"))


def confluent_serde(form: str, text: str, client: Any, topic: str) -> tuple[Any, Any]:
    """Return functions that serialize and deserialize values with confluent-kafka."""
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
    from google.protobuf import json_format, message_factory
    from google.protobuf.descriptor_pool import DescriptorPool

    from ottla.schemas.protobuf import parse

    context = context_of(topic)
    if form == "avro":
        to_bytes, from_bytes = AvroSerializer(client, text), AvroDeserializer(client)
    elif form == "jsonschema":
        to_bytes, from_bytes = JSONSerializer(text, client), JSONDeserializer(text, schema_registry_client=client)
    else:
        pool = DescriptorPool()
        for each in parse(text).descriptors():
            pool.AddSerializedFile(each)
        message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
        conf = {"use.deprecated.format": False}
        protobuf_to, protobuf_from = (
            ProtobufSerializer(message, client, conf),
            ProtobufDeserializer(message, conf, client),
        )
        return (
            lambda value: protobuf_to(json_format.ParseDict(value, message()), context),
            lambda data: json_format.MessageToDict(protobuf_from(data, context)),
        )
    return lambda value: to_bytes(value, context), lambda data: from_bytes(data, context)
