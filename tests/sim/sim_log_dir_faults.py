"""Faults of brokers with several log directories.

A directory is lost (another disk is mounted there, or it is no longer in ``log.dirs``) only when every other replica
is in sync, and no other process ends until the cluster knows which logs are lost. So one copy is lost at a time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sim_host import BrokerHost, Keep

from ottla.broker.metadata.view import NO_LEADER

if TYPE_CHECKING:
    from sim_world import World

LOG_DIR_FAULTS = (
    "lose a log directory",
    "fail a log directory",
    "start without a log directory",
    "exchange log directories",
    "lose a log directory and end starts",
    "restart all without a log directory",
)
#: how long a sequence waits for its moment, and how often it looks
_WAIT_S = 8.0
_LOOK_S = 0.05
#: about as many steps as a start has
_START_STEPS = 70


class LogDirFaults:
    """Lets the log directories of brokers fail, one directory at a time."""

    def __init__(
        self, world: World, rng: Random, may_end: Callable[[], bool], set_damaged: Callable[[BrokerHost], None]
    ) -> None:
        self._world = world
        self._rng = rng
        #: whether a process may end now
        self._may_end = may_end
        #: called with the broker that has lost logs
        self._set_damaged = set_damaged
        #: the directories that are not in ``log.dirs`` of their broker
        self._removed: dict[BrokerHost, str] = {}
        #: brokers with a directory that fails
        self._failed: dict[BrokerHost, None] = {}
        #: brokers that a sequence starts again when it is time
        self._kept_down: dict[BrokerHost, None] = {}
        #: whether a sequence stops all brokers
        self.is_busy = False

    def strike(self, fault: str, host: BrokerHost) -> None:
        """Begin a fault of ``LOG_DIR_FAULTS``."""
        until = self._world.loop.time() + _WAIT_S
        if fault == "lose a log directory":
            self._when_redundant(host, self._end_and_lose, until)
        elif fault == "lose a log directory and end starts":
            self._when_redundant(host, self._lose_and_end_starts, until)
        elif fault == "restart all without a log directory":
            self._when_redundant(host, self._stop_all, until)
        elif fault == "fail a log directory":
            self._fail(host)
        elif fault == "start without a log directory":
            self._fail_start(host)
        elif host not in self._failed:
            self._end(host)
            one, other = self._rng.sample(self._world.shape.directories, 2)
            self._world.trace(f"{host.name}: {one} and {other} are exchanged")
            host.disk.exchange(one, other)

    def is_kept_down(self, host: BrokerHost) -> bool:
        """Return whether a sequence will start this broker."""
        return host in self._kept_down

    def heal(self) -> None:
        """Start what a sequence has stopped, and restart brokers with a directory that is offline."""
        self.is_busy = False
        self._kept_down.clear()
        for host in self._failed:
            host.stop()
        self._failed.clear()

    def _end(self, host: BrokerHost) -> None:
        host.kill(self._rng.choice(("process", "power")))

    # -- loss -----------------------------------------------------------------------------------------------------

    def _is_redundant(self, host: BrokerHost) -> bool:
        """Return whether all other replicas of the broker's partitions are in sync and all brokers run."""
        replication = self._world.replication
        assert replication is not None
        for _, state in replication.store.partitions():
            others = {*state.replicas} - {host.broker_id}
            if host.broker_id in state.replicas and (state.leader == NO_LEADER or not others <= {*state.isr}):
                return False
        return self._may_end() and all(each.is_ready for each in self._world.hosts.values())

    def _when_redundant(self, host: BrokerHost, call: Callable[[BrokerHost], None], until: float) -> None:
        """Wait until a copy of the data may be lost."""
        if self._is_redundant(host) and host not in self._failed:
            call(host)
        elif self._world.loop.time() < until:
            self._later(_LOOK_S, self._when_redundant, host, call, until)

    def _end_and_lose(self, host: BrokerHost) -> None:
        self._end(host)
        self._lose(host)

    def _lose_and_end_starts(self, host: BrokerHost) -> None:
        self._end_and_lose(host)
        self.end_starts(host)

    def end_starts(self, host: BrokerHost) -> None:
        """End the next starts of a broker, each after a step that is drawn."""
        kinds: tuple[Keep, ...] = ("process", "power")
        starts = self._rng.randint(1, 3)
        host.start_ends = [(self._rng.randint(0, _START_STEPS), self._rng.choice(kinds)) for _ in range(starts)]

    def _lose(self, host: BrokerHost) -> None:
        """Lose a directory of a broker that does not run, or use one again that was removed from the settings."""
        directories = self._world.shape.directories
        removed = self._removed.pop(host, None)
        if removed is not None:
            self._world.trace(f"{host.name}: {removed} is in log.dirs again")
            host.configure({"log.dirs": ",".join(directories)})
            return
        path = self._rng.choice(directories)
        self._set_damaged(host)
        if self._rng.random() < 0.5:
            self._world.trace(f"{host.name}: {path} is empty")
            host.disk.empty_directory(path)
        else:
            self._world.trace(f"{host.name}: {path} is not in log.dirs any more")
            self._removed[host] = path
            host.configure({"log.dirs": ",".join(each for each in directories if each != path)})

    # -- failure at run time --------------------------------------------------------------------------------------

    def _fail(self, host: BrokerHost) -> None:
        """Let all writes or syncs of a directory fail until the broker is restarted, with its logs or without them."""
        rng = self._rng
        if not host.is_ready or host in self._failed:
            return
        self._failed[host] = None
        path = rng.choice([each for each in self._world.shape.directories if each != self._removed.get(host)])
        kind = rng.choice(("write", "sync", "any"))
        self._world.trace(f"{host.name}: {kind} fails in {path}")
        host.disk.fail(kind, errno.EIO, times=None, path=path)
        self._later(rng.uniform(0.5, 4), self._replace_failed, host, path, self._world.loop.time() + _WAIT_S)

    def _fail_start(self, host: BrokerHost) -> None:
        """Let all calls in a directory fail from a step of the next start on, until the broker is restarted."""
        rng = self._rng
        if not host.is_ready or host in self._failed or not self._may_end():
            return
        self._end(host)
        self._failed[host] = None
        path = rng.choice([each for each in self._world.shape.directories if each != self._removed.get(host)])
        skip = rng.choice((0, rng.randint(1, _START_STEPS)))
        self._world.trace(f"{host.name}: all calls fail in {path} after {skip}")
        host.disk.fail("any", errno.EIO, skip=skip, times=None, path=path)
        self._later(rng.uniform(1, 6), self._replace_failed, host, path, self._world.loop.time() + _WAIT_S)

    def _replace_failed(self, host: BrokerHost, path: str, until: float) -> None:
        """Restart the broker; without the failed disk if the other replicas are in sync."""
        if host not in self._failed:
            return
        if self._is_redundant(host):
            self._end(host)
            self._set_damaged(host)
            self._world.trace(f"{host.name}: {path} is empty")
            host.disk.empty_directory(path)
            del self._failed[host]
        elif self._world.loop.time() < until:
            self._later(_LOOK_S, self._replace_failed, host, path, until)
        elif self._may_end():
            self._end(host)
            del self._failed[host]

    # -- all brokers ----------------------------------------------------------------------------------------------

    def _stop_all(self, last: BrokerHost) -> None:
        """Stop all brokers cleanly, one after the other; the last one, or the first one, loses a directory."""
        self.is_busy = True
        hosts = [host for host in self._world.hosts.values() if host is not last]
        self._rng.shuffle(hosts)
        hosts.append(last)
        self._kept_down.update(dict.fromkeys(hosts))
        self._stop_next(hosts, 0, self._world.loop.time() + _WAIT_S, _clean_stops(hosts) + len(hosts))

    def _stop_next(self, hosts: list[BrokerHost], number: int, until: float, clean_stops: int) -> None:
        running = [host for host in hosts if host.is_running]
        if not running:
            damaged = hosts[-1] if self._rng.random() < 0.7 else hosts[0]
            # An earlier fault may have killed a broker while it stopped, or may let writes fail: then the copy of that
            # broker may lack records already.
            if _clean_stops(hosts) == clean_stops and not self._failed:
                self._lose(damaged)
            # The broker without the directory starts first, so that it could be elected.
            starting = [damaged, *(host for host in hosts if host is not damaged)]
            after = 0.0
            for host in starting:
                self._later(after, self._start, host)
                after += self._rng.uniform(0.1, 2.5)
            self._later(after, self._done)
        elif self._world.loop.time() >= until:
            self._done()
        else:
            if running[0] is hosts[number % len(hosts)]:
                running[0].stop()
            self._later(_LOOK_S, self._stop_next, hosts, hosts.index(running[0]), until, clean_stops)

    def _start(self, host: BrokerHost) -> None:
        self._kept_down.pop(host, None)
        host.start()

    def _done(self) -> None:
        self.is_busy = False
        self._kept_down.clear()

    def _later(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        def run() -> None:
            if not self._world.is_over:
                call(*args)

        self._world.loop.call_later(seconds, run)


def _clean_stops(hosts: list[BrokerHost]) -> int:
    return sum(host.ends.get("clean stop", 0) for host in hosts)
