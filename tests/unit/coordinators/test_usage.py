"""Limits of client hosts: members, their metadata, and groups."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from tests.unit.coordinators.classic_fixtures import DictTopics

from ottla.broker.client import Client
from ottla.broker.coordinators.outcome import Moment
from ottla.broker.groups.context import GroupContext, GroupOutcome
from ottla.broker.groups.replies import read_commit, read_consumer_heartbeat, read_join, read_leave
from ottla.broker.groups.shard import GroupShard
from ottla.broker.groups.usage import RECOUNT_S
from ottla.model.errors import ErrorCode
from ottla.model.settings_broker import BrokerSettings
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

FULL, VIOLATION, ID_REQUIRED = (
    ErrorCode.GROUP_MAX_SIZE_REACHED,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.MEMBER_ID_REQUIRED,
)
PARKED = -100
ATTACKER, OTHER = "/10.0.0.1", "/10.0.0.2"


class Fixture:
    """Two shards, so that a host is counted over all of them, and a clock."""

    def __init__(self, **settings: str) -> None:
        self.now_s = 1000.0
        ids, self._tickets = count(1), count(1)
        topics = DictTopics()
        topics.create("t", 1)
        texts = {name.replace("_", "."): text for name, text in settings.items()}
        self.context = GroupContext(
            settings=BrokerSettings.parse(texts), topics=topics, new_uuid=lambda: f"uuid-{next(ids)}"
        )  # fmt: skip
        self.shards = [GroupShard(self.context), GroupShard(self.context)]
        self.context.usage.shards = lambda: self.shards

    @property
    def moment(self) -> Moment:
        return Moment(self.now_s, 1_700_000_000_000)

    def shard(self, group: str) -> GroupShard:
        return self.shards[len(group) % 2]

    def take(self, group: str, ticket: int, outcome: GroupOutcome[Any]) -> Any:
        """Replay the records, and return the answer to the ticket; None if it is parked."""
        for record in outcome.records:
            self.shard(group).replay(record)
        self.shard(group).follow_up_of(group, self.moment, changed=bool(outcome.records))
        return dict(outcome.replies).get(ticket) if outcome.result is None else outcome.result

    def join(self, group: str, member: str = "", *, host: str = ATTACKER, version: int = 3, size: int = 10) -> Any:
        request = JoinGroupRequest(
            group_id=group, member_id=member, session_timeout=10_000, rebalance_timeout=60_000,
            protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m" * size)],
        )  # fmt: skip
        ticket = next(self._tickets)
        client = Client("c", host, version)
        return self.take(group, ticket, self.shard(group).join_group(read_join(request, client), ticket, self.moment))

    def join_code(self, group: str, member: str = "", **how: Any) -> int:
        answer = self.join(group, member, **how)
        return PARKED if answer is None else int(answer.error_code)

    def heartbeat(self, group: str, member: str, *, host: str = ATTACKER, names: tuple[str, ...] = ("t",)) -> int:
        request = ConsumerGroupHeartbeatRequest(
            group_id=group, member_id=member, member_epoch=0, rebalance_timeout=60_000,
            subscribed_topic_names=list(names), topic_partitions=[],
        )  # fmt: skip
        ticket = next(self._tickets)
        client = Client("c", host, 1)
        outcome = self.shard(group).consumer_heartbeat(read_consumer_heartbeat(request, client), self.moment)
        return int(self.take(group, ticket, outcome).error_code)

    def commit(self, group: str, *, host: str = ATTACKER) -> int:
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=5)
        request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="t", partitions=[row])])
        ticket = next(self._tickets)
        outcome = self.shard(group).commit_offsets(read_commit(request, Client("c", host, 8)), self.moment)
        return int(self.take(group, ticket, outcome)[0].error_code)

    def leave(self, group: str, member: str) -> None:
        request = LeaveGroupRequest(group_id=group, members=[MemberIdentity(member_id=member)])
        ticket = next(self._tickets)
        outcome = self.shard(group).leave_group(group, read_leave(request, 5), Client("c", ATTACKER, 5), self.moment)
        self.take(group, ticket, outcome)

    def delete(self, group: str) -> None:
        ticket = next(self._tickets)
        outcome = self.shard(group).delete_groups([group])
        assert self.take(group, ticket, outcome) == {group: 0}

    def members(self, group: str) -> list[str]:
        return list(self.shard(group).groups[group].members)


# -- members ----------------------------------------------------------------------------------------------------------


def test_members_of_a_host_are_limited_over_all_groups() -> None:
    fixture = Fixture(group_max_members_per_ip="3")
    assert [fixture.join_code(group) for group in ("g", "gg", "g", "gg")] == [PARKED, PARKED, PARKED, FULL]
    assert fixture.join_code("g", host=OTHER) == PARKED


def test_member_id_that_was_given_out_counts_once() -> None:
    fixture = Fixture(group_max_members_per_ip="1")
    answer = fixture.join("g", version=4)
    assert answer.error_code == ID_REQUIRED
    assert fixture.join_code("gg", version=4) == FULL
    assert fixture.join_code("g", answer.member_id, version=4) == PARKED
    assert fixture.join_code("gg", version=4) == FULL


def test_known_member_rejoins_at_the_limit() -> None:
    fixture = Fixture(group_max_members_per_ip="1")
    fixture.join("g")
    (member,) = fixture.members("g")
    assert fixture.join_code("g", member) == PARKED


def test_member_that_left_makes_room_after_the_next_count() -> None:
    fixture = Fixture(group_max_members_per_ip="1")
    fixture.join("g")
    assert fixture.join_code("gg") == FULL
    fixture.leave("g", fixture.members("g")[0])
    fixture.now_s += RECOUNT_S
    assert fixture.join_code("gg") == PARKED


def test_many_joins_of_few_members_are_never_refused() -> None:
    fixture = Fixture(group_max_members_per_ip="5")
    for _ in range(100):
        assert fixture.join_code("g") == PARKED
        fixture.leave("g", fixture.members("g")[0])
        fixture.now_s += RECOUNT_S


def test_members_of_the_consumer_protocol_count() -> None:
    fixture = Fixture(group_max_members_per_ip="2")
    assert [fixture.heartbeat("g", f"m{number}") for number in range(3)] == [0, 0, FULL]
    assert fixture.heartbeat("g", "m1") == 0
    assert fixture.heartbeat("g", "other", host=OTHER) == 0


# -- metadata ---------------------------------------------------------------------------------------------------------


def test_metadata_that_is_too_large_is_refused_and_makes_no_group() -> None:
    fixture = Fixture(group_member_max_metadata_bytes="1000")
    assert fixture.join_code("g", size=2000) == VIOLATION
    assert not fixture.shard("g").groups
    assert fixture.join_code("g", size=900) == PARKED


def test_subscription_that_is_too_large_is_refused() -> None:
    fixture = Fixture(group_member_max_metadata_bytes="1000")
    assert fixture.heartbeat("g", "m", names=tuple(f"topic-{number}" for number in range(200))) == VIOLATION
    assert fixture.heartbeat("g", "m") == 0


def test_metadata_of_a_host_is_limited() -> None:
    fixture = Fixture(group_max_metadata_bytes_per_ip="10000")
    assert [fixture.join_code("g", size=4000) for _ in range(3)] == [PARKED, PARKED, VIOLATION]
    assert fixture.join_code("g", size=4000, host=OTHER) == PARKED


def test_known_member_may_rejoin_with_the_same_metadata_but_not_with_much_more() -> None:
    fixture = Fixture(group_max_metadata_bytes_per_ip="10000")
    fixture.join("g", size=4000)
    fixture.join("g", size=4000)
    first, _ = fixture.members("g")
    for _ in range(10):
        assert fixture.join_code("g", first, size=4000) == PARKED
    assert fixture.join_code("g", first, size=9000) == VIOLATION
    assert fixture.members("g")[0] == first


# -- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("create", ["join", "heartbeat", "commit"])
def test_groups_that_a_host_creates_are_limited(create: str) -> None:
    fixture = Fixture(group_max_groups_per_ip="2")
    creates: Callable[..., int] = {
        "join": fixture.join_code,
        "heartbeat": lambda group, **how: fixture.heartbeat(group, "m", **how),
        "commit": fixture.commit,
    }[create]
    created = PARKED if create == "join" else 0
    assert [creates(group) for group in ("a", "bb", "ccc")] == [created, created, VIOLATION]
    assert creates("a") == created
    assert creates("ccc", host=OTHER) == created
    assert creates("ccc") == created


def test_deleted_group_makes_room_after_the_next_count() -> None:
    fixture = Fixture(group_max_groups_per_ip="1")
    fixture.commit("a")
    assert fixture.commit("bb") == VIOLATION
    fixture.delete("a")
    fixture.now_s += RECOUNT_S
    assert fixture.commit("bb") == 0


def test_refusals_are_counted_with_the_reason_of_the_last_one() -> None:
    fixture = Fixture(group_max_members_per_ip="1")
    fixture.join("g")
    fixture.join("g")
    assert fixture.context.usage.refused == 1
    assert "group.max.members.per.ip" in fixture.context.usage.last_refusal
