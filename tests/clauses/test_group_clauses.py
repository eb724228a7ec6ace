"""Classic groups (JoinGroup, SyncGroup, Heartbeat, LeaveGroup) as clients meet them, clause by clause."""

from __future__ import annotations

import re
import select
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.clauses.conftest import Topic, await_coordinator
from tests.clauses.group_requests import (
    SUBSCRIBED,
    beat,
    become_member,
    become_stable,
    commit,
    join,
    leave,
    subscription,
    sync,
)

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_groups import ListGroupsRequest

EMPTY_ASSIGNMENT = b"\0\0\0\0\0\0\xff\xff\xff\xff"


@pytest.fixture
def other(ottla_broker: BrokerProcess) -> Iterator[RawClient]:
    """A second member's connection."""
    with RawClient(ottla_broker.bootstrap) as raw:
        yield raw


def described(client: RawClient, group: str, version: int = 5) -> Any:
    (found,) = client.ask(DescribeGroupsRequest(groups=[group]), version).groups
    return found


def listed(client: RawClient, version: int = 5, **filters: Any) -> dict[str, Any]:
    return {each.group_id: each for each in client.ask(ListGroupsRequest(**filters), version).groups}


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def is_parked(client: RawClient) -> bool:
    return not select.select([client.socket], [], [], 0.2)[0]


def become_two(client: RawClient, other: RawClient, group: str) -> tuple[str, str, int]:
    """A Stable group: leader, follower, generation."""
    leader, generation = become_stable(client, group)
    waiting = other.send(join(group), 3)
    eventually(lambda: client.ask(beat(group, generation, leader), 4).error_code == 27)
    generation = client.ask(join(group, leader), 9).generation_id
    follower = other.receive(11, 3, waiting).member_id
    waiting = other.send(sync(group, generation, follower), 3)
    client.ask(sync(group, generation, leader, {leader: b"for the leader", follower: b"for the follower"}), 3)
    assert other.receive(14, 3, waiting).assignment == b"for the follower"
    return leader, follower, generation


# -- FindCoordinator --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_coordinator_of_a_group_is_this_broker(ottla_broker: BrokerProcess, client: RawClient, version: int) -> None:
    found = client.ask(FindCoordinatorRequest(key="group"), version)
    assert (found.error_code, f"{found.host}:{found.port}") == (0, ottla_broker.bootstrap)


@pytest.mark.parametrize("version", range(4, 7))
def test_coordinators_of_many_groups_are_found_at_once(client: RawClient, version: int) -> None:
    found = client.ask(FindCoordinatorRequest(coordinator_keys=["a", "b", "a"]), version).coordinators
    assert [(each.key, each.error_code) for each in found] == [("a", 0), ("b", 0), ("a", 0)]
    assert client.ask(FindCoordinatorRequest(coordinator_keys=[]), version).coordinators == ()


@pytest.mark.parametrize("version", range(1, 4))
def test_coordinator_of_an_unknown_kind_is_an_invalid_request(client: RawClient, version: int) -> None:
    assert client.ask(FindCoordinatorRequest(key="x", key_type=9), version).error_code == 42


# -- JoinGroup: who is refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_join_is_refused(client: RawClient, group: str, version: int) -> None:
    for code, request in (
        (24, join("")),
        (26, join(group, session_timeout=5_999)),
        (26, join(group, session_timeout=1_800_001)),
        (25, join(group, "stranger")),
        (23, join(group, protocols={})),
        (23, join(group, protocol_type="")),
        (23, join(group, "stranger", protocols={})),
    ):
        answer = client.ask(request, version)
        assert answer.error_code == code
        assert answer.generation_id == -1
        assert answer.member_id == request.member_id
        assert answer.leader == ""
        assert not answer.members
        # Null since v7, as nothing was chosen.
        assert answer.protocol_name == (None if version >= 7 else "")
    assert group not in listed(client)


@pytest.mark.parametrize("version", range(10))
def test_join_that_has_nothing_in_common_with_the_members_is_refused(
    client: RawClient, other: RawClient, group: str, version: int
) -> None:
    member, generation = become_stable(client, group)
    assert other.ask(join(group, protocol_type="connect"), version).error_code == 23
    assert other.ask(join(group, protocols={"sticky": SUBSCRIBED}), version).error_code == 23
    assert other.ask(join(group, "stranger"), version).error_code == 25
    assert client.ask(beat(group, generation, member), 4).error_code == 0


def test_join_beyond_the_size_of_a_group_is_refused() -> None:
    with (
        BrokerProcess.start(settings={"group.max.size": "1"}) as broker,
        RawClient(broker.bootstrap) as client,
        RawClient(broker.bootstrap) as other,
    ):
        await_coordinator(client)
        member, generation = become_stable(client, "g")
        for version in (0, 4, 9):
            assert other.ask(join("g"), version).error_code == 81
        assert client.ask(beat("g", generation, member), 4).error_code == 0


# -- JoinGroup: who comes in ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
def test_new_member_of_an_old_client_is_let_in_at_once(client: RawClient, group: str, version: int) -> None:
    answer = client.ask(join(group), version)
    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 1, answer.member_id)


@pytest.mark.parametrize("version", range(4, 10))
def test_new_member_is_given_an_id_first(client: RawClient, group: str, version: int) -> None:
    given = client.ask(join(group), version)
    assert given.error_code == 79
    assert re.fullmatch(r"raw-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", given.member_id)
    assert given.protocol_name == (None if version >= 7 else "")
    answer = client.ask(join(group, given.member_id), version)
    assert (answer.error_code, answer.member_id, answer.generation_id) == (0, given.member_id, 1)
    assert answer.protocol_name == "range"
    assert answer.protocol_type == ("consumer" if version >= 7 else None)
    assert [(each.member_id, each.metadata) for each in answer.members] == [(given.member_id, SUBSCRIBED)]


def test_id_that_was_given_counts_as_a_member_that_is_awaited(client: RawClient, other: RawClient, group: str) -> None:
    member, _ = become_stable(client, group)
    given = other.ask(join(group), 9).member_id
    waiting = client.send(join(group, member, {"range": subscription("three")}), 9)
    assert is_parked(client)
    assert other.ask(leave(group, given), 5).members[0].error_code == 0
    assert client.receive(11, 9, waiting).error_code == 0


@pytest.mark.parametrize("version", range(5, 10))
def test_static_member_is_let_in_at_once(client: RawClient, group: str, version: int) -> None:
    answer = client.ask(join(group, group_instance_id="instance"), version)
    assert answer.error_code == 0
    assert answer.member_id.startswith("instance-")
    assert answer.members[0].group_instance_id == "instance"


def test_only_the_leader_is_told_who_the_members_are(client: RawClient, other: RawClient, group: str) -> None:
    leader, generation = become_stable(client, group)
    waiting = other.send(join(group, protocols={"range": b"its own"}), 3)
    eventually(lambda: client.ask(beat(group, generation, leader), 4).error_code == 27)
    to_leader = client.ask(join(group, leader), 9)
    to_follower = other.receive(11, 3, waiting)
    assert (to_leader.leader, to_follower.leader, to_follower.members) == (leader, leader, ())
    assert {each.member_id: each.metadata for each in to_leader.members} == {
        leader: SUBSCRIBED,
        to_follower.member_id: b"its own",
    }


def test_protocol_is_the_one_that_most_members_like_best(client: RawClient, other: RawClient, group: str) -> None:
    leader, generation = become_stable(client, group, protocols={"a": b"", "b": b"", "c": b""})
    waiting = other.send(join(group, protocols={"c": b"", "b": b"", "d": b""}), 3)
    eventually(lambda: client.ask(beat(group, generation, leader), 4).error_code == 27)
    chosen = client.ask(join(group, leader, protocols={"a": b"", "b": b"", "c": b""}), 9).protocol_name
    assert chosen in ("b", "c")
    assert other.receive(11, 3, waiting).protocol_name == chosen


@pytest.mark.parametrize("version", range(10))
def test_follower_that_says_nothing_new_gets_its_generation_at_once(
    client: RawClient, other: RawClient, group: str, version: int
) -> None:
    leader, follower, generation = become_two(client, other, group)
    answer = other.ask(join(group, follower), version)
    assert (answer.error_code, answer.generation_id, answer.members) == (0, generation, ())
    assert client.ask(beat(group, generation, leader), 4).error_code == 0


def test_follower_that_wants_something_else_starts_a_rebalance(client: RawClient, other: RawClient, group: str) -> None:
    leader, follower, generation = become_two(client, other, group)
    waiting = other.send(join(group, follower, {"range": subscription("three")}), 9)
    eventually(lambda: client.ask(beat(group, generation, leader), 4).error_code == 27)
    assert client.ask(sync(group, generation, leader), 5).error_code == 27
    assert client.ask(join(group, leader), 9).generation_id == generation + 1
    assert other.receive(11, 9, waiting).generation_id == generation + 1


def test_leader_that_joins_again_starts_a_rebalance(client: RawClient, other: RawClient, group: str) -> None:
    leader, follower, generation = become_two(client, other, group)
    waiting = client.send(join(group, leader), 9)
    eventually(lambda: other.ask(beat(group, generation, follower), 4).error_code == 27)
    assert other.ask(join(group, follower), 9).generation_id == generation + 1
    assert client.receive(11, 9, waiting).generation_id == generation + 1


# -- SyncGroup --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_sync_gives_what_the_leader_gave(client: RawClient, group: str, version: int) -> None:
    joined = become_member(client, group)
    member, generation = joined.member_id, joined.generation_id
    for _ in range(2):
        answer = client.ask(sync(group, generation, member, {member: b"mine"}), version)
        assert (answer.error_code, answer.assignment) == (0, b"mine")
        if version >= 5:
            assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", range(6))
def test_sync_is_refused(client: RawClient, group: str, version: int) -> None:
    joined = become_member(client, group)
    member, generation = joined.member_id, joined.generation_id
    for code, request in (
        (24, sync("", generation, member)),
        (25, sync("nobody's", generation, member)),
        (25, sync(group, generation, "stranger")),
        (25, sync(group, generation, "")),
        (22, sync(group, generation + 1, member)),
        (22, sync(group, generation - 1, member)),
    ):
        answer = client.ask(request, version)
        assert (answer.error_code, answer.assignment) == (code, b"")


def test_sync_must_name_the_protocol_of_the_group(client: RawClient, group: str) -> None:
    joined = become_member(client, group)
    member, generation = joined.member_id, joined.generation_id
    for kind, name in (("connect", "range"), ("consumer", "sticky"), (None, "range"), ("consumer", None), (None, None)):
        answer = client.ask(sync(group, generation, member, {member: b""}, protocol_type=kind, protocol_name=name), 5)
        assert answer.error_code == 23, (kind, name)
    assert described(client, group).group_state == "CompletingRebalance"


def test_follower_waits_for_the_leader(client: RawClient, other: RawClient, group: str) -> None:
    leader, follower, generation = become_two(client, other, group)
    waiting = client.send(join(group, leader), 9)
    eventually(lambda: other.ask(beat(group, generation, follower), 4).error_code == 27)
    other.ask(join(group, follower), 9)
    client.receive(11, 9, waiting)
    waiting = other.send(sync(group, generation + 1, follower, {follower: b"what I want"}), 5)
    assert is_parked(other)
    client.ask(sync(group, generation + 1, leader, {follower: b"what you get"}), 5)
    assert other.receive(14, 5, waiting).assignment == b"what you get"


def test_member_that_the_leader_forgot_can_read_what_it_gets(client: RawClient, group: str) -> None:
    """Kafka sends no bytes at all, which some clients cannot read."""
    joined = become_member(client, group)
    answer = client.ask(sync(group, joined.generation_id, joined.member_id), 5)
    assert (answer.error_code, answer.assignment) == (0, EMPTY_ASSIGNMENT)


# -- Heartbeat --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_is_answered(client: RawClient, group: str, version: int) -> None:
    joined = become_member(client, group)
    member, generation = joined.member_id, joined.generation_id
    for code, request in (
        (0, beat(group, generation, member)),
        (24, beat("", generation, member)),
        (25, beat("nobody's", generation, member)),
        (25, beat(group, generation, "stranger")),
        (25, beat(group, generation, "")),
        (22, beat(group, generation + 1, member)),
        (22, beat(group, -1, member)),
    ):
        assert client.ask(request, version).error_code == code
    client.ask(sync(group, generation, member), 5)
    assert client.ask(beat(group, generation, member), version).error_code == 0


def test_member_without_a_heartbeat_is_dropped() -> None:
    settings = {"group.min.session.timeout.ms": "100"}
    with BrokerProcess.start(settings=settings) as broker, RawClient(broker.bootstrap) as client:
        await_coordinator(client)
        member, generation = become_stable(client, "g", session_timeout=300)
        eventually(lambda: described(client, "g").group_state == "Empty")
        assert client.ask(beat("g", generation, member), 4).error_code == 25


# -- LeaveGroup -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3))
def test_member_leaves_and_its_code_is_the_answer(client: RawClient, group: str, version: int) -> None:
    member, _ = become_stable(client, group)
    assert client.ask(leave("", member), version).error_code == 24
    assert client.ask(leave("nobody's", member), version).error_code == 25
    assert client.ask(leave(group, "stranger"), version).error_code == 25
    assert client.ask(leave(group, member), version).error_code == 0
    assert client.ask(leave(group, member), version).error_code == 25
    assert described(client, group).group_state == "Empty"


@pytest.mark.parametrize("version", range(3, 6))
def test_members_leave_together_and_each_has_its_code(client: RawClient, group: str, version: int) -> None:
    member = client.ask(join(group, group_instance_id="i"), 9).member_id
    answer = client.ask(leave(group, "stranger", (member, "j"), ("", "j"), ("wrong", "i"), ("", "i")), version)
    assert answer.error_code == 0
    assert [each.error_code for each in answer.members] == [25, 25, 25, 82, 0]
    assert [(each.member_id, each.group_instance_id) for each in answer.members] == [
        ("stranger", None), (member, "j"), ("", "j"), ("wrong", "i"), ("", "i"),
    ]  # fmt: skip
    assert described(client, group).group_state == "Empty"
    assert client.ask(leave("", member), version).error_code == 24
    assert client.ask(leave(group), version).members == ()


def test_others_are_told_when_a_member_leaves(client: RawClient, other: RawClient, group: str) -> None:
    leader, follower, generation = become_two(client, other, group)
    assert client.ask(leave(group, leader), 5).error_code == 0
    assert other.ask(beat(group, generation, follower), 4).error_code == 27
    joined = other.ask(join(group, follower), 9)
    assert (joined.leader, joined.generation_id) == (follower, generation + 1)


# -- static members ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(5, 10))
def test_static_member_that_starts_again_takes_its_place_without_a_rebalance(
    client: RawClient, other: RawClient, topic: Topic, group: str, version: int
) -> None:
    old = client.ask(join(group, group_instance_id="i"), version).member_id
    client.ask(sync(group, 1, old, {old: b"mine"}), 5)
    again = other.ask(join(group, group_instance_id="i"), version)
    assert (again.error_code, again.generation_id) == (0, 1)
    assert again.member_id != old
    # An older client would compute an assignment if it saw that it leads.
    assert again.leader == (again.member_id if version >= 9 else old)
    assert again.skip_assignment == (version >= 9)
    assert other.ask(sync(group, 1, again.member_id, group_instance_id="i"), 5).assignment == b"mine"
    assert client.ask(beat(group, 1, old, "i"), 4).error_code == 82
    assert client.ask(sync(group, 1, old, group_instance_id="i"), 5).error_code == 82
    assert client.ask(join(group, old, group_instance_id="i"), version).error_code == 82
    (row,) = client.ask(commit(group, {(topic.name, 0): 1}, 1, old, group_instance_id="i"), 8).topics
    assert row.partitions[0].error_code == 82


def test_replaced_static_member_is_known_after_a_restart(fresh_ottla_broker: BrokerProcess) -> None:
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        old = client.ask(join("g", group_instance_id="i"), 9).member_id
        client.ask(sync("g", 1, old, {old: b"mine"}), 5)
        new = client.ask(join("g", group_instance_id="i"), 9).member_id
    fresh_ottla_broker.kill()
    fresh_ottla_broker.launch()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        assert client.ask(beat("g", 1, new, "i"), 4).error_code == 0
        assert client.ask(beat("g", 1, old, "i"), 4).error_code == 82


# -- what is seen from outside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_group_is_described_in_every_state(client: RawClient, group: str, version: int) -> None:
    nobody = described(client, "nobody's", version)
    assert nobody.group_state == "Dead"
    assert nobody.error_code == (69 if version >= 6 else 0)
    joined = become_member(client, group)
    member = joined.member_id
    found = described(client, group, version)
    assert (found.group_state, found.protocol_type, found.protocol_data) == ("CompletingRebalance", "consumer", "")
    (row,) = found.members
    assert (row.member_id, row.client_id, row.client_host) == (member, "raw", "/127.0.0.1")
    assert (row.member_metadata, row.member_assignment) == (b"", b"")
    client.ask(sync(group, 1, member, {member: b"mine"}), 5)
    found = described(client, group, version)
    assert (found.error_code, found.group_state, found.protocol_data) == (0, "Stable", "range")
    assert (found.members[0].member_metadata, found.members[0].member_assignment) == (SUBSCRIBED, b"mine")
    client.ask(leave(group, member), 5)
    found = described(client, group, version)
    assert (found.error_code, found.group_state, found.members) == (0, "Empty", ())


@pytest.mark.parametrize("version", range(3, 7))
def test_operations_on_a_group_are_told_when_asked_for(client: RawClient, group: str, version: int) -> None:
    become_stable(client, group)
    (found,) = client.ask(DescribeGroupsRequest(groups=[group], include_authorized_operations=True), version).groups
    # Read, delete, describe, describe configs, alter configs.
    assert found.authorized_operations == 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
    assert described(client, group, version).authorized_operations == -(1 << 31)


def test_group_that_is_named_twice_is_described_once(client: RawClient, group: str) -> None:
    """Unlike in Kafka: repeating a name must not multiply an answer that can be large."""
    become_stable(client, group)
    found = client.ask(DescribeGroupsRequest(groups=[group, group]), 5).groups
    assert [each.group_id for each in found] == [group]


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed(client: RawClient, topic: Topic, group: str, version: int) -> None:
    become_stable(client, group)
    client.ask(commit(f"{group}-simple", {(topic.name, 0): 1}), 8)
    found = listed(client, version)
    assert found[group].protocol_type == "consumer"
    assert found[f"{group}-simple"].protocol_type == ""
    if version >= 4:
        assert (found[group].group_state, found[f"{group}-simple"].group_state) == ("Stable", "Empty")
    if version >= 5:
        assert found[group].group_type == "classic"


@pytest.mark.parametrize("version", [4, 5])
def test_groups_are_listed_by_state_in_any_case(client: RawClient, group: str, version: int) -> None:
    become_stable(client, group)
    for states, is_there in ((["stable"], True), (["STABLE", "Empty"], True), (["Empty"], False), (["x"], False)):
        assert (group in listed(client, version, states_filter=states)) == is_there
    if version >= 5:
        for types, is_there in ((["classic"], True), (["CLASSIC"], True), (["consumer"], False), (["x"], False)):
            assert (group in listed(client, version, types_filter=types)) == is_there


@pytest.mark.parametrize("version", range(3))
def test_group_without_members_can_be_deleted(client: RawClient, group: str, version: int) -> None:
    member, _ = become_stable(client, group)
    request = DeleteGroupsRequest(groups_names=[group, f"{group}-unknown"])
    codes = {each.group_id: each.error_code for each in client.ask(request, version).results}
    assert codes == {group: 68, f"{group}-unknown": 69}
    client.ask(leave(group, member), 5)
    codes = {each.group_id: each.error_code for each in client.ask(request, version).results}
    assert codes == {group: 0, f"{group}-unknown": 69}
    assert group not in listed(client)
    assert described(client, group).group_state == "Dead"


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_generation_survives_a_kill_and_what_was_not_synced_does_not(fresh_ottla_broker: BrokerProcess) -> None:
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        member, generation = become_stable(client, "stable")
        joined = become_member(client, "completing")
        client.ask(join("pending"), 9)
        client.ask(join("refused", protocols={}), 9)
    fresh_ottla_broker.kill()
    fresh_ottla_broker.launch()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        assert set(listed(client)) == {"stable"}
        assert client.ask(beat("stable", generation, member), 4).error_code == 0
        assert client.ask(sync("stable", generation, member), 5).assignment == b"mine"
        assert client.ask(beat("completing", 1, joined.member_id), 4).error_code == 25


@pytest.mark.parametrize("name", ["\0", "a\nb\r\t", " ", "ž€😀", "..", "x" * 300, "y" * 32_767, "/etc/passwd"])
def test_any_name_but_none_is_a_group(fresh_ottla_broker: BrokerProcess, name: str) -> None:
    """Kafka has no rule for names of groups. What it takes must be there after a restart as well."""
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        member, generation = become_stable(client, name)
        assert described(client, name).group_state == "Stable"
    fresh_ottla_broker.restart()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        assert set(listed(client)) == {name}
        assert client.ask(beat(name, generation, member), 4).error_code == 0


def test_refused_requests_leave_nothing_behind(fresh_ottla_broker: BrokerProcess) -> None:
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        become_stable(client, "good")
        for number in range(3):
            for request, version in (
                (join("", "m"), 9), (join(f"bad-{number}", "stranger"), 9), (join(f"bad-{number}", protocols={}), 3),
                (join(f"bad-{number}", session_timeout=1), 3), (sync(f"bad-{number}", 1, "m"), 5),
                (beat(f"bad-{number}", 1, "m"), 4), (leave(f"bad-{number}", "m"), 5), (leave("", "m"), 5),
            ):  # fmt: skip
                client.ask(request, version)
        assert set(listed(client)) == {"good"}
    fresh_ottla_broker.restart()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        assert set(listed(client)) == {"good"}
