"""Conversations with groups of the consumer protocol, and with groups in which both protocols meet."""

from __future__ import annotations

from tests.clauses.group_requests import (
    SUBSCRIBED,
    beat,
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
from tests.clauses.group_scripts import Script, Wire

from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.wire.messages.delete_groups import DeleteGroupsRequest
from ottla.wire.messages.describe_groups import DescribeGroupsRequest

MANY = ("one", "three")

CONSUMER_SCRIPTS: list[Script] = []


def script(function: Script) -> Script:
    CONSUMER_SCRIPTS.append(function)
    return function


# -- the consumer protocol --------------------------------------------------------------------------------------------


@script
def consumer_heartbeats_that_are_refused(wire: Wire) -> None:
    group = wire.group()
    for version in range(2):
        for note, request in {
            "no group id": consumer_join("", "m"),
            "blank group id": consumer_join("  ", "m"),
            "no member id, later": consumer_beat(group, "", 1),
            "no member id, leave": consumer_beat(group, "", -1),
            "no timeout": consumer_join(group, "m", rebalance_timeout=-1),
            "no topics": consumer_join(group, "m", topics=None),
            "owns": consumer_beat(
                group, "m", 0, {wire.ids["one"]: [0]}, rebalance_timeout=1000, subscribed_topic_names=["one"]
            ),
            "does not own": consumer_beat(group, "m", 0, rebalance_timeout=1000, subscribed_topic_names=["one"]),
            "empty instance": consumer_join(group, "m", instance_id=""),
            "empty rack": consumer_join(group, "m", rack_id=""),
            "assignor": consumer_join(group, "m", server_assignor="nope"),
            "empty assignor": consumer_join(group, "m", server_assignor=""),
            "epoch -2": consumer_beat(group, "m", -2),
            "epoch -3": consumer_beat(group, "m", -3),
            "unknown group": consumer_beat(group, "m", 1),
            "unknown group, leave": consumer_beat(group, "m", -1),
            "unknown group, static leave": consumer_beat(group, "m", -2, instance_id="i"),
            "timeout 0": consumer_beat(group, "m", 1, rebalance_timeout=0),
            "timeout -5": consumer_beat(group, "m", 1, rebalance_timeout=-5),
        }.items():
            wire.ask(request, version, note=note)
    wire.ask(consumer_join(group, ""), 1, note="no member id")
    wire.ask(consumer_join(group, " "), 1, note="blank member id")
    for expression in ("[", "(", "(?=a)", r"(a)\1", "*", "a{2000}", "\\"):
        wire.ask(consumer_join(group, "m", topics=None, subscribed_topic_regex=expression), 1, note=expression)
    wire.look(group)


@script
def consumer_group_lives(wire: Wire) -> None:
    for version in range(2):
        group = wire.group()
        joined = wire.ask(consumer_join(group, "m1" if version else "", MANY), version)
        member, epoch = joined.member_id, joined.member_epoch
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)
        wire.look(group)
        own = {wire.ids["one"]: [0], wire.ids["three"]: [0, 1, 2]}
        wire.ask(consumer_beat(group, member, epoch, own), version, note="owns all")
        wire.ask(consumer_beat(group, member, epoch), version, note="nothing new")
        wire.ask(consumer_beat(group, member, epoch, {}), version, note="owns nothing")
        wire.ask(consumer_beat(group, member, epoch, {b"\7" * 16: [0]}), version, note="owns what is not")
        wire.ask(consumer_beat(group, member, epoch + 1), version, note="epoch to come")
        wire.ask(consumer_beat(group, member, 0), version, note="epoch 0, nothing said")
        wire.ask(consumer_beat(group, "stranger", 1), version, note="stranger")
        wire.ask(consumer_beat(group, "stranger", -1), version, note="stranger leaves")
        wire.ask(consumer_beat(group, member, epoch, instance_id="i"), version, note="not static")
        wire.ask(consumer_beat(group, member, -2, instance_id="i"), version, note="not static, leaves")
        wire.ask(consumer_beat(group, member, epoch, server_assignor="nope"), version, note="assignor")
        full = {"rebalance_timeout": 30_000, "subscribed_topic_names": MANY}
        wire.ask(consumer_beat(group, member, epoch, own, **full), version, note="full")
        wire.ask(consumer_beat(group, member, epoch, own, subscribed_topic_names=["one"]), version, note="fewer topics")
        wire.ask(consumer_beat(group, member, epoch, {wire.ids["one"]: [0]}), version, note="gave up")
        wire.ask(consumer_beat(group, member, epoch + 1), version)
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)
        wire.ask(
            consumer_beat(group, member, epoch + 1, subscribed_topic_names=["nowhere"]), version, note="unknown topic"
        )
        wire.ask(consumer_beat(group, member, epoch + 1, {}), version)
        wire.ask(consumer_beat(group, member, epoch + 2, subscribed_topic_names=[]), version, note="no topics")
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)
        wire.ask(consumer_beat(group, member, -1), version, note="leaves")
        wire.ask(consumer_beat(group, member, -1), version, note="leaves again")
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)
        wire.look(group)
        wire.ask(DeleteGroupsRequest(groups_names=[group]), 2)
        wire.look(group)


@script
def consumer_member_joins_twice(wire: Wire) -> None:
    group = wire.group()
    wire.ask(consumer_join(group, "m1", MANY), 1)
    wire.ask(consumer_join(group, "m1", MANY), 1, note="again")
    wire.ask(consumer_join(group, "m1", ["one"]), 1, note="again, fewer topics")
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)


@script
def partition_moves_between_consumers(wire: Wire) -> None:
    group = wire.group()
    three = wire.ids["three"]
    epoch = wire.ask(consumer_join(group, "m1", ["three"]), 1).member_epoch
    wire.ask(consumer_join(group, "m2", ["three"]), 1, "b")
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    first = wire.ask(consumer_beat(group, "m1", epoch, {three: [0, 1, 2]}), 1)
    kept = [] if first.assignment is None else list(first.assignment.topic_partitions[0].partitions)
    wire.ask(consumer_beat(group, "m2", epoch + 1, {}), 1, "b", note="not yet")
    wire.ask(consumer_beat(group, "m1", epoch), 1, note="says nothing")
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    wire.ask(consumer_beat(group, "m1", epoch, {three: kept}), 1, note="gave up")
    wire.ask(consumer_beat(group, "m1", epoch, {three: kept}), 1, note="its answer was lost")
    wire.ask(consumer_beat(group, "m1", epoch, {three: [0, 1, 2]}), 1, note="old epoch, owns too much")
    wire.ask(consumer_beat(group, "m1", epoch), 1, note="old epoch")
    wire.ask(consumer_beat(group, "m2", epoch + 1, {}), 1, "b", note="now")
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    wire.ask(consumer_beat(group, "m1", -1), 1)
    wire.ask(consumer_beat(group, "m2", epoch + 1), 1, "b", note="all")
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)


@script
def static_consumer_leaves_for_a_while(wire: Wire) -> None:
    for version in range(2):
        group = wire.group()
        epoch = wire.ask(consumer_join(group, "m1", instance_id="i"), version).member_epoch
        wire.ask(consumer_join(group, "m2", instance_id="i"), version, note="in use")
        wire.ask(consumer_beat(group, "m2", epoch, instance_id="i"), version, note="another's")
        wire.ask(consumer_beat(group, "m2", -1, instance_id="i"), version, note="another's")
        wire.ask(consumer_beat(group, "m1", epoch, instance_id="j"), version, note="unknown instance")
        wire.ask(consumer_beat(group, "m1", -2, instance_id="i"), version, note="away")
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)
        wire.ask(consumer_beat(group, "m1", epoch, instance_id="i"), version, note="is away")
        wire.ask(commit(group, {("one", 0): 1}, -2, "m1"), 9, note="is away")
        wire.ask(consumer_join(group, "m2", instance_id="i"), version, note="successor")
        wire.ask(consumer_beat(group, "m1", epoch, instance_id="i"), version, note="fenced")
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)
        wire.ask(leave(group, ("", "i")), 5, note="administrator")
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), version)


@script
def consumers_commit(wire: Wire) -> None:
    group = wire.group()
    first = wire.ask(consumer_join(group, "m1"), 1).member_epoch
    for version in range(2, 11):
        one = wire.ids["one"] if version >= 10 else "one"
        for note, member, epoch in (
            ("right", "m1", first), ("to come", "m1", first + 1), ("zero", "m1", 0), ("none", "m1", -1),
            ("stranger", "x", first), ("nobody", "", -1), ("nobody", "", first),
        ):  # fmt: skip
            wire.ask(commit(group, {(one, 0): version}, epoch, member), version, note=note)
            if version >= 9:
                wire.ask(fetch(group, None, version, member=member, epoch=epoch), version, note=note)
    wire.ask(fetch(group, None, 9, member=None, epoch=-1), 9)
    wire.ask(delete_offsets(group, {"one": [0], "three": [0]}), 0, note="subscribed")
    wire.ask(DeleteGroupsRequest(groups_names=[group]), 2, note="not empty")
    wire.ask(consumer_beat(group, "m1", -1), 1)
    wire.ask(commit(group, {("one", 0): 77}, first, "m1"), 9, note="left")
    wire.ask(commit(group, {("one", 0): 78}, -1, ""), 9, note="empty")
    wire.ask(commit(group, {("one", 0): 79}, -1, ""), 2, note="empty")
    wire.ask(delete_offsets(group, {"one": [0], "three": [0]}), 0, note="empty")
    wire.look(group)


# -- both protocols ---------------------------------------------------------------------------------------------------


@script
def classic_requests_to_a_consumer_group(wire: Wire) -> None:
    group = wire.group()
    epoch = wire.ask(consumer_join(group, "m1"), 1).member_epoch
    for version in (0, 3, 4, 7, 9):
        wire.ask(join(group, protocol_type="connect"), version, "b", note="type")
        if version >= 4:
            wire.ask(join(group, protocols={"range": b"\xff"}), version, "b", note="unreadable")
            wire.ask(join(group, protocols={"range": b""}), version, "b", note="unreadable")
        wire.ask(join(group, protocols={}), version, "b", note="no protocol")
        wire.ask(join(group, session_timeout=1), version, "b", note="session")
    wire.ask(sync(group, epoch, "m1"), 5)
    wire.ask(beat(group, epoch, "m1"), 4)
    wire.ask(sync(group, epoch, "stranger"), 5)
    wire.ask(beat(group, epoch, "stranger"), 4)
    wire.ask(leave(group, "stranger"), 5)
    wire.ask(DescribeGroupsRequest(groups=[group]), 5)
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    wire.ask(leave(group, "m1"), 5)
    wire.look(group)
    wire.count_from_one()
    wire.become_stable(group)
    wire.look(group)
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)


@script
def classic_member_in_a_consumer_group(wire: Wire) -> None:
    group = wire.group()
    alone = wire.ask(consumer_join(group, "m1", ["three"]), 1).member_epoch
    readers = {"range": subscription("three"), "sticky": subscription("three")}
    given = wire.ask(join(group, protocols=readers), 9, "b").member_id
    joined = wire.ask(join(group, given, protocols=readers), 9, "b")
    member, epoch = joined.member_id, joined.generation_id
    wire.ask(sync(group, epoch, member, protocol_type="consumer", protocol_name="range"), 5, "b")
    wire.ask(sync(group, epoch, member, protocol_type="consumer", protocol_name="else"), 5, "b")
    wire.ask(sync(group, epoch - 1, member), 5, "b", note="old")
    wire.ask(beat(group, epoch, member), 4, "b")
    wire.ask(beat(group, epoch + 1, member), 4, "b", note="to come")
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    wire.ask(commit(group, {("three", 0): 1}, epoch, member), 5, "b", note="old version")
    wire.ask(commit(group, {("three", 0): 1}, epoch - 1, member), 5, "b", note="old epoch")
    wire.ask(consumer_beat(group, "m1", alone, {wire.ids["three"]: [0, 1, 2]}), 1)
    wire.ask(DescribeGroupsRequest(groups=[group]), 6)
    wire.ask(leave(group, member), 5, "b")
    wire.look(group)


@script
def consumer_joins_a_classic_group(wire: Wire) -> None:
    for note, kind, metadata in (
        ("other type", "connect", SUBSCRIBED), ("unreadable", "consumer", b"\xff"), ("empty", "consumer", b""),
        ("readable", "consumer", SUBSCRIBED),
    ):  # fmt: skip
        group = wire.group()
        joined = wire.become_member(group, protocol_type=kind, protocols={"range": metadata})
        member, generation = joined.member_id, joined.generation_id
        assignment = b"\0\0\0\0\0\1\0\3one\0\0\0\1\0\0\0\0\xff\xff\xff\xff"
        wire.ask(sync(group, generation, member, {member: assignment}), 5)
        wire.ask(consumer_beat(group, "m1", 1), 1, "b", note=f"{note}, no join")
        wire.ask(consumer_beat(group, "m1", -1), 1, "b", note=f"{note}, leaves")
        wire.ask(consumer_join(group, "m1"), 1, "b", note=note)
        wire.ask(beat(group, generation, member), 4, note=note)
        wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1, note=note)
        wire.look(group)


@script
def consumer_takes_over_an_empty_classic_group(wire: Wire) -> None:
    group = wire.group()
    member, generation = wire.become_stable(group)
    wire.ask(commit(group, {("one", 0): 5}, generation, member), 9)
    wire.ask(leave(group, member), 5)
    wire.ask(consumer_beat(group, "m1", 1), 1, note="no join")
    wire.ask(consumer_join(group, "m1"), 1)
    wire.look(group)
    wire.ask(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    simple = wire.group()
    wire.ask(commit(simple, {("one", 0): 5}), 9)
    wire.ask(consumer_beat(simple, "m1", 1), 1, note="no join")
    wire.ask(consumer_join(simple, "m1"), 1)
    wire.look(simple)
