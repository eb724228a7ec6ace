"""The shards at work: load them from the log, run operations on them, append what they decide, reply when it is stored.

    operation ──► Outcome ──► append to __consumer_offsets ──► replay ──► (turn's write, group commit) ──► replies leave
                     └── append refused: the group's soft state is dropped, an error is answered, nothing changed
                                                          the write failed later: the shard is loaded again from the log

Everything runs on the event loop, one operation at a time, so a shard needs no lock. A reply leaves when everything
that its shard has appended so far is durable, its own records or not: what a client was told is never taken back.

Timers: a group says when it wants to be woken (``wake_at``); one entry in the broker's timer wheel per group that waits
for something. A heartbeat moves a number and touches no timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator

from ottla.coordinator.groups import GroupShard, Operation
from ottla.coordinator.journal import Rebalance
from ottla.coordinator.outcome import NEVER, Moment, Outcome, Ticket, World
from ottla.coordinator.records import CoordinatorRecord, decode_record, encode_record
from ottla.env.clock import Clock
from ottla.env.timers import Expiring, TimerWheel
from ottla.log.records import Record, build_batch, iterate_records
from ottla.model.batch import read_header
from ottla.model.errors import ErrorCode, KafkaError, MessageTooLarge, RecordListTooLarge, Refused
from ottla.replica.manager import ReplicaManager
from ottla.replica.partition import Partition
from ottla.wire import Message, WireError

log = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
#: the shard is not there yet, or no longer; clients look for the coordinator again and come back
_RETRIABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
#: how much of a log is replayed before other work gets its turn
_LOAD_BYTES = 128 << 10

Refusal = Callable[[int], Message]


class PendingReply:
    """A ticket: the reply, once it is known, and who waits for it."""

    __slots__ = ("_future", "_message", "refuse")

    def __init__(self, refuse: Refusal) -> None:
        #: the reply for an error that hit the whole request
        self.refuse = refuse
        self._message: Message | None = None
        self._future: asyncio.Future[Message] | None = None

    def answer(self, message: Message) -> None:
        self._message = message
        if self._future is not None and not self._future.done():
            self._future.set_result(message)

    def result(self, loop: asyncio.AbstractEventLoop) -> Message | asyncio.Future[Message]:
        if self._message is not None:
            return self._message
        self._future = loop.create_future()
        return self._future


class Unstored(Message):
    """Stands for a reply where none is sent: the log could not be made durable."""

    __slots__ = ("error_code",)

    def __init__(self, error_code: int) -> None:
        self.error_code = error_code


class _Shard:
    """One partition: the groups, and where their log stands."""

    __slots__ = ("end_offset", "groups", "loaded", "partition", "timers")

    def __init__(self, partition: Partition, world: World) -> None:
        self.partition = partition
        self.groups = GroupShard(world)
        self.loaded = False
        #: everything below was replayed
        self.end_offset = partition.log.log_start_offset
        #: by group id
        self.timers: dict[str, _GroupTimer] = {}


class _GroupTimer:
    """Wakes one group."""

    __slots__ = ("_group_id", "_runtime", "_shard", "at", "timer_bucket")

    def __init__(self, runtime: GroupRuntime, shard: _Shard, group_id: str) -> None:
        self._runtime = runtime
        self._shard = shard
        self._group_id = group_id
        self.at = NEVER
        self.timer_bucket: dict[Expiring, None] | None = None

    def expire(self) -> None:
        self._runtime.wake(self._shard, self._group_id)


class _Commit:
    """Replies that wait until the log is durable up to an offset."""

    __slots__ = ("_runtime", "_shard", "deadline", "replies")

    def __init__(
        self, runtime: GroupRuntime, shard: _Shard, replies: list[tuple[Ticket, Message]], deadline: float
    ) -> None:
        self._runtime = runtime
        self._shard = shard
        self.replies = replies
        self.deadline = deadline

    def on_committed(self, error_code: int) -> None:
        if not error_code:
            for ticket, message in self.replies:
                ticket.answer(message)
            return
        self._runtime.refuse(self.replies, _RETRIABLE.get(ErrorCode(error_code), ErrorCode.NOT_COORDINATOR))
        if error_code != ErrorCode.REQUEST_TIMED_OUT:
            self._runtime.reload(self._shard)


class GroupRuntime:
    """All shards of this broker."""

    def __init__(
        self, *, loop: asyncio.AbstractEventLoop, clock: Clock, wheel: TimerWheel, replicas: ReplicaManager,
        world: World, begin_turn: Callable[[], None], on_rebalance: Callable[[Rebalance], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._clock = clock
        self._wheel = wheel
        self._replicas = replicas
        self.world = world
        #: makes sure that what is appended outside of a request is written, too
        self._begin_turn = begin_turn
        self._on_rebalance = on_rebalance
        self._shards: dict[int, _Shard] = {}
        self._loading: list[_Shard] = []
        self._load_task: asyncio.Task[None] | None = None
        #: shards whose state was found to differ from a replay of their log; must stay 0
        self.mismatches = 0
        self.commits = 0

    # -- operations -----------------------------------------------------------------------------------------------

    def run(self, group_id: str, operate: Operation, refuse: Refusal) -> Message | asyncio.Future[Message]:
        """Run an operation on a group's shard. The reply is there at once, or it is awaited."""
        try:
            shard = self._shard_of(group_id)
        except KafkaError as error:
            return refuse(error.code)
        return self._run(shard, [group_id], operate, refuse)

    def run_many(
        self, group_ids: Iterable[str], operate: Callable[[list[str]], Operation],
        refuse: Callable[[list[str]], Refusal],
    ) -> list[Message | asyncio.Future[Message]]:  # fmt: skip
        """The same for a request about many groups: one operation, and one reply, per shard."""
        by_shard: dict[int, list[str]] = {}
        for group_id in group_ids:
            by_shard.setdefault(self.partition_for(group_id), []).append(group_id)
        results: list[Message | asyncio.Future[Message]] = []
        for ids in by_shard.values():
            try:
                results.append(self._run(self._shard_of(ids[0]), ids, operate(ids), refuse(ids)))
            except KafkaError as error:
                results.append(refuse(ids)(error.code))
        return results

    def shard(self, group_id: str) -> GroupShard:
        """The groups beside this one, to be read. Raises the error to answer with while there is no coordinator."""
        return self._shard_of(group_id).groups

    def durable(self, group_id: str) -> bool | asyncio.Future[Message]:
        """Whether what was just read of this group is on disk; else a future that is done when it is.

        Somebody who read an offset must not find an older one after a power cut. The future's result is a message only
        because those of all waits are: ``Unstored`` when it never came to be, anything else when it did.
        """
        ticket = PendingReply(Unstored)
        self._reply(self._shard_of(group_id), [(ticket, Message())])
        result = ticket.result(self._loop)
        return result if isinstance(result, asyncio.Future) else True

    def shards(self) -> Iterator[GroupShard]:
        """Those that are loaded."""
        return (shard.groups for shard in self._shards.values() if shard.loaded)

    @property
    def is_loading(self) -> bool:
        return any(not shard.loaded for shard in self._shards.values())

    def partition_for(self, group_id: str) -> int:
        """Kafka's choice: Java's hash of the name, without its sign."""
        count = len(self._shards)
        return (java_hash(group_id) & 0x7FFFFFFF) % count if count else 0

    def _shard_of(self, group_id: str) -> _Shard:
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None or shard.partition.offline:
            raise Refused(ErrorCode.NOT_COORDINATOR if shard is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not shard.loaded:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the groups of this partition are being loaded")
        return shard

    def _run(
        self, shard: _Shard, group_ids: list[str], operate: Operation, refuse: Refusal
    ) -> Message | asyncio.Future[Message]:
        ticket = PendingReply(refuse)
        now = self.now()
        self._perform(shard, group_ids, operate(shard.groups, ticket, now), now)
        return ticket.result(self._loop)

    def _perform(self, shard: _Shard, group_ids: Iterable[str], outcome: Outcome, now: Moment) -> None:
        """Append, replay, reply; then whatever follows from it."""
        self._perform_one(shard, group_ids, outcome, now)
        for group_id in group_ids:
            follow_up = shard.groups.settle(group_id, now, changed=bool(outcome.records))
            if follow_up is not None:
                self._perform_one(shard, [group_id], follow_up, now)
            self._arm(shard, group_id)

    def _perform_one(self, shard: _Shard, group_ids: Iterable[str], outcome: Outcome, now: Moment) -> None:
        if outcome.records:
            try:
                self._append(shard, outcome.records, now)
            except KafkaError as error:
                self._not_stored(shard, group_ids, outcome, error, now)
                return
        if outcome.replies:
            self._reply(shard, outcome.replies)
        for rebalance in outcome.rebalances:
            self._on_rebalance(rebalance)

    def _append(self, shard: _Shard, records: list[CoordinatorRecord], now: Moment) -> None:
        """One batch, replayed as soon as it is in the log. Raises KafkaError, and then nothing was replayed."""
        partition = shard.partition
        partition.check_enough_replicas()
        rows = []
        for record in records:
            key, value = encode_record(record)
            rows.append(Record(timestamp=now.wall_ms, key=key, value=value))
        batch = bytearray(build_batch(rows, codec=self.world.settings.offsets_topic_compression_codec))
        self._begin_turn()
        _, end = self._replicas.append(partition, batch, memoryview(batch), 0, len(batch), now.wall_ms)
        shard.end_offset = end
        for record in records:
            shard.groups.replay(record)
        self.commits += 1

    def _reply(self, shard: _Shard, replies: list[tuple[Ticket, Message]]) -> None:
        partition = shard.partition
        its_log = partition.log
        timeout_s = self.world.settings.offsets_commit_timeout_ms / 1000
        commit = _Commit(self, shard, replies, self._clock.monotonic() + timeout_s)
        if its_log.flush_acks_all:
            self._replicas.wait_synced(partition, shard.end_offset, commit)
        elif its_log.written_end_offset < shard.end_offset:
            self._replicas.wait_written(partition, commit)
        else:
            commit.on_committed(0)

    def _not_stored(
        self, shard: _Shard, group_ids: Iterable[str], outcome: Outcome, error: KafkaError, now: Moment
    ) -> None:
        too_large = isinstance(error, MessageTooLarge | RecordListTooLarge)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if too_large else _RETRIABLE.get(error.code, ErrorCode.NOT_COORDINATOR)
        for group_id in group_ids:
            log.warning("group change was not stored group=%r error=%s", group_id, error)
            if not shard.groups.changes_groups(outcome.records):
                continue
            group = shard.groups.groups.get(group_id)
            if group is not None:
                self.refuse(group.retire(code).replies, code)
            shard.groups.discard_soft_state(group_id, now)
        self.refuse(outcome.replies, code)

    @staticmethod
    def refuse(replies: Iterable[tuple[Ticket, Message]], code: int) -> None:
        for ticket, _ in replies:
            ticket.answer(ticket.refuse(code))

    def now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.wall_ms())

    # -- timers ---------------------------------------------------------------------------------------------------

    def _arm(self, shard: _Shard, group_id: str) -> None:
        """Wake the group when it wants to be, if no earlier alarm is set: an early one costs a look and is set anew."""
        group = shard.groups.groups.get(group_id)
        timer = shard.timers.get(group_id)
        if group is None or group.wake_at == NEVER:
            if timer is not None and group is None:
                TimerWheel.remove(timer)
                del shard.timers[group_id]
            return
        if timer is None:
            timer = shard.timers[group_id] = _GroupTimer(self, shard, group_id)
        if timer.timer_bucket is None or group.wake_at < timer.at:
            TimerWheel.remove(timer)
            timer.at = group.wake_at
            self._wheel.add(timer, max(group.wake_at - self._clock.monotonic(), 0.0))

    def wake(self, shard: _Shard, group_id: str) -> None:
        group = shard.groups.groups.get(group_id)
        if group is None or not shard.loaded or shard.partition.offline:
            return
        now = self.now()
        outcome = group.expire(now) if group.wake_at <= now.monotonic_s else Outcome()
        self._perform(shard, [group_id], outcome, now)

    # -- partitions come and go -----------------------------------------------------------------------------------

    def serve(self, partitions: dict[int, Partition]) -> None:
        """These are the partitions of the topic now. Those that are new are loaded; empty ones are ready at once."""
        for number, partition in partitions.items():
            known = self._shards.get(number)
            if known is not None and known.partition is partition:
                continue
            if known is not None:
                self._unload(known)
            shard = self._shards[number] = _Shard(partition, self.world)
            if partition.log.log_end_offset == partition.log.log_start_offset:
                shard.loaded = True
            else:
                self._load_later(shard)
        for number in [number for number in self._shards if number not in partitions]:
            self._unload(self._shards.pop(number))

    def reload(self, shard: _Shard) -> None:
        """The log lost what was replayed already: start again from what it has."""
        number = shard.partition.name.partition
        if self._shards.get(number) is not shard:
            return
        log.error("groups are loaded again after a failed write partition=%s", shard.partition.name)
        self._unload(shard)
        again = self._shards[number] = _Shard(shard.partition, self.world)
        self._load_later(again)

    def _unload(self, shard: _Shard) -> None:
        shard.loaded = False
        for timer in shard.timers.values():
            TimerWheel.remove(timer)
        shard.timers.clear()
        self.refuse(shard.groups.retire(ErrorCode.NOT_COORDINATOR).replies, ErrorCode.NOT_COORDINATOR)

    def _load_later(self, shard: _Shard) -> None:
        self._loading.append(shard)
        if self._load_task is None or self._load_task.done():
            self._load_task = self._loop.create_task(self._load_all(), name="load groups")

    async def _load_all(self) -> None:
        while self._loading:
            shard = self._loading.pop(0)
            started = self._clock.monotonic()
            try:
                await self._load(shard)
            except (OSError, KafkaError) as error:
                log.error("groups cannot be loaded partition=%s error=%s", shard.partition.name, error)
                continue
            if self._shards.get(shard.partition.name.partition) is not shard:
                continue
            now = self.now()
            shard.groups.resume(now)
            shard.loaded = True
            if shard.groups.groups:
                log.info(
                    "groups loaded partition=%s groups=%d seconds=%.3f", shard.partition.name,
                    len(shard.groups.groups), self._clock.monotonic() - started,
                )  # fmt: skip
            self._perform(shard, list(shard.groups.groups), Outcome(records=shard.groups.of_missing_topics()), now)

    async def _load(self, shard: _Shard) -> None:
        while (records := self._read(shard.partition, shard.end_offset)) is not None:
            shard.end_offset, batch = records
            for record in batch:
                shard.groups.replay(record)
            await asyncio.sleep(0)

    def _read(self, partition: Partition, offset: int) -> tuple[int, list[CoordinatorRecord]] | None:
        """Some records from ``offset`` on and where to go on; None at the end."""
        its_log = partition.log
        region = its_log.read(offset, _LOAD_BYTES, its_log.written_end_offset, at_least_one=True)
        if region is None:
            return None
        data = region.read()
        records = []
        position = 0
        while position < len(data):
            header = read_header(data, position)
            batch = data[position : position + header.size_bytes]
            position += header.size_bytes
            offset = header.next_offset
            for record in iterate_records(batch):
                try:
                    decoded = decode_record(record.key or b"", record.value)
                except WireError as error:
                    log.error("record cannot be read partition=%s offset=%d error=%s",
                              partition.name, record.offset, error)  # fmt: skip
                    continue
                if decoded is not None:
                    records.append(decoded)
        return offset, records

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def expire_offsets(self) -> None:
        now = self.now()
        for shard in self._shards.values():
            if shard.loaded and not shard.partition.offline:
                self._tidy(shard, shard.groups.expire_offsets(now), now)

    def topics_deleted(self, names: list[str]) -> None:
        """Offsets of topics that are gone go with them; those deleted while we were down, at the next start."""
        now = self.now()
        for shard in self._shards.values():
            if shard.loaded and not shard.partition.offline:
                self._tidy(shard, shard.groups.topics_deleted(names), now)

    def _tidy(self, shard: _Shard, records: list[CoordinatorRecord], now: Moment) -> None:
        """Tombstones, in batches of a bounded size."""
        for start in range(0, len(records), 1000):
            part = records[start : start + 1000]
            self._perform(shard, dict.fromkeys(record.key.group for record in part), Outcome(records=part), now)

    async def verify(self) -> int:
        """Replay every log beside what is served and compare: the state must be the replay's, at any time."""
        differing = 0
        for shard in list(self._shards.values()):
            if not shard.loaded or shard.partition.offline:
                continue
            twin = _Shard(shard.partition, self.world)
            while twin.end_offset < shard.end_offset and shard.loaded:
                await self._load(twin)
                await asyncio.sleep(0)  # what is pending is written at the end of this turn
            if shard.loaded and not same_durable(shard.groups, twin.groups):
                differing += 1
                log.error("groups differ from a replay of their log partition=%s", shard.partition.name)
        self.mismatches += differing
        return differing

    async def stop(self) -> None:
        if self._load_task is not None:
            self._load_task.cancel()
            await asyncio.wait([self._load_task])
        for shard in self._shards.values():
            self._unload(shard)


def same_durable(left: GroupShard, right: GroupShard) -> bool:
    """Whether two shards hold the same records; what is not durable does not count."""
    return left.durable() == right.durable()


def java_hash(text: str) -> int:
    """``String.hashCode`` as an unsigned number; it counts UTF-16 units."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value
