"""Sends transaction markers to the brokers that lead their partitions (WriteTxnMarkers).

    marker ──► queue of the leader's broker ──► one request at a time ──► answer per partition ──► done, or retry

While a request is in flight, further markers for the same broker wait and share the next request. A marker whose
request fails is given back: the writer looks its leader up again. It is retried until it is durable, the partition is
deleted, or the transaction has a newer coordinator or producer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from itertools import groupby
from typing import NamedTuple, Protocol

from ottla.broker.transactions.records import Delivery
from ottla.env.tasks import Tasks
from ottla.model.errors import ErrorCode, OttlaError
from ottla.model.types import TopicPartition
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = logging.getLogger(__name__)

#: markers in one request
REQUEST_MARKERS_MAX = 1000
#: a newer coordinator has ended the transaction, or a newer producer owns the producer id: no marker is needed
OBSOLETE = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)


class Progress(Protocol):
    """The partitions of a delivery whose markers are not durable yet."""

    @property
    def delivery(self) -> Delivery: ...

    @property
    def is_awaited(self) -> bool: ...

    def remove(self, name: TopicPartition) -> None: ...


class QueuedMarker(NamedTuple):
    """The marker of one partition."""

    progress: Progress
    name: TopicPartition


class RemoteMarkers:
    """The markers for partitions that other brokers lead."""

    def __init__(
        self,
        *,
        leader_of: Callable[[TopicPartition], int | None],
        send: Callable[[int, WriteTxnMarkersRequest], Awaitable[WriteTxnMarkersResponse]],
    ) -> None:
        #: returns the live broker that leads a partition; None if there is none, or if it is this broker
        self._leader_of = leader_of
        #: sends a request to a broker and returns the reply. Raises OttlaError if the broker cannot be reached
        self._send = send
        self._tasks = Tasks()
        #: broker id -> its markers; a broker has an entry while a task sends to it
        self._queues: dict[int, deque[QueuedMarker]] = {}
        #: number of markers that other brokers have written
        self.written = 0

    def send(self, progress: Progress, name: TopicPartition, retry: Callable[[QueuedMarker], None]) -> bool:
        """Queue a marker for the broker that leads its partition. Return False if no other live broker leads it.

        ``retry`` is called if the marker was not written.
        """
        broker_id = self._leader_of(name)
        if broker_id is None:
            return False
        marker = QueuedMarker(progress, name)
        if broker_id in self._queues:
            self._queues[broker_id].append(marker)
        else:
            self._queues[broker_id] = deque([marker])
            self._tasks.start(self._send_queue(broker_id, retry), f"markers for broker {broker_id}")
        return True

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _send_queue(self, broker_id: int, retry: Callable[[QueuedMarker], None]) -> None:
        """Send the markers of a broker until its queue is empty."""
        queue = self._queues[broker_id]
        unanswered: list[QueuedMarker] = []
        try:
            await asyncio.sleep(0)  # markers of the same turn share the first request
            while queue:
                taken = [queue.popleft() for _ in range(min(len(queue), REQUEST_MARKERS_MAX))]
                # A marker of an earlier load of the shard could end a later transaction.
                unanswered = [each for each in taken if each.progress.is_awaited]
                if unanswered:
                    reply = await self._send(broker_id, markers_request(unanswered))
                    markers, unanswered = unanswered, []
                    self._apply(markers, reply, retry)
        except OttlaError as error:
            log.info("markers were not sent broker=%d markers=%d error=%s", broker_id, len(unanswered), error)
        finally:
            # After any failure no marker is forgotten.
            del self._queues[broker_id]
            for each in (*unanswered, *queue):
                retry(each)

    def _apply(
        self, markers: Iterable[QueuedMarker], reply: WriteTxnMarkersResponse, retry: Callable[[QueuedMarker], None]
    ) -> None:
        codes = {
            (marker.producer_id, TopicPartition(topic.name, row.partition_index)): row.error_code
            for marker in reply.markers
            for topic in marker.topics
            for row in topic.partitions
        }
        for each in markers:
            # UNKNOWN_TOPIC_OR_PARTITION is retried as well: only this broker's own view decides that a partition is
            # deleted, because the other broker may not know a new topic yet.
            code = codes.get((each.progress.delivery.producer.producer_id, each.name), ErrorCode.UNKNOWN_SERVER_ERROR)
            if code and code not in OBSOLETE:
                retry(each)
                continue
            if code:
                log.info("marker is not needed any more partition=%s error=%d", each.name, code)
            self.written += not code
            each.progress.remove(each.name)


def markers_request(markers: Iterable[QueuedMarker]) -> WriteTxnMarkersRequest:
    """Return one request for these markers, with one entry per transaction."""
    by_delivery: dict[int, tuple[Delivery, list[TopicPartition]]] = {}
    for each in markers:
        delivery = each.progress.delivery
        by_delivery.setdefault(id(delivery), (delivery, []))[1].append(each.name)
    return WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=delivery.producer.producer_id, producer_epoch=delivery.producer.epoch,
                transaction_result=delivery.commit, coordinator_epoch=delivery.coordinator_epoch,
                transaction_version=delivery.transaction_version,
                topics=[
                    WritableTxnMarkerTopic(name=topic, partition_indexes=[name.partition for name in names])
                    for topic, names in groupby(sorted(names), lambda name: name.topic)
                ],
            )
            for delivery, names in by_delivery.values()
        ]
    )  # fmt: skip
