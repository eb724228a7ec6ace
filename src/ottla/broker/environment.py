"""What surrounds a broker: the event loop, the clock, the disk, the network and threads. A simulation has its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.env.clock import Clock, SystemClock
from ottla.env.collector import freeze_objects
from ottla.env.deferred import Deferred
from ottla.env.disk import Disk, RealDisk
from ottla.env.tasks import Tasks, ThreadPool, Threads
from ottla.env.timers import TimerWheel
from ottla.model.settings import BrokerSettings
from ottla.net.network import Network, SocketNetwork


@dataclass(slots=True, kw_only=True)
class Environment:
    """The surroundings of one broker, and what its components share for their work in them."""

    loop: asyncio.AbstractEventLoop
    clock: Clock
    disk: Disk
    network: Network
    threads: Threads
    random_bytes: Callable[[int], bytes]
    #: exempts the objects that exist now from garbage collection
    freeze: Callable[[], None]
    #: background work of the components; the broker stops it
    tasks: Tasks = field(default_factory=Tasks)
    wheel: TimerWheel = field(init=False)
    deferred: Deferred = field(init=False)

    def __post_init__(self) -> None:
        self.wheel = TimerWheel(self.loop)
        self.deferred = Deferred(self.loop, self.clock.monotonic)

    def new_id(self) -> bytes:
        """Return 16 random bytes."""
        return self.random_bytes(16)

    def new_name(self) -> str:
        """Return a random name for a file or a folder."""
        return self.random_bytes(16).hex()


def system_environment(
    settings: BrokerSettings,
    loop: asyncio.AbstractEventLoop,
    *,
    network: Network | None = None,
    freeze: Callable[[], None] = freeze_objects,
) -> Environment:
    """Return the clock, the disk, the network and the threads of this process."""
    return Environment(
        loop=loop,
        clock=SystemClock(),
        disk=RealDisk(),
        network=network or SocketNetwork(),
        threads=ThreadPool(loop, settings.sync_threads, "disk"),
        random_bytes=os.urandom,
        freeze=freeze,
    )
