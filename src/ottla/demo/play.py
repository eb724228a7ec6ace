"""Sends the shop's events to a broker, at a rate or as fast as the broker acknowledges them.

Events are sent in slices of the shop's time, and a slice is acknowledged before the next one is sent. So the partitions
of a topic are never further apart than a slice, as if events were sent one by one. The producer is idempotent: while
the broker is down it retries, and each event is appended once.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ottla.client.cluster import Cluster
from ottla.client.producing import ProduceStream
from ottla.demo.shop import OPENING, TOPICS, Event, ShopEvents
from ottla.model.errors import OttlaError
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

PARTITIONS = 2
_STOP_S_MAX = 5.0
#: the pipeline waits one minute for clicks, and some are late on purpose
_SLICE = timedelta(seconds=15)

#: returns the name of the place where the player waits before it sends an event, "" if it does not wait; the number is
#: that of the events that were sent before
PauseBefore = Callable[[Event, int], str]


@dataclass(frozen=True, slots=True)
class Sent:
    """The events that the shop has sent. The player replaces the object, so that other threads may read it."""

    clock: datetime = OPENING
    #: by topic
    events: dict[str, int] = field(default_factory=dict)
    malformed: int = 0
    duplicates: int = 0
    late: int = 0
    held_back: int = 0

    @property
    def total(self) -> int:
        return sum(self.events.values())

    @classmethod
    def by(cls, shop: ShopEvents) -> Sent:
        totals = shop.totals
        return cls(
            clock=shop.clock, events=dict(totals.sent), malformed=totals.malformed.total(),
            duplicates=totals.duplicates.total(), late=totals.late.total(), held_back=totals.held_back,
        )  # fmt: skip


def create_topics(cluster: Cluster) -> None:
    """Create the topics that the shop writes to."""
    for topic in TOPICS:
        cluster.create_topic(topic, PARTITIONS)


class Player:
    """Sends a shop's events in a thread until there are no more, or until it is stopped."""

    def __init__(
        self,
        cluster: Cluster,
        shop: ShopEvents,
        *,
        rate: float | None = None,
        pause_before: PauseBefore | None = None,
        close_minutes: bool = False,
    ) -> None:
        self._cluster = cluster
        self._shop = shop
        #: events per second, None for as many as possible
        self._rate = rate
        self._pause_before = pause_before
        #: whether to send, at the end, the events that make every minute final
        self._close_minutes = close_minutes
        # State
        self.sent = Sent.by(shop)
        #: where the player waits for `resume`, "" if it does not
        self.waits_at = ""
        self.has_ended = False
        self._failure: OttlaError | None = None
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="shop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise the error that has ended the thread, if there is one."""
        if self._failure is not None:
            raise self._failure

    def resume(self) -> None:
        """Let a player that waits continue."""
        with self._changed:
            self.waits_at = ""
            self._changed.notify_all()

    def stop(self) -> None:
        """Send no more slices, and wait at most 5 s for the end of the thread: it may wait for a dead broker."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_STOP_S_MAX)

    def _run(self) -> None:
        try:
            self._play()
            self.has_ended = True
        except OttlaError as error:
            self._failure = error
        except OSError:
            # The client was closed while the producer waited for a broker.
            if not self._stopping:
                raise

    def _play(self) -> None:
        count = 0
        began = time.monotonic()
        with self._cluster.producer() as stream:
            while part := self._shop.take(_SLICE):
                if not self._pause(part[0], count):
                    return
                _send(stream, part)
                count += len(part)
                self.sent = Sent.by(self._shop)
                if not self._wait_until(began + count / self._rate if self._rate is not None else 0.0):
                    return
            if self._close_minutes:
                _send(stream, self._shop.closing())
                self.sent = Sent.by(self._shop)

    def _pause(self, event: Event, count: int) -> bool:
        """Wait if there is a pause before this event. Return whether the player may continue."""
        with self._changed:
            self.waits_at = self._pause_before(event, count) if self._pause_before is not None else ""
            self._changed.wait_for(lambda: not self.waits_at or self._stopping)
            return not self._stopping

    def _wait_until(self, due: float) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, max(due - time.monotonic(), 0.0))
            return not self._stopping


def _send(stream: ProduceStream, events: list[Event]) -> None:
    # Records carry the time of sending. Their values have the time of the event.
    now_ms = int(time.time() * 1000)
    batches: dict[TopicPartition, list[Record]] = {}
    for event in events:
        tp = TopicPartition(event.topic, zlib.crc32(event.key) % PARTITIONS)
        batches.setdefault(tp, []).append(Record(timestamp=now_ms, key=event.key, value=event.value))
    for tp, records in batches.items():
        stream.send(tp, build_batch(records))
    stream.flush()
