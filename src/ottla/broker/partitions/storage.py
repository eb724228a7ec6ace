"""What a disk that fails, fills up or cannot be read means for the partitions on it.

A disk that fails to write or to sync is never asked again: its content may be lost, so its directory goes offline. A
disk that is full is only refused further writes, and used again when it has room. A file that cannot be read concerns
its partition only: the request that needs it is answered with KAFKA_STORAGE_ERROR, and everything else goes on. If
other replicas are in sync, that partition goes offline here, and the broker tells the metadata store
(`cluster/offline_reports.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set

from ottla.broker.partitions.partition import Partition
from ottla.env.disk import NO_DESCRIPTORS, NO_ROOM, Disk, WriteFailed
from ottla.log.directories import LogDir
from ottla.log.log import Log
from ottla.log.store import LogStore
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

#: free space is checked again after at least this many bytes
_CHECK_SPACE_BYTES_MIN = 1 << 20


class Storage:
    """The log directories of this broker: which of them have room, and which partitions are offline."""

    def __init__(
        self,
        *,
        store: LogStore,
        disk: Disk,
        by_log: Mapping[Log, Partition],
        free_bytes_min: int,
        on_offline: Callable[[Partition], None],
        on_all_dirs_failed: Callable[[str], None],
    ) -> None:
        """``on_offline`` is called before the writers and readers of a partition get the error."""
        self._store = store
        self._disk = disk
        self._by_log = by_log
        self._free_bytes_min = free_bytes_min
        self._on_offline = on_offline
        self._on_all_dirs_failed = on_all_dirs_failed
        #: the partitions whose logs are offline
        self.offline: dict[Partition, None] = {}
        #: how many bytes may be written before free space is checked again
        self.check_step_bytes = max(free_bytes_min // 4, _CHECK_SPACE_BYTES_MIN)
        # Counters
        self.read_errors = 0

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""
        self.offline.pop(partition, None)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if the partitions that are offline are not those with that role."""
        assert self.offline.keys() == {partition for partition in served if partition.offline}, "offline"

    def log_failed(self, of: Log, error: OSError) -> None:
        """Decide what a failed call means: for one request, for the partition, or for its directory."""
        if isinstance(error, WriteFailed) or error.errno in NO_DESCRIPTORS:
            self._write_failed(of, error)
        else:
            self.note_read_error(of.name, error)
        if of.failure is not None and (partition := self._by_log.get(of)) is not None:
            self.fail_partition(partition, of.failure)

    def note_read_error(self, name: TopicPartition, error: OSError) -> None:
        """Count and log a file that could not be read. The caller answers KAFKA_STORAGE_ERROR.

        If other replicas are in sync, the log goes offline, and one of them leads the partition.
        """
        self.read_errors += 1
        log.error("a file of the partition cannot be read partition=%s error=%s", name, error)
        partition = self._partition_of(name)
        if partition is not None and len(partition.isr) > 1 and error.errno not in NO_DESCRIPTORS:
            self.fail_partition(partition, f"a file cannot be read: {error}")

    def fail_partition(self, partition: Partition, reason: str) -> None:
        """The log of a partition has failed: take the partition offline."""
        if partition.offline:
            return
        partition.log.failure = reason
        log.critical("partition is offline partition=%s error=%s", partition.name, reason)
        self._take_offline(partition)

    def fail_dir(self, directory: LogDir, error: OSError) -> None:
        """A file of a log directory could not be written: it is full, or it goes offline."""
        if error.errno in NO_ROOM:
            self._set_room(directory, False)
        elif isinstance(error, WriteFailed):
            self.dir_failed(directory, error)

    def dir_failed(self, directory: LogDir, error: OSError) -> None:
        if directory.offline:
            return
        directory.offline = True
        log.critical("log directory is offline path=%s error=%s", directory.path, error)
        for name in list(directory.logs):
            partition = self._partition_of(name)
            if partition is not None:
                self._take_offline(partition)
        if all(each.offline for each in self._store.dirs):
            self._on_all_dirs_failed(f"every log directory failed, the last with: {error}")

    def check_free_space(self) -> None:
        """Refuse produces to a directory before it is full, so that the broker can still restart and delete."""
        for directory in self._store.dirs:
            if directory.offline:
                continue
            try:
                free = self._disk.free_bytes(directory.path)
            except OSError as error:
                self.dir_failed(directory, error)
                continue
            has_room = free >= self._free_bytes_min
            if has_room != directory.has_room:
                self._set_room(directory, has_room)
                text = "has room again" if has_room else "is nearly full, produces are refused"
                log.warning("log directory %s path=%s free=%d", text, directory.path, free)

    def disk_space(self, directory: LogDir) -> tuple[int, int]:
        """Total and usable bytes of the disk below a directory."""
        return self._disk.total_bytes(directory.path), self._disk.free_bytes(directory.path)

    def _write_failed(self, of: Log, error: OSError) -> None:
        """The log has already forgotten the batches; now decide whether the disk is full or broken."""
        directory = self._store.dir_of(of)
        if (partition := self._by_log.get(of)) is not None:
            partition.writers.fail(ErrorCode.KAFKA_STORAGE_ERROR, of.log_end_offset)
        if error.errno in NO_ROOM:
            self._set_room(directory, False)
            log.error("log directory is full, produces are refused path=%s", directory.path)
            return
        if error.errno in NO_DESCRIPTORS:
            log.error("no file descriptor is left, a produce was refused; raise the limit path=%s", of.directory)
            return
        self.dir_failed(directory, error)

    def _set_room(self, directory: LogDir, has_room: bool) -> None:
        directory.has_room = has_room
        for each in directory.logs.values():
            if (partition := self._by_log.get(each)) is not None:
                partition.set_room(has_room)

    def _take_offline(self, partition: Partition) -> None:
        self.offline[partition] = None
        self._on_offline(partition)
        partition.go_offline(ErrorCode.KAFKA_STORAGE_ERROR)

    def _partition_of(self, name: TopicPartition) -> Partition | None:
        its_log = self._store.logs.get(name)
        return None if its_log is None else self._by_log.get(its_log)
