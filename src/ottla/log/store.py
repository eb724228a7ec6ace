"""All logs of this broker, in its log directories.

A directory holds ``meta.properties`` (whose it is), one folder per partition, and small files that are replaced as a
whole: recovery points, start offsets and high watermarks of its partitions, and after a clean stop a note of where
each log ended. Deleting a partition renames its folder at once and unlinks its files in a thread.

Absence of metadata is never proof that data may go: a folder whose topic is unknown is left alone, and one that belongs
to an earlier topic of the same name is set aside.

A log that cannot be read at the start is offline: ``Log.failure`` says why. All other logs start. The files of an
offline log are not touched, and checkpoints keep what they said of it, so that the next start can open it if the disk
answers again.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from threading import Lock

from crc32c import crc32c

from ottla.env.disk import NO_DESCRIPTORS, NO_ROOM, Disk, WriteFailed, lock_file, read_derived_file
from ottla.env.tasks import ThreadPool
from ottla.log.epochs import LeaderEpochs
from ottla.log.log import Log
from ottla.log.recovery import CleanStop, open_log
from ottla.log.segment import Segment
from ottla.model.errors import StartError
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition, topic_id_text

log = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
CLEAN_STOP = ".kafka_cleanshutdown"
META = "meta.properties"
LOCK = ".lock"
_FLUSH_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """What the metadata says of a partition that this broker holds."""

    name: TopicPartition
    topic_id: bytes
    settings: TopicSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedOffsets:
    """What the checkpoints of a directory say of one log; None where they do not name it."""

    recovery_point: int | None
    start: int | None
    high_watermark: int | None
    cleaner: int | None


class LogDir:
    """One log directory."""

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self.lock_fd = lock_fd
        self.offline = False
        #: False while less is free than `log.dir.free.bytes.min`
        self.has_room = True
        self.logs: dict[TopicPartition, Log] = {}
        #: what the checkpoints say of logs that are offline because they could not be read
        self.unread: dict[TopicPartition, NotedOffsets] = {}
        #: what the checkpoint of high watermarks says, or will say with its next version
        self.high_watermarks: dict[TopicPartition, int] = {}
        #: partitions of which the checkpoints on disk may say more than that they are empty
        self.checkpointed: set[TopicPartition] = set()
        #: up to where each log was compacted; and what the file says of it, None when it cannot be read
        self.cleaner_offsets: dict[TopicPartition, int] = {}
        self.cleaner_offsets_written: dict[TopicPartition, int] | None = {}
        #: a thread writes that file after a compaction, the loop when a topic takes a name that is in it
        self.cleaner_file = Lock()


def read_meta(disk: Disk, path: str) -> dict[str, str]:
    """A directory's ``meta.properties``; empty when it has none. Raises StartError when it does not say whose it is."""
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


def check_owner(disk: Disk, path: str, cluster_id: str | None, broker_id: int) -> None:
    """Raise StartError when the directory belongs to another cluster or broker. Touches nothing."""
    meta = read_meta(disk, path)
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


class LogStore:
    """The logs by partition. Everything but thread work runs on the event loop."""

    def __init__(self, disk: Disk, paths: Iterable[str], threads: ThreadPool) -> None:
        self._disk = disk
        self._threads = threads
        self._paths = list(paths)
        self.dirs: list[LogDir] = []
        self.logs: dict[TopicPartition, Log] = {}
        #: whether every directory was left by a clean stop, or is new
        self.was_clean = True
        #: called when a sealed segment could not be synced
        self.on_dir_failed: Callable[[LogDir, OSError], None] = lambda *_: None

    # -- start ----------------------------------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the directories for this process."""
        for path in self._paths:
            self._disk.makedirs(path)
            lock_fd = lock_file(os.path.join(path, LOCK))
            if lock_fd is None:
                raise StartError(
                    f"data directory {path} is in use by another broker process; stop that one, "
                    "or choose another --data directory"
                )
            self.dirs.append(LogDir(path, lock_fd))

    def sign(self, cluster_id: str, broker_id: int, directory_id: Callable[[], str]) -> None:
        """Write into the directories that are new whose they are."""
        for directory in self.dirs:
            if not read_meta(self._disk, directory.path):
                text = f"version=1\ncluster.id={cluster_id}\nnode.id={broker_id}\ndirectory.id={directory_id()}\n"
                self._disk.write_file(os.path.join(directory.path, META), text.encode(), sync=True)
                # The directory may be as new as what is in it. A parent that we may not open is not ours to sync.
                try:
                    self._disk.fsync_dir(os.path.dirname(os.path.abspath(directory.path)))
                except OSError as error:
                    if error.errno not in (errno.EACCES, errno.EPERM):
                        raise

    def load(self, specs: Mapping[TopicPartition, PartitionSpec]) -> dict[TopicPartition, int]:
        """Open the logs of all known partitions. Returns the high watermarks that were noted for them."""
        high_watermarks: dict[TopicPartition, int] = {}
        for directory in self.dirs:
            path = directory.path
            clean = self._read_clean_stop(path)
            self.was_clean &= clean is not None or not self._has_logs(path)
            recovery_points = self._read_checkpoint(path, RECOVERY_POINTS)
            start_offsets = self._read_checkpoint(path, START_OFFSETS)
            directory.checkpointed = {name for name, o in recovery_points.items() if o} | start_offsets.keys()
            cleaner_offsets = self._load_cleaner_offsets(directory)
            directory.high_watermarks = marks = self._read_checkpoint(path, HIGH_WATERMARKS)
            directory.checkpointed |= {name for name, offset in marks.items() if offset}
            high_watermarks |= marks
            for folder in self._disk.listdir(path):
                name = _partition_of(folder)
                if folder.endswith("-delete"):
                    self._remove_folder(os.path.join(path, folder))
                elif name is not None and (spec := specs.get(name)) is not None and name not in self.logs:
                    if self._set_aside_stranger(path, folder, spec.topic_id):
                        continue
                    noted = NotedOffsets(
                        recovery_point=recovery_points.get(name), start=start_offsets.get(name),
                        high_watermark=marks.get(name),
                        cleaner=None if cleaner_offsets is None else cleaner_offsets.get(name, 0),
                    )  # fmt: skip
                    self._open(directory, folder, spec, (clean or {}).get(folder), noted)
                elif name is not None:
                    if cleaner_offsets is not None and name in cleaner_offsets:
                        directory.cleaner_offsets[name] = cleaner_offsets[name]
                    log.warning("folder of an unknown partition left alone path=%s", os.path.join(path, folder))
            for folder, note in (clean or {}).items():
                name = _partition_of(folder)
                if name is not None and (spec := specs.get(name)) is not None and name not in self.logs:
                    self._open_lost(directory, folder, spec, note)
            if cleaner_offsets is not None:
                # What it said of logs that are gone, or were cut, must not be believed of what grows in their place.
                self.write_cleaner_offsets(directory)
            # From here on a crash must be seen as one.
            self._disk.remove(os.path.join(path, CLEAN_STOP))
            self._disk.fsync_dir(path)
        for name, spec in specs.items():
            if name not in self.logs:
                self.create(spec)
        return high_watermarks

    def _open(
        self, directory: LogDir, folder: str, spec: PartitionSpec, clean: CleanStop | None, noted: NotedOffsets
    ) -> None:
        """Open the log in ``folder``; if it cannot be read, add an offline log. Raise OSError if a write fails."""
        path = os.path.join(directory.path, folder)
        try:
            opened = self._add(directory, open_log(
                self._disk, path, spec.name, spec.settings, clean=clean, recovery_point=noted.recovery_point or 0,
                log_start_offset=noted.start or 0, cleaner_offset=noted.cleaner,
                high_watermark=noted.high_watermark or 0,
            ))  # fmt: skip
        except OSError as error:
            if isinstance(error, WriteFailed) or error.errno in NO_DESCRIPTORS:
                raise
            log.critical("log cannot be read, its partition is offline partition=%s error=%s", spec.name, error)
            opened = self._add(directory, self._empty_log(path, spec))
            opened.failure = str(error)
            directory.unread[spec.name] = noted
            if noted.cleaner:
                directory.cleaner_offsets[spec.name] = noted.cleaner
            return
        if opened.first_dirty_offset:
            directory.cleaner_offsets[spec.name] = opened.first_dirty_offset

    def _open_lost(self, directory: LogDir, folder: str, spec: PartitionSpec, clean: CleanStop) -> None:
        """Open a log whose folder was lost since the clean stop: its topic exists, so the broker did not delete it."""
        if not self._disk.exists(os.path.join(directory.path, folder)):
            self._make_folder(directory, spec)
            unnoted = NotedOffsets(recovery_point=None, start=None, high_watermark=None, cleaner=0)
            self._open(directory, folder, spec, clean, unnoted)

    def _has_logs(self, path: str) -> bool:
        return any(_partition_of(folder) is not None for folder in self._disk.listdir(path))

    def _set_aside_stranger(self, path: str, folder: str, topic_id: bytes) -> bool:
        data = read_derived_file(self._disk, os.path.join(path, folder, "partition.metadata"))
        # A power cut can leave the file empty or torn; only a whole id is proof that the folder is another topic's.
        found = re.search(rb"^topic_id: ([\w-]{22})$", data or b"", re.MULTILINE)
        if found is None or found[1].decode() == topic_id_text(topic_id):
            return False
        self._set_aside(os.path.join(path, folder), found[1].decode())
        return True

    def _set_aside(self, path: str, unique: str) -> None:
        aside = f"{path}.{unique}-stray"
        log.warning("folder of an earlier topic set aside path=%s", aside)
        self._disk.rename(path, aside)

    def _add(self, directory: LogDir, opened: Log) -> Log:
        opened.on_roll = self._rolled
        directory.logs[opened.name] = opened
        self.logs[opened.name] = opened
        return opened

    # -- partitions come and go -----------------------------------------------------------------------------------

    def create(self, spec: PartitionSpec) -> Log:
        """Make an empty log in the directory that has the fewest. Nothing is written before its first batch."""
        usable = [directory for directory in self.dirs if not directory.offline]
        if not usable:
            raise OSError("no log directory is online")
        directory = min(usable, key=lambda d: len(d.logs))
        folder = os.path.join(directory.path, str(spec.name))
        made = self._empty_log(folder, spec)
        made.make_folder = partial(self._make_folder, directory, spec)
        return self._add(directory, made)

    def _empty_log(self, folder: str, spec: PartitionSpec) -> Log:
        return Log(
            disk=self._disk, directory=folder, name=spec.name, settings=spec.settings,
            segments=[Segment(self._disk, folder, 0)], log_start_offset=0, log_end_offset=0, epochs=LeaderEpochs(),
            producers=None,
        )  # fmt: skip

    def _make_folder(self, directory: LogDir, spec: PartitionSpec) -> None:
        folder, topic_id = os.path.join(directory.path, str(spec.name)), spec.topic_id
        if self._disk.exists(folder) and any(name.endswith(".log") for name in self._disk.listdir(folder)):
            # A topic of this name was deleted, or forgotten, while its disk was away.
            self._set_aside(folder, topic_id_text(topic_id))
        directory.cleaner_offsets.pop(spec.name, None)
        directory.high_watermarks.pop(spec.name, None)
        if spec.name in directory.checkpointed:
            # What the checkpoints say of an earlier topic of this name would cut the new one down after a crash.
            self._write_offsets(directory, sync=True)
        self._disk.makedirs(folder)
        metadata = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
        self._disk.write_file(os.path.join(folder, "partition.metadata"), metadata.encode(), sync=False)

    def delete(self, name: TopicPartition, unique: str) -> None:
        """Forget the log at once; its files go in a thread, unless their disk is offline."""
        gone = self.logs.pop(name, None)
        if gone is None:
            return
        directory = self.dir_of(gone)
        del directory.logs[name]
        directory.unread.pop(name, None)
        directory.cleaner_offsets.pop(name, None)
        gone.pending.clear()
        gone.deleted = True
        # Connections remember the partition they last wrote to; its space must not wait for them to close.
        for segment in gone.segments:
            segment.release_file()
        if gone.make_folder is not None or directory.offline:
            return
        target = os.path.join(directory.path, f"{name}.{unique}-delete")
        self._disk.rename(gone.directory, target)
        self._remove_folder(target)

    def dir_of(self, of: Log) -> LogDir:
        parent = os.path.dirname(of.directory)
        return next(directory for directory in self.dirs if directory.path == parent)

    def _remove_folder(self, path: str) -> None:
        self._threads.submit(lambda: self._disk.remove_tree(path), lambda error: _report(error, "remove folder", path))

    # -- segments come and go -------------------------------------------------------------------------------------

    def _rolled(self, of: Log, sealed: Segment) -> None:
        """A sealed segment goes to disk in the background, and the recovery point follows."""
        segments, of.sealed_unindexed = [*of.sealed_unindexed, sealed], []
        sizes = [(segment, segment.size_bytes) for segment in segments]

        def work() -> None:
            for segment in segments:
                if not of.deleted and not segment.dropped:
                    of.sync_sealed(segment)

        def done(error: OSError | None) -> None:
            if of.deleted or all(segment.dropped for segment in segments):
                return
            if error is None:
                of.note_synced(sizes)
                # Who reads them opens them again; otherwise every segment ever written would hold a descriptor.
                for segment in segments:
                    if segment is not of.active:
                        segment.release_file()
            elif error.errno in NO_ROOM or error.errno in NO_DESCRIPTORS:
                # Only what describes the segments is missing. Until it is there, recovery would read them again.
                log.warning(
                    "sealed segment has no index yet, next try at the next roll dir=%s error=%s", of.directory, error
                )
                of.sealed_unindexed += segments
            elif isinstance(error, WriteFailed):
                self.on_dir_failed(self.dir_of(of), error)
            else:
                log.error("sealed segment has no index, a file is unreadable dir=%s error=%s", of.directory, error)
                of.sealed_unindexed += segments

        self._threads.submit(work, done)

    def advance_log_start(self, of: Log, offset: int) -> None:
        """Move a log's start; segments that fall before it are unlinked in a thread."""
        dropped = of.advance_log_start(offset)
        if not dropped:
            return

        def work() -> None:
            if not of.deleted:
                # The segments that stay must not lose their names in the power cut that takes these.
                self._disk.fsync_dir(of.directory)
                for segment in dropped:
                    segment.delete_files()
                # Before the recovery point passes them: they have no indexes, should they come back.
                self._disk.fsync_dir(of.directory)

        def done(error: OSError | None) -> None:
            if error is None:
                of.dropped_unindexed = [segment for segment in of.dropped_unindexed if segment not in dropped]
            elif not of.deleted:
                _report(error, "remove segments from", first)

        # The segments are kept until then, so that their files close after their names are gone.
        first, last = dropped[0].path(".log"), dropped[-1].path(".log")
        log.info("segments deleted first=%s last=%s count=%d", first, last, len(dropped))
        self._threads.submit(work, done)

    # -- small files ----------------------------------------------------------------------------------------------

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """Note recovery points, start offsets and high watermarks of every directory that is online."""
        for directory in self.dirs:
            if directory.offline:
                continue
            marks = {name: high_watermarks[name] for name in directory.logs if name in high_watermarks}
            marks |= {name: o.high_watermark for name, o in directory.unread.items() if o.high_watermark is not None}
            directory.high_watermarks = marks
            self._write_offsets(directory, sync=sync)

    def _write_offsets(self, directory: LogDir, *, sync: bool) -> None:
        logs = directory.logs
        points = {name: each.recovery_point for name, each in logs.items() if each.log_end_offset}
        starts = {
            name: each.log_start_offset
            for name, each in logs.items()
            if each.log_start_offset > each.segments[0].base_offset
        }
        points |= {name: o.recovery_point for name, o in directory.unread.items() if o.recovery_point is not None}
        starts |= {name: o.start for name, o in directory.unread.items() if o.start is not None}
        marks = directory.high_watermarks
        directory.checkpointed |= points.keys() | {name for name, offset in marks.items() if offset}
        self._write_checkpoint(directory, RECOVERY_POINTS, points, sync)
        self._write_checkpoint(directory, START_OFFSETS, starts, sync)
        self._write_checkpoint(directory, HIGH_WATERMARKS, marks, sync)
        if sync:
            self.write_cleaner_offsets(directory)
            # A checkpoint that is not synced can still give way to the one before it.
            directory.checkpointed = points.keys() | {name for name, offset in marks.items() if offset}

    def _load_cleaner_offsets(self, directory: LogDir) -> dict[TopicPartition, int] | None:
        """What the cleaner's checkpoint says; None when there is one that cannot be read."""
        path = os.path.join(directory.path, CLEANER_OFFSETS)
        offsets: dict[TopicPartition, int] | None = None
        try:
            offsets = _parse_checkpoint(self._disk.read_file(path))
        except (ValueError, IndexError, OSError) as error:
            log.warning("cleaner's checkpoint is ignored, logs may have gaps anywhere path=%s error=%s", path, error)
        directory.cleaner_offsets_written = offsets
        directory.checkpointed |= (offsets or {}).keys()
        return offsets

    def note_cleaned(self, of: Log, offset: int) -> None:
        """The log is compacted up to here, durably; ``write_cleaner_offsets`` has yet to say so on disk."""
        directory = self.dir_of(of)
        of.first_dirty_offset = directory.cleaner_offsets[of.name] = offset
        directory.checkpointed.add(of.name)

    def write_cleaner_offsets(self, directory: LogDir) -> None:
        """Note how far logs are compacted. Always synced: recovery of topics that were compacted once needs it."""
        with directory.cleaner_file:
            offsets = directory.cleaner_offsets.copy()
            if offsets != directory.cleaner_offsets_written:
                self._write_checkpoint(directory, CLEANER_OFFSETS, offsets, sync=True)
                directory.cleaner_offsets_written = offsets

    def _write_checkpoint(
        self, directory: LogDir, file: str, offsets: Mapping[TopicPartition, int], sync: bool
    ) -> None:
        lines = ["0", str(len(offsets)), *(f"{name.topic} {name.partition} {o}" for name, o in offsets.items())]
        self._disk.write_file(os.path.join(directory.path, file), ("\n".join(lines) + "\n").encode(), sync=sync)

    def _read_checkpoint(self, path: str, file: str) -> dict[TopicPartition, int]:
        try:
            return _parse_checkpoint(self._disk.read_file(os.path.join(path, file)))
        except (ValueError, IndexError, OSError) as error:
            # Recovery without a recovery point reads more, and loses nothing.
            log.warning("checkpoint is damaged and ignored path=%s error=%s", os.path.join(path, file), error)
            return {}

    def _read_clean_stop(self, path: str) -> dict[str, CleanStop] | None:
        """What the last clean stop noted of each folder; None when the last stop was not clean."""
        data = read_derived_file(self._disk, os.path.join(path, CLEAN_STOP))
        if data is None:
            return None
        try:
            note = json.loads(data)
            noted = note["logs"]
            if note["logsCrc"] != _checksum_of(noted):
                raise ValueError("the checksum does not match")
            return {
                folder: CleanStop(
                    log_end_offset=int(end),
                    active_base_offset=int(base),
                    active_size_bytes=int(size),
                    sealed_bytes=int(sealed[0]) if sealed else None,
                )
                for folder, (end, base, size, *sealed) in noted.items()
            }
        except (ValueError, AttributeError, TypeError, KeyError):
            log.warning("clean stop note is damaged and ignored path=%s", path)
            return None

    # -- stop -----------------------------------------------------------------------------------------------------

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Clean stop: 1 every log to disk  2 checkpoints  3 only then the note that says so.

        The note leaves out a log whose files cannot all be read, so that the next start recovers it.
        """
        logs = [each for directory in self.dirs if not directory.offline for each in directory.logs.values()]
        written = [each for each in logs if each.make_folder is None and each.failure is None]
        if len(written) > _FLUSH_THREADS:
            # A disk takes many syncs at once in little more time than one.
            with ThreadPoolExecutor(_FLUSH_THREADS) as threads:
                list(threads.map(_flush, written))
        else:
            for each in written:
                _flush(each)
        self.write_checkpoints(high_watermarks, sync=True)
        for directory in self.dirs:
            if not directory.offline:
                ends = {
                    str(name): (
                        each.log_end_offset,
                        each.active.base_offset,
                        each.active.size_bytes,
                        each.size_bytes - each.active.size_bytes,
                    )
                    for name, each in directory.logs.items()
                    if each.make_folder is None and each.failure is None
                }
                note = _to_json({"version": 0, "brokerEpoch": -1, "logs": ends, "logsCrc": _checksum_of(ends)})
                self._disk.write_file(os.path.join(directory.path, CLEAN_STOP), note, sync=True)
        self.unlock()

    def unlock(self) -> None:
        for directory in self.dirs:
            os.close(directory.lock_fd)
        self.dirs.clear()


def _to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _checksum_of(ends: object) -> int:
    """Return the checksum of what a clean stop notes: a wrong end would count as a loss of records."""
    return int(crc32c(_to_json(ends)))


def _parse_checkpoint(data: bytes | None) -> dict[TopicPartition, int]:
    """A checkpoint's offsets; raises ValueError or IndexError when it is not whole."""
    lines = (data or b"0\n0\n").decode().split("\n")
    if lines[0] != "0" or len(lines) != int(lines[1]) + 3 or lines[-1]:
        raise ValueError("not a whole checkpoint")
    rows = [line.split() for line in lines[2:-1]]
    return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}


def _flush(of: Log) -> None:
    try:
        of.flush_files()
    except WriteFailed:
        raise
    except OSError as error:
        log.error("log is not stopped cleanly, a file is unreadable dir=%s error=%s", of.directory, error)
        of.failure = str(error)


def _report(error: OSError | None, what: str, path: str) -> None:
    if error is not None:
        log.error("could not %s path=%s error=%s", what, path, error)


def _partition_of(folder: str) -> TopicPartition | None:
    match = re.fullmatch(r"(.+)-(0|[1-9][0-9]*)", folder)
    return TopicPartition(match[1], int(match[2])) if match else None
