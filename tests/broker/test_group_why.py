"""`ottla group why` names the right cause: one scripted scenario for each.

Members are scripted request by request, so that exactly one thing happens; what is asked is
the command that people use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla.broker.groups.subscription import Subscription, encode_subscription
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequestTopicPartitions as Owned
from ottla.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

pytestmark = pytest.mark.broker

SCRIPT = [sys.executable, "-c", "from ottla.cli.main import main; main(prog_name='ottla')"]
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "200",
    "group.consumer.min.session.timeout.ms": "200",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.verify.interval.ms": "500",
}
LONG_MS = 30_000
GROUP_RESOURCE = 32
DEADLINE_S = 90.0
#: a version in which members are admitted at once
JOIN_V = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings=SETTINGS) as started:
        yield started
        assert " ERROR " not in started.errors()


_clients: list[RawClient] = []


@pytest.fixture(autouse=True)
def _hang_up() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


def connect(broker: BrokerProcess, client_id: str) -> RawClient:
    _clients.append(RawClient(broker.bootstrap, client_id=client_id))
    return _clients[-1]


class Member:
    """A classic member that does what the script says."""

    def __init__(self, broker: BrokerProcess, group: str, *, topics: tuple[str, ...] = ("t",), **fields: Any) -> None:
        self.client = connect(broker, fields.pop("client_id", "scripted"))
        self.group = group
        self.topics = topics
        self.member_id = ""
        self.generation = -1
        self.fields: dict[str, Any] = {"session_timeout": LONG_MS, "rebalance_timeout": LONG_MS} | fields
        self.version = 5 if "group_instance_id" in fields else JOIN_V
        self.client.ask(FindCoordinatorRequest(key=group), 1)

    def send_join(self, **fields: Any) -> Callable[[], Any]:
        """Ask to join; the function that is returned takes the answer, which may be a while in coming."""
        metadata = encode_subscription(Subscription(topics=self.topics, version=1))
        request = JoinGroupRequest(
            group_id=self.group, member_id=self.member_id, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)], **(self.fields | fields),
        )  # fmt: skip
        correlation_id = self.client.send(request, self.version)

        def take() -> Any:
            answer = self.client.receive(request.API_KEY, self.version, correlation_id)
            self.member_id, self.generation = answer.member_id, answer.generation_id
            return answer

        return take

    def join(self) -> Any:
        return self.send_join()()

    def send_sync(self, members: Any = ()) -> Callable[[], Any]:
        rows = [SyncGroupRequestAssignment(member_id=each.member_id, assignment=b"") for each in members]
        request = SyncGroupRequest(
            group_id=self.group, generation_id=self.generation, member_id=self.member_id, assignments=rows
        )  # fmt: skip
        correlation_id = self.client.send(request, 2)
        return lambda: self.client.receive(request.API_KEY, 2, correlation_id)

    def settle(self) -> None:
        """Join and sync alone."""
        answer = self.join()
        assert answer.error_code == 0, answer
        assert self.send_sync(answer.members)().error_code == 0

    def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.member_id)
        return int(self.client.ask(request, 2).error_code)

    def leave(self, version: int = 1, reason: str | None = None) -> None:
        member = MemberIdentity(member_id=self.member_id, reason=reason)
        request = LeaveGroupRequest(group_id=self.group, member_id=self.member_id, members=[member])
        assert self.client.ask(request, version).error_code == 0


def settle_together(leader: Member, *others: Member) -> None:
    """Everybody joins the rebalance that is under way, and syncs; the leader is whoever the broker says."""
    members = (leader, *others)
    answers = [take() for take in [member.send_join() for member in members]]
    assert {answer.error_code for answer in answers} == {0}
    chosen = next(answer.members for answer in answers if answer.members)
    takes = [
        member.send_sync(chosen if answer.members else ()) for member, answer in zip(members, answers, strict=True)
    ]
    assert {take().error_code for take in takes} == {0}


def why(broker: BrokerProcess, group: str, rebalances: int) -> list[dict[str, Any]]:
    """What the command prints, newest first, as soon as there are so many."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        words = [*SCRIPT, "group", "why", group, "-o", "json", "--bootstrap-server", broker.bootstrap]
        done = subprocess.run(words, capture_output=True, env=os.environ, timeout=90)
        found = json.loads(done.stdout)["rebalances"] if done.returncode == 0 and done.stdout.strip() else []
        if len(found) >= rebalances:
            assert len(found) == rebalances, found
            return list(found)
        assert time.monotonic() < deadline, (found, done.stderr)


def await_state(member: Member, state: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        (group,) = member.client.ask(DescribeGroupsRequest(groups=[member.group]), 5).groups
        if group.group_state == state:
            return
        assert time.monotonic() < deadline, group


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    name: str = request.node.name
    return name.removeprefix("test_")[:60]


def first_cause(rebalance: dict[str, Any]) -> dict[str, Any]:
    cause: dict[str, Any] = rebalance["causes"][0]
    return cause


def test_joined(broker: BrokerProcess, group: str) -> None:
    Member(broker, group, client_id="billing").settle()
    (rebalance,) = why(broker, group, 1)
    cause = first_cause(rebalance)
    assert (cause["kind"], cause["client_id"]) == ("joined", "billing")
    assert (rebalance["members_before"], rebalance["members_after"], rebalance["generation"]) == (0, 1, 1)


def test_left_with_the_reason_that_the_client_gave(broker: BrokerProcess, group: str) -> None:
    member = Member(broker, group)
    member.settle()
    member.leave(version=5, reason="the shop is closed")
    cause = first_cause(why(broker, group, 2)[0])
    assert (cause["kind"], cause["detail"]) == ("left", "the shop is closed")


def test_session_timeout(broker: BrokerProcess, group: str) -> None:
    member = Member(broker, group, session_timeout=2000)
    member.settle()
    cause = first_cause(why(broker, group, 2)[0])
    assert (cause["kind"], cause["member_id"]) == ("session timeout", member.member_id)


def test_max_poll_interval_passed_in_a_rebalance(broker: BrokerProcess, group: str) -> None:
    slow = Member(broker, group, rebalance_timeout=500, client_id="slow")
    slow.settle()
    quick = Member(broker, group, rebalance_timeout=500, client_id="quick")
    answer = quick.join()  # answered when the slow one has had its time
    assert quick.send_sync(answer.members)().error_code == 0
    rebalance = why(broker, group, 2)[0]
    kinds = {(cause["kind"], cause["client_id"]) for cause in rebalance["causes"]}
    assert ("max poll interval", "slow") in kinds
    assert (rebalance["members_before"], rebalance["members_after"]) == (1, 1)


def test_max_poll_interval_as_the_java_client_says_it(broker: BrokerProcess, group: str) -> None:
    member = Member(broker, group)
    member.settle()
    member.leave(version=5, reason="consumer poll timeout has expired.")
    assert first_cause(why(broker, group, 2)[0])["kind"] == "max poll interval"


def test_metadata_change(broker: BrokerProcess, group: str) -> None:
    leader, follower = Member(broker, group), Member(broker, group)
    leader.settle()
    take = follower.send_join()
    while leader.heartbeat() == 0:
        pass
    answers = [leader.send_join()(), take()]
    chosen = next(answer.members for answer in answers if answer.members)
    takes = [leader.send_sync(chosen), follower.send_sync()]
    assert {each().error_code for each in takes} == {0}
    follower.topics = ("t", "another")
    settle_together(follower, leader)
    cause = first_cause(why(broker, group, 3)[0])
    assert (cause["kind"], cause["member_id"]) == ("metadata change", follower.member_id)


def test_new_partition_of_a_topic_that_the_group_reads(broker: BrokerProcess, group: str) -> None:
    topic = f"grows-{group}"
    member = Member(broker, group, topics=(topic,))
    member.client.create_topic(topic, 2)
    member.settle()
    row = CreatePartitionsTopic(name=topic, count=5, assignments=None)
    assert member.client.ask(CreatePartitionsRequest(topics=[row], timeout=LONG_MS), 3).results[0].error_code == 0
    member.settle()  # a client's leader does so when it sees new metadata
    cause = first_cause(why(broker, group, 2)[0])
    assert cause["kind"] == "new topic or partition"
    assert topic in cause["detail"]


def test_leader_that_wants_a_new_assignment(broker: BrokerProcess, group: str) -> None:
    member = Member(broker, group)
    member.settle()
    member.settle()
    assert first_cause(why(broker, group, 2)[0])["kind"] == "leader rejoined"


def test_member_that_never_fetched_its_assignment(broker: BrokerProcess, group: str) -> None:
    member = Member(broker, group, rebalance_timeout=400)
    member.join()
    await_state(Member(broker, group), "Empty")
    assert "never fetched its assignment" in {cause["kind"] for cause in why(broker, group, 1)[0]["causes"]}


def test_removed_by_an_administrator(broker: BrokerProcess, group: str) -> None:
    member = Member(broker, group, group_instance_id="till-1")
    member.settle()
    request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id="", group_instance_id="till-1")])
    assert member.client.ask(request, 4).error_code == 0
    cause = first_cause(why(broker, group, 2)[0])
    assert (cause["kind"], cause["group_instance_id"]) == ("removed by an administrator", "till-1")


def test_static_member_fenced_by_another_with_its_name(broker: BrokerProcess, group: str) -> None:
    first = Member(broker, group, group_instance_id="till-1")
    first.settle()
    second = Member(broker, group, group_instance_id="till-1", topics=("t", "other"))
    answer = second.join()
    assert answer.error_code == 0
    assert second.send_sync(answer.members)().error_code == 0
    cause = first_cause(why(broker, group, 2)[0])
    assert (cause["kind"], cause["group_instance_id"]) == ("static member fenced", "till-1")


def test_coordinator_moved(start_ottla_broker: Callable[..., BrokerProcess], group: str) -> None:
    own = start_ottla_broker(settings=SETTINGS)
    first = Member(own, group)
    first.settle()
    why(own, group, 1)
    own.restart()
    again = Member(own, group)
    again.member_id, again.generation = first.member_id, first.generation
    again.settle()  # its join was lost with the broker, as in the middle of a rebalance
    newest, oldest = why(own, group, 2)
    assert first_cause(newest)["kind"] == "coordinator moved"
    assert first_cause(oldest)["kind"] == "joined"  # the journal survived


class Heart:
    """A member of the consumer protocol."""

    def __init__(self, broker: BrokerProcess, group: str, topics: list[str]) -> None:
        self.client = connect(broker, "heart")
        self.group = group
        self.topics = topics
        self.member_id = f"member-of-{group}"
        self.epoch = 0
        self.owned: list[Owned] = []
        self.client.ask(FindCoordinatorRequest(key=group), 1)

    def beat(self, **fields: Any) -> Any:
        full = {"subscribed_topic_names": self.topics, "rebalance_timeout": LONG_MS, "topic_partitions": self.owned}
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group, member_id=self.member_id, member_epoch=self.epoch, **(full | fields)
        )  # fmt: skip
        answer = self.client.ask(request, 1)
        assert answer.error_code == 0, answer
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = [
                Owned(topic_id=each.topic_id, partitions=each.partitions) for each in answer.assignment.topic_partitions
            ]
        return answer

    def set_session_ms(self, value: int) -> None:
        """Change the session timeout of the group, from its next heartbeat on."""
        config = AlterableConfig(name="consumer.session.timeout.ms", config_operation=0, value=str(value))
        resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=self.group, configs=[config])
        (changed,) = self.client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
        assert changed.error_code == 0, changed


def test_causes_of_the_consumer_protocol(broker: BrokerProcess, group: str) -> None:
    topic = f"grows-{group}"
    heart = Heart(broker, group, [topic])
    heart.client.create_topic(topic, 2)
    heart.beat()
    heart.beat()
    assert first_cause(why(broker, group, 1)[0])["kind"] == "joined"
    row = CreatePartitionsTopic(name=topic, count=3, assignments=None)
    heart.client.ask(CreatePartitionsRequest(topics=[row], timeout=LONG_MS), 3)
    heart.beat()
    heart.beat()
    cause = first_cause(why(broker, group, 2)[0])
    assert cause["kind"] == "new topic or partition"
    assert topic in cause["detail"]
    heart.topics = [topic, "another"]
    heart.beat()
    heart.beat()
    assert first_cause(why(broker, group, 3)[0])["kind"] == "metadata change"
    # Then it falls silent. Its session was long until now, so that it does not expire while the command runs.
    heart.set_session_ms(200)
    heart.beat()
    cause = first_cause(why(broker, group, 4)[0])
    assert (cause["kind"], cause["member_id"]) == ("session timeout", heart.member_id)


def test_people_are_told_who_how_long_and_what_to_look_at(broker: BrokerProcess, group: str) -> None:
    Member(broker, group, session_timeout=2000, client_id="fragile").settle()
    why(broker, group, 2)
    words = [*SCRIPT, "group", "why", group, "--bootstrap-server", broker.bootstrap]
    page = subprocess.run(words, capture_output=True, check=True, timeout=60).stdout.decode()
    assert "session timeout: fragile" in page
    assert "members 1 -> 0" in page
    assert "session.timeout.ms" in page


def test_librdkafka_that_stopped_polling_exceeded_its_poll_interval(broker: BrokerProcess, group: str) -> None:
    """It leaves without a reason: records waited for it, and it did nothing about them for too long."""
    confluent_kafka = pytest.importorskip("confluent_kafka")
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
            "session.timeout.ms": 1000, "heartbeat.interval.ms": 200, "max.poll.interval.ms": 1000,
            "enable.auto.commit": False, "group.protocol": "classic",
        }
    )  # fmt: skip
    topic = f"polled-{group}"
    try:
        for _ in range(10):
            producer.produce(topic, b"record")
        assert producer.flush(10) == 0
        consumer.subscribe([topic])
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        consumer.commit(message, asynchronous=False)
        cause = first_cause(why(broker, group, 2)[0])  # meanwhile nobody polls
        assert cause["kind"] == "max poll interval"
        assert cause["detail"].startswith("inferred")
    finally:
        consumer.close()
