"""The state of one replica of a partition on this broker. Pure: no I/O, no clock, no loop.

    role                leader: serves clients and followers; follower: copies the leader's log; offline: its log
                        directory failed, and nothing is read or written until a restart
    leader_epoch        increases with every change of leader, and after an unclean stop; clients send the one they know
    high_watermark      every in-sync replica has all records below it. A record below it is committed: read_uncommitted
                        readers read up to it. It never decreases
    last_stable_offset  no transaction is open below it, and every marker below it is below the high watermark;
                        read_committed readers read up to it

    the store names this broker as leader, in a newer epoch           ──► leader
    the store names another broker or none, in a newer epoch          ──► follower: produces that wait get
                                                                          NOT_LEADER_OR_FOLLOWER, fetches are answered
    the log directory fails                                           ──► offline, until the next start

With one replica the high watermark is the end of the records that are written to the file. The topic setting
``flush.acks.all`` decides whether an acknowledgement also waits for the sync. Readers do not wait for it: they read
what would be left after a clean restart or a kill of the process. docs/decisions/0013 has the reasons.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Protocol

from ottla.broker.partitions.follower import Follower
from ottla.broker.partitions.replication_throttle import is_throttled
from ottla.broker.partitions.writers import Until, Writer, Writers
from ottla.log.log import Log
from ottla.model.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    KafkaError,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    StorageError,
    UnknownLeaderEpoch,
)
from ottla.model.types import TopicPartition


class Role(Enum):
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"


class PartitionState(Protocol):
    """What the metadata store says about a partition."""

    @property
    def leader(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def partition_epoch(self) -> int: ...
    @property
    def replicas(self) -> tuple[int, ...]: ...
    @property
    def isr(self) -> tuple[int, ...]: ...
    @property
    def min_isr(self) -> int: ...


class Reader(Protocol):
    """A long poll that waits for this partition."""

    def on_high_watermark(self, size_bytes: int) -> None:
        """This many more bytes can be read."""

    def on_stable(self) -> None:
        """More can be read, because the high watermark or the last stable offset moved; read again to see how much."""

    def on_changed(self) -> None:
        """The high watermark moved, but there is nothing more to read."""

    def on_log_start(self) -> None:
        """The start of the log moved."""

    def on_partition_deleted(self) -> None:
        """The partition was deleted, is offline or has another leader: complete the fetch now."""


class Partition:
    """One partition of which this broker has a replica."""

    __slots__ = (
        "_min_isr", "appended_bytes", "broker_id", "epoch_start_offset", "followers", "has_room", "high_watermark",
        "is_follower_throttled", "is_leader_throttled", "is_lease_over", "isr", "leader_epoch",
        "leader_high_watermark", "leader_id", "log", "name", "partition_epoch", "proposed_isr", "readers",
        "replica_bytes", "replica_readers", "replicas", "reported_stable_offset", "role", "stable_readers",
        "suspended", "sync_in_flight", "sync_wanted_offset", "topic_id", "topic_name", "unconfirmed", "writable",
        "writers",
    )  # fmt: skip

    def __init__(
        self, name: TopicPartition, topic_id: bytes, log: Log, *, broker_id: int, high_watermark: int = 0
    ) -> None:
        """Create a partition without a leader; ``apply_state`` gives it its role.

        ``high_watermark`` is the checkpointed one. It may be older than the last one, never newer.
        """
        self.name = name
        self.topic_name = name.topic.encode()
        self.topic_id = topic_id
        self.log = log
        self.broker_id = broker_id

        # What the metadata store says
        self.leader_id = -1
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        #: min.insync.replicas in that state, 0 if it has none; it belongs to ``isr``, see `cluster.leadership`
        self._min_isr = 0
        self.role = Role.FOLLOWER if log.failure is None else Role.OFFLINE

        #: False while its log directory is nearly full: fetches are served, produces are refused
        self.has_room = True
        #: whether a batch may be appended: this broker leads, and there is room
        self.writable = False
        self.high_watermark = min(max(high_watermark, log.log_start_offset), log.written_end_offset)
        #: the other replicas by broker id; only the leader knows them
        self.followers: dict[int, Follower] = {}
        #: the in-sync replicas that this leader has asked the metadata store for; None if no change is in flight
        self.proposed_isr: tuple[int, ...] | None = None
        #: whether this broker cannot reach the metadata store: then acks=1 waits for the in-sync replicas
        self.is_lease_over = False
        #: set while this leader has stopped to lead in its epoch: the time of each follower's last fetch since then
        self.suspended: dict[int, float] | None = None
        #: the log end offset when this broker got its role in this epoch; what a follower truncates is not included
        self.epoch_start_offset = 0
        #: the last one that this follower got from its leader
        self.leader_high_watermark = 0
        #: whether this replica is throttled when it sends to followers, and when it copies its leader's log
        self.is_leader_throttled = self.is_follower_throttled = False
        #: ``log.appended_bytes`` when the high watermark was last moved
        self.appended_bytes = log.appended_bytes
        #: parked read_uncommitted fetches; a dict, so that one can be removed in constant time when it expires
        self.readers: dict[Reader, None] = {}
        #: parked read_committed fetches, and the last stable offset that was last reported to them
        self.stable_readers: dict[Reader, None] = {}
        self.reported_stable_offset = -1
        #: parked fetches of followers, and ``log.appended_bytes`` when they were last woken
        self.replica_readers: dict[Reader, None] = {}
        self.replica_bytes = log.appended_bytes
        #: the requests that wait until their batches are safe
        self.writers = Writers()
        #: readers that wait until it is certain that this broker led the partition, each with that time
        self.unconfirmed: list[tuple[float, Writer]] = []
        self.sync_in_flight = False
        #: a follower syncs its log up to here, because a writer waits for it at the leader
        self.sync_wanted_offset = 0

    # -- role -----------------------------------------------------------------------------------------------------

    @property
    def offline(self) -> bool:
        return self.role is Role.OFFLINE

    @property
    def is_isr_settled(self) -> bool:
        """Return whether all replicas are in sync, and this leader is not changing that."""
        return len(self.isr) == len(self.replicas) and self.proposed_isr is None

    def apply_state(self, state: PartitionState, now: float = 0.0) -> bool:
        """Take over the state in the metadata store. Return whether the role or the leader epoch changed.

        An older state than the current one changes nothing: a watch may deliver it late.
        """
        if (state.leader_epoch, state.partition_epoch) < (self.leader_epoch, self.partition_epoch):
            return False
        is_new_epoch = state.leader_epoch > self.leader_epoch
        if state.partition_epoch != self.partition_epoch:
            self.proposed_isr = None  # it is applied, or another change has made it conflict
        self.partition_epoch, self.replicas, self.isr = state.partition_epoch, state.replicas, state.isr
        self._min_isr = state.min_isr
        self.leader_id, self.leader_epoch = state.leader, state.leader_epoch
        role = Role.LEADER if state.leader == self.broker_id else Role.FOLLOWER
        changed = is_new_epoch or (role is not self.role and self.role is not Role.OFFLINE)
        fetched_at = self.suspended
        if changed and self.role is not Role.OFFLINE:
            self.role = role
            self._become_leader() if role is Role.LEADER else self._become_follower()
        if self.role is Role.LEADER:
            known, others = self.followers, [number for number in self.replicas if number != self.broker_id]
            self.followers = {number: known.get(number) or Follower(now) for number in others}
            if changed and not is_new_epoch and fetched_at is not None:
                for number in fetched_at.keys() & self.followers.keys():
                    self.followers[number].note_alive(fetched_at[number])
            self.update_high_watermark()
            self.complete_writers()
        return changed

    def _become_leader(self) -> None:
        self.suspended = None
        self.log.become_leader(self.leader_epoch)
        self.epoch_start_offset = self.log.log_end_offset
        self.followers = {}
        self._set_writable()
        self.release_readers()  # they sent an older leader epoch

    def _become_follower(self) -> None:
        self.followers, self.suspended = {}, None
        self.epoch_start_offset, self.leader_high_watermark = self.log.log_end_offset, 0
        self._set_writable()
        self.leave(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def suspend(self) -> None:
        """Stop leading until the state is applied again: another broker may have been elected meanwhile."""
        self.role, self.leader_id = Role.FOLLOWER, -1
        self._become_follower()
        self.suspended = {}

    def set_lease(self, *, is_over: bool) -> None:
        """Let acks=1 wait for the in-sync replicas while this broker may have been replaced as the leader."""
        self.is_lease_over = is_over
        if is_over:
            self.writers.wait_for_replicas(self.log.log_end_offset)
        self.complete_confirmed()

    def confirm_leadership(self, reader: Writer, now: float) -> None:
        """Call the reader when no other leader can have been elected before ``now``; with an error if that may be so.

        During the lease that is at once. Later all other in-sync replicas must fetch after ``now``: a new leader is one
        of them, and does not fetch.
        """
        self.unconfirmed.append((now, reader))
        self.complete_confirmed()

    def complete_confirmed(self) -> None:
        """Call the readers that wait for ``confirm_leadership`` and need not wait any longer."""
        if not self.unconfirmed:
            return
        until = math.inf
        if self.is_lease_over:
            others = (self.followers[number] for number in self.maximal_isr if number in self.followers)
            until = min((follower.fetched_at for follower in others), default=math.inf)
        ready = [reader for since, reader in self.unconfirmed if since <= until]
        self.unconfirmed = [each for each in self.unconfirmed if each[0] > until]
        for reader in ready:
            reader.on_write_complete(0)

    def note_settings(self) -> None:
        """The settings of the topic may have changed."""
        settings, number = self.log.settings, self.name.partition
        self.is_leader_throttled = is_throttled(settings.leader_replication_throttled_replicas, number, self.broker_id)
        self.is_follower_throttled = is_throttled(
            settings.follower_replication_throttled_replicas, number, self.broker_id
        )

    def go_offline(self, error_code: ErrorCode) -> None:
        """The log can be neither read nor written any more: answer all requests that wait."""
        self.role = Role.OFFLINE
        self._set_writable()
        self.leave(error_code)

    def set_room(self, has_room: bool) -> None:
        self.has_room = has_room
        self._set_writable()

    def _set_writable(self) -> None:
        self.writable = self.role is Role.LEADER and self.has_room

    @property
    def may_serve_as_follower(self) -> bool:
        """Return whether consumers may read from this follower (KIP-392): it is in sync, as far as it can know."""
        return self.leader_id >= 0 and self.broker_id in self.isr and not self.is_lease_over

    def check_leads(self, epoch: int = -1, *, or_follows: bool = False) -> None:
        """Raise the KafkaError for the reply unless this broker leads the partition, in ``epoch`` if it is not -1.

        With ``or_follows``, a follower that consumers may read from passes too. The order of the checks is Kafka's:
        offline, then the epoch that the client knows, then the role.
        """
        if self.role is Role.OFFLINE:
            raise StorageError("the partition is offline; see the broker's log")
        if epoch != -1 and epoch != self.leader_epoch:
            if epoch < self.leader_epoch:
                raise FencedLeaderEpoch(f"leader epoch {epoch} is older than {self.leader_epoch}")
            raise UnknownLeaderEpoch(f"leader epoch {epoch} is newer than {self.leader_epoch}")
        if self.role is not Role.LEADER and not (or_follows and self.may_serve_as_follower):
            raise NotLeaderOrFollower(f"broker {self.leader_id} leads the partition, this is broker {self.broker_id}")

    def refusal(self) -> KafkaError:
        """Return the error for a batch while ``writable`` is False."""
        if self.role is Role.FOLLOWER:
            return NotLeaderOrFollower(f"broker {self.leader_id} leads the partition, this is broker {self.broker_id}")
        return StorageError("the partition is offline or its log directory is full; see the broker's log")

    # -- replicas -------------------------------------------------------------------------------------------------

    @property
    def min_in_sync(self) -> int:
        """Return how many in-sync replicas acks=all needs: ``min.insync.replicas``, at most all replicas."""
        return min(self._min_isr or self.log.settings.min_insync_replicas, len(self.replicas))

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Return all replicas that may be in sync: also those that this leader has proposed, if it does not know the
        outcome yet. One of them may have been elected meanwhile.
        """
        return self.isr if self.proposed_isr is None else tuple({*self.isr, *self.proposed_isr})

    @property
    def low_watermark(self) -> int:
        """Return the offset before which no in-sync replica has records, not even after a power failure.

        Return -1 while fewer than ``min.insync.replicas`` are in sync: then a replica that left may be elected (ELR).
        """
        if len(self.isr) < self.min_in_sync:
            return -1
        followers = [self.followers.get(number) for number in self.maximal_isr if number != self.broker_id]
        starts = [-1 if follower is None else follower.log_start_offset for follower in followers]
        return min(self.log.synced_start_offset, *starts, self.log.log_start_offset)

    def check_enough_replicas(self) -> None:
        """Raise NotEnoughReplicas if fewer replicas than ``min.insync.replicas`` are in sync; for acks=all."""
        if len(self.isr) < self.min_in_sync:
            raise NotEnoughReplicas(f"only {len(self.isr)} replicas are in sync")

    def note_follower(
        self, broker_id: int, end_offset: int, synced_end_offset: int, *, broker_epoch: int = -1, now: float = 0.0
    ) -> None:
        """A follower reports how far its log is written and synced. A broker that is no replica is ignored."""
        follower = self.followers.get(broker_id)
        if follower is None:
            return
        follower.note_fetch(end_offset, synced_end_offset, broker_epoch, self.log.log_end_offset, now)
        self.update_high_watermark()
        self.complete_writers()

    def update_high_watermark(self) -> None:
        """Move the high watermark to the smallest end offset of the in-sync replicas, if that is ahead of it.

        A replica that is being added counts as soon as the change is proposed, one that is being removed until the
        change is applied. As in Kafka it stays where it is while fewer than ``min.insync.replicas`` are in sync.
        """
        if len(self.isr) < self.min_in_sync:
            return
        end_offset = self.log.written_end_offset
        for number in self.maximal_isr:
            if number != self.broker_id:
                follower = self.followers.get(number)
                end_offset = min(end_offset, follower.end_offset if follower is not None else -1)
        if end_offset > self.high_watermark:
            self.advance_high_watermark(end_offset)
            for reader in list(self.replica_readers):
                reader.on_changed()

    def note_written(self) -> None:
        """The leader of several replicas has written records: wake the fetches of followers, then update the rest."""
        log = self.log
        size_bytes, self.replica_bytes = log.appended_bytes - self.replica_bytes, log.appended_bytes
        for reader in list(self.replica_readers):
            reader.on_high_watermark(size_bytes)
        self.update_high_watermark()

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to ``epoch`` in this leader's log, and its end offset.

        The history of the log contains the current epoch only after its first batch. It counts nevertheless: it starts
        at the log end, and that is where the epoch before it ends. Return (-1, -1) for an epoch in the future.
        """
        log = self.log
        latest = log.epochs.latest
        if epoch < 0 or epoch > self.leader_epoch:
            return -1, -1
        if epoch == self.leader_epoch:
            return epoch, log.log_end_offset
        if epoch <= latest:
            return log.epochs.end_offset_for(epoch, log.log_end_offset)
        return latest if latest >= 0 else epoch, log.log_end_offset

    @property
    def has_committed_in_epoch(self) -> bool:
        """Return whether the high watermark includes all that earlier leaders may have committed (KIP-207)."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def durable_offset(self) -> int:
        """Return the offset below which all records are committed and synced on ``min.insync.replicas``."""
        if len(self.replicas) == 1:  # every produce with acks=all asks, and sorting would cost it a microsecond
            return min(self.high_watermark, self.log.synced_end_offset)
        synced = sorted(map(self._synced_end_offset, self.isr), reverse=True)
        if len(synced) < self.min_in_sync:
            return -1
        return min(self.high_watermark, synced[self.min_in_sync - 1]) if synced else -1

    def _synced_end_offset(self, broker_id: int) -> int:
        if broker_id == self.broker_id:
            return self.log.synced_end_offset
        follower = self.followers.get(broker_id)
        return follower.synced_end_offset if follower is not None else -1

    # -- readers --------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """The offset up to which read_committed readers read. Raise OSError if the producer state cannot be loaded."""
        first_unstable = self.log.first_unstable_offset
        if first_unstable is None or first_unstable > self.high_watermark:
            return self.high_watermark
        return first_unstable

    def park(self, reader: Reader, *, read_committed: bool, replica: bool = False) -> None:
        """Call the reader for every event of this partition until ``unpark``.

        The reader of a follower (``replica``) is called when records are written, others when they are committed.
        """
        if replica:
            self.replica_readers[reader] = None
            return
        if not read_committed:
            self.readers[reader] = None
            return
        if not self.stable_readers:
            self.reported_stable_offset = self.last_stable_offset
        self.stable_readers[reader] = None

    def unpark(self, reader: Reader) -> None:
        self.readers.pop(reader, None)
        self.stable_readers.pop(reader, None)
        if self.replica_readers:
            self.replica_readers.pop(reader, None)

    def advance_high_watermark(self, end_offset: int) -> None:
        """Move the high watermark to ``end_offset`` and wake the parked fetches."""
        previous, self.high_watermark = self.high_watermark, end_offset
        log = self.log
        size_bytes, self.appended_bytes = log.appended_bytes - self.appended_bytes, log.appended_bytes
        if log.ended:
            log.note_high_watermark(end_offset)
        # With several replicas the bytes that were appended are not those that are committed now: readers count again.
        is_size_known = len(self.replicas) == 1
        for reader in list(self.readers):
            if is_size_known:
                reader.on_high_watermark(size_bytes)
            else:
                reader.on_stable()
        if self.stable_readers:
            self._wake_stable_readers(previous, size_bytes, is_size_known=is_size_known)

    def _wake_stable_readers(self, previous_high_watermark: int, size_bytes: int, *, is_size_known: bool) -> None:
        reported = self.reported_stable_offset
        try:
            self.reported_stable_offset = self.last_stable_offset
        except OSError:
            # The readers read again, and get the error of the disk.
            is_size_known = False
        else:
            is_first_commit = previous_high_watermark < self.epoch_start_offset <= self.high_watermark
            if self.reported_stable_offset <= reported and not is_first_commit:
                for reader in list(self.stable_readers):
                    reader.on_changed()
                return
            # A new leader serves these readers from its first commit on, so they read again.
            # Without open transactions the last stable offset moves with the high watermark, by as many bytes.
            is_size_known = (
                is_size_known
                and not is_first_commit
                and reported == previous_high_watermark
                and self.reported_stable_offset == self.high_watermark
            )
        for reader in list(self.stable_readers):
            if is_size_known:
                reader.on_high_watermark(size_bytes)
            else:
                reader.on_stable()

    def follow_high_watermark(self, high_watermark: int) -> None:
        """Move a follower's high watermark to the leader's, at most to the end of what is written here."""
        self.leader_high_watermark = high_watermark
        end_offset = min(high_watermark, self.log.written_end_offset)
        if end_offset > self.high_watermark:
            self.advance_high_watermark(end_offset)

    @property
    def lag_records(self) -> int:
        """Return how many committed records this replica lacks, as far as it knows."""
        known = self.leader_high_watermark if self.role is Role.FOLLOWER else 0
        return max(known - self.log.log_end_offset, 0)

    def note_truncated(self) -> None:
        """Lower the high watermark if records below it were truncated, and complete the fetches that wait for more.

        That happens after an unclean election, or if a replica lost records that it had acknowledged.
        """
        log = self.log
        self.epoch_start_offset = min(self.epoch_start_offset, log.log_end_offset)
        offset = max(min(self.high_watermark, log.written_end_offset), log.log_start_offset)
        if offset != self.high_watermark:
            self.high_watermark = offset
            self.release_readers()

    def note_log_start(self) -> None:
        """Report to the readers that the start of the log moved."""
        for reader in [*self.readers, *self.stable_readers, *self.replica_readers]:
            reader.on_log_start()

    def release_readers(self) -> None:
        """Complete all parked fetches."""
        readers = {**self.readers, **self.stable_readers, **self.replica_readers}
        self.readers, self.stable_readers, self.replica_readers = {}, {}, {}
        for reader in readers:
            reader.on_partition_deleted()

    # -- writers --------------------------------------------------------------------------------------------------

    def until(self, acks: int) -> Until:
        """Return what a produce with these ``acks`` waits for."""
        log = self.log
        if acks == -1 and log.flush_acks_all:
            return _DURABLE
        needs_others = acks == -1 or self.is_lease_over
        if log.log_end_offset - log.synced_end_offset >= log.flush_messages:
            return _DURABLE if needs_others else _SYNCED
        return _COMMITTED if needs_others else _WRITTEN

    def reached(self, until: Until) -> int:
        """Return the offset below which all records are as safe as ``until`` says."""
        if until is _SYNCED:
            return self.log.synced_end_offset
        if until is _DURABLE:
            return self.durable_offset
        if until is _DELETED:
            return self.low_watermark
        return self.high_watermark if until is _COMMITTED else self.log.written_end_offset

    def complete_writers(self) -> None:
        """Answer the writers that have what they wait for.

        Those whose batch is committed get NOT_ENOUGH_REPLICAS_AFTER_APPEND if too few replicas are in sync by now.
        """
        writers = self.writers
        for until in writers.awaited():
            code = 0
            offset = self.reached(until)
            if until not in (_SYNCED, _DELETED) and len(self.isr) < self.min_in_sync:
                code, offset = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, self.high_watermark
            writers.complete(until, offset, code)

    def leave(self, error_code: ErrorCode) -> None:
        """Answer all writers and complete all parked fetches: the partition is deleted, offline or led elsewhere."""
        self.writers.fail(error_code)
        unconfirmed, self.unconfirmed = self.unconfirmed, []
        for _, reader in unconfirmed:
            reader.on_write_complete(error_code)
        self.release_readers()


_WRITTEN, _SYNCED, _COMMITTED, _DURABLE, _DELETED = Until
