"""The producers of a log: those that are idle cost little memory, and nothing else is different about them."""

from __future__ import annotations

import random

import pytest

from ottla.log import producers as module
from ottla.log.producers import WINDOW, Producers, last_offsets
from ottla.model.errors import KafkaError

State = dict[int, tuple[object, ...]]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FEW", 2)
    monkeypatch.setattr(module, "_ACTIVE_MAX", 6)
    monkeypatch.setattr(module, "_DEMOTED_AT_ONCE", 3)


def state(producers: Producers) -> State:
    return {
        producer_id: (
            entry.epoch, entry.next_sequence, entry.timestamp, tuple(entry.batches), entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        for producer_id, entry in producers.items()
    }  # fmt: skip


def write_randomly(producers: Producers, draws: random.Random, steps: int) -> None:
    """Batches, repetitions, new epochs, transactions and markers of twenty producers."""
    offset = 0
    for _ in range(steps):
        pid, delta, stamp = draws.randrange(20), draws.randrange(3), draws.randrange(1000)
        known = dict(producers.items()).get(pid)
        epoch = (known.epoch if known else 0) + draws.choice([0, 0, 0, 0, 1])
        if draws.random() < 0.2:
            producers.end(pid, epoch, coordinator_epoch=draws.randrange(3), offset=offset, timestamp=stamp)
            offset += 1
            continue
        sequence = known.next_sequence if known and known.epoch == epoch else 0
        transactional = bool(known and known.txn_bit) or draws.random() < 0.2
        entry, repeated = producers.check(pid, epoch, max(sequence, 0), delta, transactional=transactional)
        assert repeated is None
        producers.note(
            pid, entry.epoch, max(sequence, 0), delta, base_offset=offset, timestamp=stamp, transactional=transactional
        )
        offset += delta + 1


@pytest.mark.parametrize("seed", range(30))
def test_idle_producers_are_known_as_well_as_active_ones(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, small = Producers(), Producers()
    write_randomly(plain, random.Random(seed), 150)
    make_small(monkeypatch)
    write_randomly(small, random.Random(seed), 150)
    assert small.idle_count > 0
    assert state(small) == state(plain)
    assert small.open == plain.open
    assert last_offsets(small.rows()) == last_offsets(plain.rows())
    loaded = Producers.from_snapshot(small.to_snapshot())
    assert state(loaded) == state(plain)
    assert loaded.open == dict(sorted(plain.open.items(), key=lambda item: item[1]))


@pytest.mark.usefixtures("small_limits")
def test_idle_producer_is_checked_as_an_active_one() -> None:
    producers = Producers()
    for pid in range(50):
        producers.note(pid, 1, 0, 4, base_offset=5 * pid, timestamp=0)
    assert producers.count == 50
    assert len(producers.entries) <= 6
    for pid in range(50):
        _, repeated = producers.check(pid, 1, 0, 4)
        assert repeated is not None and repeated.base_offset == 5 * pid
        with pytest.raises(KafkaError, match="expected 5"):
            producers.check(pid, 1, 7, 0)
        with pytest.raises(KafkaError, match="older"):
            producers.check(pid, 0, 0, 0)
        assert producers.check(pid, 1, 5, 0)[1] is None
    assert len(producers.entries) <= 6


@pytest.mark.usefixtures("small_limits")
def test_window_of_an_idle_producer_is_kept() -> None:
    producers = Producers()
    for offset in range(8):
        producers.note(1, 0, offset, 0, base_offset=offset, timestamp=0)
    for pid in range(100, 140):
        producers.note(pid, 0, 0, 0, base_offset=pid, timestamp=0)
        producers.check(pid, 0, 1, 0)
    assert 1 not in producers.entries
    entry = producers.get(1)
    assert entry is not None
    assert [batch.base_offset for batch in entry.batches] == [3, 4, 5, 6, 7]
    assert len(entry.batches) == WINDOW


@pytest.mark.usefixtures("small_limits")
def test_producer_with_an_open_transaction_is_never_idle() -> None:
    producers = Producers()
    for pid in range(40):
        producers.note(pid, 0, 0, 0, base_offset=pid, timestamp=0, transactional=True)
    assert set(producers.entries) == set(producers.open) == set(range(40))
    assert producers.evict(100) == 0


@pytest.mark.usefixtures("small_limits")
def test_longest_idle_producers_are_evicted_first() -> None:
    producers = Producers()
    for pid in range(10):
        producers.note(pid, 0, 0, 0, base_offset=pid, timestamp=0)
    assert producers.evict(3) == 3
    assert [pid for pid in range(10) if producers.get(pid) is None] == [2, 3, 4]
    entry, repeated = producers.check(3, 0, 17, 0)
    assert (entry.next_sequence, repeated) == (-1, None)


@pytest.mark.usefixtures("small_limits")
def test_idle_producers_expire() -> None:
    producers = Producers()
    for pid in range(10):
        producers.note(pid, 0, 0, 0, base_offset=pid, timestamp=-1 if pid == 9 else pid * 100)
    producers.expire(500)
    assert sorted(pid for pid, _ in producers.items()) == [5, 6, 7, 8]
