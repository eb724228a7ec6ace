"""`kafka-topics`: create, delete, describe and change topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ottla.admin import config_requests
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import CommandFailed, IllegalArgument, RequestError, ToolError, UsageError, check
from ottla.cli.kafka.java import check_uuid, hash_order, is_internal, joined, matching, parse_int
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import FAILED, Tool, print_error, print_line
from ottla.client.cluster import Cluster
from ottla.client.errors import UnsupportedByBroker
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition, topic_id_text

_SHORT_MAX = 32767
_DEFAULT_SOURCE = 5
_LIMIT = 2000
_ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_MIN_ISR = "min.insync.replicas"

_FLAGS = (
    flag("bootstrap-server", help="REQUIRED. Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
    flag("list", help="List topics."),
    flag("create", help="Create a topic."),
    flag("delete", help="Delete topics."),
    flag("alter", help="Add partitions to topics; kafka-configs changes their settings."),
    flag("describe", help="Show partitions, replicas and settings of topics."),
    flag("topic", help="Name of the topic; except with --create, a regular expression.", metavar="TOPIC"),
    flag("topic-id", help="Id of the topic to describe.", metavar="ID"),
    flag("config", help="Setting of the new topic. Repeatable.", metavar="NAME=VALUE"),
    flag("delete-config", help="Ignored since Kafka 4.0.", metavar="NAME"),
    flag("partitions", help="Partitions of a new topic, or the new number.", metavar="N", parse=parse_int),
    flag("replication-factor", help="Replicas of each partition of the new topic.", metavar="N", parse=parse_int),
    flag("replica-assignment", help="Brokers of each partition: 1:2,2:3 for two partitions.", metavar="B:B,B:B,..."),
    flag("under-replicated-partitions", help="Show only partitions with replicas that are not in sync."),
    flag("unavailable-partitions", help="Show only partitions without a leader that is alive."),
    flag("under-min-isr-partitions", help="Show only partitions with fewer in-sync replicas than min.insync.replicas."),
    flag("at-min-isr-partitions", help="Show only partitions with exactly min.insync.replicas in-sync replicas."),
    flag("topics-with-overrides", help="Show only topics with settings of their own."),
    flag("if-exists", help="Succeed without a change if the topic does not exist."),
    flag("if-not-exists", help="Succeed without a change if the topic exists."),
    flag("exclude-internal", help="Leave out internal topics."),
    flag("partition-size-limit-per-response", help="Partitions in one reply.", metavar="N", parse=parse_int),
)  # fmt: skip
_ACTIONS = ("list", "create", "delete", "alter", "describe")
_REPORTS = (
    "under-replicated-partitions",
    "under-min-isr-partitions",
    "at-min-isr-partitions",
    "unavailable-partitions",
)
#: the actions that each flag fits
_ONLY_WITH = {
    "config": ("alter", "create"), "partitions": ("alter", "create"), "replication-factor": ("create",),
    "replica-assignment": ("alter", "create"), **dict.fromkeys(_REPORTS, ("describe",)),
    "topics-with-overrides": ("describe",), "if-exists": ("alter", "delete", "describe"), "if-not-exists": ("create",),
    "exclude-internal": ("list", "describe"),
}  # fmt: skip
_ALTER_CONFIGS = " (To alter topic configurations, the kafka-configs tool can be used.)"


def _run(options: Options) -> int:
    _check(options)
    properties = properties_of(options.value("command-config"))
    action = next(each for each in _ACTIONS if options.has(each))
    call = {"create": "createTopics"}.get(action, "listTopics")
    try:
        with connect(options.value("bootstrap-server"), properties, call=call) as admin:
            _RUN[action](admin, options)
    except UsageError:
        raise
    except ToolError as error:
        print_line(f"Error while executing topic command : {error}")
        return FAILED
    return 0


def _check(options: Options) -> None:
    if len(options.any_of(*_ACTIONS)) != 1:
        raise UsageError("Command must include exactly one action: --list, --describe, --create, --alter or --delete")
    if options.has("delete-config"):
        print_error(
            "delete-config option is no longer supported and deprecated since version 4.0. The config will be fully "
            "removed in future releases."
        )
    if not options.has("bootstrap-server"):
        raise IllegalArgument("--bootstrap-server must be specified")
    options.value("bootstrap-server")
    if options.has("describe") and options.has("if-exists"):
        if not options.any_of("topic", "topic-id"):
            raise UsageError("--topic or --topic-id is required to describe a topic")
        if options.has("topic") and options.has("topic-id"):
            print_line(
                "Only topic id will be used when both --topic and --topic-id are specified and topicId is not "
                "Uuid.ZERO_UUID"
            )
    if not options.any_of("list", "describe"):
        options.require("topic")
    if options.has("alter"):
        if options.has("config"):
            raise UsageError(
                f'Option combination "[[bootstrap-server], [config]]" can\'t be used with option "[alter]"'
                f"{_ALTER_CONFIGS}"
            )
        options.require("partitions")
    for name, actions in _ONLY_WITH.items():
        options.refuse_with(name, [each for each in _ACTIONS if each not in actions])
    if options.has("create"):
        options.refuse_with("replica-assignment", ("partitions", "replication-factor"))
    for name in _REPORTS:
        options.refuse_with(name, ("topics-with-overrides",))


def _topics(admin: Admin, options: Options) -> list[str]:
    """Return the names of the topics that the flags select, in order."""
    names = sorted(row.name or "" for row in admin.metadata().topics)
    without_internal = options.has("exclude-internal")
    pattern = options.value("topic")
    if pattern is None:
        return [name for name in names if not (without_internal and is_internal(name))]
    return matching(pattern, names, without_internal=without_internal)


def _existing(admin: Admin, options: Options) -> list[str]:
    """Return the selected topics. Raise IllegalArgument if there is none, without --if-exists."""
    found = _topics(admin, options)
    name = options.value("topic")
    if not found and name and not options.has("if-exists"):
        raise IllegalArgument(f"Topic '{name}' does not exist as expected")
    return found


def _list(admin: Admin, options: Options) -> None:
    print_line("\n".join(_topics(admin, options)))


# Changes


def _create(admin: Admin, options: Options) -> None:
    from ottla.wire.messages.create_topics import (
        CreatableReplicaAssignment,
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )

    name = options.value("topic")
    partitions, factor = options.value("partitions"), options.value("replication-factor")
    assignment = _assignment(options.value("replica-assignment"))
    configs = _settings(options.values("config"))
    if "." in name or "_" in name:
        print_line(
            "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could "
            "collide. To avoid issues it is best to use either, but not both."
        )
    if factor is not None and not 1 <= factor <= _SHORT_MAX:
        raise IllegalArgument(f"The replication factor must be between 1 and {_SHORT_MAX} inclusive")
    if partitions is not None and partitions < 1:
        raise IllegalArgument("The partitions must be greater than 0")
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if partitions is None else partitions,
        replication_factor=-1 if factor is None else factor,
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
            for number, brokers in enumerate(assignment)
        ],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
    request = CreateTopicsRequest(topics=[topic], timeout=int(admin.timeout_s * 500))
    row = admin.ask_controller("create topics", request, 0 if assignment else 4).topics[0]
    if row.error_code == ErrorCode.TOPIC_ALREADY_EXISTS and options.has("if-not-exists"):
        return
    check(row.error_code, row.error_message)
    print_line(f"Created topic {name}.")


def _assignment(text: str | None) -> list[list[int]]:
    """Return the brokers of each partition. Raise ToolError if they cannot be read or are not of the same number."""
    found: list[list[int]] = []
    for number, part in enumerate((text or "").split(",") if text else ()):
        brokers = [parse_int(each.strip()) for each in part.split(":")]
        twice = sorted({each for each in brokers if brokers.count(each) > 1})
        if twice:
            raise CommandFailed(f"Partition replica lists may not contain duplicate entries: {joined(twice)}")
        found.append(brokers)
        if len(brokers) != len(found[0]):
            raise ToolError(f"Partition {number} has different replication factor: {brokers}")
    return found


def _settings(texts: Sequence[str]) -> dict[str, str]:
    pairs = [re.split(r"\s*=\s*", text) for text in texts]
    if any(len(pair) != 2 or not pair[1] for pair in pairs):
        raise IllegalArgument(
            'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".'
        )
    return {key.strip(): value.strip() for key, value in pairs}


def _alter(admin: Admin, options: Options) -> None:
    from ottla.wire.messages.create_partitions import (
        CreatePartitionsAssignment,
        CreatePartitionsRequest,
        CreatePartitionsTopic,
    )

    total = options.value("partitions")
    assignment = _assignment(options.value("replica-assignment"))
    names = _existing(admin, options)
    if not names:
        return
    counts = {row.name: len(row.partitions) for row in admin.metadata(names).topics} if assignment else {}
    topics = [
        CreatePartitionsTopic(
            name=name,
            count=total,
            assignments=[CreatePartitionsAssignment(broker_ids=brokers) for brokers in assignment[counts[name] :]]
            if assignment
            else None,
        )
        for name in names
    ]
    request = CreatePartitionsRequest(topics=topics, timeout=int(admin.timeout_s * 500))
    for row in admin.ask_controller("create partitions", request).results:
        check(row.error_code, row.error_message)


def _delete(admin: Admin, options: Options) -> None:
    from ottla.wire.messages.delete_topics import DeleteTopicsRequest

    names = _existing(admin, options)
    if names:
        # Later versions have another field for the names.
        request = DeleteTopicsRequest(topic_names=names, timeout=int(admin.timeout_s * 500))
        for row in admin.ask_controller("delete topics", request, version_max=5).responses:
            check(row.error_code, row.error_message)


# Description


@dataclass(frozen=True, slots=True, kw_only=True)
class _Partition:
    number: int
    leader: int
    replicas: Sequence[int]
    isr: Sequence[int]
    #: eligible leader replicas; None if the broker does not report them
    elr: Sequence[int] | None
    last_elr: Sequence[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topic:
    name: str
    topic_id: str
    partitions: list[_Partition]


_Moves = Mapping[TopicPartition, tuple[Sequence[int], Sequence[int], Sequence[int]]]


def _describe(admin: Admin, options: Options) -> None:
    topics = _described(admin, options)
    if not topics:
        return
    settings = _configs(admin, [topic.name for topic in topics])
    alive = {node.broker_id for node in admin.brokers()}
    moves = _reassignments(admin, topics)
    for topic in topics:
        values, own = settings[topic.name]
        if not options.any_of(*_REPORTS) and (own or not options.has("topics-with-overrides")):
            print_line(_topic_line(topic, own, moves))
        if options.has("topics-with-overrides"):
            continue
        for partition in sorted(topic.partitions, key=lambda row: row.number):
            move = moves.get(TopicPartition(topic.name, partition.number))
            if _is_shown(options, partition, move, min_isr=int(values.get(_MIN_ISR) or 1), alive=alive):
                print_line(_partition_line(topic.name, partition, move))


def _described(admin: Admin, options: Options) -> list[_Topic]:
    wanted = options.value("topic-id")
    if wanted is not None and check_uuid(wanted) != _ZERO_ID:
        rows = admin.metadata().topics
        names = [row.name or "" for row in rows if topic_id_text(bytes(row.topic_id)) == wanted]
        if not names and not options.has("if-exists"):
            raise IllegalArgument(f"TopicId '{wanted}' does not exist as expected")
    else:
        names = _existing(admin, options)
    if not names:
        return []
    limit = options.value("partition-size-limit-per-response") or _LIMIT
    found = admin.call(lambda cluster: _ask_topics(cluster, names, limit))
    return [found[name] for name in hash_order(names, len(names))]


def _ask_topics(cluster: Cluster, names: Sequence[str], limit: int) -> dict[str, _Topic]:
    from ottla.wire.messages.describe_topic_partitions import (
        DescribeTopicPartitionsRequest,
        DescribeTopicPartitionsRequestCursor,
        TopicRequest,
    )

    found: dict[str, _Topic] = {}
    cursor = None
    request = [TopicRequest(name=name) for name in sorted(names)]
    while True:
        try:
            reply = cluster.ask_any(
                DescribeTopicPartitionsRequest(topics=request, response_partition_limit=limit, cursor=cursor)
            )
        except UnsupportedByBroker:
            return _ask_metadata(cluster, names)
        for row in reply.topics:
            check(row.error_code)
            topic = found.setdefault(
                row.name, _Topic(name=row.name, topic_id=topic_id_text(bytes(row.topic_id)) or "", partitions=[])
            )
            topic.partitions.extend(
                _partition(each, each.eligible_leader_replicas or (), each.last_known_elr or ())
                for each in row.partitions
            )
        if reply.next_cursor is None:
            return found
        cursor = DescribeTopicPartitionsRequestCursor(
            topic_name=reply.next_cursor.topic_name, partition_index=reply.next_cursor.partition_index
        )
        request = [each for each in request if each.name >= cursor.topic_name]


def _ask_metadata(cluster: Cluster, names: Sequence[str]) -> dict[str, _Topic]:
    import time

    found = {}
    for row in cluster.metadata(names, time.monotonic() + cluster.timeout_s).topics:
        check(row.error_code)
        partitions = [_partition(each, None, None) for each in row.partitions]
        name = row.name or ""
        found[name] = _Topic(name=name, topic_id=topic_id_text(bytes(row.topic_id)) or "", partitions=partitions)
    return found


def _partition(row: Any, elr: Sequence[int] | None, last_elr: Sequence[int] | None) -> _Partition:
    return _Partition(
        number=row.partition_index, leader=row.leader_id, replicas=row.replica_nodes, isr=row.isr_nodes, elr=elr,
        last_elr=last_elr,
    )  # fmt: skip


def _configs(admin: Admin, names: Sequence[str]) -> dict[str, tuple[dict[str, str | None], dict[str, str | None]]]:
    """Return all settings of each topic, and those that are not defaults."""
    found = {}
    for part in config_requests.parts(names):
        for row in admin.ask_any(config_requests.describe_request("topic", part), config_requests.SOURCES_MIN).results:
            check(row.error_code, row.error_message)
            found[row.resource_name] = (
                {entry.name: entry.value for entry in row.configs},
                {entry.name: entry.value for entry in row.configs if entry.config_source != _DEFAULT_SOURCE},
            )
    return found


def _reassignments(admin: Admin, topics: Sequence[_Topic]) -> _Moves:
    """Return the replicas, the added and the removed replicas of partitions that are reassigned."""
    from ottla.wire.messages.list_partition_reassignments import (
        ListPartitionReassignmentsRequest,
        ListPartitionReassignmentsTopics,
    )

    rows = [
        ListPartitionReassignmentsTopics(name=topic.name, partition_indexes=[row.number for row in topic.partitions])
        for topic in topics
    ]
    try:
        reply = admin.call(lambda cluster: _ask_reassignments(cluster, ListPartitionReassignmentsRequest(topics=rows)))
    except RequestError as error:
        if error.code in (ErrorCode.UNSUPPORTED_VERSION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED):
            return {}
        raise
    return {
        TopicPartition(topic.name, row.partition_index): (row.replicas, row.adding_replicas, row.removing_replicas)
        for topic in reply.topics
        for row in topic.partitions
    }


def _ask_reassignments(cluster: Cluster, request: Any) -> Any:
    import time

    deadline = time.monotonic() + cluster.timeout_s
    reply = cluster.ask(cluster.controller(deadline), request, deadline=deadline)
    check(reply.error_code, reply.error_message)
    return reply


def _factor(partition: _Partition, move: tuple[Sequence[int], Sequence[int], Sequence[int]] | None) -> int:
    """Return the replication factor, which a reassignment in progress does not change."""
    if move is not None:
        replicas, adding, removing = move
        if set(partition.replicas) & {*adding, *removing}:
            return len(replicas) - len(adding)
    return len(partition.replicas)


def _topic_line(topic: _Topic, own: Mapping[str, str | None], moves: _Moves) -> str:
    first = min(topic.partitions, key=lambda row: row.number)
    factor = _factor(first, moves.get(TopicPartition(topic.name, first.number)))
    shown_id = f"\tTopicId: {topic.topic_id}" if topic.topic_id and topic.topic_id != _ZERO_ID else ""
    settings = joined(f"{name}={'null' if value is None else value}" for name, value in own.items())
    return (
        f"Topic: {topic.name}{shown_id}\tPartitionCount: {len(topic.partitions)}\tReplicationFactor: {factor}"
        f"\tConfigs: {settings}"
    )


def _partition_line(
    topic: str, partition: _Partition, move: tuple[Sequence[int], Sequence[int], Sequence[int]] | None
) -> str:
    leader = "none" if partition.leader < 0 else str(partition.leader)
    line = f"\tTopic: {topic}\tPartition: {partition.number}\tLeader: {leader}"
    line += f"\tReplicas: {joined(partition.replicas)}\tIsr: {joined(partition.isr)}"
    if move is not None:
        line += f"\tAdding Replicas: {joined(move[1])}\tRemoving Replicas: {joined(move[2])}"
    for name, replicas in (("Elr", partition.elr), ("LastKnownElr", partition.last_elr)):
        line += f"\t{name}: {'N/A' if replicas is None else joined(replicas)}"
    return line


def _is_shown(
    options: Options,
    partition: _Partition,
    move: tuple[Sequence[int], Sequence[int], Sequence[int]] | None,
    *,
    min_isr: int,
    alive: set[int],
) -> bool:
    """Return whether the flags select a partition."""
    has_leader = partition.leader >= 0
    matched = {
        "under-replicated-partitions": _factor(partition, move) > len(partition.isr),
        "under-min-isr-partitions": not has_leader or len(partition.isr) < min_isr,
        "at-min-isr-partitions": len(partition.isr) == min_isr,
        "unavailable-partitions": partition.leader not in alive,
    }
    wanted = options.any_of(*_REPORTS)
    return not wanted or any(matched[name] for name in wanted)


_RUN = {"list": _list, "create": _create, "delete": _delete, "alter": _alter, "describe": _describe}

TOOL = Tool(
    name="kafka-topics",
    summary="This tool helps to create, delete, describe, or change a topic.",
    flags=_FLAGS,
    run=_run,
)
