"""Commits in the records of `__consumer_offsets`."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from ottla.client.fetching import Aborted
from ottla.edge.monitor.commit_feed import Position, commits_of, decode_commit
from ottla.edge.monitor.histories import SeenCommit
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

A0 = TopicPartition("a", 0)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def key_of(group: str, name: TopicPartition = A0, version: int = 1) -> bytes:
    return struct.pack(">h", version) + text(group) + text(name.topic) + struct.pack(">i", name.partition)


def value_of(offset: int, at_ms: int = 5) -> bytes:
    """A value of version 3: offset, leader epoch, metadata, time."""
    return struct.pack(">hqi", 3, offset, -1) + text("") + struct.pack(">q", at_ms)


def batch(base_offset: int, offsets: Sequence[int | None], **fields: Any) -> bytes:
    records = [Record(timestamp=1, key=key_of("g"), value=None if each is None else value_of(each)) for each in offsets]
    return build_batch(records, base_offset=base_offset, **fields)


def read(data: bytes, start: int = 0, aborted: Sequence[Aborted] = ()) -> tuple[list[int | None], int]:
    """Return the offsets of the commits, and where to read on."""
    position = Position(start)
    found = [each.offset for each in commits_of(data, position, aborted)]
    return found, position.offset


def test_a_commit_has_its_group_place_offset_and_time() -> None:
    assert decode_commit(key_of("gruppe-ä"), value_of(7, 99)) == SeenCommit("gruppe-ä", A0, 7, 99)
    assert decode_commit(key_of("g", version=0), value_of(7)) == SeenCommit("g", A0, 7, 5)
    assert decode_commit(key_of("g"), None) == SeenCommit("g", A0, None, 0)


def test_other_records_of_the_topic_are_no_commits() -> None:
    assert decode_commit(struct.pack(">h", 2) + text("g"), b"\0\0") is None


@pytest.mark.parametrize("seed", range(50))
def test_damaged_records_are_left_out(seed: int) -> None:
    random = Random(seed)
    key, value = bytearray(key_of("group")), bytearray(value_of(7))
    for data in (key, value):
        for _ in range(random.randrange(3)):
            data[random.randrange(len(data))] = random.randrange(256)
        del data[random.randrange(len(data)) :]
    decode_commit(bytes(key), bytes(value))  # raises nothing


def test_batches_are_read_from_the_position_on() -> None:
    data = batch(10, [1, 2, 3]) + batch(13, [None])
    assert read(data) == ([1, 2, 3, None], 14)
    assert read(data, start=12) == ([3, None], 14)
    assert read(data[:-1]) == ([1, 2, 3], 13)


def test_commits_of_aborted_transactions_do_not_count() -> None:
    def of_producer(base_offset: int, offset: int) -> bytes:
        return batch(base_offset, [offset], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)

    marker = build_batch(
        [Record(timestamp=1, key=b"\0\0\0\0", value=b"\0" * 6)], base_offset=1, producer_id=7, producer_epoch=0,
        transactional=True, control=True,
    )  # fmt: skip
    data = of_producer(0, 1) + marker + of_producer(2, 3)
    assert read(data) == ([1, 3], 3)
    assert read(data, aborted=[Aborted(7, 0)]) == ([3], 3)
    # The marker may be in a later reply.
    position = Position(0)
    assert list(commits_of(of_producer(0, 1), position, [Aborted(7, 0)])) == []
    assert list(commits_of(of_producer(1, 2), position, [])) == []
