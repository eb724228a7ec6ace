"""Batches that were refused for now are expected again, before the later batches of the same producer."""

from __future__ import annotations

import pytest
from tests.unit.log.log_fixtures import append, batch, new_log, write

from ottla.log.log import Log
from ottla.model.errors import OutOfOrderSequence


def refuse(log: Log, *batches: bytes) -> None:
    data = b"".join(batches)
    log.refused.note(data, 0, len(data), log.producers)


def test_later_batch_of_a_new_producer_waits_for_the_refused_one() -> None:
    log = new_log()
    refuse(log, batch(2, producer=(7, 0, 0)), batch(1, producer=(7, 0, 2)))
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(producer=(7, 0, 3)))
    assert write(log, batch(2, producer=(7, 0, 0)), batch(producer=(7, 0, 2)), batch(producer=(7, 0, 3))) == [0, 2, 3]


def test_batch_of_an_unknown_producer_is_accepted_with_any_sequence() -> None:
    """Its state may have expired, as in Kafka."""
    assert write(new_log(), batch(producer=(7, 0, 3))) == [0]


def test_known_producer_is_not_remembered() -> None:
    log = new_log()
    write(log, batch(producer=(7, 0, 0)))
    refuse(log, batch(producer=(7, 0, 1)))
    assert not log.refused.first


def test_batches_that_a_full_disk_undid_are_expected_again() -> None:
    log = new_log()
    append(log, batch(producer=(7, 0, 0)))
    log.undo_pending()
    with pytest.raises(OutOfOrderSequence):
        append(log, batch(producer=(7, 0, 1)))
    assert write(log, batch(producer=(7, 0, 0)), batch(producer=(7, 0, 1))) == [0, 1]


def test_accepted_batch_ends_the_memory() -> None:
    log = new_log()
    refuse(log, batch(producer=(7, 0, 0)))
    write(log, batch(producer=(7, 0, 0)))
    assert not log.refused.first


def test_batches_without_producer_and_incomplete_bytes_are_ignored() -> None:
    log = new_log()
    refuse(log, batch(), b"short")
    assert not log.refused.first


def test_memory_is_bounded() -> None:
    log = new_log()
    refuse(log, *(batch(producer=(number, 0, 0)) for number in range(1200)))
    assert len(log.refused.first) == 1000
    assert 1199 in log.refused.first


def test_batch_that_a_follower_copies_ends_the_memory() -> None:
    """Otherwise the producer could not go on if its state expires later."""
    leader, follower = new_log(), new_log()
    refuse(follower, batch(producer=(7, 0, 0)))
    write(leader, batch(producer=(7, 0, 0)))
    region = leader.read(0, 1 << 20, leader.written_end_offset, at_least_one=True)
    assert region is not None
    follower.append_as_follower(memoryview(region.read()), leader_epoch=0, now_ms=0)
    assert not follower.refused.first
