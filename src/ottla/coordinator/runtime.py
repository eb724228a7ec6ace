"""The shards at work: load them from the log, run operations on them, append what they decide, reply when it is stored.

    operation ──► Outcome ──► append to __consumer_offsets ──► replay ──► (turn's write, group commit) ──► replies leave
                     └── append refused: the group's soft state is dropped, an error is answered, nothing changed
                                                          the write failed later: the shard is loaded again from the log

Everything runs on the event loop, one operation at a time, so a shard needs no lock. A reply leaves when everything
that its shard has appended so far is durable, its own records or not: what a client was told is never taken back.

Timers: a group sets ``wake_at``, which is not later than its earliest deadline; one entry in the broker's timer wheel
per group that waits for something. A heartbeat moves a number and touches no timer. A timer may be late, because the
wheel rounds up and the loop may be busy. No operation and no reader depends on it: ``_expire_due`` applies every
deadline that has passed before the state of a group is read or changed, so that an expired session is never observed.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ottla.coordinator.outcome import NEVER, Moment, Producer, Ticket, World
from ottla.env.clock import Clock
from ottla.env.timers import Expiring, TimerWheel
from ottla.log.transactions import read_marker
from ottla.model.batch import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from ottla.model.errors import ErrorCode, KafkaError, MessageTooLarge, RecordListTooLarge, Refused
from ottla.model.records import Record, build_batch, iterate_records
from ottla.replica.manager import ReplicaManager
from ottla.replica.partition import Partition
from ottla.wire import Message, WireError

log = logging.getLogger(__name__)

#: the shard is not there yet, or no longer; clients look for the coordinator again and come back
RETRIABLE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
#: how much of a log is replayed before other work gets its turn
_LOAD_BYTES = 128 << 10
#: tombstones in one batch
_UPKEEP_RECORDS_MAX = 1000

Refusal = Callable[[int], Message]


class Decided(Protocol):
    """What an operation decided: ``Outcome`` or ``TransactionOutcome``."""

    @property
    def records(self) -> list[Any]: ...

    @property
    def replies(self) -> list[tuple[Ticket, Message]]: ...


class Sleeper(Protocol):
    """A group, or a transactional id: it says when it wants to be woken."""

    wake_at: float

    def expire(self, now: Moment) -> Decided: ...

    def retire(self, error_code: ErrorCode) -> Decided: ...


class Shard(Protocol):
    """The state of one partition. Pure; ``replay`` is the only writer of what is durable."""

    @property
    def sleepers(self) -> Mapping[str, Sleeper]: ...

    def replay(self, record: Any, producer: Producer | None) -> None: ...

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """A marker: what was replayed for this producer counts from now on, or never."""

    def resume(self, now: Moment) -> None: ...

    def after_load(self, now: Moment) -> Decided: ...

    def settle(self, name: str, now: Moment, *, changed: bool) -> Decided | None: ...

    def changes_soft_state(self, records: list[Any]) -> bool:
        """Whether whoever made these records may have changed what is not durable, too."""

    def discard_soft_state(self, name: str, now: Moment) -> None: ...

    def retire(self, error_code: ErrorCode) -> Decided: ...

    def durable(self) -> dict[str, object]: ...


S = TypeVar("S", bound=Shard)
Operation = Callable[[S, Ticket, Moment], Decided]


class PendingReply:
    """A ticket: the reply, once it is known, and who waits for it.

    Unlike an asyncio future it tells the one who waits at once: a reply that becomes known when files are written
    leaves at the end of the same turn.
    """

    __slots__ = ("_future", "_message", "_then", "abandon", "refuse")

    def __init__(self, refuse: Refusal) -> None:
        #: the reply for an error that hit the whole request
        self.refuse = refuse
        #: for a request that may wait for long: called when its client has closed the connection
        self.abandon: Callable[[], None] | None = None
        self._message: Message | None = None
        self._then: Callable[[Message], None] | None = None
        self._future: asyncio.Future[Message] | None = None

    def answer(self, message: Message) -> None:
        self._message = message
        if self._then is not None:
            self._then(message)
        if self._future is not None and not self._future.done():
            self._future.set_result(message)

    def then(self, callback: Callable[[Message], None]) -> None:
        """Call back with the reply, which is not known yet."""
        assert self._message is None and self._then is None
        self._then = callback

    def done(self) -> bool:
        return self._message is not None

    def result(self) -> Message:
        assert self._message is not None, "the reply is not known yet"
        return self._message

    def now_or_later(self) -> Message | PendingReply:
        return self if self._message is None else self._message

    def __await__(self) -> Generator[Any, None, Message]:
        if self._message is None:
            self._future = asyncio.get_running_loop().create_future()
            yield from self._future
        return self.result()


class Unstored(Message):
    """Stands for a reply where none is sent: the log could not be made durable."""

    __slots__ = ("error_code",)

    def __init__(self, error_code: int) -> None:
        self.error_code = error_code


class Hosted(Generic[S]):
    """One partition: its shard, and where its log stands."""

    __slots__ = ("end_offset", "loaded", "partition", "shard", "timers")

    def __init__(self, partition: Partition, shard: S) -> None:
        self.partition = partition
        self.shard = shard
        self.loaded = False
        #: everything below was replayed
        self.end_offset = partition.log.log_start_offset
        #: by name
        self.timers: dict[str, _Timer] = {}


class _Timer:
    """Wakes one group, or one transactional id."""

    __slots__ = ("_hosted", "_name", "_runtime", "at", "timer_bucket")

    def __init__(self, runtime: ShardRuntime[Any], hosted: Hosted[Any], name: str) -> None:
        self._runtime = runtime
        self._hosted = hosted
        self._name = name
        self.at = NEVER
        self.timer_bucket: dict[Expiring, None] | None = None

    def expire(self) -> None:
        self._runtime.wake(self._hosted, self._name)


class _Commit:
    """An outcome whose replies wait until the log is durable up to an offset."""

    __slots__ = ("_hosted", "_outcome", "_runtime", "deadline")

    def __init__(
        self, runtime: ShardRuntime[Any], hosted: Hosted[Any], outcome: Decided, deadline: float
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._hosted = hosted
        self._outcome = outcome
        self.deadline = deadline

    def on_committed(self, error_code: int) -> None:
        if not error_code:
            for ticket, message in self._outcome.replies:
                ticket.answer(message)
            self._runtime.on_durable(self._outcome)
            return
        self._runtime.refuse(self._outcome.replies, RETRIABLE.get(ErrorCode(error_code), ErrorCode.NOT_COORDINATOR))
        if error_code != ErrorCode.REQUEST_TIMED_OUT:
            self._runtime.reload(self._hosted)
        elif self._runtime.leads_to_more(self._outcome):
            self._runtime.wait_for_disk(self._hosted, self._outcome)


class ShardRuntime(ABC, Generic[S]):
    """All shards of one internal topic on this broker."""

    #: whose partitions the shards are
    topic: str

    def __init__(
        self, *, loop: asyncio.AbstractEventLoop, clock: Clock, wheel: TimerWheel, replicas: ReplicaManager,
        world: World, begin_turn: Callable[[], None],
    ) -> None:  # fmt: skip
        self._loop = loop
        self._clock = clock
        self._wheel = wheel
        self._replicas = replicas
        self.world = world
        #: makes sure that what is appended outside of a request is written, too
        self._begin_turn = begin_turn
        self._shards: dict[int, Hosted[S]] = {}
        self._loading: list[Hosted[S]] = []
        self._load_task: asyncio.Task[None] | None = None
        #: shards whose state was found to differ from a replay of their log; must stay 0
        self.mismatches = 0

    # -- what the two coordinators differ in ------------------------------------------------------------------------

    @abstractmethod
    def make_shard(self, partition: Partition) -> S: ...

    @abstractmethod
    def encode(self, record: Any) -> tuple[bytes, bytes | None]: ...

    @abstractmethod
    def decode(self, key: bytes, value: bytes | None) -> Any | None:
        """None for a record that is not ours to know. Raises WireError for one that is damaged."""

    @abstractmethod
    def producer_of(self, outcome: Decided) -> Producer | None:
        """Whose transaction the records of an outcome belong to."""

    @property
    @abstractmethod
    def partitions_at_creation(self) -> int:
        """How many partitions the topic will have if it is not there yet."""

    def on_appended(self, outcome: Decided) -> None:
        """The outcome is decided and its records are in the log."""

    def leads_to_more(self, outcome: Decided) -> bool:
        """Whether ``on_durable`` must be called, however late the disk is and although nobody waits for a reply."""
        return False

    def on_durable(self, outcome: Decided) -> None:
        """They are on disk, and the replies have left."""

    @property
    def commit_timeout_ms(self) -> int:
        return self.world.settings.offsets_commit_timeout_ms

    @property
    def compression_codec(self) -> int:
        return 0

    # -- operations -----------------------------------------------------------------------------------------------

    def run(self, name: str, operate: Operation[S], refuse: Refusal) -> Message | PendingReply:
        """Run an operation on the shard of a name. The reply is there at once, or it is awaited."""
        try:
            hosted = self._host_of(name)
        except KafkaError as error:
            return refuse(error.code)
        return self._run(hosted, [name], operate, refuse)

    def run_many(
        self, names: Iterable[str], operate: Callable[[list[str]], Operation[S]],
        refuse: Callable[[list[str]], Refusal],
    ) -> list[Message | PendingReply]:  # fmt: skip
        """The same for a request about many names: one operation, and one reply, per shard."""
        by_shard: dict[int, list[str]] = {}
        for name in names:
            by_shard.setdefault(self.partition_for(name), []).append(name)
        results: list[Message | PendingReply] = []
        for some in by_shard.values():
            try:
                results.append(self._run(self._host_of(some[0]), some, operate(some), refuse(some)))
            except KafkaError as error:
                results.append(refuse(some)(error.code))
        return results

    def shard(self, name: str) -> S:
        """Return the shard of a name, to read what it has of this name.

        :raises KafkaError: the error to answer with while there is no coordinator.
        """
        hosted = self._host_of(name)
        self._expire_due(hosted, (name,))
        return hosted.shard

    def durable(self, name: str) -> bool | PendingReply:
        """Whether what was just read of this name is on disk; else a reply that is known when it is.

        Somebody who read an offset must not find an older one after a power cut. It is a message only
        because those of all waits are: ``Unstored`` when it never came to be, anything else when it did.
        """
        ticket = PendingReply(Unstored)
        self._reply(self._host_of(name), _Answer([(ticket, Message())]))
        result = ticket.now_or_later()
        return result if isinstance(result, PendingReply) else True

    def shards(self) -> Iterator[S]:
        """Yield the loaded shards, to read all that they have."""
        for hosted in list(self._shards.values()):
            if hosted.loaded:
                self._expire_due(hosted, hosted.shard.sleepers)
                yield hosted.shard

    @property
    def is_loading(self) -> bool:
        return any(not hosted.loaded for hosted in self._shards.values())

    def partition_for(self, name: str) -> int:
        """Kafka's choice: Java's hash of the name, without its sign. The same before the topic is there and after."""
        return (java_hash(name) & 0x7FFFFFFF) % (len(self._shards) or self.partitions_at_creation)

    def _host_of(self, name: str) -> Hosted[S]:
        hosted = self._shards.get(self.partition_for(name))
        if hosted is None or hosted.partition.offline:
            raise Refused(ErrorCode.NOT_COORDINATOR if hosted is not None else ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not hosted.loaded:
            raise Refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "what this partition coordinates is being loaded")
        return hosted

    def _run(
        self, hosted: Hosted[S], names: list[str], operate: Operation[S], refuse: Refusal
    ) -> Message | PendingReply:
        ticket = PendingReply(refuse)
        self._operate(hosted, names, lambda shard, now: operate(shard, ticket, now))
        return ticket.now_or_later()

    def _operate(self, hosted: Hosted[S], names: list[str], decide: Callable[[S, Moment], Decided]) -> None:
        """Apply the deadlines of these names that have passed, then the operation."""
        now = self._expire_due(hosted, names) or self.now()
        self._perform(hosted, names, decide(hosted.shard, now), now)

    def _perform(self, hosted: Hosted[S], names: Iterable[str], outcome: Decided, now: Moment) -> None:
        """Append, replay, reply; then whatever follows from it."""
        self._perform_one(hosted, names, outcome, now)
        for name in names:
            follow_up = hosted.shard.settle(name, now, changed=bool(outcome.records))
            if follow_up is not None:
                self._perform_one(hosted, [name], follow_up, now)
            self._arm(hosted, name)

    def _perform_one(self, hosted: Hosted[S], names: Iterable[str], outcome: Decided, now: Moment) -> None:
        if outcome.records:
            try:
                self._append(hosted, outcome, now)
            except KafkaError as error:
                self._not_stored(hosted, names, outcome, error, now)
                return
        self.on_appended(outcome)
        self._reply(hosted, outcome)

    def _append(self, hosted: Hosted[S], outcome: Decided, now: Moment) -> None:
        """One batch, replayed as soon as it is in the log. Raises KafkaError, and then nothing was replayed."""
        partition = hosted.partition
        partition.check_enough_replicas()
        producer = self.producer_of(outcome)
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

    def _reply(self, hosted: Hosted[S], outcome: Decided) -> None:
        deadline = self._clock.monotonic() + self.commit_timeout_ms / 1000
        commit = _Commit(self, hosted, outcome, deadline)
        self._replicas.wait_durable(hosted.partition, hosted.end_offset, commit)

    def wait_for_disk(self, hosted: Hosted[S], outcome: Decided) -> None:
        """Whoever asked was told that it takes too long. What was decided is decided all the same."""
        outcome.replies.clear()
        commit = _Commit(self, hosted, outcome, NEVER)
        self._replicas.wait_durable(hosted.partition, hosted.end_offset, commit)

    def _not_stored(
        self, hosted: Hosted[S], names: Iterable[str], outcome: Decided, error: KafkaError, now: Moment
    ) -> None:
        too_large = isinstance(error, MessageTooLarge | RecordListTooLarge)
        code = ErrorCode.UNKNOWN_SERVER_ERROR if too_large else RETRIABLE.get(error.code, ErrorCode.NOT_COORDINATOR)
        for name in names:
            log.warning("a change was not stored topic=%s name=%r error=%s", self.topic, name, error)
            if not hosted.shard.changes_soft_state(outcome.records):
                continue
            sleeper = hosted.shard.sleepers.get(name)
            if sleeper is not None:
                self.refuse(sleeper.retire(code).replies, code)
            hosted.shard.discard_soft_state(name, now)
        self.refuse(outcome.replies, code)

    @staticmethod
    def refuse(replies: Iterable[tuple[Ticket, Message]], code: int) -> None:
        for ticket, _ in replies:
            ticket.answer(ticket.refuse(code))

    def now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.wall_ms())

    # -- timers ---------------------------------------------------------------------------------------------------

    def _arm(self, hosted: Hosted[S], name: str) -> None:
        """Wake a name when it wants to be, if no earlier alarm is set: an early one costs a look and is set anew."""
        sleeper = hosted.shard.sleepers.get(name)
        timer = hosted.timers.get(name)
        if sleeper is None or sleeper.wake_at == NEVER:
            if timer is not None and sleeper is None:
                TimerWheel.remove(timer)
                del hosted.timers[name]
            return
        if timer is None:
            timer = hosted.timers[name] = _Timer(self, hosted, name)
        if timer.timer_bucket is None or sleeper.wake_at < timer.at:
            TimerWheel.remove(timer)
            timer.at = sleeper.wake_at
            self._wheel.add(timer, max(sleeper.wake_at - self._clock.monotonic(), 0.0))

    def wake(self, hosted: Hosted[S], name: str) -> None:
        """The timer of a name fired. Its deadlines may have moved since it was set: then it is set again."""
        if hosted.loaded and not hosted.partition.offline:
            self._expire_due(hosted, (name,))
            self._arm(hosted, name)

    def _expire_due(self, hosted: Hosted[S], names: Iterable[str]) -> Moment | None:
        """Expire what is due of these names, whether its timer has fired or not; return the time if one has deadlines.

        All of them are compared with the same time, and the operation that follows gets it too.
        """
        sleepers = hosted.shard.sleepers
        waiting = [name for name in names if (found := sleepers.get(name)) is not None and found.wake_at != NEVER]
        if not waiting:
            return None
        now = self.now()
        for name in waiting:
            sleeper = sleepers.get(name)
            if sleeper is not None and sleeper.wake_at <= now.monotonic_s and not hosted.partition.offline:
                self._perform(hosted, [name], sleeper.expire(now), now)
        return now

    # -- partitions come and go -----------------------------------------------------------------------------------

    def serve(self, partitions: dict[int, Partition]) -> None:
        """These are the partitions of the topic now. Those that are new are loaded; empty ones are ready at once."""
        for number, partition in partitions.items():
            known = self._shards.get(number)
            if known is not None and known.partition is partition:
                continue
            if known is not None:
                self._unload(known)
            hosted = self._shards[number] = Hosted(partition, self.make_shard(partition))
            if partition.log.log_end_offset == partition.log.log_start_offset:
                hosted.loaded = True
            else:
                self._load_later(hosted)
        for number in [number for number in self._shards if number not in partitions]:
            self._unload(self._shards.pop(number))

    def reload(self, hosted: Hosted[S]) -> None:
        """The log lost what was replayed already: start again from what it has."""
        number = hosted.partition.name.partition
        if self._shards.get(number) is not hosted:
            return
        log.error("a shard is loaded again after a failed write partition=%s", hosted.partition.name)
        self._unload(hosted)
        again = self._shards[number] = Hosted(hosted.partition, self.make_shard(hosted.partition))
        self._load_later(again)

    def _unload(self, hosted: Hosted[S]) -> None:
        hosted.loaded = False
        for timer in hosted.timers.values():
            TimerWheel.remove(timer)
        hosted.timers.clear()
        self.refuse(hosted.shard.retire(ErrorCode.NOT_COORDINATOR).replies, ErrorCode.NOT_COORDINATOR)

    def _load_later(self, hosted: Hosted[S]) -> None:
        self._loading.append(hosted)
        if self._load_task is None or self._load_task.done():
            self._load_task = self._loop.create_task(self._load_all(), name=f"load {self.topic}")

    async def _load_all(self) -> None:
        while self._loading:
            hosted = self._loading.pop(0)
            started = self._clock.monotonic()
            try:
                await self._load(hosted)
            except (OSError, KafkaError) as error:
                log.error("a shard cannot be loaded partition=%s error=%s", hosted.partition.name, error)
                continue
            if self._shards.get(hosted.partition.name.partition) is not hosted:
                continue
            now = self.now()
            hosted.shard.resume(now)
            hosted.loaded = True
            names = list(hosted.shard.sleepers)
            if names:
                log.info(
                    "loaded partition=%s names=%d seconds=%.3f", hosted.partition.name, len(names),
                    self._clock.monotonic() - started,
                )  # fmt: skip
            self._perform(hosted, names, hosted.shard.after_load(now), now)

    async def _load(self, hosted: Hosted[S]) -> None:
        while (position := self._read(hosted, hosted.end_offset)) is not None:
            hosted.end_offset = position
            await asyncio.sleep(0)

    def _read(self, hosted: Hosted[S], offset: int) -> int | None:
        """Replay some records from ``offset`` on; where to go on, None at the end."""
        its_log = hosted.partition.log
        region = its_log.read(offset, _LOAD_BYTES, its_log.written_end_offset, at_least_one=True)
        if region is None:
            return None
        data = region.read()
        position = 0
        while position < len(data):
            header = read_header(data, position)
            batch = data[position : position + header.size_bytes]
            position += header.size_bytes
            offset = header.next_offset
            if header.attributes & CONTROL:
                self._replay_marker(hosted, header, batch)
                continue
            producer = None
            if header.attributes & TRANSACTIONAL:
                producer = Producer(header.producer_id, header.producer_epoch)
            for record in iterate_records(batch):
                try:
                    decoded = self.decode(record.key or b"", record.value)
                except WireError as error:
                    log.error(
                        "record cannot be read partition=%s offset=%d error=%s", hosted.partition.name, record.offset,
                        error,
                    )  # fmt: skip
                    continue
                if decoded is not None:
                    hosted.shard.replay(decoded, producer)
        return offset

    @staticmethod
    def _replay_marker(hosted: Hosted[S], header: BatchHeader, batch: bytes) -> None:
        marker = read_marker(batch)
        if marker is not None:
            hosted.shard.end_transaction(header.producer_id, commit=marker.commit)

    def marker_written(self, partition: Partition, producer_id: int, *, commit: bool, end_offset: int) -> None:
        """A transaction with records in this partition was ended by a marker that is in its log."""
        hosted = self._shards.get(partition.name.partition)
        if hosted is not None and hosted.partition is partition and hosted.loaded:
            hosted.shard.end_transaction(producer_id, commit=commit)
            hosted.end_offset = end_offset

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def perform_everywhere(self, decide: Callable[[S, Moment], list[Any]], name_of: Callable[[Any], str]) -> None:
        """Append the records that ``decide`` returns for every shard, in batches of a bounded size."""
        for hosted in list(self._shards.values()):
            if not hosted.loaded or hosted.partition.offline:
                continue
            now = self._expire_due(hosted, hosted.shard.sleepers) or self.now()
            records = decide(hosted.shard, now)
            for start in range(0, len(records), _UPKEEP_RECORDS_MAX):
                part = records[start : start + _UPKEEP_RECORDS_MAX]
                self._perform(hosted, list(dict.fromkeys(map(name_of, part))), _Answer([], part), now)

    async def verify(self) -> int:
        """Replay every log beside what is served and compare: the state must be the replay's, at any time."""
        differing = 0
        for hosted in list(self._shards.values()):
            if not hosted.loaded or hosted.partition.offline:
                continue
            twin = Hosted(hosted.partition, self.make_shard(hosted.partition))
            while twin.end_offset < hosted.end_offset and hosted.loaded:
                await self._load(twin)
                await asyncio.sleep(0)  # what is pending is written at the end of this turn
            if hosted.loaded and hosted.shard.durable() != twin.shard.durable():
                differing += 1
                log.error("a shard differs from a replay of its log partition=%s", hosted.partition.name)
        self.mismatches += differing
        return differing

    async def stop(self) -> None:
        if self._load_task is not None:
            self._load_task.cancel()
            await asyncio.wait([self._load_task])
        for hosted in self._shards.values():
            self._unload(hosted)


@dataclass(slots=True)
class _Answer:
    """An outcome of the runtime's own."""

    replies: list[tuple[Ticket, Message]]
    records: list[Any] = field(default_factory=list)


def java_hash(text: str) -> int:
    """``String.hashCode`` as an unsigned number; it counts UTF-16 units."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for index in range(0, len(data), 2):
        value = (31 * value + (data[index] << 8 | data[index + 1])) & 0xFFFFFFFF
    return value
