"""The clusters that the console shows.

Requests to a cluster are blocking functions of an AdminClient. They run in a pool of threads, each with a client of its
own, so that one slow broker does not hold up the pages. What several pages need, such as the list of topics, is read
once: requests at the same time share one reading, and a reading is used again for as long as its page allows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ottla.admin.client import AdminClient
from ottla.edge.console.settings import ConsoleSettings
from ottla.edge.web.authentication import Identity
from ottla.model.errors import OttlaError

_CLIENT_ID: Final = "ottla-console"
#: idle clients that are kept for each user of each cluster, and users
_IDLE_MAX: Final = 8
_USERS_MAX: Final = 100
#: readings that are kept; each may have megabytes
_READINGS_MAX: Final = 256

T = TypeVar("T")


class NoSuchCluster(OttlaError):
    """The path names a cluster that this console does not have."""


@dataclass(slots=True)
class _Reading:
    """A reading that is in progress or complete."""

    result: asyncio.Future[Any]
    #: when it was complete
    at: float = 0.0
    #: the result of the reading before and its time, as long as this one is in progress and may be preceded by it
    before: tuple[Any, float] | None = None


class ClusterAccess:
    """One cluster. Used on the event loop."""

    def __init__(self, name: str, properties: Mapping[str, str], timeout_s: float, threads: ThreadPoolExecutor) -> None:
        self.name = name
        self.bootstrap = properties["bootstrap.servers"]
        self._properties = {key: text for key, text in properties.items() if key != "bootstrap.servers"}
        self._timeout_s = timeout_s
        self._threads = threads
        #: by the properties of the user's login; the console's own client has none
        self._idle: dict[Identity, list[AdminClient]] = {}
        self._readings: dict[Hashable, _Reading] = {}
        self._is_closed = False

    async def run(self, function: Callable[[AdminClient], T], identity: Identity | None = None) -> T:
        """Return what a blocking function returns. It runs in a thread, with the login of the user if he has one."""
        user = self._user(identity)
        idle = self._idle.setdefault(user, [])
        lent = [idle.pop()] if idle else []
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._call, function, user, lent)
        # Also when the request was cancelled: a thread that has begun completes its function.
        work.add_done_callback(lambda done: self._give_back(user, lent, done))
        return await asyncio.shield(work)

    def _user(self, identity: Identity | None) -> Identity:
        # Users of the console's own file have no login at the cluster: they share the console's client.
        return identity if identity is not None and (identity.properties or identity.token) else Identity()

    def _call(self, function: Callable[[AdminClient], T], user: Identity, lent: list[AdminClient]) -> T:
        if not lent:
            properties = self._properties | dict(user.properties)
            lent.append(
                AdminClient(
                    self.bootstrap, properties, timeout_s=self._timeout_s, client_id=_CLIENT_ID, token=user.token
                )
            )
        return function(lent[0])

    def _give_back(self, user: Identity, lent: list[AdminClient], done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()  # it was raised where somebody waits for it
        idle = self._idle.get(user)
        for client in lent:
            if idle is None or self._is_closed or len(idle) >= _IDLE_MAX or user.is_expired:
                client.close()
            else:
                idle.append(client)
        while len(self._idle) > _USERS_MAX:
            for client in self._idle.pop(next(iter(self._idle))):
                client.close()

    async def read(
        self,
        key: Hashable,
        function: Callable[[AdminClient], T],
        *,
        age_s: float,
        stale_s: float = 0.0,
        identity: Identity | None = None,
    ) -> T:
        """Return what a function returns, or what it returned at most ``age_s`` seconds ago for this key and user.

        A result that is older, and at most ``stale_s`` seconds old, is returned too, while it is read again.
        """
        full_key = (key, self._user(identity))
        now = time.monotonic()
        known = self._readings.get(full_key)
        if known is None or (known.result.done() and known.at + age_s <= now):
            before = (known.result.result(), known.at) if known is not None and known.at + stale_s > now else None
            reading = _Reading(asyncio.ensure_future(self.run(function, identity)), before=before)
            self._readings[full_key] = known = reading
            reading.result.add_done_callback(lambda _: self._complete(full_key, reading))
        if not known.result.done() and known.before is not None and known.before[1] + stale_s > now:
            earlier: T = known.before[0]
            return earlier
        found: T = await asyncio.shield(known.result)
        return found

    def _complete(self, key: Hashable, reading: _Reading) -> None:
        reading.at = time.monotonic()
        reading.before = None
        failed = reading.result.cancelled() or reading.result.exception() is not None
        if failed and self._readings.get(key) is reading:
            del self._readings[key]
        if len(self._readings) > _READINGS_MAX:
            complete = [each for each, known in self._readings.items() if known.result.done()]
            for each in sorted(complete, key=lambda one: self._readings[one].at)[: _READINGS_MAX // 4]:
                del self._readings[each]

    def forget_readings(self) -> None:
        """Read everything again, because something was changed."""
        # A reading that is in progress may have begun before the change. Pages that wait for it get its result.
        self._readings.clear()

    def close(self) -> None:
        self._is_closed = True
        for idle in self._idle.values():
            for client in idle:
                client.close()
        self._idle.clear()


class Clusters:
    """All clusters by name."""

    def __init__(self, settings: ConsoleSettings) -> None:
        timeout_s = settings.client_timeout_ms / 1000
        self._threads = ThreadPoolExecutor(settings.threads_max, thread_name_prefix="console")
        own = {**settings.client, "bootstrap.servers": settings.bootstrap_servers}
        every = {settings.cluster_name: own, **settings.clusters}
        self.by_name = {
            name: ClusterAccess(name, properties, timeout_s, self._threads) for name, properties in every.items()
        }
        self.first = self.by_name[settings.cluster_name]

    def named(self, name: str) -> ClusterAccess:
        """Return a cluster. Raise NoSuchCluster."""
        found = self.by_name.get(name)
        if found is None:
            raise NoSuchCluster(f"there is no cluster {name!r}; the console has {', '.join(self.by_name)}")
        return found

    def close(self) -> None:
        for each in self.by_name.values():
            each.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
