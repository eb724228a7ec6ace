"""The hand-written Fetch against the generic codec, and against bytes that are no Fetch."""

from __future__ import annotations

import random
import tracemalloc
from struct import error as StructError
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.testing.raw import random_message, read_answer, request_bytes
from ottla.wire import REQUEST_ELEMENTS_MAX, WireError
from ottla.wire.fetch import frame_start, parse_fetch, reply_shape
from ottla.wire.leader_hints import LeaderHint, NodeAddress, reply_tags
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from ottla.wire.primitives import write_uvarint

VERSIONS = range(4, 19)
REFUSALS = (WireError, IndexError, StructError)
NAMES = ("", "t", "orders", "x" * 249)

every_version = pytest.mark.parametrize("version", VERSIONS)
some = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def meaning(request: FetchRequest, version: int) -> Any:
    def key(topic: Any) -> bytes:
        return bytes(topic.topic_id) if version >= 13 else topic.topic.encode()

    topics = [
        (
            key(topic),
            [
                (
                    p.partition, p.current_leader_epoch if version >= 9 else -1, p.fetch_offset,
                    p.last_fetched_epoch if version >= 12 else -1, p.log_start_offset if version >= 5 else -1,
                    p.partition_max_bytes, -1,
                )
                for p in topic.partitions
            ],
        )
        for topic in request.topics
    ]  # fmt: skip
    session = (request.session_id, request.session_epoch) if version >= 7 else (0, -1)
    forgotten = [(key(topic), list(topic.partitions)) for topic in request.forgotten_topics_data]
    return (
        request.max_wait, request.min_bytes, request.max_bytes, request.isolation_level == 1, *session, topics,
        forgotten if version >= 7 else [], *_replica(request, version), request.rack_id if version >= 11 else "",
    )  # fmt: skip


def _replica(request: FetchRequest, version: int) -> tuple[int, int]:
    if version < 15:
        return request.replica_id, -1
    state = request.replica_state
    return (state.replica_id, state.replica_epoch) if state is not None else (-1, -1)


@every_version
@some
@given(st.randoms(use_true_random=False), st.sampled_from([None, "", "client"]))
def test_request_means_what_the_generic_codec_says(version: int, source: random.Random, client_id: str | None) -> None:
    request = random_message(FetchRequest, version, source, NAMES)
    frame = request_bytes(request, version, 1, client_id)
    assert parse_fetch(b"size" + frame + b"behind", 4, 4 + len(frame), version) == meaning(request, version)


@every_version
def test_request_cut_anywhere_is_refused_whatever_lies_behind_it(version: int) -> None:
    """The buffer holds other clients' bytes: none of them may become a part of this request."""
    request = FetchRequest(
        max_wait=1, min_bytes=1, max_bytes=1, rack_id="r", topics=[
            FetchTopic(topic=name, topic_id=name.encode() * 16, partitions=[FetchPartition(partition=0)] * 2)
            for name in ("t", "u")
        ],
        forgotten_topics_data=[ForgottenTopic(topic="t", topic_id=b"t" * 16, partitions=[1, 2])],
    )  # fmt: skip
    frame = request_bytes(request, version, 1)
    parse_fetch(frame, 0, len(frame), version)
    for cut in range(8, len(frame)):
        for behind in (frame[cut:], b"\0" * 400, b"\xff" * 400, b"\1" * 400):
            with pytest.raises(REFUSALS):
                parse_fetch(frame[:cut] + behind, 0, cut, version)


@every_version
@some
@given(st.randoms(use_true_random=False))
def test_damaged_request_is_a_request_or_refused(version: int, source: random.Random) -> None:
    frame = bytearray(request_bytes(random_message(FetchRequest, version, source, NAMES), version, 1))
    for _ in range(source.randint(1, 4)):
        frame[source.randrange(8, len(frame))] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
    try:
        request = parse_fetch(bytes(frame) + source.randbytes(100), 0, len(frame), version)
    except REFUSALS:
        return
    assert sum(len(partitions) for _, partitions in request.topics) * 16 <= len(frame)


@given(noise=st.binary(max_size=120), version=st.sampled_from(VERSIONS))
def test_noise_is_a_request_or_refused(noise: bytes, version: int) -> None:
    try:
        parse_fetch(b"\0\1\0\0\0\0\0\1" + noise + b"behind", 0, 8 + len(noise), version)
    except REFUSALS:
        pass


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("topics", [1, 10, REQUEST_ELEMENTS_MAX // 2])
def test_topics_and_partitions_are_limited_in_all(topics: int, forgets: bool) -> None:
    each = (REQUEST_ELEMENTS_MAX - topics) // topics
    for extra in (0, 1):
        numbers = [range(each + extra), *([range(each)] * (topics - 1))]
        if forgets:
            gone = [ForgottenTopic(topic="t", partitions=list(rows)) for rows in numbers]
            request = FetchRequest(forgotten_topics_data=gone)
        else:
            rows = [FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in part]) for part in numbers]
            request = FetchRequest(topics=rows)
        frame = bytearray(request_bytes(request, 12, 1))
        if extra:
            with pytest.raises(WireError):
                parse_fetch(frame, 0, len(frame), 12)
        else:
            parsed = parse_fetch(frame, 0, len(frame), 12)
            assert len(parsed.forgotten if forgets else parsed.topics) == topics


@every_version
def test_null_array_is_refused(version: int) -> None:
    frame = request_bytes(FetchRequest(topics=[]), version, 1)
    # Behind the array of topics stand the forgotten ones from v7 on, the rack from v11 on, tags from v12 on.
    place = len(frame) - (4 if version < 7 else 8 if version < 11 else 10 if version == 11 else 4)
    empty, null = (b"\1", b"\0") if version >= 12 else (bytes(4), b"\xff" * 4)
    assert frame[place:].startswith(empty)
    hostile = frame[:place] + null + frame[place + len(null) :]
    with pytest.raises(WireError):
        parse_fetch(hostile, 0, len(hostile), version)


@every_version
@pytest.mark.parametrize("claimed", [10**6, 2**28, 2**31 - 1])
def test_array_that_claims_too_much_is_refused_before_anything_is_allocated(version: int, claimed: int) -> None:
    start = request_bytes(FetchRequest(topics=[]), 4 if version < 12 else 12, 1)[:11]
    body = random.Random(1).randbytes(25 if version >= 7 else 17)
    if version >= 15:
        body = body[4:]
    count = write_uvarint(claimed + 1) if version >= 12 else claimed.to_bytes(4, "big")
    hostile = start + (b"\0" if version >= 12 else b"") + body + count
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            parse_fetch(hostile + bytes(1000), 0, len(hostile), version)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("version", [16, 17, 18])
@pytest.mark.parametrize("rack", [None, "", "ž" * 200])
def test_leader_and_its_address_are_read_by_the_generic_codec(version: int, rack: str | None) -> None:
    shape = reply_shape(version)
    nodes = [NodeAddress(3, "host", 9092, rack), NodeAddress(2**31 - 1, "", 0, None)]
    body = shape.reply_start(0, 0, 0) + shape.count(1) + shape.topic(b"i" * 16) + shape.count(1)
    body += shape.partition_start(4, 6, -1, -1, -1, 0) + shape.partition_end(None, LeaderHint(3, 7))
    body += shape.partition_tail + reply_tags(nodes)
    answer = read_answer((frame_start(6, len(body)) + body)[4:], 1, version, 6)
    (row,) = answer.responses[0].partitions
    assert (row.error_code, row.current_leader.leader_id, row.current_leader.leader_epoch) == (6, 3, 7)
    found = [(node.node_id, node.host, node.port, node.rack) for node in answer.node_endpoints]
    assert found == [tuple(node) for node in nodes]


@every_version
@pytest.mark.parametrize("aborted", [None, [], [(7, 100), (8, 2**40)]])
@pytest.mark.parametrize("diverging", [None, (3, 50)])
@pytest.mark.parametrize("records", [b"", b"r" * 300])
def test_reply_is_read_by_the_generic_codec(
    version: int, aborted: list[tuple[int, int]] | None, diverging: tuple[int, int] | None, records: bytes
) -> None:
    shape = reply_shape(version)
    name = b"i" * 16 if version >= 13 else b"topic"
    body = shape.reply_start(0, 71 if version >= 7 else 0, 99) + shape.count(1) + shape.topic(name) + shape.count(1)
    body += shape.partition_start(4, 1, 10, 9, 8, len(records), aborted) + records + shape.partition_end(diverging)
    body += shape.partition_tail * 2
    answer = read_answer((frame_start(6, len(body)) + body)[4:], 1, version, 6)
    assert (answer.error_code, answer.session_id) == ((71, 99) if version >= 7 else (0, 0))
    (topic,) = answer.responses
    assert (topic.topic_id if version >= 13 else topic.topic.encode()) == name
    (row,) = topic.partitions
    assert (row.partition_index, row.error_code, row.high_watermark, row.last_stable_offset) == (4, 1, 10, 9)
    assert row.log_start_offset == (8 if version >= 5 else -1)
    assert row.records == records
    assert row.preferred_read_replica == -1
    found = row.aborted_transactions
    assert (None if found is None else [(a.producer_id, a.first_offset) for a in found]) == aborted
    assert (row.diverging_epoch is not None) == (diverging is not None and version >= 12)
    if row.diverging_epoch is not None:
        assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == diverging
