"""Reads the batches of a topic from a cluster, each with what has become of its transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.fetching import Fetched, PartitionReader
from ottla.edge.console.records.view import ABORTED, COMMITTED, OPEN, PLAIN
from ottla.model.batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from ottla.model.types import TopicPartition

#: bytes of one request: a page of rows needs less than a search
FETCH_BYTES_FIRST: Final = 256 << 10
FETCH_BYTES: Final = 2 << 20


class LogRange(NamedTuple):
    """The offsets of a partition."""

    start: int
    #: the high watermark: the end of the records that are on all in-sync replicas
    end: int
    #: the end of the records of ended transactions
    stable: int


class ReadBatch(NamedTuple):
    """A batch as it is on disk."""

    header: BatchHeader
    data: memoryview
    #: one of the states of `view.py`
    state: str

    @property
    def is_marker(self) -> bool:
        return bool(self.header.attributes & CONTROL)


class RecordSource(Protocol):
    """Where a search reads."""

    def ranges(self, partitions: Iterable[int]) -> Mapping[int, LogRange]:
        """Return the offsets of these partitions."""

    def batches(self, partition: int, start: int, end: int, *, stable: int, fetch_bytes: int) -> Iterator[ReadBatch]:
        """Yield the batches with offsets from ``start`` to ``end``; the first and the last may go beyond.

        Transactions that end behind ``stable`` count as open. Raise OffsetOutOfRange if records from ``start`` on were
        deleted meanwhile.
        """


@dataclass(frozen=True, slots=True)
class ClusterSource:
    """A topic of a cluster. Its methods block."""

    cluster: Cluster
    topic: str

    def ranges(self, partitions: Iterable[int]) -> Mapping[int, LogRange]:
        names = [TopicPartition(self.topic, number) for number in partitions]
        # The start first: a log only grows at its end, so that start <= stable <= end hold if nothing is deleted.
        starts, stables, ends = (
            self.cluster.list_offsets(dict.fromkeys(names, moment), isolation=isolation)
            for moment, isolation in (
                (EARLIEST, Isolation.READ_UNCOMMITTED),
                (LATEST, Isolation.READ_COMMITTED),
                (LATEST, Isolation.READ_UNCOMMITTED),
            )
        )
        return {
            name.partition: LogRange(
                starts[name].offset, ends[name].offset, min(stables[name].offset, ends[name].offset)
            )
            for name in names
        }

    def batches(self, partition: int, start: int, end: int, *, stable: int, fetch_bytes: int) -> Iterator[ReadBatch]:
        name = TopicPartition(self.topic, partition)
        spans = (
            (start, min(end, stable), Isolation.READ_COMMITTED),
            # The broker does not say what becomes of transactions from here on.
            (max(start, stable), end, Isolation.READ_UNCOMMITTED),
        )
        for first, last, isolation in spans:
            if first >= last:
                continue
            aborted: dict[int, int] = {}
            with PartitionReader(
                self.cluster, name, first, last, isolation=isolation, fetch_bytes=fetch_bytes
            ) as reader:
                for fetched in reader:
                    for batch in classified(fetched, aborted, is_stable=isolation is Isolation.READ_COMMITTED):
                        if first <= batch.header.last_offset and batch.header.base_offset < last:
                            yield batch


def classified(fetched: Fetched, aborted: dict[int, int], *, is_stable: bool) -> Iterator[ReadBatch]:
    """Yield each batch of a reply, markers among them, with the state of its transaction.

    ``aborted`` has the aborted transactions whose markers have not been read yet: producer id -> first offset. Pass
    the same dictionary with the following reply.
    """
    starts = sorted(fetched.aborted, key=lambda row: row.first_offset, reverse=True)
    data, position = fetched.data, 0
    while position < len(data):
        header = read_header(data, position)
        batch = data[position : position + header.size_bytes]
        position += header.size_bytes
        while starts and starts[-1].first_offset <= header.base_offset:
            row = starts.pop()
            aborted[row.producer_id] = row.first_offset
        if header.attributes & CONTROL:
            # The marker ends the transaction, so later batches of this producer belong to its next one.
            aborted.pop(header.producer_id, None)
            yield ReadBatch(header, batch, PLAIN)
        elif not header.attributes & TRANSACTIONAL:
            yield ReadBatch(header, batch, PLAIN)
        else:
            ended = ABORTED if header.producer_id in aborted else COMMITTED
            yield ReadBatch(header, batch, ended if is_stable else OPEN)
