"""The codec on literal bytes: what each kind of field looks like, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from ottla.wire import (
    WireError,
    decode,
    encode,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
)
from ottla.wire.messages.fetch import FetchRequest, ReplicaState
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.list_transactions import ListTransactionsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.wire.messages.sync_group import SyncGroupResponse
from ottla.wire.primitives import write_uvarint
from ottla.wire.schema import Array, Message, Struct, field

# What messages look like


def test_heartbeat_response_is_two_integers() -> None:
    assert encode(HeartbeatResponse(throttle_time=5, error_code=27), 1) == bytes.fromhex("00000005 001b")


def test_flexible_version_ends_with_the_count_of_tagged_fields() -> None:
    assert encode(HeartbeatResponse(throttle_time=5, error_code=27), 4) == bytes.fromhex("00000005 001b 00")


def test_field_a_version_lacks_is_not_written() -> None:
    assert encode(HeartbeatResponse(throttle_time=5, error_code=27), 0) == bytes.fromhex("001b")


def test_field_a_version_lacks_is_read_as_its_default() -> None:
    response, _ = decode(MetadataResponse, 0, bytes(8), 0)
    assert (response.controller_id, response.cluster_id, response.throttle_time) == (-1, None, 0)


def test_oldest_strings_and_arrays_have_fixed_size_lengths() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a"), MetadataRequestTopic(name="bc")])
    assert encode(request, 1) == bytes.fromhex("00000002 0001 61 0002 6263")


def test_flexible_strings_and_arrays_have_varint_lengths_plus_one() -> None:
    request = ApiVersionsRequest(client_software_name="ab", client_software_version="1")
    assert encode(request, 3) == bytes.fromhex("03 6162 02 31 00")


def test_null_array_is_minus_one_in_the_oldest_form() -> None:
    assert encode(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"
    assert decode(MetadataRequest, 1, b"\xff\xff\xff\xff", 0)[0].topics is None


def test_null_array_is_zero_in_the_flexible_form() -> None:
    body = bytes.fromhex("00 01 00 00 00")
    assert encode(MetadataRequest(topics=None, allow_auto_topic_creation=True), 9) == body
    assert decode(MetadataRequest, 9, body, 0)[0].topics is None


def test_nullable_struct_has_a_byte_before_it() -> None:
    cursor = DescribeTopicPartitionsRequestCursor(topic_name="t", partition_index=3)
    request = DescribeTopicPartitionsRequest(response_partition_limit=1, cursor=cursor)
    assert encode(request, 0) == bytes.fromhex("01 00000001 01 0274 00000003 00 00")
    assert encode(DescribeTopicPartitionsRequest(response_partition_limit=1), 0) == bytes.fromhex("01 00000001 ff 00")


def test_api_versions_response_reads_back_from_literal_bytes() -> None:
    body = bytes.fromhex("0000 02 0012 0000 0004 00 00000000 01 01 08 0000000000000007")
    response, position = decode(ApiVersionsResponse, 3, body, 0)
    assert position == len(body)
    assert response == ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)], finalized_features_epoch=7
    )


def test_tagged_fields_at_their_default_are_not_written() -> None:
    assert encode(ApiVersionsResponse(finalized_features_epoch=-1), 3) == bytes.fromhex("0000 01 00000000 00")


def test_tagged_struct_that_was_not_sent_is_none() -> None:
    request, _ = decode(FetchRequest, 15, encode(FetchRequest(), 15), 0)
    assert request.replica_state is None


def test_tagged_struct_of_defaults_is_not_written() -> None:
    assert encode(FetchRequest(replica_state=ReplicaState()), 15) == encode(FetchRequest(), 15)


def test_bytes_after_the_message_are_left_to_the_caller() -> None:
    assert decode(HeartbeatResponse, 0, b"\0\x1brest", 0) == (HeartbeatResponse(error_code=27), 2)


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_decoded_bytes_do_not_depend_on_the_buffer(kind: type) -> None:
    buffer = bytearray(bytes.fromhex("00000003") + b"abc")
    request, _ = decode(SaslAuthenticateRequest, 0, kind(buffer), 0)
    buffer[4:] = b"xyz"
    assert request.auth_bytes == b"abc" and type(request.auth_bytes) is bytes


def test_a_bytearray_can_grow_while_its_wire_error_is_handled() -> None:
    buffer = bytearray(b"\0")
    with pytest.raises(WireError) as caught:
        decode(HeartbeatResponse, 0, buffer, 0)
    buffer += b"\x1b"
    assert caught.value is not None and decode(HeartbeatResponse, 0, buffer, 0)[1] == 2


def test_unknown_error_code_is_a_plain_integer() -> None:
    assert decode(HeartbeatResponse, 0, b"\x7f\xff", 0)[0].error_code == 32_767


# What is refused: a message with one field of each kind whose length can lie


class Nothing(Struct):
    pass


class Letter(Message, versions=(0, 1), flexible_from=1):
    """Version 0 has fixed-size lengths, version 1 varints; both allow null only in `note`."""

    name: str = field("string", (0, 1), default="")
    body: bytes = field("bytes", (0, 1), default=b"")
    pages: Sequence[int] = field(Array("int32"), (0, 1), default=())
    note: str | None = field("string", (0, 1), nullable_versions=(0, 1), default=None)
    blank: Sequence[Nothing] = field(Array(Nothing), (0, 1), default=())
    stamp: int = field("int32", (1, 1), tag=5, tag_versions=(1, 1), default=0)


OLD = bytes.fromhex("0000 00000000 00000000 ffff 00000000")
FLEXIBLE = bytes.fromhex("01 01 01 00 01 00")


def test_smallest_letters_are_accepted() -> None:
    assert decode(Letter, 0, OLD, 0) == (Letter(), len(OLD))
    assert decode(Letter, 1, FLEXIBLE, 0) == (Letter(), len(FLEXIBLE))


@pytest.mark.parametrize(
    ("what", "version", "body"),
    [
        ("null string", 0, "ffff 00000000 00000000 ffff 00000000"),
        ("null bytes", 0, "0000 ffffffff 00000000 ffff 00000000"),
        ("null array", 0, "0000 00000000 ffffffff ffff 00000000"),
        ("negative string", 0, "fffe 00000000 00000000 ffff 00000000"),
        ("negative nullable string", 0, "0000 00000000 00000000 fffe 00000000"),
        ("negative bytes", 0, "0000 80000000 00000000 ffff 00000000"),
        ("negative array", 0, "0000 00000000 fffffffe ffff 00000000"),
        ("string past the end", 0, "00ff 00000000 00000000 ffff 00000000"),
        ("bytes past the end", 0, "0000 0000000d 00000000 ffff 00000000"),
        ("array past the end", 0, "0000 00000000 00000002 ffff 00000000"),
        ("elements of no size", 0, "0000 00000000 00000000 ffff 7fffffff"),
        ("null string", 1, "00 01 01 00 01 00"),
        ("null bytes", 1, "01 00 01 00 01 00"),
        ("null array", 1, "01 01 00 00 01 00"),
        ("string past the end", 1, "07 01 01 00 01 00"),
        ("bytes past the end", 1, "01 06 01 00 01 00"),
        ("array past the end", 1, "01 01 02 00 01 00"),
        ("elements of one byte each", 1, "01 01 01 00 ffffffff07 00"),
        ("varint of six bytes", 1, "ffffffffff01 01 01 00 01 00"),
        ("varint above 32 bits", 1, "01 01 01 00 01 01 ffffffff1f 00"),
        ("tag past the end", 1, "01 01 01 00 01 01 09 05 00"),
        ("known tag past the end", 1, "01 01 01 00 01 01 05 04 000000"),
        ("known tag shorter than its size", 1, "01 01 01 00 01 01 05 05 0000000700"),
        ("known tag longer than its size", 1, "01 01 01 00 01 01 05 03 00000007"),
        ("more tags than sent", 1, "01 01 01 00 01 02 05 04 00000007"),
        ("endless count of tags", 1, "01 01 01 00 01 ffffffff0f"),
        ("invalid UTF-8", 0, "0001 ff 00000000 00000000 ffff 00000000"),
        ("cut UTF-8", 1, "02 c3 01 01 00 01 00"),
    ],
)
def test_malformed_bytes_are_a_wire_error(what: str, version: int, body: str) -> None:
    with pytest.raises(WireError):
        decode(Letter, version, bytes.fromhex(body), 0)


def test_elements_of_no_size_are_refused_at_once() -> None:
    started = time.monotonic()
    with pytest.raises(WireError):
        decode(Letter, 0, OLD[:-4] + b"\x7f\xff\xff\xff" + bytes(100), 0)
    # Two thousand million steps take longer than this on any machine.
    assert time.monotonic() - started < 30


def test_string_longer_than_kafka_allows_is_refused_though_the_bytes_are_there() -> None:
    body = bytes.fromhex("818002") + b"x" * 32_768 + FLEXIBLE[1:]
    with pytest.raises(WireError, match="32767"):
        decode(Letter, 1, body, 0)


def test_repeated_and_unordered_tags_are_tolerated_and_the_last_counts() -> None:
    body = bytes.fromhex("01 01 01 00 01 04 09 01ff 05 04 00000001 00 00 05 04 00000002")
    assert decode(Letter, 1, body, 0) == (Letter(stamp=2), len(body))


def test_wire_error_names_the_field() -> None:
    with pytest.raises(WireError, match=r"Letter\.pages is null"):
        decode(Letter, 1, bytes.fromhex("01 01 00 00 01 00"), 0)


def test_version_that_does_not_exist_cannot_be_decoded() -> None:
    with pytest.raises(WireError, match="no version 2, only 0 to 1"):
        decode(Letter, 2, FLEXIBLE, 0)


# What cannot be encoded


def test_version_that_does_not_exist_cannot_be_encoded() -> None:
    with pytest.raises(ValueError, match="no version 99"):
        encode(HeartbeatResponse(), 99)


@pytest.mark.parametrize(
    ("letter", "reason"),
    [
        (Letter(name=None), r"Letter\.name is None, but this version allows no null"),  # type: ignore[arg-type]
        (Letter(name=b"a"), r"Letter\.name is b'a', which does not fit string"),  # type: ignore[arg-type]
        (Letter(body="a"), r"Letter\.body is 'a', which does not fit bytes"),  # type: ignore[arg-type]
        (Letter(name="x" * 32_768), r"Letter\.name is .* which does not fit string"),
        (Letter(pages=[1, 2**31]), r"Letter\.pages\[1\] is 2147483648, which does not fit int32"),
        (Letter(pages=iter([1])), r"Letter\.pages is a list_iterator, not a sequence"),  # type: ignore[arg-type]
        (Letter(note="\ud800"), "surrogates not allowed"),
    ],
)
def test_value_that_does_not_fit_is_named(letter: Letter, reason: str) -> None:
    for version in (0, 1):
        with pytest.raises(ValueError, match=reason):
            encode(letter, version)


def test_value_that_does_not_fit_is_found_in_a_nested_struct() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="a"), MetadataRequestTopic(name=None)])
    with pytest.raises(ValueError, match=r"MetadataRequest\.topics\[1\]\.name is None"):
        encode(request, 1)


def test_uuid_of_another_length_is_refused() -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=b"short")])
    with pytest.raises(ValueError, match=r"topic_id is b'short', which does not fit uuid"):
        encode(request, 12)


def test_bytes_like_values_can_be_written_as_they_are() -> None:
    response = SyncGroupResponse(assignment=memoryview(b"abc"))  # type: ignore[arg-type]
    assert encode(response, 0) == bytes.fromhex("0000 00000003") + b"abc"


# Headers and classes by key


def test_request_header_is_newer_from_the_first_flexible_version() -> None:
    assert [request_header_version(3, version) for version in (0, 8, 9, 12)] == [1, 1, 2, 2]


def test_response_header_is_newer_from_the_first_flexible_version() -> None:
    assert [response_header_version(3, version) for version in (0, 8, 9, 12)] == [0, 0, 1, 1]


def test_response_header_of_api_versions_is_always_the_oldest() -> None:
    assert [response_header_version(18, version) for version in range(6)] == [0] * 6


def test_request_header_of_an_api_versions_too_new_to_know_is_the_newest() -> None:
    assert request_header_version(18, 1000) == 2


def test_api_without_flexible_versions_keeps_the_old_headers() -> None:
    assert (request_header_version(17, 1), response_header_version(17, 1)) == (1, 0)


def test_header_of_an_unknown_api_is_a_wire_error() -> None:
    with pytest.raises(WireError, match="no API has the key 4"):
        request_header_version(4, 0)


def test_classes_are_found_by_key() -> None:
    assert (request_class(3), response_class(3)) == (MetadataRequest, MetadataResponse)


def test_elements_of_all_arrays_are_limited_together() -> None:
    topics = [MetadataRequestTopic(name=f"topic-{number}") for number in range(10)]
    body = encode(MetadataRequest(topics=topics), 9)
    assert len(decode(MetadataRequest, 9, body, 0, 10)[0].topics or ()) == 10
    with pytest.raises(WireError, match="more elements"):
        decode(MetadataRequest, 9, body, 0, 9)


def test_elements_of_nested_arrays_count() -> None:
    rows = [OffsetCommitRequestPartition(partition_index=number, committed_offset=1) for number in range(5)]
    nested = [OffsetCommitRequestTopic(name=f"topic-{number}", partitions=rows) for number in range(4)]
    body = encode(OffsetCommitRequest(group_id="group", topics=nested), 8)
    assert len(decode(OffsetCommitRequest, 8, body, 0, 24)[0].topics) == 4
    with pytest.raises(WireError, match="more elements"):
        decode(OffsetCommitRequest, 8, body, 0, 23)


def test_elements_of_integer_arrays_count() -> None:
    body = encode(ListTransactionsRequest(producer_id_filters=[1] * 10), 0)
    decode(ListTransactionsRequest, 0, body, 0, 10)
    with pytest.raises(WireError, match="more elements"):
        decode(ListTransactionsRequest, 0, body, 0, 9)


@pytest.mark.parametrize("count", [100, 1_000])
def test_unknown_tagged_fields_count_as_elements(count: int) -> None:
    body = encode(HeartbeatRequest(), 4)[:-1] + write_uvarint(count) + b"\x09\0" * count
    decode(HeartbeatRequest, 4, body, 0, count)
    with pytest.raises(WireError, match="more elements"):
        decode(HeartbeatRequest, 4, body, 0, count - 1)
