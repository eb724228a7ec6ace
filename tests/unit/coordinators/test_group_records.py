"""The records of ``__consumer_offsets`` as bytes. The literals are what Apache Kafka 4.3 writes for the same values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks import kafka_server
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.broker.groups.records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    Value,
    decode_record,
    encode_record,
)
from ottla.model.records import Record, build_batch
from ottla.wire import WireError

_TOPIC_ID = bytes.fromhex("0000000000000001 0000000000000002")

OFFSET_KEY = OffsetCommitKey("g", "t", 3)
OFFSET_KEY_BYTES = bytes.fromhex("0001 0001 67 0001 74 00000003")
OFFSET = OffsetCommitValue(offset=42, leader_epoch=7, metadata="m", commit_timestamp=1000)
GROUP = GroupMetadataValue(
    protocol_type="consumer",
    generation=9,
    protocol="range",
    leader="m1",
    current_state_timestamp=1000,
    members=(
        MemberMetadata(
            member_id="m1",
            group_instance_id="i",
            client_id="c",
            client_host="/h",
            rebalance_timeout=3,
            session_timeout=2,
            subscription=b"\x01",
            assignment=b"",
        ),
    ),
)
MEMBER = ConsumerGroupMemberMetadataValue(
    rack_id="r",
    client_id="c",
    client_host="/h",
    subscribed_topic_names=("t",),
    subscribed_topic_regex="",
    rebalance_timeout_ms=5,
    server_assignor="uniform",
)
CLASSIC = ClassicMemberMetadata(session_timeout_ms=0, supported_protocols=(("range", b"\x01\x02"),))
CLASSIC_MEMBER = ConsumerGroupMemberMetadataValue(
    rack_id="r",
    client_id="c",
    client_host="/h",
    subscribed_topic_names=("t",),
    subscribed_topic_regex="",
    rebalance_timeout_ms=5,
    server_assignor="uniform",
    classic_member_metadata=CLASSIC,
)
MEMBER_BYTES = "0000 00 0272 0263 032f68 02 0274 01 00000005 08756e69666f726d"

#: one of each kind that is written, with Kafka's bytes for it
WRITTEN: dict[str, tuple[CoordinatorRecord, str, str]] = {
    "offset": (
        CoordinatorRecord(OFFSET_KEY, OFFSET),
        OFFSET_KEY_BYTES.hex(),
        "0003 000000000000002a 00000007 0001 6d 00000000000003e8",
    ),
    "expiring offset": (
        CoordinatorRecord(
            OFFSET_KEY, OffsetCommitValue(offset=42, metadata="m", commit_timestamp=1000, expire_timestamp=2000)
        ),
        OFFSET_KEY_BYTES.hex(),
        "0001 000000000000002a 0001 6d 00000000000003e8 00000000000007d0",
    ),
    "classic group": (
        CoordinatorRecord(GroupMetadataKey("g"), GROUP),
        "0002 0001 67",
        "0003 0008636f6e73756d6572 00000009 000572616e6765 00026d31 00000000000003e8"
        "00000001 00026d31 000169 000163 00022f68 00000003 00000002 0000000101 00000000",
    ),
    "group epoch": (
        CoordinatorRecord(ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(epoch=3, metadata_hash=-2)),
        "0003 0001 67",
        "0000 00000003 01 00 08 fffffffffffffffe",
    ),
    "member": (
        CoordinatorRecord(ConsumerGroupMemberMetadataKey("g", "m"), MEMBER),
        "0005 0001 67 0001 6d",
        MEMBER_BYTES + "01 00 01 00",
    ),
    "classic member": (
        CoordinatorRecord(ConsumerGroupMemberMetadataKey("g", "m"), CLASSIC_MEMBER),
        "0005 0001 67 0001 6d",
        MEMBER_BYTES + "01 00 11 01 00000000 02 0672616e6765 030102 00 00",
    ),
    "target epoch": (
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMetadataKey("g"),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=3),
        ),
        "0006 0001 67",
        "0000 00000003 00",
    ),
    "target": (
        CoordinatorRecord(
            ConsumerGroupTargetAssignmentMemberKey("g", "m"),
            ConsumerGroupTargetAssignmentMemberValue(topic_partitions=((_TOPIC_ID, (0, 2)),)),
        ),
        "0007 0001 67 0001 6d",
        "0000 02 00000000000000010000000000000002 03 00000000 00000002 00 00",
    ),
    "current": (
        CoordinatorRecord(
            ConsumerGroupCurrentMemberAssignmentKey("g", "m"),
            ConsumerGroupCurrentMemberAssignmentValue(
                member_epoch=5, previous_member_epoch=4, state=1, assigned_partitions=((_TOPIC_ID, (0, 2)),)
            ),
        ),
        "0008 0001 67 0001 6d",
        "0000 00000005 00000004 01 02 00000000000000010000000000000002 03 00000000 00000002 00 01 00",
    ),
    "regular expression": (
        CoordinatorRecord(
            ConsumerGroupRegularExpressionKey("g", "t."),
            ConsumerGroupRegularExpressionValue(topics=("t1", "t2"), version=7, timestamp=1000),
        ),
        "0010 0001 67 0002 742e",
        "0000 03 037431 037432 0000000000000007 00000000000003e8 00",
    ),
}
each_written = pytest.mark.parametrize(("record", "key", "value"), WRITTEN.values(), ids=WRITTEN)


# -- what is written --------------------------------------------------------------------------------------------------


@each_written
def test_record_is_written_as_kafka_writes_it(record: CoordinatorRecord, key: str, value: str) -> None:
    assert encode_record(record) == (bytes.fromhex(key), bytes.fromhex(value))


@each_written
def test_record_is_read_from_kafkas_bytes(record: CoordinatorRecord, key: str, value: str) -> None:
    assert decode_record(bytes.fromhex(key), bytes.fromhex(value)) == record


@each_written
def test_record_without_a_value_is_a_tombstone(record: CoordinatorRecord, key: str, value: str) -> None:
    tombstone = CoordinatorRecord(record.key, None)
    assert encode_record(tombstone) == (bytes.fromhex(key), None)
    assert decode_record(bytes.fromhex(key), None) == tombstone


def test_partition_metadata_of_old_groups_can_be_removed() -> None:
    tombstone = CoordinatorRecord(ConsumerGroupPartitionMetadataKey("g"), None)
    assert encode_record(tombstone) == (bytes.fromhex("0004 0001 67"), None)
    assert decode_record(bytes.fromhex("0004 0001 67"), None) == tombstone


def test_string_that_is_too_long_is_refused() -> None:
    long = "x" * 0x8000
    for record in (
        CoordinatorRecord(OffsetCommitKey(long, "t", 0), None),
        CoordinatorRecord(OFFSET_KEY, OffsetCommitValue(offset=0, metadata=long, commit_timestamp=0)),
        CoordinatorRecord(GroupMetadataKey(long), None),
        CoordinatorRecord(
            GroupMetadataKey("g"), GroupMetadataValue(protocol_type=long, generation=0, protocol=None, leader=None)
        ),
    ):
        with pytest.raises(ValueError, match=r"fit|cannot encode"):
            encode_record(record)


# -- what is read -----------------------------------------------------------------------------------------------------


def read_value(key: str, value: str) -> Value | None:
    record = decode_record(bytes.fromhex(key), bytes.fromhex(value))
    assert record is not None
    return record.value


def test_oldest_offset_key_is_read_like_the_newer_one() -> None:
    record = decode_record(bytes.fromhex("0000 0001 67 0001 74 00000003"), None)
    assert record == CoordinatorRecord(OFFSET_KEY, None)


@pytest.mark.parametrize("version", [0, 2])
def test_offset_of_an_old_version_has_no_leader_epoch(version: int) -> None:
    value = f"{version:04x} 000000000000002a 0001 6d 00000000000003e8"
    expected = OffsetCommitValue(offset=42, metadata="m", commit_timestamp=1000)
    assert read_value(OFFSET_KEY_BYTES.hex(), value) == expected


def test_offset_of_the_flexible_version_is_read_without_its_topic_id() -> None:
    value = "0004 000000000000002a 00000007 026d 00000000000003e8 01 00 10 00000000000000010000000000000002"
    assert read_value(OFFSET_KEY_BYTES.hex(), value) == OFFSET


def test_null_metadata_of_an_offset_is_read_as_empty() -> None:
    value = "0003 000000000000002a 00000007 ffff 00000000000003e8"
    assert read_value(OFFSET_KEY_BYTES.hex(), value) == OffsetCommitValue(
        offset=42, leader_epoch=7, metadata="", commit_timestamp=1000
    )


@pytest.mark.parametrize(
    ("value", "stamp", "instance", "rebalance_timeout"),
    [
        (
            "0000 0008636f6e73756d6572 00000009 000572616e6765 00026d31"
            "00000001 00026d31 000163 00022f68 00000002 0000000101 00000000",
            -1,
            None,
            -1,
        ),
        (
            "0001 0008636f6e73756d6572 00000009 000572616e6765 00026d31"
            "00000001 00026d31 000163 00022f68 00000003 00000002 0000000101 00000000",
            -1,
            None,
            3,
        ),
        (
            "0002 0008636f6e73756d6572 00000009 000572616e6765 00026d31 00000000000003e8"
            "00000001 00026d31 000163 00022f68 00000003 00000002 0000000101 00000000",
            1000,
            None,
            3,
        ),
        (
            "0004 09636f6e73756d6572 00000009 0672616e6765 036d31 00000000000003e8"
            "02 036d31 0269 0263 032f68 00000003 00000002 0201 01 00 00",
            1000,
            "i",
            3,
        ),
    ],
    ids=["v0", "v1", "v2", "v4"],
)
def test_classic_group_of_another_version_is_read(
    value: str, stamp: int, instance: str | None, rebalance_timeout: int
) -> None:
    group = read_value("0002 0001 67", value)
    assert isinstance(group, GroupMetadataValue)
    (member,) = group.members
    assert (group.protocol_type, group.generation, group.protocol, group.leader) == ("consumer", 9, "range", "m1")
    assert (group.current_state_timestamp, member.group_instance_id, member.rebalance_timeout) == (
        stamp,
        instance,
        rebalance_timeout,
    )
    assert (member.member_id, member.session_timeout, member.subscription) == ("m1", 2, b"\x01")


def test_empty_classic_group_has_neither_protocol_nor_leader() -> None:
    value = "0003 0008636f6e73756d6572 00000009 ffff ffff 00000000000003e8 00000000"
    group = read_value("0002 0001 67", value)
    assert group == GroupMetadataValue(
        protocol_type="consumer", generation=9, protocol=None, leader=None, current_state_timestamp=1000
    )


def test_group_epoch_without_a_metadata_hash_has_zero() -> None:
    assert read_value("0003 0001 67", "0000 00000003 00") == ConsumerGroupMetadataValue(epoch=3)


def test_member_without_the_classic_tag_speaks_the_consumer_protocol() -> None:
    assert read_value("0005 0001 67 0001 6d", MEMBER_BYTES + "00") == MEMBER


def test_classic_tag_is_found_beside_unknown_ones() -> None:
    tags = "02 00 11 01 00000000 02 0672616e6765 030102 00 00 05 02 ffff"
    assert read_value("0005 0001 67 0001 6d", MEMBER_BYTES + tags) == CLASSIC_MEMBER
    assert read_value("0005 0001 67 0001 6d", MEMBER_BYTES + "02 00 01 00 05 02 ffff") == MEMBER
    assert read_value("0005 0001 67 0001 6d", MEMBER_BYTES + "01 05 02 ffff") == MEMBER


@pytest.mark.parametrize("tag", ["00", "01 02", "02 01 00", "02 00 00", "08 01 00000000 01 00 00", "06 02 00000000 01"])
def test_damaged_classic_tag_is_refused(tag: str) -> None:
    with pytest.raises(WireError):
        read_value("0005 0001 67 0001 6d", MEMBER_BYTES + "01 00" + tag)


def test_fields_that_kafka_added_as_tags_are_skipped() -> None:
    """The time of the target assignment, and the epoch in which each partition was assigned."""
    target = read_value("0006 0001 67", "0000 00000003 01 00 08 00000000000003e8")
    assert target == ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=3)
    record, key, _ = WRITTEN["current"]
    partitions = "00000000000000010000000000000002 03 00000000 00000002 01 00 09 03 00000004 00000005"
    assert read_value(key, f"0000 00000005 00000004 01 02 {partitions} 01 00") == record.value


@pytest.mark.parametrize("number", [-1, 9, *range(10, 16), *range(17, 24), 0x7FFF])
def test_record_of_another_kind_is_passed_over(number: int) -> None:
    key = number.to_bytes(2, "big", signed=True) + b"\x00\x01g"
    assert decode_record(key, b"\x00\x00") is None
    assert decode_record(key, None) is None


def test_partition_metadata_of_old_groups_is_passed_over() -> None:
    assert decode_record(bytes.fromhex("0004 0001 67"), bytes.fromhex("0000 01 00")) is None


@pytest.mark.parametrize("version", [-1, 5])
def test_unknown_version_of_a_value_is_refused(version: int) -> None:
    value = version.to_bytes(2, "big", signed=True) + bytes(40)
    with pytest.raises(WireError, match="has no version"):
        decode_record(OFFSET_KEY_BYTES, value)


@each_written
def test_every_cut_of_a_record_is_refused(record: CoordinatorRecord, key: str, value: str) -> None:
    key_bytes, value_bytes = bytes.fromhex(key), bytes.fromhex(value)
    for end in range(len(key_bytes)):
        with pytest.raises(WireError):
            decode_record(key_bytes[:end], value_bytes)
    for end in range(len(value_bytes)):
        with pytest.raises(WireError):
            decode_record(key_bytes, value_bytes[:end])


@pytest.mark.parametrize(
    "key", ["0001 ffff 0001 74 00000003", "0001 0001 67 8000 00000003", "0002 0001 ff", "0002 ffff"]
)
def test_key_with_a_damaged_string_is_refused(key: str) -> None:
    with pytest.raises(WireError):
        decode_record(bytes.fromhex(key), None)


@given(st.sampled_from(sorted(WRITTEN)), st.data())
def test_changed_bytes_are_read_as_something_or_refused(name: str, data: st.DataObject) -> None:
    _, key, value = WRITTEN[name]
    changed = bytearray(bytes.fromhex(value))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_record(bytes.fromhex(key), bytes(changed))
    except WireError:
        pass


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
@example(b"", None)
def test_any_bytes_are_read_as_something_or_refused(key: bytes, value: bytes | None) -> None:
    try:
        decode_record(key, value)
    except WireError:
        pass


# -- round trips ------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
maybe_texts = st.none() | texts
int8s, int32s, int64s = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 32, 64))
datas = st.binary(max_size=300)


def tuples_of(element: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(element, max_size=5).map(tuple)


partitions = tuples_of(st.tuples(st.binary(min_size=16, max_size=16), st.lists(int32s, max_size=20).map(tuple)))
offsets = st.builds(
    OffsetCommitValue, offset=int64s, leader_epoch=int32s, metadata=texts, commit_timestamp=int64s
) | st.builds(OffsetCommitValue, offset=int64s, metadata=texts, commit_timestamp=int64s, expire_timestamp=int64s)
members = st.builds(
    MemberMetadata,
    member_id=texts,
    group_instance_id=maybe_texts,
    client_id=texts,
    client_host=texts,
    rebalance_timeout=int32s,
    session_timeout=int32s,
    subscription=datas,
    assignment=datas,
)
groups = st.builds(
    GroupMetadataValue,
    protocol_type=texts,
    generation=int32s,
    protocol=maybe_texts,
    leader=maybe_texts,
    current_state_timestamp=int64s,
    members=tuples_of(members),
)
consumer_members = st.builds(
    ConsumerGroupMemberMetadataValue,
    instance_id=maybe_texts,
    rack_id=maybe_texts,
    client_id=texts,
    client_host=texts,
    subscribed_topic_names=tuples_of(texts),
    subscribed_topic_regex=maybe_texts,
    rebalance_timeout_ms=int32s,
    server_assignor=maybe_texts,
    classic_member_metadata=st.none()
    | st.builds(
        ClassicMemberMetadata, session_timeout_ms=int32s, supported_protocols=tuples_of(st.tuples(texts, datas))
    ),
)
currents = st.builds(
    ConsumerGroupCurrentMemberAssignmentValue,
    member_epoch=int32s,
    previous_member_epoch=int32s,
    state=int8s,
    assigned_partitions=partitions,
    partitions_pending_revocation=partitions,
)
group_keys, member_keys = st.tuples(texts), st.tuples(texts, texts)
records = st.one_of(
    st.builds(CoordinatorRecord, st.builds(OffsetCommitKey, texts, texts, int32s), st.none() | offsets),
    *(
        st.builds(CoordinatorRecord, keys.map(lambda texts, key=key: key(*texts)), st.none() | values)  # type: ignore[misc]
        for key, keys, values in (
            (GroupMetadataKey, group_keys, groups),
            (
                ConsumerGroupMetadataKey,
                group_keys,
                st.builds(ConsumerGroupMetadataValue, epoch=int32s, metadata_hash=int64s),
            ),
            (ConsumerGroupPartitionMetadataKey, group_keys, st.none()),
            (ConsumerGroupMemberMetadataKey, member_keys, consumer_members),
            (
                ConsumerGroupTargetAssignmentMetadataKey,
                group_keys,
                st.builds(ConsumerGroupTargetAssignmentMetadataValue, assignment_epoch=int32s),
            ),
            (
                ConsumerGroupTargetAssignmentMemberKey,
                member_keys,
                st.builds(ConsumerGroupTargetAssignmentMemberValue, topic_partitions=partitions),
            ),
            (ConsumerGroupCurrentMemberAssignmentKey, member_keys, currents),
            (
                ConsumerGroupRegularExpressionKey,
                member_keys,
                st.builds(
                    ConsumerGroupRegularExpressionValue, topics=tuples_of(texts), version=int64s, timestamp=int64s
                ),
            ),
        )
    ),
)


@given(records)
def test_what_is_written_is_read_back(record: CoordinatorRecord) -> None:
    assert decode_record(*encode_record(record)) == record


# -- Kafka's own reader -----------------------------------------------------------------------------------------------


_MEMBER_JSON = {
    "instanceId": None,
    "rackId": "r",
    "clientId": "c",
    "clientHost": "/h",
    "subscribedTopicNames": ["t"],
    "subscribedTopicRegex": "",
    "rebalanceTimeoutMs": 5,
    "serverAssignor": "uniform",
    "classicMemberMetadata": None,
}
_CLASSIC_JSON = {"sessionTimeoutMs": 0, "supportedProtocols": [{"name": "range", "metadata": "AQI="}]}
_PARTITIONS_JSON = [{"topicId": "AAAAAAAAAAEAAAAAAAAAAg", "partitions": [0, 2]}]
#: what Kafka makes of each of WRITTEN: type and version, and the data of the value
DUMPED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "offset": ("1", "3", {"offset": 42, "leaderEpoch": 7, "metadata": "m", "commitTimestamp": 1000}),
    "expiring offset": ("1", "1", {"offset": 42, "metadata": "m", "commitTimestamp": 1000, "expireTimestamp": 2000}),
    "classic group": (
        "2",
        "3",
        {
            "protocolType": "consumer",
            "generation": 9,
            "protocol": "range",
            "leader": "m1",
            "currentStateTimestamp": 1000,
            "members": [
                {
                    "memberId": "m1",
                    "groupInstanceId": "i",
                    "clientId": "c",
                    "clientHost": "/h",
                    "rebalanceTimeout": 3,
                    "sessionTimeout": 2,
                    "subscription": "AQ==",
                    "assignment": "",
                }
            ],
        },
    ),
    "group epoch": ("3", "0", {"epoch": 3, "metadataHash": -2}),
    "member": ("5", "0", _MEMBER_JSON),
    "classic member": ("5", "0", _MEMBER_JSON | {"classicMemberMetadata": _CLASSIC_JSON}),
    "target epoch": ("6", "0", {"assignmentEpoch": 3}),
    "target": ("7", "0", {"topicPartitions": _PARTITIONS_JSON}),
    "current": (
        "8",
        "0",
        {
            "memberEpoch": 5,
            "previousMemberEpoch": 4,
            "state": 1,
            "assignedPartitions": _PARTITIONS_JSON,
            "partitionsPendingRevocation": [],
        },
    ),
    "regular expression": ("16", "0", {"topics": ["t1", "t2"], "version": 7, "timestamp": 1000}),
}


def dumped_by_kafka(segment: Path) -> list[tuple[Any, Any]]:
    """Key and value of each record of a segment of ``__consumer_offsets``, as Kafka's dump tool decodes them."""
    problem = kafka_server.fetch() or kafka_server.available()
    if problem is not None:
        pytest.skip(problem)
    kafka = kafka_server.ApacheKafka()
    try:
        arguments = ["--files", str(segment), "--offsets-decoder"]
        done = kafka.run_tool("org.apache.kafka.tools.DumpLogSegments", arguments)
    finally:
        kafka.stop()
    assert done.returncode == 0, done.stderr
    found = re.findall(r" key: (\S.*?) payload: (.*)$", done.stdout, re.MULTILINE)
    return [(json.loads(key), None if value == "<DELETE>" else json.loads(value)) for key, value in found]


@pytest.mark.foreign
def test_kafka_reads_the_same_in_our_records(tmp_path: Path) -> None:
    written = [record for record, _, _ in WRITTEN.values()]
    written += [CoordinatorRecord(record.key, None) for record in written]
    pairs = [encode_record(record) for record in written]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(build_batch(Record(timestamp=1000, key=key, value=value) for key, value in pairs))
    found = dumped_by_kafka(segment)
    assert [key["type"] for key, _ in found] == [number for number, _, _ in DUMPED.values()] * 2
    assert [tuple(key["data"].values()) for key, _ in found] == [tuple(record.key) for record in written]
    values = [{"version": version, "data": data} for _, version, data in DUMPED.values()]
    assert [value for _, value in found] == values + [None] * len(values)
