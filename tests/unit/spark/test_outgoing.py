"""Rows on their way out: which columns are taken, which partition a row goes to, what is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from ottla.model.records import iterate_records
from ottla.model.types import TopicPartition
from ottla.spark import outgoing
from ottla.spark.columns import RowsRefused, check_written_columns
from ottla.spark.encode import UnusableColumn, murmur2_partitions
from ottla.spark.outgoing import Outgoing

COUNTS = {"a": 3, "b": 5}


class Emitted:
    """What came out, by partition."""

    def __init__(self, topic: str | None = "a", **settings: Any) -> None:
        self.batches: list[tuple[TopicPartition, bytes, int]] = []
        self.outgoing = Outgoing(
            topic=topic,
            partition_count=COUNTS.__getitem__,
            codec=settings.pop("codec", 0),
            batch_bytes_max=settings.pop("batch_bytes_max", 1 << 20),
            now_ms=lambda: 77,
            emit=lambda partition, batch, rows: self.batches.append((partition, batch, rows)),
            **settings,
        )

    def write(self, *tables: dict[str, Any]) -> Emitted:
        self.outgoing.write(pa.RecordBatch.from_pydict(table) for table in tables)
        return self

    def values(self) -> dict[TopicPartition, list[bytes | None]]:
        found: dict[TopicPartition, list[bytes | None]] = {}
        for partition, batch, rows in self.batches:
            records = list(iterate_records(batch))
            assert len(records) == rows
            found.setdefault(partition, []).extend(record.value for record in records)
        return found


def test_rows_go_where_java_would_send_their_keys_in_their_order() -> None:
    keys = [f"key {number % 7}" for number in range(100)]
    values = [f"value {number}" for number in range(100)]
    expected: dict[TopicPartition, list[bytes | None]] = {}
    for partition, value in zip(murmur2_partitions(pa.array(keys), 3), values, strict=True):
        expected.setdefault(TopicPartition("a", int(partition)), []).append(value.encode())
    assert Emitted().write({"key": keys, "value": values}).values() == expected


def test_rows_of_many_arrow_batches_share_record_batches() -> None:
    tables = [{"key": ["k"], "value": [f"{number}"]} for number in range(50)]
    emitted = Emitted().write(*tables)
    assert len(emitted.batches) == 1
    (values,) = emitted.values().values()
    assert values == [b"%d" % number for number in range(50)]


def test_full_batches_do_not_wait_for_the_last_row() -> None:
    emitted = Emitted(batch_bytes_max=10_000).write(*({"key": ["k"] * 40, "value": ["x" * 100] * 40} for _ in range(9)))
    assert len(emitted.batches) > 3
    assert all(len(batch) <= 10_000 for _, batch, _ in emitted.batches)


def test_task_with_many_partitions_does_not_hold_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "BUFFERED_BYTES_MAX", 2000)
    emitted = Emitted().write(*({"key": [f"{n}" for n in range(20)], "value": ["x" * 50] * 20} for _ in range(4)))
    assert len(emitted.batches) > 3
    assert sum(rows for _, _, rows in emitted.batches) == 80


def test_partition_column_wins_over_the_key_where_it_is_set() -> None:
    rows = {"key": ["k"] * 3, "value": ["x", "y", "z"], "partition": pa.array([2, None, 0], pa.int32())}
    places = {value: partition for partition, values in Emitted().write(rows).values().items() for value in values}
    assert places[b"x"].partition == 2
    assert places[b"y"].partition == murmur2_partitions(pa.array(["k"]), 3)[0]
    assert places[b"z"].partition == 0


def test_partition_that_the_topic_has_not_is_refused() -> None:
    with pytest.raises(UnusableColumn, match="0 to 2"):
        Emitted().write({"value": ["x"], "partition": pa.array([3], pa.int32())})


def test_rows_without_a_key_move_on_from_batch_to_batch() -> None:
    emitted = Emitted().write(*({"value": [f"{number}"] * 10} for number in range(6)))
    assert {partition.partition for partition, _, _ in emitted.batches} == {0, 1, 2}


def test_topic_column_is_used_without_the_option() -> None:
    emitted = Emitted(topic=None).write({"value": ["x", "y", "z"], "topic": ["b", "a", "b"]})
    assert {partition.topic for partition, _, _ in emitted.batches} == {"a", "b"}
    assert sorted(v for p, vs in emitted.values().items() if p.topic == "b" for v in vs if v) == [b"x", b"z"]


def test_option_wins_over_the_topic_column() -> None:
    emitted = Emitted(topic="a").write({"value": ["x"], "topic": ["b"]})
    assert {partition.topic for partition, _, _ in emitted.batches} == {"a"}


def test_row_without_a_topic_is_refused() -> None:
    with pytest.raises(RowsRefused, match="null topic"):
        Emitted(topic=None).write({"value": ["x"], "topic": pa.array([None], pa.string())})


def test_timestamps_and_headers_are_taken_and_other_columns_are_not() -> None:
    headers = pa.array([[("h", b"1")]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    rows = {"value": [b"x"], "timestamp": pa.array([5_000], pa.timestamp("us", "UTC")), "headers": headers, "more": [1]}
    ((_, batch, _),) = Emitted().write(rows).batches
    (record,) = iterate_records(batch)
    assert (record.timestamp, record.headers) == (5, [("h", b"1")])


def test_rows_without_timestamps_get_the_time_of_writing() -> None:
    ((_, batch, _),) = Emitted().write({"value": [b"x"]}).batches
    assert [record.timestamp for record in iterate_records(batch)] == [77]


@pytest.mark.parametrize(
    ("types", "topic", "complaint"),
    [
        ({"key": "string"}, "t", "Required attribute 'value' not found"),
        ({"value": "string"}, None, "topic option required when no 'topic' attribute is present"),
        ({"value": "int"}, "t", "column value must be string or binary, it is int"),
        ({"value": "string", "key": "bigint"}, "t", "column key must be"),
        ({"value": "string", "topic": "binary"}, None, "column topic must be string"),
        ({"value": "string", "partition": "bigint"}, "t", "column partition must be int"),
        ({"value": "string", "headers": "map<string,binary>"}, "t", "column headers must be array"),
    ],
)
def test_schema_that_cannot_be_written_is_refused(types: dict[str, str], topic: str | None, complaint: str) -> None:
    with pytest.raises(RowsRefused, match=complaint):
        check_written_columns(types, topic)


def test_schema_of_sparks_own_source_can_be_written() -> None:
    check_written_columns(
        {"key": "binary", "value": "binary", "topic": "string", "partition": "int", "offset": "bigint",
         "timestamp": "timestamp", "timestampType": "int", "headers": "array<struct<key:string,value:binary>>"},
        None,
    )  # fmt: skip
