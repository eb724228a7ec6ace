"""Fetch: how much, from where, when, and what the errors are called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.model.batch import read_header
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

VERSIONS = range(4, 19)
FOREVER_MS = 60_000
every_version = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture
def topic(new_topic: Any) -> Any:
    return new_topic(partitions=3)


@pytest.fixture
def writer(ottla_broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(ottla_broker.bootstrap) as client:
        yield client


def write(client: RawClient, topic: Any, partition: int = 0, batches: int = 3, records: int = 2) -> int:
    """Batches of the same size; the size of one."""
    batch = batch_of(*[b"v" * 10] * records)
    for _ in range(batches):
        client.ask(produce_request((topic.name, partition, batch)), 9)
    return len(batch)


def ask(client: RawClient, topic: Any, version: int, *partitions: Any, **fields: Any) -> list[Any]:
    """The rows of one topic."""
    answer = client.ask(fetch_request({topic.key(by_id=version >= 13): list(partitions)}, **fields), version)
    assert answer.error_code == 0
    (found,) = answer.responses
    return list(found.partitions)


def offsets(records: bytes) -> list[int]:
    """Base offsets of the batches, which must be whole."""
    found, position = [], 0
    while position < len(records):
        header = read_header(records, position)
        found.append(header.base_offset)
        position += header.size_bytes
    assert position == len(records)
    return found


# -- from where -----------------------------------------------------------------------------------------------------


@every_version
def test_everything_from_an_offset_on_is_returned(client: RawClient, topic: Any, version: int) -> None:
    write(client, topic)
    (row,) = ask(client, topic, version, fetch_from(0, 2))
    assert (row.error_code, row.high_watermark, row.last_stable_offset) == (0, 6, 6)
    assert row.log_start_offset == (0 if version >= 5 else -1)
    assert row.preferred_read_replica == -1
    assert offsets(row.records) == [2, 4]


@every_version
def test_offset_within_a_batch_returns_the_batch(client: RawClient, topic: Any, version: int) -> None:
    write(client, topic)
    (row,) = ask(client, topic, version, fetch_from(0, 3))
    assert offsets(row.records) == [2, 4]


@every_version
def test_end_of_the_log_is_empty_and_no_error(client: RawClient, topic: Any, version: int) -> None:
    write(client, topic)
    (row,) = ask(client, topic, version, fetch_from(0, 6))
    assert (row.error_code, row.high_watermark, row.records) == (0, 6, b"")


@every_version
@pytest.mark.parametrize("offset", [7, 2**62, -1, -2])
def test_offset_outside_the_log_is_out_of_range(client: RawClient, topic: Any, version: int, offset: int) -> None:
    write(client, topic)
    (row,) = ask(client, topic, version, fetch_from(0, offset), max_wait=FOREVER_MS)
    assert (row.error_code, row.high_watermark, row.records) == (1, -1, b"")


@every_version
def test_deleted_records_are_out_of_range(client: RawClient, topic: Any, version: int) -> None:
    write(client, topic)
    partition = DeleteRecordsPartition(partition_index=0, offset=4)
    client.ask(DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic.name, partitions=[partition])]), 2)
    (row,) = ask(client, topic, version, fetch_from(0, 3))
    assert row.error_code == 1
    (row,) = ask(client, topic, version, fetch_from(0, 4))
    assert (row.error_code, row.log_start_offset) == (0, 4 if version >= 5 else -1)


@every_version
def test_unknown_partition_and_topic_are_answered_at_once_with_empty_records(
    client: RawClient, topic: Any, version: int
) -> None:
    by_id = version >= 13
    unknown = b"\7" * 16 if by_id else "clause-nowhere"
    wanted = {
        topic.key(by_id=by_id): [fetch_from(0, 0), fetch_from(9, 0), fetch_from(-1, 0)],
        unknown: [fetch_from(0, 0)],
    }
    answer = client.ask(fetch_request(wanted, max_wait=FOREVER_MS), version)
    rows = [row for found in answer.responses for row in found.partitions]
    assert [(row.partition_index, row.error_code) for row in rows] == [
        (0, 0),
        (9, 3),
        (-1, 3),
        (0, 100 if by_id else 3),
    ]
    assert all(row.records == b"" for row in rows)


@every_version
def test_no_partitions_are_answered_at_once(client: RawClient, version: int) -> None:
    assert client.ask(fetch_request({}, max_wait=FOREVER_MS), version).responses == ()


@every_version
def test_partition_that_is_named_twice_is_answered_once(client: RawClient, topic: Any, version: int) -> None:
    write(client, topic)
    (row,) = ask(client, topic, version, fetch_from(0, 0), fetch_from(0, 4))
    assert offsets(row.records) == [4]


@every_version
def test_aborted_transactions_are_told_to_readers_of_committed_ones_only(
    client: RawClient, topic: Any, version: int
) -> None:
    write(client, topic)
    for level, expected in ((0, None), (1, ())):
        (row,) = ask(client, topic, version, fetch_from(0, 0), isolation_level=level)
        assert row.aborted_transactions == expected
        assert offsets(row.records) == [0, 2, 4]


# -- how much -------------------------------------------------------------------------------------------------------


@every_version
@pytest.mark.parametrize("limit", [0, 1, 50])
def test_first_batch_is_returned_whole_however_small_the_limit(
    client: RawClient, topic: Any, version: int, limit: int
) -> None:
    write(client, topic)
    for fields in ({"partition_max_bytes": limit}, {}):
        (row,) = ask(client, topic, version, fetch_from(0, 0, **fields), max_bytes=1 << 20 if fields else limit)
        assert offsets(row.records) == [0]


@every_version
def test_batches_that_do_not_fit_are_left_out(client: RawClient, topic: Any, version: int) -> None:
    size = write(client, topic, batches=5)
    for limit, expected in ((size, [0]), (2 * size - 1, [0]), (2 * size, [0, 2]), (4 * size + 1, [0, 2, 4, 6])):
        (row,) = ask(client, topic, version, fetch_from(0, 0, partition_max_bytes=limit))
        assert offsets(row.records) == expected
        (row,) = ask(client, topic, version, fetch_from(0, 0), max_bytes=limit)
        assert offsets(row.records) == expected


@every_version
def test_limit_is_shared_by_the_partitions_in_their_order(client: RawClient, topic: Any, version: int) -> None:
    size, _, _ = (write(client, topic, partition) for partition in range(3))
    rows = ask(client, topic, version, *[fetch_from(number, 0) for number in (2, 0, 1)], max_bytes=4 * size)
    assert [(row.partition_index, len(row.records) // size) for row in rows] == [(2, 3), (0, 1), (1, 0)]


@every_version
def test_only_the_first_partition_with_data_may_exceed_the_limit(client: RawClient, topic: Any, version: int) -> None:
    size = write(client, topic, 1)
    write(client, topic, 2)
    rows = ask(client, topic, version, *[fetch_from(number, 0) for number in (0, 1, 2)], max_bytes=1)
    assert [len(row.records) // size for row in rows] == [0, 1, 0]


def test_answer_is_no_larger_than_the_broker_allows(start_ottla_broker: Any) -> None:
    broker = start_ottla_broker(settings={"fetch.max.bytes": "2000"})
    with RawClient(broker.bootstrap) as client:
        client.create_topic("t")
        for _ in range(10):
            client.ask(produce_request(("t", 0, batch_of(bytes(400)))), 9)
        (found,) = client.ask(fetch_request({"t": [fetch_from(0, 0)]}, max_bytes=2**31 - 1), 11).responses
        assert 400 < len(found.partitions[0].records) <= 2000


# -- when -----------------------------------------------------------------------------------------------------------


@every_version
@pytest.mark.parametrize("fields", [{"max_wait": 0}, {"max_wait": -1}, {"max_wait": FOREVER_MS, "min_bytes": 0}])
def test_fetch_that_may_not_wait_is_answered_at_once(
    client: RawClient, topic: Any, version: int, fields: dict[str, int]
) -> None:
    (row,) = ask(client, topic, version, fetch_from(0, 0), **fields)
    assert (row.error_code, row.records) == (0, b"")


def test_fetch_without_records_is_answered_when_its_wait_ends(client: RawClient, topic: Any) -> None:
    (row,) = ask(client, topic, 11, fetch_from(0, 0), max_wait=200)
    assert (row.error_code, row.records) == (0, b"")


@every_version
def test_data_ends_the_wait(client: RawClient, writer: RawClient, topic: Any, version: int) -> None:
    key = topic.key(by_id=version >= 13)
    partitions = [fetch_from(number, 0) for number in range(3)]
    waiting = client.send(fetch_request({key: partitions}, max_wait=FOREVER_MS), version)
    write(writer, topic, 1, batches=1)
    (found,) = client.receive(1, version, waiting).responses
    assert [len(row.records) > 0 for row in found.partitions] == [False, True, False]


def test_wait_goes_on_until_there_are_enough_bytes(client: RawClient, writer: RawClient, topic: Any) -> None:
    size = write(writer, topic, batches=1)
    waiting = client.send(
        fetch_request({topic.name: [fetch_from(0, 0)]}, max_wait=FOREVER_MS, min_bytes=2 * size + 1), 11
    )
    write(writer, topic, batches=1)
    client.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.receive_frame()
    client.socket.settimeout(60)
    write(writer, topic, batches=1)
    (found,) = client.receive(1, 11, waiting).responses
    assert offsets(found.partitions[0].records) == [0, 2, 4]


def test_no_more_bytes_are_waited_for_than_may_be_returned(client: RawClient, topic: Any) -> None:
    size = write(client, topic, batches=2)
    (row,) = ask(client, topic, 11, fetch_from(0, 0), max_wait=FOREVER_MS, min_bytes=10**6, max_bytes=size)
    assert offsets(row.records) == [0]


def test_deleted_topic_ends_the_wait(client: RawClient, writer: RawClient, topic: Any) -> None:
    waiting = client.send(fetch_request({topic.name: [fetch_from(0, 0)]}, max_wait=FOREVER_MS), 11)
    writer.ask(DeleteTopicsRequest(topic_names=[topic.name]), 4)
    (found,) = client.receive(1, 11, waiting).responses
    assert found.partitions[0].error_code == 3


# -- leader epochs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(9, 19))
def test_leader_epoch_of_the_client_must_be_ours(client: RawClient, topic: Any, version: int) -> None:
    write(client, topic)
    for epoch, code in ((-1, 0), (0, 0), (1, 75), (2**31 - 1, 75)):
        (row,) = ask(client, topic, version, fetch_from(0, 0, current_leader_epoch=epoch))
        assert (row.error_code, row.records != b"") == (code, code == 0)


@pytest.mark.parametrize("version", range(12, 19))
def test_history_that_is_not_ours_diverges(client: RawClient, topic: Any, version: int) -> None:
    write(client, topic)
    (row,) = ask(client, topic, version, fetch_from(0, 3, last_fetched_epoch=0))
    assert (row.diverging_epoch, offsets(row.records)) == (None, [2, 4])
    (row,) = ask(client, topic, version, fetch_from(0, 9, last_fetched_epoch=0), max_wait=FOREVER_MS)
    assert (row.error_code, row.records) == (0, b"")
    assert (row.diverging_epoch.epoch, row.diverging_epoch.end_offset) == (0, 6)
    (row,) = ask(client, topic, version, fetch_from(0, 3, last_fetched_epoch=7))
    assert (row.error_code, row.diverging_epoch) == (1, None)


@pytest.mark.parametrize("version", range(12, 19))
def test_reader_of_an_empty_log_waits_at_the_offset_and_epoch_it_was_told(
    client: RawClient, topic: Any, version: int
) -> None:
    for timestamp in (-1, -2):
        partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        listed = client.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic.name, partitions=[partition])]), 7)
        told = listed.topics[0].partitions[0]
        assert (told.error_code, told.offset, told.leader_epoch) == (0, 0, 0)
        (row,) = ask(client, topic, version, fetch_from(0, told.offset, last_fetched_epoch=told.leader_epoch))
        assert (row.error_code, row.diverging_epoch, row.records) == (0, None, b"")


def test_reader_at_the_end_stays_there_after_a_crash_of_the_broker(fresh_ottla_broker: BrokerProcess) -> None:
    """The epoch goes up and has written nothing yet: a reader told of it must not be sent back to the beginning."""
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        client.create_topic("kept")
        client.ask(produce_request(("kept", 0, batch_of(b"v")), acks=-1), 9)
    fresh_ottla_broker.kill()
    fresh_ottla_broker.launch()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
        listed = client.ask(ListOffsetsRequest(topics=[ListOffsetsTopic(name="kept", partitions=[partition])]), 7)
        told = listed.topics[0].partitions[0]
        assert (told.offset, told.leader_epoch) == (1, 1)
        for epoch in (0, 1):
            request = fetch_request({"kept": [fetch_from(0, 1, last_fetched_epoch=epoch, current_leader_epoch=1)]})
            row = client.ask(request, 12).responses[0].partitions[0]
            assert (row.error_code, row.diverging_epoch) == (0, None)


# -- never ----------------------------------------------------------------------------------------------------------


@every_version
def test_records_are_never_null(client: RawClient, topic: Any, version: int) -> None:
    """librdkafka fails the whole answer over a null."""
    rows = ask(client, topic, version, fetch_from(0, 0), fetch_from(1, 99), fetch_from(7, 0))
    assert [row.records for row in rows] == [b"", b"", b""]
