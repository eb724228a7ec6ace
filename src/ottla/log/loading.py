"""The start: what a log directory contains, and how the log in a folder is opened.

A log that cannot be read is offline, and ``Log.failure`` holds the reason. Its files are not changed, and the
checkpoints keep its offsets, so that the next start can open it if the disk is healthy again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.env.disk import NO_DESCRIPTORS, Disk, WriteFailed
from ottla.log.checkpoints import CleanStop, read_clean_stop, read_offsets, read_topic_ids
from ottla.log.dir_checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS, START_OFFSETS, DirCheckpoints
from ottla.log.directories import CheckpointedOffsets, DirContent, LogDir, Missing
from ottla.log.epochs import LeaderEpochs
from ottla.log.folders import Owner, PartitionSpec, check_topic_id, complete_topic_id, partition_of
from ottla.log.log import Log
from ottla.log.recovery import open_log
from ottla.log.segment import Segment
from ottla.model.types import TopicPartition, topic_id_text

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDir:
    """The folders of a directory and the offsets in its checkpoints."""

    directory: LogDir
    #: in the order of the listing
    folders: dict[str, None]
    #: None if the last stop was not clean
    clean: dict[str, CleanStop] | None
    recovery_points: dict[TopicPartition, int]
    start_offsets: dict[TopicPartition, int]
    #: None if the file cannot be read
    cleaner_offsets: dict[TopicPartition, int] | None

    def clean_stop_of(self, folder: str) -> CleanStop | None:
        return (self.clean or {}).get(folder)

    def offsets_of(self, name: TopicPartition) -> CheckpointedOffsets:
        cleaner = self.cleaner_offsets
        return CheckpointedOffsets(
            recovery_point=self.recovery_points.get(name),
            start=self.start_offsets.get(name),
            high_watermark=self.directory.high_watermarks.get(name),
            cleaner=None if cleaner is None else cleaner.get(name, 0),
        )

    def missing(self, disk: Disk, specs: Mapping[TopicPartition, PartitionSpec]) -> list[Missing]:
        """Return the logs whose folders are missing although they had synced records.

        A folder that was set aside is not lost: its batches are not those of the partition.
        """
        directory = self.directory
        if self.clean is not None:
            names = ((partition_of(folder), end) for folder, end in self.clean.items() if folder not in self.folders)
            return [Missing(directory, name, end) for name, end in names if name is not None]
        return [
            Missing(directory, name, None, self.recovery_points[name])
            for name, topic_id in read_topic_ids(disk, directory.path).items()
            if self.recovery_points.get(name) and str(name) not in self.folders
            and directory.content is DirContent.CURRENT
            and name in specs and topic_id_text(specs[name].topic_id) == topic_id
        ]  # fmt: skip


def read_directory(disk: Disk, directory: LogDir, checkpoints: DirCheckpoints) -> FoundDir:
    """Return the contents of a directory, and note its checkpoints there. Raise OSError."""
    path = directory.path
    for file in disk.listdir(path):
        if file.endswith(".tmp"):
            # If a checkpoint were written to this file again, a power failure could keep its new name and bring back
            # its old content.
            disk.remove(os.path.join(path, file))
    clean = read_clean_stop(disk, path)
    directory.has_clean_stop, directory.clean_folders = clean is not None, frozenset(clean or ())
    recovery_points = read_offsets(disk, path, RECOVERY_POINTS)
    start_offsets = read_offsets(disk, path, START_OFFSETS)
    directory.known_names = {*recovery_points, *filter(None, map(partition_of, clean or ()))}
    cleaner_offsets = checkpoints.load_cleaner_offsets(directory)
    directory.high_watermarks = read_offsets(disk, path, HIGH_WATERMARKS)
    for offsets in (recovery_points, start_offsets, directory.high_watermarks):
        directory.note_checkpointed(offsets)
    return FoundDir(
        directory=directory,
        folders=dict.fromkeys(disk.listdir(path)),
        clean=clean,
        recovery_points=recovery_points,
        start_offsets=start_offsets,
        cleaner_offsets=cleaner_offsets,
    )


class OpenedFolder(NamedTuple):
    """The result of ``open_folder``."""

    #: None if the folder was set aside, because it is not that of the topic
    log: Log | None
    #: whether the log may have had records that are not in it
    is_lost: bool = False


def open_folder(
    disk: Disk, directory: LogDir, spec: PartitionSpec, clean: CleanStop | None, offsets: CheckpointedOffsets
) -> OpenedFolder:
    """Open the log of a partition; if it cannot be read, return an offline log. Raise OSError if a write fails.

    Set the folder aside instead if it belongs to an earlier topic with the same name.
    """
    folder = str(spec.name)
    path = os.path.join(directory.path, folder)
    try:
        owner = check_topic_id(disk, directory.path, folder, spec)
        if owner is Owner.NOT_KNOWN:  # the file was damaged, and the log may have had records
            was_empty = clean.log_end_offset == 0 if clean is not None else not directory.has_clean_stop
            return OpenedFolder(None, is_lost=bool(offsets.recovery_point) or not was_empty)
        if owner is Owner.EARLIER_TOPIC:
            return OpenedFolder(None)
        opened = open_log(
            disk, path, spec.name, spec.settings, clean=clean, recovery_point=offsets.recovery_point or 0,
            log_start_offset=offsets.start or 0, cleaner_offset=offsets.cleaner,
            high_watermark=offsets.high_watermark or 0, replicated=spec.replicated,
        )  # fmt: skip
    except OSError as error:
        if isinstance(error, WriteFailed) or error.errno in NO_DESCRIPTORS:
            raise
        log.critical("log cannot be read, its partition is offline partition=%s error=%s", spec.name, error)
        opened = empty_log(disk, path, spec)
        opened.failure = str(error)
        directory.unreadable[spec.name] = offsets
        if offsets.cleaner:
            directory.cleaner_offsets[spec.name] = offsets.cleaner
        return OpenedFolder(opened)
    if owner is Owner.ASSUMED:
        complete_topic_id(disk, path, spec.topic_id)
    if opened.first_dirty_offset:
        directory.cleaner_offsets[spec.name] = opened.first_dirty_offset
    return OpenedFolder(opened)


def empty_log(disk: Disk, folder: str, spec: PartitionSpec) -> Log:
    """Return the log of a partition without batches."""
    return Log(
        disk=disk, directory=folder, name=spec.name, settings=spec.settings, segments=[Segment(disk, folder, 0)],
        log_start_offset=0, log_end_offset=0, epochs=LeaderEpochs(), producers=None,
    )  # fmt: skip
