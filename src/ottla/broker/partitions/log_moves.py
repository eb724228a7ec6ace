"""LogMoves: copies logs into other log directories of the broker while their partitions are served.

    start ──► copy some batches, at most at the rate of the setting ──► ... ──► nothing is left ──► flush in a thread
                  ▲                                                                                        │
                  └──── more than a little has been appended meanwhile ◄──────────────────────────────────┤
                                                                                                           ▼
                              copy the rest, and let the copy take the place of the log (`log/moving.py`), in one step

A truncation of the log begins the copy again. Logs are not compacted meanwhile. A move ends without a result when the
partition is removed or goes offline, when a disk fails, and when the broker stops.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Set
from functools import partial

from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replication_throttle import ReplicationQuota
from ottla.env.tasks import Threads
from ottla.log.directories import LogDir
from ottla.log.moving import FutureLog
from ottla.model.errors import CorruptMessage, OffsetOutOfRange, UnexpectedAppendOffset

log = logging.getLogger(__name__)

#: what is copied in one step: the event loop does nothing else meanwhile
_STEP_BYTES = 256 << 10
#: this much may be copied and synced in the step in which the copy takes the place of the log
_LAST_BYTES_MAX = 64 << 10
#: before the log is looked at again while a thread uses it
_BUSY_S = 0.02


class LogMoves:
    """The logs of this broker that are being moved."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        replicas: ReplicaManager,
        threads: Threads,
        wall_ms: Callable[[], int],
        unique: Callable[[], str],
        rate: Callable[[], int],
    ) -> None:
        """``rate`` returns the bytes per second that all moves together may copy, ``unique`` a new name."""
        self.loop = loop
        self.replicas = replicas
        self.threads = threads
        self.wall_ms = wall_ms
        self.unique = unique
        self.rate = rate
        self.quota = ReplicationQuota()
        self._moves: dict[Partition, LogMove] = {}
        replicas.referrers.append(self)

    def start(self, partition: Partition, directory: LogDir) -> None:
        """Move the log of a partition. Do nothing if that is being done; end a move to another directory."""
        current = self._moves.get(partition)
        if current is not None and current.directory is directory:
            return
        self.cancel(partition)
        self._moves[partition] = LogMove(self, partition, directory)

    def cancel(self, partition: Partition) -> None:
        """End the move of a partition, if there is one. Its log stays where it is."""
        if partition in self._moves:
            self._moves[partition].end()

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""
        self.cancel(partition)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a partition is moved that is not served, or if a truncation would not be noticed."""
        assert self._moves.keys() <= served, "_moves"
        assert self._moves.keys() == self.replicas.moving.keys(), "moving"

    def forget(self, partition: Partition) -> None:
        self._moves.pop(partition, None)
        self.replicas.moving.pop(partition, None)

    def copies(self, directory: LogDir) -> list[FutureLog]:
        """Return the copies that are being made in a directory."""
        return [move.future for move in self._moves.values() if move.directory is directory and move.future is not None]

    def stop(self) -> None:
        for move in list(self._moves.values()):
            move.end()


class LogMove:
    """The move of one log."""

    def __init__(self, owner: LogMoves, partition: Partition, directory: LogDir) -> None:
        self._owner = owner
        self._replicas = owner.replicas
        self._partition = partition
        self.directory = directory
        self.future: FutureLog | None = None
        #: the log was truncated: what was copied is not part of it
        self._is_outdated = False
        self._is_flushing = False
        #: bytes that were copied since the copy was flushed; None before the first flush
        self._unflushed: int | None = None
        self._has_ended = False
        owner.replicas.moving[partition] = self._outdate
        log.info("log is moved partition=%s to=%s", partition.name, directory.path)
        owner.loop.call_soon(self._step)

    def end(self) -> None:
        """Stop, and delete the copy."""
        self._has_ended = True
        self._owner.forget(self._partition)
        if not self._is_flushing:
            self._remove_copy()

    def _remove_copy(self) -> None:
        if self.future is not None:
            self._replicas.store.remove_future(self.future)
            self.future = None

    def _outdate(self) -> None:
        self._is_outdated = True

    def _step(self) -> None:
        """Copy some batches, or complete the move. A failure ends the move."""
        partition, owner = self._partition, self._owner
        if self._has_ended:
            return
        if self._replicas.find(*partition.name) is not partition or partition.offline or self.directory.offline:
            self.end()
            return
        try:
            wait_s = self._copy_or_complete()
        except (CorruptMessage, UnexpectedAppendOffset) as error:
            log.error("log cannot be moved partition=%s error=%s", partition.name, error)
            self.end()
        except OSError as error:
            log.error("log cannot be moved partition=%s error=%s", partition.name, error)
            self.end()
            if (failure := partition.log.failure) is not None:
                self._replicas.storage.fail_partition(partition, failure)
            else:
                self._replicas.storage.fail_dir(self.directory, error)
        except BaseException:  # a bug: the move must not look as if it went on
            self.end()
            raise
        else:
            if wait_s is not None:
                owner.loop.call_later(wait_s, self._step)

    def _copy_or_complete(self) -> float | None:
        """Do one step. Return the time until the next one; None if the move is complete or a thread works for it."""
        owner, partition, store = self._owner, self._partition, self._replicas.store
        if self._is_outdated or (self.future is not None and self.future.current is not partition.log):
            self._remove_copy()
            self._is_outdated, self._unflushed = False, None
        if self.future is None:
            if not self._replicas.may_replace_log(partition):
                return _BUSY_S  # it may be being compacted
            self.future = store.create_future(partition.log, self.directory, partition.topic_id, owner.unique())
        rate, now = owner.rate(), self._replicas.monotonic()
        if wait_s := owner.quota.wait_s(rate, now):
            return wait_s
        try:
            size = self._copy(self.future)
        except OffsetOutOfRange:
            self._is_outdated = True  # retention has deleted what comes next
            return 0.0
        if size:
            owner.quota.record(size, rate, now)
            return 0.0
        if self._unflushed is None or self._unflushed > _LAST_BYTES_MAX:
            self._flush(self.future)
            return None
        return self._complete(self.future)

    def _copy(self, future: FutureLog) -> int:
        size = future.copy(_STEP_BYTES, leader_epoch=self._partition.leader_epoch, now_ms=self._owner.wall_ms())
        if self._unflushed is not None:
            self._unflushed += size
        return size

    def _flush(self, future: FutureLog) -> None:
        """Write everything of the copy to the disk in a thread, so that little is left for the last step."""
        self._is_flushing = True
        self._unflushed = 0
        self._owner.threads.submit(future.log.flush_files, partial(self._flushed, future))

    def _flushed(self, future: FutureLog, error: OSError | None) -> None:
        self._is_flushing = False
        if self._has_ended:
            self._remove_copy()
        elif error is not None:
            log.error("log cannot be moved partition=%s error=%s", self._partition.name, error)
            self.end()
            self._replicas.storage.fail_dir(self.directory, error)
        else:
            self._step()

    def _complete(self, future: FutureLog) -> float | None:
        """Let the copy take the place of the log, if no thread uses the log. Return the time until the next step."""
        partition, replicas = self._partition, self._replicas
        if not replicas.may_replace_log(partition) or future.lag_records:
            return _BUSY_S
        replacing = replicas.store.replace(future, self._owner.unique(), partition.high_watermark)
        self.future = None
        self._has_ended = True
        self._owner.forget(partition)
        replicas.replace_log(partition, replacing)
        log.info("log is moved completely partition=%s to=%s", partition.name, self.directory.path)
        return None
