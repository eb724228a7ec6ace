"""Read the state of a cluster once, with few requests.

The number of requests grows with the brokers, and with the topics divided by hundreds. A part that fails, because this
client may not read it or the cluster does not have it, is noted in the picture. A broker that gives no answer costs
one timeout: it gets no further request. Works with every Kafka cluster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ottla.admin import config_requests
from ottla.admin.client import AdminClient, nodes_of, topic_state_of
from ottla.admin.failure import NotHealthy
from ottla.client.protocol.metadata import Node, parse_bootstrap
from ottla.health.asker import Asker
from ottla.health.picture_brokers import BrokerReader, read_certificates
from ottla.health.picture_clients import read_acls, read_groups, read_quotas
from ottla.health.picture_offsets import read_offsets, read_timestamps, read_transactions
from ottla.health.types import ClusterPicture, Part, TopicPicture
from ottla.lag.types import GroupLag
from ottla.model.types import TopicPartition
from ottla.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest

__all__ = ["ClusterPicture", "PictureOptions", "read_picture"]

#: the settings of topics that checks read
_TOPIC_SETTINGS = (
    "cleanup.policy",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "max.message.bytes",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.ms",
    "unclean.leader.election.enable",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureOptions:
    """The bounds of a reading."""

    #: for one request; a broker that takes longer is asked nothing more
    request_timeout_s: float = 10.0
    #: groups whose members are read: those in a rebalance first
    groups_max: int = 1000
    #: partitions whose offsets are read
    partitions_max: int = 50_000
    #: partitions whose newest timestamp is read
    timestamps_max: int = 5000
    #: open transactions that are described
    transactions_max: int = 200
    #: connect to the TLS listeners of the brokers and read their certificates
    certificates: bool = True


_DEFAULT_OPTIONS = PictureOptions()


def read_picture(
    client: AdminClient,
    *,
    options: PictureOptions = _DEFAULT_OPTIONS,
    lag: Mapping[str, GroupLag] | None = None,
    before: ClusterPicture | None = None,
) -> ClusterPicture:
    """Return the state of the cluster. Raise Failure if no broker answers.

    ``lag`` has the lag of groups, from one reading of `ottla.lag`; ``before`` is an earlier picture of this cluster.
    """
    metadata = client.metadata()
    asker = Asker(client, options.request_timeout_s)
    asker.requests = 1
    nodes = dict(sorted(nodes_of(metadata).items()))
    if not nodes:
        raise NotHealthy("the metadata name no broker; try again in a moment, or see the logs of the brokers")
    if lag is None:
        asker.refused(Part.LAG, "it was not read")
    controller = nodes.get(metadata.controller_id)
    # A controller that does not answer comes last, and so does each broker that has not answered before.
    ordered = ([controller] if controller else []) + [node for node in nodes.values() if node != controller]
    topics = _read_topics(asker, metadata, ordered)
    brokers = BrokerReader(asker, nodes.values(), {row.node_id: row.rack for row in metadata.brokers})
    added = {(each.name, number) for topic in topics.values() for each in topic.partitions for number in each.adding}
    described, added_bytes = brokers.read(added)
    leaders = _leaders(topics, nodes)
    offsets = read_offsets(asker, leaders, options.partitions_max)
    transactions, hanging = read_transactions(asker, nodes.values(), leaders, offsets, options.transactions_max)
    picture = ClusterPicture(
        read_at_ms=int(time.time() * 1000),
        cluster_id=metadata.cluster_id or "",
        controller_id=metadata.controller_id if metadata.controller_id >= 0 else None,
        bootstrap_hosts=tuple(host for host, _ in parse_bootstrap(client.bootstrap)),
        brokers=described,
        topics=topics,
        added_bytes=added_bytes,
        offsets=offsets,
        timestamps=read_timestamps(asker, leaders, offsets, options.timestamps_max),
        groups=read_groups(asker, nodes.values(), options.groups_max),
        transactions=transactions,
        hanging=hanging,
        quotas=read_quotas(asker, ordered),
        acls=read_acls(asker, ordered),
        certificates=read_certificates(asker, described.values()) if options.certificates else (),
        lag=lag or {},
        before=None if before is None else replace(before, before=None),
    )
    problems = asker.problems
    return replace(
        picture,
        brokers={number: replace(each, problem=problems.get(number, "")) for number, each in described.items()},
        unknown=asker.unknown,
        requests=asker.requests,
    )


def _read_topics(asker: Asker, metadata: Any, nodes: Sequence[Node]) -> dict[str, TopicPicture]:
    moves = _read_reassignments(asker, nodes)
    names = sorted(row.name for row in metadata.topics if row.name)
    settings = _read_topic_settings(asker, names, nodes)
    topics = {}
    for row in sorted(metadata.topics, key=lambda row: row.name or ""):
        if not row.name:
            continue
        internal = row.is_internal or row.name.startswith("__")
        partitions = topic_state_of(row, internal=internal).partitions
        if moves:
            partitions = tuple(
                replace(each, adding=moves[each.name][0], removing=moves[each.name][1]) if each.name in moves else each
                for each in partitions
            )
        topics[row.name] = TopicPicture(
            name=row.name, internal=internal, partitions=partitions, settings=settings.get(row.name, {})
        )
    return topics


def _read_reassignments(
    asker: Asker, nodes: Sequence[Node]
) -> dict[TopicPartition, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the replicas that moves add and remove, by partition."""
    if len(nodes) < 2:
        return {}
    request = ListPartitionReassignmentsRequest(timeout=5000, topics=None)
    answer = asker.ask_any(Part.REASSIGNMENTS, nodes, request)
    if answer is None or not asker.accepts(Part.REASSIGNMENTS, answer.error_code, answer.error_message):
        return {}
    return {
        TopicPartition(topic.name, row.partition_index): (tuple(row.adding_replicas), tuple(row.removing_replicas))
        for topic in answer.topics
        for row in topic.partitions
    }


def _read_topic_settings(asker: Asker, names: Sequence[str], nodes: Sequence[Node]) -> dict[str, dict[str, str]]:
    """Return the settings that checks read, by topic. A topic that was deleted meanwhile has none."""
    found: dict[str, dict[str, str]] = {}
    refused = 0
    for part in config_requests.parts(names):
        request = config_requests.describe_request("topic", part, _TOPIC_SETTINGS)
        answer = asker.ask_any(Part.TOPIC_SETTINGS, nodes, request)
        for row in answer.results if answer is not None else ():
            if row.error_code:
                refused = row.error_code
            else:
                found[row.resource_name] = {each.name: each.value for each in row.configs if each.value}
    if refused and not found:
        asker.accepts(Part.TOPIC_SETTINGS, refused)
    return found


def _leaders(topics: Mapping[str, TopicPicture], nodes: Mapping[int, Node]) -> dict[TopicPartition, Node]:
    """Return the leader of each partition that has one."""
    return {
        each.name: nodes[each.leader]
        for topic in topics.values()
        for each in topic.partitions
        if each.leader is not None and each.leader in nodes
    }
