"""Reassignment of replicas: start, progress, cancel, and failures in between."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest
from tests.unit.metadata.test_leadership import part, play, refused, topic_with, two, view_of

from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.leadership import change_isr, elect_partition, replace_partition
from ottla.broker.metadata.nodes import CONTROLLER_EPOCH, controller_epoch_json
from ottla.broker.metadata.reassignment import (
    Reassignment,
    cancel,
    list_reassignments,
    ops_reassign,
    progress,
    progress_all,
    start,
)
from ottla.broker.metadata.store import MetadataStore, Put, VersionConflict
from ottla.broker.metadata.view import NO_LEADER, ClusterView, LogEnd, PartitionView
from ottla.model.errors import ErrorCode, KafkaError

ALL = {1, 2, 3, 4, 5, 6}


def begin(partition: PartitionView, *target: int, alive: Collection[int] = ALL) -> PartitionView:
    return start(topic_with(partition), 0, target, alive=alive, known=ALL, min_isr=2)


def join(partition: PartitionView, *brokers: int) -> PartitionView:
    """The leader adds replicas to the ISR."""
    return change_isr(
        topic_with(partition), 0, leader=partition.leader, leader_epoch=partition.leader_epoch,
        isr=(*partition.isr, *brokers), alive=ALL, min_isr=2,
    )  # fmt: skip


def test_reassignment_adds_replicas_first_and_removes_old_ones_at_the_end() -> None:
    begun = begin(part(), 4, 2, 5)
    assert (begun.replicas, begun.adding, begun.removing) == ((4, 2, 5, 1, 3), (4, 5), (1, 3))
    assert (begun.leader, begun.isr, begun.leader_epoch, begun.partition_epoch) == (1, (1, 2, 3), 6, 10)
    assert progress(begun, ALL, 2) is begun
    half = join(begun, 4)
    assert progress(half, ALL, 2) is half
    done = progress(join(half, 5), ALL, 2)
    assert (done.replicas, done.adding, done.removing) == ((4, 2, 5), (), ())
    assert (done.leader, done.leader_epoch, done.isr) == (4, 7, (2, 4, 5)), "the leader was not in the target"


def test_leader_in_the_target_stays() -> None:
    done = progress(join(begin(part(), 4, 1), 4), ALL, 2)
    assert (done.leader, done.replicas, done.isr, done.leader_epoch) == (1, (4, 1), (1, 4), 7)


def test_target_that_is_in_sync_already_is_complete_at_once() -> None:
    shrunk = begin(part(), 2, 1)
    assert (shrunk.replicas, shrunk.removing, shrunk.isr, shrunk.leader) == ((2, 1), (), (1, 2), 1)
    assert (shrunk.leader_epoch, shrunk.partition_epoch) == (6, 10), "one change"
    ordered = begin(part(), 3, 1, 2)
    assert (ordered.replicas, ordered.leader, ordered.isr) == ((3, 1, 2), 1, (1, 2, 3))


def test_same_target_is_no_change() -> None:
    partition = part()
    assert begin(partition, 1, 2, 3) is partition
    begun = begin(partition, 4, 5, 6)
    assert begin(begun, 4, 5, 6) is begun


def test_new_target_replaces_the_one_in_progress() -> None:
    begun = join(begin(part(), 4, 5, 6), 4)
    other = begin(begun, 4, 2, 1)
    assert (other.replicas, other.adding, other.removing) == ((4, 2, 1), (), ()), "4 is in sync: it is complete"
    other = begin(begun, 5, 2, 1)
    assert (other.replicas, other.adding, other.removing, other.isr) == ((5, 2, 1, 3), (5,), (3,), (1, 2, 3))


def test_leader_dies_during_the_reassignment() -> None:
    begun = join(begin(part(), 4, 5, 6), 4)
    alive = ALL - {1}
    elected = elect_partition(begun, alive, 2)
    assert (elected.leader, elected.isr, elected.adding) == (4, (2, 3, 4), (4, 5, 6)), "an added replica may lead"
    done = progress(join(elected, 5, 6), alive, 2)
    assert (done.replicas, done.leader, done.isr) == ((4, 5, 6), 4, (4, 5, 6))


def test_added_replica_dies_during_the_reassignment() -> None:
    begun = join(begin(part(), 4, 5, 6), 4, 5)
    alive = ALL - {5}
    waiting = join(elect_partition(begun, alive, 2), 6)
    assert waiting.isr == (1, 2, 3, 4, 6)
    assert progress(waiting, alive, 2) is waiting, "the reassignment waits for the broker"
    assert progress(join(waiting, 5), ALL, 2).replicas == (4, 5, 6)


def test_unclean_member_of_the_target_does_not_complete_the_reassignment() -> None:
    begun = replace(join(begin(part(), 4, 2), 4), unclean=(LogEnd(4, 5, 9),))
    assert progress(begun, ALL, 2) is begun
    no_leader = replace(begun, unclean=(), leader=NO_LEADER)
    assert progress(no_leader, ALL, 2) is no_leader


def test_reassignment_completes_only_if_a_member_of_the_target_is_alive() -> None:
    begun = join(begin(part(), 4), 4)
    assert progress(begun, {1, 2, 3}, 2) is begun
    assert progress(begun, ALL, 2).leader == 4


def test_eligible_replicas_that_are_removed_are_forgotten() -> None:
    partition = part(isr=(1,), elr=(2, 3), unclean=(LogEnd(3, 5, 9),))
    begun = join(begin(partition, 1, 4), 4)
    done = progress(begun, ALL, 2)
    assert (done.isr, done.elr, done.unclean) == ((1, 4), (), ())


def test_cancelled_reassignment_leaves_the_old_replicas() -> None:
    begun = join(begin(part(), 4, 5, 1), 4)
    back = cancel(topic_with(begun), 0, alive=ALL, min_isr=2)
    assert (back.replicas, back.adding, back.removing) == ((1, 2, 3), (), ())
    assert (back.leader, back.isr, back.leader_epoch) == (1, (1, 2, 3), 7)


def test_leader_that_was_added_is_replaced_when_the_reassignment_is_cancelled() -> None:
    begun = elect_partition(join(begin(part(), 4, 5, 6), 4), ALL - {1}, 2)
    assert begun.leader == 4
    back = cancel(topic_with(begun), 0, alive=ALL - {1}, min_isr=2)
    assert (back.leader, back.isr, back.leader_epoch) == (2, (2, 3), begun.leader_epoch + 1)


@pytest.mark.parametrize("isr", [(4,), (2, 4)])
def test_reassignment_is_not_cancelled_if_only_added_replicas_can_lead(isr: tuple[int, ...]) -> None:
    begun = replace(begin(part(), 4, 5, 6), leader=4, isr=isr)
    with pytest.raises(KafkaError, match="wait until one is") as error:
        cancel(topic_with(begun), 0, alive=ALL - {1, 2, 3}, min_isr=2)
    assert refused(error) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_cancel_without_a_reassignment_is_refused() -> None:
    with pytest.raises(KafkaError) as error:
        cancel(topic_with(part()), 0, alive=ALL, min_isr=2)
    assert refused(error) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize("target", [(), (1, 1), (1, 9)])
def test_impossible_targets_are_refused(target: tuple[int, ...]) -> None:
    with pytest.raises(KafkaError) as error:
        begin(part(), *target)
    assert refused(error) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_reassignments_in_progress_are_listed_and_completed() -> None:
    waiting = begin(part(), 4, 2, 3)
    view = view_of(topic_with(part(), waiting), topic_with(join(waiting, 4), name="b"), alive=ALL)
    assert list_reassignments(view, ["orders", "deleted"]) == [Reassignment("orders", 1, (4, 2, 3, 1), (4,), (1,))]
    assert [each.topic for each in list_reassignments(view)] == ["orders", "b"]
    (done,) = progress_all(view, min_isr=two)
    assert done.name == "b" and done.partitions[0].replicas == (4, 2, 3)


def test_assignment_and_state_are_written_together() -> None:
    async def scenario(store: MetadataStore, view: ClusterView) -> None:
        topic = view.topics["orders"]
        begun = replace_partition(topic, 0, begin(topic.partitions[0], 4, 2, 3))
        assert begun is not None and ops_reassign(view, []) == []
        ops = ops_reassign(view, [begun])
        await store.multi(ops)
        later = await load_view(store)
        assert later.topics["orders"] == begun
        with pytest.raises(VersionConflict):
            await store.multi(ops)
        joined = replace_partition(begun, 0, join(begun.partitions[0], 4))
        assert joined is not None
        later.topics["orders"] = joined
        done = progress_all(later, min_isr=two)
        await store.multi([Put(CONTROLLER_EPOCH, controller_epoch_json(2), 0)])
        with pytest.raises(VersionConflict, match=CONTROLLER_EPOCH):
            await store.multi(ops_reassign(later, done, controller_epoch=0))
        await store.multi(ops_reassign(later, done, controller_epoch=1))
        assert (await load_view(store)).topics["orders"].partitions[0].replicas == (4, 2, 3)

    play(scenario, topic_with(part(partition_epoch=0)))
