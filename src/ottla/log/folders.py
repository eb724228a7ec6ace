"""The folder of a partition, and the topic id in its file ``partition.metadata``.

A topic that was deleted and created again has the same name and may have the same leader epochs, so only the topic id
tells whose batches a folder contains. `make_folder` writes the id before the folder gets the name of its partition, so
a killed process leaves no folder without an id. The first sync of the log syncs the id (`Segment.sync`): a log with
synced batches has a durable id. A folder without a complete id therefore is what a power failure left of batches that
were never synced, or its file was damaged or removed later.
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from enum import Enum
from itertools import chain, count

from ottla.env.disk import NO_ROOM, Disk, WriteFailed, read_derived_file
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition, topic_id_text

log = logging.getLogger(__name__)

METADATA = "partition.metadata"
#: the longest name that Linux file systems accept; the names of topics are ASCII
_NAME_BYTES_MAX = 255
#: end of the name of a folder that is kept, but not used
STRAY = "-stray"
#: end of the name of a folder whose partition was deleted; a start deletes such folders
DELETED = "-delete"
#: end of the name of a folder into which a log is copied; a start deletes such folders
FUTURE = "-future"
#: end of the name of a folder that is being made; a start deletes such folders
NEW = "-new"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """A partition of which this broker has a replica, as described by the cluster metadata."""

    name: TopicPartition
    topic_id: bytes
    settings: TopicSettings
    #: whether other brokers have replicas, from which lost records can be fetched
    replicated: bool = False
    #: if the metadata say that the log of this broker is lost or offline: a number of the last run that had it
    last_run: int | None = None


def partition_of(folder: str) -> TopicPartition | None:
    """Return the partition to which a folder with this name belongs; None if the name is no partition's."""
    match = re.fullmatch(r"(.+)-(0|[1-9][0-9]*)", folder)
    return TopicPartition(match[1], int(match[2])) if match else None


def derived_name(folder: str, word: str, suffix: str) -> str:
    """Return a name that contains the folder's name, for example ``orders-0.5f1c-delete``.

    The topic is cut short if the name would be too long for the file system. ``word`` must make the name unique.
    """
    topic, _, partition = folder.rpartition("-")
    rest = f"-{partition}.{word}{suffix}"
    return topic[: _NAME_BYTES_MAX - len(rest)] + rest


def topic_id_in(metadata: bytes | None) -> str | None:
    """Return the topic id in the content of ``partition.metadata``; None if it has no complete one."""
    found = re.search(rb"^topic_id: ([\w-]{22})$", metadata or b"", re.MULTILINE)
    return found[1].decode() if found else None


def write_topic_id(disk: Disk, path: str, topic_id: bytes, *, sync: bool) -> None:
    """Write the topic id into the folder ``path``. Raise WriteFailed."""
    content = f"version: 0\ntopic_id: {topic_id_text(topic_id)}"
    disk.write_file(os.path.join(path, METADATA), content.encode(), sync=sync)


def make_folder(disk: Disk, path: str, spec: PartitionSpec) -> None:
    """Create the folder ``path`` of a partition, with its topic id. Raise WriteFailed. The caller syncs both."""
    if disk.exists(path):
        write_topic_id(disk, path, spec.topic_id, sync=False)
        return
    new = os.path.join(os.path.dirname(path), f"{spec.topic_id.hex()}-{spec.name.partition}{NEW}")
    disk.makedirs(new)
    write_topic_id(disk, new, spec.topic_id, sync=False)
    disk.rename(new, path)


def sync_file(disk: Disk, path: str) -> None:
    """Sync a file, if it exists. Raise OSError. Runs in a thread."""
    try:
        fd = disk.open(path)
    except FileNotFoundError:
        return
    try:
        disk.fdatasync(fd)
    finally:
        disk.close(fd)


def free_stray_name(disk: Disk, path: str, folder: str, word: str) -> str:
    """Return a path that no folder has yet, for a folder of the log directory ``path`` that is set aside."""
    words = (f"{word}{number}" for number in chain([""], (f"-{n}" for n in count(2))))
    paths = (os.path.join(path, derived_name(folder, each, STRAY)) for each in words)
    return next(each for each in paths if not disk.exists(each))


def complete_topic_id(disk: Disk, path: str, topic_id: bytes) -> None:
    """Write the topic id into a folder without one, so that a later topic with the same name does not use it."""
    try:
        write_topic_id(disk, path, topic_id, sync=True)
    except WriteFailed as error:
        if error.errno not in NO_ROOM:
            raise
        log.warning("topic id cannot be written, the next start tries again path=%s error=%s", path, error)


def set_aside(disk: Disk, path: str, folder: str, word: str) -> None:
    """Rename a folder of a log directory that is not the one of its partition."""
    aside = free_stray_name(disk, path, folder, word)
    log.warning("folder is not the one of its partition, it was renamed path=%s", aside)
    disk.rename(os.path.join(path, folder), aside)
    # Before a new folder gets the name: a power failure must not bring back this one in its place.
    disk.fsync_dir(path)


class Owner(Enum):
    """The topic to which a folder belongs."""

    TOPIC = "the topic with this name"
    #: the folder has no id, and is used because no other replica has the log
    ASSUMED = "probably the topic with this name"
    #: the folder was set aside
    EARLIER_TOPIC = "an earlier topic with this name"
    #: the folder has no id, and was set aside
    NOT_KNOWN = "not known"


def check_topic_id(disk: Disk, path: str, folder: str, spec: PartitionSpec) -> Owner:
    """Return the owner of a folder of the log directory ``path``. Set the folder aside if it is not the topic's.

    Raise OSError if the file of a replicated log cannot be read: the log is then offline.
    """
    file = os.path.join(path, folder, METADATA)
    found = topic_id_in(disk.read_file(file) if spec.replicated else read_derived_file(disk, file))
    if found == topic_id_text(spec.topic_id):
        return Owner.TOPIC
    if found is not None:
        set_aside(disk, path, folder, found)
        return Owner.EARLIER_TOPIC
    if spec.replicated:
        set_aside(disk, path, folder, "unidentified")
        log.error(
            "folder without a complete topic id is not used, the log is copied from other replicas; if they lack "
            "its records, stop the broker, write the topic id into %s and rename the folder back path=%s", METADATA,
            os.path.dirname(file),
        )  # fmt: skip
        return Owner.NOT_KNOWN
    log.error(
        "folder has no topic id, its log is used because no other replica has it; if the topic was deleted and "
        "created again, stop the broker and move the folder away path=%s", os.path.dirname(file),
    )  # fmt: skip
    return Owner.ASSUMED
