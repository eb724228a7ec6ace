"""One instance of the registry: the state, the reader, the writer, the election, and the order of changes.

The state is changed on the event loop only, by records that were read. A change is decided while no record is applied.
Work on schemas starts on the event loop with a small number of steps, which is enough for usual schemas. Work that
needs more steps is done again in a thread, so that the event loop stays free for other requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar

from ottla.client.cluster import LATEST
from ottla.client.errors import ClientError
from ottla.edge.registry import errors
from ottla.edge.registry.election import Election, Instance
from ottla.edge.registry.parsing import Parser
from ottla.edge.registry.records import Record, SchemaVersion
from ottla.edge.registry.state import State
from ottla.edge.registry.store import Applied, LeadershipLost, Reader, StoreSettings, TooLarge, Writer, WriteUncertain
from ottla.edge.web.app import HttpError
from ottla.schemas.schema import AllowanceSpent, InvalidSchema, steps_allowed

log = logging.getLogger(__name__)

#: how long a change waits for a leader, and for its records to be read
_CHANGE_S_MAX: Final = 20.0
#: how long a new instance waits for the result of the election before it answers requests
_ELECTION_S: Final = 2.0
#: characters of the schemas that are registered in one transaction; a broker accepts batches of up to 1 MB
_GROUP_CHARS_MAX: Final = 200_000
#: schemas up to this size are parsed on the event loop, with this number of steps, which take at most about 20 ms
_SMALL_CHARS: Final = 16 << 10
_LOOP_STEPS: Final = 10_000
#: steps of a request in a thread: all parts of its work together
_REQUEST_STEPS: Final = 2_000_000
#: threads for work on schemas; with more, the event loop would wait longer for Python's lock
_THREADS: Final = 2

_T = TypeVar("_T")


class NotLeader(Exception):
    """Another instance is the leader."""

    def __init__(self, leader: Instance) -> None:
        super().__init__(leader.url)
        self.leader = leader


class Registration(NamedTuple):
    """The version of a schema, the records that register it, and its text in the format that the client wants."""

    row: SchemaVersion
    records: list[Record]
    text: str | None = None


class _Waiting(NamedTuple):
    """A registration that waits for its turn."""

    subject: str
    decide: Callable[[Sequence[SchemaVersion]], Registration]
    size_chars: int
    result: asyncio.Future[Registration]

    def succeed(self, made: Registration) -> None:
        if not self.result.done():  # the client has disconnected
            self.result.set_result(made)

    def fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Registry:
    """One instance. Use it on one event loop."""

    def __init__(self, settings: StoreSettings, group: str, own: Instance, state: State) -> None:
        self.own = own
        self.state = state
        self.parser = Parser(state)
        self.leader: Instance | None = None
        #: the topic was read up to here
        self.position = -1
        self.failure: str | None = None
        #: called with the reason if this instance cannot go on
        self.on_failure: Callable[[str], None] = lambda reason: None
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._reader = Reader(settings, self._deliver, self._fail)
        self._writer = Writer(settings, f"{group}.{settings.topic}")
        self._election = Election(settings, group, own, self._elected)
        #: set whenever the leader or the position changes
        self._changed = asyncio.Event()
        #: one change at a time
        self._changing = asyncio.Lock()
        #: registrations that wait for `_changing`
        self._waiting: list[_Waiting] = []
        #: records are not applied while a change is decided
        self._deciding = asyncio.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "registry-schemas")
        #: whether every earlier leader is fenced and everything it wrote was read
        self._is_prepared = False
        #: how often that has become so
        self._term = 0
        self._refreshing = asyncio.Lock()
        #: when the last complete refresh began
        self._refreshed_at = 0.0

    async def start(self) -> None:
        """Read the topic up to its end, then take part in the election; wait a moment for its result."""
        self._reader.start()
        end = await asyncio.to_thread(self._end_of_topic)
        await self.wait_until(lambda: self.position >= end)
        self._election.start()
        if self.own.is_eligible:
            await self.wait_until(lambda: self.leader is not None, _ELECTION_S)

    async def stop(self) -> None:
        """Leave the group; changes in progress are completed first."""
        async with self._changing:
            await asyncio.to_thread(self._election.stop)
            self._threads.shutdown(wait=False)
            self._reader.stop()
            self._writer.close()

    @property
    def is_leader(self) -> bool:
        return self.leader is not None and self.leader.url == self.own.url

    # Changes

    async def change(self, decide: Callable[[], tuple[_T, list[Record]]], size_chars: int = 0) -> _T:
        """Decide a change, append its records and return its answer when they were applied.

        Raise NotLeader if another instance must do it. Raise what `decide` raises, and HttpError 50001, 50002 or 50004
        if the topic cannot be written, the outcome is not known, or there is no leader.
        """
        async with self._leading():
            async with self._deciding:
                answer, records = await self.compute(decide, size_chars)
            if records:
                await self._append(records)
            return answer

    async def register(
        self, subject: str, decide: Callable[[Sequence[SchemaVersion]], Registration], size_chars: int
    ) -> Registration:
        """Register a schema. Return when its records were applied. Raise the same as `change`.

        Registrations of different subjects that wait at the same time are made in one transaction, because one
        transaction takes milliseconds (group commit). ``decide`` gets the versions that others of the group register.
        """
        waiting = _Waiting(subject, decide, size_chars, self._loop.create_future())
        self._waiting.append(waiting)
        try:
            while not waiting.result.done():
                async with self._with_leader() as is_known:
                    if is_known and not waiting.result.done():
                        await self._register_group(self._take_group())
            return await waiting.result
        finally:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            if waiting.result.done():
                waiting.result.exception()  # read it, because a cancelled request does not

    async def _register_group(self, group: Sequence[_Waiting]) -> None:
        """Make these registrations, and set the result of each."""
        made: list[tuple[_Waiting, Registration]] = []
        try:
            await self._prepare()
            made = await self._decide_group(group)
            if made:
                await self._append([record for _, each in made for record in each.records])
        except (NotLeader, HttpError) as error:
            if isinstance(error, HttpError) and error.error_code == errors.schema_too_large.code and len(made) > 1:
                # One of them may be too large for the topic, or all together.
                for waiting, _ in made:
                    await self._register_group([waiting])
                return
            for each in group:
                each.fail(error)
            return
        except asyncio.CancelledError:
            # Only the request that makes the group has ended, not those of the others.
            for each in group:
                each.fail(errors.timed_out("it is not known whether the change was made; look it up, or try again"))
            raise
        except Exception as error:
            for each in group:
                each.fail(error)
            raise
        for waiting, registration in made:
            waiting.succeed(registration)

    async def _decide_group(self, group: Sequence[_Waiting]) -> list[tuple[_Waiting, Registration]]:
        """Return the registrations that need records. Set the result of the others."""
        made: list[tuple[_Waiting, Registration]] = []
        async with self._deciding:
            for each in group:
                decide = partial(each.decide, [registration.row for _, registration in made])
                try:
                    registration = await self.compute(decide, each.size_chars)
                except (HttpError, InvalidSchema) as error:
                    each.fail(error)
                    continue
                if registration.records:
                    made.append((each, registration))
                else:
                    each.succeed(registration)
        return made

    def _take_group(self) -> list[_Waiting]:
        """Return registrations that wait: of each subject the first one, and not more than fit into a transaction."""
        group: dict[str, _Waiting] = {}
        size_chars = 0
        for each in self._waiting:
            size_chars += each.size_chars
            if each.subject not in group and (not group or size_chars <= _GROUP_CHARS_MAX):
                group[each.subject] = each
        self._waiting = [each for each in self._waiting if group.get(each.subject) is not each]
        return list(group.values())

    async def compute(self, work: Callable[[], _T], size_chars: int) -> _T:
        """Run work on schemas on the event loop, or again from its start in a thread if it takes too long there.

        Records may be applied meanwhile, unless the caller prevents it. Raise SchemaTooComplex if the work takes more
        than `_REQUEST_STEPS`.
        """
        if size_chars <= _SMALL_CHARS:
            try:
                with steps_allowed(_LOOP_STEPS, AllowanceSpent):
                    return work()
            except AllowanceSpent:
                pass

        def run() -> _T:
            with steps_allowed(_REQUEST_STEPS):
                return work()

        return await self._loop.run_in_executor(self._threads, run)

    @asynccontextmanager
    async def _with_leader(self) -> AsyncIterator[bool]:
        """Wait for a leader, then for the changes before this one. Yield False if the leader was lost meanwhile.

        All requests wait for a leader at the same time, outside of the lock, not one after another.
        """
        if not await self.wait_until(lambda: self.leader is not None, _CHANGE_S_MAX):
            raise errors.leader_unknown()
        async with self._changing:
            yield self.leader is not None

    @asynccontextmanager
    async def _leading(self) -> AsyncIterator[None]:
        """Make one change at a time as the leader. Raise NotLeader if another instance is the leader."""
        while True:
            async with self._with_leader() as is_known:
                if is_known:
                    await self._prepare()
                    yield
                    return

    async def _prepare(self) -> None:
        """Return when this instance may decide as the leader. Raise NotLeader if another one is it."""
        if self.leader is None:
            raise errors.leader_unknown()
        if not self.is_leader:
            raise NotLeader(self.leader)
        if self._is_prepared:
            return
        try:
            end = await self._writer.become_leader()
        except ClientError as error:
            raise errors.store_failed(f"the topic {self._settings.topic} cannot be written: {error}") from None
        if not await self.wait_until(lambda: self.position >= end, _CHANGE_S_MAX):
            raise errors.timed_out(f"the topic {self._settings.topic} could not be read up to its end in time")
        self._is_prepared = True
        self._term += 1

    async def _append(self, records: list[Record]) -> None:
        end = await self._write({self._settings.topic: records})
        try:
            is_read = await self.wait_until(lambda: self.position >= end, _CHANGE_S_MAX)
        except asyncio.CancelledError:
            self._end_term()
            raise
        if not is_read:
            self._end_term()
            raise errors.timed_out("the change was made, and could not be read back in time")

    async def _write(self, batches: Mapping[str, Sequence[Record]]) -> int:
        try:
            return await self._writer.append(batches)
        except asyncio.CancelledError:
            # The thread continues the append, so the next decision has to wait until these records were read.
            self._end_term()
            raise
        except LeadershipLost:
            self._end_term()
            self._elected_now(None)
            self._election.resign()
            raise errors.leader_unknown() from None
        except TooLarge as error:
            self._end_term()
            raise errors.schema_too_large(
                f"the change is larger than a record of the topic {self._settings.topic} can be; raise its "
                f"max.message.bytes: {error}"
            ) from None
        except WriteUncertain as error:
            self._end_term()
            raise errors.timed_out(
                f"it is not known whether the change was made; look it up, or try again: {error}"
            ) from None

    def _end_term(self) -> None:
        """Fence again and read what was appended before the next decision."""
        self._is_prepared = False
        self._notify()

    # Records of other topics that only the leader appends

    async def lead(self) -> int:
        """Return the number of the term in which this instance is the leader: no earlier leader can append any more.

        Raise NotLeader if another instance is the leader, and HttpError if there is none, or no answer of the cluster.
        """
        async with self._leading():
            return self._term

    def is_leading(self, term: int) -> bool:
        """Return whether this instance is the leader, without a break since the term began."""
        return self.is_leader and self._is_prepared and term == self._term

    async def append_in_term(self, term: int, batches: Mapping[str, Sequence[Record]]) -> None:
        """Append records to each of these topics, in one transaction. Raise HttpError 50004 if the term has ended."""
        async with self._changing:
            if not self.is_leading(term):
                raise errors.leader_unknown()
            await self._write(batches)

    async def replace_leader(self, leader: Instance) -> None:
        """Follow the successor of a leader whose process has ended, before the group notices the end.

        Every instance chooses the same successor, which is safe even if the leader lives: the successor fences it.
        """
        try:
            successor = await asyncio.to_thread(self._election.successor_of, leader)
            if successor is None or self.leader != leader:
                return
            is_own = successor.url == self.own.url
            if is_own:
                self._election.claim()
            self._elected_now(successor)
            if is_own:
                await asyncio.to_thread(self._election.remove_ended)
        except ClientError as error:
            log.warning("the group does not answer: %s", error)

    # Lookups of ids that another instance may have assigned a moment ago

    async def refresh(self) -> None:
        """Read up to the end that the topic has now: an id that another instance has assigned before is found then.

        One request at a time asks for the end. Those that wait meanwhile share the next answer.
        """
        asked_at = time.monotonic()
        async with self._refreshing:
            if self._refreshed_at > asked_at:
                return
            started_at = time.monotonic()
            try:
                end = await asyncio.to_thread(self._end_of_topic)
            except ClientError as error:
                log.warning("the end of %s is not known: %s", self._settings.topic, error)
                return
            await self.wait_until(lambda: self.position >= end, 5.0)
            self._refreshed_at = started_at

    def _end_of_topic(self) -> int:
        with self._settings.connect() as cluster:
            return self._settings.offset(cluster, LATEST)

    # What threads report

    def _deliver(self, records: list[Applied], position: int) -> None:
        applying = asyncio.run_coroutine_threadsafe(self._apply(records, position), self._loop)
        applying.add_done_callback(self._applied)

    def _applied(self, applying: Future[None]) -> None:
        """End the process if records could not be applied: without them this instance would decide wrongly."""
        if not applying.cancelled() and (error := applying.exception()) is not None:
            log.error("records of %s cannot be applied", self._settings.topic, exc_info=error)
            self._fail(f"records of {self._settings.topic} cannot be applied; see the log")

    async def _apply(self, records: list[Applied], position: int) -> None:
        async with self._deciding:
            for row in records:
                self.state.apply(row.key, row.value, row.offset, row.timestamp_ms)
                if row.value is None:
                    self.parser.forget()
            self.position = position
        self._notify()

    def _fail(self, reason: str) -> None:
        def note() -> None:
            self.failure = reason
            self.on_failure(reason)

        self._loop.call_soon_threadsafe(note)

    def _elected(self, leader: Instance | None) -> None:
        self._loop.call_soon_threadsafe(self._elected_now, leader)

    def _elected_now(self, leader: Instance | None) -> None:
        if leader != self.leader:
            log.info("the leader of the registry is %s", leader.url if leader is not None else "unknown")
            self._is_prepared = False
        self.leader = leader
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_until(self, is_true: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Return True when `is_true` returns True, False after the timeout.

        `is_true` is called again whenever the leader or the position changes.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_true():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return is_true()
        return True
