"""One log directory: the cluster and the broker that own it, and what is known of the logs in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from threading import Lock
from typing import NamedTuple

from ottla.env.disk import Disk
from ottla.log.checkpoints import CleanStop
from ottla.log.log import Log
from ottla.log.log_starts import LogStarts
from ottla.model.errors import StartError
from ottla.model.types import TopicPartition

META = "meta.properties"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointedOffsets:
    """The offsets of one log in the checkpoints of its directory; None if a checkpoint has no entry for it."""

    recovery_point: int | None
    start: int | None
    high_watermark: int | None
    cleaner: int | None


class Missing(NamedTuple):
    """A log whose folder is missing although it had synced records."""

    directory: LogDir
    name: TopicPartition
    #: its entry in the clean stop file; None if the last stop was not clean
    clean: CleanStop | None
    #: counts only without such an entry
    recovery_point: int | None = None


class DirContent(IntEnum):
    """What a log directory contained when the broker started."""

    #: new, wiped or an older copy: its logs may lack records
    UNKNOWN = 0
    #: the logs of an earlier run: the last run did not have this directory, and created logs in its place
    RETURNED = 1
    #: the logs of an earlier run: the last run could not use this directory, and created no logs in its place
    AWAITED = 2
    #: the logs of the last run
    CURRENT = 3


class LogDir:
    """One log directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        #: None while the directory is not locked
        self.lock_fd: int | None = None
        #: random, in ``meta.properties``; directories of other releases may lack it there
        self.directory_id = ""
        self.content = DirContent.CURRENT
        #: a number of the run that had these logs last; -1 if that is unknown
        self.run = -1
        #: whether the last stop was clean; without one, a power failure may have taken whole logs
        self.has_clean_stop = False
        #: the folders in the clean stop file; one that is missing there was not flushed, because a file was unreadable
        self.clean_folders: frozenset[str] = frozenset()
        #: the logs in the recovery points and in the clean stop file, when the directory was loaded
        self.known_names: set[TopicPartition] = set()
        self.offline = False
        #: whether the metadata store knows that the directory is offline
        self.is_recorded = False
        #: why the directory could not be used at the start, and what to do; None if it could
        self.failure: str | None = None
        #: False while the disk has less free space than `log.dir.free.bytes.min`
        self.has_room = True
        self.logs: dict[TopicPartition, Log] = {}
        #: checkpointed offsets of the logs that are offline because they could not be read
        self.unreadable: dict[TopicPartition, CheckpointedOffsets] = {}
        #: contents of the high watermark checkpoint, or of its next version
        self.high_watermarks: dict[TopicPartition, int] = {}
        #: the largest offset that a checkpoint on disk may hold for each partition; no entry if that is 0
        self.checkpointed: dict[TopicPartition, int] = {}
        #: the topic ids of the logs that have recovery points, as they are on disk; None if that is not known
        self.topic_ids_written: dict[TopicPartition, str] | None = None
        self.are_topic_ids_synced = False
        #: the offset below which each log was compacted
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        #: contents of the cleaner's checkpoint on disk; None if it cannot be read
        self.cleaner_offsets_written: dict[TopicPartition, int] | None = {}
        #: guards that file: a thread writes it after a compaction, the event loop when a new topic reuses a name
        self.cleaner_file = Lock()
        self.starts = LogStarts(path)

    def note_checkpointed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record that a checkpoint on disk may hold these offsets."""
        known = self.checkpointed
        for name, offset in offsets.items():
            if offset > known.get(name, 0):
                known[name] = offset

    def keep_high_watermarks_of_logs(self) -> None:
        """Remove the high watermarks of logs that are not open in this directory."""
        marks = self.high_watermarks
        self.high_watermarks = {name: marks[name] for name in marks.keys() & self.logs.keys()}

    def forget(self, name: TopicPartition) -> None:
        """The log of this partition is not in this directory."""
        for known in (self.logs, self.unreadable, self.high_watermarks, self.cleaner_offsets):
            known.pop(name, None)


def read_meta(disk: Disk, path: str) -> dict[str, str]:
    """Return the directory's ``meta.properties``, empty if there is none. Raise StartError if it names no cluster."""
    data = disk.read_file(os.path.join(path, META))
    if data is None:
        return {}
    lines = (line.partition("=") for line in data.decode(errors="replace").splitlines() if "=" in line)
    meta = {name.strip(): value.strip() for name, _, value in lines}
    if "cluster.id" not in meta:
        raise StartError(
            f"{os.path.join(path, META)} is damaged, it names no cluster; restore it from a backup, or move it away: "
            "a broker that finds its own metadata there writes a new one"
        )
    return meta


def write_meta(
    disk: Disk, directory: LogDir, cluster_id: str, broker_id: int, directory_id: Callable[[str], str]
) -> None:
    """Set the id of a directory, and write its ``meta.properties`` if it has none. Raise OSError, StartError."""
    meta = read_meta(disk, directory.path)
    directory.directory_id = meta.get("directory.id") or directory_id(directory.path)
    if meta:
        return
    text = f"version=1\ncluster.id={cluster_id}\nnode.id={broker_id}\ndirectory.id={directory.directory_id}\n"
    disk.write_file(os.path.join(directory.path, META), text.encode(), sync=True)
    # The directory itself may be new, so sync its parent. Skip a parent that the process may not open.
    try:
        disk.fsync_dir(os.path.dirname(os.path.abspath(directory.path)))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM):
            raise


def check_owner(meta: Mapping[str, str], path: str, cluster_id: str | None, broker_id: int) -> None:
    """Raise StartError if a directory with this ``meta.properties`` belongs to another cluster or broker."""
    owner_cluster, owner_id = meta.get("cluster.id"), meta.get("node.id", meta.get("broker.id"))
    if owner_cluster is not None and owner_cluster != cluster_id:
        raise StartError(
            f"data directory {path} belongs to cluster {owner_cluster}, not to {cluster_id or 'this new one'}; "
            "choose another --data directory, or move this one away if you no longer need it"
        )
    if owner_id is not None and owner_id != str(broker_id):
        raise StartError(
            f"data directory {path} belongs to broker {owner_id}, not to {broker_id}; start with --id {owner_id} "
            "or choose another --data directory"
        )


def abandon_files(of: Log) -> None:
    """Use the files of a log no more: its folder is renamed or deleted."""
    of.pending.clear()
    of.deleted = True
    # Close the files now: connections keep a reference to the log that they last appended to, and the disk space of an
    # open file stays in use.
    for segment in (*of.segments, *of.undeleted):
        # A new log may get the same path: a thread that still works on this one must not change its files.
        segment.disown_files()
        segment.release_file()
