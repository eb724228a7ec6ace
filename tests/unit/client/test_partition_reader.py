"""Fetch replies are parsed by hand in every version; the reader goes on where it should, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from struct import error as StructError
from typing import Any

import pytest
from fake_cluster import Cut, FakeCluster, Silence, fetch_answer

from ottla.client.cluster import Cluster, Isolation
from ottla.client.errors import ClientError, OffsetOutOfRange, TimedOut, TopicReplaced
from ottla.client.fetching import Aborted, Fetched, PartitionReader, parse_fetch_reply, whole_batches
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.wire import WireError, encode
from ottla.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

P0 = TopicPartition("t", 0)
VERSIONS = range(4, 18)


def batch(base_offset: int, count: int = 2) -> bytes:
    return build_batch([Record(timestamp=1, key=None, value=b"v" * 50) for _ in range(count)], base_offset=base_offset)


def reply(**fields: Any) -> FetchResponse:
    row = PartitionData(partition_index=0, high_watermark=9, last_stable_offset=8, log_start_offset=3, **fields)
    topic = FetchableTopicResponse(topic="orders", topic_id=b"i" * 16, partitions=[row])
    return FetchResponse(responses=[topic], node_endpoints=[NodeEndpoint(node_id=1, host="h", port=1)])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reply_is_read_in_every_version(version: int) -> None:
    aborted = [AbortedTransaction(producer_id=4, first_offset=5), AbortedTransaction(producer_id=6, first_offset=7)]
    leader = LeaderIdAndEpoch(leader_id=1, leader_epoch=2)
    frame = encode(reply(aborted_transactions=aborted, records=batch(3), current_leader=leader), version)
    code, fetched = parse_fetch_reply(memoryview(frame), 0, version)
    assert (code, bytes(fetched.data)) == (0, batch(3))
    assert fetched[1:] == (9, 8, 3 if version >= 5 else -1, (Aborted(4, 5), Aborted(6, 7)))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("records", [b"", None])
def test_a_reply_without_records_is_read_in_every_version(version: int, records: bytes | None) -> None:
    frame = encode(reply(aborted_transactions=None, records=records, error_code=6), version)
    code, fetched = parse_fetch_reply(memoryview(frame), 0, version)
    assert (code, len(fetched.data), fetched.aborted) == (6, 0, ())


def test_records_are_not_copied() -> None:
    frame = bytearray(encode(reply(records=batch(3)), 17))
    _, fetched = parse_fetch_reply(memoryview(frame), 0, 17)
    assert fetched.data.obj is frame


@pytest.mark.parametrize("version", VERSIONS)
def test_a_reply_that_is_cut_short_is_refused(version: int) -> None:
    records = batch(3)
    frame = encode(reply(aborted_transactions=[AbortedTransaction()], records=records), version)
    end = frame.index(records) + len(records)
    for cut in range(end):
        with pytest.raises((WireError, IndexError, StructError)):
            parse_fetch_reply(memoryview(frame)[:cut], 0, version)


def test_an_error_of_the_whole_reply_is_an_error() -> None:
    code, fetched = parse_fetch_reply(memoryview(encode(FetchResponse(error_code=70), 12)), 0, 12)
    assert (code, len(fetched.data)) == (70, 0)


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    data = batch(3) + batch(5, 4) + batch(9)[:-1]
    assert whole_batches(memoryview(data)) == (len(batch(3) + batch(5, 4)), 9)
    assert whole_batches(memoryview(batch(3)[:-1])) == (0, -1)
    assert whole_batches(memoryview(b"")) == (0, -1)


def test_batches_of_an_old_format_are_refused() -> None:
    old = bytearray(batch(3))
    old[16] = 1
    with pytest.raises(ClientError, match="format 1 is too old"):
        whole_batches(memoryview(old))


# -- the reader -------------------------------------------------------------------------------------------------------


@pytest.fixture
def log(fake: FakeCluster) -> FakeCluster:
    """Batches of two records from offset 0 to 9; a fetch gets one, at the offset asked for."""

    def fetch(broker_id: int, request: Any, code: int) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        if broker_id != fake.leaders["t", 0]:
            return fetch_answer(request, error_code=6)
        records = batch(offset - offset % 2) if code == 0 and offset < 10 else b""
        return fetch_answer(request, error_code=code, records=records)

    fake._Fetch = fetch  # type: ignore[method-assign]
    return fake


@pytest.fixture
def read(cluster: Cluster) -> Callable[..., PartitionReader]:
    def read(start: int, end: int, **fields: Any) -> PartitionReader:
        return PartitionReader(cluster, P0, start, end, isolation=Isolation.READ_COMMITTED, **fields)

    return read


def offsets(fetched: Fetched) -> int:
    return int.from_bytes(fetched.data[:8], "big")


Read = Callable[..., PartitionReader]


def test_a_partition_is_read_from_start_to_end(log: FakeCluster, read: Read) -> None:
    assert [offsets(one) for one in read(3, 7)] == [2, 4, 6]
    assert [r.topics[0].partitions[0].fetch_offset for r in log.requests("Fetch")] == [3, 4, 6]


def test_nothing_is_asked_for_an_empty_range(log: FakeCluster, read: Read) -> None:
    assert list(read(3, 3)) == []
    assert not log.requests("Fetch")


def test_the_next_fetch_is_sent_before_the_current_is_handed_out(log: FakeCluster, read: Read) -> None:
    reader = read(0, 10)
    next(reader)
    assert [r.topics[0].partitions[0].fetch_offset for r in log.requests("Fetch")] == [0, 2]
    reader.close()


def test_isolation_and_sizes_are_passed_on(log: FakeCluster, read: Read) -> None:
    next(read(0, 2, fetch_bytes=1234, wait_ms=77))
    (request,) = log.requests("Fetch")
    assert (request.isolation_level, request.max_wait, request.session_id, request.session_epoch) == (1, 77, 0, -1)
    assert (request.max_bytes, request.topics[0].partitions[0].partition_max_bytes) == (1234, 1234)


@pytest.mark.parametrize("versions", [(4, 6), (4, 12), (4, 17)])
def test_brokers_of_any_age_are_read(log: FakeCluster, read: Read, versions: tuple[int, int]) -> None:
    log.versions[1] = versions
    assert [offsets(one) for one in read(0, 4)] == [0, 2]
    assert log.versions_of("Fetch") == {versions[1]}


@pytest.mark.parametrize("failure", [6, 3, 56, 74, 75, 78, 100, Cut, Silence])
def test_what_may_pass_is_survived_without_loss_or_repetition(log: FakeCluster, read: Read, failure: Any) -> None:
    log.plan("Fetch", None, failure, failure)
    assert [offsets(one) for one in read(0, 8)] == [0, 2, 4, 6]


def test_a_leader_change_is_followed(log: FakeCluster, read: Read) -> None:
    reader = read(0, 8)
    assert offsets(next(reader)) == 0
    log.leaders["t", 0] = 2
    # The one that was sent ahead has been answered by the old leader.
    assert [offsets(one) for one in reader] == [2, 4, 6]


def test_a_topic_that_was_made_again_is_not_taken_for_the_old_one(log: FakeCluster, read: Read) -> None:
    log.plan("Fetch", None, 100)
    reader = read(0, 8)
    next(reader)
    log.topic_id = b"x" * 16
    with pytest.raises(TopicReplaced, match="deleted and made again"):
        next(reader)


def test_an_offset_outside_of_the_log_is_told_with_its_bounds(log: FakeCluster, read: Read) -> None:
    log.plan("Fetch", 1)
    with pytest.raises(OffsetOutOfRange, match="has offsets 5 to 100") as told:
        next(read(1000, 2000))
    assert (told.value.tp, told.value.position, told.value.log_start, told.value.log_end) == (P0, 1000, 5, 100)


def test_a_partition_in_which_nothing_comes_is_given_up(log: FakeCluster, read: Read, clock: list[float]) -> None:
    usual = log._Fetch

    def wait(broker_id: int, request: Any, code: int) -> Any:
        clock[0] += 0.5
        return usual(broker_id, request, code)

    log._Fetch = wait  # type: ignore[method-assign]
    reader = read(8, 12)
    next(reader)
    with pytest.raises(TimedOut, match=r"nothing came at offset 10 within 30 s.*ends at 100"):
        next(reader)


def test_records_from_before_the_position_are_not_read_twice(log: FakeCluster, read: Read) -> None:
    log.plan("Fetch", None, lambda _, request: fetch_answer(request, records=batch(0)))
    assert [offsets(one) for one in read(0, 6)] == [0, 2, 4]


def test_a_broker_that_cuts_the_first_batch_is_asked_for_more(log: FakeCluster, read: Read) -> None:
    log.plan("Fetch", lambda _, request: fetch_answer(request, records=batch(0)[:70]))
    assert [offsets(one) for one in read(0, 2, fetch_bytes=70)] == [0]
    assert [request.max_bytes for request in log.requests("Fetch")] == [70, 140]


def test_what_was_handed_out_stays_as_it_is(log: FakeCluster, read: Read) -> None:
    kept = list(read(0, 10))
    assert [bytes(one.data) for one in kept] == [batch(offset) for offset in range(0, 10, 2)]
