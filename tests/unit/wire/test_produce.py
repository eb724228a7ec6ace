"""The hand-written Produce against the generic codec, and against bytes that are no Produce."""

from __future__ import annotations

import random
import tracemalloc
from struct import error as StructError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.testing.raw import random_message, read_answer, request_bytes
from ottla.wire import WireError
from ottla.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.wire.primitives import write_uvarint
from ottla.wire.produce import PartitionResult, ReplyTemplate, build_produce_reply, parse_produce

VERSIONS = range(3, 14)
REFUSALS = (WireError, IndexError, StructError)
NAMES = ("", "t", "orders", "x" * 249)

every_version = pytest.mark.parametrize("version", VERSIONS)
some = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def meaning(request: ProduceRequest, version: int) -> Any:
    topics = []
    for topic in request.topic_data:
        key = topic.topic_id if version >= 13 else topic.name.encode()
        topics.append((key, [(part.index, part.records) for part in topic.partition_data]))
    return request.transactional_id, request.acks, request.timeout, topics


def parsed(frame: bytes, version: int, behind: bytes = b"") -> Any:
    """What ``parse_produce`` makes of a frame that lies somewhere in a larger buffer."""
    buffer = b"size" + frame + behind
    request = parse_produce(buffer, 4, 4 + len(frame), version)
    topics = [
        (key, [(part.partition, buffer[part.start : part.end] if part.start >= 0 else None) for part in partitions])
        for key, partitions in request.topics
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


@every_version
@some
@given(st.randoms(use_true_random=False), st.sampled_from([None, "", "client"]))
def test_request_means_what_the_generic_codec_says(version: int, source: random.Random, client_id: str | None) -> None:
    request = random_message(ProduceRequest, version, source, NAMES)
    assert parsed(request_bytes(request, version, 1, client_id), version) == meaning(request, version)


@every_version
def test_request_cut_anywhere_is_refused_whatever_lies_behind_it(version: int) -> None:
    """The buffer holds other clients' bytes: none of them may become a part of this request."""
    rows = [PartitionProduceData(index=1, records=None), PartitionProduceData(index=2, records=b"r")]
    topics = [TopicProduceData(name="t", topic_id=b"i" * 16, partition_data=[row]) for row in rows]
    request = ProduceRequest(transactional_id="tx", acks=-1, timeout=1000, topic_data=topics)
    frame = request_bytes(request, version, 1)
    parsed(frame, version)
    for cut in range(8, len(frame)):
        for behind in (frame[cut:], b"\0" * 200, b"\xff" * 200, b"\1" * 200):
            with pytest.raises(REFUSALS):
                parsed(frame[:cut], version, behind)


@every_version
@some
@given(st.randoms(use_true_random=False))
def test_damaged_request_is_a_request_or_refused(version: int, source: random.Random) -> None:
    frame = bytearray(request_bytes(random_message(ProduceRequest, version, source, NAMES), version, 1))
    for _ in range(source.randint(1, 4)):
        frame[source.randrange(8, len(frame))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
    behind = source.randbytes(100)
    buffer = bytes(frame) + behind
    try:
        request = parse_produce(buffer, 0, len(frame), version)
    except REFUSALS:
        return
    for _, partitions in request.topics:
        for part in partitions:
            assert (part.start, part.end) == (-1, -1) or 8 < part.start <= part.end <= len(frame)


@given(noise=st.binary(max_size=120), version=st.sampled_from(VERSIONS))
def test_noise_is_a_request_or_refused(noise: bytes, version: int) -> None:
    try:
        parse_produce(b"\0\0\0\0\0\0\0\1" + noise + b"behind", 0, 8 + len(noise), version)
    except REFUSALS:
        pass


@every_version
@pytest.mark.parametrize("claimed", [10**6, 2**28, 2**31 - 1])
def test_array_that_claims_too_much_is_refused_before_anything_is_allocated(version: int, claimed: int) -> None:
    frame = request_bytes(ProduceRequest(transactional_id=None, acks=1, timeout=1, topic_data=[]), version, 1)
    count = write_uvarint(claimed + 1) + b"\0" if version >= 9 else claimed.to_bytes(4, "big")
    hostile = frame[: -2 if version >= 9 else -4] + count
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            parse_produce(hostile + bytes(1000), 0, len(hostile), version)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@every_version
@some
@given(st.randoms(use_true_random=False))
def test_reply_is_read_by_the_generic_codec(version: int, source: random.Random) -> None:
    topics = []
    for number in range(source.randint(0, 3)):
        name = bytes([number]) * 16 if version >= 13 else f"topic-{number}".encode()
        topics.append((name, [_random_result(source) for _ in range(source.randint(0, 3))]))
    answer = read_answer(build_produce_reply(5, version, topics)[4:], 0, version, 5)
    assert len(answer.responses) == len(topics)
    for (name, results), topic in zip(topics, answer.responses, strict=True):
        assert (topic.topic_id if version >= 13 else topic.name.encode()) == name
        for result, row in zip(results, topic.partition_responses, strict=True):
            assert (row.index, row.error_code, row.base_offset, row.log_append_time) == result[:4]
            assert row.log_start_offset == (result.log_start_offset if version >= 5 else -1)
            assert row.error_message == (result.message if version >= 8 else None)
            errors = [(error.batch_index, error.batch_index_error_message) for error in row.record_errors]
            assert errors == (list(result.record_errors) if version >= 8 else [])


def _random_result(source: random.Random) -> PartitionResult:
    return PartitionResult(
        partition=source.choice((0, 1, -1, 2**31 - 1)),
        error_code=source.choice((0, 3, 87, -1)),
        base_offset=source.choice((0, -1, 2**62)),
        log_append_time=source.choice((-1, 2**41)),
        log_start_offset=source.choice((0, -1, 2**62)),
        record_errors=source.choice(((), ((0, "why"),), ((5, ""), (2**31 - 1, "ž" * 200)))),
        message=source.choice((None, "", "why", "ž" * 200)),
    )


@every_version
@pytest.mark.parametrize("offset", [0, 1, -1, 2**62])
@pytest.mark.parametrize("index", [0, -1, 2**31 - 1])
def test_template_gives_the_bytes_of_the_general_way(version: int, offset: int, index: int) -> None:
    name = b"\xff" * 16 if version >= 13 else b"topic"
    template = ReplyTemplate(name, index, version)
    expected = build_produce_reply(9, version, [(name, [PartitionResult(index, 0, offset, 123, 7)])])
    assert template.fill(9, offset, 123, 7) == expected
