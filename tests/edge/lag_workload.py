"""Topics with readers whose lag in time is known, because the readers commit what is older than a given delay."""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Commit:
    """A commit: it counts from some time between its begin and its end on."""

    offset: int
    began_ms: int
    #: None until it was acknowledged
    ended_ms: int | None = None


@dataclass
class Truth:
    """What was produced to one partition, and committed by one group."""

    name: TopicPartition
    group: str
    #: first offsets of the acknowledged batches, and the timestamp of all records of each
    starts: list[int] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    end: int = 0
    commits: list[Commit] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def produced(self, start: int, count: int, timestamp_ms: int) -> None:
        with self.lock:
            self.starts.append(start)
            self.timestamps.append(timestamp_ms)
            self.end = start + count

    def timestamp_at(self, offset: int) -> int | None:
        """Return the timestamp of the first record at or after an offset; None if there is none."""
        if offset >= self.end or not self.starts:
            return None
        index = max(bisect.bisect_right(self.starts, offset) - 1, 0)
        return self.timestamps[index]

    def possible_s(self, since_ms: int, at_ms: int) -> list[float]:
        """Return the lags that are right at a time, if the commits were read since ``since_ms``."""
        with self.lock:
            before = [each for each in self.commits if each.ended_ms is not None and each.ended_ms <= since_ms]
            offsets = {before[-1].offset} if before else set()
            offsets |= {
                each.offset
                for each in self.commits
                if each.began_ms <= at_ms and (each.ended_ms is None or each.ended_ms > since_ms)
            }
            found = []
            for offset in offsets:
                timestamp_ms = self.timestamp_at(offset)
                found.append(0.0 if timestamp_ms is None else max(at_ms - timestamp_ms, 0) / 1000)
                # A record that was appended after the log end was read is no lag yet.
                if timestamp_ms is not None and timestamp_ms >= since_ms:
                    found.append(0.0)
            return found

    def offset_before(self, time_ms: int) -> int:
        """Return the offset of the first record that is not older than a time."""
        with self.lock:
            index = bisect.bisect_left(self.timestamps, time_ms)
            return self.starts[index] if index < len(self.starts) else self.end


class Traffic(threading.Thread):
    """Produces to a partition and commits for its group, each in a thread, until it is stopped."""

    def __init__(
        self, cluster: Callable[[], Cluster], truth: Truth, *, batch: int, every_s: float, delay_s: float
    ) -> None:
        super().__init__(daemon=True)
        self._cluster = cluster
        self.truth = truth
        self._batch = batch
        self._every_s = every_s
        self._delay_s = delay_s
        self.stopped = threading.Event()
        self._committer = threading.Thread(target=self._commit, daemon=True)

    def run(self) -> None:
        self._committer.start()
        with self._cluster() as cluster:
            while not self.stopped.wait(self._every_s):
                timestamp_ms = now_ms()
                records = [Record(timestamp=timestamp_ms, key=None, value=b"v" * 100) for _ in range(self._batch)]
                try:
                    start = cluster.produce(self.truth.name, build_batch(records))
                except ClientError:
                    continue
                self.truth.produced(start, self._batch, timestamp_ms)

    def _commit(self) -> None:
        with self._cluster() as cluster:
            while not self.stopped.wait(min(self._delay_s / 4, 0.5)):
                commit = Commit(self.truth.offset_before(now_ms() - int(self._delay_s * 1000)), now_ms())
                with self.truth.lock:
                    self.truth.commits.append(commit)
                    del self.truth.commits[:-10_000]
                try:
                    cluster.commit(self.truth.group, {self.truth.name: commit.offset})
                except ClientError:
                    continue  # it may have been made all the same
                with self.truth.lock:
                    commit.ended_ms = now_ms()

    def end(self) -> None:
        self.stopped.set()
        self.join()
        self._committer.join()
