"""What a client knows about its cluster from replies: addresses of brokers, topics, leaders and coordinators.

Errors remove what they contradict: after an error such as NOT_LEADER_OR_FOLLOWER, or without an answer, the client asks
for the metadata again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ottla.client.errors import BrokerError, PropertyRefused
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

PORT_DEFAULT: Final = 9092
#: since this version a request for a topic does not create it
METADATA_VERSION_MIN: Final = 4
#: since this version one request names several groups or transactional ids
_COORDINATOR_KEYS_FROM: Final = 4
_COORDINATOR_CODES: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)

Address = tuple[str, int]


class Node(NamedTuple):
    """A broker and its address. The id is -1 as long as only the address is known."""

    broker_id: int
    host: str
    port: int

    @property
    def address(self) -> Address:
        return self.host, self.port

    def __str__(self) -> str:
        name = "broker" if self.broker_id < 0 else f"broker {self.broker_id}"
        return f"{name} at {self.host}:{self.port}"


class TopicInfo(NamedTuple):
    """A topic as a broker describes it."""

    name: str
    #: all zero from a broker without topic ids
    topic_id: bytes
    partitions: int
    internal: bool


class Leader(NamedTuple):
    """The broker that leads a partition."""

    node: Node
    epoch: int
    topic_id: bytes


class CoordinatorType(IntEnum):
    """FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


class KnownCluster:
    """The knowledge of one client about its cluster."""

    def __init__(self, bootstrap: str) -> None:
        """Raise PropertyRefused if the bootstrap servers are malformed."""
        self._bootstrap = [Node(-1, host, port) for host, port in parse_bootstrap(bootstrap)]
        #: brokers by id
        self.nodes: dict[int, Node] = {}
        self.topics: dict[str, TopicInfo] = {}
        self.leaders: dict[TopicPartition, Leader] = {}
        self._controller_id = -1
        self._coordinators: dict[tuple[CoordinatorType, str], Node] = {}
        #: the address of a broker that may not be the leader any more: it is asked for metadata after all others
        self._distrusted: Address | None = None
        #: when brokers did not answer, by address; an answer to a new connection removes the entry
        self._failed_at: dict[Address, float] = {}

    # Brokers

    def candidates(self) -> list[Node]:
        """Return the brokers that can be asked for metadata, best first.

        Brokers that did not answer come last, and the one that failed most recently at the very end: a broker that is
        paused accepts connections, and would use up the time that the others need.
        """
        found = {node.address: node for node in self.nodes.values()}
        for node in self._bootstrap:
            found.setdefault(node.address, node)
        order = sorted(found, key=lambda each: (each == self._distrusted, self._failed_at.get(each, 0.0)))
        return [found[address] for address in order]

    def is_distrusted(self, address: Address) -> bool:
        return address == self._distrusted

    def others(self, first: Node) -> list[Node]:
        """Return the brokers that have not failed, apart from the first."""
        asked = {first.address, *self._failed_at}
        return [node for node in self.nodes.values() if node.address not in asked]

    def controller(self) -> Node | None:
        return self.nodes.get(self._controller_id)

    def forget_controller(self) -> None:
        self._controller_id = -1

    def answered(self, node: Node) -> None:
        self._failed_at.pop(node.address, None)

    def failed(self, node: Node, now: float) -> None:
        """Note that a broker did not answer. Forget which partitions it leads, and that it is the controller."""
        self._failed_at[node.address] = now
        controller = self.controller()
        # A node from the bootstrap servers has no id, so addresses are compared.
        if controller is not None and controller.address == node.address:
            self.forget_controller()
        self.leaders = {tp: leader for tp, leader in self.leaders.items() if leader.node.address != node.address}

    # Topics

    def apply(self, answer: MetadataResponse) -> None:
        """Replace the brokers, and the topics that are in the answer."""
        self.nodes = {row.node_id: Node(row.node_id, row.host, row.port) for row in answer.brokers}
        self._controller_id = answer.controller_id
        for topic in answer.topics:
            name = topic.name or ""
            self.forget(name)
            if topic.error_code:
                continue
            self.topics[name] = TopicInfo(name, bytes(topic.topic_id), len(topic.partitions), topic.is_internal)
            for row in topic.partitions:
                if row.leader_id in self.nodes:
                    leader = Leader(self.nodes[row.leader_id], row.leader_epoch, bytes(topic.topic_id))
                    self.leaders[TopicPartition(name, row.partition_index)] = leader

    def leader(self, tp: TopicPartition) -> Leader:
        """Return the leader of a partition. Raise BrokerError, which is retriable, if there is none."""
        found = self.leaders.get(tp)
        if found is None:
            topic = self.topics.get(tp.topic)
            exists = topic is not None and 0 <= tp.partition < topic.partitions
            code = ErrorCode.LEADER_NOT_AVAILABLE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(code, str(tp))
        return found

    def forget(self, topic: str) -> None:
        """Forget a topic, because the reply of a broker contradicts its metadata."""
        known = self.topics.pop(topic, None)
        for number in range(known.partitions if known is not None else 0):
            self.leaders.pop(TopicPartition(topic, number), None)

    def distrust_leader(self, tp: TopicPartition) -> None:
        """Forget the topic of a partition, and ask other brokers than its leader first.

        A former leader that has lost contact with the cluster would name itself.
        """
        leader = self.leaders.get(tp)
        if leader is not None:
            self._distrusted = leader.node.address
        self.forget(tp.topic)

    # Coordinators

    def coordinator(self, kind: CoordinatorType, key: str) -> Node | None:
        return self._coordinators.get((kind, key))

    def add_coordinators(self, kind: CoordinatorType, found: Mapping[str, Node]) -> None:
        self._coordinators.update({(kind, key): node for key, node in found.items()})

    def coordinator_failed(self, kind: CoordinatorType, key: str, error: Exception) -> None:
        """Forget a coordinator that did not answer, has moved, or is not ready."""
        if not isinstance(error, BrokerError) or error.code in _COORDINATOR_CODES:
            self._coordinators.pop((kind, key), None)


def metadata_request(topics: Iterable[str] | None) -> MetadataRequest:
    """Return a request for these topics, for all (None), or for the brokers alone (no topic)."""
    named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
    return MetadataRequest(topics=named, allow_auto_topic_creation=False)


def coordinator_requests(kind: CoordinatorType, keys: Sequence[str], version: int) -> list[FindCoordinatorRequest]:
    """Return the requests for the coordinators of these groups or transactional ids."""
    if version >= _COORDINATOR_KEYS_FROM:
        return [FindCoordinatorRequest(key_type=kind, coordinator_keys=list(keys))]
    return [FindCoordinatorRequest(key=key, key_type=kind) for key in keys]


def read_coordinators(request: FindCoordinatorRequest, answer: FindCoordinatorResponse) -> dict[str, Node]:
    """Return the coordinator of each key. Raise BrokerError if one is not available."""
    rows: Iterable[Any] = answer.coordinators or [answer]
    found = {}
    for row in rows:
        key = request.key or getattr(row, "key", "")
        if row.error_code:
            raise BrokerError(row.error_code, f"coordinator of {key}", row.error_message)
        found[key] = Node(row.node_id, row.host, row.port)
    for key in request.coordinator_keys:
        if key not in found:
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"coordinator of {key}")
    return found


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp)
    return topics


def parse_bootstrap(bootstrap: str) -> list[Address]:
    """Return the addresses in `host:port,...`. A scheme is ignored; an IPv6 address is in brackets.

    >>> parse_bootstrap("PLAINTEXT://a:1,[::1]:2,b")
    [('a', 1), ('::1', 2), ('b', 9092)]
    """
    addresses = []
    for part in bootstrap.split(","):
        match = re.fullmatch(r"(?:\w+://)?(?:\[([^\]]+)\]|([^:\s\[\]]+))(?::(\d{1,5}))?", part.strip())
        if match is None:
            raise PropertyRefused(f"bootstrap server {part.strip()!r} is not of the form HOST:PORT")
        addresses.append((match[1] or match[2], int(match[3] or PORT_DEFAULT)))
    return addresses
