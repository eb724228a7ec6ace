"""Reads the records of all versions with the oldest and with the newest schema. Run curl.sh and evolve.sh first.

Needs confluent-kafka's Avro deserializer: pip install 'confluent-kafka[avro,schemaregistry]'
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from fastavro.read import SchemaResolutionError

BOOTSTRAP = os.environ.get("OTTLA_BOOTSTRAP_SERVER", "127.0.0.1:9092")
REGISTRY = os.environ.get("REGISTRY", "http://127.0.0.1:8081")
TOPIC = os.environ.get("TOPIC", "sales")
VERSIONS = (1, 2, 3, 4, 5)
TIMEOUT_S = 60


def schema(version: int) -> str:
    return Path(__file__).with_name(f"order-{version}.avsc").read_text()


def values() -> Iterator[bytes]:
    """Return the values of all records of the topic."""
    consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "unused", "enable.partition.eof": True})
    if TOPIC not in consumer.list_topics(timeout=TIMEOUT_S).topics:
        sys.exit(f"topic {TOPIC} does not exist; run curl.sh, then evolve.sh, then this script again")
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    while True:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            sys.exit(f"no record of topic {TOPIC} arrived in {TIMEOUT_S} s; check that 'ottla up' runs")
        if message.error() is not None:
            consumer.close()
            if message.error().code() != KafkaError._PARTITION_EOF:
                raise KafkaException(message.error())
            return
        yield message.value()


def main() -> None:
    registry = SchemaRegistryClient({"url": REGISTRY})
    context = SerializationContext(TOPIC, MessageField.VALUE)
    found = list(values())
    writers = {
        entry.schema_id: entry.version
        for entry in (registry.get_version(f"{TOPIC}-value", version) for version in VERSIONS)
    }
    readable: dict[int, dict[int, bool]] = {version: {} for version in VERSIONS}
    for reader in VERSIONS:
        # Records are decoded with the schema that their bytes name, and resolved to this one.
        deserialize = AvroDeserializer(registry, schema(reader))
        if reader in (VERSIONS[0], VERSIONS[-1]):
            print(f"read with order-{reader}.avsc")
        for value in found:
            writer = writers[int.from_bytes(value[1:5], "big")]
            try:
                shown = str(deserialize(value, context))
                readable[writer][reader] = True
            except SchemaResolutionError as error:
                shown = f"cannot be read: {error}"
                readable[writer][reader] = False
            if reader in (VERSIONS[0], VERSIONS[-1]):
                print(f"  version {writer}  {shown}")
    print("can a reader with the schema of the column read records of the version of the row?")
    print("           " + "".join(f"order-{reader}  " for reader in VERSIONS).rstrip())
    for writer, row in readable.items():
        cells = "".join(f"{'yes' if row[reader] else 'no':<9}" for reader in VERSIONS)
        print(f"version {writer}  {cells}".rstrip())


main()
