"""Reassignment: the replicas of a partition move to other brokers while it is in use. Pure functions.

    start      replicas = target + those of the old replicas that are not in the target;
               ``adding`` = new brokers, ``removing`` = old brokers that are not in the target
    (the added replicas fetch and join the ISR, as any follower does)
    progress   as soon as the whole target is in the ISR: a broker of the target leads, replicas = target
    cancel     replicas = those of before; the added ones leave the ISR and are deleted

The leader epoch rises with each of these changes. A failure changes nothing here: elections consider all replicas, and
the reassignment goes on when the target is in the ISR.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from ottla.broker.metadata.leadership import MinIsr, elect_partition, partition_of, topics_of
from ottla.broker.metadata.nodes import CONTROLLER_EPOCH, topic_path
from ottla.broker.metadata.store import Check, Op, Put
from ottla.broker.metadata.topic_plans import check_topics, put_state
from ottla.broker.metadata.view import NO_LEADER, ClusterView, PartitionView, TopicView
from ottla.model.errors import ErrorCode, InvalidReplicaAssignment, Refused


class Reassignment(NamedTuple):
    """A reassignment that is in progress."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


def target_of(partition: PartitionView) -> tuple[int, ...]:
    """Return the replicas that the partition has when its reassignment is complete."""
    return tuple(each for each in partition.replicas if each not in partition.removing)


def original_of(partition: PartitionView) -> tuple[int, ...]:
    """Return the replicas that the partition has when its reassignment is cancelled."""
    return tuple(each for each in partition.replicas if each not in partition.adding)


def start(
    topic: TopicView,
    number: int,
    target: Sequence[int],
    *,
    alive: Collection[int],
    known: Collection[int],
    min_isr: int,
) -> PartitionView:
    """Return the partition with a reassignment to ``target``, which replaces one that is in progress.

    Return it complete if the target is in sync already, and the same object if nothing changes. ``known`` are the
    brokers that exist. Raise a KafkaError if the target is not allowed.
    """
    partition = partition_of(topic, number)
    wanted = tuple(target)
    if not wanted or len(set(wanted)) != len(wanted):
        raise InvalidReplicaAssignment(f"replicas {list(wanted)} are empty or name a broker twice")
    if unknown := set(wanted) - set(known):
        raise InvalidReplicaAssignment(f"broker {min(unknown)} does not exist")
    if wanted == target_of(partition):
        return partition
    old = original_of(partition)
    adding = tuple(each for each in wanted if each not in old)
    removing = tuple(each for each in old if each not in wanted)
    begun = _with_replicas(partition, (*wanted, *removing), adding, removing, alive=alive, min_isr=min_isr)
    finished = progress(begun, alive, min_isr)
    # One change, not two: no broker has seen the partition between them.
    if finished is begun:
        return begun
    return replace(finished, leader_epoch=begun.leader_epoch, partition_epoch=begun.partition_epoch)


def progress(partition: PartitionView, alive: Collection[int], min_isr: int) -> PartitionView:
    """Return the partition with its reassignment complete; the same object if there is none or it is not complete."""
    if not partition.adding and not partition.removing:
        return partition
    target = target_of(partition)
    unclean = {end.broker for end in partition.unclean}
    if partition.leader == NO_LEADER or not set(target) <= set(partition.isr) - unclean:
        return partition
    if not any(each in alive for each in target):
        return partition  # the leader is one of the replicas that will be removed
    return _with_replicas(partition, target, (), (), alive=alive, min_isr=min_isr)


def cancel(topic: TopicView, number: int, *, alive: Collection[int], min_isr: int) -> PartitionView:
    """Return the partition with its reassignment cancelled. Raise NO_REASSIGNMENT_IN_PROGRESS if there is none.

    Raise INVALID_REPLICA_ASSIGNMENT if only added replicas can lead: without them records would be lost.
    """
    partition = partition_of(topic, number)
    if not partition.adding and not partition.removing:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic.name}-{number} is not being reassigned")
    return _with_replicas(partition, original_of(partition), (), (), alive=alive, min_isr=min_isr)


def _with_replicas(
    partition: PartitionView,
    replicas: tuple[int, ...],
    adding: tuple[int, ...],
    removing: tuple[int, ...],
    *,
    alive: Collection[int],
    min_isr: int,
) -> PartitionView:
    """Return the partition with other replicas and the next leader epoch; a leader that is none of them is replaced."""
    isr = tuple(each for each in partition.isr if each in replicas)
    unclean = {end.broker for end in partition.unclean}
    had_leader = partition.leader in alive
    if not isr or (had_leader and not any(each in alive and each not in unclean for each in isr)):
        raise InvalidReplicaAssignment(f"none of the replicas {list(replicas)} is alive and in sync; wait until one is")
    members = {*isr, *(each for each in partition.elr if each in replicas)}
    after = replace(
        partition, replicas=replicas, adding=adding, removing=removing, isr=isr,
        elr=tuple(each for each in partition.elr if each in replicas),
        unclean=tuple(end for end in partition.unclean if end.broker in members),
        leader=partition.leader if partition.leader in isr else NO_LEADER,
    )  # fmt: skip
    after = elect_partition(after, alive, min_isr)
    return replace(after, leader_epoch=partition.leader_epoch + 1, partition_epoch=partition.partition_epoch + 1)


def progress_all(view: ClusterView, names: Iterable[str] | None = None, *, min_isr: MinIsr) -> list[TopicView]:
    """Return those of these topics, or of all, whose reassignments are complete now. The controller writes them."""
    changed = []
    for topic in topics_of(view, names):
        if any(each.adding or each.removing for each in topic.partitions):
            setting = min_isr(topic)
            partitions = tuple(progress(each, view.brokers.keys(), setting) for each in topic.partitions)
            if partitions != topic.partitions:
                changed.append(replace(topic, partitions=partitions))
    return changed


def list_reassignments(view: ClusterView, topics: Iterable[str] | None = None) -> list[Reassignment]:
    """Return the reassignments in progress, of these topics or of all."""
    names = view.topics if topics is None else [name for name in topics if name in view.topics]
    return [
        Reassignment(name, number, each.replicas, each.adding, each.removing)
        for name in names
        for number, each in enumerate(view.topics[name].partitions)
        if each.adding or each.removing
    ]


def ops_reassign(view: ClusterView, changed: Iterable[TopicView], controller_epoch: int | None = None) -> list[Op]:
    """Return the operations that replace assignments and states of topics; none if no topic changes.

    ``controller_epoch`` belongs to the automatic decisions of the controller, as in ``ops_elect``.
    """
    topics = list(changed)
    if not topics:
        return []
    fence = [] if controller_epoch is None else [Check(CONTROLLER_EPOCH, controller_epoch)]
    puts: list[Op] = []
    for topic in topics:
        path = topic_path(topic.name)
        puts += [Put(path, topic.assignment_json(), view.versions[path]), put_state(view, topic)]
    return [*fence, check_topics(view), *puts]
