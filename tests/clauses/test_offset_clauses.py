"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords, InitProducerId and DescribeProducers."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.model.batch import checksum
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient, batch_of, fetch_from, fetch_request, produce_request
from ottla.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from ottla.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from ottla.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
#: the version that brought each special timestamp
SINCE = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
every_version = pytest.mark.parametrize("version", range(1, 12))


def list_offsets(client: RawClient, topic: str, version: int, timestamp: int, **fields: Any) -> Any:
    """The only row."""
    partition = ListOffsetsPartition(**{"partition_index": 0, "timestamp": timestamp} | fields)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[partition])])
    (found,) = client.ask(request, version).topics
    (row,) = found.partitions
    return row


@pytest.fixture
def filled(client: RawClient, topic: Any) -> str:
    """Three batches of two records: timestamps 1000, 1001, 3000, 3001, 2000, 2001 at offsets 0 to 5."""
    for timestamp in (1000, 3000, 2000):
        client.ask(produce_request((topic.name, 0, batch_of(b"a", b"b", timestamp=timestamp))), 9)
    return str(topic.name)


# -- ListOffsets ----------------------------------------------------------------------------------------------------


@every_version
@pytest.mark.parametrize(
    ("timestamp", "offset", "found_timestamp"),
    [
        (LATEST, 6, -1), (EARLIEST, 0, -1), (MAX_TIMESTAMP, 3, 3001), (EARLIEST_LOCAL, 0, -1),
        (0, 0, 1000), (1000, 0, 1000), (1001, 1, 1001), (1002, 2, 3000), (2500, 2, 3000), (3001, 3, 3001),
        (3002, -1, -1), (2**62, -1, -1),
    ],
)  # fmt: skip
def test_offset_of_a_time(
    client: RawClient, filled: str, version: int, timestamp: int, offset: int, found_timestamp: int
) -> None:
    row = list_offsets(client, filled, version, timestamp)
    if version < SINCE.get(timestamp, 1):
        assert (row.error_code, row.offset) == (35, -1)
        return
    assert (row.error_code, row.offset, row.timestamp) == (0, offset, found_timestamp)
    assert row.leader_epoch == (0 if version >= 4 and offset >= 0 else -1)


@every_version
@pytest.mark.parametrize("timestamp", [LATEST_TIERED, EARLIEST_PENDING])
def test_tiered_storage_has_no_offsets(client: RawClient, filled: str, version: int, timestamp: int) -> None:
    row = list_offsets(client, filled, version, timestamp)
    code = 0 if version >= SINCE[timestamp] else 35
    assert (row.error_code, row.offset, row.timestamp, row.leader_epoch) == (code, -1, -1, -1)


@every_version
@pytest.mark.parametrize("timestamp", [-7, -(2**63)])
def test_unknown_special_time_is_unsupported(client: RawClient, filled: str, version: int, timestamp: int) -> None:
    assert list_offsets(client, filled, version, timestamp).error_code == 35


@every_version
def test_empty_log_has_its_ends_and_no_times(client: RawClient, topic: Any, version: int) -> None:
    for timestamp in (LATEST, EARLIEST):
        row = list_offsets(client, topic.name, version, timestamp)
        assert (row.error_code, row.offset, row.leader_epoch) == (0, 0, 0 if version >= 4 else -1)
    for timestamp in (0, MAX_TIMESTAMP) if version >= 7 else (0,):
        row = list_offsets(client, topic.name, version, timestamp)
        assert (row.error_code, row.offset, row.timestamp) == (0, -1, -1)


@every_version
def test_deleted_records_have_no_times(client: RawClient, filled: str, version: int) -> None:
    delete_records(client, filled, 4)
    assert list_offsets(client, filled, version, EARLIEST).offset == 4
    row = list_offsets(client, filled, version, 0)
    assert (row.offset, row.timestamp) == (4, 2000)


@every_version
def test_unknown_partition_is_unknown(client: RawClient, filled: str, version: int) -> None:
    for name, number in (("clause-nowhere", 0), (filled, 9), (filled, -1), ("a b", 0)):
        row = list_offsets(client, name, version, LATEST, partition_index=number)
        assert (row.error_code, row.offset, row.timestamp) == (3, -1, -1)


@pytest.mark.parametrize("version", range(4, 11))
def test_leader_epoch_of_the_client_must_be_ours(client: RawClient, filled: str, version: int) -> None:
    for epoch, code in ((-1, 0), (0, 0), (5, 75)):
        assert list_offsets(client, filled, version, LATEST, current_leader_epoch=epoch).error_code == code


@every_version
def test_partition_that_is_named_twice_is_an_invalid_request(client: RawClient, filled: str, version: int) -> None:
    partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    topics = [ListOffsetsTopic(name=filled, partitions=[partition, partition])]
    (found,) = client.ask(ListOffsetsRequest(replica_id=-1, topics=topics), version).topics
    assert {row.error_code for row in found.partitions} == {42}


@pytest.mark.parametrize("version", range(2, 11))
def test_readers_of_committed_transactions_end_at_the_last_stable_offset(
    client: RawClient, filled: str, version: int
) -> None:
    partition = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    topics = [ListOffsetsTopic(name=filled, partitions=[partition])]
    answer = client.ask(ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=topics), version)
    assert answer.topics[0].partitions[0].offset == 6


def test_time_in_a_batch_that_cannot_be_opened_is_an_error_and_no_more(client: RawClient, topic: Any) -> None:
    """Whoever stored it harmed those who read it, not the broker."""
    batch = bytearray(batch_of(b"value" * 20, timestamp=1000))
    batch[61:] = b"\xff" * (len(batch) - 61)
    batch[17:21] = checksum(batch).to_bytes(4, "big")
    client.ask(produce_request((topic.name, 0, bytes(batch))), 9)
    assert list_offsets(client, topic.name, 7, 500).error_code != 0
    assert list_offsets(client, topic.name, 7, LATEST).error_code == 0


# -- OffsetForLeaderEpoch -------------------------------------------------------------------------------------------


def end_of_epoch(client: RawClient, topic: str, version: int, epoch: int, current: int = -1, number: int = 0) -> Any:
    partition = OffsetForLeaderPartition(partition=number, current_leader_epoch=current, leader_epoch=epoch)
    topics = [OffsetForLeaderTopic(topic=topic, partitions=[partition])]
    (found,) = client.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics), version).topics
    (row,) = found.partitions
    return row


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epoch_ends_where_the_next_begins_or_the_log_ends(client: RawClient, filled: str, version: int) -> None:
    for epoch, expected in ((0, (0, 6)), (1, (-1, -1)), (2**31 - 1, (-1, -1)), (-1, (-1, -1))):
        row = end_of_epoch(client, filled, version, epoch)
        assert (row.error_code, row.leader_epoch, row.end_offset) == (0, *expected)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epoch_question_with_a_wrong_epoch_or_place_is_refused(client: RawClient, filled: str, version: int) -> None:
    assert end_of_epoch(client, filled, version, 0, current=3).error_code == 75
    assert end_of_epoch(client, filled, version, 0, number=9).error_code == 3
    assert end_of_epoch(client, "clause-nowhere", version, 0).error_code == 3


def test_epochs_after_a_crash(fresh_ottla_broker: BrokerProcess) -> None:
    for count in (1, 2):
        with RawClient(fresh_ottla_broker.bootstrap) as client:
            if count == 1:
                client.create_topic("kept")
            for _ in range(count):
                client.ask(produce_request(("kept", 0, batch_of(b"v")), acks=-1), 9)
        fresh_ottla_broker.kill()
        fresh_ottla_broker.launch()
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        found = [end_of_epoch(client, "kept", 4, epoch) for epoch in range(4)]
        assert [(row.leader_epoch, row.end_offset) for row in found] == [(0, 1), (1, 3), (2, 3), (-1, -1)]
        assert end_of_epoch(client, "kept", 4, 0, current=1).error_code == 74


# -- DeleteRecords --------------------------------------------------------------------------------------------------


def delete_records(client: RawClient, topic: str, offset: int, version: int = 2, number: int = 0) -> Any:
    partition = DeleteRecordsPartition(partition_index=number, offset=offset)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name=topic, partitions=[partition])], timeout=5000)
    (found,) = client.ask(request, version).topics
    (row,) = found.partitions
    return row


@pytest.mark.parametrize("version", [0, 1, 2])
def test_log_starts_where_it_was_told_to(client: RawClient, filled: str, version: int) -> None:
    for offset, low in ((1, 1), (1, 1), (0, 1), (4, 4), (-1, 6), (6, 6)):
        row = delete_records(client, filled, offset, version)
        assert (row.error_code, row.low_watermark) == (0, low)
    (found,) = client.ask(fetch_request({filled: [fetch_from(0, 6)]}), 11).responses
    assert (found.partitions[0].error_code, found.partitions[0].log_start_offset) == (0, 6)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_that_are_not_there_cannot_be_deleted(client: RawClient, filled: str, version: int) -> None:
    for offset in (7, 2**62, -2):
        row = delete_records(client, filled, offset, version)
        assert (row.error_code, row.low_watermark) == (1, -1)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_of_unknown_partitions_cannot_be_deleted(client: RawClient, filled: str, version: int) -> None:
    for name, number in (("clause-nowhere", 0), (filled, 9), ("a b", 0)):
        assert delete_records(client, name, 0, version, number).error_code == 3


@pytest.mark.parametrize("version", [0, 1, 2])
def test_records_of_compacted_topics_cannot_be_deleted(client: RawClient, new_topic: Any, version: int) -> None:
    topic = new_topic(config={"cleanup.policy": "compact"})
    client.ask(produce_request((topic.name, 0, batch_of(b"v"))), 9)
    assert delete_records(client, topic.name, 1, version).error_code == 44


# -- producers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
def test_producer_ids_are_unique_and_epochs_start_at_zero(client: RawClient, version: int) -> None:
    answers = [client.ask(InitProducerIdRequest(transactional_id=None), version) for _ in range(5)]
    assert {(answer.error_code, answer.producer_epoch) for answer in answers} == {(0, 0)}
    assert len({answer.producer_id for answer in answers}) == 5


@pytest.mark.parametrize("version", [3, 4, 5])
def test_producer_names_its_id_and_epoch_or_neither(client: RawClient, version: int) -> None:
    for producer_id, epoch, code in ((5, -1, 42), (-1, 3, 42), (-1, -1, 0), (5, 3, 0)):
        request = InitProducerIdRequest(transactional_id=None, producer_id=producer_id, producer_epoch=epoch)
        answer = client.ask(request, version)
        assert answer.error_code == code
        assert (answer.producer_id >= 0) == (code == 0)


def test_producers_of_a_partition_are_described(client: RawClient, topic: Any) -> None:
    batch = batch_of(b"a", b"b", timestamp=1000, producer_id=77, producer_epoch=3, base_sequence=10)
    client.ask(produce_request((topic.name, 0, batch)), 9)
    wanted = [
        TopicRequest(name=topic.name, partition_indexes=[0, 9, 0]),
        TopicRequest(name="clause-nowhere", partition_indexes=[0]),
    ]
    found, unknown = client.ask(DescribeProducersRequest(topics=wanted), 0).topics
    assert [(row.partition_index, row.error_code) for row in found.partitions] == [(0, 0), (9, 3)]
    (producer,) = found.partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (77, 3, 11)
    assert (producer.last_timestamp, producer.current_txn_start_offset) == (1001, -1)
    assert unknown.partitions[0].error_code == 3
