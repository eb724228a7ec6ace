"""A cluster in the place of one broker: one member coordinates transactions, one leads the topics, one has the groups.

With ``OTTLA_DIVIDED=1`` (campaign `transactions-divided`) every ``BrokerProcess.start`` of the tests starts such
a cluster, so that each transaction is coordinated by another broker than those that lead its partitions and its group.
Clients of others find the brokers themselves. A ``RawClient`` of a test, which has one connection, becomes a
``RoutedClient``. It has a connection to each of the three and sends each request to the broker that must answer it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka.admin
from confluent_kafka.admin import NewTopic

from ottla.testing import BrokerProcess, ClusterProcess
from ottla.testing.raw import RawClient
from ottla.wire import Message
from ottla.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

SWITCH = "OTTLA_DIVIDED"
#: ids of the brokers; addresses are in this order
TRANSACTIONS, LEADER, GROUPS = 1, 2, 3
_KINDS = {TRANSACTIONS: 1, GROUPS: 0}
_WAIT_S = 60.0
#: ListOffsets: the end of the log
_LATEST = -1
#: a single broker's; those of a cluster are chosen here
_OWN_SETTINGS = ("listeners", "advertised.listeners", "metrics.listener")
_SETTINGS = {
    "default.replication.factor": "1", "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
}  # fmt: skip
#: AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, DescribeTransactions, ListTransactions
_FOR_TRANSACTIONS = {24, 25, 26, 65, 66}
#: offsets and members of groups, TxnOffsetCommit
_FOR_GROUPS = {8, 9, 11, 12, 13, 14, 15, 16, 28, 42, 47, 68, 69}


class DividedCluster:
    """What tests use of a ``BrokerProcess``, for three brokers. A kill is one of all three."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        own = {name: value for name, value in settings.items() if name not in _OWN_SETTINGS}
        self._cluster = ClusterProcess.prepare(settings={**_SETTINGS, **own})
        try:
            # A topic with one replica is created on the only broker that runs.
            for number, kind in _KINDS.items():
                self._brokers[number].launch()
                _await_coordinator(self._brokers[number].bootstrap, kind)
                self._brokers[number].stop()
            self.launch()
        except BaseException:
            self.close()
            raise

    @property
    def _brokers(self) -> dict[int, BrokerProcess]:
        return self._cluster.brokers

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    @property
    def data(self) -> str:
        """Return the directory that holds those of the brokers."""
        return str(self._cluster.data)

    @property
    def pid(self) -> int:
        """Return the process id of the broker that coordinates the transactions."""
        return self._brokers[TRANSACTIONS].pid

    @property
    def running(self) -> bool:
        return all(broker.running for broker in self._brokers.values())

    def launch(self) -> None:
        """Start all brokers. Return when they lead their partitions, as a single broker does when it is started."""
        for broker in self._brokers.values():
            broker.launch()
        for number, broker in self._brokers.items():
            _await_leader(number, broker.bootstrap)

    def kill(self) -> None:
        for broker in self._brokers.values():
            broker.kill()

    def stop(self) -> int:
        """Stop all brokers; return the highest exit code."""
        return max(broker.stop() for broker in self._brokers.values())

    def restart(self) -> None:
        self.stop()
        self.launch()

    def errors(self) -> str:
        return "".join(broker.errors() for broker in self._brokers.values())

    def close(self) -> None:
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class RoutedClient(RawClient):
    """A ``RawClient`` with a connection to each broker. Raw bytes go to the broker that leads the topics."""

    def __init__(self, address: str, **options: Any) -> None:
        addresses = address.split(",")
        self._connections = {number: RawClient(each, **options) for number, each in enumerate(addresses, 1)}
        super().__init__(addresses[LEADER - 1], **options)
        #: by the correlation ids of requests that were not answered yet
        self._asked: dict[int, RawClient] = {}

    def close(self) -> None:
        super().close()
        for connection in self._connections.values():
            connection.close()

    def send(self, request: Message, version: int) -> int:
        self._correlation_id += 1
        connection = self._connections[broker_for(request)]
        connection._correlation_id = self._correlation_id - 1
        self._asked[self._correlation_id] = connection
        return connection.send(request, version)

    def receive(self, api_key: int, version: int, correlation_id: int) -> Any:
        answer = self._asked.pop(correlation_id).receive(api_key, version, correlation_id)
        if api_key == DeleteTopicsRequest.API_KEY:
            for row in answer.responses:
                self._await_topic(row.name, is_there=False)
        return answer

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str | None] | None = None) -> bytes:
        """Create a topic that ``LEADER`` leads. Return its id when all brokers know it."""
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()]
        rows = [CreatableReplicaAssignment(partition_index=each, broker_ids=[LEADER]) for each in range(partitions)]
        topic = CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, configs=configs, assignments=rows
        )  # fmt: skip
        (made,) = self.ask(CreateTopicsRequest(topics=[topic], timeout=30_000), 7).topics
        assert made.error_code == 0, made
        self._await_topic(name, is_there=True)
        return bytes(made.topic_id)

    def _await_topic(self, name: str, *, is_there: bool) -> None:
        """Return when all brokers know that the topic is there, or that it is not."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
        deadline = time.monotonic() + _WAIT_S
        for connection in self._connections.values():
            while (connection.ask(request, 9).topics[0].error_code == 0) != is_there:
                assert time.monotonic() < deadline, f"a broker does not know of {name}"
                time.sleep(0.005)


def broker_for(request: Message) -> int:
    """Return the id of the broker that must answer this request."""
    if isinstance(request, InitProducerIdRequest) and request.transactional_id is not None:
        return TRANSACTIONS
    if request.API_KEY in _FOR_TRANSACTIONS:
        return TRANSACTIONS
    return GROUPS if request.API_KEY in _FOR_GROUPS else LEADER


def _await_coordinator(bootstrap: str, kind: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    with RawClient(bootstrap) as client:
        while client.ask(FindCoordinatorRequest(key="any", key_type=kind), 1).error_code:
            assert time.monotonic() < deadline, "there is no coordinator"
            time.sleep(0.02)


def _await_leader(number: int, bootstrap: str) -> None:
    """Return when the broker answers for all partitions whose only replica it has."""
    deadline = time.monotonic() + _WAIT_S
    with RawClient(bootstrap) as client:
        while not _leads_own_partitions(number, client):
            assert time.monotonic() < deadline, f"broker {number} does not lead its partitions"
            time.sleep(0.02)


def _leads_own_partitions(number: int, client: RawClient) -> bool:
    topics = [
        ListOffsetsTopic(name=topic.name, partitions=[
            ListOffsetsPartition(partition_index=row.partition_index, timestamp=_LATEST)
            for row in topic.partitions if list(row.replica_nodes) == [number]
        ])
        for topic in client.ask(MetadataRequest(topics=None), 9).topics
    ]  # fmt: skip
    answer = client.ask(ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=topics), 7)
    return all(row.error_code == 0 for topic in answer.topics for row in topic.partitions)


_init_raw_client = RawClient.__init__


def _init_routed(self: RawClient, address: str, **options: Any) -> None:
    """Take the place of ``RawClient.__init__``: a client with several addresses becomes a ``RoutedClient``."""
    if "," in address:
        self.__class__ = RoutedClient
        self.__init__(address, **options)  # type: ignore[misc]
    else:
        _init_raw_client(self, address, **options)


def route_raw_clients() -> None:
    """Let raw clients of several addresses send each request to the broker that answers it."""
    RawClient.__init__ = _init_routed  # type: ignore[method-assign,assignment]


@contextmanager
def routed_raw_clients() -> Iterator[None]:
    route_raw_clients()
    try:
        yield
    finally:
        RawClient.__init__ = _init_raw_client  # type: ignore[method-assign]


def replace_brokers() -> None:
    """Let all tests of this process use divided clusters instead of single brokers.

    ``LEADER`` leads all topics that tests create with confluent-kafka, too. Call it before test modules are imported.
    """

    def start(data: str | os.PathLike[str] | Path | None = None, settings: Mapping[str, str] | None = None) -> Any:
        return DividedCluster(settings or {})

    def new_topic(topic: str, num_partitions: int = 1, replication_factor: int = 1, **options: Any) -> NewTopic:
        return NewTopic(topic, num_partitions, replica_assignment=[[LEADER]] * num_partitions, **options)

    confluent_kafka.admin.NewTopic = new_topic  # type: ignore[misc,assignment]
    BrokerProcess.start = start  # type: ignore[method-assign,assignment]
    route_raw_clients()
