"""The blocking client of a cluster: topics, leaders, coordinators and offsets.

Retriable errors are retried until the timeout: the broker is not the leader, is not ready, or has stopped. The client
then asks for metadata again and sends the request to the broker that is responsible now. Not thread safe.

    with Cluster("localhost:9092") as cluster:
        cluster.list_offsets({TopicPartition("orders", 0): LATEST}, isolation=Isolation.READ_COMMITTED)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar

from ottla.client.connection import VERSION_MAX, BrokerConnection
from ottla.client.errors import BrokerError, ClientError, ConnectionLost, Unreachable
from ottla.client.pool import ConnectionPool
from ottla.client.protocol.metadata import (
    METADATA_VERSION_MIN,
    CoordinatorType,
    KnownCluster,
    Leader,
    Node,
    TopicInfo,
    by_topic,
    coordinator_requests,
    metadata_request,
    read_coordinators,
)
from ottla.client.retrying import ATTEMPT_S_MAX, Retry
from ottla.client.security import Security
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.wire.messages.metadata import MetadataResponse
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

#: time limit for a request to another broker about a topic that the first one does not know
_SECOND_OPINION_S: Final = 5.0
#: later versions name topics by their ids only
_OFFSET_COMMIT_MAX = _OFFSET_FETCH_MAX = 9
_ISOLATION_FROM: Final = 2
#: the first versions in which times below -2 have a meaning
_TIME_FROM: Final = {-3: 7, -4: 8, -5: 9, -6: 11}
#: the first version in which -1 stands for the broker's default number of replicas
_CREATE_TOPICS_MIN: Final = 4
#: DescribeConfigs' resource type of topics
_TOPIC_RESOURCE: Final = 2
#: why a commit without a member id gets UNKNOWN_MEMBER_ID, and what the user can do
_ACTIVE_MEMBERS: Final = "the group has active members; stop them or choose another group"

_T = TypeVar("_T")


class Isolation(IntEnum):
    """The isolation level of a reader."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class OffsetAt(NamedTuple):
    """An offset that was found by time; -1 if there is no such record."""

    offset: int
    timestamp: int


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
        """``token`` is that of a user, for a login by OAUTHBEARER. When ``ended`` is set, nothing is retried."""
        self.ended = ended
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self.security = Security.parse(properties or {}, token)
        self._known = KnownCluster(bootstrap)
        self._pool = ConnectionPool(self._known, self.security, bootstrap=bootstrap, client_id=client_id)

    def close(self) -> None:
        """Close all connections, also those of readers and producers that were not closed."""
        self._pool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Topics

    def topics(self, names: Iterable[str] | None = None) -> dict[str, TopicInfo]:
        """Return these topics, or all. A topic that no broker knows is absent."""
        wanted = None if names is None else list(dict.fromkeys(names))
        if wanted == []:
            return {}

        def attempt(deadline: float) -> dict[str, TopicInfo]:
            first = self._pool.any_node(deadline)
            codes = {row.name or "": row.error_code for row in self.metadata(wanted, deadline, first).topics}
            if wanted is not None:
                self._ask_others_for_unknown(codes, first, deadline)
            for name, code in codes.items():
                # In a list of all topics, one that is being deleted is not an error.
                if wanted is not None and code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    raise BrokerError(code, f"topic {name}")
            return {name: self._known.topics[name] for name, code in codes.items() if code == 0}

        return self.retry("topics", attempt)

    def known_topic(self, name: str) -> TopicInfo | None:
        """Return what is known about a topic, without a request; None if no broker was asked for it."""
        return self._known.topics.get(name)

    def _ask_others_for_unknown(self, codes: dict[str, int], first: Node, deadline: float) -> None:
        """Replace the codes of topics that the first broker did not know by those of a broker that knows them.

        A broker that was paused or has just started may not have heard of a new topic.
        """
        for node in self._known.others(first):
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
            node = self.controller(deadline)
            answer = self.ask(node, request, deadline=deadline, version_min=_CREATE_TOPICS_MIN)
            row = only_row(answer.topics, str(node))
            if row.error_code == ErrorCode.NOT_CONTROLLER:
                self.forget_controller()
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

    def forget_controller(self) -> None:
        """Forget the controller, because a broker has replied NOT_CONTROLLER. The next use asks for it again."""
        self._known.forget_controller()

    def topic_config(self, name: str, keys: Iterable[str]) -> dict[str, str | None]:
        """Return the effective values of these settings of a topic; a setting unknown to the broker is absent."""
        resource = DescribeConfigsResource(
            resource_type=_TOPIC_RESOURCE, resource_name=name, configuration_keys=list(keys)
        )

        def attempt(deadline: float) -> dict[str, str | None]:
            answer = self.ask_any(DescribeConfigsRequest(resources=[resource]), deadline=deadline)
            row = only_row(answer.results, f"the cluster at {self.bootstrap}")
            if row.error_code:
                raise BrokerError(row.error_code, f"settings of topic {name}", row.error_message)
            return {config.name: config.value for config in row.configs}

        return self.retry(f"settings of topic {name}", attempt)

    def controller(self, deadline: float) -> Node:
        """Return the controller, or a broker that forwards requests to it."""
        if self._known.controller() is None:
            self.metadata([], deadline)
        # A cluster whose controllers accept no clients names any broker, or none. All brokers forward such requests.
        nodes = self._known.nodes.values()
        return self._known.controller() or next(iter(nodes), None) or self._pool.any_node(deadline)

    # Offsets

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetAt]:
        """Return an offset of each partition: the first one (EARLIEST), the end of the records that this isolation
        gets (LATEST), or that of the first record at or after a time in ms."""
        rows = self.list_offset_rows(wanted, isolation=isolation)
        return {tp: OffsetAt(row.offset, row.timestamp) for tp, row in rows.items()}

    def list_offset_rows(
        self, wanted: Mapping[TopicPartition, int], *, isolation: Isolation
    ) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
        """Return the same offsets as rows of the replies, which also contain the leader epochs."""
        found: dict[TopicPartition, ListOffsetsPartitionResponse] = {}
        version_min = max((_TIME_FROM.get(time_ms, 1) for time_ms in wanted.values()), default=1)
        if isolation is Isolation.READ_COMMITTED:
            version_min = max(version_min, _ISOLATION_FROM)

        def attempt(deadline: float) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
            missing = [tp for tp in wanted if tp not in found]
            failures = []
            for node, partitions in self._by_leader(missing, deadline).items():
                topics = [
                    ListOffsetsTopic(name=topic, partitions=[
                        ListOffsetsPartition(partition_index=tp.partition, timestamp=wanted[tp]) for tp in rows
                    ])
                    for topic, rows in by_topic(partitions).items()
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
                            found[tp] = row
            failures += [BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"offsets of {tp}") for tp in wanted
                         if tp not in found and not failures]  # fmt: skip
            if failures:
                raise failures[0]
            return found

        return self.retry("offsets", attempt)

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group. A partition without one is absent."""
        wanted = list(dict.fromkeys(partitions))
        if not wanted:
            return {}
        numbers = {topic: [tp.partition for tp in rows] for topic, rows in by_topic(wanted).items()}
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
        """Commit offsets of a group that has no members."""
        if not offsets:
            return
        topics = [
            OffsetCommitRequestTopic(name=topic, partitions=[
                OffsetCommitRequestPartition(
                    partition_index=tp.partition, committed_offset=offsets[tp], committed_metadata=metadata
                )
                for tp in rows
            ])
            for topic, rows in by_topic(offsets).items()
        ]  # fmt: skip
        request = OffsetCommitRequest(group_id=group, topics=topics)

        def attempt(node: Node, deadline: float) -> None:
            answer = self.ask(node, request, deadline=deadline, version_max=_OFFSET_COMMIT_MAX)
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code:
                        text = _ACTIVE_MEMBERS if row.error_code == ErrorCode.UNKNOWN_MEMBER_ID else None
                        raise BrokerError(row.error_code, f"commit of group {group} in {topic.name}", text)

        self.retry_at_coordinator(CoordinatorType.GROUP, group, attempt)

    # Records

    def produce(
        self, tp: TopicPartition, batches: bytes, *, acks: int = -1, transactional_id: str | None = None
    ) -> int:
        """Append one batch without changing it. Return its first offset, or -1 for acks=0.

        The batch is sent again if the connection is lost before the reply. It may then be in the log twice, unless its
        header has a producer id.
        """
        from ottla.client.producing import produce_once

        def attempt(deadline: float) -> int:
            return produce_once(self, tp, batches, acks=acks, transactional_id=transactional_id, deadline=deadline)

        return self.retry(f"records for {tp}", attempt)

    def producer(self) -> ProduceStream:
        """Return a stream of batches with several requests in flight. Each batch is appended once, in order."""
        from ottla.client.producing import ProduceStream, new_producer_id

        return ProduceStream(self, new_producer_id(self))

    # Metadata

    def metadata(self, topics: Iterable[str] | None, deadline: float, node: Node | None = None) -> MetadataResponse:
        """Return the metadata of these topics, of all (None) or of the brokers alone (no topic), and remember them."""
        asked = node or self._pool.any_node(deadline)
        answer: MetadataResponse = self.ask(
            asked, metadata_request(topics), deadline=deadline, version_min=METADATA_VERSION_MIN
        )
        self._known.apply(answer)
        return answer

    def brokers(self) -> list[Node]:
        def attempt(deadline: float) -> list[Node]:
            self.metadata([], deadline)
            return sorted(self._known.nodes.values())

        return self.retry("brokers", attempt)

    def cluster_id(self) -> str:
        """Return the id of the cluster; "" if the broker does not know it."""
        return self.retry("cluster id", lambda deadline: self.metadata([], deadline).cluster_id or "")

    def leader(self, tp: TopicPartition, deadline: float) -> Leader:
        """Return the leader of a partition; ask for it once if it is not known. Raise BrokerError if there is none."""
        if tp not in self._known.leaders:
            self.metadata([tp.topic], deadline)
        return self._known.leader(tp)

    def forget(self, topic: str) -> None:
        """Forget a topic, because the reply of a broker contradicts its metadata. The next use asks for it again."""
        self._known.forget(topic)

    def distrust_leader(self, tp: TopicPartition) -> None:
        """Forget the leader of a partition, and ask other brokers first which broker leads it."""
        self._known.distrust_leader(tp)

    def _by_leader(self, partitions: Iterable[TopicPartition], deadline: float) -> dict[Node, list[TopicPartition]]:
        wanted = list(partitions)
        unknown = {tp.topic for tp in wanted if tp not in self._known.leaders}
        if unknown:
            self.metadata(unknown, deadline)
        found: dict[Node, list[TopicPartition]] = {}
        for tp in wanted:
            found.setdefault(self.leader(tp, deadline).node, []).append(tp)
        return found

    def leaders(self, partitions: Iterable[TopicPartition], deadline: float) -> dict[TopicPartition, Leader]:
        """Return the leader of each partition that has one. At most one request for metadata is sent."""
        wanted = list(partitions)
        unknown = dict.fromkeys(tp.topic for tp in wanted if tp not in self._known.leaders)
        if unknown:
            self.metadata(unknown, deadline)
        return {tp: self._known.leaders[tp] for tp in wanted if tp in self._known.leaders}

    def coordinators(self, kind: CoordinatorType, keys: Iterable[str], deadline: float) -> dict[str, Node]:
        """Return the coordinator of each of these groups or transactional ids."""
        wanted = list(dict.fromkeys(keys))
        if not wanted:
            return {}
        node = self._pool.any_node(deadline)
        found: dict[str, Node] = {}
        version = self.version_at(node, FindCoordinatorRequest.API_KEY, deadline)
        for request in coordinator_requests(kind, wanted, version):
            found |= read_coordinators(request, self.ask(node, request, deadline=deadline, version_min=kind))
        self._known.add_coordinators(kind, found)
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
        """Return what `attempt` returns at the coordinator. Find the coordinator again if it has moved or fails."""

        def find_and_attempt(deadline: float) -> _T:
            node = self._known.coordinator(kind, key) or self.coordinators(kind, [key], deadline)[key]
            try:
                return attempt(node, deadline)
            except (ConnectionLost, Unreachable, BrokerError) as error:
                self._known.coordinator_failed(kind, key, error)
                raise

        noun = "group" if kind is CoordinatorType.GROUP else "transactional id"
        return self.retry(f"{noun} {key}", find_and_attempt, timeout_s=timeout_s, attempt_s_max=attempt_s_max)

    # Requests

    def retry(
        self,
        task: str,
        attempt: Callable[[float], _T],
        *,
        timeout_s: float | None = None,
        attempt_s_max: float = ATTEMPT_S_MAX,
    ) -> _T:
        """Return what `attempt` returns, which gets a deadline. Retry it after retriable errors."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        retry = Retry(task, limit_s, attempt_s_max=attempt_s_max, ended=self.ended)
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
        """Return the reply of this broker. Errors are not retried."""
        by = time.monotonic() + self.timeout_s if deadline is None else deadline
        connection = self.borrow(node, by)
        try:
            return connection.ask(request, deadline=by, version_min=version_min, version_max=version_max)
        finally:
            self.give_back(connection)

    def ask_any(self, request: Message, *, deadline: float | None = None, version_min: int = 0) -> Any:
        """Return the reply of any broker that can be reached."""
        by = time.monotonic() + self.timeout_s if deadline is None else deadline
        return self.ask(self._pool.any_node(by), request, deadline=by, version_min=version_min)

    def any_node(self, deadline: float) -> Node:
        """Return a broker that can be reached."""
        return self._pool.any_node(deadline)

    def version_at(self, node: Node, api_key: int, deadline: float) -> int:
        """Return the newest version of an API that both this broker and this client know."""
        connection = self.borrow(node, deadline)
        try:
            return connection.version_of(api_key)
        finally:
            self.give_back(connection)

    # Connections

    def borrow(self, node: Node, deadline: float) -> BrokerConnection:
        """Return a connection for the borrower alone, until it is given back or closed."""
        return self._pool.borrow(node, deadline)

    def give_back(self, connection: BrokerConnection) -> None:
        """Keep a connection for the next borrower."""
        self._pool.give_back(connection)


def only_row(rows: Sequence[_T], where: str) -> _T:
    """Return the row of a reply to a request about one object. Raise ConnectionLost if there are none or several."""
    if len(rows) != 1:
        raise ConnectionLost(where, f"it replied about {len(rows)} objects instead of one")
    return rows[0]
