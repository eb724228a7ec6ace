"""A cluster as a client sees it: topics, leaders, coordinators, offsets, and the connections to its brokers.

What a broker says in passing, that it is not the leader or not ready, that it went away, is no error until the timeout
is over: metadata is asked for again and the request goes where it belongs by now. Not thread safe.

    with Cluster("localhost:9092") as cluster:
        cluster.list_offsets({TopicPartition("orders", 0): LATEST}, isolation=Isolation.READ_COMMITTED)
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from ottla.client.connection import VERSION_MAX, BrokerConnection, Node
from ottla.client.errors import (
    BrokerError,
    ClientError,
    ClusterUnreachable,
    ConnectionLost,
    PropertyRefused,
    Unreachable,
)
from ottla.client.retrying import ATTEMPT_S_MAX, Retry
from ottla.client.security import Security
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

if TYPE_CHECKING:
    from ottla.client.producing import ProduceStream

EARLIEST: Final = -2
LATEST: Final = -1

PORT_DEFAULT: Final = 9092
#: how long each other broker may take to say whether it knows a topic
_SECOND_OPINION_S: Final = 5.0
#: idle connections that are kept for each broker
_IDLE_MAX: Final = 4
#: from here on a question about a topic does not create it
_METADATA_MIN: Final = 4
_COORDINATOR_KEYS_FROM: Final = 4
_GROUPS_FROM: Final = 8
#: later versions know topics by their ids only
_OFFSET_COMMIT_MAX = _OFFSET_FETCH_MAX = 9
_ISOLATION_FROM: Final = 2
#: times below -2 have a meaning of their own, each since a version
_TIME_FROM: Final = {-3: 7, -4: 8, -5: 9, -6: 11}
#: the broker's own defaults for replicas, since this version
_CREATE_TOPICS_MIN: Final = 4
#: DescribeConfigs' resource type of topics
_TOPIC_RESOURCE: Final = 2

_COORDINATOR_CODES: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)

_T = TypeVar("_T")


class Isolation(IntEnum):
    """Which records a reader gets to see."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class CoordinatorType(IntEnum):
    """FindCoordinator's key types."""

    GROUP = 0
    TRANSACTION = 1


class TopicInfo(NamedTuple):
    """What the cluster says of a topic."""

    name: str
    #: all zero from a broker that knows no ids
    topic_id: bytes
    partitions: int
    internal: bool


class OffsetAt(NamedTuple):
    """An offset found by time; -1 stands for no such record."""

    offset: int
    timestamp: int


class Leader(NamedTuple):
    """Who takes and gives the records of a partition."""

    node: Node
    epoch: int
    topic_id: bytes


class Cluster:
    """Connections to the brokers of one cluster; each is opened when it is first needed."""

    def __init__(
        self,
        bootstrap: str,
        properties: Mapping[str, str] | None = None,
        *,
        client_id: str = "ottla",
        timeout_s: float = 30.0,
        token: str = "",
        ended: threading.Event | None = None,
    ) -> None:
        """``token`` is that of a user, for a login by OAUTHBEARER. When ``ended`` is set, nothing is tried again."""
        self.ended = ended
        self.bootstrap = bootstrap
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.security = Security.parse(properties or {}, token)
        self._addresses = parse_bootstrap(bootstrap)
        self._idle: dict[tuple[str, int], list[BrokerConnection]] = {}
        self._lent: set[BrokerConnection] = set()
        self._nodes: dict[int, Node] = {}
        self._controller_id = -1
        self._topics: dict[str, TopicInfo] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._coordinators: dict[tuple[CoordinatorType, str], Node] = {}
        #: the address of a leader that may be deposed: the last one that is asked for metadata
        self._distrusted: tuple[str, int] | None = None
        #: when brokers did not answer, by address; until one answers a new connection, others are asked first
        self._failed_at: dict[tuple[str, int], float] = {}

    def close(self) -> None:
        """End every connection, also of readers and producers that were left as they were."""
        for connection in itertools.chain(self._lent, *self._idle.values()):
            connection.close()
        self._lent.clear()
        self._idle.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Topics

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        """Return these topics, or all. One that no broker knows is absent."""
        wanted = None if names is None else list(dict.fromkeys(names))
        if wanted == []:
            return {}

        def attempt(deadline: float) -> dict[str, TopicInfo]:
            first = self._any_node(deadline)
            codes = {row.name or "": row.error_code for row in self.metadata(wanted, deadline, first).topics}
            if wanted is not None:
                self._ask_others_for_unknown(codes, first, deadline)
            for name, code in codes.items():
                # Among all topics one may be just going; only somebody who named it must hear of that.
                if wanted is not None and code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise BrokerError(code, f"topic {name}")
            return {name: self._topics[name] for name, code in codes.items() if code == 0}

        return self.retry("topics", attempt)

    def known_topic(self, name: str) -> TopicInfo | None:
        """Return what a broker has said of a topic, without asking again; None if no broker was asked."""
        return self._topics.get(name)

    def _ask_others_for_unknown(self, codes: dict[str, int], first: Node, deadline: float) -> None:
        """Replace the codes of topics that the first broker did not know by those of a broker that knows them.

        A broker that was paused or has just started may not have heard of a new topic.
        """
        asked = {(first.host, first.port), *self._failed_at}
        for node in [node for node in self._nodes.values() if (node.host, node.port) not in asked]:
            unknown = [name for name, code in codes.items() if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            if not unknown:
                return
            by = min(deadline, time.monotonic() + _SECOND_OPINION_S)
            with suppress(Unreachable, ConnectionLost):
                codes |= {row.name or "": row.error_code for row in self.metadata(unknown, by, node).topics}

    def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None, *, replication_factor: int = -1
    ) -> bool:
        """Create a topic and return True, or return False if it exists. -1 stands for the default of the brokers."""
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        topic = CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=replication_factor, configs=configs
        )

        def attempt(deadline: float) -> bool:
            timeout_ms = max(int((deadline - time.monotonic()) * 1000), 1)
            request = CreateTopicsRequest(topics=[topic], timeout=timeout_ms)
            answer = self.ask(self._controller(deadline), request, deadline=deadline, version_min=_CREATE_TOPICS_MIN)
            (row,) = answer.topics
            if row.error_code == ErrorCode.NOT_CONTROLLER:
                self._controller_id = -1
            if row.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise BrokerError(row.error_code, f"topic {name}", row.error_message)
            return bool(row.error_code == 0)

        made = self.retry(f"topic {name}", attempt)

        def attempt_leaders(deadline: float) -> None:
            # The controller knows the topic before the brokers do.
            self.metadata([name], deadline)
            self.leader(TopicPartition(name, 0), deadline)

        self.retry(f"topic {name}", attempt_leaders)
        return made

    def topic_config(self, name: str, keys: Iterable[str]) -> dict[str, str | None]:
        """Return the effective values of these settings of a topic; a setting unknown to the broker is absent."""
        resource = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=list(keys)
        )

        def attempt(deadline: float) -> dict[str, str | None]:
            answer = self.ask_any(DescribeConfigsRequest(resources=[resource]), deadline=deadline)
            (row,) = answer.results
            if row.error_code:
                raise BrokerError(row.error_code, f"settings of topic {name}", row.error_message)
            return {config.name: config.value for config in row.configs}

        return self.retry(f"settings of topic {name}", attempt)

    def _controller(self, deadline: float) -> Node:
        if self._controller_id not in self._nodes:
            self.metadata([], deadline)
        # A cluster whose controllers take no clients names any broker, or none: all of them pass such requests on.
        return self._nodes.get(self._controller_id) or next(iter(self._nodes.values()), self._any_node(deadline))

    # Offsets

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetAt]:
        """The first offset (EARLIEST), the end of what this isolation may read (LATEST), or the first record at or
        behind a time in ms."""
        found: dict[TopicPartition, OffsetAt] = {}
        version_min = max((_TIME_FROM.get(time_ms, 1) for time_ms in wanted.values()), default=1)
        if isolation is Isolation.READ_COMMITTED:
            version_min = max(version_min, _ISOLATION_FROM)

        def attempt(deadline: float) -> dict[TopicPartition, OffsetAt]:
            missing = [tp for tp in wanted if tp not in found]
            failures = []
            for node, partitions in self._by_leader(missing, deadline).items():
                topics = [
                    ListOffsetsTopic(name=topic, partitions=[
                        ListOffsetsPartition(partition_index=tp.partition, timestamp=wanted[tp]) for tp in rows
                    ])
                    for topic, rows in _by_topic(partitions).items()
                ]  # fmt: skip
                timeout_ms = max(int((deadline - time.monotonic()) * 1000), 1)
                request = ListOffsetsRequest(
                    replica_id=-1, isolation_level=isolation, topics=topics, timeout=timeout_ms
                )
                answer = self.ask(node, request, deadline=deadline, version_min=version_min)
                for topic_row in answer.topics:
                    for row in topic_row.partitions:
                        tp = TopicPartition(topic_row.name, row.partition_index)
                        if row.error_code:
                            self.forget(tp.topic)
                            failures.append(BrokerError(row.error_code, f"offsets of {tp}"))
                        else:
                            found[tp] = OffsetAt(row.offset, row.timestamp)
            failures += [BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offsets of {tp}") for tp in wanted
                         if tp not in found and not failures]  # fmt: skip
            if failures:
                raise failures[0]
            return found

        return self.retry("offsets", attempt)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """What a group has committed; a partition without a commit is absent."""
        wanted = list(dict.fromkeys(partitions))
        if not wanted:
            return {}
        numbers = {topic: [tp.partition for tp in rows] for topic, rows in _by_topic(wanted).items()}
        request = OffsetFetchRequest(
            group_id=group,
            topics=[OffsetFetchRequestTopic(name=name, partition_indexes=rows) for name, rows in numbers.items()],
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[OffsetFetchRequestTopics(name=n, partition_indexes=rows) for n, rows in numbers.items()],
                )
            ],
            require_stable=True,
        )

        def attempt(node: Node, deadline: float) -> dict[TopicPartition, int]:
            answer: OffsetFetchResponse = self.ask(node, request, deadline=deadline, version_max=_OFFSET_FETCH_MAX)
            rows: Any = answer.groups[0] if answer.groups else answer
            if rows.error_code not in (0, ErrorCode.GROUP_ID_NOT_FOUND):
                raise BrokerError(rows.error_code, f"group {group}")
            found = {}
            for topic in rows.topics:
                for row in topic.partitions:
                    tp = TopicPartition(topic.name, row.partition_index)
                    if row.error_code:
                        raise BrokerError(row.error_code, f"offset of group {group} in {tp}")
                    if row.committed_offset >= 0:
                        found[tp] = row.committed_offset
            return found

        return self.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit for a group that has no members."""
        if not offsets:
            return
        topics = [
            OffsetCommitRequestTopic(name=topic, partitions=[
                OffsetCommitRequestPartition(
                    partition_index=tp.partition, committed_offset=offsets[tp], committed_metadata=metadata
                )
                for tp in rows
            ])
            for topic, rows in _by_topic(offsets).items()
        ]  # fmt: skip
        request = OffsetCommitRequest(group_id=group, topics=topics)

        def attempt(node: Node, deadline: float) -> None:
            answer = self.ask(node, request, deadline=deadline, version_max=_OFFSET_COMMIT_MAX)
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code:
                        raise BrokerError(row.error_code, f"commit of group {group} in {topic.name}")

        self.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)

    # Records

    def produce(
        self, tp: TopicPartition, batches: bytes, *, acks: int = -1, transactional_id: str | None = None
    ) -> int:
        """Append one batch as it is; its first offset, or -1 when nobody was asked for it (acks=0).

        A connection that breaks before the answer makes it go out again: it may then be there twice, unless its header
        says which producer it is of.
        """
        from ottla.client.producing import produce_once

        def attempt(deadline: float) -> int:
            return produce_once(self, tp, batches, acks, transactional_id, deadline)

        return self.retry(f"records for {tp}", attempt)

    def producer(self) -> ProduceStream:
        """A stream of batches with several requests in flight; each batch is written once, in order."""
        from ottla.client.producing import ProduceStream, new_producer_id

        return ProduceStream(self, new_producer_id(self))

    # Where things are

    def metadata(self, topics: Iterable[str] | None, deadline: float, node: Node | None = None) -> MetadataResponse:
        """Ask this broker, or any, for these topics, or all, and keep what it says; no names: brokers only."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
        asked = node or self._any_node(deadline)
        answer: MetadataResponse = self.ask(asked, request, deadline=deadline, version_min=_METADATA_MIN)
        self._nodes = {row.node_id: Node(row.node_id, row.host, row.port) for row in answer.brokers}
        self._controller_id = answer.controller_id
        for topic in answer.topics:
            name = topic.name or ""
            self.forget(name)
            if topic.error_code:
                continue
            self._topics[name] = TopicInfo(name, bytes(topic.topic_id), len(topic.partitions), topic.is_internal)
            for row in topic.partitions:
                if row.leader_id in self._nodes:
                    leader = Leader(self._nodes[row.leader_id], row.leader_epoch, bytes(topic.topic_id))
                    self._leaders[TopicPartition(name, row.partition_index)] = leader
        return answer

    def brokers(self) -> list[Node]:
        def attempt(deadline: float) -> list[Node]:
            self.metadata([], deadline)
            return sorted(self._nodes.values())

        return self.retry("brokers", attempt)

    def cluster_id(self) -> str:
        """Return the id of the cluster; "" from a broker that does not know it."""
        return self.retry("cluster id", lambda deadline: self.metadata([], deadline).cluster_id or "")

    def leader(self, tp: TopicPartition, deadline: float) -> Leader:
        """From what is known, else asked for once; a partition without a leader raises a retriable error."""
        if tp not in self._leaders:
            self.metadata([tp.topic], deadline)
        found = self._leaders.get(tp)
        if found is None:
            topic = self._topics.get(tp.topic)
            exists = topic is not None and 0 <= tp.partition < topic.partitions
            code = ErrorCode.LEADER_NOT_AVAILABLE if exists else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise BrokerError(code, str(tp))
        return found

    def forget(self, topic: str) -> None:
        """A broker contradicts what is known of this topic: it is asked for again when it is next needed."""
        known = self._topics.pop(topic, None)
        for number in range(known.partitions if known is not None else 0):
            self._leaders.pop(TopicPartition(topic, number), None)

    def distrust_leader(self, tp: TopicPartition) -> None:
        """Forget the leader of a partition, and ask other brokers first who leads.

        A leader that was deposed while it had no contact with the cluster would name itself.
        """
        leader = self._leaders.get(tp)
        if leader is not None:
            self._distrusted = (leader.node.host, leader.node.port)
        self.forget(tp.topic)

    def _by_leader(self, partitions: Iterable[TopicPartition], deadline: float) -> dict[Node, list[TopicPartition]]:
        wanted = list(partitions)
        unknown = {tp.topic for tp in wanted if tp not in self._leaders}
        if unknown:
            self.metadata(unknown, deadline)
        found: dict[Node, list[TopicPartition]] = {}
        for tp in wanted:
            found.setdefault(self.leader(tp, deadline).node, []).append(tp)
        return found

    def coordinators(self, kind: CoordinatorType, keys: Iterable[str], deadline: float) -> dict[str, Node]:
        """The broker that coordinates each of these groups or transactions, asked for at once."""
        asked = list(dict.fromkeys(keys))
        if not asked:
            return {}
        node = self._any_node(deadline)
        if self.version_at(node, FindCoordinatorRequest.API_KEY, deadline) >= _COORDINATOR_KEYS_FROM:
            requests = [FindCoordinatorRequest(key_type=kind, coordinator_keys=asked)]
        else:
            requests = [FindCoordinatorRequest(key=key, key_type=kind) for key in asked]
        found = {}
        for request in requests:
            answer: FindCoordinatorResponse = self.ask(node, request, deadline=deadline, version_min=kind)
            rows: Iterable[Any] = answer.coordinators or [answer]
            for row in rows:
                key = request.key or getattr(row, "key", "")
                if row.error_code:
                    raise BrokerError(row.error_code, f"coordinator of {key}", row.error_message)
                found[key] = Node(row.node_id, row.host, row.port)
        for key in asked:
            if key not in found:
                raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"coordinator of {key}")
        self._coordinators.update({(kind, key): node for key, node in found.items()})
        return found

    def retry_at_coordinator(
        self,
        kind: CoordinatorType,
        key: str,
        attempt: Callable[[Node, float], _T],
        *,
        timeout_s: float | None = None,
        attempt_s_max: float = ATTEMPT_S_MAX,
    ) -> _T:
        """Let `attempt` ask the coordinator, again and elsewhere when it has moved or is not ready."""

        def find_and_attempt(deadline: float) -> _T:
            node = self._coordinators.get((kind, key)) or self.coordinators(kind, [key], deadline)[key]
            try:
                return attempt(node, deadline)
            except (ConnectionLost, Unreachable):
                self._coordinators.pop((kind, key), None)
                raise
            except BrokerError as error:
                if error.code in _COORDINATOR_CODES:
                    self._coordinators.pop((kind, key), None)
                raise

        words = "group" if kind is CoordinatorType.GROUP else "transactional id"
        return self.retry(f"{words} {key}", find_and_attempt, timeout_s=timeout_s, attempt_s_max=attempt_s_max)

    # Asking

    def retry(
        self,
        undertaking: str,
        attempt: Callable[[float], _T],
        *,
        timeout_s: float | None = None,
        attempt_s_max: float = ATTEMPT_S_MAX,
    ) -> _T:
        """Let `attempt` do its work by a deadline, again while it fails in a way that may pass."""
        retry = Retry(undertaking, self.timeout_s if timeout_s is None else timeout_s, attempt_s_max, self.ended)
        while True:
            try:
                return attempt(retry.attempt_deadline())
            except ClientError as error:
                retry.pause_or_raise(error)

    def ask(
        self,
        node: Node,
        request: Message,
        *,
        deadline: float | None = None,
        version_min: int = 0,
        version_max: int = VERSION_MAX,
    ) -> Any:
        """The answer of this broker; what fails is not repeated."""
        by = time.monotonic() + self.timeout_s if deadline is None else deadline
        connection = self.borrow(node, by)
        try:
            return connection.ask(request, deadline=by, version_min=version_min, version_max=version_max)
        finally:
            self.give_back(connection)

    def ask_any(self, request: Message, *, deadline: float | None = None, version_min: int = 0) -> Any:
        """The answer of whoever can be reached."""
        by = time.monotonic() + self.timeout_s if deadline is None else deadline
        return self.ask(self._any_node(by), request, deadline=by, version_min=version_min)

    def version_at(self, node: Node, api_key: int, deadline: float) -> int:
        """The newest version of an API that this broker and this client have in common."""
        connection = self.borrow(node, deadline)
        try:
            return connection.version_of(api_key)
        finally:
            self.give_back(connection)

    # Connections

    def borrow(self, node: Node, deadline: float) -> BrokerConnection:
        """A connection for the borrower alone, until it is given back or closed."""
        idle = self._idle.get((node.host, node.port), [])
        connection = idle.pop() if idle else None
        if connection is None:
            try:
                connection = BrokerConnection(node, self.security, client_id=self.client_id, deadline=deadline)
            except (Unreachable, ConnectionLost):
                self._forget_node(node)
                raise
            self._failed_at.pop((node.host, node.port), None)
        self._lent.add(connection)
        return connection

    def give_back(self, connection: BrokerConnection) -> None:
        """Keep a connection for the next borrower; close one with answers under way. A lost one: forget its broker."""
        self._lent.discard(connection)
        if connection.is_lost:
            self._forget_node(connection.node)
        if not connection.is_open:
            return
        idle = self._idle.setdefault((connection.node.host, connection.node.port), [])
        if connection.in_flight or len(idle) >= _IDLE_MAX:
            connection.close()
        else:
            idle.append(connection)

    def _any_node(self, deadline: float) -> Node:
        """Return a broker that accepts connections; prefer one with an idle connection, then one of the metadata.

        Brokers that did not answer are tried last, the one that failed most recently at the very end: a broker that is
        paused accepts connections, and would take the time that the others need.
        """
        for address, connections in self._idle.items():
            if connections and address != self._distrusted:
                return connections[0].node
        candidates = {(node.host, node.port): node for node in self._nodes.values()}
        for host, port in self._addresses:
            candidates.setdefault((host, port), Node(-1, host, port))
        ordered = sorted(
            candidates, key=lambda address: (address == self._distrusted, self._failed_at.get(address, 0.0))
        )
        reasons = set()
        failure: ClientError | None = None
        for node in map(candidates.__getitem__, ordered):
            try:
                self.give_back(self.borrow(node, deadline))
            except (Unreachable, ConnectionLost) as error:
                reasons.add(error.reason)
                failure = error
            else:
                return node
        if isinstance(failure, ConnectionLost):
            raise failure
        raise ClusterUnreachable(self.bootstrap, "; ".join(sorted(reasons)))

    def _forget_node(self, node: Node) -> None:
        """Note that a broker did not answer. Ask again for everything that it led."""
        address = (node.host, node.port)
        self._failed_at[address] = time.monotonic()
        controller = self._nodes.get(self._controller_id)
        if controller is not None and (controller.host, controller.port) == address:
            self._controller_id = -1
        # A node from the bootstrap servers has no id, so addresses are compared.
        self._leaders = {
            tp: leader for tp, leader in self._leaders.items() if (leader.node.host, leader.node.port) != address
        }
        for connection in self._idle.pop(address, []):
            connection.close()


def parse_bootstrap(bootstrap: str) -> list[tuple[str, int]]:
    """Split `host:port,...`; a scheme is dropped, an IPv6 address stands in brackets.

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


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp)
    return topics
