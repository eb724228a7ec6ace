"""The machine of one broker: its disk, its threads, and the process that runs on it.

The process runs the real ``Broker``. It can be killed between two callbacks, or within one, at any change of the disk.
A kill keeps what was written; a power failure keeps what was synced and some of the rest, as ``MemoryDisk`` draws it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Literal

from sim_loop import LIFE, ContextLoop, Life, VirtualLoop, run_in_life
from sim_network import HostNetwork, SimulatedNetwork
from sim_opener import open_elsewhere

from ottla.broker.broker import Broker
from ottla.broker.cluster.identity import store_path
from ottla.broker.cluster.membership import Membership
from ottla.broker.environment import Environment
from ottla.broker.metadata.decide import established
from ottla.broker.metadata.store import UnusableStore
from ottla.log.log import Log
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings
from ottla.model.types import TopicPartition
from ottla.testing.disk import Call, DiskCut, MemoryDisk, _Directory, _Fault
from ottla.testing.metadata_store import SimulatedEnsemble

Keep = Literal["process", "power"]
Trace = Callable[[str], None]

PORT = 9092
#: the wall clock at the start of a run, in milliseconds since 1970
WALL_START_MS = 1_800_000_000_000
#: how long a broker that starts waits for the metadata store, as with ZooKeeper
#: shorter than the time in which replicas must be in sync after the last fault
_JOB_DELAY_S_MAX = 20.0
_CONNECT_TIMEOUT_S = 30.0

SETTINGS = {
    "log.dirs": "/data",
    "allow.insecure.listeners": "true",
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "2",
    "offsets.topic.segment.bytes": "16384",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.segment.bytes": "16384",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "3000",
    "log.cleaner.backoff.ms": "2000",
    "log.retention.check.interval.ms": "5000",
    "group.verify.interval.ms": "2000",
}


class SimulatedDisk(MemoryDisk):
    """A disk that reports the change at which the machine stops."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cut: Callable[[], None] = lambda: None
        #: called before each change while a process starts
        self.before_change: Callable[[], None] | None = None

    def _call(self, name: str, path: str, *, changes: bool = True) -> _Fault | None:
        if changes and self.before_change is not None:
            self.before_change()
        if changes and self._cut_at is not None and self.changes >= self._cut_at:
            self.on_cut()
        fault = super()._call(name, path, changes=changes)
        self.calls.clear()  # a run makes too many to keep
        return fault

    def empty_directory(self, path: str) -> None:
        """Lose everything in a directory below the root, as if another disk was mounted there."""
        self._root.names[path.removeprefix("/")] = self._root.durable[path.removeprefix("/")] = _Directory()

    def exchange(self, one: str, other: str) -> None:
        """Exchange two directories below the root, as if their disks were mounted the other way round."""
        one, other = one.removeprefix("/"), other.removeprefix("/")
        for names in (self._root.names, self._root.durable):
            names[one], names[other] = names[other], names[one]

    def crash(self, rng: Random, keep: Keep) -> SimulatedDisk:
        booted = SimulatedDisk()
        booted.free, booted.total = self.free, self.total
        booted._root = super().crash(rng, keep)._root
        return booted


class SimulatedThreads:
    """In place of ``ThreadPool``: a job runs after a virtual delay, and reports after another one."""

    def __init__(self, loop: VirtualLoop, delay: Callable[[], float]) -> None:
        self._loop = loop
        self._delay = delay
        self._in_flight = 0
        self._idle: asyncio.Event | None = None

    def submit(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        self._in_flight += 1
        self._loop.call_later(self._delay(), self._run, work, done)

    def run_all(self, works: Sequence[Callable[[], None]]) -> None:
        for work in works:
            work()

    async def drain(self) -> None:
        while self._in_flight:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def close(self) -> None:
        pass

    def _run(self, work: Callable[[], None], done: Callable[[OSError | None], None]) -> None:
        error: OSError | None = None
        try:
            work()
        except DiskCut:
            return
        except OSError as raised:
            error = raised
        self._loop.call_later(self._delay() / 4, self._report, done, error)

    def _report(self, done: Callable[[OSError | None], None], error: OSError | None) -> None:
        self._in_flight -= 1
        if not self._in_flight and self._idle is not None:
            self._idle.set()
        done(error)


class SimulatedClock:
    """The clocks of one machine."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        #: virtual time, and time of this machine since it booted, when the rate was last changed
        self._changed_at = loop.time()
        self._boot_s = loop.time()
        #: how fast the clocks run
        self._rate = 1.0
        #: seconds in which the machine was suspended
        self._suspended_s = 0.0
        self._suspended_at: float | None = None
        #: how far the wall clock is ahead
        self.offset_ms = 0

    def set_rate(self, rate: float) -> None:
        """Let the clocks run faster or slower than those of other machines."""
        self._boot_s, self._changed_at, self._rate = self.since_boot(), self._loop.time(), rate

    def suspend(self) -> None:
        """Let the monotonic clock stand still."""
        self._suspended_at = self.since_boot()

    def resume(self) -> None:
        """Let the monotonic clock run again, if it stands still."""
        if self._suspended_at is not None:
            self._suspended_s += self.since_boot() - self._suspended_at
            self._suspended_at = None

    def monotonic(self) -> float:
        now = self.since_boot() if self._suspended_at is None else self._suspended_at
        return now - self._suspended_s

    def since_boot(self) -> float:
        return self._boot_s + (self._loop.time() - self._changed_at) * self._rate

    def wall_ms(self) -> int:
        return WALL_START_MS + int(self._loop.time() * 1000) + self.offset_ms


class BrokerHost:
    """One machine with one broker, which runs or not."""

    def __init__(
        self, broker_id: int, *, loop: VirtualLoop, network: SimulatedNetwork, ensemble: SimulatedEnsemble, rng: Random,
        trace: Trace, settings: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.broker_id = broker_id
        self.name = f"broker-{broker_id}"
        self._loop = loop
        self._network = network
        self._ensemble = ensemble
        self._rng = rng
        self._trace = trace
        properties = {**SETTINGS, "broker.id": str(broker_id), "listeners": f"PLAINTEXT://{self.name}:{PORT}"}
        self._properties = {**properties, **(settings or {})}
        self._settings = BrokerSettings.parse(self._properties)
        self.disk = SimulatedDisk()
        self.clock = SimulatedClock(loop)
        #: whether the disk was full at some time
        self.was_full = False
        #: the mean duration of a job of a thread
        self.disk_delay_s = 0.002
        #: the share of jobs that take seconds, while later ones overtake them
        self.late_jobs = 0.0

        # The process
        self._life: Life | None = None
        #: the broker of the running process; None if there is none
        self.broker: Broker | None = None
        self.is_ready = False
        #: how many processes have started
        self.starts = 0
        #: ends of processes by their cause
        self.ends: dict[str, int] = {}
        self._crash_keep: Keep = "process"
        #: of the start that goes on; see ``start_ends``
        self._start_end: tuple[int, Keep] | None = None
        #: called before the image of the disk after a crash is made, with what it keeps
        self.before_crash: Callable[[BrokerHost, Keep], None] = lambda host, keep: None
        #: called with the logs when they were opened, before anything is appended
        self.on_loaded: Callable[[BrokerHost, dict[TopicPartition, Log]], None] = lambda host, logs: None
        #: called with the exception of a process that ended with a traceback
        self.on_error: Callable[[BrokerHost, Exception], None] = lambda host, error: None
        #: whether a process that ends is started again at once
        self.keep_running = False
        #: steps of the current or last start: requests and replies of the metadata store, and changes of the disk
        self.start_steps = 0
        #: after how many steps the next starts end, in their order, and what that keeps
        self.start_ends: list[tuple[int, Keep]] = []
        #: whether a process that starts opens all batches off the event loop
        self.opens_elsewhere = False
        self._graves: list[Any] = []
        #: the life that is paused
        self._paused: Life | None = None
        #: when the machine was suspended
        self._suspended_at: float | None = None
        #: reasons why no message passes between this broker and the metadata store
        self._store_cuts = 0
        #: called when the store's state of a partition was applied
        self.on_state: Callable[[BrokerHost, Any], None] = lambda host, partition: None

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def membership(self) -> Membership | None:
        """Return what the broker is in the cluster; None while it does not run, or has not opened its metadata."""
        return self.broker.parts.membership if self.broker is not None and self.broker.parts is not None else None

    @property
    def is_running(self) -> bool:
        return self._life is not None

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change static settings; the next process has them."""
        self._properties |= settings
        self._settings = BrokerSettings.parse(self._properties)

    def start(self) -> None:
        """Start a process. Do nothing if one runs."""
        if self._life is not None:
            return
        self.starts += 1
        self._life = Life(f"{self.name}/{self.starts}")
        self._trace(f"{self.name} starts")
        self.disk.on_cut = self._cut
        self.disk.before_change = self._count_change
        self.start_steps = 0
        self._start_end = self.start_ends.pop(0) if self.start_ends else None
        run_in_life(self._life, lambda: self._graves.append(self._loop.create_task(self._run(self._life))))

    async def _run(self, life: Life) -> None:
        """Run the process to its end, as `broker/main.py` does."""
        try:
            await self._serve(life)
        except DiskCut:
            pass  # the process was killed within this call
        except Exception as error:
            self.on_error(self, error)
            self._ended(life, f"{type(error).__name__}: {error}")

    async def _serve(self, life: Life) -> None:
        environment = Environment(
            loop=self._loop, clock=self.clock, disk=self.disk, random_bytes=self._rng.randbytes,
            network=HostNetwork(self._network, self.name, self.disk),
            threads=SimulatedThreads(self._loop, self._job_delay), freeze=lambda: None,
        )  # fmt: skip
        self.broker = broker = Broker(self._settings, environment, open_store=self._open_store)
        if self.opens_elsewhere:
            open_elsewhere(broker, self._rng)
        load = broker.local.log_store.load

        def load_and_report(specs: Any) -> None:
            load(specs)
            self.on_loaded(self, broker.local.log_store.logs)

        broker.local.log_store.load = load_and_report  # type: ignore[method-assign]
        self._report_states(broker)
        try:
            await broker.start()
        except StartError as error:
            await broker.abandon()
            self._ended(life, f"start failed: {error}")
            return
        self.is_ready = True
        self._start_end = self.disk.before_change = None
        self.start_ends.clear()
        self._trace(f"{self.name} is ready after {self.start_steps} steps")
        reason = await broker.ended
        self.is_ready = False
        await broker.stop()
        self._ended(life, reason or "clean stop")

    def _report_states(self, broker: Broker) -> None:
        add, apply_state = broker.replicas.add, broker.replicas.apply_state

        def add_and_report(*args: Any, **options: Any) -> Any:
            partition = add(*args, **options)
            self.on_state(self, partition)
            return partition

        def apply_and_report(partition: Any, *args: Any, **options: Any) -> Any:
            result = apply_state(partition, *args, **options)
            self.on_state(self, partition)
            return result

        broker.replicas.add = add_and_report  # type: ignore[method-assign]
        broker.replicas.apply_state = apply_and_report  # type: ignore[method-assign]

    async def _open_store(self, settings: BrokerSettings) -> Any:
        path = store_path(settings)
        # A broker that is alone checks that the file of its store is there when its directory is not new.
        try:
            self.disk.write_file(path, b"simulated", sync=True)
        except OSError as error:
            if not settings.zookeeper_connect:
                raise UnusableStore(f"{path} cannot be opened ({error})") from None
        store = self._ensemble.connect(self.name)
        store._loop = ContextLoop(self._loop, self._life)
        store.on_message = self._count_message
        # As ZooKeeperStore.open does.
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await established(store)
        except TimeoutError:
            await store.close()
            raise UnusableStore("the metadata store did not answer") from None
        return store

    def _job_delay(self) -> float:
        if self.late_jobs and self._rng.random() < self.late_jobs:
            return self._rng.uniform(0.3, 3)
        return min(self._rng.expovariate(1 / self.disk_delay_s), _JOB_DELAY_S_MAX)

    def stop(self) -> None:
        """Ask the process to stop cleanly."""
        if self.broker is not None and self.is_ready:
            self._trace(f"{self.name} is asked to stop")
            self.broker.request_stop()

    def kill(self, keep: Keep) -> None:
        """End the process now, between two callbacks."""
        if self._life is not None:
            self._crash_keep = keep
            self._end_life("kill" if keep == "process" else "power failure")
            self._boot()

    def pause(self) -> None:
        """Stop the process without its knowledge, as SIGSTOP does; its connections stay open."""
        if self._life is not None and not self._life.is_paused:
            self._trace(f"{self.name} is paused")
            self._loop.pause_life(self._life)
            self.cut_from_store()
            self._paused = self._life

    def suspend(self) -> None:
        """Stop the machine: its monotonic clock and the timers of the process stand still until ``resume``."""
        if self._life is not None and not self._life.is_paused:
            self.pause()
            self.clock.suspend()
            self._suspended_at = self._loop.time()

    def resume(self) -> None:
        """Let the paused process, or the suspended machine, go on."""
        if self._paused is not None:
            self._trace(f"{self.name} goes on")
            suspended_s = 0.0 if self._suspended_at is None else self._loop.time() - self._suspended_at
            self._loop.resume_life(self._paused, late_s=suspended_s)
            self._end_pause()

    def _end_pause(self) -> None:
        self.clock.resume()
        self._paused = self._suspended_at = None
        self.heal_store()

    def cut_from_store(self) -> None:
        """Let no message pass between this broker and the metadata store until as many calls of ``heal_store``."""
        self._store_cuts += 1
        self._ensemble.cut(self.name)

    def heal_store(self, *, completely: bool = False) -> None:
        """End one reason for the cut, or all of them."""
        self._store_cuts = 0 if completely else max(self._store_cuts - 1, 0)
        if not self._store_cuts:
            self._ensemble.heal(self.name)

    def copy_disk(self) -> SimulatedDisk:
        """Return what a copy of the data directory contains if it is made now."""
        return self.disk.crash(self._rng, "process")

    def replace_disk(self, disk: SimulatedDisk) -> None:
        """Kill the process and let the next one find this disk."""
        self.kill("process")
        disk.free, disk.total = self.disk.free, self.disk.total
        self.disk = disk

    def kill_at_change(self, changes: int, keep: Keep, seed: int) -> None:
        """End the process within the change of the disk that follows after ``changes`` others."""
        if self._life is not None:
            self._crash_keep = keep
            self.disk.cut_after(changes, seed)

    def end_no_more_starts(self) -> None:
        """Let the start that goes on, and the next ones, succeed."""
        self._start_end = None
        self.start_ends.clear()

    def _is_last_step(self) -> bool:
        """Count a step of the start and return whether the process ends here."""
        self.start_steps += 1
        return self._start_end is not None and self.start_steps > self._start_end[0]

    def _count_change(self) -> None:
        if self._is_last_step() and self._start_end is not None:
            self.kill_at_change(0, self._start_end[1], self._rng.randrange(1 << 30))
            self._start_end = None

    def _count_message(self) -> None:
        if not self.is_ready and self._is_last_step() and self._start_end is not None:
            # Not within the callback of the process that ends.
            world = contextvars.Context()
            self._loop.call_soon(self.kill, self._start_end[1], context=world)
            self._start_end = None

    def _cut(self) -> None:
        if self._life is not None and not self._life.is_over:
            kind = "killed" if self._crash_keep == "process" else "power failure"
            self._end_life(f"{kind} while writing")
            # The disk is read when the call that was cut has ended.
            world = contextvars.copy_context()
            world.run(LIFE.set, None)
            self._loop.call_soon(self._boot, context=world)

    def _end_life(self, cause: str) -> None:
        assert self._life is not None
        self._trace(f"{self.name} ends: {cause}")
        self.ends[cause] = self.ends.get(cause, 0) + 1
        self._loop.end_life(self._life)
        if self._paused is not None:
            self._end_pause()
        self._network.end_host(self.name, lose_bytes=self._crash_keep == "power")
        self._ensemble.crash(self.name)
        self.is_ready = False

    def _boot(self) -> None:
        """Replace the disk by the one that the next start finds."""
        self.before_crash(self, self._crash_keep)
        # Nothing of the dead process may be garbage-collected during the run: its clean-up code would run.
        self._graves.append((self.broker, self.disk))
        self.disk = self.disk.crash(self._rng, self._crash_keep)
        self._life = self.broker = None

    def _ended(self, life: Life, cause: str) -> None:
        """The process ended by itself."""
        self._trace(f"{self.name} ended: {cause}")
        self.ends[cause] = self.ends.get(cause, 0) + 1
        self.before_crash(self, "process")
        self._graves.append((self.broker, self.disk))
        self._network.end_host(self.name, lose_bytes=False)
        self._crash_keep = "process"
        self.disk = self.disk.crash(self._rng, "process")
        life.is_over = True
        self._life = self.broker = None
        self.is_ready = False
        if self.keep_running:
            self._loop.call_later(0.1, self.start, context=contextvars.Context())


__all__ = ["PORT", "BrokerHost", "Call", "SimulatedClock", "SimulatedDisk", "SimulatedThreads"]
