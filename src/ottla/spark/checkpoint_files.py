"""Spark's checkpoint on a local disk: survive a power failure.

Spark writes its checkpoint without syncing it. After a power failure the last files can be missing, empty or cut off.
What an output has committed must not be forgotten by the checkpoint, or the next run would read and write it again:

- before the first output of a batch is written, the offsets of the batch are synced, and for the first batch also the
  file `metadata`, which holds the id of the query (``sync_plan``);
- before Spark records that a batch is complete, everything else is synced, such as the state of its operators
  (``sync``).

Files that were not synced can then be incomplete only at the end of a log. ``repair`` deletes them before a query
starts, because Spark would refuse to start. A batch whose offsets are deleted has not been written to any output. A
batch whose completion is deleted is repeated, and its outputs skip it.

``repair`` also deletes the state that a batch has written which is repeated. Spark writes it again, but leaves a file
that exists as it is, even if it is empty, and fails only when a later run reads it.

Spark uploads snapshots of the RocksDB state in a thread of their own, so a batch can be complete before its snapshot
is synced. A snapshot is a zip file that lists SST files beside it, with their sizes. ``repair`` deletes a snapshot
that lists a file which is missing or has another size. Spark then loads the snapshot before it, and the changelogs
that follow. Spark skips such a snapshot, too, but keeps it, and later deletes what is older because of it.

Other file systems, such as HDFS and object stores, make complete files durable when they are closed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyarrow import fs

from ottla.spark.source_offsets import batch_ids
from ottla.spark.stored_files import open_filesystem, sync_files

log = logging.getLogger("ottla.spark")

_LOGS = ("offsets", "commits")
#: the last files of a log that may be incomplete
_CHECKED = 3
#: the time of a file can be older than its last write by one step of the kernel's clock, 10 ms at most
_CLOCK_STEP_NS = 20_000_000
_OWN = ("ottla-staging", "ottla-manifests")
#: files with the state of one version, with or without an id of the attempt; a batch reads the version of its own
#: number and writes the next one
_STATE_FILE = re.compile(r"(\d+)(_[\w-]+)?\.(changelog|zip|delta|snapshot)$")
#: the only version of the file list of a RocksDB snapshot that is known here
_SNAPSHOT_VERSION = "v1"
#: lists of files in that document: the field with the name of a file, and the folder beside the snapshot
_SNAPSHOT_FILES = {"sstFiles": ("dfsSstFileName", "SSTs"), "logFiles": ("dfsLogFileName", "logs")}


class CheckpointFiles:
    """The checkpoint of one query. Does nothing if it is not on a local disk."""

    def __init__(self, checkpoint_location: str) -> None:
        filesystem, path = open_filesystem(checkpoint_location)
        self._path = path if isinstance(filesystem, fs.LocalFileSystem) else None
        self._synced_ns = 0

    def sync_plan(self, batch_id: int) -> None:
        """Sync the planned offsets of a batch, which Spark has just written."""
        if self._path is None:
            return
        if not self._synced_ns:
            self.sync()
            return
        plan = os.path.join(self._path, "offsets", str(batch_id))
        sync_files([plan, checksum_file(plan)])

    @property
    def has_state(self) -> bool:
        """Whether the query has operators with state on a local disk."""
        return self._path is not None and os.path.isdir(os.path.join(self._path, "state"))

    def sync(self) -> None:
        """Sync all files that were created or changed since the last call."""
        if self._path is None:
            return
        started_ns = time.time_ns()
        newest_ns = self._synced_ns
        changed = []
        for directory, files in _walk(self._path, self._synced_ns):
            newest_ns = max(newest_ns, os.stat(directory).st_mtime_ns)
            changed += files
        sync_files(changed)
        # Spark uploads snapshots meanwhile, also to directories that were listed already. What may have been written
        # since the start, or in the same step of the file system's clock as the newest file, is synced the next time.
        self._synced_ns = max(min(newest_ns - 1, started_ns - _CLOCK_STEP_NS), 1)

    def repair(self) -> list[str]:
        """Delete incomplete files at the end of the logs, so that Spark can start. Return their paths."""
        if self._path is None:
            return []
        deleted = [path for name in _LOGS for path in _incomplete_entries(os.path.join(self._path, name))]
        metadata = os.path.join(self._path, "metadata")
        if not _is_json(metadata) and not batch_ids(os.path.join(self._path, "offsets")):
            deleted.append(metadata)
        for directory, _, files in os.walk(os.path.join(self._path, "state")):
            snapshots = (os.path.join(directory, name) for name in files if name.endswith(".zip"))
            deleted += [path for path in snapshots if not _is_snapshot(path)]
        deleted = [path for path in deleted if os.path.exists(path)]
        for path in deleted:
            log.warning("deleting a file of the checkpoint that a power failure left incomplete path=%s", path)
            _delete(path)
        deleted += self.delete_repeated_state()
        for path in (*deleted, *self._checked_entries()):
            # A checksum file can be older or newer than its file. Spark reads a file without one.
            _delete(checksum_file(path))
        return deleted

    def delete_repeated_state(self) -> list[str]:
        """Delete the state that was written by a batch which is planned and not complete. Return the paths."""
        repeated = list(self._state_to_be_repeated()) if self._path is not None else []
        for path in repeated:
            _delete(path)
            _delete(checksum_file(path))
        return repeated

    def _state_to_be_repeated(self) -> Iterator[str]:
        """Yield the files with state that is newer than what the next batch reads."""
        assert self._path is not None
        offsets, commits = (batch_ids(os.path.join(self._path, name)) for name in _LOGS)
        # The last planned batch is repeated unless it is complete.
        read = 0 if not offsets else offsets[-1] + (offsets[-1] in commits)
        for directory, _, files in os.walk(os.path.join(self._path, "state")):
            versions = ((name, _STATE_FILE.match(name)) for name in files)
            yield from (os.path.join(directory, name) for name, found in versions if found and int(found[1]) > read)

    def _checked_entries(self) -> Iterator[str]:
        assert self._path is not None
        for name in _LOGS:
            directory = os.path.join(self._path, name)
            yield from (os.path.join(directory, str(number)) for number in batch_ids(directory)[-_CHECKED:])
        yield os.path.join(self._path, "metadata")


#: of the process that commits: by checkpoint, its files and the last batch with which they were synced
_synced: dict[str, tuple[CheckpointFiles, int]] = {}


@contextmanager
def synced_checkpoint(checkpoint_location: str, batch_id: int) -> Iterator[None]:
    """Sync the plan of a batch before the block writes the batch, and the state of its operators after it.

    Batches without rows write nothing, so that the offsets of several batches can be due. A query without state needs
    no second sync: a batch whose completion is lost is repeated, and skipped by its sink.
    """
    files, last = _synced.get(checkpoint_location) or (CheckpointFiles(checkpoint_location), None)
    if last is not None and batch_id == last + 1:
        files.sync_plan(batch_id)
    else:
        files.sync()
    yield
    if files.has_state:
        files.sync()
    _synced[checkpoint_location] = files, batch_id


def _delete(path: str) -> None:
    """Delete a file. Spark may have deleted it meanwhile, because it deletes old state after a query has stopped."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def checksum_file(path: str) -> str:
    """Return the path of the checksum that Hadoop's local file system keeps beside a file."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.crc")


def _walk(path: str, since_ns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield every directory that was changed since ``since_ns``, with its files that were changed since then."""
    with suppress(FileNotFoundError), os.scandir(path) as entries:
        files = []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _OWN:
                    yield from _walk(entry.path, since_ns)
            elif entry.stat(follow_symlinks=False).st_mtime_ns >= since_ns:
                files.append(entry.path)
        if files or os.stat(path).st_mtime_ns >= since_ns:
            yield path, files


def _incomplete_entries(directory: str) -> list[str]:
    numbers = batch_ids(directory)[-_CHECKED:]
    return [path for number in numbers if not _is_entry(path := os.path.join(directory, str(number)))]


def _is_entry(path: str) -> bool:
    """Return whether a file of a log is complete: a version, then lines that are JSON or ``-`` for no offset."""
    try:
        with open(path, encoding="utf-8") as file:
            version, *lines = file.read().split("\n")
        if not version.startswith("v") or not version[1:].isdecimal() or not lines:
            return False
        for line in lines:
            if line != "-":
                json.loads(line)
    except (ValueError, OSError):
        return False
    return True


def _is_json(path: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            json.load(file)
    except (ValueError, OSError):
        return False
    return True


def _is_snapshot(path: str) -> bool:
    """Return whether a snapshot of RocksDB is complete: a zip file, and all files that it lists, in their full size."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Snapshots of a format that is not known here are left to Spark.
            if "metadata" not in archive.namelist():
                return True
            version, _, document = archive.read("metadata").decode().partition("\n")
        if version != _SNAPSHOT_VERSION:
            return True
        listed = json.loads(document)
        return all(
            os.path.getsize(os.path.join(os.path.dirname(path), folder, file[name])) == file["sizeBytes"]
            for field, (name, folder) in _SNAPSHOT_FILES.items()
            for file in listed.get(field) or ()
        )
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error):
        return False
