"""The "consumer" protocol as bytes. The literals are what the Java client 4.3 writes for the same values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.groups.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from ottla.wire import WireError

VERSIONS = (0, 1, 2, 3)
SUBSCRIPTIONS = [
    (
        Subscription(topics=("a", "b"), user_data=b"\xff", version=0),
        "0000 00000002 000161 000162 00000001ff",
    ),
    (
        Subscription(topics=("a", "b"), user_data=b"\xff", owned_partitions=(("a", (0, 2)),), version=1),
        "0001 00000002 000161 000162 00000001ff 00000001 000161 00000002 00000000 00000002",
    ),
    (
        Subscription(
            topics=("a", "b"), user_data=b"\xff", owned_partitions=(("a", (0, 2)),), generation_id=5, version=2
        ),
        "0002 00000002 000161 000162 00000001ff 00000001 000161 00000002 00000000 00000002 00000005",
    ),
    (
        Subscription(
            topics=("a", "b"),
            user_data=b"\xff",
            owned_partitions=(("a", (0, 2)),),
            generation_id=5,
            rack_id="r1",
            version=3,
        ),
        "0003 00000002 000161 000162 00000001ff 00000001 000161 00000002 00000000 00000002 00000005 00027231",
    ),
]
ASSIGNED = (("a", (0, 2)), ("b", (1,)))
ASSIGNMENT_BYTES = bytes.fromhex("00000002 000161 00000002 00000000 00000002 000162 00000001 00000001 ffffffff")
each_subscription = pytest.mark.parametrize(("subscription", "data"), SUBSCRIPTIONS, ids=["v0", "v1", "v2", "v3"])


@each_subscription
def test_subscription_is_what_the_java_client_writes(subscription: Subscription, data: str) -> None:
    assert encode_subscription(subscription) == bytes.fromhex(data)
    assert decode_subscription(bytes.fromhex(data)) == subscription


@pytest.mark.parametrize("version", VERSIONS)
def test_assignment_is_what_the_java_client_writes(version: int) -> None:
    assignment = Assignment(partitions=ASSIGNED, version=version)
    data = version.to_bytes(2, "big") + ASSIGNMENT_BYTES
    assert encode_assignment(assignment, version) == data
    assert decode_assignment(data) == assignment


def test_assignment_is_written_in_the_version_that_is_asked_for() -> None:
    assert encode_assignment(Assignment(partitions=ASSIGNED, version=3), 1) == b"\x00\x01" + ASSIGNMENT_BYTES


def test_no_bytes_are_an_assignment_of_nothing() -> None:
    assert decode_assignment(b"") == Assignment(partitions=(), user_data=None, version=0)


def test_newer_version_is_read_as_the_newest_that_is_known() -> None:
    subscription, data = SUBSCRIPTIONS[-1]
    newer = b"\x00\x09" + bytes.fromhex(data)[2:] + b"more"
    assert decode_subscription(newer) == subscription
    assert decode_assignment(b"\x00\x09" + ASSIGNMENT_BYTES + b"more") == Assignment(partitions=ASSIGNED, version=3)


def test_negative_version_is_refused() -> None:
    with pytest.raises(WireError, match="no version -1"):
        decode_subscription(b"\xff\xff" + bytes(20))
    with pytest.raises(WireError, match="no version -1"):
        decode_assignment(b"\xff\xff" + bytes(20))


@each_subscription
def test_every_cut_of_a_subscription_is_refused(subscription: Subscription, data: str) -> None:
    whole = bytes.fromhex(data)
    for end in range(len(whole)):
        with pytest.raises(WireError):
            decode_subscription(whole[:end])


def test_every_cut_of_an_assignment_is_refused() -> None:
    whole = b"\x00\x01" + ASSIGNMENT_BYTES
    for end in range(1, len(whole)):
        with pytest.raises(WireError):
            decode_assignment(whole[:end])


def test_subscription_is_not_written_in_a_version_that_nobody_reads() -> None:
    with pytest.raises(ValueError, match="no version 4"):
        encode_subscription(Subscription(topics=(), version=4))


# -- round trips ------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
datas = st.none() | st.binary(max_size=50)
partitions = st.lists(st.tuples(texts, st.lists(int32s, max_size=12).map(tuple)), max_size=4).map(tuple)
subscriptions = st.builds(
    Subscription,
    topics=st.lists(texts, max_size=5).map(tuple),
    user_data=datas,
    owned_partitions=partitions,
    generation_id=int32s,
    rack_id=st.none() | texts,
    version=st.just(3),
)
assignments = st.builds(Assignment, partitions=partitions, user_data=datas, version=st.sampled_from(VERSIONS))


def as_of(subscription: Subscription, version: int) -> Subscription:
    """What is left of it in a version."""
    left: dict[str, Any] = {"version": version}
    if version < 3:
        left["rack_id"] = None
    if version < 2:
        left["generation_id"] = -1
    if version < 1:
        left["owned_partitions"] = ()
    return replace(subscription, **left)


@given(subscriptions, st.sampled_from(VERSIONS))
def test_subscription_is_read_back_less_what_its_version_lacks(subscription: Subscription, version: int) -> None:
    written = encode_subscription(replace(subscription, version=version))
    assert decode_subscription(written) == as_of(subscription, version)


@given(assignments)
def test_assignment_is_read_back(assignment: Assignment) -> None:
    assert decode_assignment(encode_assignment(assignment, assignment.version)) == assignment


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_something_or_refused(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except WireError:
            pass


# -- other clients ----------------------------------------------------------------------------------------------------


@pytest.mark.client
@given(subscription=subscriptions, version=st.sampled_from(VERSIONS))
def test_kafka_python_writes_and_reads_the_same_subscription(subscription: Subscription, version: int) -> None:
    metadata = pytest.importorskip("kafka.protocol.consumer.metadata")
    left = as_of(subscription, version)
    fields: dict[str, Any] = {"topics": list(left.topics), "user_data": left.user_data}
    if version >= 1:
        fields["owned_partitions"] = [(topic, list(numbers)) for topic, numbers in left.owned_partitions]
    if version >= 2:
        fields["generation_id"] = left.generation_id
    if version >= 3:
        fields["rack_id"] = left.rack_id
    theirs = metadata.ConsumerProtocolSubscription(version=version, **fields).encode()
    assert theirs == encode_subscription(left)
    assert decode_subscription(theirs) == left


@pytest.mark.client
@given(assignments)
def test_kafka_python_writes_the_same_assignment(assignment: Assignment) -> None:
    metadata = pytest.importorskip("kafka.protocol.consumer.metadata")
    given_partitions = [(topic, list(numbers)) for topic, numbers in assignment.partitions]
    theirs = metadata.ConsumerProtocolAssignment(
        version=assignment.version, assigned_partitions=given_partitions, user_data=assignment.user_data
    ).encode()
    assert theirs == encode_assignment(assignment, assignment.version)
    assert decode_assignment(theirs) == assignment


@pytest.mark.client
@given(subscriptions)
def test_aiokafka_writes_and_reads_the_same_subscription(subscription: Subscription) -> None:
    protocol = pytest.importorskip("aiokafka.coordinator.protocol")
    left = as_of(subscription, 0)
    theirs = protocol.ConsumerProtocolMemberMetadata(0, list(left.topics), left.user_data).encode()
    assert theirs == encode_subscription(left)
    assert decode_subscription(theirs) == left


@pytest.mark.client
@given(assignments)
def test_aiokafka_reads_the_same_assignment(assignment: Assignment) -> None:
    protocol = pytest.importorskip("aiokafka.coordinator.protocol")
    read = protocol.ConsumerProtocolMemberAssignment.decode(encode_assignment(assignment, 0))
    found = tuple((topic, tuple(numbers)) for topic, numbers in read.assignment)
    assert (found, read.user_data) == (assignment.partitions, assignment.user_data)
