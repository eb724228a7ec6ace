"""Opening a log's directory, after a clean stop or after none.

Clean: the stop noted where each log ended; names and sizes are trusted and no segment is read.
Not clean: every batch from the recovery point on is read and checked, indexes, producers and epochs are rebuilt from
what is there, and the log is cut at the first byte that does not belong to a whole, undamaged batch. Everything below
the recovery point had been synced, and what was acknowledged was written: neither is ever cut by this.

Leftovers of the last life, ``.deleted``, ``.cleaned`` and ``.tmp``, go; so do producer snapshots that belong to no
segment and are not the newest.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass

from ottla.env.disk import Disk
from ottla.log.epochs import LeaderEpochs
from ottla.log.log import Log, load_snapshot
from ottla.log.producers import Producers
from ottla.log.segment import Segment
from ottla.model.batch import (
    CONTROL,
    CRC_FROM,
    HEADER_BYTES,
    LENGTH_END,
    LENGTH_MIN,
    MAGIC,
    BatchHeader,
    checksum,
    read_header,
)
from ottla.model.settings import TopicSettings
from ottla.model.types import TopicPartition

log = logging.getLogger(__name__)

_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanStop:
    """What a clean stop noted of one log."""

    log_end_offset: int
    active_base_offset: int
    active_size_bytes: int


def open_log(
    disk: Disk, directory: str, name: TopicPartition, settings: TopicSettings, *,
    clean: CleanStop | None, recovery_point: int, log_start_offset: int,
) -> Log:  # fmt: skip
    """Open the log in ``directory``; it may be empty. Raises OSError when the disk does not answer."""
    segments = _list_segments(disk, directory)
    if clean is not None and _fits(segments, clean):
        epochs = _load_epochs(disk, directory)
        end_offset = clean.log_end_offset
        producers = None
        for segment in segments:
            segment.synced_bytes = segment.size_bytes
    else:
        epochs, end_offset, producers = _recover(disk, directory, segments, recovery_point)
    start_offset = max(log_start_offset, segments[0].base_offset if segments else 0)
    if end_offset < start_offset:
        # The start moved beyond everything the files hold (deleted records, lost files): begin anew there.
        for segment in segments:
            segment.delete_files()
        segments, end_offset = [], start_offset
        epochs.truncate_from_end(start_offset)
        producers = Producers()
    if not segments:
        segments = [Segment(disk, directory, end_offset)]
    return Log(
        disk=disk, directory=directory, name=name, settings=settings, segments=segments,
        log_start_offset=start_offset, log_end_offset=end_offset, epochs=epochs, producers=producers,
    )  # fmt: skip


def _list_segments(disk: Disk, directory: str) -> list[Segment]:
    """The segments by name, leftovers of the last life removed."""
    segments, snapshots = [], []
    for name in disk.listdir(directory):
        path = os.path.join(directory, name)
        stem, suffix = os.path.splitext(name)
        if suffix in (".deleted", ".cleaned", ".tmp"):
            disk.remove(path)
        elif suffix == ".log" and stem.isdigit():
            segments.append(Segment(disk, directory, int(stem), disk.file_size(path) or 0))
        elif suffix == ".snapshot" and stem.isdigit():
            snapshots.append(int(stem))
    segments.sort(key=lambda segment: segment.base_offset)
    for offset in set(snapshots) - {segment.base_offset for segment in segments} - {max(snapshots, default=0)}:
        disk.remove(os.path.join(directory, f"{offset:020d}.snapshot"))
    return segments


def _fits(segments: list[Segment], clean: CleanStop) -> bool:
    if not segments:
        return clean.log_end_offset == clean.active_base_offset and clean.active_size_bytes == 0
    active = segments[-1]
    if clean.active_size_bytes == 0 and active.base_offset < clean.active_base_offset:
        # An empty active segment has no file until its first batch.
        segments.append(Segment(active._disk, active.directory, clean.active_base_offset))
        return True
    return active.base_offset == clean.active_base_offset and active.size_bytes == clean.active_size_bytes


def _load_epochs(disk: Disk, directory: str) -> LeaderEpochs:
    data = disk.read_file(os.path.join(directory, "leader-epoch-checkpoint"))
    if not data:
        return LeaderEpochs()
    try:
        return LeaderEpochs.from_text(data.decode("ascii"))
    except (ValueError, IndexError):
        log.warning("leader epochs are damaged and will be rebuilt dir=%s", directory)
        return LeaderEpochs()


def _recover(
    disk: Disk, directory: str, segments: list[Segment], recovery_point: int
) -> tuple[LeaderEpochs, int, Producers]:
    """Read what may be damaged, cut where it is, rebuild what describes it."""
    epochs = _load_epochs(disk, directory)
    first = 0
    while first + 1 < len(segments) and segments[first + 1].base_offset <= recovery_point:
        segments[first].synced_bytes = segments[first].size_bytes
        first += 1
    if not epochs.epochs:
        first = 0
    end_offset = segments[first].base_offset if segments else 0
    producers, replay_from = load_snapshot(disk, directory, recovery_point)
    if replay_from < end_offset:
        first = max((i for i, s in enumerate(segments) if s.base_offset <= replay_from), default=0)
        end_offset = segments[first].base_offset
    for number in range(first, len(segments)):
        segment = segments[number]
        if number > first and segment.base_offset < end_offset:
            damage: str | None = "its first offset is below the end of the segment before it"
            position = 0
        else:
            end_offset, position, damage = _recover_segment(disk, segment, epochs, producers, replay_from)
        if damage is not None:
            log.warning(
                "log cut path=%s position=%d size=%d next_offset=%d reason=%s",
                segment.path(".log"), position, segment.size_bytes, end_offset, damage,
            )  # fmt: skip
            segment.size_bytes = position
            disk.truncate(segment.file.fd, position)
            for later in segments[number + 1 :]:
                log.warning("segment dropped behind the cut path=%s", later.path(".log"))
                later.delete_files()
            del segments[number + 1 :]
            break
    epochs.truncate_from_end(end_offset)
    disk.write_file(os.path.join(directory, "leader-epoch-checkpoint"), epochs.to_text().encode(), sync=False)
    for name in disk.listdir(directory):
        if name.endswith(".snapshot") and int(name.removesuffix(".snapshot")) > end_offset:
            disk.remove(os.path.join(directory, name))
    # What recovery found and keeps may so far be in the page cache only, yet the log will be taken for synced.
    for segment in segments[first:]:
        if segment.size_bytes:
            segment.sync()
            segment.synced_bytes = segment.size_bytes
            segment.write_indexes()
    return epochs, end_offset, producers


def _recover_segment(
    disk: Disk, segment: Segment, epochs: LeaderEpochs, producers: Producers, replay_from: int
) -> tuple[int, int, str | None]:
    """Check one file: the offset behind its last good batch, the position behind it, and what is wrong there."""
    size, segment.size_bytes = segment.size_bytes, 0
    segment.reset_indexes()
    end_offset, position = segment.base_offset, 0
    chunk, chunk_at = b"", 0
    while position < size:
        inner = position - chunk_at
        if inner + HEADER_BYTES > len(chunk):
            chunk, chunk_at, inner = disk.pread(segment.file.fd, _READ_BYTES, position), position, 0
            if len(chunk) < HEADER_BYTES:
                return _damaged(segment, end_offset, size, "less than a batch header is left")
        header = read_header(chunk, inner)
        if header.length < LENGTH_MIN or position + header.size_bytes > size:
            return _damaged(segment, end_offset, size, "the last batch is not whole")
        if inner + header.size_bytes > len(chunk):
            chunk = disk.pread(segment.file.fd, max(_READ_BYTES, header.size_bytes), position)
            chunk_at, inner = position, 0
        damage = _batch_damage(header, memoryview(chunk)[inner : inner + header.size_bytes], end_offset)
        if damage is not None:
            return _damaged(segment, end_offset, size, damage)
        epochs.assign(header.leader_epoch, header.base_offset)
        if header.producer_id >= 0 and header.base_offset >= replay_from and not header.attributes & CONTROL:
            producers.note(
                header.producer_id, header.producer_epoch, header.base_sequence, header.last_offset_delta,
                header.base_offset, header.max_timestamp,
            )  # fmt: skip
        segment.note_append(header.last_offset, header.size_bytes, header.max_timestamp, 4096)
        end_offset = header.next_offset
        position += header.size_bytes
    return end_offset, position, None


def _damaged(segment: Segment, end_offset: int, size: int, reason: str) -> tuple[int, int, str]:
    position, segment.size_bytes = segment.size_bytes, size
    return end_offset, position, reason


def _batch_damage(header: BatchHeader, batch: memoryview, end_offset: int) -> str | None:
    if header.magic != MAGIC:
        return f"magic {header.magic}"
    if header.base_offset < end_offset or header.last_offset_delta < 0:
        return f"offset {header.base_offset} where {end_offset} or more must follow"
    if len(batch) != header.length + LENGTH_END or len(batch) <= CRC_FROM or checksum(batch) != header.crc:
        return "checksum"
    return None
