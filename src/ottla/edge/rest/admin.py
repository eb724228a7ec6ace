"""Admin requests of the proxy: blocking functions of a Cluster, which `Kafka.call` runs in a thread.

A refusal of the cluster is raised as KafkaRefusal at once. Only codes that mean "ask another broker" or "not ready yet"
are retried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.errors import BrokerError
from ottla.client.protocol.metadata import Node
from ottla.edge.rest.errors import KafkaRefusal
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResult,
)
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic

#: resource types of configs
TOPIC: Final = 2
BROKER: Final = 4
#: operations of IncrementalAlterConfigs
SET: Final = 0
DELETE: Final = 1

_TRANSIENT: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
_METADATA_MIN: Final = 4
_METADATA_OPERATIONS_FROM: Final = 8

_T = TypeVar("_T")


class ConfigChange(NamedTuple):
    """One change of a config: `operation` is SET or DELETE."""

    name: str
    operation: int
    value: str | None


class ConfigTarget(NamedTuple):
    """A resource with configs: a topic, a broker, or all brokers (an empty name)."""

    resource_type: int
    name: str


def check(code: int, subject: str, text: str | None = None) -> None:
    """Raise if the code is an error: BrokerError if the request may be repeated, else KafkaRefusal."""
    if code in _TRANSIENT:
        raise BrokerError(code, subject, text)
    if code:
        raise KafkaRefusal(code, subject, text)


def ask_controller(cluster: Cluster, subject: str, request: Message, read: Callable[[Any], _T]) -> _T:
    """Send a request to the controller; `read` checks the answer and returns the result."""

    def attempt(deadline: float) -> _T:
        cluster.forget_controller()  # this client may have been idle since it was elected
        return read(cluster.ask(cluster.controller(deadline), request, deadline=deadline))

    return cluster.retry(subject, attempt)


def ask_any(cluster: Cluster, subject: str, request: Message, read: Callable[[Any], _T], version_min: int = 0) -> _T:
    """Send a request to any broker; `read` checks the answer and returns the result."""

    def attempt(deadline: float) -> _T:
        return read(cluster.ask_any(request, deadline=deadline, version_min=version_min))

    return cluster.retry(subject, attempt)


# Metadata


def describe_cluster(cluster: Cluster) -> MetadataResponse:
    """Return the brokers, the controller and the id of the cluster."""
    return _ask_metadata(cluster, "metadata", [], _whole)


def list_topics(cluster: Cluster, *, with_operations: bool = False) -> MetadataResponse:
    """Return all topics that the identity may see."""
    return _ask_metadata(cluster, "metadata", None, _whole, with_operations=with_operations)


def describe_topic(
    cluster: Cluster, name: str, *, with_operations: bool = False, create: bool = False
) -> MetadataResponseTopic:
    """Return one topic. Raise KafkaRefusal if the cluster does not know it.

    With `create` the broker creates the topic if its settings allow that (`auto.create.topics.enable`).
    """

    def read(answer: Any) -> MetadataResponseTopic:
        (topic,) = answer.topics
        if topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE and not topic.partitions:
            raise BrokerError(topic.error_code, f"topic {name}")  # it is being created
        if topic.error_code not in (0, ErrorCode.LEADER_NOT_AVAILABLE):
            raise KafkaRefusal(topic.error_code, f"topic {name}")
        found: MetadataResponseTopic = topic
        return found

    return _ask_metadata(
        cluster, f"topic {name}", [MetadataRequestTopic(name=name)], read,
        with_operations=with_operations, create=create,
    )  # fmt: skip


def _ask_metadata(
    cluster: Cluster,
    subject: str,
    topics: list[MetadataRequestTopic] | None,
    read: Callable[[Any], _T],
    *,
    with_operations: bool = False,
    create: bool = False,
) -> _T:
    request = MetadataRequest(
        topics=topics, allow_auto_topic_creation=create, include_topic_authorized_operations=with_operations
    )
    version_min = _METADATA_OPERATIONS_FROM if with_operations else _METADATA_MIN
    return ask_any(cluster, subject, request, read, version_min)


def _whole(answer: MetadataResponse) -> MetadataResponse:
    return answer


# Topics


def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int | None,
    replication_factor: int | None,
    assignments: Mapping[int, Sequence[int]],
    configs: Sequence[tuple[str, str | None]],
    validate_only: bool,
) -> tuple[int, int]:
    """Create a topic, or check only, and return its number of partitions and replicas; -1 if a broker says neither."""
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if assignments or partitions is None else partitions,
        replication_factor=-1 if assignments or replication_factor is None else replication_factor,
        assignments=[CreatableReplicaAssignment(partition_index=p, broker_ids=ids) for p, ids in assignments.items()],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs],
    )

    request = CreateTopicsRequest(topics=[topic], timeout=_timeout_ms(cluster), validate_only=validate_only)
    row = _change_topic(cluster, name, request, "topics")
    return row.num_partitions, row.replication_factor


def add_partitions(cluster: Cluster, name: str, count: int) -> None:
    """Raise the number of partitions of a topic."""
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    _change_topic(cluster, name, CreatePartitionsRequest(topics=[topic], timeout=_timeout_ms(cluster)), "results")


def delete_topic(cluster: Cluster, name: str) -> None:
    # Each version has one of the two fields; the encoder takes the one of its version.
    request = DeleteTopicsRequest(
        topic_names=[name], topics=[DeleteTopicState(name=name)], timeout=_timeout_ms(cluster)
    )
    _change_topic(cluster, name, request, "responses")


def _change_topic(cluster: Cluster, name: str, request: Message, rows: str) -> Any:
    """Return the row of the answer to a change of one topic. ``rows`` is the field of the answer that has it."""

    def read(answer: Any) -> Any:
        (row,) = getattr(answer, rows)
        check(row.error_code, f"topic {name}", row.error_message)
        return row

    return ask_controller(cluster, f"topic {name}", request, read)


def _timeout_ms(cluster: Cluster) -> int:
    return int(cluster.timeout_s * 1000)


def wait_until_known(cluster: Cluster, name: str, partitions: int) -> None:
    """Wait until a broker names a leader for each partition, because the controller knows a new topic first."""
    deadline = time.monotonic() + cluster.timeout_s
    while time.monotonic() < deadline:
        try:
            topic = describe_topic(cluster, name)
        except KafkaRefusal:
            topic = None
        if topic is not None and sum(row.leader_id >= 0 for row in topic.partitions) >= partitions:
            return
        time.sleep(0.02)


# Configs


def describe_configs(
    cluster: Cluster, targets: Iterable[ConfigTarget], names: Sequence[str] | None = None
) -> dict[ConfigTarget, DescribeConfigsResult]:
    """Return the configs of resources, with their synonyms. Raise KafkaRefusal for the first that is refused."""
    found: dict[ConfigTarget, DescribeConfigsResult] = {}
    elsewhere: list[ConfigTarget] = []
    for target in targets:
        # A broker knows only its own configs; every broker knows those of topics and the defaults of all brokers.
        if target.resource_type == BROKER and target.name:
            found[target] = _describe_at(cluster, [target], names, broker_id=int(target.name))[0]
        else:
            elsewhere.append(target)
    if elsewhere:
        found |= zip(elsewhere, _describe_at(cluster, elsewhere, names), strict=True)
    return found


def _describe_at(
    cluster: Cluster, targets: Sequence[ConfigTarget], names: Sequence[str] | None, broker_id: int | None = None
) -> list[DescribeConfigsResult]:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=each.resource_type, resource_name=each.name, configuration_keys=names)
            for each in targets
        ],
        include_synonyms=True,
    )

    def read(answer: Any) -> list[DescribeConfigsResult]:
        rows = {(row.resource_type, row.resource_name): row for row in answer.results}
        results = [rows[each] for each in targets]
        for row in results:
            check(row.error_code, f"configs of {row.resource_name or 'all brokers'}", row.error_message)
        return results

    if broker_id is None:
        return ask_any(cluster, "configs", request, read)
    return cluster.retry("configs", lambda deadline: read(_ask_broker(cluster, broker_id, request, deadline)))


def alter_configs(
    cluster: Cluster, changes: Mapping[ConfigTarget, Sequence[ConfigChange]], *, validate_only: bool = False
) -> dict[ConfigTarget, KafkaRefusal]:
    """Change configs and return the refusals; each resource is changed as a whole or not at all."""
    by_broker: dict[int | None, list[ConfigTarget]] = {}
    for target in changes:
        is_one_broker = target.resource_type == BROKER and target.name
        by_broker.setdefault(int(target.name) if is_one_broker else None, []).append(target)
    refusals: dict[ConfigTarget, KafkaRefusal] = {}
    for broker_id, targets in by_broker.items():
        request = IncrementalAlterConfigsRequest(
            resources=[
                AlterConfigsResource(
                    resource_type=each.resource_type, resource_name=each.name,
                    configs=[
                        AlterableConfig(name=change.name, config_operation=change.operation, value=change.value)
                        for change in changes[each]
                    ],
                )
                for each in targets
            ],
            validate_only=validate_only,
        )  # fmt: skip

        def read(answer: Any) -> None:
            for row in answer.responses:
                if row.error_code in _TRANSIENT:
                    raise BrokerError(row.error_code, row.resource_name, row.error_message)
                if row.error_code:
                    target = ConfigTarget(row.resource_type, row.resource_name)
                    refusals[target] = KafkaRefusal(row.error_code, row.resource_name, row.error_message)

        if broker_id is None:
            ask_controller(cluster, "configs", request, read)
        else:
            to_broker = broker_id
            cluster.retry("configs", lambda by: read(_ask_broker(cluster, to_broker, request, by)))  # noqa: B023
    return refusals


def _ask_broker(cluster: Cluster, broker_id: int, request: Message, deadline: float) -> Any:
    answer = cluster.metadata([], deadline)
    for row in answer.brokers:
        if row.node_id == broker_id:
            return cluster.ask(Node(row.node_id, row.host, row.port), request, deadline=deadline)
    raise KafkaRefusal(
        ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {broker_id}", f"Broker {broker_id} cannot be found."
    )


# Offsets and reassignments


def list_offsets(cluster: Cluster, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return an offset for each partition: EARLIEST, LATEST (read committed), or the first at or after a time in ms."""
    found = cluster.list_offsets(wanted, isolation=Isolation.READ_COMMITTED)
    return {tp: at.offset for tp, at in found.items()}


def partition_offsets(cluster: Cluster, topic: str, partition: int) -> tuple[int, int]:
    """Return the first offset of a partition and the offset after the last record."""
    tp = TopicPartition(topic, partition)
    return list_offsets(cluster, {tp: EARLIEST})[tp], list_offsets(cluster, {tp: LATEST})[tp]


def list_reassignments(cluster: Cluster, topics: Mapping[str, Sequence[int]] | None) -> dict[TopicPartition, Any]:
    """Return the reassignments in progress of these partitions, or all."""
    named = None
    if topics is not None:
        named = [ListPartitionReassignmentsTopics(name=name, partition_indexes=rows) for name, rows in topics.items()]

    def read(answer: Any) -> dict[TopicPartition, Any]:
        check(answer.error_code, "reassignments", answer.error_message)
        return {
            TopicPartition(topic.name, row.partition_index): row for topic in answer.topics for row in topic.partitions
        }

    request = ListPartitionReassignmentsRequest(timeout=_timeout_ms(cluster), topics=named)
    return ask_controller(cluster, "reassignments", request, read)
