"""All logs of this broker, in its log directories.

A directory holds ``meta.properties`` (whose it is), one folder per partition, and small files that are replaced as a
whole: recovery points, start offsets and high watermarks of its partitions, and after a clean stop a note of where
each log ended. Deleting a partition renames its folder at once and unlinks its files in a thread.

Absence of metadata is never proof that data may go: a folder whose topic is unknown is left alone, and one that belongs
to an earlier topic of the same name is set aside.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from ottla.env.disk import Disk, lock_file
from ottla.env.tasks import ThreadPool
from ottla.log.epochs import LeaderEpochs
from ottla.log.log import Log
from ottla.log.recovery import CleanStop, open_log
from ottla.log.segment import Segment
from ottla.model.errors import StartError
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEAN_STOP = ".kafka_cleanshutdown"
META = "meta.properties"
LOCK = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """What the metadata says of a partition that this broker holds."""

    name: TopicPartition
    topic_id: bytes
    settings: TopicSettings


class LogDir:
    """One log directory."""

    def __init__(self, path: str, lock_fd: int) -> None:
        self.path = path
        self.lock_fd = lock_fd
        self.offline = False
        #: False while less is free than `log.dir.free.bytes.min`
        self.has_room = True
        self.logs: dict[TopicPartition, Log] = {}


def text_id(topic_id: bytes) -> str:
    """A topic id as Kafka prints it."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")


def read_meta(disk: Disk, path: str) -> dict[str, str]:
    """A directory's ``meta.properties``; empty when it has none."""
    data = disk.read_file(os.path.join(path, META))
    lines = (line.partition("=") for line in (data or b"").decode().splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in lines}


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

    def lock(self, cluster_id: str, broker_id: int, directory_id: Callable[[], str]) -> None:
        """Take the directories for this process, and sign those that are new."""
        for path in self._paths:
            self._disk.makedirs(path)
            lock_fd = lock_file(os.path.join(path, LOCK))
            if lock_fd is None:
                raise StartError(
                    f"data directory {path} is in use by another broker process; stop that one, "
                    "or choose another --data directory"
                )
            self.dirs.append(LogDir(path, lock_fd))
            if not read_meta(self._disk, path):
                text = f"version=1\ncluster.id={cluster_id}\nnode.id={broker_id}\ndirectory.id={directory_id()}\n"
                self._disk.write_file(os.path.join(path, META), text.encode(), sync=True)

    def load(self, specs: Mapping[TopicPartition, PartitionSpec]) -> dict[TopicPartition, int]:
        """Open the logs of all known partitions. Returns the high watermarks that were noted for them."""
        high_watermarks: dict[TopicPartition, int] = {}
        for directory in self.dirs:
            path = directory.path
            clean = self._read_clean_stop(path)
            self.was_clean &= self._disk.exists(os.path.join(path, CLEAN_STOP)) or not self._has_logs(path)
            recovery_points = self._read_checkpoint(path, RECOVERY_POINTS)
            start_offsets = self._read_checkpoint(path, START_OFFSETS)
            high_watermarks |= self._read_checkpoint(path, HIGH_WATERMARKS)
            for folder in self._disk.listdir(path):
                name = _partition_of(folder)
                if folder.endswith("-delete"):
                    self._remove_folder(os.path.join(path, folder))
                elif name is not None and (spec := specs.get(name)) is not None and name not in self.logs:
                    if self._set_aside_stranger(path, folder, spec.topic_id):
                        continue
                    self._add(directory, open_log(
                        self._disk, os.path.join(path, folder), name, spec.settings, clean=clean.get(folder),
                        recovery_point=recovery_points.get(name, 0), log_start_offset=start_offsets.get(name, 0),
                    ))  # fmt: skip
                elif name is not None:
                    log.warning("folder of an unknown partition left alone path=%s", os.path.join(path, folder))
            # From here on a crash must be seen as one.
            self._disk.remove(os.path.join(path, CLEAN_STOP))
            self._disk.fsync_dir(path)
        for name, spec in specs.items():
            if name not in self.logs:
                self.create(spec)
        return high_watermarks

    def _has_logs(self, path: str) -> bool:
        return any(_partition_of(folder) is not None for folder in self._disk.listdir(path))

    def _set_aside_stranger(self, path: str, folder: str, topic_id: bytes) -> bool:
        data = self._disk.read_file(os.path.join(path, folder, "partition.metadata"))
        if not data or f"topic_id: {text_id(topic_id)}" in data.decode(errors="replace"):
            return False
        aside = f"{folder}.{text_id(topic_id)}-stray"
        log.warning("folder of an earlier topic set aside path=%s", os.path.join(path, aside))
        self._disk.rename(os.path.join(path, folder), os.path.join(path, aside))
        return True

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
        made = Log(
            disk=self._disk, directory=folder, name=spec.name, settings=spec.settings,
            segments=[Segment(self._disk, folder, 0)], log_start_offset=0, log_end_offset=0, epochs=LeaderEpochs(),
            producers=None,
        )  # fmt: skip
        made.make_folder = partial(self._make_folder, folder, spec.topic_id)
        return self._add(directory, made)

    def _make_folder(self, folder: str, topic_id: bytes) -> None:
        self._disk.makedirs(folder)
        metadata = f"version: 0\ntopic_id: {text_id(topic_id)}"
        self._disk.write_file(os.path.join(folder, "partition.metadata"), metadata.encode(), sync=False)

    def delete(self, name: TopicPartition, unique: str) -> None:
        """Forget the log at once; its files go in a thread."""
        gone = self.logs.pop(name, None)
        if gone is None:
            return
        directory = self.dir_of(gone)
        del directory.logs[name]
        gone.pending.clear()
        if gone.make_folder is not None:
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
        size = sealed.size_bytes

        def work() -> None:
            sealed.sync()
            sealed.write_indexes()

        def done(error: OSError | None) -> None:
            if error is not None:
                self.on_dir_failed(self.dir_of(of), error)
            else:
                of.note_synced([(sealed, size)])

        self._threads.submit(work, done)

    def advance_log_start(self, of: Log, offset: int) -> None:
        """Move a log's start; segments that fall before it are unlinked in a thread."""
        for segment in of.advance_log_start(offset):
            log.info("segment deleted path=%s size=%d", segment.path(".log"), segment.size_bytes)
            self._threads.submit(segment.delete_files, _SegmentGone(segment))

    # -- small files ----------------------------------------------------------------------------------------------

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """Note recovery points, start offsets and high watermarks of every directory that is online."""
        for directory in self.dirs:
            if directory.offline:
                continue
            logs = directory.logs
            points = {name: each.synced_end_offset for name, each in logs.items()}
            self._write_checkpoint(directory, RECOVERY_POINTS, points, sync)
            starts = {
                name: each.log_start_offset
                for name, each in logs.items()
                if each.log_start_offset > each.segments[0].base_offset
            }
            self._write_checkpoint(directory, START_OFFSETS, starts, sync)
            marks = {n: high_watermarks[n] for n in logs if n in high_watermarks}
            self._write_checkpoint(directory, HIGH_WATERMARKS, marks, sync)

    def _write_checkpoint(
        self, directory: LogDir, file: str, offsets: Mapping[TopicPartition, int], sync: bool
    ) -> None:
        lines = ["0", str(len(offsets)), *(f"{name.topic} {name.partition} {o}" for name, o in offsets.items())]
        self._disk.write_file(os.path.join(directory.path, file), ("\n".join(lines) + "\n").encode(), sync=sync)

    def _read_checkpoint(self, path: str, file: str) -> dict[TopicPartition, int]:
        data = self._disk.read_file(os.path.join(path, file))
        try:
            lines = (data or b"0\n0\n").decode().split("\n")
            rows = [line.split() for line in lines[2 : 2 + int(lines[1])]]
            return {TopicPartition(topic, int(partition)): int(offset) for topic, partition, offset in rows}
        except (ValueError, IndexError):
            # Recovery without a recovery point reads more, and loses nothing.
            log.warning("checkpoint is damaged and ignored path=%s", os.path.join(path, file))
            return {}

    def _read_clean_stop(self, path: str) -> dict[str, CleanStop]:
        data = self._disk.read_file(os.path.join(path, CLEAN_STOP))
        try:
            noted = json.loads(data or b"{}").get("logs", {})
            return {
                folder: CleanStop(log_end_offset=end, active_base_offset=base, active_size_bytes=size)
                for folder, (end, base, size) in noted.items()
            }
        except (ValueError, AttributeError, TypeError):
            log.warning("clean stop note is damaged and ignored path=%s", path)
            return {}

    # -- stop -----------------------------------------------------------------------------------------------------

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Clean stop: 1 every log to disk  2 checkpoints  3 only then the note that says so."""
        for directory in self.dirs:
            if not directory.offline:
                for each in directory.logs.values():
                    each.flush_files()
        self.write_checkpoints(high_watermarks, sync=True)
        for directory in self.dirs:
            if not directory.offline:
                ends = {
                    str(name): (each.log_end_offset, each.active.base_offset, each.active.size_bytes)
                    for name, each in directory.logs.items()
                    if each.make_folder is None
                }
                note = json.dumps({"version": 0, "brokerEpoch": -1, "logs": ends}, separators=(",", ":"))
                self._disk.write_file(os.path.join(directory.path, CLEAN_STOP), note.encode(), sync=True)
        self.unlock()

    def unlock(self) -> None:
        for directory in self.dirs:
            os.close(directory.lock_fd)
        self.dirs.clear()


class _SegmentGone:
    """Reports a failed unlink; the segment is kept until then, so that its file closes after its name is gone."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def __call__(self, error: OSError | None) -> None:
        _report(error, "remove segment", self._segment.path(".log"))


def _report(error: OSError | None, what: str, path: str) -> None:
    if error is not None:
        log.error("could not %s path=%s error=%s", what, path, error)


def _partition_of(folder: str) -> TopicPartition | None:
    topic, dash, number = folder.rpartition("-")
    return TopicPartition(topic, int(number)) if dash and topic and number.isdigit() else None
