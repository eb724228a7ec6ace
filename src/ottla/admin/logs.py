"""The logs of partitions: their directories and sizes, their producers, and the deletion of records.

The requests of one reading go to all brokers at the same time, one to each. A broker that does not answer leaves its
part out, and is named in the problems. Works with Ottla and with Apache Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from ottla.admin.client import AdminClient
from ottla.admin.error_codes import failure_of
from ottla.admin.failure import Failure
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.client.many import ask_many
from ottla.client.protocol.metadata import Node, by_topic
from ottla.model.errors import ErrorCode
from ottla.model.printable import shown
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest

#: as an offset of DeleteRecords: the high watermark
ALL_RECORDS = -1

#: a broker that takes longer is left out of a reading
_READ_S_MAX = 5.0

_Request = TypeVar("_Request", bound=Message)


class LogState(NamedTuple):
    """The log of one replica in a directory."""

    size_bytes: int
    #: offsets behind the high watermark, or behind the log that it is a copy of
    lag: int
    #: whether it is a copy that replaces the log in another directory when it is complete
    is_future: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryState:
    """A log directory of a broker."""

    broker_id: int
    path: str
    #: why it cannot be used; empty if it can
    problem: str = ""
    #: of its file system; None if the broker does not report it
    total_bytes: int | None = None
    usable_bytes: int | None = None
    logs: Mapping[TopicPartition, LogState] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Return the size of the logs that were asked for."""
        return sum(each.size_bytes for each in self.logs.values())


class ActiveProducer(NamedTuple):
    """A producer whose sequence numbers the leader of a partition knows."""

    name: TopicPartition
    producer_id: int
    producer_epoch: int
    last_sequence: int
    #: of its last batch; None if it is not known
    last_timestamp: int | None
    #: where its open transaction begins; None without one
    transaction_start: int | None


def describe_directories(
    client: AdminClient, nodes: Iterable[Node], partitions: Iterable[TopicPartition] | None = None
) -> tuple[list[DirectoryState], list[str]]:
    """Return the directories of these brokers with the logs of these partitions, or of all, and the problems."""
    topics = None
    if partitions is not None:
        topics = [
            DescribableLogDirTopic(topic=topic, partitions=[name.partition for name in names])
            for topic, names in by_topic(partitions).items()
        ]
    requests = [(node, DescribeLogDirsRequest(topics=topics)) for node in nodes]
    found: list[DirectoryState] = []
    problems: list[str] = []
    for node, _, reply in _ask_many(client, requests, min(client.timeout_s, _READ_S_MAX)):
        if isinstance(reply, ClientError):
            problems.append(f"broker {node.broker_id} does not report its disks: {shown(str(reply))}")
        elif reply.error_code:
            problems.append(failure_of(reply.error_code, f"disks of broker {node.broker_id}").message)
        else:
            found += [_directory(node, row) for row in reply.results]
    return sorted(found, key=lambda each: (each.broker_id, each.path)), problems


def _directory(node: Node, row: Any) -> DirectoryState:
    return DirectoryState(
        broker_id=node.broker_id,
        path=row.log_dir,
        problem=failure_of(row.error_code, f"directory {shown(row.log_dir)}").message if row.error_code else "",
        total_bytes=row.total_bytes if row.total_bytes >= 0 else None,
        usable_bytes=row.usable_bytes if row.usable_bytes >= 0 else None,
        logs={
            TopicPartition(topic.name, each.partition_index): LogState(
                each.partition_size, each.offset_lag, each.is_future_key
            )
            for topic in row.topics
            for each in topic.partitions
        },
    )


def describe_producers(
    client: AdminClient, leaders: Mapping[TopicPartition, Node]
) -> tuple[list[ActiveProducer], list[str]]:
    """Return the producers that the leaders of these partitions know, and the problems."""
    by_node: dict[Node, list[TopicPartition]] = {}
    for name, node in leaders.items():
        by_node.setdefault(node, []).append(name)
    requests = [
        (
            node,
            DescribeProducersRequest(
                topics=[
                    TopicRequest(name=topic, partition_indexes=[each.partition for each in rows])
                    for topic, rows in by_topic(names).items()
                ]
            ),
        )
        for node, names in by_node.items()
    ]
    found: list[ActiveProducer] = []
    problems: dict[str, None] = {}
    for node, _, reply in _ask_many(client, requests, min(client.timeout_s, _READ_S_MAX)):
        if isinstance(reply, ClientError):
            problems[f"broker {node.broker_id} does not report the producers: {shown(str(reply))}"] = None
            continue
        for topic in reply.topics:
            for row in topic.partitions:
                name = TopicPartition(topic.name, row.partition_index)
                if row.error_code:
                    subject = f"producers of {shown(str(name))}"
                    problems[failure_of(row.error_code, subject, row.error_message).message] = None
                found += [_producer(name, each) for each in row.active_producers]
    return sorted(found), list(problems)


def _producer(name: TopicPartition, row: Any) -> ActiveProducer:
    return ActiveProducer(
        name=name,
        producer_id=row.producer_id,
        producer_epoch=row.producer_epoch,
        last_sequence=row.last_sequence,
        last_timestamp=row.last_timestamp if row.last_timestamp >= 0 else None,
        transaction_start=row.current_txn_start_offset if row.current_txn_start_offset >= 0 else None,
    )


def delete_records(
    client: AdminClient, offsets: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Failure]]:
    """Delete the records before these offsets, with ALL_RECORDS those before the high watermark.

    Return the new log starts, and the failures of the partitions that were refused or not reached.
    """
    timeout_ms = int(max(client.timeout_s * 0.9, 0.1) * 1000)

    def requests(cluster: Cluster) -> tuple[Any, list[TopicPartition]]:
        known = cluster.leaders(offsets, time.monotonic() + client.timeout_s)
        by_node: dict[Node, list[TopicPartition]] = {}
        for name, leader in known.items():
            by_node.setdefault(leader.node, []).append(name)
        made = [(node, _deletion(names, offsets, timeout_ms)) for node, names in by_node.items()]
        return made, [name for name in offsets if name not in known]

    made, leaderless = client.call(requests)
    failures = {name: failure_of(ErrorCode.LEADER_NOT_AVAILABLE, shown(str(name))) for name in leaderless}
    starts: dict[TopicPartition, int] = {}
    for node, request, reply in _ask_many(client, made, client.timeout_s):
        if isinstance(reply, ClientError):
            names = [
                TopicPartition(topic.name, row.partition_index) for topic in request.topics for row in topic.partitions
            ]
            text = f"broker {node.broker_id} did not answer ({shown(str(reply))}); its records may have been deleted"
            failures |= {name: Failure(f"{shown(str(name))}: {text}") for name in names}
            continue
        for topic in reply.topics:
            for row in topic.partitions:
                name = TopicPartition(topic.name, row.partition_index)
                if row.error_code:
                    failures[name] = failure_of(row.error_code, shown(str(name)), topic=topic.name)
                else:
                    starts[name] = row.low_watermark
    return starts, failures


def _deletion(
    names: Sequence[TopicPartition], offsets: Mapping[TopicPartition, int], timeout_ms: int
) -> DeleteRecordsRequest:
    topics = [
        DeleteRecordsTopic(
            name=topic,
            partitions=[DeleteRecordsPartition(partition_index=each.partition, offset=offsets[each]) for each in rows],
        )
        for topic, rows in by_topic(names).items()
    ]
    return DeleteRecordsRequest(topics=topics, timeout=timeout_ms)


def _ask_many(
    client: AdminClient, requests: Sequence[tuple[Node, _Request]], timeout_s: float
) -> Iterator[tuple[Node, _Request, Any]]:
    deadline = time.monotonic() + timeout_s
    yield from client.call(lambda cluster: list(ask_many(cluster, requests, deadline)))
