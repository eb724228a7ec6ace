"""The controller's decisions about topics, as pure functions.

They take a request and the cluster view and return the new topic, or the operations for the metadata store.
They raise a KafkaError if the request is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ottla.broker.metadata.multis import check_state_size
from ottla.broker.metadata.nodes import (
    TOPICS,
    count_change,
    deleted_topic_path,
    state_path,
    to_json,
    topic_config_path,
    topic_path,
)
from ottla.broker.metadata.placement import ordered_brokers, place_replicas, racks_of
from ottla.broker.metadata.store import Check, Create, Delete, Op, Put
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView, can_collide
from ottla.model.errors import (
    InvalidPartitions,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopic,
    PolicyViolation,
    TopicAlreadyExists,
)

NAME_LENGTH_MAX = 249
#: maximum number of partitions that one call may create, as in Kafka
PARTITIONS_PER_CALL_MAX = 10_000
#: deletions that the store holds at most
DELETIONS_MAX = 1000
#: outdated deletions that one deletion removes at most: more than one, so that a backlog shrinks
_OUTDATED_PER_DELETION = 8
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """The topic that a client requests. A count of -1 means the broker's default."""

    name: str
    partition_count: int
    replication_factor: int
    assignments: Mapping[int, Sequence[int]]
    config: Mapping[str, str]


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic if the name is not allowed. An allowed name is also safe as the name of a directory."""
    if not name or name in (".", ".."):
        raise InvalidTopic(f"topic name {name!r} is not allowed; use letters, digits, '.', '_' and '-'")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidTopic(f"topic name is longer than {NAME_LENGTH_MAX} characters")
    if not _NAME.fullmatch(name):
        raise InvalidTopic(f"topic name {name[:40]!r} has characters other than letters, digits, '.', '_' and '-'")


def plan_create_topic(
    view: ClusterView,
    brokers: Sequence[int],
    wanted: NewTopic,
    *,
    topic_id: bytes,
    default_partitions: int,
    default_replication_factor: int,
    leader_epoch: int = 0,
) -> TopicView:
    """Return the topic to create. Raise a KafkaError if the request is invalid. The caller validates the config."""
    check_topic_name(wanted.name)
    if wanted.name in view.topics:
        raise TopicAlreadyExists(f"topic {wanted.name!r} already exists")
    # In metric names Kafka replaces dots by underscores, so it refuses names that differ only in these characters.
    if other := view.topic_that_collides(wanted.name):
        raise InvalidTopic(f"topic {wanted.name!r} collides with topic {other!r}")
    if wanted.assignments:
        replicas = _check_assignments(wanted, {*brokers, *view.registered})
    else:
        count = default_partitions if wanted.partition_count == -1 else wanted.partition_count
        factor = default_replication_factor if wanted.replication_factor == -1 else wanted.replication_factor
        if count <= 0:
            raise InvalidPartitions("number of partitions must be larger than 0, or -1 for the default")
        if count > PARTITIONS_PER_CALL_MAX:
            raise PolicyViolation(f"one call may create {PARTITIONS_PER_CALL_MAX} partitions at most")
        if factor <= 0:
            raise InvalidReplicationFactor("replication factor must be larger than 0, or -1 for the default")
        replicas = _place(view, brokers_to_use(view, brokers, factor), count, factor, topic_id)
    partitions = tuple(_new_partition(view, ids, leader_epoch) for ids in replicas)
    topic = TopicView(name=wanted.name, topic_id=topic_id, partitions=partitions, config=dict(wanted.config))
    check_state_size(view, topic)
    return topic


def _new_partition(view: ClusterView, replicas: tuple[int, ...], leader_epoch: int) -> PartitionView:
    """Return a new partition whose live replicas are in sync. Raise InvalidReplicaAssignment if none is alive.

    Before the first broker has registered, all of them count as alive. A broker that is being stopped leads a new
    partition only if there is no other.
    """
    alive = tuple(each for each in replicas if each in view.brokers) if view.brokers else replicas
    isr = tuple(each for each in alive if each not in view.leaving) or alive
    if not isr:
        raise InvalidReplicaAssignment(f"none of the brokers {list(replicas)} is alive")
    return PartitionView(leader=isr[0], leader_epoch=leader_epoch, replicas=replicas, isr=isr)


def brokers_to_use(view: ClusterView, alive: Sequence[int], factor: int) -> list[int]:
    """Return the live brokers, and as many registered ones that are down as a replication factor needs.

    As in Kafka, a topic can be created while a broker is down: its replicas there get in sync when it is back. Raise
    InvalidReplicationFactor if there are not enough.
    """
    brokers = [*alive, *sorted(set(view.registered) - set(alive))]
    if factor > len(brokers):
        raise InvalidReplicationFactor(f"replication factor {factor} needs more than {len(brokers)} brokers")
    return brokers[: max(factor, len(alive))]


def _place(
    view: ClusterView,
    brokers: Sequence[int],
    count: int,
    factor: int,
    topic_id: bytes,
    *,
    existing: TopicView | None = None,
) -> list[tuple[int, ...]]:
    """Return the replicas of new partitions. The random start comes from the topic id, so a decision is repeatable.

    Partitions that are added to a topic continue from the first replica of its partition 0, if that broker is alive.
    """
    racks = racks_of(view, brokers)
    start = int.from_bytes(topic_id[:4], "big") % len(brokers)
    if existing is not None:
        ordered, preferred = ordered_brokers(brokers, racks), existing.partitions[0].replicas[0]
        start = ordered.index(preferred) if preferred in ordered else start
    return place_replicas(
        brokers, count, factor, start, shift=int.from_bytes(topic_id[4:8], "big") % max(1, len(brokers) - 1),
        first=len(existing.partitions) if existing is not None else 0, racks=racks,
    )  # fmt: skip


def _check_assignments(wanted: NewTopic, brokers: Collection[int]) -> list[tuple[int, ...]]:
    if wanted.partition_count != -1 or wanted.replication_factor != -1:
        raise InvalidRequest("with a manual assignment, partitions and replication factor must both be -1")
    numbers = sorted(wanted.assignments)
    if numbers != list(range(len(numbers))):
        raise InvalidReplicaAssignment("partitions of a manual assignment must be numbered from 0 without gaps")
    return check_replica_lists([tuple(wanted.assignments[number]) for number in numbers], brokers)


def check_replica_lists(lists: list[tuple[int, ...]], brokers: Collection[int]) -> list[tuple[int, ...]]:
    for ids in lists:
        if not ids or len(set(ids)) != len(ids):
            raise InvalidReplicaAssignment(f"replicas {list(ids)} are empty or name a broker twice")
        if len(ids) != len(lists[0]):
            raise InvalidReplicaAssignment("every partition must have the same number of replicas")
        if unknown := set(ids) - set(brokers):
            raise InvalidReplicaAssignment(f"broker {min(unknown)} does not exist")
    return lists


def ops_create_topic(view: ClusterView, topic: TopicView) -> list[Op]:
    """Return the operations that create a topic, unless the topic or one whose name collides was created meanwhile."""
    return [
        # A topic with a colliding name counts its creation too, so that one of the two conflicts.
        count_change(TOPICS, view.versions[TOPICS], topic.topic_id) if can_collide(topic.name) else check_topics(view),
        Create(topic_path(topic.name), topic.assignment_json()),
        Create(state_path(topic.name), topic.state_json()),
        Create(topic_config_path(topic.name), topic.config_json()),
    ]


def ops_delete_topic(view: ClusterView, topic: TopicView, now_ms: int, change_id: bytes) -> list[Op]:
    """Return the operations that delete a topic and record the deletion, so that every broker knows of it.

    They also remove deletions that are no longer recent, and the oldest one when there are DELETIONS_MAX.
    """
    versions = view.versions
    path = deleted_topic_path(topic.name)
    value = to_json({"version": 1, "deleted_ms": now_ms})
    others = [name for name in view.deletions if name != topic.name]
    outdated = [name for name in others[:_OUTDATED_PER_DELETION] if not view.recently_deleted(name, now_ms)]
    if not outdated and len(others) >= DELETIONS_MAX:
        outdated = others[:1]
    deleted = state_path(topic.name), topic_path(topic.name), topic_config_path(topic.name)
    return [
        count_change(TOPICS, versions[TOPICS], change_id),
        *(Delete(each, versions[each]) for each in deleted if each in versions),
        Put(path, value, versions[path]) if path in versions else Create(path, value),
        *(Delete(each, versions[each]) for each in map(deleted_topic_path, outdated)),
    ]


def plan_create_partitions(
    view: ClusterView,
    topic: TopicView,
    brokers: Sequence[int],
    count: int,
    assignments: Sequence[Sequence[int]] | None,
) -> TopicView:
    """Return the topic with ``count`` partitions. Raise a KafkaError if the request is invalid."""
    now = len(topic.partitions)
    if count <= now:
        raise InvalidPartitions(f"topic {topic.name!r} has {now} partitions; {count} is not more")
    if count - now > PARTITIONS_PER_CALL_MAX:
        raise PolicyViolation(f"one call may create {PARTITIONS_PER_CALL_MAX} partitions at most")
    factor = topic.replication_factor
    if assignments is not None:
        if len(assignments) != count - now:
            raise InvalidReplicaAssignment(f"{len(assignments)} assignments for {count - now} new partitions")
        replicas = check_replica_lists([tuple(ids) for ids in assignments], {*brokers, *view.registered})
        if len(replicas[0]) != factor:
            raise InvalidReplicaAssignment(f"the topic's partitions have {factor} replicas each")
    else:
        usable = brokers_to_use(view, brokers, factor)
        replicas = _place(view, usable, count - now, factor, topic.topic_id, existing=topic)
    added = tuple(_new_partition(view, ids, leader_epoch=0) for ids in replicas)
    grown = replace(topic, partitions=topic.partitions + added)
    check_state_size(view, grown)
    return grown


def ops_update_topic(view: ClusterView, topic: TopicView, change_id: bytes) -> list[Op]:
    """Return the operations that replace the partitions of a topic and their state.

    The change is counted, because concurrent requests for the same number of partitions write the same values, and only
    one of them may succeed.
    """
    path = topic_path(topic.name)
    return [
        count_change(TOPICS, view.versions[TOPICS], change_id),
        Put(path, topic.assignment_json(), view.versions[path]),
        put_state(view, topic),
    ]


def ops_bump_leader_epochs(view: ClusterView, topics: Iterable[str], broker_id: int) -> list[Op]:
    """Return the operations that increase the leader epochs of the partitions that ``broker_id`` leads."""
    led = (view.topics[name] for name in topics if name in view.topics and view.topics[name].is_led_by(broker_id))
    return [check_topics(view), *(put_state(view, bump_leader_epochs(topic, broker_id)) for topic in led)]


def check_topics(view: ClusterView) -> Op:
    """Return the operation that conflicts if a topic was deleted: one created in its place has the same versions."""
    return Check(TOPICS, view.versions[TOPICS])


def put_state(view: ClusterView, topic: TopicView) -> Op:
    """Return the operation that replaces the state of the partitions; it belongs into a multi with check_topics."""
    path = state_path(topic.name)
    return Put(path, topic.state_json(), view.versions[path])


def bump_leader_epochs(topic: TopicView, broker_id: int) -> TopicView:
    """Return the topic with higher leader epochs of the partitions that ``broker_id`` leads.

    Readers can then detect that records are missing after an unclean stop.
    """
    partitions = tuple(
        p.changed(leader_epoch=p.leader_epoch + 1) if p.leader == broker_id else p for p in topic.partitions
    )
    return replace(topic, partitions=partitions)
