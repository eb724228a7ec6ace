"""The runtime of the transaction coordinator: the shards of ``__transaction_state``, and the transaction markers.

    EndTxn ──► Prepare is durable ──► send the reply, append a marker to each partition ──► all durable ──► Complete
                                                         └── the append fails: retry after ``_RETRY_S``

A marker ends the transaction for the consumers of its partition. The append of each marker is retried until the marker
is durable. After a restart, the shard starts a delivery for each transaction whose last record is a Prepare.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ottla.broker.coordinators.hosted_shard import HostedShard
from ottla.broker.coordinators.log_errors import IN_LOG
from ottla.broker.coordinators.outcome import Outcome
from ottla.broker.coordinators.runtime import Operation, ShardRuntime
from ottla.broker.partitions.group_commit import AwaitedWrite
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.transactions.records import (
    Delivery,
    Ending,
    TransactionOutcome,
    TransactionRecord,
    decode_transaction,
    encode_transaction,
)
from ottla.broker.transactions.remote_markers import OBSOLETE, Progress, QueuedMarker, RemoteMarkers
from ottla.broker.transactions.shard import TransactionShard
from ottla.env.clock import Clock
from ottla.env.timers import Expiring, TimerWheel
from ottla.model.errors import ErrorCode, KafkaError, NotLeaderOrFollower, UnknownTopicOrPartition
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

TRANSACTION_TOPIC = "__transaction_state"
#: delay before the append of a marker is retried
_RETRY_S = 0.1
#: how long a request waits for the markers of the previous transaction before the reply is CONCURRENT_TRANSACTIONS
_MARKERS_WAIT_S = 1.0
#: a marker that is not durable after this time counts as failed
_MARKER_TIMEOUT_S = 30.0
#: the same for the markers of a WriteTxnMarkers request: shorter, because further markers of its sender wait behind it
REQUEST_TIMEOUT_S = 4.0


class TransactionRuntime(ShardRuntime[TransactionShard]):
    """All transactional ids that this broker coordinates."""

    topic = TRANSACTION_TOPIC

    def __init__(self, *, markers: MarkerWriter, **parts: Any) -> None:
        super().__init__(**parts)
        self._markers = markers
        #: requests that wait for the markers of a transactional id, in the order in which they began to wait
        self._marker_waiters: dict[str, dict[asyncio.Future[None], None]] = {}
        #: number of transactions whose commit or abort became durable on this broker
        self.ended = dict.fromkeys(Ending, 0)

    def make_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(self.context, partition.leader_epoch)

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None]:
        return encode_transaction(record)

    def decode(self, key: bytes, value: bytes | None) -> TransactionRecord | None:
        return decode_transaction(key, value)

    @property
    def partitions_at_creation(self) -> int:
        return self.context.settings.transaction_state_log_num_partitions

    def requires_on_durable(self, outcome: Outcome[Any]) -> bool:
        return isinstance(outcome, TransactionOutcome) and bool(outcome.deliveries)

    def on_durable(self, outcome: Outcome[Any]) -> None:
        if isinstance(outcome, TransactionOutcome):
            if outcome.ending is not None:
                self.ended[outcome.ending] += 1
            for delivery in outcome.deliveries:
                # Send the reply first, because only the client's next transaction waits for the markers.
                self._loop.call_soon(self._markers.deliver, delivery, self._is_awaited, self._delivered)

    def _is_awaited(self, delivery: Delivery) -> bool:
        """Return whether the shard still waits for this delivery. A shard that is loaded again starts a new one.

        Between the change of the leader epoch and ``serve``, which keeps the shard if the epoch is the next one, the
        shard refuses requests, but it still waits.
        """
        self.context.check_lease()
        hosted = self._shards.get(self.partition_for(delivery.transactional_id))
        return hosted is not None and hosted.loaded and hosted.shard.awaits_delivery(delivery)

    def _delivered(self, delivery: Delivery) -> None:
        """Append the Complete record, because all markers of the delivery are durable."""
        self._run_unasked(delivery.transactional_id, lambda shard, now: shard.delivered(delivery, now))
        if self._is_awaited(delivery):
            # The append failed, for example because the disk is full. No client repeats it.
            self._wheel.add(_CompleteRetry(self._delivered, delivery), _RETRY_S)

    # -- requests that wait for markers -----------------------------------------------------------------------------

    def has_outstanding_markers(self, transactional_id: str) -> bool:
        """Return whether the previous transaction of this id is decided but not every marker of it is durable."""
        try:
            return self.shard(transactional_id).has_outstanding_markers(transactional_id)
        except KafkaError:
            return False

    async def wait_for_markers(self, transactional_id: str) -> None:
        """Return when this id has no outstanding markers, or after ``_MARKERS_WAIT_S``. May return immediately.

        The check and the registration run without a suspension between them, so that a Complete cannot be applied
        unnoticed in between. A waiter that was woken checks again, because another request may have ended the next
        transaction of the same id in the meantime. Kafka answers CONCURRENT_TRANSACTIONS instead of waiting; clients
        then back off for many times as long as the markers take.
        """
        deadline = self._loop.time() + _MARKERS_WAIT_S
        while self.has_outstanding_markers(transactional_id):
            left_s = deadline - self._loop.time()
            if left_s <= 0:
                return
            waiter = self._loop.create_future()
            waiters = self._marker_waiters.setdefault(transactional_id, {})
            waiters[waiter] = None
            try:
                await asyncio.wait([waiter], timeout=left_s)
            finally:
                waiters.pop(waiter, None)
                if not waiters and self._marker_waiters.get(transactional_id) is waiters:
                    del self._marker_waiters[transactional_id]

    def on_appended(self, outcome: Outcome[Any]) -> None:
        if self._marker_waiters:
            for record in outcome.records:
                self._wake_marker_waiters(record.key.transactional_id)

    def _unload(self, hosted: HostedShard[TransactionShard]) -> None:
        super()._unload(hosted)
        for transactional_id in list(self._marker_waiters):
            self._wake_marker_waiters(transactional_id)

    def _wake_marker_waiters(self, transactional_id: str) -> None:
        """Wake the waiters of this id if it has no outstanding markers, or if its shard is no longer loaded."""
        if transactional_id in self._marker_waiters and not self.has_outstanding_markers(transactional_id):
            for waiter in self._marker_waiters.pop(transactional_id):
                if not waiter.done():
                    waiter.set_result(None)

    def expire(self) -> None:
        """Abort the transactions that have timed out, and delete the transactional ids that have expired."""
        now = self.now()
        for name, outcome in [
            (name, outcome) for shard in list(self.shards()) for name, outcome in shard.expire(now)
        ]:  # fmt: skip
            self._run_unasked(name, lambda _shard, _now, decided=outcome: decided)  # type: ignore[misc]

    def _run_unasked(self, transactional_id: str, operate: Operation[TransactionShard, None]) -> None:
        """Run an operation that no client has asked for, unless this broker no longer coordinates the id."""
        with suppress(KafkaError):
            self._run(self._host_of(transactional_id), [transactional_id], operate)


class MarkerWriter:
    """Appends markers to partitions and retries until they are durable.

    Markers for partitions that other brokers lead are sent to them.
    """

    def __init__(
        self,
        *,
        replicas: ReplicaManager,
        clock: Clock,
        wheel: TimerWheel,
        begin_turn: Callable[[], None],
        on_written: Callable[[Partition, int, bool, int], None],
        on_lost: Callable[[Partition], None],
        remote: RemoteMarkers | None = None,
    ) -> None:
        self._replicas = replicas
        #: None on a broker without peers
        self._remote = remote
        self._clock = clock
        self._wheel = wheel
        self._begin_turn = begin_turn
        #: called for each appended marker with the partition, producer id, whether it commits, and the next offset
        self._on_written = on_written
        #: called with the partition if the write of an appended marker failed, so that its log does not have the marker
        self._on_lost = on_lost
        #: number of appended markers, including retries
        self.written = 0

    def deliver(
        self, delivery: Delivery, is_awaited: Callable[[Delivery], bool], done: Callable[[Delivery], None]
    ) -> None:
        """Append all markers of a delivery, and call ``done`` when all are durable.

        A marker is appended only while ``is_awaited`` returns True.
        """
        progress = _Progress(delivery, is_awaited, done)
        for name in delivery.partitions:
            self.write(progress, name)
        progress.call_done_if_complete()

    def write(self, progress: Progress, name: TopicPartition) -> None:
        """Append the marker of one partition, and retry later if that fails.

        A deleted partition needs no marker. A marker for a partition that another broker leads is sent to it.
        """
        if not progress.is_awaited:
            return
        delivery = progress.delivery
        try:
            partition = self._replicas.leader_of(name.topic.encode(), name.partition)
            end = self._append(partition, delivery)
        except UnknownTopicOrPartition:
            progress.remove(name)
            return
        except NotLeaderOrFollower:
            if self._remote is None or not self._remote.send(progress, name, self._retry_remote):
                self.retry_later(progress, name)
            return
        except KafkaError as error:
            if error.code in OBSOLETE:
                log.info("marker is not needed any more partition=%s error=%s", name, error)
                progress.remove(name)
            else:
                self.retry_later(progress, name)
            return
        waiter = _MarkerWaiter(self, progress, partition, self._clock.monotonic() + _MARKER_TIMEOUT_S)
        self._replicas.commits.wait(partition, partition.until(acks=-1), end, waiter)

    async def write_once(self, delivery: Delivery) -> int:
        """Append one marker for a WriteTxnMarkers request, without a retry. Return the error code."""
        (name,) = delivery.partitions
        try:
            partition = self._replicas.leader_of(name.topic.encode(), name.partition)
            if delivery.producer.producer_id < 0:
                return ErrorCode.UNKNOWN_SERVER_ERROR  # Kafka answers the same
            end = self._append(partition, delivery)
        except KafkaError as error:
            return error.code
        waiter = AwaitedWrite(asyncio.get_running_loop(), self._clock.monotonic() + REQUEST_TIMEOUT_S)
        self._replicas.commits.wait(partition, partition.until(acks=-1), end, waiter)
        code = await waiter.code
        self.note_failure(partition, code)
        return code

    def _append(self, partition: Partition, delivery: Delivery) -> int:
        """Append a marker and return the offset after it. Raise KafkaError if the append failed."""
        # Without enough replicas it would not become durable, and each retry would append another one.
        partition.check_enough_replicas()
        self._begin_turn()
        producer = delivery.producer
        _, end = self._replicas.append_marker(
            partition, producer.producer_id, producer.epoch, commit=delivery.commit,
            coordinator_epoch=delivery.coordinator_epoch, now_ms=self._clock.wall_ms(),
            transaction_version=delivery.transaction_version,
        )  # fmt: skip
        self.written += 1
        self._on_written(partition, producer.producer_id, delivery.commit, end)
        return end

    def note_failure(self, partition: Partition, error_code: int) -> None:
        """Report a marker that its log has lost. After the errors IN_LOG the log still has it."""
        if error_code and error_code not in IN_LOG:
            self._on_lost(partition)

    def retry_later(self, progress: Progress, name: TopicPartition) -> None:
        """Append or send the marker of one partition again after ``_RETRY_S``."""
        self._wheel.add(_MarkerRetry(self, progress, name), _RETRY_S)

    def _retry_remote(self, marker: QueuedMarker) -> None:
        self.retry_later(marker.progress, marker.name)

    async def stop(self) -> None:
        """Send no further marker to other brokers."""
        if self._remote is not None:
            await self._remote.stop()


class _Progress:
    """The partitions of a delivery whose markers are not durable yet."""

    __slots__ = ("_done", "_is_awaited", "_is_done", "_remaining", "delivery")

    def __init__(
        self, delivery: Delivery, is_awaited: Callable[[Delivery], bool], done: Callable[[Delivery], None]
    ) -> None:
        self._is_awaited = is_awaited
        self._done = done
        self._remaining = dict.fromkeys(delivery.partitions)
        self._is_done = False
        self.delivery = delivery

    @property
    def is_awaited(self) -> bool:
        return self._is_awaited(self.delivery)

    def remove(self, name: TopicPartition) -> None:
        """Remove a partition whose marker is durable or not needed."""
        self._remaining.pop(name, None)
        self.call_done_if_complete()

    def call_done_if_complete(self) -> None:
        """Call ``done`` once, when no partition is left."""
        if not self._remaining and not self._is_done:
            self._is_done = True
            self._done(self.delivery)


class _MarkerWaiter:
    """Waits until a marker of a delivery is durable; retries if the wait fails."""

    __slots__ = ("_partition", "_progress", "_writer", "deadline")

    def __init__(self, writer: MarkerWriter, progress: Progress, partition: Partition, deadline: float) -> None:
        self._writer = writer
        self._progress = progress
        self._partition = partition
        self.deadline = deadline

    def on_write_complete(self, error_code: int) -> None:
        if error_code:
            self._writer.note_failure(self._partition, error_code)
            self._writer.retry_later(self._progress, self._partition.name)
        else:
            self._progress.remove(self._partition.name)


class _MarkerRetry:
    """Entry in the timer wheel that appends a marker again."""

    __slots__ = ("_name", "_progress", "_writer", "timer_bucket")

    def __init__(self, writer: MarkerWriter, progress: Progress, name: TopicPartition) -> None:
        self._writer = writer
        self._progress = progress
        self._name = name
        self.timer_bucket: dict[Expiring, None] | None = None

    def expire(self) -> None:
        self._writer.write(self._progress, self._name)


class _CompleteRetry:
    """Entry in the timer wheel that appends a Complete record again."""

    __slots__ = ("_delivered", "_delivery", "timer_bucket")

    def __init__(self, delivered: Callable[[Delivery], None], delivery: Delivery) -> None:
        self._delivered = delivered
        self._delivery = delivery
        self.timer_bucket: dict[Expiring, None] | None = None

    def expire(self) -> None:
        self._delivered(self._delivery)
