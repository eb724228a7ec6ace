"""Requests with the first batch of a transaction in a partition: the coordinator must know the partition (KIP-890).

Such a request waits until the coordinator of the transaction has answered (`transactions/transactional_batches.py`).
The connection is muted meanwhile, so that its requests keep their order.
"""

from __future__ import annotations

from ottla.broker.produce.appending import Appender
from ottla.broker.produce.request import Request
from ottla.broker.transactions.checks import RequestChecks, term_of
from ottla.broker.transactions.transactional_batches import IMPLICIT_FROM, Beginnings, TransactionalBatches, begun_by
from ottla.model.errors import KafkaError
from ottla.model.types import FrameBuffer


class BeginningRequest:
    """A request that waits for the coordinator, and what it has used of its client's quotas before."""

    __slots__ = ("beginnings", "coordinator", "frame", "request", "spent_s", "throttle_ms")

    def __init__(self, request: Request, frame: bytes, beginnings: Beginnings, coordinator: int | None) -> None:
        self.request = request
        #: a copy: the frame's buffer belongs to the next frame
        self.frame = frame
        #: the partitions in which the request begins a transaction
        self.beginnings = beginnings
        #: the broker that coordinates the transaction; None for this broker
        self.coordinator = coordinator
        self.throttle_ms = 0
        #: time for which the request was handled; None if no quota counts it
        self.spent_s: float | None = None


class FirstBatches:
    """Finds the requests that begin a transaction in a partition, and adds their partitions to the transaction."""

    def __init__(self, transactional: TransactionalBatches, appender: Appender) -> None:
        self._transactional = transactional
        self._appender = appender

    def find(self, request: Request, buffer: FrameBuffer, frame: memoryview) -> BeginningRequest | None:
        """Return a transactional request if it must wait for the coordinator, else None. ``frame`` is in ``buffer``."""
        transactional_id = request.parsed.transactional_id
        assert transactional_id is not None
        coordinator = self._transactional.other_coordinator(transactional_id)
        if request.version < IMPLICIT_FROM and coordinator is None:
            return None
        beginnings = self._beginnings(request, buffer)
        return BeginningRequest(request, bytes(frame), beginnings, coordinator) if beginnings else None

    def _beginnings(self, request: Request, buffer: FrameBuffer) -> Beginnings:
        """Return the partitions in which batches of this request begin a transaction."""
        beginnings: Beginnings = {}
        for topic, partitions in request.parsed.topics:
            for data in partitions:
                try:
                    partition = self._appender.find(request, topic, data, buffer, quiet=True)
                except KafkaError:
                    continue
                producer = begun_by(partition, buffer, data.start, data.end)
                if producer is not None:
                    beginnings.setdefault(producer, {})[partition.name] = term_of(partition)
        return beginnings

    async def add(self, beginning: BeginningRequest, checks: RequestChecks) -> None:
        """Add the partitions to the transaction, and wait until the coordinator has stored that.

        The append finds errors of the coordinator in ``checks``.
        """
        request = beginning.request
        assert request.parsed.transactional_id is not None
        await self._transactional.add(
            checks, beginning.coordinator, request.parsed.transactional_id, beginning.beginnings, request.version
        )
