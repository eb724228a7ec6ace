"""The clusters of the monitor: reads each in rounds, in a thread, and hands the readings to those that want them.

    without requests    a round every `interval.seconds`
    with requests       a request for lags that finds a reading older than `reading.age.ms.max` waits for a new round,
                        which all requests of that time share; rounds that take long are made less often

Rounds of one cluster follow each other, so that its client and its histories are used by one thread at a time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from ottla.admin.client import AdminClient
from ottla.edge.monitor.reader import ClusterReader
from ottla.edge.monitor.reading import ClusterReading
from ottla.edge.monitor.settings import MonitorSettings
from ottla.env.log_limit import LogLimit
from ottla.env.tasks import Tasks

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

_CLIENT_ID: Final = "ottla-monitor"
#: rounds take at most this share of the time, whatever clients ask for
_SHARE_MAX: Final = 0.2

T = TypeVar("T")
Subscriber = Callable[[ClusterReading], None]


class MonitoredCluster:
    """One cluster. Used on the event loop."""

    def __init__(
        self, name: str, properties: Mapping[str, str], settings: MonitorSettings, threads: ThreadPoolExecutor
    ) -> None:
        """Raise OttlaError if a property of the client is not valid."""
        self.name = name
        self.bootstrap = properties["bootstrap.servers"]
        own = {key: text for key, text in properties.items() if key != "bootstrap.servers"}
        self._client = AdminClient(
            self.bootstrap, own, timeout_s=settings.client_timeout_ms / 1000, client_id=_CLIENT_ID
        )
        self.reader = ClusterReader(name, self._client, settings.reader_options())
        self._settings = settings
        self._threads = threads
        self._read_at = 0.0
        #: rounds that were started, and the last of them that was completed
        self._started = self._ended = 0
        self._wanted = asyncio.Event()
        self._completed = asyncio.Event()
        self._subscribers: list[Subscriber] = []
        #: rounds that failed as a whole
        self.failed = 0

    @property
    def last(self) -> ClusterReading:
        """Return the reading of the last round; its number is 0 before the first one."""
        return self.reader.last

    def subscribe(self, function: Subscriber) -> None:
        """Call a function on the event loop after each round. It must not block."""
        self._subscribers.append(function)

    async def fresh(self) -> ClusterReading:
        """Return a reading that is new enough for a client. Wait for a round, up to `reading.wait.ms.max`."""
        age_ms = self._settings.reading_age_ms_max
        age_s = max(age_ms / 1000, self.last.seconds / _SHARE_MAX - self.last.seconds) if age_ms else 0.0
        if self.last.number and time.monotonic() - self._read_at < age_s:
            return self.last
        # A round in progress may have read already what this client wants to see.
        wanted = self._started + 1
        self._wanted.set()
        try:
            async with asyncio.timeout(self._settings.reading_wait_ms_max / 1000):
                while self._ended < wanted:
                    await self._completed.wait()
        except TimeoutError:
            pass
        return self.last

    def forget(self, group_id: str, topic: str | None = None) -> None:
        """Forget the commits of a group, or those in one topic. The next request for lags reads a new round."""
        self.reader.forget(group_id, topic)
        self._read_at = -math.inf

    async def run(self) -> None:
        """Read the cluster for as long as the monitor runs."""
        while True:
            before = self.last.problem
            self._wanted.clear()
            self._started += 1
            reading = await asyncio.get_running_loop().run_in_executor(self._threads, self.reader.read)
            self._read_at, self._ended = time.monotonic(), self._started
            self.failed += bool(reading.problem)
            if reading.problem and not before:
                log.warning("cluster cannot be read cluster=%s reason=%s", self.name, reading.problem)
            elif before and not reading.problem:
                log.info("cluster can be read again cluster=%s", self.name)
            for function in self._subscribers:
                function(reading)
            self._completed.set()
            self._completed = asyncio.Event()
            pause_s = self._pause_s(reading)
            try:
                await asyncio.wait_for(self._wanted.wait(), pause_s)
            except TimeoutError:
                pass

    def _pause_s(self, reading: ClusterReading) -> float:
        """Return the time until the next round without requests."""
        interval_s = float(self._settings.interval_seconds)
        if reading.problem:
            # It has waited for brokers that do not answer, and costs the cluster nothing: an alert about them opens,
            # and closes, after the next round.
            return interval_s
        return max(interval_s, reading.seconds / _SHARE_MAX - reading.seconds)

    def close(self) -> None:
        """Close the client. A round in progress fails."""
        self._client.close()


class MonitoredClusters:
    """All clusters by name, that of `bootstrap.servers` first."""

    def __init__(self, settings: MonitorSettings) -> None:
        every = settings.every_cluster()
        self._threads = ThreadPoolExecutor(len(every) + 1, thread_name_prefix="monitor")
        self._tasks = Tasks()
        self.by_name = {
            name: MonitoredCluster(name, properties, settings, self._threads) for name, properties in every.items()
        }
        self.first = self.by_name[settings.cluster_name]

    def start(self) -> None:
        for each in self.by_name.values():
            self._tasks.keep(each.run, f"read cluster {each.name}")

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Return what a function returns that takes long. It runs in a thread that reads no cluster."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)

    def problem(self) -> str | None:
        """Return why no cluster can be read; None if one can, or if none was tried yet."""
        every = list(self.by_name.values())
        if any(not each.last.problem for each in every):
            return None
        return "; ".join(f"{each.name}: {each.last.problem}" for each in every)

    async def close(self) -> None:
        await self._tasks.stop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for each in self.by_name.values():
            each.close()
