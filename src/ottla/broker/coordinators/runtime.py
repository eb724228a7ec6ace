"""Runtime of the shards of a coordinator: load shards from the log, run operations, append records, send replies.

    operation ──► Outcome ──► append to __consumer_offsets ──► replay ──► (write and group commit) ──► send replies
                     │                                                             └── the write fails: load the shard
                     └── the append fails: discard the group's soft state,             again from the log
                         reply with an error, leave the durable state unchanged

All code runs on the event loop, one operation at a time, so a shard needs no lock. The runtime sends a reply when every
record that the shard has appended so far is durable, including records of other operations. A crash can therefore never
revert a state that a client has seen in a reply.

Timers: a group sets ``wake_at``, which is not later than its earliest deadline. The broker's timer wheel has one entry
per group that has a deadline. A heartbeat changes a deadline but no timer. A timer may fire late, because the wheel
rounds up and the event loop may be busy. No operation and no reader depends on the timer: ``_expire_due`` applies every
deadline that has passed before the state of a group is read or changed, so that an expired session is never observed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from typing import Any, Generic

from ottla.broker.client import Client
from ottla.broker.coordinators.hosted_shard import HostedShard, S, ShardTimer
from ottla.broker.coordinators.log_errors import IN_LOG, reply_code
from ottla.broker.coordinators.outcome import NEVER, CoordinatorContext, Moment, Outcome, R, Ticket
from ottla.broker.coordinators.pending_reply import PendingReply, Refusal, Unstored
from ottla.broker.coordinators.shard_loader import ShardLoader
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.clock import Clock
from ottla.env.timers import TimerWheel
from ottla.model.errors import (
    ErrorCode,
    KafkaError,
    MessageTooLarge,
    NotLeaderOrFollower,
    OttlaError,
    RecordListTooLarge,
    Refused,
)
from ottla.model.hashing import java_hash
from ottla.model.records import Record, build_batch
from ottla.wire import Message

log = logging.getLogger(__name__)

#: records in one batch of ``perform_everywhere``
_BATCH_RECORDS_MAX = 1000


#: decides about a request
Operation = Callable[[S, Moment], Outcome[R]]


class StaleConnection(OttlaError):
    """A connection may contain requests from before this broker became coordinator: it has to be closed."""


class _DurableWaiter:
    """Sends the replies of an outcome when the log is durable up to an offset."""

    __slots__ = ("_hosted", "_outcome", "_runtime", "deadline")

    def __init__(
        self, runtime: ShardRuntime[Any], hosted: HostedShard[Any], outcome: Outcome[Any], deadline: float
    ) -> None:
        self._runtime = runtime
        self._hosted = hosted
        self._outcome = outcome
        self.deadline = deadline

    def on_write_complete(self, error_code: int) -> None:
        """Send the replies, or refuse the requests if the wait failed.

        After the errors IN_LOG the records may still become durable, so the shard keeps its state. After any other
        error the log has lost the records, so the shard is loaded again.
        """
        if not error_code:
            for ticket, result in self._outcome.replies:
                ticket.answer(result)
            self._runtime.on_durable(self._outcome)
            return
        self._runtime.refuse(self._outcome.replies, reply_code(ErrorCode(error_code)))
        if error_code not in IN_LOG:
            self._runtime.reload(self._hosted)
        elif self._runtime.requires_on_durable(self._outcome):
            self._runtime.wait_without_deadline(self._hosted, self._outcome)


class _ConfirmedReader(_DurableWaiter):
    """Waits until the log is durable, as soon as it is certain that this broker still was the coordinator."""

    def __init__(self, runtime: ShardRuntime[Any], hosted: HostedShard[Any], outcome: Outcome[Any]) -> None:
        super().__init__(runtime, hosted, outcome, NEVER)

    def on_write_complete(self, error_code: int) -> None:
        if error_code:
            self._runtime.refuse(self._outcome.replies, ErrorCode.NOT_COORDINATOR)
        else:
            self._runtime._reply(self._hosted, self._outcome)


class ShardRuntime(ABC, Generic[S]):
    """All shards of one internal topic on this broker."""

    #: the internal topic; each of its partitions has one shard
    topic: str

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        wheel: TimerWheel,
        replicas: ReplicaManager,
        context: CoordinatorContext,
        begin_turn: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._wheel = wheel
        self._replicas = replicas
        self.context = context
        #: schedules the write at the end of this turn, also for records that no request appended
        self._begin_turn = begin_turn
        #: partition number -> shard
        self._shards: dict[int, HostedShard[S]] = {}
        self._loader: ShardLoader[S] = ShardLoader(
            self.topic, load=self._load, on_unreadable=self._note_unreadable, reload=self.reload
        )
        #: how many times ``verify`` found a shard whose state differs from a replay of its log; must stay 0
        self.mismatches = 0
        replicas.referrers.append(self)

    # -- hooks for the group coordinator and the transaction coordinator ----------------------------------------------

    @abstractmethod
    def make_shard(self, partition: Partition) -> S: ...

    @abstractmethod
    def encode(self, record: Any) -> tuple[bytes, bytes | None]: ...

    @abstractmethod
    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        """Return the record, or None for a record type that Ottla ignores.

        :raises WireError: if the bytes are damaged.
        """

    @property
    @abstractmethod
    def partitions_at_creation(self) -> int:
        """Return the number of partitions with which the topic is created."""

    def on_appended(self, outcome: Outcome[Any]) -> None:
        """Called when the records of the outcome are in the log and replayed, or when the outcome has no records."""

    def requires_on_durable(self, outcome: Outcome[Any]) -> bool:
        """Return whether ``on_durable`` must be called even if the requests were refused with a timeout."""
        return False

    def on_durable(self, outcome: Outcome[Any]) -> None:
        """Called when the records of the outcome are durable and its replies are sent."""

    @property
    def commit_timeout_ms(self) -> int:
        return self.context.settings.offsets_commit_timeout_ms

    @property
    def compression_codec(self) -> int:
        return 0

    # -- operations -----------------------------------------------------------------------------------------------

    def run(
        self, name: str, operate: Operation[S, R], build: Callable[[R], Message], refuse: Refusal
    ) -> Message | PendingReply:
        """Run the operation of a request on the shard of a name.

        Return the reply, or a ticket if the reply is not known yet. ``build`` makes the reply from the result of the
        operation, ``refuse`` from an error code.
        """
        try:
            hosted = self._host_of(name)
        except KafkaError as error:
            return refuse(error.code)
        return self._answer(hosted, [name], operate, PendingReply(build, refuse))

    def run_many(
        self,
        names: Iterable[str],
        operate: Callable[[list[str]], Operation[S, R]],
        build: Callable[[R], Message],
        refuse: Callable[[list[str]], Refusal],
    ) -> list[Message | PendingReply]:
        """Run a request about many names, as one operation per shard. Return one reply or ticket per shard."""
        by_shard: dict[int, list[str]] = {}
        for name in names:
            by_shard.setdefault(self.partition_for(name), []).append(name)
        results: list[Message | PendingReply] = []
        for of_shard in by_shard.values():
            ticket = PendingReply(build, refuse(of_shard))
            try:
                results.append(self._answer(self._host_of(of_shard[0]), of_shard, operate(of_shard), ticket))
            except KafkaError as error:
                results.append(refuse(of_shard)(error.code))
        return results

    def shard(self, name: str) -> S:
        """Return the shard of a name, for a caller that reads the state of this name.

        :raises KafkaError: if the shard is not loaded; the error has the code for the reply.
        """
        hosted = self._host_of(name)
        self._expire_due(hosted, (name,))
        return hosted.shard

    def check_connection(self, name: str, client: Client) -> None:
        """Raise StaleConnection for a connection from before this broker became the coordinator of a name.

        Another broker may have been coordinator in between. A request that was delayed in this connection would be
        applied to a later transaction. The client connects again and sends its current request (KAFKA-17754).
        """
        hosted = self._shards.get(self.partition_for(name))
        if hosted is not None and 0 < client.connection <= hosted.accepted:
            raise StaleConnection(f"connection {client.connection} is older than the coordinator of {name!r} here")

    def durable(self, name: str) -> bool | PendingReply:
        """Return True if the state that the caller has just read is durable, else a ticket to wait for.

        A client that has fetched an offset must not get an older offset after a power failure. The result of the ticket
        is a message so that all waiters share one type: ``Unstored`` if the write failed, any other message if it
        succeeded. Nor may the client get an older offset than from a coordinator that was elected before it asked.
        """
        ticket, hosted = PendingReply(_stored, Unstored), self._host_of(name)
        reader = _ConfirmedReader(self, hosted, Outcome(replies=[(ticket, None)]))
        hosted.partition.confirm_leadership(reader, self._clock.monotonic())
        result = ticket.now_or_later()
        return result if isinstance(result, PendingReply) else True

    def shards(self) -> Iterator[S]:
        """Yield the loaded shards, for a caller that reads the state of all names."""
        for hosted in list(self._shards.values()):
            if hosted.loaded:
                self._expire_due(hosted, hosted.shard.expirables)
                yield hosted.shard

    def loaded_shards(self) -> list[S]:
        """Return the loaded shards without expiring sessions that are due, for a caller that counts."""
        return [hosted.shard for hosted in self._shards.values() if hosted.loaded]

    @property
    def is_loading(self) -> bool:
        return any(not hosted.loaded for hosted in self._shards.values())

    def partition_for(self, name: str) -> int:
        """Return Kafka's partition for a name: Java's hash without its sign, modulo the number of partitions.

        All brokers agree on it, whichever partitions they have. It is the same before and after the topic is created.
        """
        count = self.context.topics.partition_count(self.topic) or self.partitions_at_creation
        return (java_hash(name) & 0x7FFFFFFF) % count

    def _host_of(self, name: str) -> HostedShard[S]:
        """Return the loaded shard of a name. Raise Refused if this broker does not coordinate it, or not yet."""
        # The request may have waited in the socket of a paused process: a reply from memory could be outdated.
        self.context.check_lease()
        hosted = self._shards.get(self.partition_for(name))
        if hosted is None:
            exists = self.context.topics.partition_count(self.topic) is not None
            raise Refused(ErrorCode.NOT_COORDINATOR if exists else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not hosted.leads:
            raise Refused(ErrorCode.NOT_COORDINATOR)
        if not hosted.loaded:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "what this partition coordinates is being loaded")
        return hosted

    def _answer(
        self, hosted: HostedShard[S], names: list[str], operate: Operation[S, R], ticket: PendingReply
    ) -> Message | PendingReply:
        """Run the operation of a request. Return the reply, or the ticket if the reply is not known yet."""
        self._run(hosted, names, operate, ticket)
        return ticket.now_or_later()

    def _run(
        self, hosted: HostedShard[S], names: list[str], operate: Operation[S, R], ticket: Ticket | None = None
    ) -> None:
        """Apply the deadlines of these names that have passed, then the operation. The ticket gets its result."""
        now = self._expire_due(hosted, names) or self.now()
        outcome = operate(hosted.shard, now)
        if ticket is not None and outcome.result is not None:
            outcome.replies.append((ticket, outcome.result))
        self._perform(hosted, names, outcome, now)

    def _perform(self, hosted: HostedShard[S], names: Iterable[str], outcome: Outcome[Any], now: Moment) -> None:
        """Store an outcome, then the follow-up of each name, and set timers."""
        self._store(hosted, names, outcome, now)
        for name in names:
            follow_up = hosted.shard.follow_up_of(name, now, changed=bool(outcome.records))
            if follow_up is not None:
                self._store(hosted, [name], follow_up, now)
            self._set_timer(hosted, name)

    def _store(self, hosted: HostedShard[S], names: Iterable[str], outcome: Outcome[Any], now: Moment) -> None:
        """Append and replay the records of an outcome, then send its replies."""
        if outcome.records:
            try:
                self._append(hosted, outcome, now)
            except KafkaError as error:
                self._on_append_failed(hosted, names, outcome, error, now)
                return
        self.on_appended(outcome)
        self._reply(hosted, outcome)

    def _append(self, hosted: HostedShard[S], outcome: Outcome[Any], now: Moment) -> None:
        """Append the records as one batch, then replay them.

        :raises KafkaError: if the append failed; then no record is in the log and none was replayed.
        """
        partition = hosted.partition
        if not hosted.leads:
            raise NotLeaderOrFollower("this broker no longer leads the partition")
        partition.check_enough_replicas()
        producer = outcome.producer
        rows = []
        for record in outcome.records:
            key, value = self.encode(record)
            rows.append(Record(timestamp=now.wall_ms, key=key, value=value))
        batch = bytearray(
            build_batch(
                rows, codec=self.compression_codec, transactional=producer is not None,
                producer_id=-1 if producer is None else producer.producer_id,
                producer_epoch=-1 if producer is None else producer.epoch,
            )
        )  # fmt: skip
        self._begin_turn()
        _, end = self._replicas.append(
            partition, batch, memoryview(batch), 0, len(batch), now.wall_ms, transactional=producer is not None,
            sequenced=producer is None, opened=partition.log.settings,
        )  # fmt: skip
        hosted.end_offset = end
        for record in outcome.records:
            hosted.shard.replay(record, producer)

    def _reply(self, hosted: HostedShard[S], outcome: Outcome[Any]) -> None:
        """Send the replies when all records of the shard are durable."""
        deadline = self._clock.monotonic() + self.commit_timeout_ms / 1000
        waiter = _DurableWaiter(self, hosted, outcome, deadline)
        self._wait(hosted, waiter)

    def _wait(self, hosted: HostedShard[S], waiter: _DurableWaiter) -> None:
        partition = hosted.partition
        self._replicas.commits.wait(partition, partition.until(acks=-1), hosted.end_offset, waiter)

    def wait_without_deadline(self, hosted: HostedShard[S], outcome: Outcome[Any]) -> None:
        """Wait without a deadline until the outcome is durable, then call ``on_durable``.

        The requests have already been refused with a timeout. The records are in the log and replayed, so the outcome
        stays in force.
        """
        outcome.replies.clear()
        self._wait(hosted, _DurableWaiter(self, hosted, outcome, NEVER))

    def _on_append_failed(
        self, hosted: HostedShard[S], names: Iterable[str], outcome: Outcome[Any], error: KafkaError, now: Moment
    ) -> None:
        """Refuse the requests of the outcome, and discard the soft state that the operation may have changed."""
        too_large = isinstance(error, MessageTooLarge | RecordListTooLarge)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if too_large else reply_code(error.code)
        for name in names:
            log.warning("a change was not stored topic=%s name=%r error=%s", self.topic, name, error)
            if not hosted.shard.changes_soft_state(outcome.records):
                continue
            expirable = hosted.shard.expirables.get(name)
            if expirable is not None:
                self.refuse(expirable.retire(code).replies, code)
            hosted.shard.discard_soft_state(name, now)
        self.refuse(outcome.replies, code)

    @staticmethod
    def refuse(replies: Iterable[tuple[Ticket, Any]], code: int) -> None:
        """Complete the requests of these tickets with an error code instead of the replies."""
        for ticket, _ in replies:
            ticket.refuse(code)

    def now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.wall_ms())

    # -- timers ---------------------------------------------------------------------------------------------------

    def _set_timer(self, hosted: HostedShard[S], name: str) -> None:
        """Set the timer of a name to its ``wake_at``, unless the timer is set to an earlier time.

        A timer that fires early only costs a check; ``wake`` then sets it again.
        """
        expirable = hosted.shard.expirables.get(name)
        timer = hosted.timers.get(name)
        if expirable is None or expirable.wake_at == NEVER:
            if timer is not None and expirable is None:
                TimerWheel.remove(timer)
                del hosted.timers[name]
            return
        if timer is None:
            timer = hosted.timers[name] = ShardTimer(partial(self.wake, hosted, name))
        if timer.timer_bucket is None or expirable.wake_at < timer.at:
            TimerWheel.remove(timer)
            timer.at = expirable.wake_at
            self._wheel.add(timer, max(expirable.wake_at - self._clock.monotonic(), 0.0))

    def wake(self, hosted: HostedShard[S], name: str) -> None:
        """Expire what is due after the timer of a name fired, and set the timer again if a deadline is left."""
        if hosted.loaded and hosted.leads:
            self._expire_due(hosted, (name,))
            self._set_timer(hosted, name)

    def _expire_due(self, hosted: HostedShard[S], names: Iterable[str]) -> Moment | None:
        """Expire the deadlines of these names that have passed. Return the time, or None if no name has a deadline.

        The timers may not have fired yet. All deadlines are compared with the same time. The caller passes that time to
        the operation that follows.
        """
        expirables = hosted.shard.expirables
        waiting = [name for name in names if (found := expirables.get(name)) is not None and found.wake_at != NEVER]
        if not waiting:
            return None
        now = self.now()
        for name in waiting:
            expirable = expirables.get(name)
            if expirable is not None and expirable.wake_at <= now.monotonic_s and hosted.leads:
                self._perform(hosted, [name], expirable.expire(now), now)
        return now

    # -- load and unload ------------------------------------------------------------------------------------------

    def serve(self, partitions: dict[int, Partition]) -> None:
        """Load the shards of the partitions that this broker leads, and unload those of all others.

        A shard is loaded again in a new leader epoch, unless it is the one after that of the shard: then no other
        broker can have led the partition in between. The epoch rises in this way when another replica fails. The shard
        of an empty log counts as loaded immediately.
        """
        partitions = {number: each for number, each in partitions.items() if each.role is Role.LEADER}
        for number, partition in partitions.items():
            known = self._shards.get(number)
            is_same = known is not None and known.partition is partition
            if known is not None and is_same and partition.leader_epoch - known.leader_epoch in (0, 1):
                known.leader_epoch = partition.leader_epoch
                continue
            if known is not None:
                self._unload(known)
            hosted = self._shards[number] = HostedShard(partition, self.make_shard(partition))
            if partition.log.log_end_offset == partition.log.log_start_offset:
                hosted.loaded = True
            else:
                hosted.accepted = self.context.accepted()
                self._loader.add(hosted)
        for number in [number for number in self._shards if number not in partitions]:
            self._unload(self._shards.pop(number))

    def discard(self, partition: Partition) -> None:
        """Unload the shard of a partition that is no longer served."""
        hosted = self._shards.get(partition.name.partition)
        if hosted is not None and hosted.partition is partition:
            self._unload(self._shards.pop(partition.name.partition))

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if there is a shard of a partition that is not served."""
        assert {hosted.partition for hosted in (*self._shards.values(), *self._loader.waiting)} <= served, self.topic

    def refresh(self) -> None:
        """Load and unload shards after a change of the partitions of the topic or of their roles."""
        self.serve(self._replicas.topics.get(self.topic.encode(), {}))

    def reload(self, hosted: HostedShard[S]) -> None:
        """Replace the shard by a new one and load it: the log lost records of the old one, or could not be read.

        If another broker leads the partition now, ``serve`` unloads the shard. If the log is offline, it stays so.
        """
        number = hosted.partition.name.partition
        if self._shards.get(number) is not hosted or hosted.partition.role is Role.FOLLOWER:
            return
        if hosted.partition.offline:
            self._unload(self._shards.pop(number))
            return
        log.error("a shard is loaded again after a failure partition=%s", hosted.partition.name)
        self._unload(hosted)
        shard = self.make_shard(hosted.partition)
        replacement = self._shards[number] = HostedShard(hosted.partition, shard, hosted.accepted)
        self._loader.add(replacement)

    def _unload(self, hosted: HostedShard[S]) -> None:
        """Remove the timers of a shard and refuse its parked requests with NOT_COORDINATOR."""
        hosted.loaded = False
        self._loader.remove(hosted)
        for timer in hosted.timers.values():
            TimerWheel.remove(timer)
        hosted.timers.clear()
        self.refuse(hosted.shard.retire(ErrorCode.NOT_COORDINATOR).replies, ErrorCode.NOT_COORDINATOR)

    def _note_unreadable(self, hosted: HostedShard[S], error: OSError | KafkaError) -> None:
        """Handle a log that cannot be read as a failed fetch of it: with other replicas in sync, it goes offline.

        Then this broker no longer coordinates the partition, and clients find the coordinator on another broker.
        """
        if isinstance(error, OSError):
            self._replicas.storage.note_read_error(hosted.partition.name, error)
        else:
            log.error("a shard cannot be read now partition=%s error=%s", hosted.partition.name, error)
        if hosted.partition.offline:
            self.refresh()

    async def _load(self, hosted: HostedShard[S]) -> None:
        started = self._clock.monotonic()
        await hosted.replay(self.decode, self._begin_turn)
        if self._shards.get(hosted.partition.name.partition) is not hosted:
            return
        now = self.now()
        hosted.shard.resume(now)
        hosted.loaded = True
        names = list(hosted.shard.expirables)
        if names:
            seconds = self._clock.monotonic() - started
            log.info("loaded partition=%s names=%d seconds=%.3f", hosted.partition.name, len(names), seconds)
        self._perform(hosted, names, hosted.shard.after_load(now), now)

    # -- maintenance ----------------------------------------------------------------------------------------------

    def perform_everywhere(self, decide: Callable[[S, Moment], list[Any]], name_of: Callable[[Any], str]) -> None:
        """Append the records that ``decide`` returns for each shard, in batches of ``_BATCH_RECORDS_MAX`` records."""
        for hosted in list(self._shards.values()):
            if not hosted.loaded or not hosted.leads:
                continue
            now = self._expire_due(hosted, hosted.shard.expirables) or self.now()
            records = decide(hosted.shard, now)
            for start in range(0, len(records), _BATCH_RECORDS_MAX):
                part = records[start : start + _BATCH_RECORDS_MAX]
                self._perform(hosted, list(dict.fromkeys(map(name_of, part))), Outcome(records=part), now)

    async def verify(self) -> int:
        """Replay every log into a second shard and compare both. Return the number of shards that differ."""
        differing = 0
        for hosted in list(self._shards.values()):
            try:
                is_different = hosted.loaded and hosted.leads and await self._differs(hosted)
            except (OSError, KafkaError) as error:
                self._note_unreadable(hosted, error)
                continue
            if is_different:
                differing += 1
                log.error("a shard differs from a replay of its log partition=%s", hosted.partition.name)
        self.mismatches += differing
        return differing

    async def _differs(self, hosted: HostedShard[S]) -> bool:
        """Return whether a shard differs from a replay of its log; False if it is unloaded meanwhile."""
        replayed = HostedShard(hosted.partition, self.make_shard(hosted.partition))
        while replayed.end_offset < hosted.end_offset and hosted.loaded and hosted.leads:
            await replayed.replay(self.decode, self._begin_turn)
            await asyncio.sleep(0)  # appended records are written to the file at the end of this turn
        return hosted.loaded and hosted.leads and hosted.shard.durable() != replayed.shard.durable()

    async def stop(self) -> None:
        """Stop the load and unload all shards."""
        await self._loader.stop()
        for hosted in self._shards.values():
            self._unload(hosted)


def _stored(_: None) -> Message:
    """Return the result of a wait for durability that succeeded; never sent to a client."""
    return Message()
