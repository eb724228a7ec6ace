"""Rows of a DataFrame as record batches, each for one partition.

The columns are those of Spark's Kafka connector: ``value`` (required), ``key``, ``topic``, ``partition``, ``headers``;
and ``timestamp``. Others are ignored. A row without a ``partition`` goes to the one that Java's client chooses for its
key; without a key, to one that changes from call to call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.model.types import TopicPartition
from ottla.spark.columns import WRITTEN_TYPES, RowsRefused
from ottla.spark.encode import encode, murmur2_partitions

#: the largest size of the buffered rows of all partitions of a task
BUFFERED_BYTES_MAX = 64 << 20

Emit = Callable[[TopicPartition, bytes, int], None]


@dataclass(slots=True)
class _Waiting:
    """Rows of one partition that wait until they fill a batch."""

    slices: list[pa.RecordBatch] = field(default_factory=list)
    size_bytes: int = 0


class Outgoing:
    """Encodes rows and passes the batches to ``emit``. Rows of one partition keep their order."""

    def __init__(
        self,
        *,
        topic: str | None,
        partition_count: Callable[[str], int],
        codec: int,
        batch_bytes_max: int,
        now_ms: Callable[[], int],
        emit: Emit,
        sticky: int = 0,
    ) -> None:
        self._topic = topic
        self._partition_count = partition_count
        self._codec = codec
        self._batch_bytes_max = batch_bytes_max
        self._now_ms = now_ms
        self._emit = emit
        #: where rows without a key go, counted over all partitions
        self._sticky = sticky
        self._waiting: dict[TopicPartition, _Waiting] = {}
        self._waiting_bytes = 0

    def write(self, rows: Iterable[pa.RecordBatch]) -> None:
        """Write all rows of a task."""
        for batch in rows:
            if batch.num_rows:
                self._add(batch)
        self.flush()

    def flush(self) -> None:
        """Emit all buffered rows."""
        for partition in list(self._waiting):
            self._emit_partition(partition)

    def _add(self, batch: pa.RecordBatch) -> None:
        for topic, rows in self._by_topic(batch):
            partitions = self._partitions(topic, rows)
            first = int(partitions[0])
            if (partitions == first).all():
                self._keep(TopicPartition(topic, first), rows)
                continue
            # A stable sort keeps the order of rows within each partition.
            order = np.argsort(partitions, kind="stable")
            rows, partitions = rows.take(pa.array(order)), partitions[order]
            starts = np.flatnonzero(np.diff(partitions, prepend=-1))
            for start, end in zip(starts, [*starts[1:], len(partitions)], strict=True):
                self._keep(TopicPartition(topic, int(partitions[start])), rows.slice(start, end - start))
        if self._waiting_bytes > BUFFERED_BYTES_MAX:
            self.flush()

    def _by_topic(self, batch: pa.RecordBatch) -> list[tuple[str, pa.RecordBatch]]:
        names = [name for name in WRITTEN_TYPES if name in batch.schema.names and name != "topic"]
        rows = batch.select(names)
        if self._topic is not None:
            return [(self._topic, rows)]
        topics = batch.column("topic")
        if topics.null_count:
            raise RowsRefused("null topic present in the data. Fill the column topic, or set the option topic")
        found = pc.unique(topics).to_pylist()
        if len(found) == 1:
            return [(found[0], rows)]
        return [(topic, rows.filter(pc.equal(topics, topic))) for topic in found]

    def _partitions(self, topic: str, rows: pa.RecordBatch) -> npt.NDArray[np.int32]:
        # All rows of a call without a key get one partition, so that batches fill up; the next call uses another one.
        self._sticky += 1
        keys = _column(rows, "key")
        return murmur2_partitions(
            keys if keys is not None else pa.nulls(len(rows), pa.binary()),
            self._partition_count(topic),
            explicit=_column(rows, "partition"),
            sticky=self._sticky,
        )

    def _keep(self, partition: TopicPartition, rows: pa.RecordBatch) -> None:
        waiting = self._waiting.setdefault(partition, _Waiting())
        size_bytes = rows.nbytes
        waiting.slices.append(rows)
        waiting.size_bytes += size_bytes
        self._waiting_bytes += size_bytes
        if waiting.size_bytes >= self._batch_bytes_max:
            self._emit_partition(partition)

    def _emit_partition(self, partition: TopicPartition) -> None:
        waiting = self._waiting.pop(partition)
        self._waiting_bytes -= waiting.size_bytes
        rows = pa.concat_batches(waiting.slices) if len(waiting.slices) > 1 else waiting.slices[0]
        encoded = encode(
            _column(rows, "key"),
            _column(rows, "value"),
            _column(rows, "timestamp"),
            _column(rows, "headers"),
            codec=self._codec,
            batch_bytes_max=self._batch_bytes_max,
            now_ms=self._now_ms(),
        )
        for batch in encoded:
            self._emit(partition, batch.data, batch.records)


def _column(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    return rows.column(name) if name in rows.schema.names else None
