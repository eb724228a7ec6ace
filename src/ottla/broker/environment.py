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
from ottla.env.tracing import Spans
from ottla.model import extras
from ottla.model.errors import StartError
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
    #: exports traces; None without `traces.endpoint`
    spans: Spans | None = None
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
    """Return the clock, the disk, the network and the threads of this process. Raise StartError."""
    return Environment(
        loop=loop,
        clock=SystemClock(),
        disk=RealDisk(),
        network=network or SocketNetwork(),
        threads=ThreadPool(loop, settings.sync_threads, "disk"),
        random_bytes=os.urandom,
        freeze=freeze,
        spans=_open_spans(settings),
    )


def _open_spans(settings: BrokerSettings) -> Spans | None:
    """Return what exports traces; None without an endpoint. Raise StartError without the packages for it."""
    if not settings.traces_endpoint:
        return None
    try:
        from ottla.env.otel import OtelSpans
    except ModuleNotFoundError as error:
        raise StartError(f"traces.endpoint: {extras.missing(error.name or 'opentelemetry', extras.OTEL)}") from None
    return OtelSpans(
        settings.traces_endpoint,
        service="ottla-broker",
        instance=str(settings.broker_id),
        ratio=settings.traces_sample_ratio,
        per_second_max=settings.traces_per_second_max,
    )
