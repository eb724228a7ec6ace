"""Read ranges of offsets: Fetch replies become Arrow batches with the wanted columns. No Spark.

A range has gaps (compaction, markers, aborted transactions): reading ends at an offset, not after a number of records.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from ottla.client.cluster import Cluster, Isolation
from ottla.client.errors import UNKNOWN_TOPIC_CODES, BrokerError, ClientError, OffsetOutOfRange, TopicReplaced
from ottla.client.fetching import PartitionReader
from ottla.model.errors import OttlaError
from ottla.model.types import TopicPartition
from ottla.spark.clusters import lend_cluster
from ottla.spark.columns import TYPES
from ottla.spark.offsets import Cause, DataLoss, DataLost, OffsetRange
from ottla.spark.options import ReadOptions, nearest
from ottla.wire.fetch import TOPIC_IDS_FROM
from ottla.wire.messages.fetch import FetchRequest

log = logging.getLogger("ottla.spark")

#: the same for all rows of a range
_CONSTANT: Final = ("topic", "partition")

#: for fewer rows or bytes, sending a task to a Python worker takes longer than reading them
AHEAD_ROWS_MAX: Final = 10_000
AHEAD_BYTES_MAX: Final = 4 << 20


#: converts rows before Spark gets them
Convert = Callable[[pa.RecordBatch], pa.RecordBatch]


class ColumnsRefused(OttlaError):
    """A schema that does not fit; the text names the columns of a topic."""


class Task(NamedTuple):
    """The range of one task."""

    range: OffsetRange
    #: of the topic when the batch was planned; all zero from brokers without topic ids
    topic_id: bytes


def check_columns(names: Sequence[str]) -> None:
    """Raise ColumnsRefused for a column that a topic does not have."""
    for name in names:
        if name not in TYPES:
            raise ColumnsRefused(
                f"a topic has no column {name!r}{nearest(name, TYPES)}; it has {', '.join(TYPES)}. "
                "Take values apart after reading, for example with from_json"
            )


def read_tasks(
    options: ReadOptions, tasks: Iterable[Task], columns: Sequence[str], convert: Convert | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some ranges, with these columns in this order, converted."""
    with lend_cluster(options.connection, options.poll_timeout_s) as cluster:
        for task in tasks:
            batches = _read_task(cluster, options, task, columns)
            yield from batches if convert is None else map(convert, batches)


def read_ahead(
    cluster: Cluster,
    options: ReadOptions,
    tasks: Sequence[Task],
    columns: Sequence[str],
    convert: Convert | None = None,
) -> list[pa.RecordBatch] | None:
    """Return the same rows if there are few, in the process that plans; None if tasks should read them.

    Tasks retry for longer, so None is also the result after an error of the client.
    """
    if sum(task.range.size for task in tasks) > AHEAD_ROWS_MAX:
        return None
    rows: list[pa.RecordBatch] = []
    size_bytes = 0
    try:
        for task in tasks:
            for batch in _read_task(cluster, options, task, columns):
                rows.append(batch if convert is None else convert(batch))
                size_bytes += batch.nbytes
                if size_bytes > AHEAD_BYTES_MAX:
                    return None
    except ClientError as error:
        log.info("a small batch is left to tasks: %s", error)
        return None
    return rows


def _read_task(cluster: Cluster, options: ReadOptions, task: Task, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    range_ = task.range
    while range_.size > 0:
        try:
            _check_topic(cluster, task)
            for batch, position in _read_range(cluster, options, range_, columns):
                range_ = range_._replace(start=position)
                if len(batch):
                    yield batch
            return
        except (TopicReplaced, BrokerError) as error:
            loss, resume = _loss_of(error, range_)
            if loss is None:
                raise
            if options.fail_on_data_loss:
                raise DataLost([loss]) from error
            log.warning("failOnDataLoss is false, so reading continues without them: %s", loss)
            range_ = range_._replace(start=resume)


def _check_topic(cluster: Cluster, task: Task) -> None:
    """Raise TopicReplaced if the topic was created again since the batch was planned."""
    if _is_checked_by_fetch(cluster, task):
        return
    info = cluster.topics([task.range.topic]).get(task.range.topic)
    if info is not None and any(task.topic_id) and any(info.topic_id) and info.topic_id != task.topic_id:
        raise TopicReplaced(task.range.topic)


def _is_checked_by_fetch(cluster: Cluster, task: Task) -> bool:
    """Return whether a Fetch names the topic by the id that was planned, so that brokers refuse another topic.

    The metadata of a topic with 1,000 partitions takes 5 ms to read. A worker has it from its last task.
    """
    known = cluster.known_topic(task.range.topic)
    if known is None or not any(task.topic_id) or known.topic_id != task.topic_id:
        return False
    deadline = time.monotonic() + cluster.timeout_s
    try:
        leader = cluster.leader(task.range.topic_partition, deadline)
        return cluster.version_at(leader.node, FetchRequest.API_KEY, deadline) >= TOPIC_IDS_FROM
    except ClientError:
        # The caller asks for the topic again, and retries.
        return False


def _read_range(
    cluster: Cluster, options: ReadOptions, range_: OffsetRange, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield rows, and the position after them."""
    # Processes that only plan start faster without the decoder.
    from ottla.spark.decode import AbortedTransactions, decode_chunks

    isolation = Isolation.READ_COMMITTED if options.read_committed else Isolation.READ_UNCOMMITTED
    reader = PartitionReader(
        cluster, range_.topic_partition, range_.start, range_.end,
        isolation=isolation, fetch_bytes=options.fetch_bytes, wait_ms=options.fetch_wait_ms,
    )  # fmt: skip
    aborted = AbortedTransactions() if options.read_committed else None
    # A query of constant columns only has one row for each record, too, so one column is decoded to count them.
    decoded = [name for name in columns if name not in _CONSTANT] or ["offset"]
    constants = _Constants(range_.topic_partition)
    schema = pa.schema([(name, TYPES[name]) for name in columns])
    position = range_.start
    # Returns the connection also after an early end or an error: the cluster of a stream lives as long as its query.
    with reader:
        for fetched in reader:
            if aborted is not None:
                aborted.feed(fetched.aborted)
            chunks = decode_chunks(fetched.data, start=position, end=range_.end, aborted=aborted, columns=decoded)
            for rows, position in chunks:
                yield constants.added_to(rows, schema), position


class _Constants:
    """The columns topic and partition, created once for the largest batch and sliced for the others."""

    def __init__(self, tp: TopicPartition) -> None:
        self._tp = tp
        self._rows = -1
        self._columns: dict[str, pa.Array] = {}

    def added_to(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        count = len(rows)
        if count > self._rows:
            self._rows = count
            self._columns = {
                "topic": pa.repeat(pa.scalar(self._tp.topic, pa.string()), count),
                "partition": pa.repeat(pa.scalar(self._tp.partition, pa.int32()), count),
            }
        arrays = [
            self._columns[name].slice(0, count) if name in _CONSTANT else rows.column(name) for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _loss_of(error: OttlaError, range_: OffsetRange) -> tuple[DataLoss | None, int]:
    """Return the loss that an error means, None if it means no loss; and the offset where reading could continue."""
    tp = range_.topic_partition
    if isinstance(error, TopicReplaced):
        return DataLoss(tp, Cause.RECREATED, range_.start), range_.end
    if isinstance(error, OffsetOutOfRange):
        before_log = error.position < error.log_start
        cause = Cause.RETENTION if before_log else Cause.TRUNCATED
        loss = DataLoss(tp, cause, error.position, error.log_start, error.log_end)
        return loss, error.log_start if before_log else range_.end
    if isinstance(error, BrokerError) and error.code in UNKNOWN_TOPIC_CODES:
        return DataLoss(tp, Cause.TOPIC_DELETED, range_.start), range_.end
    return None, range_.end
