"""What the sinks of a campaign hold, read by others: librdkafka as read_committed, and deltalake with pyarrow."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Place
from deltalake import DeltaTable

#: a row's number, and the partition and offset of the input where it stands
Row = tuple[int, int, int]

_DEADLINE_S = 180.0


def rows_of_topic(bootstrap: str, topic: str) -> Counter[Row]:
    return Counter(map(_parse, values_of_topic(bootstrap, topic)))


def values_of_topic(bootstrap: str, topic: str) -> Iterator[bytes]:
    """Yield the values of all committed records. Raise AssertionError if a transaction was left open."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_committed",
        "enable.auto.commit": False, "enable.partition.eof": True, "check.crcs": True, "log_level": 2,
    }  # fmt: skip
    ends = log_ends(bootstrap, topic)
    unfinished = {partition for partition, end in ends.items() if end}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([Place(topic, partition, 0) for partition in ends])
        deadline = time.monotonic() + _DEADLINE_S
        while unfinished:
            assert time.monotonic() < deadline, f"a transaction was left open in {topic}, partitions {unfinished}"
            for message in consumer.consume(10_000, 0.5):
                error = message.error()
                if error is None:
                    yield message.value()
                elif error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                elif message.offset() >= ends[message.partition()]:
                    unfinished.discard(message.partition())


def rows_of_table(table: Path) -> Counter[Row]:
    columns = DeltaTable(str(table)).to_pyarrow_table(columns=["value", "partition", "offset"])
    numbers = (int(value.split()[1]) for value in columns["value"].to_pylist())
    return Counter(zip(numbers, columns["partition"].to_pylist(), columns["offset"].to_pylist(), strict=True))


def assert_each_once(found: Counter[Row], rows: int, input_ends: dict[int, int], where: str) -> None:
    """Every row once, and every place of the input once."""
    numbers, places = Counter[int](), Counter[tuple[int, int]]()
    for (number, partition, offset), count in found.items():
        numbers[number] += count
        places[partition, offset] += count
    expected = {(partition, offset) for partition, end in input_ends.items() for offset in range(end)}
    assert len(expected) == rows, f"the input has {len(expected)} rows, and {rows} were written"
    problems = {
        "lost": sorted(set(range(rows)) - numbers.keys()),
        "doubled": sorted(number for number, count in numbers.items() if count > 1),
        "foreign": sorted(numbers.keys() - set(range(rows))),
        "places lost": sorted(expected - places.keys()),
        "places doubled": sorted(place for place, count in places.items() if count > 1),
    }
    told = ", ".join(f"{len(some)} {what} ({some[:5]})" for what, some in problems.items() if some)
    assert not told, f"{where}: {told}"


def log_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """The ends of the logs, with what is not decided."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "judge", "isolation.level": "read_uncommitted"}
    with closing(Consumer(settings)) as consumer:
        partitions = consumer.list_topics(topic, _DEADLINE_S).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(Place(topic, partition), _DEADLINE_S)[1]
            for partition in partitions
        }


def _parse(value: bytes) -> Row:
    """``row NUMBER PARTITION OFFSET``."""
    _, number, partition, offset = value.split()
    return int(number), int(partition), int(offset)
