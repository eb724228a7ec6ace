"""Requests with two faults get the error that Kafka finds first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import uvloop
from tests.unit.broker.memory_broker import MemoryBroker

from ottla.wire import Message
from ottla.wire.messages import find_coordinator, sync_group, txn_offset_commit, write_txn_markers
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC, INCONSISTENT_PROTOCOL, GROUP_REFUSED, UNKNOWN_PRODUCER = -1, 3, 23, 30, 49


async def _ask(data: Path, principal: str, request: Message, version: int) -> Any:
    async with MemoryBroker(data) as broker:
        topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=1)
        await broker.root.decoded(CreateTopicsRequest(topics=[topic], timeout=60_000), 7)
        for key_type in (0, 1):
            wanted = find_coordinator.FindCoordinatorRequest(key="any", key_type=key_type)
            while (await broker.root.decoded(wanted, 3)).error_code:
                pass  # the internal topic is being created
        return await broker.connect(principal).decoded(request, version)


def _sync_code(data: Path, **fields: Any) -> int:
    request = sync_group.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", **fields)
    return int(uvloop.run(_ask(data, "User:mallory", request, 5)).error_code)


def test_sync_without_a_protocol_is_inconsistent_also_for_a_client_without_rights(tmp_path: Path) -> None:
    assert _sync_code(tmp_path) == INCONSISTENT_PROTOCOL


def test_sync_with_a_protocol_is_refused_to_a_client_without_rights(tmp_path: Path) -> None:
    assert _sync_code(tmp_path, protocol_type="consumer", protocol_name="range") == GROUP_REFUSED


def test_offsets_of_unknown_partitions_are_unknown_whatever_the_producer_is(tmp_path: Path) -> None:
    rows = [
        txn_offset_commit.TxnOffsetCommitRequestPartition(
            partition_index=number, committed_offset=0, committed_metadata=None
        )
        for number in (0, 7)
    ]
    topics = [
        txn_offset_commit.TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name in ("orders", "absent")
    ]
    request = txn_offset_commit.TxnOffsetCommitRequest(
        transactional_id="x", group_id="g", producer_id=99, producer_epoch=0, topics=topics
    )
    reply = uvloop.run(_ask(tmp_path, "User:root", request, 3))
    codes = {(topic.name, row.partition_index): row.error_code for topic in reply.topics for row in topic.partitions}
    assert codes == {
        ("orders", 0): UNKNOWN_PRODUCER, ("orders", 7): UNKNOWN_TOPIC,
        ("absent", 0): UNKNOWN_TOPIC, ("absent", 7): UNKNOWN_TOPIC,
    }  # fmt: skip
    assert len(reply.topics) == 2


def test_marker_without_a_producer_for_an_unknown_topic_is_refused_because_of_the_topic(tmp_path: Path) -> None:
    topics = [
        write_txn_markers.WritableTxnMarkerTopic(name=name, partition_indexes=[0]) for name in ("orders", "absent")
    ]
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=-1, producer_epoch=0, transaction_result=False, topics=topics
    )
    request = write_txn_markers.WriteTxnMarkersRequest(markers=[marker])
    reply = uvloop.run(_ask(tmp_path, "User:root", request, 1))
    codes = [row.error_code for topic in reply.markers[0].topics for row in topic.partitions]
    assert codes == [UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC]
