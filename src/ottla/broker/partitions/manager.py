"""ReplicaManager: the partitions of this broker, with their roles.

    produce ──► append ──► `group_commit.py`: write at the end of the turn, sync ──► acknowledged
                   └──► a disk fails or is full: `storage.py`

``leader_of`` is the one check of leadership: every request and every coordinator gets its partition from it. ``remove``
is the one way to stop serving a partition: whatever refers to partitions is registered in ``referrers``.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Set
from typing import Protocol

from ottla.broker.partitions.follower_logs import FollowerLogs
from ottla.broker.partitions.group_commit import GroupCommit
from ottla.broker.partitions.partition import Partition, PartitionState, Role
from ottla.broker.partitions.storage import Storage
from ottla.env.clock import Clock
from ottla.env.disk import Disk
from ottla.env.tasks import Threads
from ottla.log.compaction import Compactor
from ottla.log.folders import PartitionSpec
from ottla.log.log import Log
from ottla.log.opener import Opener
from ottla.log.opening import InlineBudget
from ottla.log.producers import read_ended
from ottla.log.store import LogStore
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
from ottla.model.settings import TopicSettings
from ottla.model.types import FrameBuffer, TopicPartition

log = logging.getLogger(__name__)

_LEADER = Role.LEADER
_NOWHERE: dict[int, Partition] = {}
#: free space is checked again after at least this many bytes
_CHECK_SPACE_BYTES_MIN = 1 << 20


class Referrer(Protocol):
    """Something that refers to partitions which this broker serves: an index, a queue, a cache."""

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a partition is referred to that is not served, or if one that must be is not."""


class ReplicaManager:
    """All partitions of which this broker has a replica."""

    def __init__(
        self,
        *,
        broker_id: int,
        clock: Clock,
        disk: Disk,
        store: LogStore,
        threads: Threads,
        free_bytes_min: int,
        on_all_dirs_failed: Callable[[str], None],
        exists: Callable[[bytes, int, bool], bool] = lambda topic, number, by_id: False,
    ) -> None:
        """``exists(topic, number, by_id)``: whether the cluster has this partition, on whichever broker."""
        self._broker_id = broker_id
        self._exists = exists
        self.monotonic = clock.monotonic
        self.store = store
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
        self._is_lease_over = False
        #: fetches in sessions of followers that began before this time do not prove that the followers still fetch:
        #: they may have waited in the sockets of this process while it was paused
        self.sessions_count_from = -math.inf
        #: partitions whose logs are copied to another log directory, and what to call when a log is truncated
        self.moving: dict[Partition, Callable[[], None]] = {}
        #: a counter of requests
        self.acks_zero = 0

        self.opener = Opener()
        self.inline_budget = InlineBudget()
        self.compactor = Compactor(disk=disk, store=store, threads=threads, monotonic=clock.monotonic)
        self.storage = Storage(
            store=store,
            disk=disk,
            by_log=self._by_log,
            free_bytes_min=free_bytes_min,
            on_offline=self._went_offline,
            on_all_dirs_failed=on_all_dirs_failed,
        )
        self.commits = GroupCommit(
            store=store,
            storage=self.storage,
            threads=threads,
            by_log=self._by_log,
            inline_budget=self.inline_budget,
            monotonic=clock.monotonic,
        )
        self.followers = FollowerLogs(
            store=store,
            storage=self.storage,
            commits=self.commits,
            threads=threads,
            moving=self.moving,
            advance_log_start=self.advance_log_start,
        )
        store.on_dir_failed = self.storage.dir_failed
        store.on_start_synced = self.commits.log_start_synced
        #: they forget a partition that this broker no longer serves, before its log is deleted
        self.referrers: list[Referrer] = [self.commits, self.storage]

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
            self.storage.offline[partition] = None
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
            self.storage.log_failed(of, error)
        except CorruptMessage as error:  # requests that need the batch get the error
            log.error("a batch is damaged partition=%s error=%s", partition.name, error)

    def apply_state(self, partition: Partition, state: PartitionState) -> None:
        """Apply a change of leader, epoch or in-sync replicas to a partition."""
        if partition.apply_state(state, self.monotonic()):
            self.generation += 1
        self._note_replicas(partition)
        self.commits.note_waiting(partition)

    def _note_replicas(self, partition: Partition) -> None:
        if len(partition.replicas) > 1:
            self._replicated[partition] = None
        else:
            self._replicated.pop(partition, None)
        partition.is_lease_over = self._is_lease_over and len(partition.replicas) > 1
        self.note_isr(partition)

    def note_isr(self, partition: Partition) -> None:
        """Note whether the ISR of a partition must be looked at; call this after a change of ``proposed_isr``."""
        if partition in self._replicated and not partition.is_isr_settled:
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
            self.commits.note_waiting(partition)

    def complete_confirmed(self) -> None:
        """Call the readers whose coordinators have turned out to be current. Called often while the lease is over."""
        for partition in self._replicated:
            partition.complete_confirmed()

    def suspend(self, partition: Partition) -> None:
        """Stop leading a partition, because others may lead it by now. The next ``apply_state`` ends this."""
        self.distrust_fetches()
        partition.suspend()
        self.generation += 1
        self.commits.note_waiting(partition)

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
        self._discard(partition)
        for referrer in self.referrers:
            referrer.discard(partition)
        partition.leave(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        directory = self.store.dir_of(partition.log)
        try:
            self.store.delete(partition.name, unique)
        except OSError as error:
            self.storage.dir_failed(directory, error)

    def _discard(self, partition: Partition) -> None:
        for topics, key in ((self.topics, partition.topic_name), (self.topics_by_id, partition.topic_id)):
            of_topic = topics.get(key, _NOWHERE)
            of_topic.pop(partition.name.partition, None)
            if not of_topic:
                topics.pop(key, None)
        self.generation += 1
        self._by_log.pop(partition.log, None)
        self._replicated.pop(partition, None)
        self._unsettled.pop(partition, None)

    def check_invariants(self) -> None:
        """Raise AssertionError if something refers to a partition that is not served, or lacks one that is."""
        served = {partition for of_topic in self.topics.values() for partition in of_topic.values()}
        by_id = {partition for of_topic in self.topics_by_id.values() for partition in of_topic.values()}
        assert by_id == served, "topics_by_id"
        assert self._by_log == {partition.log: partition for partition in served}, "_by_log"
        replicated = {partition for partition in served if len(partition.replicas) > 1}
        assert self._replicated.keys() == replicated, "_replicated"
        assert self._unsettled.keys() == {each for each in replicated if not each.is_isr_settled}, "_unsettled"
        assert self.moving.keys() <= served, "moving"
        self.store.check_invariants({partition.name: partition.log for partition in served})
        for referrer in self.referrers:
            referrer.check_invariants(served)

    def _went_offline(self, partition: Partition) -> None:
        self.generation += 1
        self.commits.discard(partition)

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
        return not (
            partition.sync_in_flight or its_log.pending or its_log in self.commits.pending or self.compactor.busy
        )

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
        self,
        partition: Partition,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        now_ms: int,
        *,
        transactional: bool = False,
        sequenced: bool = True,
        opened: TopicSettings | None = None,
    ) -> tuple[int, int]:
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
            self.storage.log_failed(partition.log, error)
            raise StorageError(f"the batch could not be written: {error.strerror}") from None
        commits = self.commits
        commits.bytes_in += end - start
        commits.pending[partition.log] = None
        return offsets

    def append_marker(
        self,
        partition: Partition,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> tuple[int, int]:
        """Append the marker of a transaction; return its offset and the offset after it. Raise as ``append`` does."""
        if not partition.writable:
            raise partition.refusal()
        try:
            offsets = partition.log.append_marker(
                producer_id, producer_epoch, commit=commit, coordinator_epoch=coordinator_epoch, now_ms=now_ms,
                transaction_version=transaction_version,
            )  # fmt: skip
        except OSError as error:
            self.storage.log_failed(partition.log, error)
            raise StorageError(f"the marker could not be written: {error.strerror}") from None
        self.commits.pending[partition.log] = None
        return offsets

    # -- log starts and checkpoints ---------------------------------------------------------------------------------

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
            self.advance_log_start(partition, offset)
        except OSError as error:
            self.storage.log_failed(partition.log, error)
            raise StorageError(f"the log's start could not be moved: {error.strerror}") from None
        return partition.log.log_start_offset

    def advance_log_start(self, partition: Partition, offset: int) -> None:
        """Move the log's start, and tell those who wait for it. Raise OSError."""
        previous = partition.log.log_start_offset
        try:
            self.store.advance_log_start(partition.log, offset)
        finally:
            if partition.log.log_start_offset != previous:
                partition.note_log_start()

    def write_checkpoints(self) -> None:
        self.store.write_checkpoints(self.high_watermarks(), sync=False)

    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        return {partition.name: partition.high_watermark for partition in self._by_log.values()}
