"""How errors of the client become exit codes, and the two requests that are written by hand."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future
from struct import pack
from types import SimpleNamespace
from typing import Any

import click
import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from ottla.cli import cluster as cluster_module
from ottla.cli.cluster import Cluster, PartitionName, Reader, Writer, connect, failure_of
from ottla.cli.connection import make_connection
from ottla.cli.default_config import DefaultConfig, DefaultEntry
from ottla.cli.failure import Failure, NotHealthy


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


class FakeAdmin:
    """Answers requests for metadata; completes no other request."""

    def __init__(self, leaders: dict[str, list[int]], *, answers: bool = True, errors: bool = False) -> None:
        self.leaders, self.answers, self.errors = leaders, answers, errors

    def list_topics(self, timeout: float) -> Any:
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        rows = {
            name: SimpleNamespace(
                partitions={
                    at: SimpleNamespace(id=at, leader=leader, replicas=[2, 3], isrs=[2])
                    for at, leader in enumerate(leaders)
                }
            )
            for name, leaders in self.leaders.items()
        }
        return SimpleNamespace(topics=rows, brokers={})

    def poll(self, timeout: float) -> int:
        return 0

    def list_consumer_groups(self, request_timeout: float) -> Future[Any]:
        future: Future[Any] = Future()
        away = KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))
        group = SimpleNamespace(
            group_id="g", is_simple_consumer_group=True, state=ConsumerGroupState.EMPTY, type=ConsumerGroupType.CLASSIC
        )
        future.set_result(SimpleNamespace(valid=[group], errors=[away] if self.errors else []))
        # The leader of every partition is elected after the list was made.
        self.leaders = {name: [1 for _ in leaders] for name, leaders in self.leaders.items()}
        return future

    def describe_consumer_groups(self, names: list[str], request_timeout: float) -> dict[str, Future[None]]:
        return {name: timed_out() for name in names}

    def list_offsets(self, asked: dict[Any, Any], **_: Any) -> dict[Any, Future[None]]:
        return {partition: timed_out() for partition in asked}


def timed_out() -> Future[None]:
    future: Future[None] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    return future


def asking(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(cluster_module, "AdminClient", lambda configuration: admin)
    monkeypatch.setattr(cluster_module, "refusal", lambda *_: None)
    return Cluster(make_connection("here:1", {}, {}, 7))


def test_group_whose_coordinator_is_offline_is_not_taken_for_a_wrong_port(monkeypatch: pytest.MonkeyPatch) -> None:
    # The hash of "g" is 103: its coordinator is the leader of partition 103 % 4.
    cluster = asking(FakeAdmin({"__consumer_offsets": [1, 1, 1, -1]}), monkeypatch)
    with pytest.raises(NotHealthy) as failed:
        cluster.describe_groups(["g"])
    assert failed.value.message == (
        "the coordinator of group g is not available: partition 3 of topic __consumer_offsets has no leader (its "
        "replicas are on brokers 2, 3); start the brokers that do not run; 'ottla cluster status' shows what is offline"
    )


def test_list_of_groups_says_which_coordinators_were_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = {"__consumer_offsets": [1, -1, 1, -1], "a": [-1]}
    groups, failures = asking(FakeAdmin(leaders), monkeypatch).groups()
    assert [group.group_id for group in groups] == ["g"]
    assert [(failure.exit_code, failure.message) for failure in failures] == [
        (
            4,
            "the list is not complete: partitions 1, 3 of topic __consumer_offsets have no leader (their replicas are "
            "on brokers 2, 3), so groups may be missing; start the brokers that do not run; 'ottla cluster status' "
            "shows what is offline",
        )
    ]
    assert asking(FakeAdmin({"__consumer_offsets": [1], "a": [-1]}), monkeypatch).groups()[1] == []


def test_list_of_groups_says_which_brokers_gave_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, [failure] = asking(FakeAdmin({}, errors=True), monkeypatch).groups()
    assert len(groups) == 1 and failure.exit_code == 4 and failure.message.startswith("the list is not complete: ")


@pytest.mark.parametrize("leaders", [{}, {"__consumer_offsets": [-1, -1, -1, 1]}])
def test_group_whose_coordinator_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, leaders: dict[str, list[int]]
) -> None:
    with pytest.raises(NotHealthy, match="the coordinator of group g is not available; try again"):
        asking(FakeAdmin(leaders), monkeypatch).describe_groups(["g"])


def test_request_that_is_not_completed_by_a_cluster_that_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotHealthy, match="a-0: the cluster did not complete the request within 7 s") as failed:
        asking(FakeAdmin({"a": [1]}), monkeypatch).find_offsets([PartitionName("a", 0)], "latest")
    assert "security.protocol" not in failed.value.message


def test_cluster_that_answers_nothing_is_said_to_give_no_kafka_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Callable[[Cluster], Any]] = [
        lambda cluster: cluster.describe_groups(["g"]), lambda cluster: cluster.topics(),
        lambda cluster: cluster.check_broker(1),
    ]  # fmt: skip
    for ask in requests:
        with pytest.raises(NotHealthy, match=r"here:1 accepts connections but gives no Kafka answer .*security.prot"):
            ask(asking(FakeAdmin({}, answers=False), monkeypatch))


def test_cluster_that_has_stopped_meanwhile_is_not_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = asking(FakeAdmin({}, answers=False), monkeypatch)
    monkeypatch.setattr(cluster_module, "refusal", lambda *_: "connection refused")
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
    assert reader.read(100, 1) == ([record], {PartitionName("t", 0): 5, PartitionName("t", 1): 0})
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


class FakeSocket:
    """Answers one request with fixed bytes."""

    def __init__(self, reply: bytes) -> None:
        self.sent = b""
        self._reply = pack(">i", len(reply)) + reply

    def __enter__(self) -> FakeSocket:
        return self

    def __exit__(self, *_: object) -> None: ...

    def sendall(self, data: bytes) -> None:
        self.sent += data

    def recv(self, size: int) -> bytes:
        # One byte at a time: whoever reads must not trust a packet's size.
        taken, self._reply = self._reply[: min(size, 1)], self._reply[min(size, 1) :]
        return taken


def text(value: str) -> bytes:
    return pack(">h", len(value)) + value.encode()


def answer(monkeypatch: pytest.MonkeyPatch, reply: bytes) -> FakeSocket:
    connection = FakeSocket(reply)
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: connection)
    return connection


def test_broker_defaults_are_described_under_an_empty_name(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = text("log.retention.ms") + text("5") + pack(">bbb", 0, 3, 0) + pack(">i", 0)
    result = pack(">hh", 0, -1) + b"\4" + text("") + pack(">i", 1) + entry
    connection = answer(monkeypatch, pack(">ii", 1, 0) + pack(">i", 1) + result)
    assert DefaultConfig("h", 1, 1).describe() == [DefaultEntry("log.retention.ms", "5", 3, False, False)]
    body = pack(">i", 1) + b"\4" + text("") + pack(">i", -1) + b"\0"
    assert connection.sent[4:] == pack(">hhi", 32, 1, 1) + text("ottla-cli") + body


def test_broker_defaults_are_altered_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = answer(monkeypatch, pack(">ii", 1, 0) + pack(">i", 1) + pack(">hh", 0, -1) + b"\4" + text(""))
    DefaultConfig("h", 1, 1).alter({"a": "1"}, ["b"], dry_run=True)
    changes = text("a") + b"\0" + text("1") + text("b") + b"\1" + pack(">h", -1)
    body = pack(">i", 1) + b"\4" + text("") + pack(">i", 2) + changes + b"\1"
    assert connection.sent[4:] == pack(">hhi", 44, 0, 1) + text("ottla-cli") + body


def test_a_refused_default_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, pack(">ii", 1, 0) + pack(">i", 1) + pack(">h", 40) + text("bad value") + b"\4" + text(""))
    with pytest.raises(Failure, match="broker defaults: bad value"):
        DefaultConfig("h", 1, 1).alter({"a": "1"}, [], dry_run=False)


@pytest.mark.parametrize("reply", [b"", b"\0" * 10, pack(">ii", 1, 0) + pack(">i", 7)])
def test_a_reply_that_makes_no_sense_is_no_traceback(monkeypatch: pytest.MonkeyPatch, reply: bytes) -> None:
    answer(monkeypatch, reply)
    with pytest.raises(Failure) as caught:
        DefaultConfig("h", 1, 1).describe()
    assert caught.value.exit_code == 4


def test_partition_names_are_what_the_client_takes() -> None:
    assert TopicPartition(*PartitionName("t", 3), 5).offset == 5
