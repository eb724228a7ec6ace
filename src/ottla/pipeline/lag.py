"""How far flows are behind their topics: end offsets that a thread renews every few seconds.

Spark reports the end offsets of a topic when it plans a batch. Between batches records arrive that no report counts, so
the ends are asked for here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Self

from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.client.errors import ClientError
from ottla.env.tasks import keep_thread
from ottla.model.types import TopicPartition
from ottla.pipeline.connecting import open_cluster
from ottla.pipeline.declaration import Declaration

log = logging.getLogger("ottla.pipeline")

_EVERY_S: Final = 2.0
_ANSWER_S_MAX: Final = 5.0
_STOP_S_MAX: Final = 1.0

Offsets = Mapping[TopicPartition, int]


class EndOffsets:
    """The end offsets of the partitions that flows read. `note` and `lag` may be called from any thread."""

    def __init__(self, connect: Callable[[], Cluster], *, every_s: float = _EVERY_S) -> None:
        # Config
        self._connect = connect
        self._every_s = every_s
        # State, guarded by the lock
        self._lock = threading.Lock()
        self._ends: dict[TopicPartition, int] = {}
        self._stopping = threading.Event()
        self._thread = keep_thread(self._run, "end-offsets")

    @classmethod
    def of(cls, declaration: Declaration) -> Self:
        return cls(lambda: open_cluster(declaration, timeout_s=_ANSWER_S_MAX))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        # The thread may wait for a broker that does not answer; it is a daemon.
        self._thread.join(_STOP_S_MAX)

    def note(self, ends: Offsets) -> None:
        """Take end offsets that a batch has found, and renew those of the same partitions from now on."""
        with self._lock:
            for tp, end in ends.items():
                self._ends[tp] = max(end, self._ends.get(tp, 0))

    def lag(self, read: Offsets) -> int:
        """Return the number of records behind these offsets, which are the next ones to read."""
        with self._lock:
            return sum(max(self._ends.get(tp, 0) - offset, 0) for tp, offset in read.items())

    def _run(self) -> None:
        cluster: Cluster | None = None
        while not self._stopping.wait(self._every_s):
            with self._lock:
                topics = sorted({tp.topic for tp in self._ends})
            for topic in topics:
                try:
                    cluster = cluster or self._connect()
                    self._renew(cluster, topic)
                except ClientError as error:
                    log.debug("the end offsets of topic %s are unknown: %s", topic, error)
        if cluster is not None:
            cluster.close()

    def _renew(self, cluster: Cluster, topic: str) -> None:
        with self._lock:
            wanted = {tp: LATEST for tp in self._ends if tp.topic == topic}
        # Sources of pipelines read committed records only.
        found = cluster.list_offsets(wanted, isolation=Isolation.READ_COMMITTED)
        with self._lock:
            self._ends.update({tp: at.offset for tp, at in found.items()})


def merge_offsets(sources: Iterable[Offsets]) -> dict[TopicPartition, int]:
    """Return the offsets of a query: the smallest where several of its sources read one partition."""
    merged: dict[TopicPartition, int] = {}
    for offsets in sources:
        for tp, offset in offsets.items():
            merged[tp] = min(offset, merged.get(tp, offset))
    return merged
