"""Random failures against a model of logs: no acknowledged record is missing in the log of a leader."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

import pytest
from tests.unit.cluster.leadership_model import Broker, Model, Violation, run

from ottla.cluster import leadership
from ottla.cluster.view import LOG_LOST, NO_LEADER, PartitionView

#: runs within which each planted bug must be found
SEEDS = 300

_elect_partition = leadership.elect_partition
_with_isr = leadership._with_isr


@pytest.mark.parametrize(
    ("replicas", "min_isr", "seeds"), [(3, 2, 150), (3, 3, 40), (5, 3, 40), (2, 2, 40), (1, 1, 20)]
)
def test_every_leader_has_every_acknowledged_record(replicas: int, min_isr: int, seeds: int) -> None:
    models = [run(seed, replicas=replicas, min_isr=min_isr) for seed in range(seeds)]
    assert sum(len(each.acknowledged) for each in models) > 5 * seeds
    assert sum(each.elections for each in models) > seeds


def _elects_unclean_replicas(partition: PartitionView, alive: Collection[int], **options: int) -> int:
    members = [*partition.isr, *partition.elr]
    return next((each for each in members if each in alive), NO_LEADER)


def _forgets_elr(partition: PartitionView, isr: tuple[int, ...], min_isr: int) -> PartitionView:
    after = _with_isr(partition, isr, min_isr)
    return replace(after, elr=(), unclean=tuple(end for end in after.unclean if end.broker in isr))


def _forgets_unclean_members_of_elr(partition: PartitionView, isr: tuple[int, ...], min_isr: int) -> PartitionView:
    after = _with_isr(partition, isr, min_isr)
    unclean = {end.broker for end in partition.unclean}
    elr = tuple(each for each in after.elr if each not in unclean)
    return replace(after, elr=elr, unclean=tuple(end for end in after.unclean if end.broker in isr))


def _does_not_wait_for_all(partition: PartitionView, alive: Collection[int]) -> int:
    ends = {end.broker: end for end in partition.unclean if end.broker in alive and end.end_offset != LOG_LOST}
    return max(ends, key=lambda each: ends[each][1:], default=NO_LEADER)


def _elects_any_live_replica(
    partition: PartitionView, alive: Collection[int], min_isr: int, **_: bool
) -> PartitionView:
    return _elect_partition(partition, alive, min_isr, unclean_allowed=True)


def _keeps_one_isr_member(
    partition: PartitionView, alive: Collection[int], min_isr: int, **options: bool
) -> PartitionView:
    after = _elect_partition(partition, alive, min_isr, **options)
    if after is partition or after.leader != NO_LEADER:
        return after
    unclean = tuple(end for end in after.unclean if end.broker == after.isr[0])
    return replace(after, isr=after.isr[:1], elr=(), unclean=unclean)


class DoesNotMark(Model):
    """A broker that was killed registers as if it had been stopped cleanly."""

    def _mark(self, broker: Broker) -> None:
        return


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("_electable", _elects_unclean_replicas),
        ("_with_isr", _forgets_elr),
        ("_with_isr", _forgets_unclean_members_of_elr),
        ("_highest_unclean", _does_not_wait_for_all),
        ("elect_partition", _elects_any_live_replica),
        ("elect_partition", _keeps_one_isr_member),
    ],
)
def test_model_finds_wrong_decisions(monkeypatch: pytest.MonkeyPatch, name: str, bug: Callable[..., object]) -> None:
    monkeypatch.setattr(leadership, name, bug)
    assert _first_violation(Model) < SEEDS


def test_model_finds_brokers_that_do_not_mark_their_logs() -> None:
    assert _first_violation(DoesNotMark) < SEEDS


def _first_violation(model: type[Model]) -> int:
    for seed in range(SEEDS):
        try:
            run(seed, 100, model=model)
        except Violation:
            return seed
    return SEEDS
