"""Committed offsets (OffsetCommit, OffsetFetch, OffsetDelete) as clients meet them, clause by clause."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.clauses.conftest import NewTopic, Topic, await_coordinator
from tests.clauses.group_requests import (
    TOPIC_IDS_FROM,
    asked,
    beat,
    become_member,
    become_stable,
    commit,
    delete_offsets,
    fetch,
    join,
    leave,
    subscription,
    sync,
)

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire import ZERO_UUID
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_fetch import OffsetFetchRequest

COMMITS = range(2, 11)
FETCHES = range(1, 11)


def key(topic: Topic, version: int) -> Any:
    return topic.key(by_id=version >= TOPIC_IDS_FROM)


def codes(client: RawClient, request: Any, version: int) -> list[int]:
    """The code of every partition, in the order of the request."""
    return [row.error_code for topic in client.ask(request, version).topics for row in topic.partitions]


def fetched(client: RawClient, group: str, topics: Any, version: int = 8, **fields: Any) -> Any:
    """Rows of (offset, leader epoch, metadata, code) by topic and partition."""
    answer = client.ask(fetch(group, topics, version, **fields), version)
    if version >= 8:
        (answer,) = answer.groups
    assert version < 2 or answer.error_code == 0
    return {
        (topic.topic_id if version >= TOPIC_IDS_FROM else topic.name, row.partition_index): (
            row.committed_offset,
            row.committed_leader_epoch if version >= 5 else None,
            row.metadata,
            row.error_code,
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def groups_of(client: RawClient) -> set[str]:
    return {each.group_id for each in client.ask(ListGroupsRequest(), 4).groups}


# -- commits of those who are in no group -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", COMMITS)
def test_commit_of_nobody_makes_a_simple_group(client: RawClient, topic: Topic, group: str, version: int) -> None:
    assert codes(client, commit(group, {(key(topic, version), 0): (5, "text")}, leader_epoch=3), version) == [0]
    epoch = 3 if version >= 6 else -1
    assert fetched(client, group, None) == {(topic.name, 0): (5, epoch, "text", 0)}
    (found,) = client.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    assert (found.group_state, found.protocol_type, found.members) == ("Empty", "", ())


@pytest.mark.parametrize("version", COMMITS)
def test_commit_with_a_generation_of_a_group_that_is_not_is_refused(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    code = 69 if version >= 9 else 22
    for generation, member in ((0, ""), (5, "member")):
        assert codes(client, commit(group, {(key(topic, version), 0): 5}, generation, member), version) == [code]
    assert group not in groups_of(client)
    assert fetched(client, group, None) == {}


@pytest.mark.parametrize("version", COMMITS)
def test_commit_for_partitions_that_are_not_is_refused_for_these_alone(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    its = key(topic, version)
    nowhere = b"\7" * 16 if version >= TOPIC_IDS_FROM else "nowhere"
    answer = client.ask(commit(group, {(its, 0): 1, (its, 1): 2, (its, -1): 3, (nowhere, 0): 4}), version)
    found = {
        (each.topic_id if version >= TOPIC_IDS_FROM else each.name, row.partition_index): row.error_code
        for each in answer.topics
        for row in each.partitions
    }
    unknown = 100 if version >= TOPIC_IDS_FROM else 3
    assert found == {(its, 0): 0, (its, 1): 3, (its, -1): 3, (nowhere, 0): unknown}
    assert set(fetched(client, group, None)) == {(topic.name, 0)}


@pytest.mark.parametrize("version", COMMITS)
def test_partition_that_is_not_is_told_even_when_the_group_refuses_the_rest(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    become_stable(client, group)
    its = key(topic, version)
    assert sorted(codes(client, commit(group, {(its, 0): 1, (its, 7): 2}, 99, "stranger"), version)) == [3, 25]


@pytest.mark.parametrize("version", COMMITS)
def test_metadata_that_is_too_large_is_refused_for_its_partition_alone(
    client: RawClient, new_topic: NewTopic, group: str, version: int
) -> None:
    topic = new_topic(partitions=4)
    its = key(topic, version)
    rows = {(its, 0): (1, "m" * 4096), (its, 1): (2, "m" * 4097), (its, 2): (3, None), (its, 3): (4, "ž" * 4096)}
    assert codes(client, commit(group, rows), version) == [0, 12, 0, 0]
    found = fetched(client, group, None)
    assert {number for _, number in found} == {0, 2, 3}
    # Null is stored as nothing.
    assert found[topic.name, 2] == (3, -1, "", 0)


@pytest.mark.parametrize("version", COMMITS)
def test_commit_of_nothing_is_answered_with_nothing(client: RawClient, group: str, version: int) -> None:
    assert codes(client, commit(group, {}), version) == []
    assert group not in groups_of(client)


@pytest.mark.parametrize("offset", [0, 2**63 - 1, -1, -5])
def test_offset_is_stored_as_it_is(client: RawClient, topic: Topic, group: str, offset: int) -> None:
    """Kafka checks no offset against the log: it may be that of a record to come."""
    assert codes(client, commit(group, {(topic.name, 0): offset}), 8) == [0]
    assert fetched(client, group, {topic.name: [0]})[topic.name, 0][0] == offset


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("retention_ms", [0, 1000, 2**63 - 1, -5])
def test_old_client_may_ask_for_any_retention(
    client: RawClient, topic: Topic, group: str, version: int, retention_ms: int
) -> None:
    assert codes(client, commit(group, {(topic.name, 0): 5}, retention_time=retention_ms), version) == [0]


def test_later_commit_of_a_request_wins(client: RawClient, topic: Topic, group: str) -> None:
    request = commit(group, {(topic.name, 0): 1})
    request.topics = [*request.topics, *commit(group, {(topic.name, 0): 2}).topics]
    assert codes(client, request, 8) == [0, 0]
    assert fetched(client, group, None) == {(topic.name, 0): (2, -1, "", 0)}


# -- commits of members -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", COMMITS)
def test_only_members_commit_while_there_are_any(client: RawClient, topic: Topic, group: str, version: int) -> None:
    member, generation = become_stable(client, group)
    for its_generation, its_member, code in (
        (-1, "", 25), (-1, "stranger", 25), (generation, "stranger", 25), (generation, "", 25),
        (-1, member, 22), (generation - 1, member, 22), (generation + 1, member, 22),
    ):  # fmt: skip
        request = commit(group, {(key(topic, version), 0): 5}, its_generation, its_member)
        assert codes(client, request, version) == [code], (its_generation, its_member)
    assert fetched(client, group, None) == {}
    assert codes(client, commit(group, {(key(topic, version), 0): 5}, generation, member), version) == [0]
    assert set(fetched(client, group, None)) == {(topic.name, 0)}


def test_commit_is_refused_between_join_and_sync(client: RawClient, topic: Topic, group: str) -> None:
    joined = become_member(client, group)
    request = commit(group, {(topic.name, 0): 5}, joined.generation_id, joined.member_id)
    assert codes(client, request, 8) == [27]
    client.ask(sync(group, joined.generation_id, joined.member_id), 5)
    assert codes(client, request, 8) == [0]


def test_commit_is_taken_while_a_rebalance_begins(
    ottla_broker: BrokerProcess, client: RawClient, topic: Topic, group: str
) -> None:
    member, generation = become_stable(client, group)
    with RawClient(ottla_broker.bootstrap) as other:
        other.send(join(group), 3)
        deadline = time.monotonic() + 60
        while client.ask(beat(group, generation, member), 4).error_code != 27:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert codes(client, commit(group, {(topic.name, 0): 5}, generation, member), 8) == [0]


@pytest.mark.parametrize("version", range(7, 11))
def test_instance_must_be_that_of_the_member(client: RawClient, topic: Topic, group: str, version: int) -> None:
    member = client.ask(join(group, group_instance_id="i"), 9).member_id
    client.ask(sync(group, 1, member), 5)
    rows = {(key(topic, version), 0): 5}
    assert codes(client, commit(group, rows, 1, "other", group_instance_id="i"), version) == [82]
    assert codes(client, commit(group, rows, 1, member, group_instance_id="j"), version) == [25]
    assert codes(client, commit(group, rows, 1, member, group_instance_id="i"), version) == [0]


def test_anybody_commits_once_the_members_are_gone(client: RawClient, topic: Topic, group: str) -> None:
    member, generation = become_stable(client, group)
    client.ask(leave(group, member), 5)
    assert codes(client, commit(group, {(topic.name, 0): 5}, generation, member), 8) == [25]
    assert codes(client, commit(group, {(topic.name, 0): 5}), 8) == [0]


# -- OffsetFetch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", FETCHES)
def test_offsets_are_fetched(client: RawClient, new_topic: NewTopic, group: str, version: int) -> None:
    topic = new_topic(partitions=2)
    client.ask(commit(group, {(topic.name, 0): (5, "text")}, leader_epoch=0), 8)
    its, none = key(topic, version), -1 if version >= 5 else None
    found = fetched(client, group, {its: [0, 1, 77]}, version)
    assert found == {
        (its, 0): (5, 0 if version >= 5 else None, "text", 0),
        (its, 1): (-1, none, "", 0),
        (its, 77): (-1, none, "", 0),
    }


@pytest.mark.parametrize("version", FETCHES)
def test_group_that_nobody_knows_has_committed_nothing(
    client: RawClient, topic: Topic, group: str, version: int
) -> None:
    its, none = key(topic, version), -1 if version >= 5 else None
    assert fetched(client, f"{group}-unknown", {its: [0]}, version) == {(its, 0): (-1, none, "", 0)}
    assert fetched(client, "", {its: [0]}, version) == {(its, 0): (-1, none, "", 0)}
    assert f"{group}-unknown" not in groups_of(client)


@pytest.mark.parametrize("version", FETCHES)
def test_no_topics_are_none_and_null_is_all(client: RawClient, topic: Topic, group: str, version: int) -> None:
    client.ask(commit(group, {(topic.name, 0): 5}), 8)
    assert fetched(client, group, {}, version) == {}
    if version >= 2:
        assert set(fetched(client, group, None, version)) == {(key(topic, version), 0)}


def test_topic_that_is_not_has_no_offsets_but_an_unknown_id_is_an_error(client: RawClient, group: str) -> None:
    assert fetched(client, group, {"nowhere": [0]}, 9) == {("nowhere", 0): (-1, -1, "", 0)}
    for unknown in (b"\7" * 16, ZERO_UUID):
        assert fetched(client, group, {unknown: [0]}, 10) == {(unknown, 0): (-1, -1, "", 100)}


@pytest.mark.parametrize("version", range(8, 11))
def test_many_groups_are_fetched_at_once(client: RawClient, topic: Topic, group: str, version: int) -> None:
    client.ask(commit(group, {(topic.name, 0): 5}), 8)
    request = OffsetFetchRequest(groups=[asked(group, None), asked("unknown", None), asked(group, {})])
    answer = client.ask(request, version).groups
    assert [(each.group_id, each.error_code, len(each.topics)) for each in answer] == [
        (group, 0, 1), ("unknown", 0, 0), (group, 0, 0),
    ]  # fmt: skip
    assert client.ask(OffsetFetchRequest(groups=[]), version).groups == ()


# -- OffsetDelete -----------------------------------------------------------------------------------------------------


def test_offsets_are_deleted(client: RawClient, new_topic: NewTopic, group: str) -> None:
    topic = new_topic(partitions=2)
    client.ask(commit(group, {(topic.name, 0): 5, (topic.name, 1): 6}), 8)
    answer = client.ask(delete_offsets(group, {topic.name: [0]}), 0)
    assert (answer.error_code, answer.topics[0].partitions[0].error_code) == (0, 0)
    assert set(fetched(client, group, None)) == {(topic.name, 1)}


def test_offsets_of_no_group_cannot_be_deleted(client: RawClient, topic: Topic, group: str) -> None:
    assert client.ask(delete_offsets("", {topic.name: [0]}), 0).error_code == 24
    answer = client.ask(delete_offsets(group, {topic.name: [0]}), 0)
    assert (answer.error_code, answer.topics) == (69, ())


def test_offset_of_a_partition_that_is_not_cannot_be_deleted(client: RawClient, topic: Topic, group: str) -> None:
    client.ask(commit(group, {(topic.name, 0): 5}), 8)
    answer = client.ask(delete_offsets(group, {"nowhere": [0], topic.name: [0, 1, -1]}), 0)
    found = {(each.name, row.partition_index): row.error_code for each in answer.topics for row in each.partitions}
    assert found == {("nowhere", 0): 3, (topic.name, 0): 0, (topic.name, 1): 3, (topic.name, -1): 3}


def test_offset_of_a_topic_that_is_subscribed_to_cannot_be_deleted(
    client: RawClient, new_topic: NewTopic, group: str
) -> None:
    read, unread = new_topic(), new_topic()
    member, generation = become_stable(client, group, protocols={"range": subscription(read.name)})
    client.ask(commit(group, {(read.name, 0): 5, (unread.name, 0): 6}, generation, member), 8)
    answer = client.ask(delete_offsets(group, {read.name: [0], unread.name: [0]}), 0)
    assert answer.error_code == 0
    assert {each.name: each.partitions[0].error_code for each in answer.topics} == {read.name: 86, unread.name: 0}
    assert set(fetched(client, group, None)) == {(read.name, 0)}


def test_offsets_of_another_kind_of_group_are_safe_while_it_has_members(
    client: RawClient, topic: Topic, group: str
) -> None:
    member, generation = become_stable(client, group, protocol_type="connect")
    client.ask(commit(group, {(topic.name, 0): 5}, generation, member), 8)
    assert client.ask(delete_offsets(group, {topic.name: [0]}), 0).error_code == 68
    client.ask(leave(group, member), 5)
    assert client.ask(delete_offsets(group, {topic.name: [0]}), 0).error_code == 0
    assert fetched(client, group, None) == {}


# -- what is stored ---------------------------------------------------------------------------------------------------


def test_what_was_committed_survives_a_kill_and_what_was_refused_is_nowhere(fresh_ottla_broker: BrokerProcess) -> None:
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        client.create_topic("one", 3)
        client.ask(commit("kept", {("one", 0): (5, "text"), ("one", 1): (6, "m" * 4097), ("one", 9): 7}), 8)
        member, generation = become_stable(client, "members")
        client.ask(commit("members", {("one", 0): 5}, generation, member), 8)
        for its_generation, its_member in ((-1, ""), (generation + 1, member), (generation, "stranger")):
            client.ask(commit("members", {("one", 1): 6}, its_generation, its_member), 8)
        client.ask(commit("refused", {("one", 0): 5}, 3, "stranger"), 8)
        client.ask(commit("deleted", {("one", 0): 5}), 8)
        client.ask(DeleteGroupsRequest(groups_names=["deleted"]), 2)
    fresh_ottla_broker.kill()
    fresh_ottla_broker.launch()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        await_coordinator(client)
        assert fetched(client, "kept", None) == {("one", 0): (5, -1, "text", 0)}
        assert fetched(client, "members", None) == {("one", 0): (5, -1, "", 0)}
        assert groups_of(client) == {"kept", "members"}


def test_offsets_go_with_their_topic(client: RawClient, new_topic: NewTopic, group: str) -> None:
    gone, kept = new_topic(), new_topic()
    client.ask(commit(group, {(gone.name, 0): 5, (kept.name, 0): 6}), 8)
    client.ask(DeleteTopicsRequest(topic_names=[gone.name], timeout=5000), 4)
    client.create_topic(gone.name)
    assert set(fetched(client, group, None)) == {(kept.name, 0)}
