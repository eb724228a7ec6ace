"""Produce: what a batch must be, what each refusal is called, and when nothing is said at all.

A request for one partition goes another way through the broker than one for several, and the second request of a
connection another than its first. Each situation here is asked all three ways and must be answered alike.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import pytest

from ottla.model.batch import checksum
from ottla.model.records import Record, build_batch
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request

VERSIONS = range(3, 14)
ZSTD = 4
GOOD = batch_of(b"value")
HOUR_MS = 3_600_000

every_version = pytest.mark.parametrize("version", VERSIONS)


def patched(batch: bytes, position: int, layout: str, value: int) -> bytes:
    """The batch with one field of its header changed and the checksum put right."""
    changed = bytearray(batch)
    struct.pack_into(layout, changed, position, value)
    changed[17:21] = checksum(changed).to_bytes(4, "big")
    return bytes(changed)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


class Refusal(NamedTuple):
    """Something that cannot be stored, and the code that says why."""

    name: str
    records: bytes | None
    code: int


REFUSALS = [
    Refusal("null", None, 87),
    Refusal("nothing", b"", 87),
    Refusal("half a header", GOOD[:30], 87),
    Refusal("a batch that is cut", GOOD[:-1], 87),
    Refusal("two batches", GOOD + GOOD, 87),
    Refusal("a wrong checksum", damaged(GOOD), 2),
    Refusal("a length below a header", patched(GOOD, 8, ">i", 10), 2),
    Refusal("a negative length", patched(GOOD, 8, ">i", -1), 2),
    Refusal("a length beyond the end", patched(GOOD, 8, ">i", len(GOOD)), 87),
    Refusal("the format before batches", patched(GOOD, 16, ">b", 1), 87),
    Refusal("the format before that", patched(GOOD, 16, ">b", 0), 87),
    Refusal("a format of the future", patched(GOOD, 16, ">b", 3), 2),
    Refusal("a base offset", patched(GOOD, 0, ">q", 5), 87),
    Refusal("no records", patched(GOOD, 57, ">i", 0), 87),
    Refusal("a negative count", patched(GOOD, 57, ">i", -1), 87),
    Refusal("a count that does not fit", patched(GOOD, 57, ">i", 2), 87),
    Refusal("offsets that do not fit", patched(GOOD, 23, ">i", 5), 87),
    Refusal("control records", batch_of(b"v", control=True), 87),
    Refusal("a producer without a sequence", batch_of(b"v", producer_id=5, producer_epoch=0, base_sequence=-1), 87),
    Refusal("noise", b"\xab" * 200, 2),
]


def alone(client: RawClient, topic: Any, version: int, records: bytes | None, acks: int = 1) -> Any:
    """The first request of a connection."""
    key = topic.key(by_id=version >= 13)
    return only_row(client.ask(produce_request((key, 0, records), acks=acks), version))


def after_a_good_one(client: RawClient, topic: Any, version: int, records: bytes | None, acks: int = 1) -> Any:
    """A request that begins with the same bytes as the one before."""
    assert alone(client, topic, version, GOOD, acks).error_code == 0
    return alone(client, topic, version, records, acks)


def among_others(client: RawClient, topic: Any, version: int, records: bytes | None, acks: int = 1) -> Any:
    """A request for several partitions, of which the others are fine."""
    key = topic.key(by_id=version >= 13)
    batches = [(key, 1, GOOD), (key, 0, records), (key, 2, GOOD)]
    rows = [
        topic.partition_responses[0] for topic in client.ask(produce_request(*batches, acks=acks), version).responses
    ]
    assert (rows[0].error_code, rows[2].error_code) == (0, 0)
    return rows[1]


WAYS = [alone, after_a_good_one, among_others]
every_way = pytest.mark.parametrize("way", WAYS)


def only_row(answer: Any) -> Any:
    (topic,) = answer.responses
    (row,) = topic.partition_responses
    return row


@pytest.fixture
def topic(new_topic: Any) -> Any:
    return new_topic(partitions=3)


@every_version
@every_way
@pytest.mark.parametrize("acks", [1, -1])
def test_good_batch_is_stored(client: RawClient, topic: Any, version: int, way: Any, acks: int) -> None:
    row = way(client, topic, version, batch_of(b"a", b"b"), acks)
    assert (row.error_code, row.log_append_time) == (0, -1)
    assert row.base_offset == (1 if way is after_a_good_one else 0)
    assert row.log_start_offset == (0 if version >= 5 else -1)
    assert (row.record_errors, row.error_message) == ((), None)


@every_version
@every_way
def test_refusal_has_its_code_and_stores_nothing(client: RawClient, topic: Any, version: int, way: Any) -> None:
    stored = 0
    for refusal in REFUSALS:
        row = way(client, topic, version, refusal.records)
        assert (row.error_code, row.base_offset, row.log_append_time) == (refusal.code, -1, -1), refusal.name
        stored += way is after_a_good_one
    assert end_offset(client, topic) == stored


def end_offset(client: RawClient, topic: Any) -> int:
    (found,) = client.ask(fetch_request({topic.name: [fetch_from(0, 0)]}), 11).responses
    return int(found.partitions[0].high_watermark)


@every_version
def test_same_situation_gets_the_same_answer_whichever_way_it_came(client: RawClient, topic: Any, version: int) -> None:
    for refusal in REFUSALS:
        first, second, third = (way(client, topic, version, refusal.records) for way in WAYS)
        assert first == second == third, refusal.name


@every_version
@every_way
def test_zstd_came_with_v7(client: RawClient, topic: Any, version: int, way: Any) -> None:
    row = way(client, topic, version, batch_of(b"value" * 50, codec=ZSTD))
    assert row.error_code == (76 if version < 7 else 0)


@every_version
@pytest.mark.parametrize("acks", [2, -2, 32767, -32768])
def test_acks_other_than_all_one_and_none_are_refused(client: RawClient, topic: Any, version: int, acks: int) -> None:
    for way in (alone, among_others):
        if way is alone:
            assert alone(client, topic, version, GOOD, acks).error_code == 21
        else:
            key = topic.key(by_id=version >= 13)
            answer = client.ask(produce_request((key, 0, GOOD), (key, 1, GOOD), acks=acks), version)
            assert [topic.partition_responses[0].error_code for topic in answer.responses] == [21, 21]
    assert end_offset(client, topic) == 0


@every_version
def test_unknown_topic_and_partition_are_answered_beside_the_good_one(
    client: RawClient, topic: Any, version: int
) -> None:
    by_id = version >= 13
    unknown = b"\7" * 16 if by_id else "clause-nowhere"
    batches = [(topic.key(by_id=by_id), number, GOOD) for number in (0, 3, -1)] + [(unknown, 0, GOOD)]
    answer = client.ask(produce_request(*batches), version)
    rows = [topic.partition_responses[0] for topic in answer.responses]
    assert [(row.index, row.error_code) for row in rows] == [(0, 0), (3, 3), (-1, 3), (0, 100 if by_id else 3)]


@pytest.mark.parametrize("version", range(3, 13))
def test_unknown_topic_is_not_created(client: RawClient, version: int) -> None:
    for name in ("clause-never-made", "a b", ""):
        assert only_row(client.ask(produce_request((name, 0, GOOD)), version)).error_code == 3


def test_unknown_and_zero_ids_are_unknown(client: RawClient) -> None:
    for topic_id in (b"\7" * 16, bytes(16)):
        assert only_row(client.ask(produce_request((topic_id, 0, GOOD)), 13)).error_code == 100


@every_version
def test_empty_request_gets_an_empty_answer(client: RawClient, version: int) -> None:
    assert client.ask(produce_request(), version).responses == ()


@every_version
def test_batch_larger_than_the_topic_allows_is_too_large(client: RawClient, new_topic: Any, version: int) -> None:
    topic = new_topic(partitions=3, config={"max.message.bytes": "200"})
    for way in WAYS:
        assert way(client, topic, version, batch_of(bytes(200))).error_code == 10


@every_version
@pytest.mark.parametrize("pairs", [2, 1000], ids=["opened on the loop", "opened by the opener"])
def test_compacted_topic_names_every_record_without_a_key(
    client: RawClient, new_topic: Any, version: int, pairs: int
) -> None:
    topic = new_topic(partitions=3, config={"cleanup.policy": "compact"})
    keyless = build_batch([Record(key=b"k", value=b"v", timestamp=1), Record(value=b"v", timestamp=1)] * pairs)
    for way in WAYS:
        row = way(client, topic, version, keyless)
        named = [error.batch_index for error in row.record_errors]
        assert (row.error_code, named) == (87, list(range(1, 2 * pairs, 2)) if version >= 8 else [])
        assert all(error.batch_index_error_message for error in row.record_errors)
        assert (row.error_message is not None) == (version >= 8)
    assert end_offset(client, topic) == 1, "only the good batch of the second way is stored"


@pytest.mark.parametrize(("ahead_ms", "code"), [(0, 0), (50 * 60_000, 0), (2 * HOUR_MS, 32), (2**61, 32)])
def test_timestamp_must_not_be_far_ahead(client: RawClient, topic: Any, ahead_ms: int, code: int) -> None:
    (now,) = struct.unpack_from(">q", batch_of(b"v"), 27)
    assert alone(client, topic, 9, batch_of(b"v", timestamp=now + ahead_ms)).error_code == code


@pytest.mark.parametrize("timestamp", [0, -1, 1])
def test_timestamp_may_be_as_old_as_it_likes(client: RawClient, topic: Any, timestamp: int) -> None:
    assert alone(client, topic, 9, batch_of(b"v", timestamp=timestamp)).error_code == 0


@every_version
def test_topic_with_append_time_tells_it(client: RawClient, new_topic: Any, version: int) -> None:
    topic = new_topic(partitions=3, config={"message.timestamp.type": "LogAppendTime"})
    (now,) = struct.unpack_from(">q", batch_of(b"v"), 27)
    for way in WAYS:
        row = way(client, topic, version, batch_of(b"v", timestamp=5))
        assert row.error_code == 0
        assert abs(row.log_append_time - now) < 60_000


# -- idempotence ----------------------------------------------------------------------------------------------------


def numbered(producer_id: int, epoch: int, sequence: int, count: int = 1) -> bytes:
    return batch_of(*[b"v"] * count, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


@every_way
def test_batch_that_is_sent_again_keeps_its_offset(client: RawClient, topic: Any, way: Any) -> None:
    offsets = [alone(client, topic, 9, numbered(7, 0, sequence)).base_offset for sequence in range(5)]
    for sequence in range(5):
        row = way(client, topic, 9, numbered(7, 0, sequence))
        assert (row.error_code, row.base_offset) == (0, offsets[sequence])


@every_way
def test_gap_in_the_sequence_is_out_of_order(client: RawClient, topic: Any, way: Any) -> None:
    alone(client, topic, 9, numbered(8, 0, 0))
    for sequence in (2, 100, 2**31 - 1):
        assert way(client, topic, 9, numbered(8, 0, sequence)).error_code == 45
    assert way(client, topic, 9, numbered(8, 0, 1)).error_code == 0


def test_unknown_producer_may_start_anywhere(client: RawClient, topic: Any) -> None:
    assert alone(client, topic, 9, numbered(9, 3, 77)).error_code == 0


def test_older_epoch_is_fenced_and_a_newer_one_starts_at_zero(client: RawClient, topic: Any) -> None:
    assert alone(client, topic, 9, numbered(10, 5, 0)).error_code == 0
    assert alone(client, topic, 9, numbered(10, 4, 1)).error_code == 47
    assert alone(client, topic, 9, numbered(10, 6, 4)).error_code == 45
    assert alone(client, topic, 9, numbered(10, 6, 0)).error_code == 0
    assert alone(client, topic, 9, numbered(10, 5, 1)).error_code == 47


def test_after_the_last_sequence_comes_zero(client: RawClient, topic: Any) -> None:
    assert alone(client, topic, 9, numbered(11, 0, 2**31 - 2, count=2)).error_code == 0
    assert alone(client, topic, 9, numbered(11, 0, 0)).error_code == 0
    assert alone(client, topic, 9, numbered(12, 0, 2**31 - 1, count=3)).error_code == 0
    assert alone(client, topic, 9, numbered(12, 0, 2)).error_code == 0


# -- acks=0 ---------------------------------------------------------------------------------------------------------


@every_version
def test_produce_without_acknowledgement_is_never_answered(client: RawClient, topic: Any, version: int) -> None:
    key = topic.key(by_id=version >= 13)
    client.send(produce_request((key, 0, GOOD), acks=0), version)
    client.send(produce_request((key, 0, GOOD), (key, 1, GOOD), acks=0), version)
    client.send(produce_request(acks=0), version)
    assert alone(client, topic, version, GOOD).base_offset == 2


@every_version
def test_produce_without_acknowledgement_closes_the_connection_when_it_fails(
    ottla_broker: BrokerProcess, topic: Any, version: int
) -> None:
    by_id = version >= 13
    key = topic.key(by_id=by_id)
    unknown = b"\7" * 16 if by_id else "clause-nowhere"
    failures = [
        [(key, 0, damaged(GOOD))], [(key, 9, GOOD)], [(unknown, 0, GOOD)], [(key, 0, GOOD), (key, 1, GOOD[:-1])],
    ]  # fmt: skip
    for batches in failures:
        for prefix in (0, 1):
            with RawClient(ottla_broker.bootstrap) as client:
                for _ in range(prefix):
                    client.send(produce_request((key, 2, GOOD), acks=0), version)
                client.send(produce_request(*batches, acks=0), version)
                assert client.receive_until_closed() == b""
