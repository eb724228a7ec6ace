"""Runs the exporters on the leader, and stores their definitions and their progress.

                    requests (api.py)
                         ▼
    topics ─load─► Exporters: the table ─starts and stops─► a worker for each exporter that is not paused
       ▲                 │                                      │ reads the topic of the schemas from its offset on
       └────append───────┘◄──────────offset, trace──────────────┘ asks the destination in a thread

The table is valid for one term of the leader. A new leader fences the one before and then reads both topics, so that it
continues where the last one has saved its progress; it may copy a little again. No connection to a destination is
opened before an exporter is created.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from ottla.client.errors import ClientError, PropertyRefused
from ottla.edge.registry import errors
from ottla.edge.registry.exporters import definition
from ottla.edge.registry.exporters.definition import Entry, ExporterState, Task, changes_in, tasks_of, tombstone
from ottla.edge.registry.exporters.destination import Conflict, Destination, connect
from ottla.edge.registry.records import Json, Record
from ottla.edge.registry.service import NotLeader, Registry
from ottla.edge.registry.store import StoreSettings, prepare_topic, read_up_to
from ottla.edge.web.app import HttpError
from ottla.env.metrics import Page, label_text
from ottla.env.tasks import Tasks, run_again, start_task
from ottla.model.errors import StartError
from ottla.security.secret_box import SecretBox

log = logging.getLogger(__name__)

CONFIG_TOPIC_DEFAULT: Final = "_exporter_configs"
STATE_TOPIC_DEFAULT: Final = "_exporter_states"
EXPORTERS_MAX_DEFAULT: Final = 10
#: pauses after a failure
_PAUSE_S: Final = 0.25
_PAUSE_S_MAX: Final = 60.0
#: how often an exporter that is busy saves its progress
_SAVE_S: Final = 1.0
#: a leader without exporters checks again whether the topics exist: the previous leader may have created them
_LOOK_AGAIN_S: Final = 30.0
#: how long a stop waits for the progress to be saved
_STOP_S: Final = 2.0
#: tasks that a thread gets at once
_TASKS: Final = 100

_T = TypeVar("_T")


class ExporterSettings(NamedTuple):
    """Which topics keep the exporters, how many there may be, and what they may use."""

    config_topic: str = CONFIG_TOPIC_DEFAULT
    state_topic: str = STATE_TOPIC_DEFAULT
    exporters_max: int = EXPORTERS_MAX_DEFAULT
    #: what their secrets are encrypted with
    box: SecretBox | None = None
    #: where the files are that their properties may name; empty: they may name none
    files_directory: str = ""


class Exporters:
    """The exporters of a registry. Use it on the event loop of the registry."""

    def __init__(
        self, registry: Registry, store: StoreSettings, settings: ExporterSettings, *, group: str, auto_context: str
    ) -> None:
        self.registry = registry
        self.store = store
        self._settings = settings
        self._group = group
        self._auto_context = auto_context
        #: valid in this term; 0 if nothing was loaded
        self._term = 0
        self._entries: dict[str, Entry] = {}
        #: the entries in the topics
        self._saved: dict[str, Entry] = {}
        self._workers: dict[str, _Worker] = {}
        #: the last thread of each exporter, which may outlive its worker by one request
        self._threads: dict[str, threading.Thread] = {}
        #: one change of the table at a time
        self._lock = asyncio.Lock()
        self._tasks = Tasks()
        #: (exporter, outcome) -> versions
        self.counts: Counter[tuple[str, str]] = Counter()

    def start(self) -> None:
        self._tasks.keep(self._supervise, "supervise exporters")

    async def stop(self) -> None:
        """Stop all workers and save their progress."""
        await self._tasks.stop()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._save_all()
        except TimeoutError:
            log.warning("the progress of exporters was not saved in time; the next leader compares a part again")

    async def _save_all(self) -> None:
        async with self._lock:
            self._stop_workers()
            changed = [entry for name, entry in self._entries.items() if entry != self._saved.get(name)]
            if changed and self.registry.is_leading(self._term):
                records = [entry.progress_record(self._group) for entry in changed]
                try:
                    await self.registry.append_in_term(self._term, {self._settings.state_topic: records})
                except HttpError as error:
                    log.warning("the progress of exporters was not saved: %s", error.message)
            self._term = 0

    @property
    def files_directory(self) -> str:
        return self._settings.files_directory

    def _checked(self, exporter: definition.Exporter) -> definition.Exporter:
        """Return the exporter. Raise HttpError 40951 if its destination cannot be the address of a registry."""
        try:
            connect(exporter, self.files_directory)
        except PropertyRefused as error:
            raise errors.invalid_exporter_config(str(error)) from None
        return exporter

    # Requests. All of them raise NotLeader if another instance is the leader.

    async def names(self) -> list[str]:
        async with self._lock:
            await self._load()
            return sorted(self._entries)

    async def get(self, name: str) -> Entry:
        async with self._lock:
            await self._load()
            return self._find(name)

    async def create(self, body: Json) -> str:
        """Create an exporter, which starts at once. Return its name."""
        exporter = self._checked(definition.create(body, self._auto_context))
        async with self._lock:
            await self._load()
            if exporter.name in self._entries:
                raise errors.exporter_exists(exporter.name)
            if len(self._entries) >= self._settings.exporters_max:
                raise errors.too_many_exporters(self._settings.exporters_max)
            try:
                await asyncio.to_thread(self._prepare_topics)
            except (StartError, ClientError) as error:
                raise errors.store_failed(str(error)) from None
            await self._replace(exporter.name, Entry(exporter, timestamp_ms=_now_ms()))
        return exporter.name

    async def update(self, name: str, body: Json) -> None:
        """Change the definition of a paused exporter. Its offset stays."""

        def decide(entry: Entry) -> Entry:
            if entry.state is not ExporterState.PAUSED:
                raise errors.exporter_not_paused(name)
            exporter = self._checked(definition.update(entry.exporter, body, self._auto_context))
            return replace(entry, exporter=exporter)

        await self._change(name, decide)

    async def delete(self, name: str) -> None:
        await self._change(name, lambda entry: None)

    async def pause(self, name: str) -> None:
        await self._change(name, lambda entry: replace(entry, state=ExporterState.PAUSED))

    async def resume(self, name: str) -> None:
        """Let a paused exporter continue at its offset."""

        def decide(entry: Entry) -> Entry:
            if entry.state is ExporterState.RUNNING:
                raise errors.exporter_running(name)
            if entry.state is ExporterState.STARTING:
                raise errors.exporter_starting(name)
            return replace(entry, state=ExporterState.STARTING, trace="")

        await self._change(name, decide)

    async def reset(self, name: str) -> None:
        """Let a paused exporter start at the beginning of the topic when it is resumed."""

        def decide(entry: Entry) -> Entry:
            if entry.state is not ExporterState.PAUSED:
                raise errors.exporter_not_paused(name)
            return replace(entry, offset=0, trace="")

        await self._change(name, decide)

    def _find(self, name: str) -> Entry:
        if name not in self._entries:
            raise errors.exporter_not_found(name)
        return self._entries[name]

    async def _change(self, name: str, decide: Callable[[Entry], Entry | None]) -> None:
        async with self._lock:
            await self._load()
            old = self._find(name)
            new = decide(old)
            await self._replace(name, new if new is None or new == old else replace(new, timestamp_ms=_now_ms()))

    async def _replace(self, name: str, entry: Entry | None) -> None:
        """Save a new entry, or delete one. The worker is stopped before, and started after if it has to run."""
        self._stop_worker(name)
        try:
            definition = progress = tombstone(self._group, name)
            if entry is not None:
                definition = await asyncio.to_thread(entry.definition_record, self._group, self._settings.box)
                progress = entry.progress_record(self._group)
            await self._append({self._settings.config_topic: [definition], self._settings.state_topic: [progress]})
            self._saved.pop(name, None)
            self._entries.pop(name, None)
            if entry is not None:
                self._saved[name] = self._entries[name] = entry
        finally:
            self._start_worker(name)

    async def _append(self, batches: Mapping[str, Sequence[Record]]) -> None:
        # A cancelled worker does not interrupt the append, because the outcome of a transaction must be handled.
        work = _outcome(self.registry.append_in_term(self._term, batches))
        error = await asyncio.shield(start_task(work, "append the progress of exporters"))
        if error is not None:
            raise error

    # The term of a leader

    async def _supervise(self) -> None:
        while True:
            await self.registry.wait_until(lambda: self.registry.is_leader)
            pause_s = _LOOK_AGAIN_S
            try:
                async with self._lock:
                    if self._term or await asyncio.to_thread(self._has_topics):
                        await self._load()
            except NotLeader:
                continue
            except (HttpError, ClientError) as error:
                log.warning("the exporters cannot be read: %s", error)
                pause_s = 1.0
            await self.registry.wait_until(self._is_outdated, pause_s)
            if self._is_outdated():
                async with self._lock:
                    self._stop_workers()

    def _is_outdated(self) -> bool:
        return not self.registry.is_leader or bool(self._term and not self.registry.is_leading(self._term))

    async def _load(self) -> None:
        """Return when the table is valid. Raise NotLeader if another instance is the leader."""
        term = await self.registry.lead()
        if term == self._term:
            return
        self._stop_workers()
        self._term = 0
        try:
            self._entries = await asyncio.to_thread(self._read)
        except ClientError as error:
            raise errors.store_failed(f"the topics of the exporters cannot be read: {error}") from None
        self._saved = dict(self._entries)
        self._term = term
        for name in self._entries:
            self._start_worker(name)

    def _topics(self) -> tuple[StoreSettings, StoreSettings]:
        config_topic, state_topic = self._settings.config_topic, self._settings.state_topic
        return self.store._replace(topic=config_topic), self.store._replace(topic=state_topic)

    def _has_topics(self) -> bool:
        names = {each.topic for each in self._topics()}
        with self.store.connect() as cluster:
            return names <= cluster.topics(names).keys()

    def _prepare_topics(self) -> None:
        for store, setting in zip(self._topics(), ("exporter.config.topic", "exporter.state.topic"), strict=True):
            prepare_topic(store, setting)

    def _read(self) -> dict[str, Entry]:
        if not self._has_topics():
            return {}
        definitions, progress = (read_up_to(store, 0)[0] for store in self._topics())
        return definition.load(self._group, definitions, progress, self._settings.box)

    # Workers

    def _start_worker(self, name: str) -> None:
        entry = self._entries.get(name)
        if entry is not None and entry.state is not ExporterState.PAUSED and name not in self._workers:
            self._workers[name] = _Worker(self, entry)

    def _stop_worker(self, name: str) -> None:
        worker = self._workers.pop(name, None)
        if worker is not None:
            worker.stop()

    def _stop_workers(self) -> None:
        for name in list(self._workers):
            self._stop_worker(name)

    def entry_of(self, worker: _Worker) -> Entry:
        """Return the entry of a worker that was not stopped."""
        return self._entries[worker.name]

    def note(self, worker: _Worker, **members: Any) -> None:
        """Note the progress of a worker; `save` makes it durable."""
        if self._workers.get(worker.name) is worker:
            self._entries[worker.name] = replace(self._entries[worker.name], timestamp_ms=_now_ms(), **members)

    async def prove_leadership(self, worker: _Worker) -> None:
        """Save the progress of a worker, also if it has not changed. Raise HttpError if this instance does not lead."""
        async with self._lock:
            self._saved.pop(worker.name, None)
        await self.save(worker)

    async def save(self, worker: _Worker) -> None:
        async with self._lock:
            entry = self._entries.get(worker.name)
            if entry is None or self._workers.get(worker.name) is not worker or entry == self._saved.get(worker.name):
                return
            await self._append({self._settings.state_topic: [entry.progress_record(self._group)]})
            self._saved[worker.name] = entry

    async def in_thread(self, name: str, work: Callable[[], _T]) -> _T:
        """Run blocking work for an exporter in a thread, after the last such work has ended.

        Unlike a thread of an executor it does not delay the end of the process, and a slow destination does not use up
        the threads that requests need.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[_T] = loop.create_future()
        before = self._threads.get(name)

        def run() -> None:
            if before is not None:
                before.join()
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - for the caller
                _set_outcome(loop, outcome, outcome.set_exception, error)
            else:
                _set_outcome(loop, outcome, outcome.set_result, result)

        thread = self._threads[name] = threading.Thread(target=run, name=f"exporter-{name}", daemon=True)
        thread.start()
        return await outcome

    # Metrics

    def add_metrics(self, page: Page) -> None:
        """Add the series of the exporters; only the leader has them."""
        for name, entry in sorted(self._entries.items() if self._term else ()):
            labels = label_text(exporter=name)
            lag = max(self.registry.position - entry.offset, 0)
            page.gauge(
                "ottla_registry_exporter_offset", "Records before this offset were copied.", entry.offset, labels
            )
            page.gauge("ottla_registry_exporter_lag", "Offsets that were not copied yet.", lag, labels)
            running = entry.state is ExporterState.RUNNING and not entry.trace
            page.gauge("ottla_registry_exporter_healthy", "1 if it runs without an error.", int(running), labels)
        for (name, outcome), count in sorted(self.counts.items()):
            labels = label_text(exporter=name, outcome=outcome)
            page.counter("ottla_registry_exporter_versions", "Versions by outcome.", count, labels)


class _Worker:
    """Copies the schemas for one exporter, until it is stopped."""

    def __init__(self, owner: Exporters, entry: Entry) -> None:
        self.name = entry.exporter.name
        self._owner = owner
        self._registry = owner.registry
        self._exporter = entry.exporter
        self._destination: Destination | None = None
        self._saved_at = 0.0
        self._task = start_task(run_again(self._run, f"exporter {self.name}"), f"exporter {self.name}")

    def stop(self) -> None:
        """Stop after the request in progress; nothing is noted any more."""
        self._task.cancel()
        if self._destination is not None:
            self._destination.is_stopped.set()

    async def _run(self) -> None:
        pause_s = _PAUSE_S
        while True:
            offset = self._owner.entry_of(self).offset
            try:
                await self._copy()
            except ClientError as error:
                await self._report(str(error))
            except HttpError as error:
                # This instance may not be the leader any more; the supervision notices that.
                log.warning("exporter %s: its progress was not saved: %s", self.name, error.message)
            except Exception as error:
                log.exception("exporter %s", self.name)
                await self._report(f"internal error: {error!r}")
            if self._owner.entry_of(self).offset > offset:
                pause_s = _PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_S_MAX)

    async def _report(self, trace: str) -> None:
        self._owner.counts[self.name, "failed"] += 1
        if trace != self._owner.entry_of(self).trace:
            log.warning("exporter %s: %s", self.name, trace)
            self._owner.note(self, trace=trace)
        with suppress(HttpError):
            await self._owner.save(self)

    async def _copy(self) -> None:
        """Copy what the topic has, then wait for more. Raise ClientError if the destination or the cluster refuses."""
        destination = await self._connect()
        position = self._owner.entry_of(self).offset
        in_use: list[Task] = []
        while True:
            end = self._registry.position
            if position >= end:
                await self._caught_up(in_use)
                await self._registry.wait_until(partial(self._has_more, position))
                continue
            records, following = await self._call(partial(read_up_to, self._owner.store, position, end))
            tasks = in_use + tasks_of(changes_in(records), self._exporter, self._registry.state)
            in_use = []
            for start in range(0, len(tasks), _TASKS):
                await self._do(destination, tasks[start : start + _TASKS], in_use)
                await self._advance([*in_use, *tasks[start + _TASKS :]], following)
            await self._advance(in_use, following)
            position = following

    def _has_more(self, position: int) -> bool:
        return self._registry.position > position

    async def _connect(self) -> Destination:
        if self._destination is not None:
            self._destination.close()
        files_directory = self._owner.files_directory
        destination = self._destination = Destination(self._exporter, files_directory=files_directory)
        await self._call(destination.check)
        if self._owner.entry_of(self).state is ExporterState.STARTING:
            self._owner.note(self, state=ExporterState.RUNNING)
        return destination

    async def _do(self, destination: Destination, tasks: Sequence[Task], in_use: list[Task]) -> None:
        """Do tasks. Add those to `in_use` whose version cannot be deleted yet."""
        left = list(tasks)

        def note(task: Task, is_changed: bool) -> None:
            left.remove(task)
            self._owner.counts[self.name, "copied" if is_changed else "unchanged"] += 1

        while left:
            try:
                found = await self._call(partial(destination.copy, tuple(left), note))
            except ClientError:
                self._owner.note(self, offset=min(task.offset for task in (*in_use, *left)))
                raise
            in_use += found
            for task in found:
                left.remove(task)
            if left:
                self._owner.note(self, offset=min(task.offset for task in (*in_use, *left)))
                await self._owner.prove_leadership(self)

    async def _advance(self, left: Sequence[Task], following: int) -> None:
        """Note that everything up to the first task that is left, or up to the end, was copied."""
        self._owner.note(self, offset=min((task.offset for task in left), default=following), trace="")
        if time.monotonic() - self._saved_at >= _SAVE_S:
            self._saved_at = time.monotonic()
            await self._owner.save(self)

    async def _caught_up(self, in_use: Sequence[Task]) -> None:
        if in_use:
            names = ", ".join(f"version {task.version} of '{task.subject}'" for task in in_use[:5])
            raise Conflict(f"{len(in_use)} versions cannot be deleted, because schemas there refer to them: {names}")
        if self._owner.entry_of(self).trace:
            self._owner.note(self, trace="")
        await self._owner.save(self)

    async def _call(self, work: Callable[[], _T]) -> _T:
        return await self._owner.in_thread(self.name, work)


async def _outcome(work: Coroutine[Any, Any, None]) -> HttpError | None:
    try:
        await work
    except HttpError as error:
        return error
    return None


def _set_outcome(
    loop: asyncio.AbstractEventLoop, outcome: asyncio.Future[_T], setter: Callable[[Any], None], value: Any
) -> None:
    def set_it() -> None:
        if not outcome.done():
            setter(value)

    with suppress(RuntimeError):  # the event loop has ended
        loop.call_soon_threadsafe(set_it)


def _now_ms() -> int:
    return int(time.time() * 1000)
