"""aiokafka: asyncio, with the oldest request versions of the Python clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.codec import has_lz4, has_snappy, has_zstd
from aiokafka.errors import KafkaError

from drivers import DEADLINE_S, Received, Record, Refused

_LOG_APPEND_TIME = 1
T = TypeVar("T")


class Aiokafka:
    """aiokafka; every call runs an event loop of its own."""

    name = "aiokafka"
    incremental = False
    codecs = (
        "none",
        "gzip",
        *(name for name, has in (("snappy", has_snappy), ("lz4", has_lz4), ("zstd", has_zstd)) if has()),
    )

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    # -- records --------------------------------------------------------------------------------------------------

    def expresses(self, record: Record) -> Record:
        return record

    def shows(self, record: Record) -> Record:
        return record

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = False,
    ) -> None:  # fmt: skip
        async def send() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=self._bootstrap, acks="all" if acks == -1 else acks, linger_ms=5,
                compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
                max_request_size=64 << 20,
            )  # fmt: skip
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic, record.value, record.key, partition, record.timestamp_ms, list(record.headers)
                    )
                    for record in records
                ]
                await asyncio.gather(*futures)
            finally:
                await producer.stop()

        _run(send())

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        place = TopicPartition(topic, partition)

        async def receive() -> list[Received]:
            async with self.consumer() as consumer:
                consumer.assign([place])
                consumer.seek(place, offset)
                return [_received(message) for message in await poll(consumer, count)]

        return _run(receive())

    @asynccontextmanager
    async def consumer(self, **settings: Any) -> AsyncIterator[AIOKafkaConsumer]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="none",
            **settings,
        )  # fmt: skip
        await consumer.start()
        try:
            yield consumer
        finally:
            await consumer.stop()

    # -- admin ----------------------------------------------------------------------------------------------------

    def with_admin(self, act: Callable[[AIOKafkaAdminClient], Awaitable[T]]) -> T:
        async def within() -> T:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
            await admin.start()
            try:
                return await act(admin)
            finally:
                await admin.close()

        return _run(within())

    def create_topic(
        self, topic: str, *, partitions: int = 1, replication_factor: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        wanted = NewTopic(topic, partitions, replication_factor, topic_configs=dict(config or {}))
        answer = self.with_admin(lambda admin: admin.create_topics([wanted]))
        for _, code, message in answer.topic_errors:
            _check(code, message)

    def list_topics(self) -> set[str]:
        return set(self.with_admin(lambda admin: admin.list_topics()))

    def partition_leaders(self, topic: str) -> dict[int, int]:
        (found,) = self.with_admin(lambda admin: admin.describe_topics([topic]))
        _check(found["error_code"])
        return {partition["partition"]: partition["leader"] for partition in found["partitions"]}

    def delete_topic(self, topic: str) -> None:
        answer = self.with_admin(lambda admin: admin.delete_topics([topic]))
        for _, code in answer.topic_error_codes:
            _check(code)

    def create_partitions(self, topic: str, total: int) -> None:
        self.with_admin(lambda admin: admin.create_partitions({topic: NewPartitions(total)}))

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResourceType.TOPIC, topic)

    def broker_config(self, broker: int) -> dict[str, str | None]:
        return self._config(ConfigResourceType.BROKER, str(broker))

    def _config(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        (answer,) = self.with_admin(lambda admin: admin.describe_configs([ConfigResource(kind, name)]))
        ((code, message, _, _, entries),) = answer.resources
        _check(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        (answer,) = self.with_admin(lambda admin: admin.alter_configs([resource]))
        for code, message, _, _ in answer.resources:
            _check(code, message)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        found = self.with_admin(lambda admin: admin.delete_records({place: RecordsToDelete(before)}))
        return int(found[place])

    def brokers(self) -> dict[int, tuple[str, int]]:
        found = self.with_admin(lambda admin: admin.describe_cluster())
        return {broker["node_id"]: (broker["host"], broker["port"]) for broker in found["brokers"]}

    def controller(self) -> int:
        return int(self.with_admin(lambda admin: admin.describe_cluster())["controller_id"])

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)

        async def ask() -> tuple[int, int]:
            async with self.consumer() as consumer:
                low, high = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
                return low[place], high[place]

        return _run(ask())

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)

        async def ask() -> int | None:
            async with self.consumer() as consumer:
                found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
                return None if found is None else int(found.offset)

        return _run(ask())


async def poll(consumer: AIOKafkaConsumer, count: int) -> list[Any]:
    """The next ``count`` messages."""
    messages: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records came in time"
        found = await consumer.getmany(timeout_ms=500, max_records=count - len(messages))
        for batch in found.values():
            messages += batch
    return messages


def _received(message: Any) -> Received:
    record = Record(
        value=message.value, key=message.key, headers=tuple(message.headers), timestamp_ms=message.timestamp
    )
    return Received(offset=message.offset, record=record, append_time=message.timestamp_type == _LOG_APPEND_TIME)


def _run(call: Awaitable[T]) -> T:
    async def in_time() -> T:
        return await asyncio.wait_for(call, DEADLINE_S)

    try:
        return asyncio.run(in_time())
    except KafkaError as error:
        if not getattr(error, "errno", 0):
            raise
        raise Refused(error.errno, str(error)) from None


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise Refused(code, message or "")
