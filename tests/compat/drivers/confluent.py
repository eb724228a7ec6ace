"""confluent-kafka: librdkafka in its newest clothes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from confluent_kafka import OFFSET_END, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaException, Message, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from drivers import CODECS, DEADLINE_S, Received, Record, Refused


class Confluent:
    """librdkafka through confluent-kafka."""

    name = "confluent-kafka"
    codecs = CODECS
    incremental = True

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    # -- records --------------------------------------------------------------------------------------------------

    def expresses(self, record: Record) -> Record:
        return record

    def shows(self, record: Record) -> Record:
        return record

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = False,
    ) -> None:  # fmt: skip
        producer = self.producer({"compression.type": codec, "acks": acks, "enable.idempotence": idempotent})
        failures: list[Any] = []
        for record in records:
            producer.produce(
                topic, record.value, record.key, partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
                timestamp=record.timestamp_ms or 0, headers=list(record.headers),
            )  # fmt: skip
        unsent = producer.flush(DEADLINE_S)
        if failures:
            raise Refused(failures[0].code(), failures[0].str())
        assert not unsent, f"{unsent} records were not answered"

    def producer(self, settings: Mapping[str, Any]) -> Producer:
        """A producer whose own limit on sizes does not hide the broker's."""
        shared = {"bootstrap.servers": self._bootstrap, "linger.ms": 5, "log_level": 0, "message.max.bytes": 64 << 20}
        return Producer({**shared, **settings})

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        with self.consumer() as consumer:
            consumer.assign([Place(topic, partition, offset)])
            return [_received(message) for message in poll(consumer, count)]

    @contextmanager
    def consumer(self, **settings: Any) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "never-joined",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    # -- admin ----------------------------------------------------------------------------------------------------

    def create_topic(
        self, topic: str, *, partitions: int = 1, replication_factor: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        wanted = NewTopic(topic, partitions, replication_factor, config=dict(config or {}))
        _only(self._admin.create_topics([wanted]))

    def list_topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=DEADLINE_S).topics)

    def partition_leaders(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=DEADLINE_S).topics[topic]
        if found.error is not None:
            raise Refused(found.error.code(), found.error.str())
        return {number: partition.leader for number, partition in found.partitions.items()}

    def delete_topic(self, topic: str) -> None:
        _only(self._admin.delete_topics([topic]))

    def create_partitions(self, topic: str, total: int) -> None:
        _only(self._admin.create_partitions([NewPartitions(topic, total)]))

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ResourceType.TOPIC, topic)

    def broker_config(self, broker: int) -> dict[str, str | None]:
        return self._config(ResourceType.BROKER, str(broker))

    def _config(self, kind: ResourceType, name: str) -> dict[str, str | None]:
        entries = _only(self._admin.describe_configs([ConfigResource(kind, name)]))
        return {entry.name: entry.value for entry in entries.values()}

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        _only(self._admin.incremental_alter_configs([resource]))

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        deleted = _only(self._admin.delete_records([Place(topic, partition, before)]))
        low_watermark: int = deleted.low_watermark
        return low_watermark

    def brokers(self) -> dict[int, tuple[str, int]]:
        nodes = self._admin.describe_cluster().result(DEADLINE_S).nodes
        return {node.id: (node.host, node.port) for node in nodes}

    def controller(self) -> int:
        controller: int = self._admin.describe_cluster().result(DEADLINE_S).controller.id
        return controller

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        with self.consumer() as consumer:
            low, high = consumer.get_watermark_offsets(Place(topic, partition), DEADLINE_S)
            return low, high

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        with self.consumer() as consumer:
            (found,) = consumer.offsets_for_times([Place(topic, partition, timestamp_ms)], DEADLINE_S)
            return None if found.offset == OFFSET_END else int(found.offset)

    def list_offset(self, topic: str, partition: int, spec: OffsetSpec) -> tuple[int, int]:
        """Offset and timestamp, through the admin's ListOffsets."""
        found = _only(self._admin.list_offsets({Place(topic, partition): spec}))
        return found.offset, found.timestamp

    @property
    def admin(self) -> AdminClient:
        return self._admin


def poll(consumer: Consumer, count: int) -> list[Message]:
    """The next ``count`` messages; an error among them is raised."""
    messages: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(messages)} of {count} records came in time"
        for message in consumer.consume(count - len(messages), min(left, 0.5)):
            error = message.error()
            if error is not None:
                raise Refused(error.code(), error.str())
            messages.append(message)
    return messages


def _received(message: Message) -> Received:
    kind, timestamp_ms = message.timestamp()
    record = Record(
        value=message.value(), key=message.key(), headers=tuple(message.headers() or ()), timestamp_ms=timestamp_ms
    )
    return Received(offset=message.offset(), record=record, append_time=kind == TIMESTAMP_LOG_APPEND_TIME)


def _only(futures: Mapping[Any, Future[Any]]) -> Any:
    (future,) = futures.values()
    try:
        return future.result(DEADLINE_S)
    except KafkaException as error:
        raise Refused(error.args[0].code(), error.args[0].str()) from None
