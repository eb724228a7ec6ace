"""Enforcement of quotas: count what clients use, and mute the connections of those that use too much (KIP-219).

The reply to a request that exceeds a quota is sent at once and names the throttle time. For this time the connection
is muted: the broker does not read from it. A Fetch that exceeds its quota gets a reply without records.

While there is no quota of a kind, nothing is counted: the dispatcher then calls the handlers of Produce and Fetch
directly (``Dispatcher._quotas_changed``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from struct import Struct
from typing import Any, Final, cast

from ottla.env.timers import Expiring, TimerWheel
from ottla.model.errors import ErrorCode, Refused
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection
from ottla.security.quotas import Bucket, Entity, Quota, Quotas, new_bucket
from ottla.wire import Message

#: first versions whose clients know THROTTLING_QUOTA_EXCEEDED: CreateTopics, DeleteTopics, CreatePartitions
_STRICT_FROM: Final = {19: 6, 20: 5, 37: 3}
_WRITE_TXN_MARKERS, _ADD_PARTITIONS_TO_TXN = 27, 24
#: from this version on only brokers send AddPartitionsToTxn
_ADD_BY_BROKERS_FROM = 4
_ALL_LISTENERS = ""
_INT32: Final = Struct(">i")


class Throttling:
    """The quotas of the cluster, and the connections of this broker that are muted."""

    def __init__(self, wheel: TimerWheel, monotonic: Callable[[], float], loop: asyncio.AbstractEventLoop) -> None:
        self._wheel = wheel
        self.monotonic = monotonic
        self._loop = loop
        self.quotas = Quotas()
        self._muted: dict[Connection, _Mute] = {}
        #: called after each change of quotas
        self._on_change: list[Callable[[], None]] = []
        #: connections per second that are accepted, by listener; that of all listeners has an empty name
        self._creation: dict[str, Bucket] = {}
        self._exempt_listener = ""

        # Figures
        self.throttled: dict[Quota, int] = dict.fromkeys(Quota, 0)
        self.throttle_s: dict[Quota, float] = dict.fromkeys(Quota, 0.0)

    # -- changes --------------------------------------------------------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call this now and after each change of quotas."""
        self._on_change.append(callback)
        callback()

    def put(self, entity: Entity, rates: Mapping[str, float]) -> None:
        """Replace the quotas of an entity. Connections that are muted for longer than now necessary are unmuted."""
        self.quotas.put(entity, rates)
        for callback in self._on_change:
            callback()
        now = self.monotonic()
        for mute in list(self._muted.values()):
            mute.shorten(self.quotas, now)

    def is_active(self, *quotas: Quota) -> bool:
        return not self.quotas.active.isdisjoint(quotas)

    @property
    def muted(self) -> int:
        return len(self._muted)

    # -- requests -------------------------------------------------------------------------------------------------

    def take(self, quota: Quota, connection: Connection, amount: float) -> int:
        """Count what a request used. Mute the connection if that is too much; return the throttle time in ms."""
        if quota not in self.quotas.active:
            return 0
        now = self.monotonic()
        bucket = self.quotas.bucket(quota, _user(connection), connection.client_id, now)
        if bucket is None:
            return 0
        wait_s = bucket.take(amount, now)
        return self.mute(quota, connection, wait_s) if wait_s else 0

    def take_time(self, connection: Connection, started: float) -> int:
        """Count the time since ``started`` in which a request was handled. Return the throttle time in ms."""
        if connection.is_peer or Quota.REQUEST not in self.quotas.active:
            return 0
        return self.take(Quota.REQUEST, connection, max(self.monotonic() - started, 0.0))

    def take_records(self, connection: Connection, size_bytes: int) -> int:
        """Count the records of a Fetch reply, unless the client has used too much. Then return the throttle time."""
        bucket = self._bucket(Quota.FETCH, connection)
        if bucket is None:
            return 0
        now = self.monotonic()
        throttle_ms = self.mute(Quota.FETCH, connection, bucket.wait_s(now))
        if not throttle_ms:
            bucket.take(size_bytes, now)
        return throttle_ms

    def records_bytes_max(self, connection: Connection) -> int:
        """Return how large a Fetch reply may be so that the client is not throttled for long after it."""
        bucket = self._bucket(Quota.FETCH, connection)
        return 2**31 - 1 if bucket is None else max(int(bucket.size), 1)

    def usage(self, connection: Connection, api_key: int, version: int) -> Usage:
        """Return what counts the usage of one request, other than the bytes of Produce and Fetch."""
        active = self.quotas.active
        strict_from = _STRICT_FROM.get(api_key)
        bucket = None if strict_from is None else self._bucket(Quota.CONTROLLER_MUTATION, connection)
        is_timed = Quota.REQUEST in active and not connection.is_peer and not _is_of_broker(api_key, version)
        is_strict = strict_from is not None and version >= strict_from
        return Usage(self, connection, bucket, is_strict=is_strict, is_timed=is_timed)

    def _bucket(self, quota: Quota, connection: Connection) -> Bucket | None:
        return self.quotas.bucket(quota, _user(connection), connection.client_id, self.monotonic())

    # -- muting ---------------------------------------------------------------------------------------------------

    def mute(self, quota: Quota, connection: Connection, wait_s: float) -> int:
        """Read nothing from the connection for this time. Return it in ms."""
        if wait_s <= 0 or connection.closing:
            return 0
        throttle_ms = math.ceil(wait_s * 1000)
        self.throttled[quota] += 1
        self.throttle_s[quota] += wait_s
        mute = self._muted.get(connection)
        if mute is None:
            mute = self._muted[connection] = _Mute(self, connection)
            connection.stop_intake()
            connection.on_close[mute.closed] = None
            connection.watch_peer()
        mute.extend(quota, self.monotonic() + throttle_ms / 1000)
        return throttle_ms

    def arm(self, mute: _Mute, until: float) -> None:
        self._wheel.remove(mute)
        self._wheel.add(mute, max(until - self.monotonic(), 0.0))

    def unmute(self, connection: Connection) -> None:
        mute = self._muted.pop(connection, None)
        if mute is not None:
            self._wheel.remove(mute)
            connection.on_close.pop(mute.closed, None)
            if not connection.closing:
                connection.unmute()

    # -- new connections ------------------------------------------------------------------------------------------

    def limit_connections(self, rates: Mapping[str, int], exempt_listener: str) -> None:
        """Set the limits of new connections per second by listener; that for all listeners has an empty name.

        The limit for all listeners does not apply to ``exempt_listener``.
        """
        now = self.monotonic()
        self._exempt_listener = exempt_listener
        self._creation = {
            listener: self._changed(self._creation.get(listener), rate, now) for listener, rate in rates.items()
        }

    @staticmethod
    def _changed(bucket: Bucket | None, rate: float, now: float) -> Bucket:
        if bucket is None:
            return new_bucket(Quota.CONNECTION, rate, now)
        if bucket.rate != rate:
            bucket.change_rate(rate, now)
        return bucket

    def admit(self, connection: Connection) -> None:
        """Count a new connection. One that exceeds the quota of its address is closed, after the throttle time.

        One that exceeds the limit of its listener, or of all listeners, is served later.
        """
        now = self.monotonic()
        address = connection.peer_host.removeprefix("::ffff:")
        bucket = self.quotas.ip_bucket(address, now) if Quota.CONNECTION in self.quotas.active else None
        if bucket is not None and (wait_s := bucket.wait_for_one_s(now)) > 0:
            self.throttled[Quota.CONNECTION] += 1
            self.throttle_s[Quota.CONNECTION] += wait_s
            self._hold(connection)
            self._loop.call_later(wait_s, connection.abort)
            return
        names = [connection.listener]
        if connection.listener != self._exempt_listener:
            names.append(_ALL_LISTENERS)
        waits = [each.take(1, now) for name in names if (each := self._creation.get(name)) is not None]
        if waits and (wait_s := max(waits)) > 0:
            self.throttled[Quota.CONNECTION] += 1
            self.throttle_s[Quota.CONNECTION] += wait_s
            self._loop.call_later(wait_s, self._hold(connection).release)

    def _hold(self, connection: Connection) -> _Held:
        held = _Held(connection)
        # Not now: the transport begins to read after it has reported the connection.
        self._loop.call_soon(connection.stop_reading)
        return held


class _Held:
    """A new connection that is not served yet. Its first request may be received before reading stops; it waits."""

    __slots__ = ("_connection", "_frame", "_handle")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._frame: bytearray | None = None
        self._handle = connection.exchange_handler(self._keep)
        connection.mute()

    def _keep(self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int) -> None:
        self._frame = bytearray(view[start:end])

    def release(self) -> None:
        """Serve the connection from now on."""
        connection, frame = self._connection, self._frame
        if connection.closing:
            return
        connection.exchange_handler(self._handle)
        if frame is not None:
            connection.touch()  # begins a turn, at whose end the reply is sent
            with memoryview(frame) as view:
                self._handle(connection, frame, view, 0, len(frame))
        connection.unmute()


class _Mute:
    """A connection that is muted because of quotas."""

    __slots__ = ("_connection", "_throttling", "_until", "timer_bucket")

    def __init__(self, throttling: Throttling, connection: Connection) -> None:
        self._throttling = throttling
        self._connection = connection
        self.timer_bucket: dict[Expiring, None] | None = None
        #: when it may be read from again, by quota
        self._until: dict[Quota, float] = {}

    def extend(self, quota: Quota, until: float) -> None:
        self._until[quota] = max(until, self._until.get(quota, until))
        self._throttling.arm(self, max(self._until.values()))

    def shorten(self, quotas: Quotas, now: float) -> None:
        """Take over changed quotas. The throttle time may get shorter; it never exceeds the one that was sent."""
        connection = self._connection
        for quota, until in self._until.items():
            bucket = quotas.bucket(quota, _user(connection), connection.client_id, now)
            self._until[quota] = min(until, now + (0.0 if bucket is None else bucket.wait_s(now)))
        self._throttling.arm(self, max(self._until.values()))

    def expire(self) -> None:
        self._throttling.unmute(self._connection)

    def closed(self) -> None:
        """The client closed its side. If it only sends no more, what it has sent still waits."""
        if self._connection.closing:
            self._throttling.unmute(self._connection)


class Usage:
    """What one request uses of the quotas of its client: time, and partitions that it creates or deletes.

    A strict quota of partitions refuses changes while something is owed. Otherwise the changes are made, and the
    connection is muted.
    """

    __slots__ = (
        "_bucket", "_connection", "_is_refused", "_is_strict", "_is_timed", "_spent_s", "_started", "_throttling",
    )  # fmt: skip

    def __init__(
        self, throttling: Throttling, connection: Connection, bucket: Bucket | None, *, is_strict: bool, is_timed: bool
    ) -> None:
        self._throttling, self._connection, self._bucket = throttling, connection, bucket
        self._is_strict, self._is_timed = is_strict, is_timed
        self._is_refused = False
        self._spent_s = 0.0
        self._started = throttling.monotonic() if is_timed else 0.0

    def check_mutations(self) -> None:
        """Raise Refused if the quota of partitions is exceeded and strict."""
        if self._bucket is not None and self._is_strict and self._bucket.wait_s(self._throttling.monotonic()) > 0:
            self._is_refused = True
            raise Refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the quota controller_mutation_rate is exceeded")

    def record_mutations(self, partitions: int) -> None:
        """Count partitions that were created or deleted."""
        if self._bucket is not None:
            self._bucket.take(partitions, self._throttling.monotonic())

    def pause(self) -> None:
        """The request waits: the time until its next step is not counted."""
        if self._is_timed:
            self._spent_s += self._throttling.monotonic() - self._started

    def timed(self, work: Awaitable[Message]) -> Awaitable[Message]:
        """Return the work, with the time of its steps counted."""
        return _Steps(work, self) if self._is_timed else work

    @property
    def clock(self) -> Callable[[], float]:
        return self._throttling.monotonic

    def add_time(self, spent_s: float) -> None:
        self._spent_s += spent_s

    def throttle_ms(self) -> int:
        """Mute the connection if a quota is exceeded. Return the throttle time. Called once, before the reply."""
        throttle_ms = 0
        if self._bucket is not None and (self._is_refused or not self._is_strict):
            wait_s = self._bucket.wait_s(self._throttling.monotonic())
            throttle_ms = self._throttling.mute(Quota.CONTROLLER_MUTATION, self._connection, wait_s)
        if self._is_timed:
            throttle_ms = max(throttle_ms, self._throttling.take(Quota.REQUEST, self._connection, self._spent_s))
        return throttle_ms


class _Steps:
    """Work whose steps on the event loop are timed. It is its own iterator of steps."""

    __slots__ = ("_steps", "_usage")

    def __init__(self, work: Awaitable[Message], usage: Usage) -> None:
        self._steps = work.__await__()
        self._usage = usage

    def __await__(self) -> Generator[Any, Any, Message]:
        return cast("Generator[Any, Any, Message]", self)

    def __iter__(self) -> _Steps:
        return self

    def __next__(self) -> Any:
        return self._step(lambda: next(self._steps))

    def send(self, value: Any) -> Any:
        return self._step(lambda: self._steps.send(value))

    def throw(self, *error: Any) -> Any:
        return self._step(lambda: self._steps.throw(*error))

    def close(self) -> None:
        self._steps.close()

    def _step(self, step: Callable[[], Any]) -> Any:
        started = self._usage.clock()
        try:
            return step()
        finally:
            self._usage.add_time(self._usage.clock() - started)


class _Uncounted(Usage):
    """The usage of a request that no quota applies to."""

    __slots__ = ()

    def __init__(self) -> None:
        self._bucket = None
        self._is_strict = self._is_timed = False


UNCOUNTED: Final[Usage] = _Uncounted()


def _is_of_broker(api_key: int, version: int) -> bool:
    """Return whether only brokers send this request: it does not count for the quota of request time."""
    return api_key == _WRITE_TXN_MARKERS or (api_key == _ADD_PARTITIONS_TO_TXN and version >= _ADD_BY_BROKERS_FROM)


def with_throttle_time(reply: bytes, position: int, throttle_ms: int) -> bytes:
    """Return the reply with this throttle time, which begins at ``position``, or with its own if that is longer."""
    (known_ms,) = _INT32.unpack_from(reply, position)
    return reply[:position] + _INT32.pack(max(known_ms, throttle_ms)) + reply[position + 4 :]


def _user(connection: Connection) -> str:
    return connection.principal.partition(":")[2]
