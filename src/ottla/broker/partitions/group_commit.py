"""GroupCommit: the write at the end of a turn, and the syncs that writers wait for.

    append ──► (end of turn) write_turn ──► high watermark moves ──► long polls wake, acks=1 leaves
                                    └──► writers wait? one fdatasync per partition in flight ──► acks=all leaves

While a partition's sync runs, everything that arrives is written and waits; the next sync takes it all. A hundred
producers then share one trip to the disk, and the loop never waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Set
from functools import partial

from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.partitions.storage import Storage
from ottla.broker.partitions.writers import Until, Writer
from ottla.env.disk import NO_DESCRIPTORS, WriteFailed
from ottla.env.tasks import Threads
from ottla.log.log import Log
from ottla.log.opening import TURN_US_MAX, InlineBudget
from ottla.log.segment import SyncJob
from ottla.log.store import LogStore

log = logging.getLogger(__name__)

_FOLLOWER, _WRITTEN, _COMMITTED = Role.FOLLOWER, Until.WRITTEN, Until.COMMITTED


class AwaitedWrite:
    """A writer for ``GroupCommit.wait`` whose error code is a future."""

    __slots__ = ("code", "deadline")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        self.deadline = deadline
        self.code: asyncio.Future[int] = loop.create_future()

    def on_write_complete(self, error_code: int) -> None:
        if not self.code.done():
            self.code.set_result(error_code)


class GroupCommit:
    """What is appended and not yet written, and who waits for a write, a sync or the followers."""

    def __init__(
        self,
        *,
        store: LogStore,
        storage: Storage,
        threads: Threads,
        by_log: Mapping[Log, Partition],
        inline_budget: InlineBudget,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._storage = storage
        self._threads = threads
        self._by_log = by_log
        self._inline_budget = inline_budget
        self._monotonic = monotonic
        #: the logs with batches that the end of the turn writes
        self.pending: dict[Log, None] = {}
        #: the partitions that requests wait for
        self._waiting: dict[Partition, None] = {}
        #: called when a follower's log, or a new start of it, is synced
        self.on_follower_changed: Callable[[Partition], None] = _ignore
        #: free space is checked when ``bytes_in`` exceeds this
        self._bytes_in_at_check = 0
        # Counters
        self.bytes_in = 0
        self.syncs = 0

    @property
    def waiting(self) -> int:
        """Return the number of partitions that requests wait for."""
        return len(self._waiting)

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""
        self.pending.pop(partition.log, None)
        self._waiting.pop(partition, None)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a partition is known that is not served, or one that requests wait for is not."""
        assert self.pending.keys() <= {partition.log for partition in served}, "pending"
        assert self._waiting.keys() <= served, "_waiting"
        assert self._waiting.keys() >= {each for each in served if each.writers.has_waiting}, "a request waits for ever"

    def note_waiting(self, partition: Partition) -> None:
        """Note whether requests wait for a partition, after a change of its role."""
        if partition.writers.has_waiting:
            self._waiting[partition] = None
        else:
            self._waiting.pop(partition, None)

    def wait(self, partition: Partition, until: Until, end_offset: int, writer: Writer) -> None:
        """Call the writer when all records below ``end_offset`` are as safe as ``until`` says, or when that fails.

        This is the only way to wait for a write. A batch that was just appended is written, and its sync begins, at
        the end of the turn.
        """
        if until is _WRITTEN or (until is _COMMITTED and len(partition.replicas) == 1):
            if partition.log in self.pending:
                partition.writers.written.append(writer)
                return
        elif end_offset > partition.log.written_end_offset or partition.reached(until) < end_offset:
            partition.writers.wait(until, end_offset, writer)
            self._waiting[partition] = None
            return
        writer.on_write_complete(0)

    def write_turn(self) -> None:
        """The end of a turn: 1 write what is pending  2 move high watermarks, wake readers  3 start syncs.

        A caller that waited for the write may append again in the same turn, as the end of a transaction does.
        """
        self._inline_budget.left_us = TURN_US_MAX
        while self.pending:
            self._write_pending()

    def _write_pending(self) -> None:
        if self.bytes_in > self._bytes_in_at_check:
            # A fast producer could fill the disk between two periodic checks.
            self._bytes_in_at_check = self.bytes_in + self._storage.check_step_bytes
            self._storage.check_free_space()
        pending, self.pending = self.pending, {}
        for each in pending:
            partition = self._by_log.get(each)
            if partition is None or partition.offline:
                continue
            try:
                each.write_pending()
            except OSError as error:
                self._storage.log_failed(each, error)
                continue
            end = each.written_end_offset
            if end > partition.high_watermark:
                if len(partition.replicas) == 1:
                    partition.advance_high_watermark(end)
                else:
                    partition.note_written()
            writers = partition.writers
            if writers.written:
                written, writers.written = writers.written, []
                for writer in written:
                    writer.on_write_complete(0)
            if writers.has_waiting:
                if len(partition.replicas) > 1:
                    partition.complete_writers()
                if writers.wants_sync and not partition.sync_in_flight:
                    self.start_sync(partition)

    def start_sync(self, partition: Partition) -> None:
        """Sync the log of a partition in a thread. At most one sync of a partition is in progress."""
        its_log = partition.log
        partition.sync_in_flight = True
        job = its_log.start_sync()
        self.syncs += 1
        self._threads.submit(job.run, partial(self._synced, partition, job))

    def _synced(self, partition: Partition, job: SyncJob, error: OSError | None) -> None:
        partition.sync_in_flight = False
        if partition.log.deleted:
            return  # deleted meanwhile: no request waits, and the missing folder is no disk failure
        if error is not None:
            if error.errno in NO_DESCRIPTORS:
                log.error(
                    "no file descriptor is left, a sync must wait; raise the limit path=%s", partition.log.directory
                )
            elif isinstance(error, WriteFailed):
                self._storage.dir_failed(self._store.dir_of(partition.log), error)
            else:
                # The file could not be opened, and nothing says whether what it holds is on disk.
                self._storage.fail_partition(partition, str(error))
            return
        partition.log.note_synced(job)
        if partition.role is _FOLLOWER:
            if partition.log.synced_end_offset < partition.sync_wanted_offset and partition.log.unsynced():
                self.start_sync(partition)
            self.on_follower_changed(partition)
        partition.complete_writers()
        if partition.writers.wants_sync and not partition.log.pending and partition.log.unsynced():
            self.start_sync(partition)
        self._forget_if_done(partition)

    def log_start_synced(self, of: Log) -> None:
        """Tell those who wait for the start of a log: it is synced."""
        partition = self._by_log.get(of)
        if partition is None:
            return
        if partition.role is _FOLLOWER:
            self.on_follower_changed(partition)
        partition.complete_writers()
        self._forget_if_done(partition)

    def sync_in_background(self, partition: Partition) -> None:
        """Start a sync for `flush.ms` or `flush.messages`; no request waits for it."""
        if not partition.sync_in_flight and not partition.offline and partition.log.unsynced():
            self.start_sync(partition)

    async def complete_writes(self, wait_s: float) -> None:
        """Write what is pending, and wait until no request waits for a sync or for followers, ``wait_s`` at most."""
        self.write_turn()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while any(partition.writers.has_waiting for partition in self._waiting) and loop.time() < deadline:
            await asyncio.sleep(0.002)

    def expire_writers(self) -> None:
        """Answer each produce whose timeout has passed; its batch stays in the log. Start syncs that had to wait."""
        now = self._monotonic()
        for partition in list(self._waiting):
            partition.writers.expire(now)
            if not partition.writers.has_waiting:
                self._waiting.pop(partition, None)
            elif partition.writers.wants_sync and not partition.log.pending:
                self.sync_in_background(partition)

    def _forget_if_done(self, partition: Partition) -> None:
        if not partition.writers.has_waiting:
            self._waiting.pop(partition, None)


def _ignore(partition: Partition) -> None:
    pass
