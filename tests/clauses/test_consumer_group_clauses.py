"""Groups of the consumer protocol (ConsumerGroupHeartbeat, ConsumerGroupDescribe) as clients meet them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.clauses.conftest import NewTopic, Topic, await_coordinator
from tests.clauses.group_requests import (
    beat,
    become_member,
    become_stable,
    commit,
    consumer_beat,
    consumer_join,
    delete_offsets,
    fetch,
    join,
    leave,
    subscription,
    sync,
)

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.list_groups import ListGroupsRequest

VERSIONS = range(2)


def described(client: RawClient, group: str, version: int = 1) -> Any:
    (found,) = client.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version).groups
    return found


def partitions(answer: Any) -> dict[bytes, list[int]] | None:
    """What a member is told to have; None when it is told nothing."""
    if answer.assignment is None:
        return None
    return {each.topic_id: list(each.partitions) for each in answer.assignment.topic_partitions}


def listed(client: RawClient) -> dict[str, Any]:
    return {each.group_id: each for each in client.ask(ListGroupsRequest(), 5).groups}


# -- who is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_heartbeat_that_makes_no_sense_is_an_invalid_request(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    for request in (
        consumer_join("", "m"),
        consumer_join(" ", "m"),
        consumer_beat(group, "", 1),
        consumer_beat(group, "", -1),
        consumer_join(group, "m", rebalance_timeout=-1),
        consumer_join(group, "m", topics=None),
        consumer_beat(group, "m", 0, {topic.id: [0]}, rebalance_timeout=1000, subscribed_topic_names=["x"]),
        consumer_beat(group, "m", 0, None, rebalance_timeout=1000, subscribed_topic_names=["x"]),
        consumer_join(group, "m", instance_id=""),
        consumer_join(group, "m", rack_id=""),
        consumer_beat(group, "m", -2),
        consumer_beat(group, "m", -3),
    ):
        answer = client.ask(request, version)
        assert answer.error_code == 42, request
        assert answer.error_message
        assert (answer.member_id, answer.member_epoch, answer.assignment) == (None, 0, None)
    assert group not in listed(client)


def test_client_makes_up_its_id_since_version_1(client: RawClient, group: str) -> None:
    assert client.ask(consumer_join(group, ""), 1).error_code == 42
    answer = client.ask(consumer_join(group, ""), 0)
    assert answer.error_code == 0
    assert answer.member_id


@pytest.mark.parametrize("version", VERSIONS)
def test_group_that_is_not_is_not_found(client: RawClient, group: str, version: int) -> None:
    for epoch in (1, -1):
        assert client.ask(consumer_beat(group, "m", epoch), version).error_code == 69
    assert client.ask(consumer_beat(group, "m", -2, instance_id="i"), version).error_code == 69
    assert group not in listed(client)


@pytest.mark.parametrize("version", VERSIONS)
def test_assignor_that_is_not_is_refused(client: RawClient, group: str, version: int) -> None:
    assert client.ask(consumer_join(group, "m", server_assignor="nope"), version).error_code == 112
    for name in ("uniform", "range"):
        assert client.ask(consumer_join(group, f"m-{name}", server_assignor=name), version).error_code == 0


@pytest.mark.parametrize("expression", ["[", "(?=a)", r"(a)\1", "*", "("])
def test_expression_that_is_none_is_refused(client: RawClient, group: str, expression: str) -> None:
    answer = client.ask(consumer_join(group, "m", topics=None, subscribed_topic_regex=expression), 1)
    assert answer.error_code == 128
    assert group not in listed(client)


def test_consumer_beyond_the_size_of_a_group_is_refused() -> None:
    settings = {"group.consumer.max.size": "1"}
    with BrokerProcess.start(settings=settings) as broker, RawClient(broker.bootstrap) as client:
        await_coordinator(client)
        epoch = client.ask(consumer_join("g", "m1"), 1).member_epoch
        assert client.ask(consumer_join("g", "m2"), 1).error_code == 81
        assert client.ask(consumer_beat("g", "m1", epoch), 1).error_code == 0


# -- the life of a member ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_member_joins_and_has_everything(client: RawClient, new_topic: NewTopic, group: str, version: int) -> None:
    topic = new_topic(partitions=3)
    answer = client.ask(consumer_join(group, "m", [topic.name, "nowhere"]), version)
    assert (answer.error_code, answer.error_message, answer.member_id) == (0, None, "m")
    assert answer.member_epoch > 0
    assert answer.heartbeat_interval == 5000
    assert partitions(answer) == {topic.id: [0, 1, 2]}


@pytest.mark.parametrize("version", VERSIONS)
def test_assignment_is_told_when_it_changed_or_when_all_is_said(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    epoch = client.ask(consumer_join(group, "m", [topic.name]), version).member_epoch
    assert partitions(client.ask(consumer_beat(group, "m", epoch, {topic.id: [0]}), version)) is None
    assert partitions(client.ask(consumer_beat(group, "m", epoch), version)) is None
    full = {"rebalance_timeout": 30_000, "subscribed_topic_names": [topic.name]}
    assert partitions(client.ask(consumer_beat(group, "m", epoch, {topic.id: [0]}, **full), version)) == {topic.id: [0]}


@pytest.mark.parametrize("version", VERSIONS)
def test_epoch_must_be_the_member_s_own(client: RawClient, topic: Topic, group: str, version: int) -> None:
    epoch = client.ask(consumer_join(group, "m", [topic.name]), version).member_epoch
    answer = client.ask(consumer_beat(group, "m", epoch + 1), version)
    assert (answer.error_code, answer.member_id, answer.assignment) == (110, None, None)
    assert client.ask(consumer_beat(group, "stranger", epoch), version).error_code == 25
    assert client.ask(consumer_beat(group, "m", epoch), version).error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_member_leaves(client: RawClient, topic: Topic, group: str, version: int) -> None:
    client.ask(consumer_join(group, "m", [topic.name]), version)
    answer = client.ask(consumer_beat(group, "m", -1), version)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (0, "m", -1)
    assert client.ask(consumer_beat(group, "m", -1), version).error_code == 25
    assert described(client, group, version).group_state == "Empty"


def test_partition_moves_when_its_owner_has_given_it_up(client: RawClient, new_topic: NewTopic, group: str) -> None:
    topic = new_topic(partitions=2)
    epoch = client.ask(consumer_join(group, "m1", [topic.name]), 1).member_epoch
    joined = client.ask(consumer_join(group, "m2", [topic.name]), 1)
    assert (joined.member_epoch, partitions(joined)) == (epoch + 1, {})
    told = client.ask(consumer_beat(group, "m1", epoch, {topic.id: [0, 1]}), 1)
    (kept,) = partitions(told).values()
    assert (told.member_epoch, len(kept)) == (epoch, 1)
    assert partitions(client.ask(consumer_beat(group, "m2", epoch + 1, {}), 1)) is None
    gave_up = client.ask(consumer_beat(group, "m1", epoch, {topic.id: kept}), 1)
    assert gave_up.member_epoch == epoch + 1
    got = partitions(client.ask(consumer_beat(group, "m2", epoch + 1, {}), 1))
    assert got == {topic.id: [1 - kept[0]]}
    # The answer that raised its epoch may have been lost.
    assert client.ask(consumer_beat(group, "m1", epoch, {topic.id: kept}), 1).error_code == 0
    assert client.ask(consumer_beat(group, "m1", epoch, {topic.id: [0, 1]}), 1).error_code == 110


def test_partition_that_is_being_given_up_is_still_described_as_its_owner_s(
    client: RawClient, new_topic: NewTopic, group: str
) -> None:
    topic = new_topic(partitions=2)
    epoch = client.ask(consumer_join(group, "m1", [topic.name]), 1).member_epoch
    client.ask(consumer_join(group, "m2", [topic.name]), 1)
    client.ask(consumer_beat(group, "m1", epoch, {topic.id: [0, 1]}), 1)
    first = next(each for each in described(client, group).members if each.member_id == "m1")
    assert sorted(first.assignment.topic_partitions[0].partitions) == [0, 1]
    assert len(first.target_assignment.topic_partitions[0].partitions) == 1


def test_expression_finds_the_topics_that_it_matches(client: RawClient, topic: Topic, group: str) -> None:
    expression = f"{topic.name[:-1]}[{topic.name[-1]}]"
    answer = client.ask(consumer_join(group, "m", topics=None, subscribed_topic_regex=expression), 1)
    answer = client.ask(consumer_beat(group, "m", answer.member_epoch, {}), 1) if not partitions(answer) else answer
    assert partitions(answer) == {topic.id: [0]}


@pytest.mark.parametrize("version", VERSIONS)
def test_static_member_leaves_for_a_while_and_comes_back(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    epoch = client.ask(consumer_join(group, "m1", [topic.name], instance_id="i"), version).member_epoch
    assert client.ask(consumer_join(group, "m2", [topic.name], instance_id="i"), version).error_code == 111
    assert client.ask(consumer_beat(group, "m2", epoch, instance_id="i"), version).error_code == 82
    assert client.ask(consumer_beat(group, "m1", epoch, instance_id="j"), version).error_code == 25
    answer = client.ask(consumer_beat(group, "m1", -2, instance_id="i"), version)
    assert (answer.error_code, answer.member_epoch) == (0, -2)
    back = client.ask(consumer_join(group, "m2", [topic.name], instance_id="i"), version)
    assert (back.error_code, partitions(back)) == (0, {topic.id: [0]})
    assert client.ask(consumer_beat(group, "m1", epoch, instance_id="i"), version).error_code == 82


# -- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_needs_the_epoch_and_a_version_that_has_one(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    epoch = client.ask(consumer_join(group, "m", [topic.name]), 1).member_epoch
    its = topic.key(by_id=version >= 10)

    def code(its_epoch: int, member: str) -> int:
        (row,) = client.ask(commit(group, {(its, 0): 5}, its_epoch, member), version).topics[0].partitions
        return int(row.error_code)

    assert code(epoch, "stranger") == 25
    assert code(-1, "") == 25
    if version < 9:
        assert code(epoch, "m") == 35
        return
    assert code(epoch + 1, "m") == 113
    assert client.ask(fetch(group, None, 9), 9).groups[0].topics == ()
    assert code(epoch, "m") == 0


@pytest.mark.parametrize("version", [9, 10])
def test_fetch_of_a_member_needs_its_epoch(client: RawClient, topic: Topic, group: str, version: int) -> None:
    epoch = client.ask(consumer_join(group, "m", [topic.name]), 1).member_epoch
    for member, its_epoch, code in (("m", epoch, 0), ("m", epoch + 1, 113), ("x", epoch, 25), (None, -1, 0)):
        (answer,) = client.ask(fetch(group, None, version, member=member, epoch=its_epoch), version).groups
        assert answer.error_code == code


def test_offset_of_a_topic_that_a_consumer_reads_cannot_be_deleted(client: RawClient, topic: Topic, group: str) -> None:
    client.ask(consumer_join(group, "m", [topic.name]), 1)
    answer = client.ask(delete_offsets(group, {topic.name: [0]}), 0)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 86)


# -- what is seen from outside ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_group_is_described(client: RawClient, topic: Topic, group: str, version: int) -> None:
    epoch = client.ask(consumer_join(group, "m", [topic.name], rack_id="r", instance_id="i"), 1).member_epoch
    found = described(client, group, version)
    assert (found.error_code, found.error_message, found.group_state) == (0, None, "Stable")
    assert (found.group_epoch, found.assignment_epoch, found.assignor_name) == (epoch, epoch, "uniform")
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id) == ("m", "i", "r")
    assert (member.member_epoch, member.client_id, member.client_host) == (epoch, "raw", "/127.0.0.1")
    assert list(member.subscribed_topic_names) == [topic.name]
    for assignment in (member.assignment, member.target_assignment):
        (row,) = assignment.topic_partitions
        assert (row.topic_id, row.topic_name, list(row.partitions)) == (topic.id, topic.name, [0])
    if version >= 1:
        assert member.member_type == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_group_that_is_no_consumer_group_is_not_described(client: RawClient, group: str, version: int) -> None:
    become_stable(client, f"{group}-classic")
    for name, code in ((group, 69), (f"{group}-classic", 69), ("", 24)):
        found = described(client, name, version)
        assert (found.error_code, found.members) == (code, ())


def test_consumer_group_is_no_classic_one(client: RawClient, group: str) -> None:
    client.ask(consumer_join(group, "m"), 1)
    assert listed(client)[group].group_type == "consumer"
    assert listed(client)[group].protocol_type == "consumer"
    for version, code in ((5, 0), (6, 69)):
        (found,) = client.ask(DescribeGroupsRequest(groups=[group]), version).groups
        assert (found.group_state, found.error_code) == ("Dead", code)


def test_consumer_group_is_deleted_when_nobody_is_left(client: RawClient, group: str) -> None:
    client.ask(consumer_join(group, "m"), 1)
    assert client.ask(DeleteGroupsRequest(groups_names=[group]), 2).results[0].error_code == 68
    client.ask(consumer_beat(group, "m", -1), 1)
    assert client.ask(DeleteGroupsRequest(groups_names=[group]), 2).results[0].error_code == 0
    assert group not in listed(client)


# -- both protocols ---------------------------------------------------------------------------------------------------


def test_classic_member_lives_in_a_consumer_group(client: RawClient, topic: Topic, group: str) -> None:
    client.ask(consumer_join(group, "m", [topic.name]), 1)
    joined = become_member(client, group, protocols={"range": subscription(topic.name)})
    assert joined.members == ()
    answer = client.ask(sync(group, joined.generation_id, joined.member_id), 5)
    assert (answer.error_code, answer.protocol_type, answer.protocol_name) == (0, "consumer", "range")
    types = {each.member_id: each.member_type for each in described(client, group).members}
    assert types == {"m": 1, joined.member_id: 0}
    assert client.ask(leave(group, joined.member_id), 5).members[0].error_code == 0


def test_consumer_group_refuses_what_it_cannot_read(client: RawClient, group: str) -> None:
    epoch = client.ask(consumer_join(group, "m"), 1).member_epoch
    for metadata in (b"", b"\0", b"\xff" * 9):
        given = client.ask(join(group, protocols={"range": metadata}), 9)
        assert given.error_code in (23, 79)
        assert client.ask(join(group, given.member_id or "x", protocols={"range": metadata}), 9).error_code in (-1, 23)
    assert client.ask(join(group, protocol_type="connect"), 9).error_code == 23
    assert [each.member_id for each in described(client, group).members] == ["m"]
    assert client.ask(consumer_beat(group, "m", epoch), 1).error_code == 0


def test_consumer_cannot_join_a_classic_group_that_is_of_another_kind(client: RawClient, group: str) -> None:
    member, generation = become_stable(client, group, protocol_type="connect")
    for epoch in (1, -1):
        assert client.ask(consumer_beat(group, "m", epoch), 1).error_code == 69
    assert client.ask(consumer_join(group, "m"), 1).error_code == 69
    assert client.ask(beat(group, generation, member), 4).error_code == 0


def test_empty_classic_group_becomes_a_consumer_group_with_the_first_join(
    client: RawClient, topic: Topic, group: str
) -> None:
    member, generation = become_stable(client, group)
    client.ask(commit(group, {(topic.name, 0): 5}, generation, member), 8)
    client.ask(leave(group, member), 5)
    assert client.ask(consumer_beat(group, "m", 1), 1).error_code == 69
    assert client.ask(consumer_join(group, "m", [topic.name]), 1).error_code == 0
    assert listed(client)[group].group_type == "consumer"
    (answer,) = client.ask(fetch(group, None, 8), 8).groups
    assert answer.topics[0].partitions[0].committed_offset == 5


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_consumer_group_survives_a_kill(fresh_ottla_broker: BrokerProcess) -> None:
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        topic_id = client.create_topic("one", 2)
        epoch = client.ask(consumer_join("g", "m", ["one"]), 1).member_epoch
        client.ask(commit("g", {("one", 0): 5}, epoch, "m"), 9)
        for request in (
            consumer_join("bad-1", "m", server_assignor="nope"), consumer_join("bad-2", "m", topics=None),
            consumer_join("bad-3", "m", topics=None, subscribed_topic_regex="("), consumer_beat("bad-4", "m", 1),
            consumer_beat("g", "stranger", epoch), consumer_beat("g", "m", epoch + 5),
        ):  # fmt: skip
            assert client.ask(request, 1).error_code != 0
        assert set(listed(client)) == {"g"}
    fresh_ottla_broker.kill()
    fresh_ottla_broker.launch()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        assert set(listed(client)) == {"g"}
        full = {"rebalance_timeout": 30_000, "subscribed_topic_names": ["one"]}
        answer = client.ask(consumer_beat("g", "m", epoch, {topic_id: [0, 1]}, **full), 1)
        assert (answer.error_code, answer.member_epoch, partitions(answer)) == (0, epoch, {topic_id: [0, 1]})
        assert [each.member_id for each in described(client, "g").members] == ["m"]
