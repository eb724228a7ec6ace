"""The contents of the checkpoints of a log directory: offsets by partition, and the clean stop file."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from crc32c import crc32c

from ottla.env.disk import Disk, read_derived_file
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

CLEAN_STOP = ".kafka_cleanshutdown"
TOPIC_IDS = "recovery-point-topic-ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStop:
    """The entry of one log in the clean stop file."""

    log_end_offset: int
    active_base_offset: int
    active_size_bytes: int
    #: size of all segments before the active one; None if an earlier version wrote the file
    sealed_bytes: int | None = None


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the content of a checkpoint with these offsets."""
    lines = ["0", str(len(offsets)), *(f"{name.topic} {name.partition} {o}" for name, o in offsets.items())]
    return ("\n".join(lines) + "\n").encode()


def parse_offsets(data: bytes | None) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint. Raise ValueError or IndexError if it is damaged."""
    return {name: int(offset) for name, offset in _parse_rows(data)}


def _parse_rows(data: bytes | None) -> list[tuple[TopicPartition, str]]:
    lines = (data or b"0\n0\n").decode().split("\n")
    if lines[0] != "0" or len(lines) != int(lines[1]) + 3 or lines[-1]:
        raise ValueError("the checkpoint is incomplete")
    rows = [line.split() for line in lines[2:-1]]
    return [(TopicPartition(topic, int(partition)), value) for topic, partition, value in rows]


def read_offsets(disk: Disk, path: str, file: str) -> dict[TopicPartition, int]:
    """Return the offsets in a checkpoint of a directory; nothing if it is damaged."""
    try:
        return parse_offsets(disk.read_file(os.path.join(path, file)))
    except (ValueError, IndexError, OSError) as error:
        # Without a recovery point, recovery reads more segments but loses no records.
        log.warning("ignoring a damaged checkpoint path=%s error=%s", os.path.join(path, file), error)
        return {}


def write_topic_ids(disk: Disk, path: str, ids: Mapping[TopicPartition, str], *, sync: bool) -> None:
    """Write the ids of the topics whose logs have recovery points in the checkpoint of a directory. Raise WriteFailed.

    The checkpoint may name the log of an earlier topic with the same name. With the ids, its offset proves that a log
    which is missing had synced records.
    """
    lines = [f"{name.topic} {name.partition} {topic_id}" for name, topic_id in ids.items()]
    content = "\n".join(["0", str(len(lines)), *lines, ""])
    disk.write_file(os.path.join(path, TOPIC_IDS), content.encode(), sync=sync)


def read_topic_ids(disk: Disk, path: str) -> dict[TopicPartition, str]:
    """Return the topic ids that `write_topic_ids` wrote; nothing if the file is damaged or missing."""
    data = read_derived_file(disk, os.path.join(path, TOPIC_IDS))
    try:
        return dict(_parse_rows(data))
    except (ValueError, IndexError):
        log.warning("ignoring a damaged checkpoint path=%s", os.path.join(path, TOPIC_IDS))
        return {}


def read_clean_stop(disk: Disk, path: str) -> dict[str, CleanStop] | None:
    """Return the entries of the clean stop file of a directory by folder; None if the last stop was not clean."""
    data = read_derived_file(disk, os.path.join(path, CLEAN_STOP))
    if data is None:
        return None
    try:
        content = json.loads(data)
        logs = content["logs"]
        if content["logsCrc"] != _checksum_of(logs):
            raise ValueError("the checksum does not match")
        return {
            folder: CleanStop(
                log_end_offset=int(end),
                active_base_offset=int(base),
                active_size_bytes=int(size),
                sealed_bytes=int(sealed[0]) if sealed else None,
            )
            for folder, (end, base, size, *sealed) in logs.items()
        }
    except (ValueError, AttributeError, TypeError, KeyError):
        log.warning("ignoring a damaged clean stop file path=%s", path)
        return None


def write_clean_stop(disk: Disk, path: str, ends: Mapping[str, tuple[int, int, int, int]]) -> None:
    """Write and sync the clean stop file of a directory.

    ``ends`` has the end offset of each log by its folder, base offset and size of its active segment, and the size of
    the others.
    """
    content = _to_json({"version": 0, "brokerEpoch": -1, "logs": ends, "logsCrc": _checksum_of(ends)})
    disk.write_file(os.path.join(path, CLEAN_STOP), content, sync=True)


def _to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _checksum_of(ends: object) -> int:
    """Return the checksum of the clean stop entries, because a wrong end offset would look like lost records."""
    return int(crc32c(_to_json(ends)))
