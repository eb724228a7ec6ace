"""Leader hints (KIP-951) in the replies to requests that wait when the leader changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import make_view
from tests.unit.broker.test_fetch_transactions import Answer
from tests.unit.broker.test_leader_fetch import LeaderFixture
from tests.unit.broker.test_produce_opening import SMALL, ProduceFixture
from tests.unit.log.store_fixtures import TOPIC_ID

from ottla.broker.metadata.view import PartitionView
from ottla.model.errors import ErrorCode
from ottla.testing.raw import fetch_from, fetch_request, produce_request, read_answer, request_bytes
from ottla.wire.messages.fetch import ReplicaState

VERSION = 12


def state(leader: int, epoch: int) -> PartitionView:
    return PartitionView(leader=leader, leader_epoch=epoch, replicas=(1, 2), isr=(1, 2), partition_epoch=epoch)


@pytest.mark.parametrize("leader", [2, -1, 7])
@pytest.mark.parametrize("partitions", [1, 2])
def test_produce_that_waits_when_the_leader_changes_gets_the_new_one(
    tmp_path: Path, leader: int, partitions: int
) -> None:
    """Without a leader, or with one that is not alive, the reply has no address."""
    fixture = ProduceFixture(tmp_path)
    fixture.metadata.view = make_view((1, 2))
    api, connection = fixture.api, fixture.connection
    led = [fixture.add(number) for number in range(partitions)]
    for each in led:
        fixture.manager.apply_state(each, state(1, 5))
    request = produce_request(*(("orders", number, SMALL) for number in range(partitions)), acks=-1)
    frame = bytearray(request_bytes(request, VERSION, 7, "test"))
    api.handle(connection, frame, memoryview(frame), 0, len(frame), VERSION, 7)
    fixture.manager.commits.write_turn()
    (slot,) = connection.slots
    assert slot.data is None
    for each in led:
        fixture.manager.apply_state(each, state(leader, 6))
    answer = read_answer(slot.data[4:], 0, VERSION, 7)
    rows = [row for each in answer.responses for row in each.partition_responses]
    assert [row.error_code for row in rows] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * partitions
    assert [(row.current_leader.leader_id, row.current_leader.leader_epoch) for row in rows] == [
        (leader, 6)
    ] * partitions
    assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == (
        [(2, "host-2", 9094)] if leader == 2 else []
    )


def test_fetch_that_waits_when_the_leader_changes_gets_the_new_one(tmp_path: Path) -> None:
    fixture = LeaderFixture(tmp_path)
    fixture.metadata.view = make_view((1, 2))
    fixture.write(fixture.partition)
    parked: Answer = fixture.ask(0, version=16, max_wait=500)
    assert not parked.is_there
    fixture.manager.apply_state(fixture.partition, state(2, 6))
    assert parked.row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (parked.row.current_leader.leader_id, parked.row.current_leader.leader_epoch) == (2, 6)
    assert [(node.node_id, node.host, node.port, node.rack) for node in parked.whole.node_endpoints] == [
        (2, "host-2", 9094, "rack-2")
    ]


def test_follower_gets_no_hints(tmp_path: Path) -> None:
    """Brokers learn leaders from the metadata store."""
    fixture = LeaderFixture(tmp_path)
    fixture.manager.apply_state(fixture.partition, state(2, 6))
    request = fetch_request({TOPIC_ID: [fetch_from(0, 0)]})
    request.replica_state = ReplicaState(replica_id=2, replica_epoch=100)
    frame = bytearray(request_bytes(request, 17, 77, "test"))
    connection: Any = fixture.ask(0, version=4).slot.connection
    connection.slot.reply = None
    fixture.api.handle(connection, frame, memoryview(frame), 0, len(frame), 17, 77)
    answer = Answer(connection.slot, 17)
    assert (answer.row.error_code, answer.row.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, None)
