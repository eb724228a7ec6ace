"""A follower's Fetch: what the leader reads from the request, and what the follower reads from the reply."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest

import ottla.wire.fetch as fetch_wire
from ottla.testing.raw import read_answer
from ottla.wire import WireError, decode, encode
from ottla.wire.fetch import FetchPartition, parse_fetch
from ottla.wire.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.wire.primitives import write_uvarint
from ottla.wire.replica_fetch import VERSION, FetchedRow, FollowerRow, follower_fetch, parse_reply

T1, T2 = b"1" * 16, b"2" * 16
ROWS = {
    T1: [FollowerRow(0, 5, 100, 4, 10, 1 << 20, 90), FollowerRow(7, 6, 0, -1, 0, 0, 0)],
    T2: [FollowerRow(1, 2, 1 << 40, 2, 3, 1 << 20, -1)],
}


def request_frame() -> bytes:
    return follower_fetch(
        9, b"broker-2", replica_id=2, replica_epoch=1 << 40, max_wait_ms=500, min_bytes=1, size_bytes_max=10 << 20,
        session_id=77, session_epoch=3, topics=ROWS, forgotten={T2: [4, 5]},
    )  # fmt: skip


def test_leader_reads_the_request_of_a_follower() -> None:
    frame = request_frame()
    parsed = parse_fetch(b"size" + frame + b"behind", 4, 4 + len(frame), VERSION)
    assert (parsed.replica_id, parsed.replica_epoch) == (2, 1 << 40)
    assert (parsed.max_wait_ms, parsed.min_bytes, parsed.size_bytes_max) == (500, 1, 10 << 20)
    assert (parsed.session_id, parsed.session_epoch) == (77, 3)
    assert not parsed.read_committed
    assert parsed.topics == [(topic, [FetchPartition(*row) for row in rows]) for topic, rows in ROWS.items()]
    assert parsed.forgotten == [(T2, [4, 5])]


@pytest.mark.parametrize("rows", [1, 2, 126, 127])
def test_request_for_one_topic_is_read_to_the_same_result_without_the_fast_path(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    source = random.Random(rows)
    values = [[source.randrange(-1, 1 << bits) for bits in (31, 31, 63, 31, 63, 31, 63)] for _ in range(rows)]
    frame = follower_fetch(
        9, b"broker-2", replica_id=3, replica_epoch=77, max_wait_ms=500, min_bytes=1, size_bytes_max=10 << 20,
        session_id=77, session_epoch=3, topics={T1: [FollowerRow(*each) for each in values]}, forgotten={},
    )  # fmt: skip
    fast = fetch_wire._read_one_topic
    taken: list[bool] = []

    def noted(*arguments: Any) -> Any:
        found = fast(*arguments)
        taken.append(found is not None)
        return found

    def parsed(data: bytes) -> Any:
        try:
            return parse_fetch(data, 0, len(data), VERSION)
        except (WireError, IndexError, struct.error) as error:
            return type(error)

    damaged = []
    for _ in range(300):
        copy = bytearray(frame)
        copy[source.randrange(20, len(copy))] = source.randrange(256)
        damaged.append(bytes(copy))
    monkeypatch.setattr(fetch_wire, "_read_one_topic", noted)
    first = [parsed(each) for each in (frame, *damaged)]
    assert taken[0] is (rows < 127)
    assert [list(each) for each in first[0].topics[0][1]] == values
    monkeypatch.setattr(fetch_wire, "_read_one_topic", lambda *_: None)
    assert [parsed(each) for each in (frame, *damaged)] == first


def test_request_is_valid_for_the_generic_codec() -> None:
    frame = request_frame()
    message, position = decode(FetchRequest, VERSION, frame, 10 + len("broker-2") + 1)
    assert position == len(frame)
    assert message.replica_state is not None
    assert (message.replica_state.replica_id, message.replica_state.replica_epoch) == (2, 1 << 40)
    assert [p.fetch_offset for topic in message.topics for p in topic.partitions] == [100, 0, 1 << 40]


@pytest.mark.parametrize("cut", range(1, 40))
def test_request_that_ends_early_is_rejected(cut: int) -> None:
    frame = request_frame()
    with pytest.raises((WireError, IndexError)):
        parse_fetch(frame, 0, len(frame) - cut, VERSION)


def test_synced_end_offset_of_another_size_is_rejected() -> None:
    tag = write_uvarint(10_000)
    with pytest.raises(WireError, match="synced end offset"):
        parse_fetch(request_frame().replace(tag + b"\x08", tag + b"\x07", 1), 0, len(request_frame()), VERSION)


def reply() -> tuple[FetchResponse, bytes]:
    message = FetchResponse(
        session_id=77,
        error_code=0,
        responses=(
            FetchableTopicResponse(
                topic_id=T1,
                partitions=(
                    PartitionData(partition_index=0, high_watermark=100, log_start_offset=5, records=b"batches"),
                    PartitionData(
                        partition_index=7, error_code=6, high_watermark=-1,
                        diverging_epoch=EpochEndOffset(epoch=4, end_offset=55),
                        aborted_transactions=(AbortedTransaction(producer_id=1), AbortedTransaction()), records=None,
                    ),
                ),
            ),
            FetchableTopicResponse(topic_id=T2, partitions=(PartitionData(partition_index=1, records=b""),)),
        ),
    )  # fmt: skip
    return message, b"\0\0\0\x09\0" + encode(message, VERSION)


def test_follower_reads_the_reply_without_a_copy_of_the_records() -> None:
    _, data = reply()
    parsed = parse_reply(memoryview(data))
    assert (parsed.error_code, parsed.session_id) == (0, 77)
    assert parsed.rows == [
        FetchedRow(T1, 0, 0, 100, 5, None, memoryview(b"batches"), False),
        FetchedRow(T1, 7, 6, -1, -1, (4, 55), memoryview(b""), False),
        FetchedRow(T2, 1, 0, 0, -1, None, memoryview(b""), False),
    ]
    assert parsed.rows[0].records.obj is data


def test_reply_means_what_the_generic_codec_says() -> None:
    message, data = reply()
    assert read_answer(data, 1, VERSION, 9) == message


def test_malformed_reply_is_rejected() -> None:
    _, data = reply()
    for end in range(5, len(data)):
        with pytest.raises(WireError):
            parse_reply(memoryview(data)[:end])
    with pytest.raises(WireError):
        parse_reply(memoryview(data + b"\0"))


def test_random_bytes_raise_no_other_error() -> None:
    source = random.Random(1)
    _, data = reply()
    for _ in range(2000):
        damaged = bytearray(data)
        for _ in range(source.randrange(1, 4)):
            damaged[source.randrange(4, len(damaged))] = source.randrange(256)
        try:
            parse_reply(memoryview(damaged))
        except WireError:
            pass
