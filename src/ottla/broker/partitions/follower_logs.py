"""The logs of the partitions that this broker follows: batches of the leader are appended, or removed again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ottla.broker.partitions.group_commit import GroupCommit
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.storage import Storage
from ottla.env.disk import NO_DESCRIPTORS
from ottla.env.tasks import Threads
from ottla.log import truncation
from ottla.log.directories import LogDir
from ottla.log.store import LogStore
from ottla.log.truncation import Truncation
from ottla.model.errors import CorruptMessage, StorageError

log = logging.getLogger(__name__)


class TruncationRequest(NamedTuple):
    """Remove the records of a follower from ``offset`` on, or all of them if its log starts again there."""

    partition: Partition
    offset: int
    restarts: bool = False


class FollowerLogs:
    """Appends to the logs of followers, and truncates them."""

    def __init__(
        self,
        *,
        store: LogStore,
        storage: Storage,
        commits: GroupCommit,
        threads: Threads,
        moving: Mapping[Partition, Callable[[], None]],
        advance_log_start: Callable[[Partition, int], None],
    ) -> None:
        """``moving``: what to call when the log of a partition that is moved is truncated."""
        self._store = store
        self._storage = storage
        self._commits = commits
        self._threads = threads
        self._moving = moving
        self._advance_log_start = advance_log_start
        #: free space is checked when ``bytes_in`` exceeds this
        self._bytes_in_at_check = 0
        #: a counter: bytes from the leaders that this broker follows
        self.bytes_in = 0

    def append(self, partition: Partition, records: memoryview, now_ms: int) -> None:
        """Append batches from the leader; ``write`` writes them. A failure leaves the log as it was.

        Raise StorageError if the disk fails or is full, CorruptMessage or UnexpectedAppendOffset for invalid batches.
        """
        if not partition.has_room:
            raise StorageError(f"the log directory of {partition.name} has no room")
        try:
            partition.log.append_as_follower(records, leader_epoch=partition.leader_epoch, now_ms=now_ms)
        except OSError as error:
            self._storage.log_failed(partition.log, error)
            raise StorageError(f"batches of the leader could not be written: {error.strerror}") from None
        self.bytes_in += len(records)

    def write(self, partition: Partition) -> None:
        """Write what ``append`` has appended. Raise StorageError if that fails; the log is then without it."""
        if self.bytes_in > self._bytes_in_at_check:
            self._bytes_in_at_check = self.bytes_in + self._storage.check_step_bytes
            self._storage.check_free_space()
        try:
            partition.log.write_pending()
        except OSError as error:
            self._storage.log_failed(partition.log, error)
            raise StorageError(f"batches of the leader could not be written: {error.strerror}") from None

    def sync(self, partition: Partition) -> None:
        """Sync a follower's log, because a writer waits for it at the leader. Report the end of the sync."""
        partition.sync_wanted_offset = partition.log.written_end_offset
        self._commits.sync_in_background(partition)

    def follow_log_start(self, partition: Partition, offset: int) -> None:
        """Move a follower's log start to the leader's, at most to the high watermark."""
        offset = min(offset, partition.high_watermark)
        if offset > partition.log.log_start_offset:
            try:
                self._advance_log_start(partition, offset)
            except OSError as error:
                self._storage.log_failed(partition.log, error)

    def begin_truncations(self, requests: Sequence[TruncationRequest]) -> dict[Partition, Exception]:
        """Remove records of followers. Return the partitions for which that failed, and why.

        ``sync_truncation`` must follow. The checkpoints of each directory are written once for all its logs.
        """
        failed: dict[Partition, Exception] = {}
        groups: dict[LogDir, dict[Partition, Truncation]] = {}
        for partition, offset, restarts in requests:
            its_log = partition.log
            try:
                planned = truncation.plan_restart(its_log, offset) if restarts else truncation.plan(its_log, offset)
            except (OSError, CorruptMessage) as error:
                failed[partition] = self._truncation_failed(partition, error)
            else:
                groups.setdefault(self._store.dir_of(its_log), {})[partition] = planned
        for group in groups.values():
            try:
                self._store.lower_checkpoints([each for each in group.values() if each.active is not None])
            except OSError as error:
                failed |= {partition: self._truncation_failed(partition, error) for partition in group}
                continue
            for partition, planned in group.items():
                end_offset, high_watermark = partition.log.log_end_offset, partition.high_watermark
                try:
                    truncation.begin(planned)
                except OSError as error:
                    failed[partition] = self._truncation_failed(partition, error)
                partition.note_truncated()
                if partition in self._moving:
                    self._moving[partition]()
                log.info(
                    "log is truncated partition=%s end_offset=%d from=%d high_watermark=%d",
                    partition.name, partition.log.log_end_offset, end_offset, high_watermark,
                )  # fmt: skip
        return failed

    def _truncation_failed(self, partition: Partition, error: OSError | CorruptMessage) -> Exception:
        if isinstance(error, CorruptMessage):
            return error
        self._storage.log_failed(partition.log, error)
        return StorageError(f"the log could not be truncated: {error.strerror}")

    def sync_truncation(self, partition: Partition, done: Callable[[], None]) -> None:
        """Sync the files of a log that was truncated, in a thread. Then call ``done``, also if that failed."""
        its_log, unsynced = partition.log, partition.log.unsynced_truncation
        assert unsynced is not None

        def synced(error: OSError | None) -> None:
            if error is None:
                unsynced.note_synced()
            elif not its_log.deleted and error.errno not in NO_DESCRIPTORS:  # without one, the next append tries again
                unsynced.note_failed(error)
                self._storage.log_failed(its_log, error)
            done()

        self._threads.submit(unsynced.run, synced)
