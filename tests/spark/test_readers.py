"""The readers of format("ottla") against a broker, called as Spark calls them but without its JVM."""

from __future__ import annotations

import json
import logging
import math
import pickle
import random
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType
from random_topic import Row, consume, fill, rows_of

from ottla.client.cluster import Cluster
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.spark.offsets import DataLost
from ottla.spark.options import OptionError
from ottla.spark.reading import AHEAD_ROWS_MAX, ColumnsRefused
from ottla.spark.source import OttlaDataSource, OttlaStreamReader
from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]

ALL = ReadAllAvailable()


def source_of(broker: BrokerProcess, topic: str, **options: str) -> OttlaDataSource:
    quick = {"fetchOffset.retryIntervalMs": "10"}
    return OttlaDataSource({"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **quick, **options})


def read_batch(source: OttlaDataSource, schema: StructType | None = None) -> pa.Table:
    return read_all(source.reader(schema or source.schema()))


def read_all(reader: Any, *ends: Mapping[str, Any]) -> pa.Table:
    """What the tasks read, each from copies as they arrive in a worker."""
    partitions = [through_pickle(partition) for partition in reader.partitions(*ends)]
    ahead = rows_ahead(reader, *ends) if ends else None
    # Spark pickles a reader before anybody has asked it: what it has opened since does not travel.
    untouched = object.__new__(type(reader))
    vars(untouched).update(vars(reader) | ({"_watcher": None} if ends else {}))
    batches = [batch for partition in partitions for batch in through_pickle(untouched).read(partition)]
    assert ahead is None or ahead == batches, "tasks may have to read again what went ahead"
    return pa.Table.from_batches(batches) if batches else pa.table({})


def rows_ahead(reader: OttlaStreamReader, *ends: Mapping[str, Any]) -> list[pa.RecordBatch] | None:
    """What Spark asks for when it has the partitions."""
    return list(reader.getCache(*ends)) if isinstance(reader, _SimpleStreamReaderWrapper) else None


def through_pickle(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))  # noqa: S301 - what it loads was dumped a moment ago


@pytest.fixture
def make_stream(broker: BrokerProcess) -> Iterator[Any]:
    readers: list[OttlaStreamReader] = []

    def make(topic: str, **options: str) -> OttlaStreamReader:
        source = source_of(broker, topic, **options)
        readers.append(source.streamReader(source.schema()))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def produce(cluster: Cluster, topic: str, partition: int, count: int, timestamp: int = 1000) -> None:
    records = [Record(key=b"k", value=b"%d" % number, timestamp=timestamp + number) for number in range(count)]
    cluster.produce(TopicPartition(topic, partition), build_batch(records))


def administer(broker: BrokerProcess, verb: str, *arguments: Any) -> None:
    """A request of confluent's admin client, which must be held until its answers are there."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    futures: Mapping[Any, Future[Any]] = getattr(admin, verb)(*arguments)
    for future in futures.values():
        future.result(30)


# -- equality with a plain consumer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("committed", [False, True], ids=["read_uncommitted", "read_committed"])
def test_rows_equal_those_of_a_plain_consumer_whatever_the_topic_holds(
    broker: BrokerProcess, topics: Any, committed: bool
) -> None:
    seed = random.randrange(1 << 30)
    topic = topics(3)
    fill(broker.bootstrap, topic, random.Random(seed))
    options = {"includeHeaders": "true", "kafka.isolation.level": "read_committed" if committed else "read_uncommitted"}
    expected = consume(broker.bootstrap, topic, 3, committed=committed)
    assert expected
    for more in (
        {},
        {"minPartitions": "7"},
        {"maxRecordsPerPartition": "31", "kafka.max.partition.fetch.bytes": "2000"},
    ):
        assert rows_of(read_batch(source_of(broker, topic, **options, **more))) == expected, f"seed {seed}, {more}"


def test_rows_equal_those_of_a_plain_consumer_after_compaction(broker: BrokerProcess, topics: Any) -> None:
    seed = random.randrange(1 << 30)
    compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "20000"}
    topic = topics(1, compacted)
    fill(broker.bootstrap, topic, random.Random(seed), keys=20, rounds=15)
    fill(broker.bootstrap, topic, random.Random(seed + 1), keys=20, rounds=15)
    deadline = time.monotonic() + 60
    rows: list[Row] = []
    while not _has_gaps(rows):
        assert time.monotonic() < deadline, (
            f"nothing was compacted with seed {seed}: {len(rows)} records up to {rows[-1].offset}"
        )
        rows = consume(broker.bootstrap, topic, 1)
    # Compaction goes on meanwhile: what is read lies between two views of the consumer.
    for _ in range(20):
        before = consume(broker.bootstrap, topic, 1)
        found = rows_of(read_batch(source_of(broker, topic, includeHeaders="true", minPartitions="3")))
        if before == consume(broker.bootstrap, topic, 1):
            break
    assert found == before, f"seed {seed}"


def _has_gaps(rows: list[Row]) -> bool:
    return bool(rows) and rows[-1].offset > 2 * len(rows)


def test_log_append_time_is_told_with_its_type(broker: BrokerProcess, cluster: Cluster, topics: Any) -> None:
    topic = topics(1, {"message.timestamp.type": "LogAppendTime"})
    produce(cluster, topic, 0, 3)
    rows = rows_of(read_batch(source_of(broker, topic, includeHeaders="true")))
    assert rows == consume(broker.bootstrap, topic, 1)
    assert {row.timestamp_type for row in rows} == {1}


# -- batch ------------------------------------------------------------------------------------------------------------


def test_batch_reads_between_the_offsets_that_the_user_gives(
    broker: BrokerProcess, cluster: Cluster, topic: str
) -> None:
    produce(cluster, topic, 0, 10)
    produce(cluster, topic, 1, 10)
    ends = {"startingOffsets": f'{{"{topic}":{{"0":3,"1":-2}}}}', "endingOffsets": f'{{"{topic}":{{"0":7,"1":-1}}}}'}
    table = read_batch(source_of(broker, topic, **ends))
    found = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert found == [(0, offset) for offset in range(3, 7)] + [(1, offset) for offset in range(10)]


def test_batch_reads_between_timestamps(broker: BrokerProcess, cluster: Cluster, topic: str) -> None:
    produce(cluster, topic, 0, 10, timestamp=1000)
    produce(cluster, topic, 1, 10, timestamp=1005)
    table = read_batch(source_of(broker, topic, startingTimestamp="1007", endingTimestamp="1009"))
    found = sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert found == [(0, 7), (0, 8), (1, 2), (1, 3)]


def test_timestamp_without_a_record_is_an_error_unless_told_otherwise(
    broker: BrokerProcess, cluster: Cluster, topic: str
) -> None:
    produce(cluster, topic, 0, 10)
    with pytest.raises(OptionError, match=f"{topic}-0 has no record as new as 5000: .*Strategy to latest"):
        read_batch(source_of(broker, topic, startingTimestamp="5000"))
    strategy = {"startingTimestamp": "5000", "startingOffsetsByTimestampStrategy": "latest"}
    assert read_batch(source_of(broker, topic, **strategy)).num_rows == 0


def test_schema_of_the_user_chooses_columns_and_their_order(
    broker: BrokerProcess, cluster: Cluster, topic: str
) -> None:
    produce(cluster, topic, 1, 2)
    schema = StructType([StructField("partition", IntegerType()), StructField("value", BinaryType())])
    assert read_batch(source_of(broker, topic), schema).to_pylist() == [
        {"partition": 1, "value": b"0"},
        {"partition": 1, "value": b"1"},
    ]
    only_topic = StructType([StructField("topic", StringType())])
    assert read_batch(source_of(broker, topic), only_topic).to_pylist() == [{"topic": topic}] * 2


@pytest.mark.parametrize(
    ("field", "complaint"),
    [
        (StructField("valeu", BinaryType()), "no column 'valeu', did you mean 'value'"),
        (StructField("value", StringType()), "value is of type binary"),
        (StructField("offset", LongType(), nullable=False), "NOT NULL"),
    ],
)
def test_schema_that_does_not_fit_is_refused(broker: BrokerProcess, field: StructField, complaint: str) -> None:
    with pytest.raises(ColumnsRefused, match=complaint):
        source_of(broker, "any").reader(StructType([field]))


def test_topic_that_does_not_exist_is_named(broker: BrokerProcess) -> None:
    with pytest.raises(OptionError, match="the topic nowhere does not exist"):
        read_batch(source_of(broker, "nowhere"))


def test_pattern_reads_all_topics_that_match(broker: BrokerProcess, cluster: Cluster, topics: Any) -> None:
    names = [topics(1), topics(1)]
    for name in names:
        produce(cluster, name, 0, 1)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribePattern": "|".join(names)}
    assert sorted(read_batch(OttlaDataSource(options))["topic"].to_pylist()) == sorted(names)


def test_ending_offset_that_nobody_has_written_is_an_error_that_names_the_end(
    broker: BrokerProcess, cluster: Cluster, topics: Any
) -> None:
    topic = topics(1)
    produce(cluster, topic, 0, 5)
    options = {"endingOffsets": f'{{"{topic}":{{"0":9}}}}'}
    with pytest.raises(DataLost, match=f"topic {topic}, partition 0: offset 9 .* up to 5: the log ends before"):
        read_batch(source_of(broker, topic, **options))
    assert read_batch(source_of(broker, topic, **options, failOnDataLoss="false")).num_rows == 5


# -- stream -----------------------------------------------------------------------------------------------------------


def test_initial_offset_stays_what_it_was_when_it_was_first_asked_for(
    cluster: Cluster, topic: str, make_stream: Any
) -> None:
    produce(cluster, topic, 0, 3)
    reader = make_stream(topic)
    first = reader.initialOffset()
    produce(cluster, topic, 0, 3)
    assert first == reader.initialOffset() == {topic: {"0": 3, "1": 0}}


def test_idle_stream_gives_back_the_very_offset_whatever_its_order(
    cluster: Cluster, topics: Any, make_stream: Any
) -> None:
    topic = topics(12)
    produce(cluster, topic, 11, 1)
    start = {topic: {str(number): int(number == 11) for number in reversed(range(12))}}
    answer = make_stream(topic).latestOffset(start, ALL)
    assert json.dumps(answer) == json.dumps(start)


def test_idle_stream_waits_with_few_requests_and_returns_when_a_record_comes(
    cluster: Cluster, topic: str, make_stream: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_stream(topic)
    start = reader.initialOffset()
    reader.latestOffset(start, ALL)
    asked = []
    ask = Cluster.ask
    monkeypatch.setattr(Cluster, "ask", lambda self, *a, **k: (asked.append(1), ask(self, *a, **k))[1])
    began = time.monotonic()
    for _ in range(5):
        assert reader.latestOffset(start, ALL) == start
        assert reader.reportLatestOffset() == start
    # Metadata once a second, and the ends of the partitions after each time of waiting.
    took_s = time.monotonic() - began
    assert took_s > 0.9 and len(asked) <= 5 + 1 + math.ceil(took_s)
    writer = threading.Timer(0.05, produce, (cluster, topic, 0, 1))
    writer.start()
    while (end := reader.latestOffset(start, ALL)) == start:
        assert time.monotonic() - began < took_s + 60
    writer.join()
    assert end == {topic: {"0": 1, "1": 0}}


def test_stream_takes_so_many_offsets_as_the_limit_allows(cluster: Cluster, topic: str, make_stream: Any) -> None:
    produce(cluster, topic, 0, 90)
    produce(cluster, topic, 1, 30)
    reader = make_stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert reader.getDefaultReadLimit() == ReadMaxRows(40)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(40))
    assert end == {topic: {"0": 30, "1": 10}}
    assert read_all(reader, start, end).num_rows == 40
    assert reader.latestOffset(start, ALL) == {topic: {"0": 90, "1": 30}}, "Trigger.Once takes everything"


def test_stream_waits_for_the_least_number_of_offsets_or_for_the_delay(
    cluster: Cluster, topic: str, make_stream: Any
) -> None:
    reader = make_stream(topic, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    start = reader.initialOffset()
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    reader.latestOffset(start, limit)
    produce(cluster, topic, 0, 9)
    assert reader.latestOffset(start, limit) == start
    produce(cluster, topic, 1, 1)
    assert reader.latestOffset(start, limit) == {topic: {"0": 9, "1": 1}}


def test_rows_of_a_small_batch_go_ahead_of_its_only_task(cluster: Cluster, topic: str, make_stream: Any) -> None:
    produce(cluster, topic, 0, 3)
    produce(cluster, topic, 1, 2)
    reader = make_stream(topic)
    start, end = {topic: {"0": 1, "1": 0}}, {topic: {"0": 3, "1": 2}}
    assert len(reader.partitions(start, end)) == 1
    table = pa.Table.from_batches(rows_ahead(reader, start, end) or [])
    assert table.select(["partition", "offset"]).to_pydict() == {"partition": [0, 0, 1, 1], "offset": [1, 2, 0, 1]}
    assert not isinstance(reader, _SimpleStreamReaderWrapper), "that is only between the two questions"


@pytest.mark.parametrize("option", [{"minPartitions": "2"}, {"maxRecordsPerPartition": "9000"}])
def test_whoever_wants_many_partitions_has_them_however_small_the_batch(
    cluster: Cluster, topic: str, make_stream: Any, option: dict[str, str]
) -> None:
    produce(cluster, topic, 0, 3)
    produce(cluster, topic, 1, 2)
    reader = make_stream(topic, **option)
    start, end = {topic: {"0": 0, "1": 0}}, {topic: {"0": 3, "1": 2}}
    assert len(reader.partitions(start, end)) == 2
    assert rows_ahead(reader, start, end) is None


def test_large_batch_is_left_to_tasks(cluster: Cluster, topic: str, make_stream: Any) -> None:
    """By its number of rows, or by their size."""
    reader = make_stream(topic)
    start = {topic: {"0": 0, "1": 0}}
    tp = TopicPartition(topic, 0)
    for _ in range(5):
        cluster.produce(tp, build_batch([Record(key=None, value=bytes(1_000_000), timestamp=1)]))
    heavy = {topic: {"0": 5, "1": 0}}
    reader.partitions(start, heavy)
    assert rows_ahead(reader, start, heavy) is None
    assert not reader._watch().cluster._pool._lent, "a connection was not given back"
    produce(cluster, topic, 1, AHEAD_ROWS_MAX + 1)
    for rows, expected in ((AHEAD_ROWS_MAX, AHEAD_ROWS_MAX), (AHEAD_ROWS_MAX + 1, None)):
        end = {topic: {"0": 0, "1": rows}}
        assert len(reader.partitions(start, end)) == 1
        found = rows_ahead(reader, start, end)
        assert (found and sum(map(len, found))) == expected


def test_available_now_ends_where_the_partitions_ended(
    broker: BrokerProcess, cluster: Cluster, topic: str, make_stream: Any
) -> None:
    produce(cluster, topic, 0, 5)
    reader = make_stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="3")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    first = reader.latestOffset(start, ReadMaxRows(3))
    produce(cluster, topic, 0, 5)
    administer(broker, "create_partitions", [NewPartitions(topic, 3)])
    second = reader.latestOffset(first, ReadMaxRows(3))
    assert second == reader.latestOffset(second, ReadMaxRows(3)) == {topic: {"0": 5, "1": 0}}


def test_new_partition_is_read_from_its_first_offset(
    broker: BrokerProcess, cluster: Cluster, topic: str, make_stream: Any
) -> None:
    reader = make_stream(topic)
    start = reader.initialOffset()
    administer(broker, "create_partitions", [NewPartitions(topic, 3)])
    produce(cluster, topic, 2, 4)
    end = await_offset(reader, start, {topic: {"0": 0, "1": 0, "2": 4}})
    assert read_all(reader, start, end)["offset"].to_pylist() == [0, 1, 2, 3]


def await_offset(reader: OttlaStreamReader, start: dict[str, Any], wanted: dict[str, Any]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (end := reader.latestOffset(start, ALL)) != wanted:
        assert time.monotonic() < deadline, end
    return end


def test_progress_is_committed_as_that_of_a_group(cluster: Cluster, topic: str, make_stream: Any) -> None:
    reader = make_stream(topic, **{"kafka.group.id": f"group-{topic}"})
    produce(cluster, topic, 0, 5)
    reader.commit({topic: {"0": 4, "1": 0}})
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert cluster.committed(f"group-{topic}", partitions) == dict(zip(partitions, (4, 0), strict=True))


def test_stream_survives_a_restart_of_the_broker(start_ottla_broker: Any) -> None:
    broker: BrokerProcess = start_ottla_broker()
    with Cluster(broker.bootstrap) as cluster:
        cluster.create_topic("t", 1, {})
        produce(cluster, "t", 0, 5)
    source = source_of(broker, "t", startingOffsets="earliest")
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    planned = reader.partitions(start, {"t": {"0": 5}})
    broker.kill()
    again = threading.Timer(0.3, broker.launch)
    again.start()
    assert reader.latestOffset(start, ALL) == {"t": {"0": 5}}
    assert sum(len(batch) for batch in reader.read(planned[0])) == 5
    again.join()
    reader.stop()


# -- lost records -----------------------------------------------------------------------------------------------------


def delete_records(broker: BrokerProcess, topic: str, before: int) -> None:
    administer(broker, "delete_records", [ConfluentPartition(topic, 0, before)])


def recreate(broker: BrokerProcess, cluster: Cluster, topic: str, partitions: int = 1) -> None:
    delete_topic(broker, topic)
    cluster.create_topic(topic, partitions, {})


def delete_topic(broker: BrokerProcess, topic: str) -> None:
    administer(broker, "delete_topics", [topic])


def test_retention_that_overtook_the_stream_fails_it_and_names_the_offsets(
    broker: BrokerProcess, cluster: Cluster, topics: Any, make_stream: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = topics(1)
    produce(cluster, topic, 0, 10)
    delete_records(broker, topic, 6)
    start, end = {topic: {"0": 2}}, {topic: {"0": 10}}
    words = f"topic {topic}, partition 0: offset 2 was next, the partition now holds offsets from 6 up to 10: retention"
    with pytest.raises(DataLost, match=words):
        make_stream(topic).partitions(start, end)
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        table = read_all(make_stream(topic, failOnDataLoss="false"), start, end)
    assert table["offset"].to_pylist() == [6, 7, 8, 9]
    assert words in caplog.text


def test_retention_that_overtakes_a_task_is_a_loss_too(
    broker: BrokerProcess, cluster: Cluster, topics: Any, make_stream: Any
) -> None:
    topic = topics(1)
    produce(cluster, topic, 0, 10)
    start, end = {topic: {"0": 0}}, {topic: {"0": 10}}
    strict, lenient = make_stream(topic), make_stream(topic, failOnDataLoss="false")
    planned, planned_leniently = strict.partitions(start, end), lenient.partitions(start, end)
    delete_records(broker, topic, 6)
    with pytest.raises(DataLost, match="offset 0 was next, the partition now holds offsets from 6 up to 10"):
        list(strict.read(planned[0]))
    batches = list(lenient.read(planned_leniently[0]))
    assert pa.Table.from_batches(batches)["offset"].to_pylist() == [6, 7, 8, 9]


def test_deleted_topic_fails_the_stream(broker: BrokerProcess, cluster: Cluster, topics: Any, make_stream: Any) -> None:
    topic = topics(1)
    produce(cluster, topic, 0, 10)
    strict, lenient = make_stream(topic), make_stream(topic, failOnDataLoss="false")
    start = strict.initialOffset()
    assert lenient.initialOffset() == start
    delete_topic(broker, topic)
    with pytest.raises(DataLost, match=f"topic {topic}, partition 0: offset 10 was next: the topic does not exist"):
        await_offset(strict, start, {})
    end = await_offset(lenient, start, {})
    assert lenient.partitions(start, end) == []


def test_topic_created_again_is_noticed_by_its_id_before_anything_is_read(
    broker: BrokerProcess, cluster: Cluster, topics: Any, make_stream: Any
) -> None:
    topic = topics(1)
    produce(cluster, topic, 0, 10)
    strict, lenient = make_stream(topic), make_stream(topic, failOnDataLoss="false")
    start = strict.initialOffset()
    assert lenient.initialOffset() == start
    recreate(broker, cluster, topic)
    produce(cluster, topic, 0, 12)
    with pytest.raises(DataLost, match="was deleted and created again"):
        await_offset(strict, start, {})
    end = await_offset(lenient, start, {topic: {"0": 12}})
    assert read_all(lenient, start, end)["offset"].to_pylist() == list(range(12))


@pytest.mark.parametrize("options", [{}, {"maxOffsetsPerTrigger": "5"}, {"minOffsetsPerTrigger": "5"}])
def test_log_that_ends_before_the_checkpoint_is_refused_before_spark_logs_the_range(
    cluster: Cluster, topics: Any, make_stream: Any, options: dict[str, str]
) -> None:
    topic = topics(1)
    produce(cluster, topic, 0, 10)
    start, end = {topic: {"0": 50}}, {topic: {"0": 10}}
    words = "offset 50 was next, the partition now holds offsets from 0 up to 10: the log ends"
    strict = make_stream(topic, **options)
    with pytest.raises(DataLost, match=words):
        strict.latestOffset(start, strict.getDefaultReadLimit())
    # A range that is in the offset log already, written by an older version, is refused too.
    with pytest.raises(DataLost, match=words):
        make_stream(topic, **options).partitions(start, end)
    lenient = make_stream(topic, failOnDataLoss="false")
    assert lenient.latestOffset(start, ALL) == end and lenient.partitions(start, end) == []


def test_topic_that_is_not_subscribed_any_more_is_told_from_one_that_is_gone(
    cluster: Cluster, topics: Any, make_stream: Any
) -> None:
    kept, left = topics(1), topics(1)
    with pytest.raises(DataLost, match=f"topic {left}, partition 0: .* do not name it any more"):
        make_stream(kept).latestOffset({kept: {"0": 0}, left: {"0": 0}}, ALL)
