"""A topic with everything that a topic can hold, and a plain consumer that says what is in it."""

from __future__ import annotations

import random
import time
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_DEADLINE_S = 60.0


class Row(NamedTuple):
    """A record as a consumer and as Spark tell of it."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    timestamp_type: int
    headers: tuple[tuple[str, bytes | None], ...]


def fill(bootstrap: str, topic: str, chance: random.Random, *, keys: int = 50, rounds: int = 12) -> None:
    """Batches of all codecs, with and without keys, values and headers; transactions that end well and that do not."""
    for number in range(rounds):
        codec = CODECS[number % len(CODECS)]
        settings = {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5, "batch.size": 8000}
        transactional = number % 3 == 2
        if transactional:
            settings["transactional.id"] = f"{topic}-{chance.randrange(2)}"
        producer = Producer(settings)
        if transactional:
            producer.init_transactions()
            producer.begin_transaction()
        for _ in range(chance.randrange(1, 200)):
            producer.produce(topic, on_delivery=_delivered, **_record(chance, keys))
            if chance.random() < 0.02:
                producer.flush()
        if transactional:
            # Records that never left the producer would not be in the log at all.
            producer.flush()
            if chance.random() < 0.5:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
        producer.flush()


def _delivered(error: KafkaError | None, message: object) -> None:
    assert error is None, error


def _record(chance: random.Random, keys: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "key": b"key %d" % chance.randrange(keys),
        "value": chance.choice([None, b"", chance.randbytes(chance.randrange(300)), b"ottla" * chance.randrange(100)]),
        "timestamp": chance.choice([1, 1_700_000_000_123, chance.randrange(1, 1 << 40)]),
    }
    if chance.random() < 0.2:
        names = ["trace", "ünïcode", "", "trace"]
        record["headers"] = [(chance.choice(names), chance.choice([None, b"", b"x" * 40])) for _ in range(3)]
    return record


def consume(bootstrap: str, topic: str, partitions: int, *, committed: bool = False) -> list[Row]:
    """All records that there are now, in order of partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False,
            "enable.partition.eof": True, "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )  # fmt: skip
    rows: list[Row] = []
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        at_end: set[int] = set()
        deadline = time.monotonic() + _DEADLINE_S
        while len(at_end) < partitions:
            assert time.monotonic() < deadline, f"{topic} did not come to its end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
                continue
            kind, timestamp_ms = message.timestamp()
            headers = tuple((name, value) for name, value in message.headers() or [])
            rows.append(
                Row(
                    message.partition(),
                    message.offset(),
                    message.key(),
                    message.value(),
                    timestamp_ms,
                    kind - 1,
                    headers,
                )
            )
    finally:
        consumer.close()
    return sorted(rows, key=lambda row: row[:2])


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """The rows of all eight columns, in order of partition and offset."""
    timestamps = table.column("timestamp").cast(pa.int64()).to_pylist()
    headers = [tuple((h["key"], h["value"]) for h in each or ()) for each in table.column("headers").to_pylist()]
    rows = map(
        Row,
        table.column("partition").to_pylist(), table.column("offset").to_pylist(), table.column("key").to_pylist(),
        table.column("value").to_pylist(), [micros // 1000 for micros in timestamps],
        table.column("timestampType").to_pylist(), headers,
    )  # fmt: skip
    return sorted(rows, key=lambda row: row[:2])
