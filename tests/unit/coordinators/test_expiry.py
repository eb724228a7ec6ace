"""No request observes an expired session, however late the timers fire. The test drives the clock by hand."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import make_metadata
from tests.unit.broker.request_fixtures import request_context
from tests.unit.coordinators.test_runtime import RuntimeFixture, in_loop

from ottla.broker.client import Client
from ottla.broker.coordinators.pending_reply import PendingReply
from ottla.broker.groups.group_apis import GroupApis
from ottla.model.errors import ErrorCode
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

UNKNOWN = ErrorCode.UNKNOWN_MEMBER_ID
SESSION_S = 10
CONSUMER_SESSION_S = 45
#: of the first member of a new group of the consumer protocol
EPOCH = 2
#: less than the timers of the wheel were late
A_MOMENT_S = 0.001


class Requests:
    """Requests to the handlers of a broker that has nothing but a group coordinator."""

    def __init__(self, fixture: RuntimeFixture) -> None:
        self._room = fixture
        self.apis = GroupApis(metadata=make_metadata(), groups=fixture.runtime)

    def ask(self, handler: Callable[..., Any], request: Any, version: int) -> Any:
        context = request_context(version, client=Client("c", "/h", version))
        answer = handler(request, context)
        self._room.turn()
        self._room.threads.run()
        if isinstance(answer, PendingReply):
            return answer.result()
        if not iscoroutine(answer):
            return answer
        try:
            answer.send(None)
        except StopIteration as ended:
            return ended.value
        raise AssertionError("the request waits although everything is durable")

    # -- a classic group ----------------------------------------------------------------------------------------------

    def join(self, member_id: str = "") -> Any:
        request = JoinGroupRequest(
            group_id="g", member_id=member_id, session_timeout=SESSION_S * 1000, rebalance_timeout=60_000,
            protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )  # fmt: skip
        return self.ask(self.apis.join_group, request, 3)

    def sync(self, member_id: str) -> Any:
        assigned = SyncGroupRequestAssignment(member_id=member_id, assignment=b"")
        request = SyncGroupRequest(group_id="g", member_id=member_id, generation_id=1, assignments=[assigned])
        return self.ask(self.apis.sync_group, request, 3)

    def heartbeat(self, member_id: str) -> Any:
        return self.ask(self.apis.heartbeat, HeartbeatRequest(group_id="g", member_id=member_id, generation_id=1), 3)

    def leave(self, member_id: str) -> Any:
        request = LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)])
        return self.ask(self.apis.leave_group, request, 5).members[0]

    def commit(self, member_id: str, epoch: int = 1) -> Any:
        row = OffsetCommitRequestPartition(partition_index=1, committed_offset=5)
        request = OffsetCommitRequest(
            group_id="g", member_id=member_id, generation_id_or_member_epoch=epoch,
            topics=[OffsetCommitRequestTopic(name="orders", partitions=[row])],
        )  # fmt: skip
        return self.ask(self.apis.offset_commit, request, 9).topics[0].partitions[0]

    def describe(self) -> tuple[str, int]:
        (found,) = self.ask(self.apis.describe_groups, DescribeGroupsRequest(groups=["g"]), 6).groups
        return found.group_state, len(found.members)

    def states(self, *wanted: str) -> dict[str, str]:
        listed = self.ask(self.apis.list_groups, ListGroupsRequest(states_filter=list(wanted)), 5).groups
        return {each.group_id: each.group_state for each in listed}

    def delete(self) -> int:
        (result,) = self.ask(self.apis.delete_groups, DeleteGroupsRequest(groups_names=["g"]), 2).results
        return int(result.error_code)

    def stable(self) -> str:
        """Return the id of the only member of a group that is Stable."""
        member_id = str(self.join().member_id)
        assert self.sync(member_id).error_code == 0
        assert self.describe() == ("Stable", 1)
        return member_id

    # -- a group of the consumer protocol ----------------------------------------------------------------------------

    def consumer_heartbeat(self, member_id: str, epoch: int) -> Any:
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member_id, member_epoch=epoch, rebalance_timeout=60_000,
            subscribed_topic_names=["missing"], topic_partitions=[],
        )  # fmt: skip
        return self.ask(self.apis.consumer_group_heartbeat, request, 1)

    def fetch_as(self, member_id: str, epoch: int) -> Any:
        group = OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=epoch, topics=None)
        return self.ask(self.apis.offset_fetch, OffsetFetchRequest(groups=[group]), 9).groups[0]

    def consumer_members(self) -> set[str]:
        (found,) = self.ask(self.apis.consumer_group_describe, ConsumerGroupDescribeRequest(group_ids=["g"]), 1).groups
        assert found.error_code == 0, found
        return {member.member_id for member in found.members}


#: by request, what it finds of a classic member before its deadline and at its deadline
CLASSIC: dict[str, tuple[Callable[[Requests, str], object], object, object]] = {
    "Heartbeat": (lambda r, m: r.heartbeat(m).error_code, 0, UNKNOWN),
    "SyncGroup": (lambda r, m: r.sync(m).error_code, 0, UNKNOWN),
    "JoinGroup": (lambda r, m: r.join(m).error_code, 0, UNKNOWN),
    "LeaveGroup": (lambda r, m: r.leave(m).error_code, 0, UNKNOWN),
    "OffsetCommit": (lambda r, m: r.commit(m).error_code, 0, UNKNOWN),
    "DescribeGroups": (lambda r, m: r.describe(), ("Stable", 1), ("Empty", 0)),
    "ListGroups": (lambda r, m: r.states(), {"g": "Stable"}, {"g": "Empty"}),
    "ListGroups with a state": (lambda r, m: r.states("stable"), {"g": "Stable"}, {}),
    "DeleteGroups": (lambda r, m: r.delete(), ErrorCode.NON_EMPTY_GROUP, 0),
}
#: the same of a member of the consumer protocol
CONSUMER: dict[str, tuple[Callable[[Requests, str], object], object, object]] = {
    "ConsumerGroupHeartbeat": (lambda r, m: r.consumer_heartbeat(m, EPOCH).error_code, 0, UNKNOWN),
    "OffsetCommit": (lambda r, m: r.commit(m, EPOCH).error_code, 0, UNKNOWN),
    "OffsetFetch": (lambda r, m: r.fetch_as(m, EPOCH).error_code, 0, UNKNOWN),
    "ConsumerGroupDescribe": (lambda r, m: r.consumer_members(), {"m"}, set()),
    "ListGroups": (lambda r, m: r.states(), {"g": "Stable"}, {"g": "Empty"}),
    "DeleteGroups": (lambda r, m: r.delete(), ErrorCode.NON_EMPTY_GROUP, 0),
}


@pytest.mark.parametrize("request_name", CLASSIC)
def test_request_never_observes_an_expired_classic_session(tmp_path: Path, request_name: str) -> None:
    observe, before, expired = CLASSIC[request_name]

    @in_loop
    async def run(fixture: RuntimeFixture) -> None:
        requests = Requests(fixture)
        member_id = requests.stable()
        fixture.clock.now += SESSION_S - A_MOMENT_S
        assert observe(requests, member_id) == before

    @in_loop
    async def run_late(fixture: RuntimeFixture) -> None:
        requests = Requests(fixture)
        member_id = requests.stable()
        fixture.clock.now += SESSION_S
        assert observe(requests, member_id) == expired

    for scenario, name in ((run, "before"), (run_late, "late")):
        (tmp_path / name).mkdir()
        scenario(tmp_path / name)


@pytest.mark.parametrize("request_name", CONSUMER)
def test_request_never_observes_an_expired_consumer_session(tmp_path: Path, request_name: str) -> None:
    observe, before, expired = CONSUMER[request_name]

    @in_loop
    async def run(fixture: RuntimeFixture) -> None:
        requests = Requests(fixture)
        assert requests.consumer_heartbeat("m", 0).member_epoch == EPOCH
        fixture.clock.now += CONSUMER_SESSION_S - A_MOMENT_S
        assert observe(requests, "m") == before

    @in_loop
    async def run_late(fixture: RuntimeFixture) -> None:
        requests = Requests(fixture)
        assert requests.consumer_heartbeat("m", 0).member_epoch == EPOCH
        fixture.clock.now += CONSUMER_SESSION_S
        assert observe(requests, "m") == expired

    for scenario, name in ((run, "before"), (run_late, "late")):
        (tmp_path / name).mkdir()
        scenario(tmp_path / name)


@in_loop
async def test_joins_of_others_are_answered_when_a_request_finds_the_expired_member(fixture: RuntimeFixture) -> None:
    """A reader of one group applies what the late timer would have done: the rebalance ends for all who wait."""
    requests = Requests(fixture)
    requests.stable()
    waits = requests_join_that_waits(requests)
    fixture.clock.now += SESSION_S
    assert requests.describe() == ("CompletingRebalance", 1)
    assert waits.done() and waits.result().generation_id == 2


def requests_join_that_waits(requests: Requests) -> PendingReply:
    request = JoinGroupRequest(
        group_id="g", session_timeout=60_000, rebalance_timeout=60_000, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    answer = requests.apis.join_group(request, request_context(3, client=Client("d", "/h", 3)))
    assert isinstance(answer, PendingReply) and not answer.done()
    return answer


@pytest.mark.parametrize("seed", range(8))
def test_members_are_those_whose_deadline_is_ahead_whenever_timers_fire(tmp_path: Path, seed: int) -> None:
    random = Random(seed)

    @in_loop
    async def run(fixture: RuntimeFixture) -> None:
        requests = Requests(fixture)
        alive: dict[str, tuple[float, int]] = {}
        for _ in range(120):
            fixture.clock.now += random.choice((0.001, 1.0, 7.0, 22.5, CONSUMER_SESSION_S))
            now = fixture.clock.now
            expected = {name: each for name, each in alive.items() if each[0] > now}
            step = random.random()
            if step < 0.2 and fixture.wheel.timers:
                _, timer = fixture.wheel.timers.pop(random.randrange(len(fixture.wheel.timers)))
                if timer.timer_bucket is not None:
                    timer.timer_bucket = None
                    timer.expire()
            elif step < 0.8:
                name = random.choice("abcd")
                epoch = alive.get(name, (0.0, 0))[1]
                answer = requests.consumer_heartbeat(name, epoch)
                if epoch and name not in expected:
                    assert answer.error_code == UNKNOWN
                else:
                    assert answer.error_code == 0
                    expected[name] = (now + CONSUMER_SESSION_S, answer.member_epoch)
            alive = expected
            if "g" in requests.states():
                assert requests.consumer_members() == set(alive)
            else:
                assert not alive

    run(tmp_path)
