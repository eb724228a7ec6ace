"""LogTruncations: truncates the logs that this broker follows, many at a time.

    add ──► (next iteration of the event loop) a group of logs: lower their checkpoints, one write per directory;
            remove the batches ──► threads sync the files, a few logs at a time ──► the log is copied further

After a failover a broker may have to truncate the logs of all partitions that it follows. If the event loop did that
log by log, with several trips to the disk each, thousands of logs would block it for longer than the broker's session.
`log/truncation.py` explains the steps and why they are safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition

#: logs of which batches are removed in one iteration of the event loop, at about 0.2 ms each
_GROUP_MAX = 200
#: logs that are synced at the same time; the other threads sync the records of producers
_SYNCS_MAX = 8

Done = Callable[[Exception | None], None]


class LogTruncations:
    """The logs that are being truncated."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replicas: ReplicaManager) -> None:
        self._loop = loop
        self._replicas = replicas
        #: not begun yet
        self._requests: dict[Partition, tuple[TruncationRequest, Done]] = {}
        #: the batches are removed; what to call when that is synced, None if the caller does not wait any more
        self._unsynced: dict[Partition, Done | None] = {}
        #: those whose sync has not started
        self._queue: dict[Partition, None] = {}
        self._syncs = 0

    def add(self, request: TruncationRequest, done: Done) -> None:
        """Truncate a log, then call ``done``, with an exception if that failed. The log must not change meanwhile."""
        if not self._requests:
            self._loop.call_soon(self._begin_group)
        self._requests[request.partition] = request, done

    def cancel(self, partition: Partition) -> None:
        """Do not call ``done``, and do not begin the truncation if that has not happened yet."""
        if self._requests.pop(partition, None) is None and partition in self._unsynced:
            self._unsynced[partition] = None

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served. A sync in a thread ends without it."""
        self._requests.pop(partition, None)
        self._unsynced.pop(partition, None)
        self._queue.pop(partition, None)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a partition is known that is not served."""
        assert {*self._requests, *self._unsynced, *self._queue} <= served

    def wait(self, partition: Partition, done: Done) -> bool:
        """Call ``done`` when the truncation of a log is synced. Return False, without a call, if none is unsynced."""
        if partition not in self._unsynced:
            return False
        self._unsynced[partition] = done
        return True

    def _begin_group(self) -> None:
        partitions = list(self._requests)[:_GROUP_MAX]
        group = [self._requests.pop(partition) for partition in partitions]
        if self._requests:
            self._loop.call_soon(self._begin_group)
        failed = self._replicas.followers.begin_truncations([request for request, _ in group])
        for request, done in group:
            if (error := failed.get(request.partition)) is not None:
                done(error)
            elif request.partition.log.unsynced_truncation is None:
                done(None)
            else:
                self._unsynced[request.partition] = done
                self._queue[request.partition] = None
        self._start_syncs()

    def _start_syncs(self) -> None:
        while self._queue and self._syncs < _SYNCS_MAX:
            partition = next(iter(self._queue))
            del self._queue[partition]
            if partition.log.unsynced_truncation is None:
                self._complete(partition)  # an append has synced it
                continue
            self._syncs += 1
            self._replicas.followers.sync_truncation(partition, lambda of=partition: self._synced(of))  # type: ignore[misc]

    def _synced(self, partition: Partition) -> None:
        self._syncs -= 1
        if partition not in self._queue:  # otherwise it was truncated again meanwhile
            self._complete(partition)
        self._start_syncs()

    def _complete(self, partition: Partition) -> None:
        done = self._unsynced.pop(partition, None)
        if done is not None:
            done(None)
