"""The shop's events on their way to a broker: at a rate, or as fast as the broker takes them.

They go out in slices of the shop's time, and a slice is acknowledged before the next one is sent: whoever reads several
partitions finds them less than a slice apart, as they are when events happen one by one.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from datetime import timedelta

from ottla.client.cluster import Cluster
from ottla.client.producing import ProduceStream
from ottla.demo.shop import TOPICS, Event, ShopEvents
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

PARTITIONS = 2
#: the pipeline waits one minute for clicks, and some are late on purpose
_SLICE = timedelta(seconds=15)


def create_topics(cluster: Cluster) -> None:
    """The topics that the shop writes."""
    for topic in TOPICS:
        cluster.create_topic(topic, PARTITIONS)


class Player:
    """Sends a shop's events until there are no more, or until it is stopped."""

    def __init__(
        self,
        cluster: Cluster,
        shop: ShopEvents,
        *,
        rate: float | None = None,
        before_held_back: Callable[[], None] | None = None,
        after_each: Callable[[], None] | None = None,
    ) -> None:
        self._cluster = cluster
        self._shop = shop
        #: events a second, None for as many as possible
        self._rate = rate
        #: called when everything before is sent, and orders are next that must come too late
        self._before_held_back = before_held_back
        #: called after each slice
        self._after_each = after_each
        self._stopping = threading.Event()

    def stop(self) -> None:
        """From any thread: send what is begun, and no more."""
        self._stopping.set()

    def play(self) -> None:
        sent = 0
        began = time.monotonic()
        with self._cluster.producer() as stream:
            while part := self._shop.take(_SLICE):
                if self._before_held_back is not None and part[0].held_back:
                    self._before_held_back()
                _send(stream, part)
                sent += len(part)
                if self._after_each is not None:
                    self._after_each()
                due_s = began + sent / self._rate - time.monotonic() if self._rate is not None else 0.0
                if self._stopping.wait(max(due_s, 0.0)):
                    return

    def close_minutes(self) -> None:
        """Send what makes every minute before final."""
        with self._cluster.producer() as stream:
            _send(stream, self._shop.closing())


def _send(stream: ProduceStream, events: list[Event]) -> None:
    # Records carry the time of sending; when things happened is for their values to say.
    now_ms = int(time.time() * 1000)
    batches: dict[TopicPartition, list[Record]] = {}
    for event in events:
        tp = TopicPartition(event.topic, zlib.crc32(event.key) % PARTITIONS)
        batches.setdefault(tp, []).append(Record(timestamp=now_ms, key=event.key, value=event.value))
    for tp, records in batches.items():
        stream.send(tp, build_batch(records))
    stream.flush()
