"""Clients that are broken, absurd or malicious towards consumer groups: other groups and other clients do not notice.

After every test the broker is alive, has logged no traceback, and serves a good group at once.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from tests.clauses.group_requests import (
    beat,
    become_member,
    become_stable,
    commit,
    consumer_beat,
    consumer_join,
    fetch,
    join,
    leave,
    subscription,
    sync,
)

from ottla.testing import BrokerProcess
from ottla.testing.raw import Closed, RawClient, batch_of, produce_request
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.list_groups import ListGroupsRequest
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

pytestmark = pytest.mark.broker

MIB = 1 << 20
OFFSETS_TOPIC = "__consumer_offsets"
#: groups are compared with a replay of their log all the time, so that a state that no record explains is found
SETTINGS = {"group.verify.interval.ms": "200", "offsets.topic.num.partitions": "4"}

numbers = itertools.count()


@pytest.fixture(scope="module")
def shared_target() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("one")
            find_coordinator(client)
        yield broker


@pytest.fixture
def target(shared_target: BrokerProcess) -> Iterator[BrokerProcess]:
    """A broker that many bad clients meet, one after another."""
    logged = len(shared_target.errors())
    yield shared_target
    expect_healthy(shared_target, logged)


@pytest.fixture
def fresh_target() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings=SETTINGS) as broker:
        with RawClient(broker.bootstrap) as client:
            client.create_topic("one")
            find_coordinator(client)
        yield broker
        expect_healthy(broker)


def find_coordinator(client: RawClient) -> None:
    eventually(lambda: client.ask(FindCoordinatorRequest(key="any"), 0).error_code == 0)
    eventually(lambda: client.ask(fetch("any", None, 7), 7).error_code == 0)


def expect_healthy(broker: BrokerProcess, logged: int = 0) -> None:
    assert broker.running
    log = broker.errors()[logged:]
    assert "Traceback" not in log, log[log.index("Traceback") - 300 :][:3000]
    assert "differ from a replay" not in log
    with RawClient(broker.bootstrap) as client:
        expect_group_works(client, new_group())


def expect_group_works(client: RawClient, group: str) -> None:
    """A good member joins, commits, finds what it committed, and leaves."""
    member, generation = become_stable(client, group)
    (topic,) = client.ask(commit(group, {("one", 0): 5}, generation, member), 8).topics
    assert topic.partitions[0].error_code == 0
    assert offset_of(client, group) == 5
    assert client.ask(beat(group, generation, member), 4).error_code == 0
    assert client.ask(leave(group, member), 2).error_code == 0


def offset_of(client: RawClient, group: str) -> int:
    (topic,) = client.ask(fetch(group, {"one": [0]}, 7), 7).topics
    return int(topic.partitions[0].committed_offset)


def new_group() -> str:
    return f"group-{next(numbers)}"


def state_of(client: RawClient, group: str) -> tuple[str, int]:
    (found,) = client.ask(DescribeGroupsRequest(groups=[group]), 5).groups
    return found.group_state, len(found.members)


def groups_of(client: RawClient) -> set[str]:
    return {each.group_id for each in client.ask(ListGroupsRequest(), 4).groups}


def rss_bytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker.pid}/status") as status:
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status.read())[0]) * 1024


def eventually(condition: Callable[[], bool], seconds: float = 60.0, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(pause_s)


# -- members that do not play -----------------------------------------------------------------------------------------


def test_four_hundred_parked_joins_whose_connections_close_leave_a_group_that_works(
    fresh_target: BrokerProcess,
) -> None:
    """A member whose connection closes while its first join is parked leaves the group at once."""
    group = new_group()
    before = rss_bytes(fresh_target)
    with RawClient(fresh_target.bootstrap) as good:
        member, generation = become_stable(good, group)
        for _ in range(10):
            # No more at once than the system holds for a broker that is not quick enough to accept them.
            with ExitStack() as stack:
                for _ in range(40):
                    bad = stack.enter_context(RawClient(fresh_target.bootstrap))
                    bad.send(join(group, session_timeout=1_800_000, rebalance_timeout=1_800_000), 3)
                assert good.ask(beat(group, generation, member), 4).error_code in (0, 27)
        eventually(lambda: state_of(good, group) == ("PreparingRebalance", 1))
        assert rss_bytes(fresh_target) - before < 64 * MIB
        expect_group_works(good, new_group())

        def is_alone() -> bool:
            # A join that the broker reads only now begins another rebalance, until its connection is seen to be closed.
            joined = good.ask(join(group, member), 9)
            mine = good.ask(sync(group, joined.generation_id, member, {member: b"mine"}), 5)
            return [each.member_id for each in joined.members] == [member] and mine.assignment == b"mine"

        eventually(is_alone)
    eventually(lambda: rss_bytes(fresh_target) - before < 32 * MIB)


def test_member_that_joins_and_never_syncs_is_dropped_and_the_others_go_on(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as good, RawClient(target.bootstrap) as bad:
        member, _ = become_stable(good, group, rebalance_timeout=1_000)
        waiting = bad.send(join(group, rebalance_timeout=1_000), 3)
        eventually(lambda: state_of(good, group)[1] == 2)
        generation = good.ask(join(group, member, rebalance_timeout=1_000), 9).generation_id
        silent = bad.receive(11, 3, waiting).member_id
        assert good.ask(sync(group, generation, member, {member: b"mine", silent: b"its"}), 5).error_code == 0
        eventually(lambda: good.ask(beat(group, generation, member), 4).error_code == 27)
        rejoined = good.ask(join(group, member, rebalance_timeout=1_000), 9)
        assert [each.member_id for each in rejoined.members] == [member]
        assert bad.ask(beat(group, generation, silent), 4).error_code == 25


def test_leader_that_never_syncs_does_not_keep_the_others_waiting_for_ever(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as bad, RawClient(target.bootstrap) as good:
        leader = become_member(bad, group, rebalance_timeout=1_000)
        waiting = good.send(join(group, rebalance_timeout=1_000), 3)
        eventually(lambda: state_of(bad, group)[1] == 2)
        bad.ask(join(group, leader.member_id, rebalance_timeout=1_000), 9)
        joined = good.receive(11, 3, waiting)
        assert good.ask(sync(group, joined.generation_id, joined.member_id), 5).error_code == 27
        again = good.ask(join(group, joined.member_id, rebalance_timeout=1_000), 9)
        assert [each.member_id for each in again.members] == [joined.member_id]


def test_storm_of_member_ids_that_nobody_uses_is_bounded_and_passes(target: BrokerProcess) -> None:
    group = new_group()
    before = rss_bytes(target)
    with RawClient(target.bootstrap) as client:
        for _ in range(12_000):
            client.send(join(group, session_timeout=6_000), 4)
        codes = Counter(client.receive(11, 4, number + 1).error_code for number in range(12_000))
        # group.max.members.per.ip is 10,000; an id that is not used counts as a member until it expires.
        assert set(codes) == {79, 81}
        assert codes[79] <= 10_000
        assert rss_bytes(target) - before < 32 * MIB
        eventually(lambda: group not in groups_of(client), seconds=20, pause_s=0.2)


def test_storm_of_groups_that_nobody_joins_leaves_none_behind(target: BrokerProcess) -> None:
    before = rss_bytes(target)
    with RawClient(target.bootstrap) as client:
        for number in range(5_000):
            client.send(join(f"storm-{number}", session_timeout=6_000), 4)
        for number in range(5_000):
            assert client.receive(11, 4, number + 1).error_code == 79
        assert rss_bytes(target) - before < 64 * MIB
        # A list of thousands of groups is work for both.
        eventually(lambda: not any(each.startswith("storm-") for each in groups_of(client)), seconds=20, pause_s=0.2)


@pytest.mark.parametrize("version", [0, 3, 4, 5, 9])
def test_longest_client_id_makes_a_member_that_can_be_told_of(target: BrokerProcess, version: int) -> None:
    """A member id begins with the client id, and must fit where ids are told to others."""
    group = new_group()
    with RawClient(target.bootstrap, client_id="c" * 32_767) as client:
        joined = become_member(client, group, version)
        assert client.ask(beat(group, joined.generation_id, joined.member_id), 4).error_code == 0
        assert state_of(client, group) == ("CompletingRebalance", 1)


def test_longest_instance_id_makes_a_member_that_can_be_told_of(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as client:
        joined = become_member(client, group, 9, group_instance_id="i" * 32_767)
        assert state_of(client, group) == ("CompletingRebalance", 1)
        assert client.ask(sync(group, joined.generation_id, joined.member_id), 5).error_code == 0


def test_member_with_a_long_client_id_harms_nobody_else(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as good, RawClient(target.bootstrap, client_id="c" * 32_767) as bad:
        member, _ = become_stable(good, group)
        bad.send(join(group), 3)
        eventually(lambda: good.ask(beat(group, 1, member), 4).error_code == 27)
        rejoined = good.ask(join(group, member), 9)
        assert rejoined.error_code == 0
        assert len(rejoined.members) == 2


@pytest.mark.parametrize("version", [0, 1])
def test_longest_group_id_is_refused_in_words_that_fit(target: BrokerProcess, version: int) -> None:
    long = "g" * 32_767
    with RawClient(target.bootstrap) as client:
        assert client.ask(ConsumerGroupDescribeRequest(group_ids=[long]), version).groups[0].error_code == 69
        assert client.ask(DescribeGroupsRequest(groups=[long]), 6).groups[0].error_code == 69
        assert client.ask(consumer_beat(long, "m", 1), version).error_code == 69
        assert client.ask(consumer_join("g", "m", server_assignor=long), version).error_code == 112
        assert client.ask(consumer_join("g", "m", subscribed_topic_regex="(" * 32_767), 1).error_code == 128


# -- what is too large ------------------------------------------------------------------------------------------------


def test_commit_of_twenty_thousand_partitions_is_answered_for_each(target: BrokerProcess) -> None:
    group = new_group()
    rows = [OffsetCommitRequestPartition(partition_index=number, committed_offset=1) for number in range(20_000)]
    request = OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name="one", partitions=rows)])
    before = rss_bytes(target)
    with RawClient(target.bootstrap) as client:
        (topic,) = client.ask(request, 8).topics
        assert len(topic.partitions) == 20_000
        assert [each.partition_index for each in topic.partitions if each.error_code != 3] == [0]
        assert offset_of(client, group) == 1
    assert rss_bytes(target) - before < 128 * MIB


def too_large(group: str, generation: int = -1, member: str = "") -> OffsetCommitRequest:
    """A commit of more than message.max.bytes, whose every row is right."""
    rows = [
        OffsetCommitRequestPartition(partition_index=0, committed_offset=number, committed_metadata="m" * 4096)
        for number in range(400)
    ]
    topics = [OffsetCommitRequestTopic(name="one", partitions=rows)]
    return OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=generation, member_id=member, topics=topics
    )


def test_commit_that_is_too_large_for_the_log_is_refused_and_stores_nothing(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as client:
        (topic,) = client.ask(too_large(group), 8).topics
        assert {each.error_code for each in topic.partitions} == {-1}
        assert offset_of(client, group) == -1
        assert group not in groups_of(client)


def test_commit_that_is_too_large_does_not_disturb_the_group(target: BrokerProcess) -> None:
    """Others wait in a rebalance; what one member cannot commit is no business of theirs."""
    group = new_group()
    with (
        RawClient(target.bootstrap) as first,
        RawClient(target.bootstrap) as second,
    ):
        member, generation = become_stable(first, group)
        waiting = second.send(join(group), 3)
        eventually(lambda: first.ask(beat(group, generation, member), 4).error_code == 27)
        first.ask(too_large(group, generation, member), 8)
        rejoined = first.ask(join(group, member), 9)
        assert (rejoined.error_code, rejoined.generation_id) == (0, generation + 1)
        assert second.receive(11, 3, waiting).error_code == 0


def test_subscription_that_is_too_large_for_the_log_is_refused_and_the_group_goes_on(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as bad, RawClient(target.bootstrap) as good:
        joined = become_member(bad, group, protocols={"range": bytes(MIB - 1000)})
        # The metadata alone would fit in a record, but not with an assignment.
        large = sync(group, joined.generation_id, joined.member_id, {joined.member_id: bytes(100_000)})
        assert bad.ask(large, 5).error_code == -1
        bad.ask(leave(group, joined.member_id), 2)
        expect_group_works(good, group)


def test_joins_of_many_megabytes_are_refused_and_leave_nothing_behind(fresh_target: BrokerProcess) -> None:
    group = new_group()
    before = rss_bytes(fresh_target)
    with RawClient(fresh_target.bootstrap) as client:
        for _ in range(30):
            answer = client.ask(join(group, protocols={"range": bytes(4 * MIB)}), 4)
            assert answer.error_code == 44  # group.member.max.metadata.bytes
        assert rss_bytes(fresh_target) - before < 64 * MIB
        joined = become_member(client, group, protocols={f"p{number}": bytes(MIB // 8) for number in range(7)})
        client.ask(leave(group, joined.member_id), 2)
        expect_group_works(client, new_group())
    eventually(lambda: rss_bytes(fresh_target) - before < 64 * MIB)


def test_protocols_by_the_thousand_are_taken_or_refused_at_once(target: BrokerProcess) -> None:
    group = new_group()
    protocols = {f"p{number}": b"" for number in range(20_000)}
    with RawClient(target.bootstrap) as client, RawClient(target.bootstrap) as other:
        joined = become_member(client, group, protocols=protocols)
        client.ask(join(group, joined.member_id, protocols=protocols), 9)
        expect_group_works(other, new_group())
        client.ask(leave(group, joined.member_id), 2)


# -- the consumer protocol --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        "(a*)*b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)x", "((a{100}){100}){100}", "(?:a?){1000}a{1000}",
        "[\\x{0}-\\x{10ffff}]{1000}", "(" * 4000, "\\pL{999}", "a" * 32_767, "(x+x+)+y", "((((a{9}){9}){9}){9}){9}",
    ],
    ids=lambda expression: expression[:24],
)  # fmt: skip
def test_regular_expression_that_is_a_bomb_does_not_go_off(target: BrokerProcess, expression: str) -> None:
    group = new_group()
    before = rss_bytes(target)
    with RawClient(target.bootstrap) as client, RawClient(target.bootstrap) as other:
        other.create_topic("a" * 200 + str(next(numbers)))
        # A bomb would keep the broker busy for longer than the client waits for an answer.
        answer = client.ask(consumer_join(group, "m", topics=None, subscribed_topic_regex=expression), 1)
        assert answer.error_code in (0, 128)
        if answer.error_code:
            assert group not in groups_of(other)
        expect_group_works(other, new_group())
    assert rss_bytes(target) - before < 32 * MIB


def test_heartbeat_with_a_huge_list_of_topics_is_refused_and_nobody_waits(target: BrokerProcess) -> None:
    group = new_group()
    names = [f"topic-{number}-{'x' * 100}" for number in range(20_000)]
    with RawClient(target.bootstrap) as client, RawClient(target.bootstrap) as other:
        waiting = client.send(consumer_join(group, "m", names), 1)
        expect_group_works(other, new_group())
        answer = client.receive(68, 1, waiting)
        assert answer.error_code == 44  # group.member.max.metadata.bytes
        # A refused member creates no group.
        assert group not in groups_of(other)


def test_heartbeat_that_claims_to_own_the_world_gets_only_what_is_its_own(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as client:
        joined = client.ask(consumer_join(group, "m"), 1)
        owned = {number.to_bytes(16, "big"): list(range(10)) for number in range(1, 2000)}
        answer = client.ask(consumer_beat(group, "m", joined.member_epoch, owned), 1)
        assert answer.error_code == 0
        (described,) = client.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1).groups
        assert [each.topic_name for each in described.members[0].assignment.topic_partitions] == ["one"]


def test_three_hundred_consumers_of_one_group_keep_nobody_else_waiting(target: BrokerProcess) -> None:
    group = new_group()
    with RawClient(target.bootstrap) as client:
        for number in range(300):
            assert client.ask(consumer_join(group, f"m{number}"), 1).error_code == 0
        expect_group_works(client, new_group())
        for number in range(300):
            client.ask(consumer_beat(group, f"m{number}", -1), 1)


# -- the topic of the groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, "__ottla_rebalances"])
def test_client_cannot_write_to_an_internal_topic(target: BrokerProcess, topic: str, acks: int) -> None:
    with RawClient(target.bootstrap) as client:
        expect_group_works(client, new_group())
        (answer,) = client.ask(produce_request((topic, 0, batch_of(b"forged")), acks=acks), 9).responses
        assert answer.partition_responses[0].error_code == 17


def test_records_of_an_internal_topic_cannot_be_deleted(target: BrokerProcess) -> None:
    rows = [DeleteRecordsPartition(partition_index=number, offset=-1) for number in range(4)]
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=OFFSETS_TOPIC, partitions=rows)], timeout=5000)
    with RawClient(target.bootstrap) as client:
        for version in (0, 1, 2):
            (topic,) = client.ask(request, version).topics
            assert {row.error_code for row in topic.partitions} == {17}


def test_groups_are_served_again_after_their_topic_was_deleted(fresh_target: BrokerProcess) -> None:
    """What was stored is gone, as with any topic. Those who wait are told to look for the coordinator again."""
    with RawClient(fresh_target.bootstrap) as client, RawClient(fresh_target.bootstrap) as waiting:
        member, generation = become_stable(client, "old")
        client.ask(commit("old", {("one", 0): 5}, generation, member), 8)
        parked = waiting.send(join("old"), 3)
        eventually(lambda: state_of(client, "old")[1] == 2)
        (deleted,) = client.ask(DeleteTopicsRequest(topic_names=[OFFSETS_TOPIC], timeout=5000), 4).responses
        assert deleted.error_code == 0
        assert waiting.receive(11, 3, parked).error_code in (15, 16)
        eventually(lambda: client.ask(beat("old", generation, member), 4).error_code in (15, 16, 25))
        find_coordinator(client)
        assert offset_of(client, "old") == -1
        assert client.ask(beat("old", generation, member), 4).error_code == 25
        expect_group_works(client, "old")
        expect_group_works(client, "new")
    fresh_target.restart()
    with RawClient(fresh_target.bootstrap) as client:
        find_coordinator(client)
        assert offset_of(client, "new") == 5


def test_group_requests_while_there_is_no_coordinator_are_told_to_look_for_one() -> None:
    """Nobody has asked FindCoordinator yet: there is no topic, and nothing is made for those who did not ask."""
    with BrokerProcess.start() as broker, RawClient(broker.bootstrap) as client:
        client.create_topic("one")
        assert client.ask(join("g"), 9).error_code == 15
        assert client.ask(beat("g", 1, "m"), 4).error_code == 15
        assert client.ask(commit("g", {("one", 0): 1}), 8).topics[0].partitions[0].error_code == 15
        assert client.ask(fetch("g", None, 7), 7).error_code == 15
        assert client.ask(consumer_join("g", "m"), 1).error_code == 15
        assert groups_of(client) == set()
        find_coordinator(client)
        expect_group_works(client, "g")


# -- names ------------------------------------------------------------------------------------------------------------


def test_what_a_member_calls_itself_never_makes_a_line_of_the_log(target: BrokerProcess) -> None:
    evil = "id\n2026-01-01 00:00:00,000 ERROR forged\r\x1b[31m\u2028\0"
    with RawClient(target.bootstrap, client_id=evil) as client:
        for group in (evil, "x" * 30_000):
            joined = become_member(client, group, protocol_type=evil, protocols={evil: evil.encode()}, reason=evil)
            fields = {"protocol_type": evil, "protocol_name": evil}
            client.ask(sync(group, joined.generation_id, joined.member_id, **fields), 5)
            client.ask(leave(group, joined.member_id), 2)
            client.ask(consumer_join(f"{group}2", evil, subscribed_topic_regex="one"), 1)
            client.ask(consumer_join(f"{group}3", evil, topics=None, subscribed_topic_regex=f"({evil}"), 1)
    log = target.errors()
    assert "forged" not in re.sub(r"\\n.*", "", log)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u2028]", log)


def test_subscription_that_is_no_subscription_harms_neither_the_group_nor_the_broker(target: BrokerProcess) -> None:
    valid = subscription("one", version=3)
    for metadata in (b"", b"\0", b"\xff" * 40, valid[:-3], b"\x7f\xff" + valid[2:], b"\0\0\x7f\xff\xff\xff", valid * 9):
        group = new_group()
        with RawClient(target.bootstrap) as client:
            member, generation = become_stable(client, group, protocols={"range": metadata})
            assert state_of(client, group) == ("Stable", 1)
            assert client.ask(beat(group, generation, member), 4).error_code == 0
            # The consumer protocol cannot take over what it cannot read.
            assert client.ask(consumer_join(group, "m"), 1).error_code in (0, 69)
            try:
                client.ask(leave(group, member), 2)
            except Closed:
                pytest.fail(f"closed: {metadata!r}")
