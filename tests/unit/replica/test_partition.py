"""A partition's own rules: leader epochs, enough replicas, and who is answered when something fails."""

from __future__ import annotations

import pytest
from tests.unit.log.log_fixtures import NAME, batch, new_log, topic, write

from ottla.model.errors import ErrorCode, FencedLeaderEpoch, NotEnoughReplicas, UnknownLeaderEpoch
from ottla.replica.partition import Partition


class Waiter:
    deadline = 0.0

    def __init__(self) -> None:
        self.answers: list[int] = []

    def on_write_complete(self, error_code: int) -> None:
        self.answers.append(error_code)


def new_partition(*, replicas: int = 1, isr: int = 1, **overrides: object) -> Partition:
    log = new_log(**overrides)
    write(log, batch(5))
    return Partition(
        NAME, bytes(16), log, leader_id=1, leader_epoch=7, replicas=tuple(range(replicas)), isr=tuple(range(isr))
    )


def test_high_watermark_starts_at_what_is_written() -> None:
    assert new_partition().high_watermark == 5


@pytest.mark.parametrize("epoch", [-1, 7])
def test_known_or_no_epoch_passes(epoch: int) -> None:
    new_partition().check_leader_epoch(epoch)


def test_older_epoch_is_fenced() -> None:
    with pytest.raises(FencedLeaderEpoch):
        new_partition().check_leader_epoch(6)


def test_newer_epoch_is_unknown() -> None:
    with pytest.raises(UnknownLeaderEpoch):
        new_partition().check_leader_epoch(8)


@pytest.mark.parametrize(("replicas", "isr", "wanted"), [(3, 2, 2), (3, 3, 1), (1, 1, 1), (1, 1, 2)])
def test_enough_replicas_are_enough(replicas: int, isr: int, wanted: int) -> None:
    new_partition(replicas=replicas, isr=isr, min_insync_replicas=wanted).check_enough_replicas()


def test_too_few_replicas_are_refused() -> None:
    with pytest.raises(NotEnoughReplicas):
        new_partition(replicas=3, isr=1, min_insync_replicas=2).check_enough_replicas()


def test_changed_settings_count_at_once() -> None:
    partition = new_partition(replicas=3, isr=2, min_insync_replicas=3)
    partition.log.configure(topic(min_insync_replicas=2))
    partition.check_enough_replicas()


def test_only_writers_behind_the_offset_fail() -> None:
    partition = new_partition()
    kept, lost, turn = Waiter(), Waiter(), Waiter()
    partition.writers = [(5, kept), (6, lost)]
    partition.written = [turn]
    partition.fail_writers(ErrorCode.KAFKA_STORAGE_ERROR, 5)
    assert (kept.answers, lost.answers, turn.answers) == ([], [56], [56])
    assert (partition.writers, partition.written) == ([(5, kept)], [])


def test_everybody_is_answered_once_when_the_partition_goes() -> None:
    partition = new_partition()
    waiters = [Waiter() for _ in range(3)]
    partition.writers = [(1, waiters[0]), (9, waiters[1])]
    partition.written = [waiters[2]]
    partition.leave(ErrorCode.KAFKA_STORAGE_ERROR)
    partition.leave(ErrorCode.KAFKA_STORAGE_ERROR)
    assert [waiter.answers for waiter in waiters] == [[56], [56], [56]]
