"""What the controller counts as an election."""

from __future__ import annotations

from ottla.broker.cluster.controller import Changes, count_changes
from ottla.broker.metadata.view import NO_LEADER, ClusterView, PartitionView, TopicView


def partition(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> PartitionView:
    return PartitionView(leader=leader, leader_epoch=0, replicas=(1, 2, 3), isr=isr, elr=elr)


def topic(*partitions: PartitionView) -> TopicView:
    return TopicView(name="orders", topic_id=bytes(16), partitions=partitions)


def test_only_new_leaders_count_and_leaders_outside_of_isr_and_elr_are_unclean() -> None:
    states = [
        (partition(1, (1, 2)), {"leader": 2, "isr": (2,)}),  # a new leader
        (partition(1, (1, 2)), {"isr": (1,)}),  # another ISR
        (partition(1, (1,)), {"leader": NO_LEADER}),  # no leader
        (partition(NO_LEADER, (1,), elr=(2,)), {"leader": 2, "isr": (2,)}),  # an eligible one
        (partition(NO_LEADER, (1,)), {"leader": 3, "isr": (3,)}),  # an unclean one
    ]
    view = ClusterView()
    view.topics["orders"] = topic(*(before for before, _ in states))
    after = topic(*(before.changed(**fields) for before, fields in states))
    assert count_changes(view, [after]) == Changes(topics=1, elections=3, unclean_elections=1)
