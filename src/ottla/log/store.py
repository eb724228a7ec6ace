"""All logs of this broker, in its log directories.

A directory holds ``meta.properties`` (the cluster and the broker that own it), one folder per partition, and
checkpoints that are replaced atomically: recovery points, log start offsets, high watermarks and, after a clean stop,
the clean stop file with the end of each log. Deleting a partition renames its folder immediately and deletes its files
in a thread.

Missing metadata is no proof that data may be deleted: the folder of an unknown topic is not changed, and the folder of
an earlier topic with the same name is renamed ("set aside"). A folder without a complete topic id may be either
topic's (`folders.py`). It is set aside if the partition is replicated: its batches were not synced, other replicas have
those that were acknowledged, and a follower with the batches of an earlier topic could be elected. It is used if it
is the only copy, because its file may have been damaged after its batches were acknowledged.

A log that cannot be read at the start is offline (`loading.py`). All other logs start.

A directory that cannot be used at the start is offline (``set_unusable``), and the others are used. A log that is found
in none of them may be in this one, so it is offline too: it is not created anew.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ottla.env.advice import directory_advice
from ottla.env.disk import NO_DESCRIPTORS, NO_ROOM, Disk
from ottla.env.tasks import Threads
from ottla.log.checkpoints import CLEAN_STOP, CleanStop
from ottla.log.clean_stop import stop_cleanly
from ottla.log.dir_checkpoints import DirCheckpoints
from ottla.log.directories import CheckpointedOffsets, LogDir, Missing, abandon_files, write_meta
from ottla.log.duplicates import choose_duplicates
from ottla.log.folders import (
    DELETED,
    FUTURE,
    METADATA,
    NEW,
    PartitionSpec,
    derived_name,
    make_folder,
    partition_of,
    set_aside,
)
from ottla.log.loading import empty_log, open_folder, read_directory
from ottla.log.log import Log
from ottla.log.moving import FutureLog
from ottla.log.segment_jobs import SegmentJobs
from ottla.log.truncation import Truncation
from ottla.model.errors import StartError
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

LOCK = ".lock"
#: logs that do not exist yet and for which a directory was chosen; the first ones are forgotten when there are more
_PREFERRED_MAX = 10_000


class CreationDeferred(OSError):
    """A log cannot be created now: a later start could take an older folder in another directory for it."""


class LogStore:
    """The logs by partition. All methods run on the event loop; some submit work to threads."""

    def __init__(self, disk: Disk, paths: Iterable[str], threads: Threads, *, needs_first: bool = False) -> None:
        """``needs_first`` says that the first directory has files which the broker cannot do without."""
        self._disk = disk
        self._threads = threads
        self._needs_first = needs_first
        self.dirs = [LogDir(path) for path in paths]
        self.logs: dict[TopicPartition, Log] = {}
        self._topic_ids: dict[TopicPartition, bytes] = {}  # the ids of the topics whose logs these are
        #: the logs that `load` created because it found no folder
        self.created: set[TopicPartition] = set()
        #: those of them that had records before
        self.lost: set[TopicPartition] = set()
        #: deleted logs whose folders could come back with a power failure
        self._removed: set[tuple[TopicPartition, bytes]] = set()
        #: directories that were chosen for logs that do not exist yet
        self._preferred: dict[TopicPartition, LogDir] = {}
        #: whether the metadata store has to know of an offline directory before a log is created: the log may take the
        #: place of one in that directory
        self.records_failures = False
        #: whether earlier runs used directories that are not in ``dirs``; they may come back, with older logs
        self.has_absent_dirs = False
        #: whether each directory is new or its last stop was clean
        self.was_clean = True
        #: called when a sealed segment, or the log start checkpoint, could not be synced
        self.on_dir_failed: Callable[[LogDir, OSError], None] = lambda *_: None
        #: called when ``synced_start_offset`` of a log has advanced
        self.on_start_synced: Callable[[Log], None] = lambda _: None
        self._segment_jobs = SegmentJobs(disk, threads, sync_failed=self._sync_failed)
        self.checkpoints = DirCheckpoints(
            disk,
            threads,
            self._topic_ids,
            start_synced=self._start_synced,
            dir_failed=self._dir_failed,
        )

    def _start_synced(self, of: Log) -> None:
        self.on_start_synced(of)

    def _dir_failed(self, directory: LogDir, error: OSError) -> None:
        self.on_dir_failed(directory, error)

    def _sync_failed(self, of: Log, error: OSError) -> None:
        self.on_dir_failed(self.dir_of(of), error)

    # -- start ----------------------------------------------------------------------------------------------------

    def usable_dirs(self) -> list[LogDir]:
        return [each for each in self.dirs if not each.offline]

    def set_unusable(self, directory: LogDir, error: OSError) -> None:
        """Start without a directory. Raise the error if it is the last one, or is needed, or if the disk is sound."""
        is_needed = self._needs_first and directory is self.dirs[0]
        if is_needed or self.usable_dirs() == [directory] or error.errno in NO_DESCRIPTORS:
            raise error
        directory.offline = True
        advice = directory_advice(error, option="log.dirs")
        directory.failure = f"log directory {directory.path} cannot be used: {advice}"
        log.error(
            "%s; then restart the broker. Until then the partitions in it are offline. If its data are lost, remove it "
            "from log.dirs, or replace it by an empty one: the logs are then copied from other replicas",
            directory.failure,
        )  # fmt: skip
        for each in directory.logs.values():
            each.failure = directory.failure

    def lock(self) -> None:
        """Create and lock the usable directories. Raise StartError if another process has locked one of them."""
        paths = [each.path for each in self.dirs]
        for directory in self.usable_dirs():
            if paths.count(directory.path) > 1:
                raise StartError(f"log.dirs names the data directory {directory.path} twice; remove one of them")
            if directory.lock_fd is not None:
                continue
            try:
                self._disk.makedirs(directory.path)
                directory.lock_fd = self._disk.lock(os.path.join(directory.path, LOCK))
            except OSError as error:
                self.set_unusable(directory, error)
                continue
            if directory.lock_fd is None:
                raise StartError(
                    f"data directory {directory.path} is in use by another broker process; stop that one, "
                    "or choose another --data directory"
                )

    def write_meta(self, cluster_id: str, broker_id: int, directory_id: Callable[[str], str]) -> None:
        """Write ``meta.properties``, which names the owner, into each new directory.

        ``directory_id`` returns the id of a directory that has none in this file, by its path.
        """
        for directory in self.usable_dirs():
            try:
                write_meta(self._disk, directory, cluster_id, broker_id, directory_id)
            except OSError as error:
                self.set_unusable(directory, error)

    def load(self, specs: Mapping[TopicPartition, PartitionSpec]) -> None:
        """Open or create the logs of all partitions in ``specs``.

        What shows that logs were lost stays as it is: a start that is interrupted before the metadata store knows of
        them must find the same again. `begin_writing` changes it.
        """
        dir_of_duplicate = self._choose_duplicates(specs)
        missing: list[Missing] = []
        for directory in self.usable_dirs():
            try:
                missing += self._load_directory(directory, specs, dir_of_duplicate)
            except OSError as error:
                self.set_unusable(directory, error)
            # A directory that failed meanwhile has the offsets of all its logs, and only some of these are open.
            directory.keep_high_watermarks_of_logs()
        for each in missing:
            # It is in another directory if a start that set the folder aside was interrupted.
            if each.directory.offline or each.name in self.logs or (spec := specs.get(each.name)) is None:
                continue
            try:
                self._open_lost(each, spec)
            except OSError as error:
                self.set_unusable(each.directory, error)
        unusable = next((each for each in self.dirs if each.offline), None)
        for name, spec in specs.items():
            if name in self.logs:
                continue
            if unusable is None:
                self._create(spec)
                self.created.add(name)
            else:
                absent = self._add(unusable, empty_log(self._disk, os.path.join(unusable.path, str(name)), spec))
                absent.failure, self._topic_ids[name] = unusable.failure, spec.topic_id

    def _load_directory(
        self,
        directory: LogDir,
        specs: Mapping[TopicPartition, PartitionSpec],
        dir_of_duplicate: Mapping[TopicPartition, str],
    ) -> list[Missing]:
        """Open the logs of a directory. Return those whose folders are missing although they had synced records."""
        path, found = directory.path, read_directory(self._disk, directory, self.checkpoints)
        self.was_clean &= found.clean is not None or not any(map(partition_of, found.folders))
        for folder in found.folders:
            name = partition_of(folder)
            if folder.endswith((DELETED, FUTURE)):
                self._remove_folder(os.path.join(path, folder))
            elif folder.endswith(NEW):  # at once: the folder of the same log may soon get this name again
                self._disk.remove_tree(os.path.join(path, folder))
            elif name is not None and dir_of_duplicate.get(name, path) != path:
                set_aside(self._disk, path, folder, "moved")
            elif name is not None and (spec := specs.get(name)) is not None:
                self._open(directory, spec, found.clean_stop_of(folder), found.offsets_of(name))
            elif name is not None:
                if found.cleaner_offsets is not None and name in found.cleaner_offsets:
                    directory.cleaner_offsets[name] = found.cleaner_offsets[name]
                log.warning("ignoring the folder of an unknown partition path=%s", os.path.join(path, folder))
        if found.cleaner_offsets is not None:
            # Remove the entries of deleted and truncated logs, because they are wrong for later batches.
            self.checkpoints.write_cleaner_offsets(directory)
        return found.missing(self._disk, specs)

    def begin_writing(self) -> None:
        """Prepare for appends, when the metadata store knows which of the loaded logs are lost. Raise OSError."""
        for directory in self.usable_dirs():
            try:
                # Logs may lack records that had been synced. What they copy in their place is not synced yet.
                opened = (each for each in directory.logs.values() if each.failure is None)
                self.checkpoints.lower(directory, ((each, each.log_end_offset, None) for each in opened))
                # From here on the next start must treat a crash as a crash.
                self._disk.remove(os.path.join(directory.path, CLEAN_STOP))
                self._disk.fsync_dir(directory.path)
            except OSError as error:
                self.set_unusable(directory, error)
        for name in sorted(self.created):
            if self.logs[name].failure is None:
                self._make_folder_early(self.logs[name])

    def _choose_duplicates(self, specs: Mapping[TopicPartition, PartitionSpec]) -> dict[TopicPartition, str]:
        """Return the directory to use for each log that has folders in several."""
        found: dict[TopicPartition, list[LogDir]] = {}
        for directory in self.usable_dirs() if len(self.dirs) > 1 else ():
            try:
                folders = self._disk.listdir(directory.path)
            except OSError as error:
                self.set_unusable(directory, error)
                continue
            for folder in folders:
                if (name := partition_of(folder)) is not None and name in specs:
                    found.setdefault(name, []).append(directory)
        several = {name: directories for name, directories in found.items() if len(directories) > 1}
        return choose_duplicates(self._disk, specs, several)

    def _open(
        self, directory: LogDir, spec: PartitionSpec, clean: CleanStop | None, offsets: CheckpointedOffsets
    ) -> None:
        self._topic_ids[spec.name] = spec.topic_id
        opened = open_folder(self._disk, directory, spec, clean, offsets)
        if opened.is_lost:
            self.lost.add(spec.name)
        if opened.log is not None:
            self._add(directory, opened.log)

    def _open_lost(self, missing: Missing, spec: PartitionSpec) -> None:
        """Open a log whose folder was lost: its topic exists, so the broker did not delete it.

        The checkpoints stay: a start that is interrupted now must find the same again.
        """
        directory, name = missing.directory, missing.name
        for offsets in (directory.cleaner_offsets, directory.high_watermarks):
            offsets.pop(name, None)
        make_folder(self._disk, os.path.join(directory.path, str(name)), spec)
        no_offsets = CheckpointedOffsets(
            recovery_point=missing.recovery_point, start=None, high_watermark=None, cleaner=0
        )  # fmt: skip
        self._open(directory, spec, missing.clean, no_offsets)

    def _add(self, directory: LogDir, opened: Log) -> Log:
        opened.on_roll = self._segment_jobs.sync_sealed
        opened.lower_checkpoints = self.lower_checkpoints
        opened.on_gap = self._note_gap
        directory.logs[opened.name] = opened
        self.logs[opened.name] = opened
        return opened

    # -- create and delete partitions -----------------------------------------------------------------------------

    def log_of(self, spec: PartitionSpec) -> Log:
        """Return the log of a partition, or create it. Raise OSError, CreationDeferred.

        Delete the log of an earlier topic with this name: that topic was deleted after `load` had opened its logs.
        """
        found = self.logs.get(spec.name)
        if found is not None and (topic_id := self._topic_ids[spec.name]) != spec.topic_id:
            self.delete(spec.name, topic_id.hex())
            found = None
        return found or self.create(spec)

    def create(self, spec: PartitionSpec) -> Log:
        """Create an empty log in its preferred directory, or in the one with the fewest logs, and return it.

        Raise OSError if no directory is online. Raise CreationDeferred if a later start could take an older folder for
        this log: try again.
        """
        if len(self.dirs) > 1:
            self._set_folders_aside(str(spec.name))
            unrecorded = self.unrecorded_dirs() if self.records_failures else ()
            if unrecorded and self.usable_dirs():
                raise CreationDeferred(f"{unrecorded[0].path} is offline, and the metadata store does not know it yet")
            if (spec.name, spec.topic_id) in self._removed:
                raise CreationDeferred("its earlier log is being deleted")
        made = self._create(spec)
        self._make_folder_early(made)
        return made

    def unrecorded_dirs(self) -> list[LogDir]:
        """Return the directories that are offline, and of which the metadata store does not know it."""
        return [each for each in self.dirs if each.offline and not each.is_recorded]

    def _set_folders_aside(self, folder: str) -> None:
        """Set aside the folders that stayed when their partition was moved to others while this broker did not run."""
        for directory in self.usable_dirs():
            try:
                if self._disk.exists(os.path.join(directory.path, folder)):
                    set_aside(self._disk, directory.path, folder, "earlier")
            except OSError as error:
                if error.errno in NO_ROOM or error.errno in NO_DESCRIPTORS:
                    raise CreationDeferred(f"an earlier folder cannot be renamed: {error}") from None
                self.on_dir_failed(directory, error)

    def _make_folder_early(self, made: Log) -> None:
        """Create the folder of a new log before its first append if there are several directories, or were earlier.

        A log without a folder was then in a directory that is missing.
        """
        if len(self.dirs) > 1 or self.has_absent_dirs:
            try:
                made.make_folder_if_new()
            except OSError as error:
                log.warning(
                    "folder cannot be created before the first append path=%s error=%s", made.directory, error
                )  # fmt: skip

    def _create(self, spec: PartitionSpec) -> Log:
        usable = self.usable_dirs()
        if not usable:
            raise OSError("no log directory is online")
        preferred = self._preferred.pop(spec.name, None)
        directory = preferred if preferred in usable else min(usable, key=lambda d: len(d.logs))
        folder = os.path.join(directory.path, str(spec.name))
        made = empty_log(self._disk, folder, spec)
        made.make_folder = partial(self._make_folder, directory, spec)
        self._topic_ids[spec.name] = spec.topic_id
        return self._add(directory, made)

    def _make_folder(self, directory: LogDir, spec: PartitionSpec) -> None:
        folder = os.path.join(directory.path, str(spec.name))
        if self._disk.exists(folder) and any(not name.startswith(METADATA) for name in self._disk.listdir(folder)):
            # An earlier topic with this name was deleted, or lost from the metadata, while the disk was offline.
            set_aside(self._disk, directory.path, str(spec.name), "earlier")
        directory.cleaner_offsets.pop(spec.name, None)
        directory.high_watermarks.pop(spec.name, None)
        if spec.name in directory.checkpointed:
            # Remove the offsets of an earlier topic with this name: recovery would apply them to the new one.
            self.checkpoints.write_offsets(directory, sync=True)
        make_folder(self._disk, folder, spec)

    def delete(self, name: TopicPartition, unique: str) -> None:
        """Remove the log from the store and rename its folder. A thread deletes the files.

        The files of an offline directory stay.
        """
        removed = self.logs.get(name)
        if removed is None:
            return
        topic_id, directory = self._topic_ids[name], self.dir_of(removed)
        self.release(name)
        directory.cleaner_offsets.pop(name, None)
        if removed.make_folder is not None or directory.offline:
            return
        target = os.path.join(directory.path, derived_name(str(name), unique, DELETED))
        self._disk.rename(removed.directory, target)
        self._removed.add((name, topic_id))
        self._remove_folder(target, partial(self._removed_synced, directory, (name, topic_id)))

    def release(self, name: TopicPartition) -> None:
        """Remove the log from the store. Its folder stays, as that of a partition which a start does not know."""
        removed = self.logs.pop(name)
        directory = self.dir_of(removed)
        cleaner_offset = directory.cleaner_offsets.get(name)
        directory.forget(name)
        if cleaner_offset is not None:
            directory.cleaner_offsets[name] = cleaner_offset
        del self._topic_ids[name]
        abandon_files(removed)

    def _removed_synced(self, directory: LogDir, removed: tuple[TopicPartition, bytes], error: OSError | None) -> None:
        self._removed.discard(removed)
        if error is not None:  # the folder may come back, so the directory must not count as that of the last run
            self.on_dir_failed(directory, error)

    def check_invariants(self, served: Mapping[TopicPartition, Log]) -> None:
        """Raise AssertionError if the logs are not those that are served, or a directory knows another one."""
        assert self.logs == served, "logs"
        assert self._topic_ids.keys() == served.keys(), "_topic_ids"
        assert sum(len(directory.logs) for directory in self.dirs) == len(served), "logs of directories"
        for directory in self.dirs:
            assert directory.logs.items() <= served.items(), "logs of a directory"
            known = {*directory.unreadable, *directory.high_watermarks}
            assert known <= directory.logs.keys(), "offsets of a directory"

    def topic_id_of(self, name: TopicPartition) -> bytes | None:
        """Return the id of the topic whose log this is, None if there is none."""
        return self._topic_ids.get(name)

    def prefer(self, name: TopicPartition, directory: LogDir) -> None:
        """Create the log of this partition in ``directory``, if it is created before the broker stops."""
        if len(self._preferred) >= _PREFERRED_MAX:
            del self._preferred[next(iter(self._preferred))]
        self._preferred[name] = directory

    def dir_at(self, path: str) -> LogDir | None:
        """Return the log directory with this absolute path, None if there is none."""
        return next((each for each in self.dirs if self.absolute_path(each) == path), None)

    def absolute_path(self, directory: LogDir) -> str:
        return os.path.abspath(directory.path)

    def dir_of(self, of: Log) -> LogDir:
        """Return the log directory that contains the log's folder."""
        parent = os.path.dirname(of.directory)
        return next(directory for directory in self.dirs if directory.path == parent)

    def create_future(self, current: Log, directory: LogDir, topic_id: bytes, unique: str) -> FutureLog:
        """Return an empty copy of a log in another directory. Raise OSError if its folder cannot be created."""
        folder = derived_name(str(current.name), unique, FUTURE)
        return FutureLog(current, os.path.join(directory.path, folder), topic_id)

    def remove_future(self, future: FutureLog) -> None:
        """Delete a copy that is not needed any more. A thread deletes the files."""
        abandon_files(future.log)
        self._remove_folder(future.log.directory)

    def replace(self, future: FutureLog, unique: str, high_watermark: int) -> Log:
        """Let a copy that has all batches take the place of its log, and return it. A thread deletes the log.

        Raise OSError if that fails. If the copy has got its name by then, ``failure`` of the log is set: a start may
        find both, so nothing may be appended to the log any more.
        """
        current, copy, name = future.current, future.log, future.log.name
        source, target = self.dir_of(current), self.dir_of(copy)
        path = os.path.join(target.path, str(name))
        removed = os.path.join(source.path, derived_name(str(name), unique, DELETED))
        future.take_over_state()
        # Recovery must find the offsets of the log when it finds the log.
        target.logs[name] = copy
        target.high_watermarks[name] = min(high_watermark, copy.log_end_offset)
        if copy.first_dirty_offset:
            target.cleaner_offsets[name] = copy.first_dirty_offset
        try:
            self.checkpoints.write_offsets(target, sync=True)
            if self._disk.exists(path):
                set_aside(self._disk, target.path, str(name), "earlier")
            self._disk.rename(copy.directory, path)
        except OSError:
            target.forget(name)
            raise
        try:
            self._disk.fsync_dir(target.path)
            if current.make_folder is None:
                self._disk.rename(current.directory, removed)
            # Only now is the log deleted, also after a power failure. Nothing was appended since the copy was complete.
            self._disk.fsync_dir(source.path)
        except OSError as error:
            target.forget(name)
            current.failure = f"the log was moved to {path} in part: {error}"
            raise
        future.rename_to(path)
        source.forget(name)
        abandon_files(current)
        if current.make_folder is None:
            self._remove_folder(removed)
        return self._add(target, copy)

    def _remove_folder(self, path: str, synced: Callable[[OSError | None], None] = lambda _: None) -> None:
        """Delete a renamed folder in a thread. ``synced`` is called when its new name is synced, or cannot be."""

        def done(error: OSError | None) -> None:
            synced(error)
            _report(error, "sync the directory of", path)
            if error is None:
                self._threads.submit(
                    partial(self._disk.remove_tree, path), lambda error: _report(error, "remove folder", path)
                )

        # Sync the new name first: a power failure must not bring back the old one without some of the files.
        self._threads.submit(partial(self._disk.fsync_dir, os.path.dirname(path)), done)

    # -- drop segments --------------------------------------------------------------------------------------------

    def advance_log_start(self, of: Log, offset: int) -> None:
        """Advance the log start offset. A thread syncs it, another deletes the files of the segments before it."""
        dropped = of.advance_log_start(offset)
        if of.log_start_offset > of.synced_start_offset:
            self.checkpoints.sync_starts(self.dir_of(of))
        if dropped:
            self._segment_jobs.delete_dropped(of, dropped)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int], *, sync: bool) -> None:
        """Write the recovery points, log start offsets and high watermarks of every online directory.

        A directory that cannot be written is reported, and the others are written.
        """
        for directory in self.usable_dirs():
            try:
                self.checkpoints.write(directory, high_watermarks, sync=sync)
                if any(each.log_start_offset > each.synced_start_offset for each in directory.logs.values()):
                    self.checkpoints.sync_starts(directory)  # the last attempt failed because the disk was full
            except OSError as error:
                log.error("checkpoints could not be written path=%s error=%s", directory.path, error)

    def lower_checkpoints(self, truncations: Sequence[Truncation]) -> None:
        """Sync checkpoints that hold no offset after the new ends of these logs, except new log start offsets.

        Raise WriteFailed. Truncations need this before they remove batches. Recovery would otherwise take the removed
        batches for lost ones and fill their offsets. Each directory is written once, whatever the number of its logs.
        """
        ends: dict[LogDir, list[tuple[Log, int, int | None]]] = {}
        for each in truncations:
            ends.setdefault(self.dir_of(each.log), []).append((each.log, each.end_offset, each.log_start_offset))
        for directory, of_directory in ends.items():
            self.checkpoints.lower(directory, of_directory)

    def _note_gap(self, of: Log, offset: int) -> None:
        """Sync the fact that the log has gaps: its leader has compacted it below ``offset``."""
        directory = self.dir_of(of)
        self.checkpoints.note_cleaned(directory, of, offset)
        self.checkpoints.write_cleaner_offsets(directory)

    # -- stop -----------------------------------------------------------------------------------------------------

    def close(self, high_watermarks: Mapping[TopicPartition, int]) -> bool:
        """Stop cleanly: flush all logs, then write the checkpoints, then the clean stop file, then unlock.

        Return whether all directories could be written.
        """
        write_checkpoints = partial(self.checkpoints.write, high_watermarks=high_watermarks, sync=True)
        is_clean = stop_cleanly(self._disk, self.usable_dirs(), self._threads, write_checkpoints)
        self.unlock()
        return is_clean

    def unlock(self) -> None:
        """Release the locks of the directories."""
        for directory in self.dirs:
            if directory.lock_fd is not None:
                self._disk.close(directory.lock_fd)
                directory.lock_fd = None


def _report(error: OSError | None, what: str, path: str) -> None:
    if error is not None:
        log.error("could not %s path=%s error=%s", what, path, error)
