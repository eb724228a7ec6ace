"""ReplicaManager: the partitions of this broker, the write at the end of a turn, and the group commit.

    produce ──► Log.append ──► (end of turn) write_turn ──► high watermark moves ──► long polls wake, acks=1 leaves
                                        └──► writers wait? one fdatasync per partition in flight ──► acks=all leaves

``leader_of`` is the one check of leadership: every request and every coordinator gets its partition from it.

Group commit: while a partition's sync runs, everything that arrives is written and waits; the next sync takes it all.
A hundred producers then share one trip to the disk, and the loop never waits for it.

A disk that fails to write or to sync is never asked again: what it holds may be gone, so its directory goes offline. A
disk that is full is only refused further writes, and taken back when it has room. A file that cannot be read concerns
its partition only: the request that needs it is answered with KAFKA_STORAGE_ERROR, and everything else goes on. If
other replicas are in sync, that partition goes offline here, and the broker tells the metadata store (`membership.py`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ottla.broker.partitions.partition import Partition, PartitionState, Role, Until, Writer
from ottla.env.clock import Clock
from ottla.env.disk import NO_DESCRIPTORS, NO_ROOM, Disk, WriteFailed
from ottla.env.tasks import Threads
from ottla.log import truncation
from ottla.log.compaction import Compactor, plan_compaction
from ottla.log.directories import LogDir
from ottla.log.folders import PartitionSpec
from ottla.log.log import Log
from ottla.log.opener import Opener
from ottla.log.opening import TURN_US_MAX, InlineBudget
from ottla.log.producers import read_ended
from ottla.log.retention import retention_start_offset
from ottla.log.segment import SyncJob
from ottla.log.store import LogStore
from ottla.log.truncation import Truncation
from ottla.model.errors import (
    CorruptMessage,
    ErrorCode,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    PolicyViolation,
    StorageError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.types import FrameBuffer, TopicPartition

log = logging.getLogger(__name__)

_LONG_MAX = (1 << 63) - 1
_LEADER, _FOLLOWER, _WRITTEN, _COMMITTED = Role.LEADER, Role.FOLLOWER, Until.WRITTEN, Until.COMMITTED
_NOWHERE: dict[int, Partition] = {}
#: free space is checked again after at least this many bytes
_CHECK_SPACE_BYTES_MIN = 1 << 20


class AwaitedWrite:
    """A writer for ``ReplicaManager.wait`` whose error code is a future."""

    __slots__ = ("code", "deadline")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.deadline = deadline
        self.code: asyncio.Future[int] = loop.create_future()

    def on_write_complete(self, error_code: int) -> None:
        if not self.code.done():
            self.code.set_result(error_code)


class TruncationRequest(NamedTuple):
    """Remove the records of a follower from ``offset`` on, or all of them if its log starts again there."""

    partition: Partition
    offset: int
    restarts: bool = False


class ReplicaManager:
    """All partitions of which this broker has a replica."""

    def __init__(
        self, *, broker_id: int, clock: Clock, disk: Disk, store: LogStore, threads: Threads,
        free_bytes_min: int, on_all_dirs_failed: Callable[[str], None],
        exists: Callable[[bytes, int, bool], bool] = lambda topic, number, by_id: False,
    ) -> None:  # fmt: skip
        """``exists(topic, number, by_id)``: whether the cluster has this partition, on whichever broker."""
        self._broker_id = broker_id
        self._exists = exists
        self.monotonic = clock.monotonic
        self._disk = disk
        self.store = store
        self._threads = threads
        self._free_bytes_min = free_bytes_min
        self._on_all_dirs_failed = on_all_dirs_failed
        store.on_dir_failed = self._dir_failed
        store.on_start_synced = self._start_synced
        self.compactor = Compactor(disk=disk, store=store, threads=threads, monotonic=clock.monotonic)

        self.opener = Opener()
        self.inline_budget = InlineBudget()

        #: by topic name, then by partition number
        self.topics: dict[bytes, dict[int, Partition]] = {}
        self.topics_by_id: dict[bytes, dict[int, Partition]] = {}
        self._by_log: dict[Log, Partition] = {}
        #: the partitions with more than one replica
        self._replicated: dict[Partition, None] = {}
        #: those whose ISR lacks a replica, or is being changed by this leader
        self._unsettled: dict[Partition, None] = {}
        #: increases with every change that invalidates the caches of connections
        self.generation = 0
        self._pending: dict[Log, None] = {}
        self._waiting: dict[Partition, None] = {}
        self._is_lease_over = False
        #: the partitions whose logs are offline
        self.failed: dict[Partition, None] = {}
        #: free space is checked again when ``bytes_in`` exceeds this
        self._bytes_in_at_check = self._replication_bytes_in_at_check = 0
        #: fetches in sessions of followers that began before this time do not prove that the followers still fetch:
        #: they may have waited in the sockets of this process while it was paused
        self.sessions_count_from = -math.inf
        #: called when a follower's log, or a new start of it, is synced
        self.on_follower_changed: Callable[[Partition], None] = _ignore
        #: called before the log of a partition is deleted
        self.on_removed: Callable[[Partition], None] = _ignore
        #: partitions whose logs are copied to another log directory, and what to call when a log is truncated
        self.moving: dict[Partition, Callable[[], None]] = {}

        # Counters
        self.bytes_in = 0
        #: from the leaders that this broker follows
        self.replication_bytes_in = 0
        self.syncs = 0
        self.acks_zero = 0
        self.read_errors = 0
        #: producers whose sequence numbers are kept, and those that expired early, because there were too many
        self.producers = 0
        self.producers_evicted = 0
        self._bytes_in_at_eviction = 0

    # -- partitions -----------------------------------------------------------------------------------------------

    def add(self, spec: PartitionSpec, state: PartitionState) -> Partition:
        """Serve a partition in the role that ``state`` gives it. Open its log, or create it if it does not exist."""
        name = spec.name
        its_log = self.store.log_of(spec)
        its_log.inline_budget = self.inline_budget
        directory = self.store.dir_of(its_log)
        partition = Partition(
            name, spec.topic_id, its_log, broker_id=self._broker_id,
            high_watermark=directory.high_watermarks.get(name, 0),
        )  # fmt: skip
        partition.set_room(directory.has_room)
        partition.note_settings()
        partition.apply_state(state, self.monotonic())
        self.topics.setdefault(partition.topic_name, {})[name.partition] = partition
        self.topics_by_id.setdefault(spec.topic_id, {})[name.partition] = partition
        self._by_log[its_log] = partition
        if partition.offline:
            self.failed[partition] = None
        elif partition.high_watermark < its_log.written_end_offset:
            self._read_ended(partition)
        self._note_replicas(partition)
        self.generation += 1
        return partition

    def _read_ended(self, partition: Partition) -> None:
        """Keep the last stable offset below transactions whose markers are above the high watermark.

        A new leader may lack these markers, and the last stable offset must not decrease then.
        """
        of = partition.log
        try:
            of.ended = read_ended(of.disk, of.directory, of.segments, partition.high_watermark, of.written_end_offset)
        except OSError as error:
            self._failed(of, error)
        except CorruptMessage as error:  # requests that need the batch get the error
            log.error("a batch is damaged partition=%s error=%s", partition.name, error)

    def apply_state(self, partition: Partition, state: PartitionState) -> None:
        """Apply a change of leader, epoch or in-sync replicas to a partition."""
        if partition.apply_state(state, self.monotonic()):
            self.generation += 1
        self._note_replicas(partition)
        if not partition.has_waiting:
            self._waiting.pop(partition, None)

    def _note_replicas(self, partition: Partition) -> None:
        if len(partition.replicas) > 1:
            self._replicated[partition] = None
        else:
            self._replicated.pop(partition, None)
        partition.is_lease_over = self._is_lease_over and len(partition.replicas) > 1
        self.note_isr(partition)

    def note_isr(self, partition: Partition) -> None:
        """Note whether the ISR of a partition must be looked at; call this after a change of ``proposed_isr``."""
        is_complete = len(partition.isr) == len(partition.replicas)
        if partition in self._replicated and not (is_complete and partition.proposed_isr is None):
            self._unsettled[partition] = None
        else:
            self._unsettled.pop(partition, None)

    def unsettled(self) -> list[Partition]:
        """Return the replicated partitions whose ISR lacks a replica, or is being changed by this leader."""
        return list(self._unsettled)

    def replicated(self) -> list[Partition]:
        """Return the partitions with more than one replica."""
        return list(self._replicated)

    def of_topic(self, topic: str) -> list[Partition]:
        """Return the replicas of a topic's partitions on this broker."""
        return list(self.topics.get(topic.encode(), _NOWHERE).values())

    def set_lease(self, *, is_over: bool) -> None:
        """Let acks=1 wait for the in-sync replicas while this broker may have been replaced as the leader."""
        self._is_lease_over = is_over
        for partition in self._replicated:
            partition.set_lease(is_over=is_over)
            if partition.has_waiting:
                self._waiting[partition] = None

    def complete_confirmed(self) -> None:
        """Call the readers whose coordinators have turned out to be current. Called often while the lease is over."""
        for partition in self._replicated:
            partition.complete_confirmed()

    def suspend(self, partition: Partition) -> None:
        """Stop leading a partition, because others may lead it by now. The next ``apply_state`` ends this."""
        self.distrust_fetches()
        partition.suspend()
        self.generation += 1
        self._waiting.pop(partition, None)

    def distrust_fetches(self) -> None:
        """Count no fetch as a proof that its sender follows this leader, unless it was sent after this moment."""
        self.sessions_count_from = self.monotonic()
        for partition in self._replicated:
            if partition.suspended:
                partition.suspended.clear()

    def note_refused(self, topic: bytes, number: int, epoch: int, follower: int, *, by_id: bool) -> None:
        """Note the fetch of a follower that was refused, if that is because this leader has stopped to lead."""
        partition = (self.topics_by_id if by_id else self.topics).get(topic, _NOWHERE).get(number)
        if partition is not None and partition.suspended is not None and partition.leader_epoch == epoch:
            partition.suspended[follower] = self.monotonic()

    def remove_topic(self, name: bytes, unique: Callable[[], str]) -> None:
        """Stop serving a topic and delete its logs; a thread deletes the files."""
        for partition in list(self.topics.get(name, _NOWHERE).values()):
            self.remove(partition, unique())

    def remove(self, partition: Partition, unique: str) -> None:
        """Stop serving a partition and delete its log: its topic was deleted, or it was moved to other brokers."""
        for topics, key in ((self.topics, partition.topic_name), (self.topics_by_id, partition.topic_id)):
            of_topic = topics.get(key, _NOWHERE)
            of_topic.pop(partition.name.partition, None)
            if not of_topic:
                topics.pop(key, None)
        self.generation += 1
        self._by_log.pop(partition.log, None)
        self._pending.pop(partition.log, None)
        self._waiting.pop(partition, None)
        self._replicated.pop(partition, None)
        self._unsettled.pop(partition, None)
        self.failed.pop(partition, None)
        partition.leave(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self.on_removed(partition)
        try:
            self.store.delete(partition.name, unique)
        except OSError as error:
            self._dir_failed(self.store.dir_of(partition.log), error)

    def replace_log(self, partition: Partition, replacing: Log) -> None:
        """Use another log with the same batches: it was moved to another log directory."""
        self._by_log.pop(partition.log, None)
        self._by_log[replacing] = partition
        partition.log = replacing
        partition.set_room(self.store.dir_of(replacing).has_room)
        partition.complete_writers()  # all of the log is synced
        self.generation += 1

    def may_replace_log(self, partition: Partition) -> bool:
        """Return whether no thread and no pending write uses the log, so that another can take its place."""
        its_log = partition.log
        return not (partition.sync_in_flight or its_log.pending or its_log in self._pending or self.compactor.busy)

    def fail_dir(self, directory: LogDir, error: OSError) -> None:
        """A file of a log directory could not be written: it is full, or it goes offline."""
        if error.errno in NO_ROOM:
            self._set_room(directory, False)
        elif isinstance(error, WriteFailed):
            self._dir_failed(directory, error)

    def fail_partition(self, partition: Partition) -> None:
        """The log of a partition has failed: take the partition offline."""
        self._partition_failed(partition, partition.log.failure or "its log failed")

    def configure(self, topic: bytes, settings: TopicSettings) -> None:
        for partition in self.topics.get(topic, {}).values():
            partition.log.configure(settings)
            partition.note_settings()
        self.generation += 1

    def find(self, topic: str, number: int) -> Partition | None:
        """Return the replica of a partition on this broker, in whatever role; None if there is none."""
        return self.topics.get(topic.encode(), _NOWHERE).get(number)

    def leader_of(
        self, topic: bytes, number: int, epoch: int = -1, *, by_id: bool = False, or_follows: bool = False
    ) -> Partition:
        """Return the partition if this broker leads it, in ``epoch`` unless that is -1.

        With ``or_follows``, return it also if this broker follows it and consumers may read from it (KIP-392).
        ``topic`` is the name, or the id if ``by_id``. Raise the KafkaError for the reply, as Kafka chooses it:
        NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, KAFKA_STORAGE_ERROR for a partition that is
        offline, UNKNOWN_TOPIC_OR_PARTITION or UNKNOWN_TOPIC_ID for one that the cluster does not have.
        """
        topics = self.topics_by_id if by_id else self.topics
        partition = topics.get(topic, _NOWHERE).get(number)
        if partition is None:
            if self._exists(topic, number, by_id):
                raise NotLeaderOrFollower("another broker has this partition")
            raise UnknownTopicId if by_id and topic not in topics else UnknownTopicOrPartition("")
        if partition.role is not _LEADER or (epoch != -1 and epoch != partition.leader_epoch):
            partition.check_leads(epoch, or_follows=or_follows)
        return partition

    def all(self) -> list[Partition]:
        return list(self._by_log.values())

    # -- append ---------------------------------------------------------------------------------------------------

    def append(
        self, partition: Partition, buffer: FrameBuffer, view: memoryview, start: int, end: int, now_ms: int,
        *, transactional: bool = False, sequenced: bool = True, opened: TopicSettings | None = None,
    ) -> tuple[int, int]:  # fmt: skip
        """Append one batch; return its base offset and the offset after it. Raise KafkaError without changing anything.

        With ``transactional`` the batch may be part of a transaction, which the caller knows to be open; without
        ``sequenced`` a coordinator writes it. Raise NeedsOpening if the batch must first be opened by ``opener``;
        ``opened`` are the settings for which that was done.
        """
        if not partition.writable:
            raise partition.refusal()
        try:
            offsets = partition.log.append(buffer, view, start, end, now_ms, transactional, sequenced, opened)
        except OSError as error:
            self._failed(partition.log, error)
            raise StorageError(f"the batch could not be written: {error.strerror}") from None
        self.bytes_in += end - start
        self._pending[partition.log] = None
        return offsets

    def append_marker(
        self, partition: Partition, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int,
        now_ms: int, transaction_version: int = 0,
    ) -> tuple[int, int]:  # fmt: skip
        """Append the marker of a transaction; return its offset and the offset after it. Raise as ``append`` does."""
        if not partition.writable:
            raise partition.refusal()
        try:
            offsets = partition.log.append_marker(
                producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=now_ms,
                transaction_version=transaction_version,
            )  # fmt: skip
        except OSError as error:
            self._failed(partition.log, error)
            raise StorageError(f"the marker could not be written: {error.strerror}") from None
        self._pending[partition.log] = None
        return offsets

    # -- follower -------------------------------------------------------------------------------------------------

    def append_fetched(self, partition: Partition, records: memoryview, now_ms: int) -> None:
        """Append batches from the leader; ``write_fetched`` writes them. A failure leaves the log as it was.

        Raise StorageError if the disk fails or is full, CorruptMessage or UnexpectedAppendOffset for invalid batches.
        """
        if not partition.has_room:
            raise StorageError(f"the log directory of {partition.name} has no room")
        try:
            partition.log.append_as_follower(records, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        except OSError as error:
            self._failed(partition.log, error)
            raise StorageError(f"batches of the leader could not be written: {error.strerror}") from None
        self.replication_bytes_in += len(records)

    def write_fetched(self, partition: Partition) -> None:
        """Write what ``append_fetched`` has appended. Raise StorageError if that fails; the log is then without it."""
        if self.replication_bytes_in > self._replication_bytes_in_at_check:
            self.check_free_space()
        try:
            partition.log.write_pending()
        except OSError as error:
            self._failed(partition.log, error)
            raise StorageError(f"batches of the leader could not be written: {error.strerror}") from None

    def sync_fetched(self, partition: Partition) -> None:
        """Sync a follower's log, because a writer waits for it at the leader. Report the end of the sync."""
        partition.sync_wanted_offset = partition.log.written_end_offset
        if not partition.sync_in_flight and not partition.offline and partition.log.unsynced():
            self._start_sync(partition)

    def follow_log_start(self, partition: Partition, offset: int) -> None:
        """Move a follower's log start to the leader's, at most to the high watermark."""
        offset = min(offset, partition.high_watermark)
        if offset > partition.log.log_start_offset:
            try:
                self._advance_log_start(partition, offset)
            except OSError as error:
                self._failed(partition.log, error)

    def begin_truncations(self, requests: Sequence[TruncationRequest]) -> dict[Partition, Exception]:
        """Remove records of followers. Return the partitions for which that failed, and why.

        ``sync_truncation`` must follow. The checkpoints of each directory are written once for all its logs.
        """
        failed: dict[Partition, Exception] = {}
        groups: dict[LogDir, dict[Partition, Truncation]] = {}
        for partition, offset, restarts in requests:
            its_log = partition.log
            try:
                planned = truncation.plan_restart(its_log, offset) if restarts else truncation.plan(its_log, offset)
            except (OSError, CorruptMessage) as error:
                failed[partition] = self._truncation_failed(partition, error)
            else:
                groups.setdefault(self.store.dir_of(its_log), {})[partition] = planned
        for group in groups.values():
            try:
                self.store.lower_checkpoints([each for each in group.values() if each.active is not None])
            except OSError as error:
                failed |= {partition: self._truncation_failed(partition, error) for partition in group}
                continue
            for partition, planned in group.items():
                end_offset, high_watermark = partition.log.log_end_offset, partition.high_watermark
                try:
                    truncation.begin(planned)
                except OSError as error:
                    failed[partition] = self._truncation_failed(partition, error)
                partition.note_truncated()
                if partition in self.moving:
                    self.moving[partition]()
                log.info(
                    "log is truncated partition=%s end_offset=%d from=%d high_watermark=%d",
                    partition.name, partition.log.log_end_offset, end_offset, high_watermark,
                )  # fmt: skip
        return failed

    def _truncation_failed(self, partition: Partition, error: OSError | CorruptMessage) -> Exception:
        if isinstance(error, CorruptMessage):
            return error
        self._failed(partition.log, error)
        return StorageError(f"the log could not be truncated: {error.strerror}")

    def sync_truncation(self, partition: Partition, done: Callable[[], None]) -> None:
        """Sync the files of a log that was truncated, in a thread. Then call ``done``, also if that failed."""
        its_log, unsynced = partition.log, partition.log.unsynced_truncation
        assert unsynced is not None

        def synced(error: OSError | None) -> None:
            if error is None:
                unsynced.note_synced()
            elif not its_log.deleted and error.errno not in NO_DESCRIPTORS:  # without one, the next append tries again
                unsynced.note_failed(error)
                self._failed(its_log, error)
            done()

        self._threads.submit(unsynced.run, synced)

    def wait(self, partition: Partition, until: Until, end_offset: int, writer: Writer) -> None:
        """Call the writer when all records below ``end_offset`` are as safe as ``until`` says, or when that fails.

        This is the only way to wait for a write. A batch that was just appended is written, and its sync begins, at
        the end of the turn.
        """
        if until is _WRITTEN or (until is _COMMITTED and len(partition.replicas) == 1):
            if partition.log in self._pending:
                partition.written.append(writer)
                return
        elif end_offset > partition.log.written_end_offset or partition.reached(until) < end_offset:
            partition.wait(until, end_offset, writer)
            self._waiting[partition] = None
            return
        writer.on_write_complete(0)

    def write_turn(self) -> None:
        """The end of a turn: 1 write what is pending  2 move high watermarks, wake readers  3 start syncs.

        Whoever waited for the write may append again, as the end of a transaction does: that is still this turn's.
        """
        self.inline_budget.left_us = TURN_US_MAX
        while self._pending:
            self._write_pending()

    def _write_pending(self) -> None:
        if self.bytes_in > self._bytes_in_at_check:
            self.check_free_space()
        pending, self._pending = self._pending, {}
        for each in pending:
            partition = self._by_log.get(each)
            if partition is None or partition.offline:
                continue
            try:
                each.write_pending()
            except OSError as error:
                self._failed(each, error)
                continue
            end = each.written_end_offset
            if end > partition.high_watermark:
                if len(partition.replicas) == 1:
                    partition.advance_high_watermark(end)
                else:
                    partition.note_written()
            if partition.written:
                written, partition.written = partition.written, []
                for writer in written:
                    writer.on_write_complete(0)
            if partition.waiting:
                if len(partition.replicas) > 1:
                    partition.complete_writers()
                if partition.wants_sync and not partition.sync_in_flight:
                    self._start_sync(partition)

    # -- group commit ---------------------------------------------------------------------------------------------

    def _start_sync(self, partition: Partition) -> None:
        its_log = partition.log
        partition.sync_in_flight = True
        job = its_log.start_sync()
        self.syncs += 1
        self._threads.submit(job.run, partial(self._synced, partition, job))

    def _synced(self, partition: Partition, job: SyncJob, error: OSError | None) -> None:
        partition.sync_in_flight = False
        if partition.log.deleted:
            return  # deleted meanwhile: no request waits, and the missing folder is no disk failure
        if error is not None:
            if error.errno in NO_DESCRIPTORS:
                log.error(
                    "no file descriptor is left, a sync must wait; raise the limit path=%s", partition.log.directory
                )
            elif isinstance(error, WriteFailed):
                self._dir_failed(self.store.dir_of(partition.log), error)
            else:
                # The file could not be opened, and nothing says whether what it holds is on disk.
                self._partition_failed(partition, str(error))
            return
        partition.log.note_synced(job)
        if partition.role is _FOLLOWER:
            if partition.log.synced_end_offset < partition.sync_wanted_offset and partition.log.unsynced():
                self._start_sync(partition)
            self.on_follower_changed(partition)
        partition.complete_writers()
        if partition.wants_sync and not partition.log.pending and partition.log.unsynced():
            self._start_sync(partition)
        if not partition.has_waiting:
            self._waiting.pop(partition, None)

    def sync_in_background(self, partition: Partition) -> None:
        """Start a sync for `flush.ms` or `flush.messages`; no request waits for it."""
        if not partition.sync_in_flight and not partition.offline and partition.log.unsynced():
            self._start_sync(partition)

    @property
    def has_waiting_writers(self) -> bool:
        """Return whether a request waits for a sync or for followers."""
        return any(partition.has_waiting for partition in self._waiting)

    def expire_writers(self) -> None:
        """A produce whose timeout passed is told so; its batch stays in the log. A sync that had to wait starts."""
        now = self.monotonic()
        for partition in list(self._waiting):
            partition.expire_writers(now)
            if not partition.has_waiting:
                self._waiting.pop(partition, None)
            elif partition.wants_sync and not partition.log.pending:
                self.sync_in_background(partition)

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def delete_records(self, partition: Partition, offset: int) -> int:
        """Move the log's start to ``offset``, or to the high watermark for -1. Return the new start.

        Other replicas follow, and a power failure may undo it, until ``wait`` for ``Until.DELETED`` completes.
        """
        if not partition.log.settings.delete:
            raise PolicyViolation("records can be deleted only from topics with cleanup.policy delete")
        if offset == -1:
            offset = partition.high_watermark
        if offset < 0 or offset > partition.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is beyond the high watermark {partition.high_watermark}")
        try:
            self._advance_log_start(partition, offset)
        except OSError as error:
            self._failed(partition.log, error)
            raise StorageError(f"the log's start could not be moved: {error.strerror}") from None
        return partition.log.log_start_offset

    def apply_retention(self, partition: Partition, now_ms: int) -> None:
        """Delete the segments that are beyond the retention limits of the topic."""
        if partition.offline:
            return
        try:
            start = retention_start_offset(partition.log, partition.high_watermark, now_ms)
            self._advance_log_start(partition, start)
        except OSError as error:
            self._failed(partition.log, error)

    def _advance_log_start(self, partition: Partition, offset: int) -> None:
        previous = partition.log.log_start_offset
        try:
            self.store.advance_log_start(partition.log, offset)
        finally:
            if partition.log.log_start_offset != previous:
                partition.note_log_start()

    def _start_synced(self, of: Log) -> None:
        partition = self._by_log.get(of)
        if partition is None:
            return
        if partition.role is _FOLLOWER:
            self.on_follower_changed(partition)
        partition.complete_writers()
        if not partition.has_waiting:
            self._waiting.pop(partition, None)

    def maybe_compact(self, now_ms: int, settings: BrokerSettings) -> bool:
        """Start to compact the log with the largest dirty ratio in the background. Return True while that runs."""
        if self.compactor.busy:
            self.compactor.resume()
            return True
        if not settings.log_cleaner_enable:
            return False
        plans = []
        for partition in self._by_log.values():
            its_log = partition.log
            if not its_log.settings.compact or partition.offline or its_log in self.compactor.uncleanable:
                continue
            if partition in self.moving:
                continue  # a copy would have other batches
            try:
                its_log.maybe_roll_by_age(now_ms)
                plan = plan_compaction(its_log, partition.last_stable_offset, now_ms)
            except OSError as error:
                self._failed(its_log, error)
                continue
            if plan is not None:
                plans.append(plan)
        return self.compactor.start(plans, now_ms, settings)

    def apply_flush_interval(self) -> None:
        """Sync logs whose topic sets `flush.ms`."""
        for partition in self._by_log.values():
            its_log = partition.log
            if its_log.settings.flush_ms < _LONG_MAX and its_log.synced_end_offset < partition.high_watermark:
                self.sync_in_background(partition)

    def evict_producers(self, count_max: int) -> None:
        """Forget idle producers, in the partitions that have most of them, until there are no more than ``count_max``.

        Called once a second. A producer that writes is not idle; an open transaction is never forgotten.
        """
        if self.bytes_in == self._bytes_in_at_eviction:
            return  # no batch was written since the last call
        self._bytes_in_at_eviction = self.bytes_in
        logs = [partition.log for partition in self._by_log.values()]
        self.producers = sum(each.producer_count for each in logs)
        if self.producers <= count_max:
            return
        for each in sorted(logs, key=_idle_producers, reverse=True):
            evicted = each.producers.evict(self.producers - count_max) if each.idle_producers else 0
            self.producers -= evicted
            self.producers_evicted += evicted
            if not evicted or self.producers <= count_max:
                break
        log.warning("producers expired early producers=%d evicted_in_total=%d", self.producers, self.producers_evicted)

    def check_free_space(self) -> None:
        """Refuse produces to a directory before it is full, so that the broker can still restart and delete."""
        # A fast producer could fill the reserve between two periodic checks, so bytes count as well.
        step = max(self._free_bytes_min // 4, _CHECK_SPACE_BYTES_MIN)
        self._bytes_in_at_check = self.bytes_in + step
        self._replication_bytes_in_at_check = self.replication_bytes_in + step
        for directory in self.store.dirs:
            if directory.offline:
                continue
            try:
                free = self._disk.free_bytes(directory.path)
            except OSError as error:
                self._dir_failed(directory, error)
                continue
            has_room = free >= self._free_bytes_min
            if has_room != directory.has_room:
                self._set_room(directory, has_room)
                text = "has room again" if has_room else "is nearly full, produces are refused"
                log.warning("log directory %s path=%s free=%d", text, directory.path, free)

    def disk_space(self, directory: LogDir) -> tuple[int, int]:
        """Total and usable bytes of the disk below a directory."""
        return self._disk.total_bytes(directory.path), self._disk.free_bytes(directory.path)

    def _set_room(self, directory: LogDir, has_room: bool) -> None:
        directory.has_room = has_room
        for each in directory.logs.values():
            if (partition := self._by_log.get(each)) is not None:
                partition.set_room(has_room)

    def write_checkpoints(self) -> None:
        self.store.write_checkpoints(self.high_watermarks(), sync=False)

    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        return {partition.name: partition.high_watermark for partition in self._by_log.values()}

    # -- failure --------------------------------------------------------------------------------------------------

    def note_read_error(self, name: TopicPartition, error: OSError) -> None:
        """Count and log a file that could not be read. The caller answers KAFKA_STORAGE_ERROR.

        If other replicas are in sync, the log goes offline, and one of them leads the partition.
        """
        self.read_errors += 1
        log.error("a file of the partition cannot be read partition=%s error=%s", name, error)
        partition = self.find(name.topic, name.partition)
        if partition is not None and len(partition.isr) > 1 and error.errno not in NO_DESCRIPTORS:
            self._partition_failed(partition, f"a file cannot be read: {error}")

    def _failed(self, of: Log, error: OSError) -> None:
        """Decide what a failed call means: for one request, for the partition, or for its directory."""
        if isinstance(error, WriteFailed) or error.errno in NO_DESCRIPTORS:
            self._write_failed(of, error)
        else:
            self.note_read_error(of.name, error)
        if of.failure is not None and (partition := self._by_log.get(of)) is not None:
            self._partition_failed(partition, of.failure)

    def _partition_failed(self, partition: Partition, reason: str) -> None:
        if partition.offline:
            return
        partition.log.failure = reason
        log.critical("partition is offline partition=%s error=%s", partition.name, reason)
        self._take_offline(partition)

    def _take_offline(self, partition: Partition) -> None:
        self.generation += 1
        self.failed[partition] = None
        self._waiting.pop(partition, None)
        partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR)

    def _write_failed(self, of: Log, error: OSError) -> None:
        """The log has already forgotten the batches; now decide whether the disk is full or broken."""
        directory = self.store.dir_of(of)
        if (partition := self._by_log.get(of)) is not None:
            partition.fail_writers(ErrorCode.KAFKA_STORAGE_ERROR, of.log_end_offset)
        if error.errno in NO_ROOM:
            self._set_room(directory, False)
            log.error("log directory is full, produces are refused path=%s", directory.path)
            return
        if error.errno in NO_DESCRIPTORS:
            log.error("no file descriptor is left, a produce was refused; raise the limit path=%s", of.directory)
            return
        self._dir_failed(directory, error)

    def _dir_failed(self, directory: LogDir, error: OSError) -> None:
        if directory.offline:
            return
        directory.offline = True
        log.critical("log directory is offline path=%s error=%s", directory.path, error)
        for name in list(directory.logs):
            partition = self.find(name.topic, name.partition)
            if partition is not None:
                self._take_offline(partition)
        if all(each.offline for each in self.store.dirs):
            self._on_all_dirs_failed(f"every log directory failed, the last with: {error}")


def _ignore(partition: Partition) -> None:
    pass


def _idle_producers(its_log: Log) -> int:
    return its_log.idle_producers
