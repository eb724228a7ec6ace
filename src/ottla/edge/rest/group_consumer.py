"""Consumers of version 2: a librdkafka consumer, the records it has read ahead, and one thread that polls all of them.

librdkafka answers a rebalance when its consumer is polled. Clients of the proxy may not ask for records for minutes, so
a thread polls every consumer several times per second: a rebalance never waits for a client. Records that arrive this
way are kept until the client asks. When enough are kept, the partitions are paused.

The thread, and the threads of requests, hold the lock of a consumer while they call it. The event loop never waits for
that lock: it takes records that are kept, which have a lock of their own that is held for moments only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ottla.edge.rest.errors import ILLEGAL_STATE, KafkaRefusal
from ottla.edge.rest.kafka import kafka_partition, refusals
from ottla.edge.rest.schema_data import NotLoaded
from ottla.edge.web.app import HttpError
from ottla.env.tasks import attempt, keep_thread
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.edge.rest.kafka import Consumer

log = logging.getLogger(__name__)

#: records that one consumer keeps until they are asked for
_KEPT_BYTES_MAX: Final = 1 << 20
_KEPT_MAX: Final = 5000
_POLL_RECORDS: Final = 1000
#: how often consumers are polled: those whose client waits for records, and the others
_POLL_WAITING_S: Final = 0.005
_POLL_IDLE_S: Final = 0.1
_SEEK_S_MAX: Final = 10.0
_COMMITTED_S_MAX: Final = 10.0
#: librdkafka's codes
_STATE: Final = -172
_NO_OFFSET: Final = -168
#: errors that pass, or that Java's consumer does not report either
_IGNORED: Final = frozenset({3, -195, -193, -191, -187, -185, -147})
#: the group's coordinator is loading, not available, or another broker
_COORDINATOR_MOVES: Final = frozenset({14, 15, 16})
_ASSIGN_AGAIN_S: Final = 0.2
#: code -> how the message of an error begins, which is that of Java's consumer
_REASONS: Final = {29: "Not authorized to access topics: ", 30: "Not authorized to access group: "}


class Commit(NamedTuple):
    """An offset to commit, or that is committed."""

    tp: TopicPartition
    offset: int
    metadata: str | None


class GroupConsumer:
    """A member of a consumer group, or a consumer of assigned partitions."""

    def __init__(self, consumer: Consumer, loop: asyncio.AbstractEventLoop) -> None:
        self._consumer = consumer
        self._loop = loop
        #: held during the calls of the consumer that may block
        self._lock = threading.Lock()
        #: held while the kept records are changed
        self._kept_lock = threading.Lock()
        #: records that were read and not asked for, and their bytes
        self._kept: deque[Any] = deque()
        self._kept_bytes = 0
        self._is_paused = False
        self._is_closed = False
        #: topics of the subscription, which may be none if a pattern matches none
        self.subscription: tuple[str, ...] = ()
        self.pattern: str | None = None
        self._has_subscription = False
        self._is_assigned = False
        #: when the assigned partitions are assigned again; 0 for never
        self._assign_again_at = 0.0
        #: an error that the client has to see
        self._error: KafkaRefusal | None = None
        #: is set when records or an error arrive
        self.arrived = asyncio.Event()
        #: whether a client waits for records
        self.is_waited_for = False

    # Polling, in the thread of all consumers

    def poll(self) -> None:
        """Serve a rebalance, and keep the records that have arrived. Does nothing while a request uses the consumer."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._is_closed and (self.subscription or self._is_assigned):
                self._poll()
        finally:
            self._lock.release()

    def _poll(self) -> None:
        if self._assign_again_at and time.monotonic() >= self._assign_again_at:
            self._assign_again()
        is_full = self._kept_bytes >= _KEPT_BYTES_MAX or len(self._kept) >= _KEPT_MAX
        if is_full != self._is_paused:
            partitions = self._consumer.assignment()
            (self._consumer.pause if is_full else self._consumer.resume)(partitions)
            self._is_paused = is_full
        has_news = False
        for _ in range(_POLL_RECORDS):
            # Not `consume`, which may return records of partitions that were revoked during the call.
            message = self._consumer.poll(0)
            if message is None:
                break
            error = message.error()
            if error is None:
                with self._kept_lock:
                    self._kept.append(message)
                    self._kept_bytes += _size(message)
                has_news = True
            elif self._is_assigned and error.code() in _COORDINATOR_MOVES:
                self._assign_again_at = time.monotonic() + _ASSIGN_AGAIN_S
            elif error.code() not in _IGNORED:
                reason = f"{_REASONS.get(error.code(), '')}{error.str()}"
                self._error = KafkaRefusal(error.code(), "consumer", reason)
                has_news = True
        if has_news:
            self._loop.call_soon_threadsafe(self.arrived.set)

    def _assign_again(self) -> None:
        """Let librdkafka ask for the committed offsets again.

        It asks once after an assignment. If the coordinator moves at that time, as with a new topic of offsets, these
        partitions would never be read. Partitions that have a position keep it.
        """
        self._assign_again_at = 0.0
        self._consumer.assign(self._consumer.position(self._consumer.assignment()))
        self._is_paused = False

    def _revoked(self, consumer: Consumer, partitions: Sequence[Any]) -> None:
        # Called by librdkafka while it is polled. Another member reads these records.
        self._drop({TopicPartition(each.topic, each.partition) for each in partitions})

    def _assigned(self, consumer: Consumer, partitions: Sequence[Any]) -> None:
        self._is_paused = False

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        dropped = set(partitions)
        with self._kept_lock:
            self._kept = deque(m for m in self._kept if TopicPartition(m.topic(), m.partition()) not in dropped)
            self._kept_bytes = sum(map(_size, self._kept))

    def _drop_all(self) -> None:
        with self._kept_lock:
            self._kept.clear()
            self._kept_bytes = 0

    # Records, in the event loop

    def peek(self) -> list[bytes | None]:
        """Return the keys and values of the records that are kept."""
        with self._kept_lock:
            return [part for message in self._kept for part in (message.key(), message.value())]

    def take(self, bytes_max: int, convert: Callable[[Any], Any]) -> tuple[list[Any], int]:
        """Return records up to a number of bytes, and that number. At least one record, if there is one.

        Raise the error of the consumer, or of `convert` for the first record, if there is no record before it.
        """
        found: list[Any] = []
        last: dict[tuple[str, int], Any] = {}
        size = 0
        with self._kept_lock:
            if not self._kept and self._error is not None:
                error, self._error = self._error, None
                raise error
            while self._kept:
                message = self._kept[0]
                more = _size(message)
                if found and size + more > bytes_max:
                    break
                try:
                    found.append(convert(message))
                except NotLoaded:
                    break
                except HttpError:
                    if found:
                        break
                    raise
                self._kept.popleft()
                self._kept_bytes -= more
                size += more
                last[message.topic(), message.partition()] = message
            for message in last.values():
                self._store(message)
        return found, size

    def _store(self, message: Any) -> None:
        """Note that a record was given to the client: the next commit includes it."""
        try:
            with refusals("consumer"):
                self._consumer.store_offsets(message)
        except (KafkaRefusal, RuntimeError) as error:
            # The partition was revoked, or the consumer closed, in this moment. The next owner reads the record again.
            log.debug("offset was not stored error=%s", error)

    # Requests, in threads

    def subscribe(self, topics: Sequence[str], pattern: str | None = None) -> None:
        """Subscribe to topics: named by the client, or those that match its pattern now.

        Raise HttpError 409 if there is an assignment, or a subscription of the other kind.
        """
        with self._lock:
            is_other_kind = (
                self._has_subscription and (self.pattern is None) != (pattern is None)
            ) or self._is_assigned
            if is_other_kind:
                raise _illegal("Subscription to topics, partitions and pattern are mutually exclusive")
            if topics and tuple(topics) != self.subscription:
                self._call(lambda: self._consumer.subscribe(
                    list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
                ))  # fmt: skip
            self.subscription, self.pattern, self._has_subscription = tuple(topics), pattern, True

    def unsubscribe(self) -> None:
        """End the subscription or the assignment."""
        with self._lock:
            if self._is_assigned:
                self._call(self._consumer.unassign)
            self._call(self._consumer.unsubscribe)
            self.subscription, self.pattern, self._has_subscription = (), None, False
            self._is_assigned, self._is_paused, self._assign_again_at = False, False, 0.0
            self._drop_all()

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Replace the assigned partitions. Raise HttpError 409 if there is a subscription."""
        with self._lock:
            if self._has_subscription:
                raise _illegal("Subscription to topics, partitions and pattern are mutually exclusive")
            self._call(lambda: self._consumer.assign([kafka_partition(tp) for tp in partitions]))
            self._drop_all()
            self._is_assigned, self._is_paused, self._assign_again_at = bool(partitions), False, 0.0

    def assignment(self) -> list[TopicPartition]:
        with self._lock:
            found = self._call(self._consumer.assignment)
            return sorted(TopicPartition(each.topic, each.partition) for each in found)

    def seek(self, offsets: dict[TopicPartition, int]) -> None:
        """Set the positions of partitions. Raise HttpError 409 if one is not assigned."""
        with self._lock:
            missing = offsets.keys() - {(each.topic, each.partition) for each in self._call(self._consumer.assignment)}
        if missing:
            raise _illegal(f"No current assignment for partition {min(missing)}")
        for tp, offset in offsets.items():
            self._seek(tp, offset)

    def _seek(self, tp: TopicPartition, offset: int) -> None:
        # librdkafka refuses to seek in a partition that was assigned a moment ago and is not fetched yet.
        deadline = time.monotonic() + _SEEK_S_MAX
        while True:
            try:
                with self._lock:
                    self._call(lambda: self._consumer.seek(kafka_partition(tp, offset)))
                    self._drop({tp})
                return
            except KafkaRefusal as refusal:
                if refusal.code != _STATE or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_WAITING_S)

    def commit(self, commits: Sequence[Commit] | None) -> None:
        """Commit these offsets, or those of all records that the client got."""
        with self._lock:
            if commits is None:
                try:
                    self._call(lambda: self._consumer.commit(asynchronous=False))
                except KafkaRefusal as refusal:
                    if refusal.code != _NO_OFFSET:
                        raise
                return
            rows = [kafka_partition(each.tp, each.offset, each.metadata) for each in commits]
            for row in self._call(lambda: self._consumer.commit(offsets=rows, asynchronous=False)) or ():
                if row.error is not None:
                    raise KafkaRefusal(row.error.code(), f"{row.topic}-{row.partition}", row.error.str())

    def committed(self, partitions: Sequence[TopicPartition]) -> list[Commit]:
        """Return the committed offsets; a partition without one is left out."""
        with self._lock:
            rows = self._call(
                lambda: self._consumer.committed([kafka_partition(tp) for tp in partitions], _COMMITTED_S_MAX)
            )
        found = []
        for row in rows:
            if row.error is not None:
                raise KafkaRefusal(row.error.code(), f"{row.topic}-{row.partition}", row.error.str())
            if row.offset >= 0:
                found.append(Commit(TopicPartition(row.topic, row.partition), row.offset, row.metadata))
        return found

    def close(self) -> None:
        """Commit what is stored, if that is configured, and leave the group."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._drop_all()
            self._consumer.close()

    def _call(self, function: Callable[[], Any]) -> Any:
        if self._is_closed:
            raise _illegal("The consumer instance is closed")
        with refusals("consumer"):
            return function()


class Poller:
    """The thread that polls all consumers."""

    def __init__(self) -> None:
        self._consumers: set[GroupConsumer] = set()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread: threading.Thread | None = None

    def add(self, consumer: GroupConsumer) -> None:
        with self._changed:
            self._consumers.add(consumer)
            self._changed.notify()
        if self._thread is None:
            self._thread = keep_thread(self._run, "rest-consumers")
            self._thread.start()

    def remove(self, consumer: GroupConsumer) -> None:
        with self._changed:
            self._consumers.discard(consumer)

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        polled_all_at = 0.0
        while True:
            with self._changed:
                # Without consumers the thread sleeps.
                while not self._consumers and not self._is_closing:
                    self._changed.wait()
                if self._is_closing:
                    return
                consumers = list(self._consumers)
            now = time.monotonic()
            if now - polled_all_at < _POLL_IDLE_S:
                consumers = [each for each in consumers if each.is_waited_for]
            else:
                polled_all_at = now
            for consumer in consumers:
                attempt(consumer.poll, "poll a consumer")
            time.sleep(_POLL_WAITING_S if any(each.is_waited_for for each in consumers) else _POLL_IDLE_S / 5)


def _size(message: Any) -> int:
    return len(message.key() or b"") + len(message.value() or b"")


def _illegal(text: str) -> HttpError:
    return HttpError(409, ILLEGAL_STATE, f"Illegal state: {text}")
