"""The processes of a cluster on one machine: ZooKeeper, brokers and HTTP services, each started again when it ends.

    start   ZooKeeper ─► all brokers at once ─► every broker knows all others ─► HTTP services ─► `ready`
    run     a process that ends is started again; the wait before it doubles while starts fail
    stop    HTTP services ─► all brokers (SIGTERM, so that they hand over their partitions) ─► ZooKeeper

Each process ends when this one ends, also by SIGKILL: its standard input is a pipe that this process holds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ottla.cli.profiles import PROFILE_ENVIRONMENT
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.env.json_log import with_process
from ottla.env.process import JSON, TEXT
from ottla.model.errors import OttlaError
from ottla.wire.messages.metadata import MetadataRequest

HOST = "127.0.0.1"
CHROOT = "/ottla"
ZOOKEEPER = "zookeeper"
REGISTRY = "registry"
REST = "rest"
CONSOLE = "console"
MONITOR = "monitor"
PID_SUFFIX = ".pid"

#: the wait before the second restart in a row; the first one is immediate
_RESTART_S_MIN = 0.5
_RESTART_S_MAX = 30.0
#: a process that has been ready for this long starts the sequence of waits anew
_STABLE_S = 10.0
_STOP_S_MAX = 60.0
_ASK_S_MAX = 5.0
_POLL_S = 0.02
_LINE_BYTES_MAX = 1 << 20
#: the start of the line in which a command, a broker or a service prints why it ends
_ERRORS = (
    "error: ",
    "ottla broker: ",
    f"ottla {REGISTRY}: ",
    f"ottla {REST}: ",
    f"ottla {CONSOLE}: ",
    f"ottla {MONITOR}: ",
)
#: what each address is for, in the summary at the start
_HINTS = {
    REGISTRY: "   {}/docs sends requests",
    REST: "   {}/docs sends requests",
    CONSOLE: "   open it in a browser",
    MONITOR: "   {}/metrics for Prometheus",
}

Say = Callable[[str], None]


class LocalClusterFailed(OttlaError):
    """A process did not start; the text says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. One broker runs on its own metadata store, without ZooKeeper."""

    data: Path
    #: port of each broker, by broker id
    ports: Mapping[int, int]
    #: 0: no ZooKeeper
    zookeeper_port: int = 0
    #: 0: no schema registry
    registry_port: int = 0
    #: 0: no REST proxy
    rest_port: int = 0
    #: 0: no console
    console_port: int = 0
    #: 0: no monitor
    monitor_port: int = 0
    settings: Mapping[str, str] = field(default_factory=dict)
    #: form of the log of all processes
    log_format: str = TEXT
    #: file descriptors that the processes inherit, so that locks last as long as they run
    inherited: Sequence[int] = ()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{port}" for port in self.ports.values())

    @property
    def zookeeper_connect(self) -> str:
        return f"{HOST}:{self.zookeeper_port}{CHROOT}"

    @property
    def service_urls(self) -> dict[str, str]:
        """The URL of each HTTP service, by the name of its command."""
        ports = {
            REGISTRY: self.registry_port, REST: self.rest_port, CONSOLE: self.console_port, MONITOR: self.monitor_port,
        }  # fmt: skip
        return {name: f"http://{HOST}:{port}" for name, port in ports.items() if port}

    def zookeeper_words(self) -> list[str]:
        """Return the arguments of `ottla` that run ZooKeeper."""
        return ["zookeeper", "--data", str(self.data / ZOOKEEPER), "--listen", f"{HOST}:{self.zookeeper_port}"]

    def broker_words(self, number: int) -> list[str]:
        """Return the arguments of `ottla` that run this broker."""
        settings = dict(self.settings)
        if REGISTRY in self.service_urls:
            # So that topics can have `schema.validation`.
            settings.setdefault("schema.registry.url", self.service_urls[REGISTRY])
        data = self.data
        if self.zookeeper_port:
            settings["zookeeper.connect"] = self.zookeeper_connect
            data = self.data / f"broker-{number}"
        if self.log_format == JSON:
            settings.setdefault("log.format", JSON)
        overrides = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
        listener = f"PLAINTEXT://{HOST}:{self.ports[number]}"
        return ["broker", "--id", str(number), "--data", str(data), "--listener", listener, *overrides]

    def service_words(self, name: str) -> list[str]:
        """Return the arguments of `ottla` that run this HTTP service."""
        urls = self.service_urls
        schemas = ["--registry", urls[REGISTRY]] if name in (REST, CONSOLE) and REGISTRY in urls else []
        own = ["-X", f"data.dir={self.data / name}"] if name in (CONSOLE, MONITOR) else []
        if name == MONITOR:
            own += ["--alerts", "default"]
        elif name == CONSOLE and MONITOR in urls:
            own += ["-X", f"monitor.url={urls[MONITOR]}"]
        own += ["-X", "cluster.name=local"] if name in (CONSOLE, MONITOR) else []
        words = [name, "--bootstrap", self.bootstrap, "--listen", urls[name], *schemas, *own]
        return [*words, "--log-format", JSON] if self.log_format == JSON else words


def restart_delay_s(failures: int) -> float:
    """Return the wait before a process is started again, after it ended this many times without being stable.

    >>> [restart_delay_s(failures) for failures in (1, 2, 3, 4, 20)]
    [0.0, 0.5, 1.0, 2.0, 30.0]
    """
    if failures <= 1:
        return 0.0
    return min(_RESTART_S_MIN * 2.0 ** min(failures - 2, 16), _RESTART_S_MAX)


def reserve_port(port: int) -> socket.socket:
    """Return a socket that is bound to this port, or to a free one for 0. Raise OSError if the port is in use.

    While the socket is open no other program gets the port. The process that it is for can bind it, because both
    sockets have SO_REUSEADDR and only that of the process listens.
    """
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, port))
    except OSError:
        reserved.close()
        raise
    return reserved


def run_until_signal(plan: Plan, say: Say) -> None:
    """Run the cluster until SIGTERM or SIGINT. Raise LocalClusterFailed if a process does not start."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        cluster = LocalCluster(plan, say)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, cluster.request_stop)
        await cluster.run()

    asyncio.run(serve())


class Process:
    """One process of the cluster. It is started again whenever it ends."""

    def __init__(self, name: str, words: Sequence[str], *, plan: Plan, pid_name: str, say: Say) -> None:
        self.name = name
        self._words = words
        self._inherited = plan.inherited
        self._is_json = plan.log_format == JSON
        self._pid_path = plan.data / f"{pid_name}{PID_SUFFIX}"
        self._say = say
        self._process: asyncio.subprocess.Process | None = None
        self._stop_requested = asyncio.Event()
        self._last_error = ""
        #: set when the process has printed its `ready` line for the first time
        self.started = asyncio.Event()
        self._ready_at = 0.0

    async def run(self) -> None:
        """Run the process, and start it again whenever it ends. Return after `stop`.

        Raise LocalClusterFailed if it ends before it was ready for the first time.
        """
        failures = 0
        while True:
            code = await self._run_once()
            if self._stop_requested.is_set():
                return
            if not self.started.is_set():
                raise LocalClusterFailed(f"{self.name} did not start: {self._last_error or _describe_end(code)}")
            is_stable = self._ready_at and time.monotonic() - self._ready_at >= _STABLE_S
            failures = 1 if is_stable else failures + 1
            delay_s = restart_delay_s(failures)
            when = f" in {delay_s:g} s" if delay_s else ""
            reason = f" ({self._last_error})" if self._last_error else ""
            self._say(f"{self.name} {_describe_end(code)}{reason}; it is started again{when}")
            with suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stop_requested.wait()
                    return

    async def _run_once(self) -> int:
        """Run the process until it ends. Return its exit code, negative for a signal."""
        self._ready_at, self._last_error = 0.0, ""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ottla", *self._words,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "OTTLA_END_WITH_STDIN": "1", PROFILE_ENVIRONMENT: ""}, limit=_LINE_BYTES_MAX,
            pass_fds=tuple(self._inherited),
            # Ctrl-C of a terminal reaches this process only, which stops the others in their order.
            start_new_session=True,
        )  # fmt: skip
        self._pid_path.write_text(f"{process.pid}\n")
        try:
            if self._stop_requested.is_set():
                self.send(signal.SIGTERM)
            await asyncio.gather(self._read_output(process), self._read_errors(process))
            return await process.wait()
        finally:
            self._pid_path.unlink(missing_ok=True)
            self._process = None

    async def _read_output(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            if line.startswith(b"ready "):
                self._ready_at = time.monotonic()
                self._say(f"{self.name} is ready at {line.split()[1].decode().rpartition('//')[2]}, pid {process.pid}")
                self.started.set()

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        """Print the log of the process, each line with its name. Keep the line that says why the process ends."""
        assert process.stderr is not None
        while True:
            try:
                line = (await process.stderr.readline()).decode(errors="replace")
            except ValueError:
                continue  # a line longer than the limit: dropped
            if not line:
                return
            if line.startswith(_ERRORS):
                self._last_error = line.partition(": ")[2].strip()
            else:
                with suppress(BrokenPipeError):  # the reader of this output has ended; the cluster continues
                    sys.stderr.write(self._log_line(line))
                    sys.stderr.flush()

    def _log_line(self, line: str) -> str:
        return f"{with_process(line, self.name, time.time())}\n" if self._is_json else f"{self.name}: {line}"

    def stop(self) -> None:
        """Ask the process to end. It is not started again."""
        self._stop_requested.set()
        self.send(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process if it runs."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class LocalCluster:
    """ZooKeeper, brokers and HTTP services on this machine, from the start to the stop."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._brokers = {
            number: Process(
                f"broker {number}", plan.broker_words(number), plan=plan, pid_name=f"broker-{number}", say=say
            )
            for number in plan.ports
        }
        self._zookeeper: Process | None = None
        if plan.zookeeper_port:
            self._zookeeper = Process(ZOOKEEPER, plan.zookeeper_words(), plan=plan, pid_name=ZOOKEEPER, say=say)
        self._services = [
            Process(name, plan.service_words(name), plan=plan, pid_name=name, say=say) for name in plan.service_urls
        ]
        self._tasks: dict[Process, asyncio.Task[None]] = {}
        self._stop_requested = asyncio.Event()

    def request_stop(self) -> None:
        """Stop the cluster. The second call kills all processes."""
        if self._stop_requested.is_set():
            for process in self._tasks:
                process.stop()
                process.send(signal.SIGKILL)
        self._stop_requested.set()

    async def run(self) -> None:
        """Run the cluster until `request_stop`. Raise LocalClusterFailed if a process does not start."""
        stopping = asyncio.create_task(self._stop_requested.wait())
        serving = asyncio.create_task(self._serve())
        try:
            await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()
        finally:
            stopping.cancel()
            serving.cancel()
            await asyncio.gather(stopping, serving, return_exceptions=True)
            await self._stop_all()

    async def _serve(self) -> None:
        """Start everything, print `ready`, and wait. Raise LocalClusterFailed if a process does not start."""
        plan = self._plan
        if self._zookeeper is not None:
            await self._start([self._zookeeper])
        await self._start(list(self._brokers.values()))
        if self._zookeeper is not None:
            await asyncio.gather(*(self._wait_until_complete(port) for port in plan.ports.values()))
        await self._start(self._services)
        for name, addresses in {"brokers": plan.bootstrap, **plan.service_urls}.items():
            self._say(f"{name:<8}  {addresses}{_HINTS.get(name, '').format(addresses)}")
        about = [f"{name}={url}" for name, url in plan.service_urls.items()]
        if self._zookeeper is not None:
            about.append(f"zookeeper={plan.zookeeper_connect}")
        self._say(" ".join(["ready", plan.bootstrap, f"brokers={len(plan.ports)}", *about, f"data={plan.data}"]))
        ended, _ = await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()  # raises: a process is started again as long as this is possible

    async def _start(self, processes: Sequence[Process]) -> None:
        """Start these processes and return when all of them are ready."""
        for process in processes:
            self._tasks[process] = asyncio.create_task(process.run(), name=process.name)
        started = asyncio.create_task(_wait_until_started(processes))
        try:
            await self._wait_for(started)
        finally:
            started.cancel()

    async def _wait_for(self, task: asyncio.Task[None]) -> None:
        """Return when the task is done. Raise LocalClusterFailed if a process does not start before that."""
        await asyncio.wait({task, *self._tasks.values()}, return_when=asyncio.FIRST_COMPLETED)
        for each in (*self._tasks.values(), task):
            if each.done():
                each.result()

    async def _wait_until_complete(self, port: int) -> None:
        """Return when the broker at this port knows all brokers: then a topic can have a replica on each."""
        while await asyncio.to_thread(_count_brokers, port) < len(self._plan.ports):
            await asyncio.sleep(_POLL_S)

    async def _stop_all(self) -> None:
        """Stop the HTTP services, then the brokers, then ZooKeeper: each needs the next ones until its end."""
        zookeeper = [] if self._zookeeper is None else [self._zookeeper]
        for processes in (self._services, [*self._brokers.values()], zookeeper):
            await self._stop([process for process in processes if process in self._tasks])

    async def _stop(self, processes: Sequence[Process]) -> None:
        tasks = [self._tasks[process] for process in processes]
        for process in processes:
            process.stop()
        try:
            async with asyncio.timeout(_STOP_S_MAX):
                await asyncio.gather(*tasks, return_exceptions=True)
        except TimeoutError:
            for process in processes:
                process.send(signal.SIGKILL)
            self._say("some processes did not stop in time and were killed")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _wait_until_started(processes: Sequence[Process]) -> None:
    for process in processes:
        await process.started.wait()


def _count_brokers(port: int) -> int:
    """Return how many brokers the broker at this port knows; 0 if it does not answer."""
    try:
        with Cluster(f"{HOST}:{port}", client_id="ottla-up", timeout_s=_ASK_S_MAX) as cluster:
            return len(cluster.ask_any(MetadataRequest(topics=[])).brokers)
    except ClientError:
        return 0


def _describe_end(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
