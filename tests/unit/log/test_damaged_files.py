"""Flipped bits and lost ends in the files beside a log: readers get the right records, or an error."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from tests.unit.log.log_fixtures import (
    FOLDER,
    NOW,
    batch,
    clean_stop,
    contents,
    new_disk,
    new_log,
    open_at,
    split,
    topic,
    write,
)
from tests.unit.log.txn_fixtures import Client, end_txn, values

from ottla.log.checkpoints import CleanStop
from ottla.log.retention import retention_start_offset
from ottla.log.segment import TXN_CHECKSUM
from ottla.model.settings import TopicSettings
from ottla.testing.disk import MemoryDisk

Change = Callable[[bytes], bytes]


def flip(bit: int) -> Change:
    """Return a change that flips one bit of a file."""

    def change(data: bytes) -> bytes:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        return bytes(flipped)

    return change


def cut(end: int) -> Change:
    """Return a change that loses everything from ``end`` on."""
    return lambda data: data[:end]


def damages(size: int) -> list[Change]:
    """Return a flip of every fifth bit, every third end that is lost, and zeros in place of or behind the content."""
    zeros: list[Change] = [lambda data: bytes(len(data)), lambda data: data + bytes(34)]
    return [*map(flip, range(0, size * 8, 5)), *map(cut, range(0, size, 3)), *zeros]


# -- offset and time index -------------------------------------------------------------------------------------------


INDEXED = topic(segment_bytes=3000, index_interval_bytes=60, retention_ms=5000)


def test_indexes_are_rebuilt_up_to_a_header_with_an_impossible_offset() -> None:
    disk = new_disk()
    log = open_at(disk, topic())
    write(log, *(batch(2, size=3000, timestamp=NOW + number) for number in range(10)))
    segment = log.segments[0]
    (position,) = (at for at, header in segment.headers() if header.base_offset == 8)
    before = [segment.offset_index.entry_before(offset) for offset in range(8)]
    disk.pwrite(segment.file.fd, b"\x40", position)
    segment.rebuild_indexes()
    assert [segment.offset_index.entry_before(offset) for offset in range(8)] == before


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_no_damage_of_an_index_changes_what_readers_get(suffix: str) -> None:
    original = new_disk()
    log = open_at(original, INDEXED)
    write(log, *(batch(2, size=30, timestamp=NOW + number) for number in range(40)))
    note, expected = clean_stop(log), contents(log)
    assert len(log.segments) > 1
    path = f"{FOLDER}/{0:020d}{suffix}"
    for number, change in enumerate(damages(original.file_size(path) or 0)):
        disk = original.crash(Random(0), keep="process")
        disk.damage(path, change)
        opened = open_at(disk, INDEXED, clean=note)
        for at in range(number % 3, 40, 3):
            region = opened.read(2 * at, 10 + 150 * (number % 4), opened.log_end_offset, at_least_one=True)
            assert region is not None
            batches = split(region.read())
            assert batches == expected[at : at + len(batches)]
        assert retention_start_offset(opened, opened.log_end_offset, NOW + 4900) == 0, "nothing is old enough"


@pytest.mark.parametrize("lost", [1, 12, 24, 120])
def test_segment_is_not_deleted_because_the_end_of_its_time_index_is_lost(lost: int) -> None:
    disk = new_disk()
    log = open_at(disk, INDEXED)
    write(log, *(batch(2, size=30, timestamp=NOW + 1000 * number) for number in range(40)))
    note = clean_stop(log)
    first = log.segments[0]
    path = first.path(".timeindex")
    disk.damage(path, lambda data: data[:-lost])
    opened = open_at(disk, INDEXED, clean=note)
    newest = first.max_timestamp
    assert retention_start_offset(opened, opened.log_end_offset, newest + 5000) == 0
    assert retention_start_offset(opened, opened.log_end_offset, newest + 5001) == log.segments[1].base_offset


# -- transaction index -----------------------------------------------------------------------------------------------


def log_with_sealed_aborts(disk: MemoryDisk) -> tuple[TopicSettings, CleanStop]:
    """Two aborted transactions whose markers are in a sealed segment, one whose marker is in the active one."""
    settings = topic(segment_bytes=600, max_message_bytes=600)
    log = open_at(disk, settings)
    committed = Client(log, 8)
    for pid in (5, 6):
        Client(log, pid).send(b"aborted")
        committed.send(b"committed")
    for pid in (5, 6):
        end_txn(log, pid, commit=False)
    committed.commit()
    log.roll()
    Client(log, 7).send(b"aborted")
    end_txn(log, 7, commit=False)
    for segment in log.segments:
        segment.sync()
    return settings, clean_stop(log)


TXN_FILES = [f"{base:020d}{suffix}" for base in (0, 7) for suffix in (".txnindex", TXN_CHECKSUM)]


@pytest.mark.parametrize("clean", [True, False], ids=["clean-stop", "kill"])
@pytest.mark.parametrize("file", TXN_FILES)
def test_no_damage_of_the_index_shows_aborted_records_or_hides_committed_ones(
    file: str, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    original = new_disk()
    settings, note = log_with_sealed_aborts(original)
    path = f"{FOLDER}/{file}"
    size = original.file_size(path)
    assert size
    for change in damages(size):
        disk = original.crash(Random(0), keep="process")
        disk.damage(path, change)
        log = open_at(disk, settings, clean=note if clean else None, recovery_point=7)
        assert values(log) == [b"committed"] * 2
        again = open_at(disk, settings, clean=clean_stop(log))
        caplog.clear()
        assert values(again) == [b"committed"] * 2
        assert "rebuil" not in caplog.text, "the index is rebuilt only once"


@pytest.mark.parametrize("file", TXN_FILES)
def test_index_of_which_one_file_is_missing_is_rebuilt(file: str) -> None:
    disk = new_disk()
    settings, note = log_with_sealed_aborts(disk)
    disk.remove(f"{FOLDER}/{file}")
    log = open_at(disk, settings, clean=note)
    assert values(log) == [b"committed"] * 2
    clean_stop(log)
    assert disk.exists(f"{FOLDER}/{file}")


def test_log_without_aborted_transactions_has_neither_index_nor_checksum() -> None:
    disk = new_disk()
    log = new_log(disk, segment_bytes=100, max_message_bytes=100)
    Client(log).send()
    end_txn(log, commit=True)
    clean_stop(log)
    assert not [name for name in disk.listdir(FOLDER) if "txn" in name]
