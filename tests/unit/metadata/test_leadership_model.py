"""Random failures against a model of logs: no acknowledged record is missing in the log of a leader."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from types import ModuleType

import pytest
from tests.unit.metadata.leadership_model import Broker, Model, Moving, Violation, run

from ottla.broker.metadata import leadership, reassignment, unclean_marks
from ottla.broker.metadata.view import LOG_LOST, NO_LEADER, LogEnd, PartitionView, TopicView

#: runs within which each planted bug must be found
SEEDS = 300

_elect_partition = leadership.elect_partition
_with_isr = leadership._with_isr
_mark_unclean = unclean_marks.mark_unclean


@pytest.mark.parametrize(
    ("replicas", "min_isr", "seeds"), [(3, 2, 150), (3, 3, 40), (5, 3, 40), (2, 2, 40), (1, 1, 20)]
)
def test_every_leader_has_every_acknowledged_record(replicas: int, min_isr: int, seeds: int) -> None:
    models = [run(seed, replicas=replicas, min_isr=min_isr) for seed in range(seeds)]
    assert sum(len(each.acknowledged) for each in models) > 5 * seeds
    assert sum(each.elections for each in models) > seeds


def test_every_leader_has_every_acknowledged_record_while_replicas_move() -> None:
    models = [_moving(seed) for seed in range(80)]
    assert sum(each.completed for each in models) > 20
    assert sum(len(each.acknowledged) for each in models) > 400


def _moving(seed: int) -> Moving:
    moved = run(seed, 100, model=Moving)
    assert isinstance(moved, Moving)
    return moved


def _completes_before_the_target_is_in_sync(
    partition: PartitionView, alive: Collection[int], min_isr: int
) -> PartitionView:
    target = reassignment.target_of(partition)
    if not partition.adding or target[0] not in alive or partition.leader == NO_LEADER:
        return partition
    return partition.changed(
        replicas=target, isr=target, adding=(), removing=(), elr=(), unclean=(), leader=target[0],
        leader_epoch=partition.leader_epoch + 1,
    )  # fmt: skip


def test_model_finds_reassignments_that_complete_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reassignment, "progress", _completes_before_the_target_is_in_sync)
    assert _first_violation(Moving) < SEEDS


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


# -- bugs that need a rare sequence: each script passes, and fails with its bug ---------------------------------------


class Script(Model):
    """A model that is driven by hand: numbers are brokers."""

    def __init__(self, *, replicas: int = 3, min_isr: int = 2) -> None:
        super().__init__(0, replicas=replicas, min_isr=min_isr)

    def produce(self, leader: int, *followers: int, synced: Iterable[int] = ()) -> None:
        """Append at the leader; followers fetch and report that; some brokers sync first."""
        self.do_append(self.brokers[leader])
        for each in followers:
            self.do_fetch(self.brokers[each], 100)
        for each in synced:
            self.do_sync(self.brokers[each])
        for each in followers:
            self.do_fetch(self.brokers[each], 100)
        if leader in synced:
            self.do_sync(self.brokers[leader])

    def elect(self, *, expired: Iterable[int] = (), learn: Iterable[int] = (1, 2, 3)) -> None:
        for each in expired:
            self.brokers[each].alive = False
        self.do_elect(self.brokers[1])
        for each in learn:
            if each in self.brokers:
                self.do_learn(self.brokers[each])

    def expand(self, leader: int) -> None:
        self.do_expand(self.brokers[leader])
        self._learn(self.brokers[leader])

    def kill(self, *brokers: int) -> None:
        for each in brokers:
            self.do_kill(self.brokers[each])
            self.brokers[each].alive = True  # the session expires later

    def power(self, broker: int) -> None:
        """The broker loses all that is not synced."""
        self.kill(broker)
        del self.brokers[broker].log[self.brokers[broker].synced :]

    def wipe(self, broker: int) -> None:
        self.kill(broker)
        self.brokers[broker].log.clear()
        self.brokers[broker].synced, self.brokers[broker].is_lost = 0, True

    def start(self, *brokers: int) -> None:
        for each in brokers:
            self.do_start(self.brokers[each])


class JoinsUnsynced(Script):
    """The leader adds a follower that has all records, but in memory only."""

    @staticmethod
    def joining_end(end: int, synced: int) -> int:
        return end


class JoinsAfterRestart(Script):
    """KIP-903: the leader adds a follower because of the fetches of its earlier process."""

    joins_after_restart = True


def refilled_replica_joins(model: type[Script]) -> None:
    """The disk of broker 2 is wiped; it is refilled; the others that synced a record fail."""
    script = model()
    script.produce(1, 2, 3, synced=(1, 2))
    assert script.acknowledged
    script.wipe(2)
    script.start(2)
    script.elect()
    script.produce(1, 2, 3)
    script.produce(1, 2, 3)
    script.expand(1)
    script.kill(1)
    script.elect(expired=(1,))
    for each in (2, 3):
        script.power(each)
    script.start(2, 3)
    script.elect()


def replica_joins_after_a_restart(model: type[Script]) -> None:
    script = model()
    script.elect(expired=(3,))
    script.start(3)
    script.elect()
    script.produce(1, 2, 3, synced=(1, 2, 3))
    assert script.acknowledged
    script.wipe(3)
    script.start(3)
    script.expand(1)
    script.elect(expired=(1, 2))


@pytest.mark.parametrize(
    ("play", "bug"),
    [(refilled_replica_joins, JoinsUnsynced), (replica_joins_after_a_restart, JoinsAfterRestart)],
)
def test_leader_that_adds_a_replica_too_early_loses_records(
    play: Callable[[type[Script]], None], bug: type[Script]
) -> None:
    play(Script)
    with pytest.raises(Violation, match="leads without acknowledged records"):
        play(bug)


def wiped_disk() -> None:
    script = Script(replicas=1, min_isr=1)
    script.produce(1, synced=(1,))
    assert script.acknowledged
    script.wipe(1)
    script.start(1)
    script.elect()
    script.kill(1)
    script.start(1)
    script.elect()


def former_leader_proposes() -> None:
    script = Script()
    script.elect(expired=(1,), learn=(2, 3))
    script.produce(2, 3, synced=(2, 3))
    assert script.acknowledged
    script._propose(script.brokers[1], (1, 2, 3))
    script.elect(expired=(2, 3), learn=())
    script.start(1)
    script.elect()


def followers_start_while_the_leader_does_not_know() -> None:
    script = Script()
    script.produce(1, 2, 3, synced=(1, 2, 3))
    script.kill(2, 3)
    script.start(2, 3)
    script.produce(1, 2, 3, synced=(2, 3))
    script.elect(learn=())
    script.power(1)
    script.elect(expired=(1,), learn=())
    script.start(1)
    script.elect()


def _elects_a_lost_log(partition: PartitionView, alive: Collection[int]) -> int:
    ends = {end.broker: end for end in partition.unclean}
    if not ends or {*ends} != {*partition.isr, *partition.elr} or not {*ends} <= {*alive}:
        return NO_LEADER
    return max(ends, key=lambda each: ends[each][1:])


def _forgets_lost_logs(topic: TopicView, broker: int, ends: dict[int, LogEnd]) -> TopicView | None:
    (partition,) = topic.partitions
    kept = tuple(end for end in partition.unclean if end.broker != broker)
    return _mark_unclean(replace(topic, partitions=(replace(partition, unclean=kept),)), broker, ends)


def _marks_and_stays_in_the_isr(topic: TopicView, broker: int, ends: dict[int, LogEnd]) -> TopicView | None:
    (partition,) = topic.partitions
    if partition.leader == broker:
        return _mark_unclean(topic, broker, ends)
    others = tuple(end for end in partition.unclean if end.broker != broker)
    return replace(topic, partitions=(partition.changed(unclean=(*others, ends[0])),))


def _ignores_the_leader_epoch(
    topic: TopicView, number: int, *, isr: tuple[int, ...], min_isr: int, **_: object
) -> PartitionView:
    return _with_isr(topic.partitions[number], isr, min_isr).changed()


@pytest.mark.parametrize(
    ("play", "module", "name", "bug"),
    [
        (wiped_disk, leadership, "_highest_unclean", _elects_a_lost_log),
        (wiped_disk, unclean_marks, "mark_unclean", _forgets_lost_logs),
        (former_leader_proposes, leadership, "change_isr", _ignores_the_leader_epoch),
        (followers_start_while_the_leader_does_not_know, unclean_marks, "mark_unclean", _marks_and_stays_in_the_isr),
    ],
)
def test_rare_sequence_finds_a_wrong_decision(
    monkeypatch: pytest.MonkeyPatch, play: Callable[[], None], module: ModuleType, name: str, bug: Callable[..., object]
) -> None:
    play()
    monkeypatch.setattr(module, name, bug)
    with pytest.raises(Violation, match="leads without acknowledged records"):
        play()
