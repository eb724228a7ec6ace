"""Helpers for the tests of the log: small batches, a log on a disk in memory, and functions that read all of it."""

from __future__ import annotations

from ottla.env.disk import Disk
from ottla.log.checkpoints import CleanStop
from ottla.log.log import Log
from ottla.log.opening import NeedsOpening
from ottla.log.recovery import open_log
from ottla.model.batch import PREFIX, PREFIX_BYTES, read_header
from ottla.model.opening import open_batch
from ottla.model.records import Record, build_batch
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.types import TopicPartition
from ottla.testing.disk import MemoryDisk

NAME = TopicPartition("orders", 0)
DATA = "/data"
FOLDER = "/data/orders-0"
NOW = 1_700_000_000_000


def topic(**overrides: object) -> TopicSettings:
    """Topic settings; ``segment_bytes=1000`` stands for ``segment.bytes=1000``."""
    texts = {name.replace("_", "."): str(value) for name, value in overrides.items()}
    return TopicSettings.resolve(texts, BrokerSettings())


def batch(
    count: int = 1, *, timestamp: int = NOW, step_ms: int = 0, size: int = 10, codec: int = 0, key: bytes | None = b"k",
    producer: tuple[int, int, int] | None = None,
) -> bytes:  # fmt: skip
    """A client's batch of ``count`` records with values of ``size`` bytes; ``producer`` is (id, epoch, sequence)."""
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    records = [Record(timestamp=timestamp + number * step_ms, key=key, value=b"v" * size) for number in range(count)]
    return build_batch(
        records, codec=codec, producer_id=producer_id, producer_epoch=producer_epoch, base_sequence=sequence
    )


def new_disk() -> MemoryDisk:
    """A disk whose log directory and partition folder are there to stay."""
    disk = MemoryDisk()
    disk.makedirs(FOLDER)
    for path in ("/", DATA, FOLDER):
        disk.fsync_dir(path)
    return disk


def open_at(
    disk: Disk, settings: TopicSettings, *, clean: CleanStop | None = None, recovery_point: int = 0,
    log_start: int = 0, high_watermark: int = 0, replicated: bool = False, cleaner_offset: int = 0,
) -> Log:  # fmt: skip
    return open_log(
        disk, FOLDER, NAME, settings, clean=clean, recovery_point=recovery_point, log_start_offset=log_start,
        high_watermark=high_watermark, replicated=replicated, cleaner_offset=cleaner_offset,
    )  # fmt: skip


def new_log(disk: Disk | None = None, **overrides: object) -> Log:
    return open_at(disk or new_disk(), topic(**overrides))


def append(log: Log, data: bytes, now_ms: int = NOW) -> tuple[int, int]:
    """Append a batch as the broker does; one that is too expensive for the loop is opened here."""
    try:
        return append_on_loop(log, data, now_ms)
    except NeedsOpening as needs:
        rules, settings = needs.opening
        return append_on_loop(log, open_batch(data, rules) or data, now_ms, opened=settings)


def append_on_loop(log: Log, data: bytes, now_ms: int = NOW, *, opened: TopicSettings | None = None) -> tuple[int, int]:
    buffer = bytearray(data)
    return log.append(buffer, memoryview(buffer), 0, len(buffer), now_ms, opened=opened)


def write(log: Log, *batches: bytes) -> list[int]:
    """Append and write; the base offsets."""
    bases = [append(log, data)[0] for data in batches]
    log.write_pending()
    return bases


def stored(data: bytes, base_offset: int, epoch: int = 0) -> bytes:
    """A client's batch as the log must hold it."""
    return PREFIX.pack(base_offset, read_header(data).length, epoch) + data[PREFIX_BYTES:]


def contents(log: Log) -> list[bytes]:
    """Every batch that readers get, from the start to what is written."""
    batches, offset, end = [], log.log_start_offset, log.written_end_offset
    while offset < end:
        region = log.read(offset, 1 << 30, end, at_least_one=True)
        assert region is not None, f"nothing to read at {offset}, below {end}"
        data = region.read()
        assert len(data) == region.size_bytes
        batches += split(data)
        offset = read_header(batches[-1]).next_offset
    return batches


def split(data: bytes) -> list[bytes]:
    batches, position = [], 0
    while position < len(data):
        size = read_header(data, position).size_bytes
        batches.append(data[position : position + size])
        assert len(batches[-1]) == size, "a batch is cut off"
        position += size
    return batches


def offsets(log: Log) -> list[tuple[int, int]]:
    """(base, next) of every batch that readers get."""
    headers = [read_header(data) for data in contents(log)]
    return [(header.base_offset, header.next_offset) for header in headers]


def clean_stop(log: Log) -> CleanStop:
    """Stop a log cleanly, and the note that the log store would take of it."""
    log.flush_files()
    return note_of(log)


def note_of(log: Log) -> CleanStop:
    return CleanStop(
        log_end_offset=log.log_end_offset, active_base_offset=log.active.base_offset,
        active_size_bytes=log.active.size_bytes, sealed_bytes=log.size_bytes - log.active.size_bytes,
    )  # fmt: skip


def sync(log: Log) -> None:
    """What the group commit does."""
    job = log.start_sync()
    job.run()
    log.note_synced(job)


def producer_state(log: Log) -> dict[int, tuple[int, int, list[tuple[int, int, int, int]]]]:
    return {
        producer_id: (entry.epoch, entry.next_sequence, [tuple(each) for each in entry.batches])
        for producer_id, entry in log.producers.entries.items()
    }
