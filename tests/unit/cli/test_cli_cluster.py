"""How errors of the clients become exit codes and messages."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import click
import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ottla.admin.failure import Failure, NotHealthy
from ottla.cli.cluster import ClusterClient, connect
from ottla.cli.connection import make_connection
from ottla.cli.records import Reader, Writer, failure_of
from ottla.client.errors import ClientError, ClusterUnreachable, ConnectionLost, TimedOut
from ottla.client.protocol.metadata import Node
from ottla.model.types import TopicPartition
from ottla.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 3),
        (KafkaError._UNKNOWN_PARTITION, 3),
        (KafkaError.TOPIC_ALREADY_EXISTS, 1),
        (KafkaError._TIMED_OUT, 4),
        (KafkaError._ALL_BROKERS_DOWN, 4),
        (KafkaError.LEADER_NOT_AVAILABLE, 4),
        (KafkaError.SASL_AUTHENTICATION_FAILED, 1),
        (KafkaError.INVALID_CONFIG, 1),
    ],
)
def test_each_kind_of_error_has_its_exit_code(code: int, exit_code: int) -> None:
    failure = failure_of(KafkaError(code, "reason"), "topic x", "x")
    assert failure.exit_code == exit_code
    assert "\n" not in failure.message


def refuse(*_: Any, **__: Any) -> None:
    raise ConnectionRefusedError(111, "Connection refused")


def test_no_reachable_broker_is_said_at_once_with_address_and_remedy(
    monkeypatch: pytest.MonkeyPatch, ottla: Any
) -> None:
    monkeypatch.setattr(socket, "create_connection", refuse)
    result = ottla("topic", "list", "-b", "nowhere:1234")
    assert result.exit_code == 4
    assert result.stderr == (
        "error: no broker reachable at nowhere:1234 (connection refused); start one with 'ottla broker', "
        "or name another with -b HOST:PORT\n"
    )


def test_a_property_that_does_not_exist_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Accepted:
        def close(self) -> None: ...

    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: Accepted())
    with click.Context(click.Command("x")), pytest.raises(click.UsageError, match="nope"):
        connect(make_connection(None, {"nope": "1"}, {}, 1))


class FakeKafka:
    """Answers requests for metadata; completes no other request but ListGroups."""

    def __init__(self, leaders: dict[str, list[int]], *, answers: bool = True, errors: bool = False) -> None:
        self.leaders, self.answers, self.errors = leaders, answers, errors
        self.failure: ClientError = ConnectionLost("broker at here:1", "none in time")

    def metadata(self, topics: list[str] | None, deadline: float) -> MetadataResponse:
        if not self.answers:
            raise self.failure
        rows = [
            MetadataResponseTopic(
                name=name,
                partitions=[
                    MetadataResponsePartition(partition_index=at, leader_id=leader, replica_nodes=[2, 3], isr_nodes=[2])
                    for at, leader in enumerate(leaders)
                ],
            )
            for name, leaders in self.leaders.items()
        ]
        return MetadataResponse(topics=rows, brokers=[MetadataResponseBroker(node_id=1, host="here", port=1)])

    def ask(
        self, node: Node, request: Any, version_min: int = 0, *, deadline: float | None = None
    ) -> ListGroupsResponse:
        assert isinstance(request, ListGroupsRequest)
        # The leader of every partition is elected after the list was made.
        self.leaders = {name: [1 for _ in leaders] for name, leaders in self.leaders.items()}
        if self.errors:
            return ListGroupsResponse(error_code=KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        rows = [
            ListedGroup(group_id="g", group_state="Empty", group_type="classic"),
            ListedGroup(group_id="connect", protocol_type="connect", group_state="Stable", group_type="classic"),
        ]
        return ListGroupsResponse(groups=rows)

    def time_out(self, *_: Any, **__: Any) -> None:
        raise TimedOut("no success within 7 s")

    retry_at_coordinator = list_offset_rows = time_out


def asking(kafka: FakeKafka) -> ClusterClient:
    client = ClusterClient(make_connection("here:1", {}, {}, 7))
    client.cluster = kafka  # type: ignore[assignment]
    return client


def test_group_whose_coordinator_is_offline_is_not_taken_for_a_wrong_port() -> None:
    # The hash of "g" is 103: its coordinator is the leader of partition 103 % 4.
    cluster = asking(FakeKafka({"__consumer_offsets": [1, 1, 1, -1]}))
    with pytest.raises(NotHealthy) as failed:
        cluster.describe_groups(["g"])
    assert failed.value.message == (
        "the coordinator of group g is not available: partition 3 of topic __consumer_offsets has no leader (its "
        "replicas are on brokers 2, 3); start the brokers that do not run; 'ottla cluster status' shows what is offline"
    )


def test_list_of_groups_says_which_coordinators_were_offline() -> None:
    leaders = {"__consumer_offsets": [1, -1, 1, -1], "a": [-1]}
    groups, failures = asking(FakeKafka(leaders)).groups()
    assert [group.group_id for group in groups] == ["g"]
    assert [(failure.exit_code, failure.message) for failure in failures] == [
        (
            4,
            "the list is not complete: partitions 1, 3 of topic __consumer_offsets have no leader (their replicas are "
            "on brokers 2, 3), so groups may be missing; start the brokers that do not run; 'ottla cluster status' "
            "shows what is offline",
        )
    ]
    assert asking(FakeKafka({"__consumer_offsets": [1], "a": [-1]})).groups()[1] == []


def test_list_of_groups_says_which_brokers_gave_an_error() -> None:
    groups, [failure] = asking(FakeKafka({}, errors=True)).groups()
    assert groups == [] and failure.exit_code == 4 and failure.message.startswith("the list is not complete: ")


@pytest.mark.parametrize("leaders", [{}, {"__consumer_offsets": [-1, -1, -1, 1]}])
def test_group_whose_coordinator_does_not_answer_is_named(leaders: dict[str, list[int]]) -> None:
    with pytest.raises(NotHealthy, match="the coordinator of group g is not available; try again"):
        asking(FakeKafka(leaders)).describe_groups(["g"])


def test_request_that_is_not_completed_by_a_cluster_that_answers_is_named() -> None:
    with pytest.raises(NotHealthy, match="a-0: the cluster did not complete the request within 7 s") as failed:
        asking(FakeKafka({"a": [1]})).find_offsets([TopicPartition("a", 0)], "latest")
    assert "security.protocol" not in failed.value.message


def test_cluster_that_answers_nothing_is_said_to_give_no_kafka_answer() -> None:
    requests: list[Callable[[ClusterClient], Any]] = [
        lambda cluster: cluster.describe_groups(["g"]), lambda cluster: cluster.topics(),
        lambda cluster: cluster.check_broker(1),
    ]  # fmt: skip
    for ask in requests:
        with pytest.raises(NotHealthy, match=r"here:1 accepts connections but gives no Kafka answer .*security.prot"):
            ask(asking(FakeKafka({}, answers=False)))


def test_cluster_that_has_stopped_meanwhile_is_not_reachable() -> None:
    stopped = FakeKafka({}, answers=False)
    stopped.failure = ClusterUnreachable("here:1", "connection refused")
    cluster = asking(stopped)
    with pytest.raises(NotHealthy, match=r"no broker reachable at here:1 \(connection refused\)"):
        cluster.topics()


class FakeConsumer:
    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)

    def poll(self, timeout: float) -> Message | None:
        return self.messages.pop(0) if self.messages else None

    def consume(self, count: int, timeout: float) -> list[Message]:
        taken, self.messages = self.messages[:count], self.messages[count:]
        return taken


def end_of(partition: int, offset: int) -> Message:
    return Message(topic="t", partition=partition, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF))


def test_the_reader_tells_records_from_ends() -> None:
    record = Message(topic="t", partition=0, offset=4, value=b"x")
    reader = Reader(FakeConsumer(record, end_of(0, 5), end_of(1, 0)))  # type: ignore[arg-type]
    assert reader.read(100, 1) == ([record], {TopicPartition("t", 0): 5, TopicPartition("t", 1): 0})
    assert reader.read(100, 1) == ([], {})


def test_the_reader_raises_every_other_error() -> None:
    lost = Message(topic="t", partition=0, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no"))
    reader = Reader(FakeConsumer(lost))  # type: ignore[arg-type]
    with pytest.raises(Failure, match="t-0: no"):
        reader.read(100, 1)


@pytest.mark.parametrize("code", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.COORDINATOR_NOT_AVAILABLE])
def test_the_reader_needs_no_group(code: int) -> None:
    record = Message(topic="t", partition=0, offset=4, value=b"v")
    of_group = Message(error=KafkaError(code, "FindCoordinator response error"))
    reader = Reader(FakeConsumer(of_group, record, of_group))  # type: ignore[arg-type]
    assert reader.read(100, 1) == ([record], {})
    of_topic = Message(topic="t", partition=0, error=KafkaError(code, "no"))
    with pytest.raises(Failure, match=r"^t-0: no"):
        Reader(FakeConsumer(of_topic)).read(100, 1)  # type: ignore[arg-type]


def test_an_error_without_a_partition_is_the_clusters() -> None:
    refused = Message(error=KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no"))
    reader = Reader(FakeConsumer(refused))  # type: ignore[arg-type]
    with pytest.raises(Failure, match=r"^the cluster: no; the user needs an ACL for the cluster"):
        reader.read(100, 1)


class StoppedProducer:
    def fail(self, timeout: float) -> int:
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "no producer id", fatal=True))

    poll = flush = fail


@pytest.mark.parametrize("verb", ["poll", "flush"])
def test_a_fatal_error_of_the_writer_is_a_failure_with_advice(verb: str) -> None:
    writer = Writer(StoppedProducer())  # type: ignore[arg-type]
    with pytest.raises(Failure, match=r"the producer stops: no producer id; the user needs an ACL .*'ottla acl add"):
        getattr(writer, verb)(1)


class FullProducer:
    """Refuses until it was polled."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def produce(self, *_: Any, **__: Any) -> None:
        self.calls.append("produce")
        if "poll" not in self.calls:
            raise BufferError

    def poll(self, timeout: float) -> None:
        self.calls.append("poll")


def test_the_writer_waits_for_room() -> None:
    producer = FullProducer()
    writer = Writer(producer)  # type: ignore[arg-type]
    writer.while_full = lambda: producer.calls.append("called")
    writer.send("t", b"x")
    assert producer.calls == ["produce", "poll", "called", "produce"]


def test_partitions_are_what_librdkafka_takes() -> None:
    assert KafkaPartition(*TopicPartition("t", 3), 5).offset == 5
