"""kafka-python: pure Python, blocking."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from drivers import DEADLINE_S, Received, Record, Refused

with warnings.catch_warnings():
    # It reads its message schemas with a function that Python wants to drop; warnings are errors here.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.codec import has_lz4, has_snappy, has_zstd
    from kafka.errors import KafkaError, for_code

# What it logs of a broker that is away holds on to its sockets, which then warn in the midst of another test.
logging.getLogger("kafka").setLevel(logging.CRITICAL)

_LOG_APPEND_TIME = 1


class KafkaPython:
    """kafka-python 3."""

    name = "kafka-python"
    incremental = True
    codecs = (
        "none",
        "gzip",
        *(name for name, has in (("snappy", has_snappy), ("lz4", has_lz4), ("zstd", has_zstd)) if has()),
    )

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    # -- records --------------------------------------------------------------------------------------------------

    def expresses(self, record: Record) -> Record:
        """Its producer refuses headers without a value."""
        return replace(record, headers=tuple((name, value or b"") for name, value in record.headers))

    def shows(self, record: Record) -> Record:
        return record

    def produce(
        self, topic: str, records: Sequence[Record], *, partition: int = 0, codec: str = "none", acks: int = -1,
        idempotent: bool = False,
    ) -> None:  # fmt: skip
        producer = KafkaProducer(
            bootstrap_servers=self._bootstrap, acks="all" if acks == -1 else acks, linger_ms=5,
            compression_type=None if codec == "none" else codec, enable_idempotence=idempotent,
            max_request_size=64 << 20,
        )  # fmt: skip
        with closing(producer), refusals():
            futures = [
                producer.send(topic, record.value, record.key, list(record.headers), partition, record.timestamp_ms)
                for record in records
            ]
            for future in futures:
                future.get(DEADLINE_S)

    def consume(self, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Received]:
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            consumer.assign([place])
            consumer.seek(place, offset)
            return [_received(message) for message in poll(consumer, count)]

    @contextmanager
    def consumer(self, **settings: Any) -> Iterator[KafkaConsumer]:
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="none",
            **settings,
        )  # fmt: skip
        with closing(consumer), refusals():
            yield consumer

    # -- admin ----------------------------------------------------------------------------------------------------

    @contextmanager
    def admin(self) -> Iterator[KafkaAdminClient]:
        with closing(KafkaAdminClient(bootstrap_servers=self._bootstrap)) as admin, refusals():
            yield admin

    def create_topic(
        self, topic: str, *, partitions: int = 1, replication_factor: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        wanted = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": config or {}}
        with self.admin() as admin:
            admin.create_topics({topic: wanted})

    def list_topics(self) -> set[str]:
        with self.admin() as admin:
            return set(admin.list_topics())

    def partition_leaders(self, topic: str) -> dict[int, int]:
        with self.admin() as admin:
            (found,) = admin.describe_topics([topic])
        _check(found["error_code"])
        return {partition["partition_index"]: partition["leader_id"] for partition in found["partitions"]}

    def delete_topic(self, topic: str) -> None:
        with self.admin() as admin:
            admin.delete_topics([topic])

    def create_partitions(self, topic: str, total: int) -> None:
        with self.admin() as admin:
            admin.create_partitions({topic: total})

    def topic_config(self, topic: str) -> dict[str, str | None]:
        return self._config(ConfigResourceType.TOPIC, topic)

    def broker_config(self, broker: int) -> dict[str, str | None]:
        return self._config(ConfigResourceType.BROKER, str(broker))

    def _config(self, kind: ConfigResourceType, name: str) -> dict[str, str | None]:
        with self.admin() as admin:
            found = admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
        return {key: entry["value"] for key, entry in found[kind.name.lower()][name].items()}

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, {name: value})
        with self.admin() as admin:
            found = admin.alter_configs([resource], raise_on_unknown=False)
        said = found["topic"][topic]
        if said != "OK":
            # Only the error's text comes back: "[Error 40] InvalidConfigurationError: ...".
            raise Refused(int(said.removeprefix("[Error ").partition("]")[0]), said)

    def delete_records(self, topic: str, partition: int, before: int) -> int:
        place = TopicPartition(topic, partition)
        with self.admin() as admin:
            low_watermark: int = admin.delete_records({place: before})[place]["low_watermark"]
            return low_watermark

    def brokers(self) -> dict[int, tuple[str, int]]:
        return {broker["broker_id"]: (broker["host"], broker["port"]) for broker in self._cluster()["brokers"]}

    def controller(self) -> int:
        controller: int = self._cluster()["controller_id"]
        return controller

    def _cluster(self) -> dict[str, Any]:
        with self.admin() as admin:
            found: dict[str, Any] = admin.describe_cluster()
            return found

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        place = TopicPartition(topic, partition)
        with self.consumer() as consumer:
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
        return None if found is None else int(found.offset)


def poll(consumer: KafkaConsumer, count: int) -> list[Any]:
    """The next ``count`` messages."""
    messages: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records came in time"
        for batch in consumer.poll(500, max_records=count - len(messages)).values():
            messages += batch
    return messages


def _received(message: Any) -> Received:
    record = Record(
        value=message.value, key=message.key, headers=tuple(message.headers), timestamp_ms=message.timestamp
    )
    return Received(offset=message.offset, record=record, append_time=message.timestamp_type == _LOG_APPEND_TIME)


@contextmanager
def refusals() -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        if not getattr(error, "errno", 0):
            raise
        raise Refused(error.errno, str(error)) from None


def _check(code: int) -> None:
    if code:
        raise Refused(code, for_code(code).__name__)
