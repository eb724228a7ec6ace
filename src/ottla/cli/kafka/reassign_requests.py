"""The requests of `kafka-reassign-partitions`: moves, directories and throttles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.cli.kafka.connection import Admin
from ottla.cli.kafka.errors import CommandFailed, RequestError, check
from ottla.client.protocol.metadata import by_topic
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition

_LEADER_RATE, _FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
_DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
_LEADERS, _FOLLOWERS = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
_TOPIC, _BROKER = 2, 4
_SET, _DELETE = 0, 1
_TIMEOUT_MS = 60_000


class Move(NamedTuple):
    """A reassignment that is in progress."""

    replicas: Sequence[int]
    adding: Sequence[int]
    removing: Sequence[int]

    @property
    def sources(self) -> list[int]:
        return [broker for broker in self.replicas if broker not in self.adding]


class Replica(NamedTuple):
    """A replica of a partition."""

    partition: TopicPartition
    broker: int


def text_of(name: TopicPartition) -> str:
    return f"{name.topic}-{name.partition}"


def moves(admin: Admin) -> dict[TopicPartition, Move]:
    """Return all reassignments that are in progress."""
    from ottla.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

    reply = admin.ask_owner_of_metadata(ListPartitionReassignmentsRequest(timeout=_TIMEOUT_MS, topics=None))
    check(reply.error_code, reply.error_message)
    return {
        TopicPartition(topic.name, row.partition_index): Move(row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in reply.topics
        for row in topic.partitions
    }


def replicas(admin: Admin, topics: Collection[str]) -> dict[TopicPartition, Sequence[int]]:
    """Return the replicas of the partitions of these topics. A topic that does not exist is absent."""
    found: dict[TopicPartition, Sequence[int]] = {}
    for row in admin.cluster_metadata(sorted(topics)).topics if topics else ():
        if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            check(row.error_code)
        found |= {TopicPartition(row.name or "", each.partition_index): each.replica_nodes for each in row.partitions}
    return found


def racks(admin: Admin, brokers: Collection[int]) -> dict[int, str | None]:
    """Return the racks of those of these brokers that are alive."""
    return {row.node_id: row.rack for row in admin.metadata([]).brokers if row.node_id in brokers}


def directories(admin: Admin, wanted: Iterable[Replica]) -> dict[Replica, tuple[str | None, str | None]]:
    """Return the directory of each replica, and that to which it moves."""
    from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

    by_broker: dict[int, list[TopicPartition]] = {}
    for replica in wanted:
        by_broker.setdefault(replica.broker, []).append(replica.partition)
    nodes = {node.broker_id: node for node in admin.brokers()} if by_broker else {}
    found: dict[Replica, tuple[str | None, str | None]] = {}
    for broker, names in by_broker.items():
        if broker not in nodes:
            continue
        topics = [
            DescribableLogDirTopic(topic=topic, partitions=[name.partition for name in rows])
            for topic, rows in by_topic(names).items()
        ]
        for result in admin.ask(nodes[broker], DescribeLogDirsRequest(topics=topics)).results:
            for topic in result.topics:
                for row in topic.partitions:
                    replica = Replica(TopicPartition(topic.name, row.partition_index), broker)
                    current, future = found.get(replica, (None, None))
                    found[replica] = (current, result.log_dir) if row.is_future_key else (result.log_dir, future)
    return found


def reassign(
    admin: Admin, targets: Mapping[TopicPartition, Sequence[int] | None], *, allow_factor_change: bool
) -> dict[TopicPartition, RequestError]:
    """Begin moves, or cancel those to None. Return the partitions that were refused."""
    from ottla.wire.messages.alter_partition_reassignments import (
        AlterPartitionReassignmentsRequest,
        ReassignablePartition,
        ReassignableTopic,
    )

    topics = [
        ReassignableTopic(
            name=topic,
            partitions=[
                ReassignablePartition(
                    partition_index=name.partition, replicas=None if (to := targets[name]) is None else list(to)
                )
                for name in names
            ],
        )
        for topic, names in by_topic(targets).items()
    ]
    request = AlterPartitionReassignmentsRequest(
        timeout=_TIMEOUT_MS, topics=topics, allow_replication_factor_change=allow_factor_change
    )
    reply = admin.ask_owner_of_metadata(request, 0 if allow_factor_change else 1)
    check(reply.error_code, reply.error_message)
    return {
        TopicPartition(topic.name, row.partition_index): RequestError(row.error_code, row.error_message)
        for topic in reply.responses
        for row in topic.partitions
        if row.error_code
    }


def move_directories(admin: Admin, wanted: Mapping[Replica, str]) -> list[Replica]:
    """Begin moves between directories. Return those that have begun; the others are not on their broker yet."""
    from ottla.wire.messages.alter_replica_log_dirs import (
        AlterReplicaLogDir,
        AlterReplicaLogDirsRequest,
        AlterReplicaLogDirTopic,
    )

    nodes = {node.broker_id: node for node in admin.brokers()}
    started = []
    for replica, path in wanted.items():
        name = replica.partition
        topic = AlterReplicaLogDirTopic(name=name.topic, partitions=[name.partition])
        request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
        row = admin.ask(nodes[replica.broker], request).results[0].partitions[0]
        if row.error_code == ErrorCode.REPLICA_NOT_AVAILABLE:
            continue
        if row.error_code:
            raise CommandFailed(f"Failed to alter dir for {text_of(name)}-{replica.broker}")
        started.append(replica)
    return started


# Throttles


def clear_broker_throttles(admin: Admin, brokers: Iterable[int]) -> None:
    _alter(
        admin, _BROKER, {str(each): dict.fromkeys((_LEADER_RATE, _FOLLOWER_RATE, _DIRECTORY_RATE)) for each in brokers}
    )


def clear_topic_throttles(admin: Admin, topics: Iterable[str]) -> None:
    _alter(admin, _TOPIC, {each: dict.fromkeys((_LEADERS, _FOLLOWERS)) for each in topics})


def throttle(
    admin: Admin,
    targets: Mapping[TopicPartition, Sequence[int]],
    sources: Mapping[TopicPartition, Sequence[int]],
    rate: int,
) -> None:
    """Limit the rate of the brokers that send or receive replicas of these partitions."""
    leaders: dict[str, set[str]] = {}
    followers: dict[str, set[str]] = {}
    brokers: set[int] = set()
    for name, old in sources.items():
        new = [broker for broker in targets.get(name, ()) if broker not in old]
        leaders.setdefault(name.topic, set()).update(f"{name.partition}:{broker}" for broker in old)
        followers.setdefault(name.topic, set()).update(f"{name.partition}:{broker}" for broker in new)
        brokers |= {*old, *new}
    _alter(
        admin,
        _TOPIC,
        {
            topic: {_LEADERS: ",".join(sorted(leaders[topic])), _FOLLOWERS: ",".join(sorted(followers[topic]))}
            for topic in leaders
        },
    )
    _alter(
        admin, _BROKER, {str(each): {_LEADER_RATE: str(rate), _FOLLOWER_RATE: str(rate)} for each in sorted(brokers)}
    )


def throttle_directories(admin: Admin, brokers: Iterable[int], rate: int) -> None:
    _alter(admin, _BROKER, {str(each): {_DIRECTORY_RATE: str(rate)} for each in sorted(brokers)})


def _alter(admin: Admin, kind: int, changes: Mapping[str, Mapping[str, str | None]]) -> None:
    """Set settings of topics or brokers; None removes one."""
    from ottla.wire.messages.incremental_alter_configs import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )

    resources = [
        AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[
                AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                for key, value in values.items()
            ],
        )
        for name, values in changes.items()
    ]
    nodes = {str(node.broker_id): node for node in admin.brokers()}
    groups = [resources] if kind == _TOPIC else [[each] for each in resources]
    for group in filter(None, groups):
        request = IncrementalAlterConfigsRequest(resources=group)
        node = nodes.get(group[0].resource_name) if kind == _BROKER else None
        answer = admin.ask_any(request) if node is None else admin.ask(node, request)
        for row in answer.responses:
            check(row.error_code, row.error_message)
