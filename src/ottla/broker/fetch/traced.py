"""Fetch with traces: a reply that carries traced batches is a span of their traces. Only with ``traces.endpoint``."""

from __future__ import annotations

from ottla.broker.fetch.api import FetchApi
from ottla.broker.fetch.counted import CountedFetch
from ottla.broker.fetch.rows import FetchRow
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.record_traces import TracedBatch
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection
from ottla.wire.frame import read_client_id


def handle_traced(
    api: FetchApi,
    connection: Connection,
    buffer: FrameBuffer,
    view: memoryview,
    start: int,
    end: int,
    version: int,
    correlation_id: int,
) -> None:
    """Handle the frame ``buffer[start:end]``, and note who sent it."""
    connection.client_id = read_client_id(buffer, start + 8, end)
    api.handle(connection, buffer, view, start, end, version, correlation_id)


class TracedFetch(CountedFetch):
    """A fetch that notes which traced batches its reply carries. Without quotas it counts nothing."""

    __slots__ = ()

    def answer(self, reads: list[FetchRow]) -> None:
        # The regions change while they are sent.
        found, sent_bytes = self._find_traced(reads), self._api.bytes_out
        super().answer(reads)
        traces = self._api.traces
        if found and traces is not None and self._api.bytes_out > sent_bytes:
            slot = self._reply.slot
            traces.fetched(found, slot.started, client_id=slot.connection.client_id, follower=self._request.replica_id)

    def _find_traced(self, reads: list[FetchRow]) -> list[tuple[Partition, TracedBatch]]:
        traces = self._api.traces
        if traces is None:
            return []
        found: list[tuple[Partition, TracedBatch]] = []
        replicas = traces.replicas
        known = replicas.topics_by_id if self._reply.shape.topic_ids else replicas.topics
        for read in reads:
            if read.region is None:
                continue
            wanted = read.wanted
            partition = known.get(wanted.topic, {}).get(wanted.number)
            if partition is not None:
                limit = partition.log.written_end_offset
                for batch in traces.carried(partition, wanted.request.fetch_offset, read.region, limit):
                    found.append((partition, batch))
        return found
