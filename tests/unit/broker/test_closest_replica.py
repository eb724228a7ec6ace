"""Fetch from the closest replica (KIP-392): the leader names a follower, and a follower serves consumers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.cluster_fixtures import broker_changes
from tests.unit.broker.test_fetch_transactions import READ_COMMITTED, READ_UNCOMMITTED, Answer
from tests.unit.broker.test_leader_fetch import EPOCH, LeaderFixture, row
from tests.unit.log.log_fixtures import NOW, batch, stored
from tests.unit.log.txn_fixtures import txn_batch

from ottla.broker.metadata.view import PartitionView
from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.log.transactions import marker_batch
from ottla.model.errors import ErrorCode
from ottla.model.settings import BrokerSettings, InvalidSettings
from ottla.wire.messages.fetch import ReplicaState

RACKS = {1: "a", 2: "b", 3: "c", 4: "b"}
JAVA_CLASS = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class RackFixture(LeaderFixture):
    """Broker 1 in rack a leads; broker 2 in rack b is in sync, broker 3 in rack c is not."""

    def __init__(self, path: Path, selector: str | None = "rack-aware") -> None:
        super().__init__(path)
        for number, rack in RACKS.items():
            self.metadata.view.apply(broker_changes(number, rack=rack, listeners=["PLAINTEXT"]))
        settings = {} if selector is None else {"replica.selector.class": selector}
        self.metadata.settings = BrokerSettings.parse(settings)
        self.api = self.new_api()

    def commit(self, count: int = 3) -> None:
        """Append a batch, and let broker 2 fetch it."""
        self.write(self.partition, count)
        self.fetch({self.partition: row(0)}, full=True)
        end = self.partition.log.log_end_offset
        self.fetch({self.partition: row(end, last_epoch=EPOCH)})

    def read(self, rack: str, offset: int = 0, **fields: Any) -> Answer:
        return self.ask(offset, rack_id=rack, isolation=READ_UNCOMMITTED, **fields)

    def follow(self, isr: tuple[int, ...] = (1, 2), leader: int = 2, epoch: int = EPOCH + 1) -> None:
        state = PartitionView(
            leader=leader, leader_epoch=epoch, replicas=(1, 2, 3), isr=isr, partition_epoch=epoch
        )  # fmt: skip
        self.manager.apply_state(self.partition, state)

    def copy(self, *batches: bytes, high_watermark: int) -> None:
        """Append batches of the leader, as the fetcher of this broker does."""
        for each in batches:
            data = stored(each, self.partition.log.log_end_offset, self.partition.leader_epoch)
            self.manager.followers.append(self.partition, memoryview(data), NOW)
        self.manager.followers.write(self.partition)
        self.partition.follow_high_watermark(high_watermark)


@pytest.fixture
def fixture(tmp_path: Path) -> RackFixture:
    return RackFixture(tmp_path)


# -- the leader -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(11, 19))
def test_leader_names_the_in_sync_follower_in_the_rack_of_the_consumer(fixture: RackFixture, version: int) -> None:
    fixture.commit()
    answer = fixture.read("b", version=version, max_wait=500)
    assert (answer.row.error_code, answer.row.preferred_read_replica, answer.row.records) == (0, 2, b"")
    assert (answer.row.high_watermark, answer.row.last_stable_offset, answer.row.log_start_offset) == (3, 3, 0)


@pytest.mark.parametrize("rack", ["", "a", "c", "other"])
def test_leader_serves_consumers_of_other_racks(fixture: RackFixture, rack: str) -> None:
    """It is in rack a itself, the replica in rack c is not in sync, and the other rack has no broker."""
    fixture.commit()
    answer = fixture.read(rack)
    assert (answer.offsets, answer.row.preferred_read_replica) == ([0], -1)


@pytest.mark.parametrize("selector", [None, "org.apache.kafka.common.replica.LeaderSelector"])
def test_leader_serves_all_consumers_without_a_selector(tmp_path: Path, selector: str | None) -> None:
    fixture = RackFixture(tmp_path, selector)
    fixture.commit()
    assert fixture.read("b").offsets == [0]


def test_class_name_of_kafka_means_the_same_and_others_are_rejected(tmp_path: Path) -> None:
    fixture = RackFixture(tmp_path, JAVA_CLASS)
    fixture.commit()
    assert fixture.read("b").row.preferred_read_replica == 2
    with pytest.raises(InvalidSettings, match=r"replica\.selector\.class"):
        BrokerSettings.parse({"replica.selector.class": "com.example.Selector"})


def test_follower_without_the_offset_or_the_listener_is_not_named(fixture: RackFixture) -> None:
    fixture.commit()
    partition = fixture.partition
    assert fixture.read("b", offset=3).row.preferred_read_replica == 2
    partition.followers[2].log_start_offset = 1
    assert fixture.read("b", offset=0).offsets == [0]
    partition.followers[2].end_offset = 2
    assert fixture.read("b", offset=3, max_wait=0).row.preferred_read_replica == -1
    partition.followers[2].end_offset = 3
    fixture.metadata.view.apply(broker_changes(2, rack="b", listeners=["EXTERNAL"], version=1))
    assert fixture.read("b", offset=1).offsets == [0]


def test_offset_outside_of_the_leaders_log_is_an_error_of_the_leader(fixture: RackFixture) -> None:
    """A follower would send the consumer back, and the leader would name it again, without end."""
    fixture.commit()
    assert fixture.read("b", offset=4).row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_furthest_of_several_followers_is_named(fixture: RackFixture) -> None:
    state = PartitionView(leader=1, leader_epoch=EPOCH, replicas=(1, 2, 4), isr=(1, 2, 4), partition_epoch=1)
    fixture.manager.apply_state(fixture.partition, state)
    fixture.write(fixture.partition, 2)
    for replica_id, end in ((2, 2), (4, 1)):
        fixture.partition.note_follower(replica_id, end, end)
    fixture.partition.high_watermark = 1
    assert fixture.read("b").row.preferred_read_replica == 2
    fixture.partition.note_follower(4, 2, 2, now=1.0)
    assert fixture.read("b").row.preferred_read_replica == 4


def test_session_names_the_replica_in_each_answer(fixture: RackFixture) -> None:
    fixture.commit()
    first = fixture.read("b", session=(0, 0))
    assert first.row.preferred_read_replica == 2
    session_id = first.whole.session_id
    assert session_id
    assert fixture.read("b", session=(session_id, 1), max_wait=500).row.preferred_read_replica == 2


# -- the follower -----------------------------------------------------------------------------------------------------


def test_follower_serves_consumers_with_a_rack_up_to_its_own_high_watermark(fixture: RackFixture) -> None:
    fixture.follow()
    fixture.copy(batch(2), batch(2), high_watermark=2)
    answer = fixture.read("a")
    assert (answer.offsets, answer.row.high_watermark) == ([0], 2)
    assert fixture.read("a", offset=3).row.error_code == 0
    assert fixture.read("a", offset=5).row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("rack", "version"), [("", 12), ("a", 10)])
def test_follower_sends_consumers_without_a_rack_to_the_leader(fixture: RackFixture, rack: str, version: int) -> None:
    fixture.follow()
    assert fixture.read(rack, version=version).row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_follower_that_is_not_in_sync_sends_consumers_back(fixture: RackFixture) -> None:
    fixture.follow(isr=(2, 3))
    assert fixture.read("a").row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fixture.follow(isr=(1, 2), epoch=EPOCH + 2)
    assert fixture.read("a").row.error_code == 0
    fixture.partition.set_lease(is_over=True)
    assert fixture.read("a").row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    fixture.partition.set_lease(is_over=False)
    fixture.follow(leader=-1, epoch=EPOCH + 3)
    assert fixture.read("a").row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_parked_fetch_wakes_when_the_high_watermark_of_the_follower_moves(fixture: RackFixture) -> None:
    fixture.follow()
    fixture.copy(batch(2), high_watermark=0)
    waiting = [fixture.read("a", max_wait=500), fixture.read("a", max_wait=500, session=(0, 0))]
    assert not any(each.is_there for each in waiting)
    fixture.partition.follow_high_watermark(2)
    assert [each.offsets for each in waiting] == [[0], [0]]


def test_parked_fetch_is_answered_when_the_follower_changes_its_role(fixture: RackFixture) -> None:
    fixture.follow()
    waiting = fixture.read("a", max_wait=500)
    fixture.lead(fixture.partition, EPOCH + 2)
    assert waiting.row.error_code == 0
    fixture.follow(epoch=EPOCH + 3)
    waiting = fixture.read("a", max_wait=500)
    fixture.follow(isr=(2,), epoch=EPOCH + 4)
    assert waiting.row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_read_committed_consumer_reads_to_the_last_stable_offset_of_the_follower(fixture: RackFixture) -> None:
    fixture.follow()
    fixture.copy(txn_batch(pid=7, sequence=0), high_watermark=1)
    waiting = fixture.ask(0, rack_id="a", isolation=READ_COMMITTED, max_wait=500)
    assert not waiting.is_there
    fixture.copy(marker_batch(7, 0, commit=False, coordinator_epoch=0, timestamp=NOW), high_watermark=1)
    assert not waiting.is_there
    fixture.partition.follow_high_watermark(2)
    assert (waiting.offsets, waiting.aborted) == ([0, 1], [(7, 0)])


def test_read_committed_consumer_waits_for_markers_that_a_restarted_follower_has_forgotten(
    fixture: RackFixture,
) -> None:
    """After a restart the log takes a transaction for ended whose marker is above the high watermark."""
    fixture.follow()
    fixture.copy(txn_batch(pid=7, sequence=0), high_watermark=1)
    fixture.copy(marker_batch(7, 0, commit=True, coordinator_epoch=0, timestamp=NOW), high_watermark=1)
    fixture.partition.log.ended.clear()
    fixture.follow(epoch=EPOCH + 2)
    waiting = fixture.ask(0, rack_id="a", isolation=READ_COMMITTED, max_wait=500)
    assert not waiting.is_there
    assert fixture.read("a").offsets == [0]
    fixture.partition.follow_high_watermark(2)
    assert waiting.offsets == [0, 1]


def test_start_of_an_earlier_leadership_does_not_matter_to_a_follower(fixture: RackFixture) -> None:
    """The offset at which an earlier leadership began says nothing about a follower."""
    fixture.commit()
    fixture.lead(fixture.partition, EPOCH + 1)
    fixture.follow(epoch=EPOCH + 2)
    fixture.manager.followers.begin_truncations([TruncationRequest(fixture.partition, 1)])
    assert fixture.read("a", offset=0).row.error_code == 0


# -- the high watermark of followers ----------------------------------------------------------------------------------


def test_parked_fetch_of_a_follower_is_answered_when_the_high_watermark_moves(fixture: RackFixture) -> None:
    partition = fixture.partition
    state = PartitionView(leader=1, leader_epoch=EPOCH, replicas=(1, 2, 3), isr=(1, 2, 3), partition_epoch=1)
    fixture.manager.apply_state(partition, state)
    fixture.write(partition, 2)
    fixture.fetch({partition: row(0)}, full=True)
    parked = fixture.send({partition: row(2, last_epoch=EPOCH)})
    assert parked.slot.reply is None
    partition.note_follower(3, 2, 2)
    (read,) = fixture.reply(parked).rows
    assert (read.high_watermark, bytes(read.records)) == (2, b"")
    assert fixture.send().slot.reply is None, "the follower has been told"


def test_fetch_that_moves_the_high_watermark_is_answered_with_it(fixture: RackFixture) -> None:
    fixture.write(fixture.partition, 2)
    fixture.fetch({fixture.partition: row(0)}, full=True)
    (read,) = fixture.reply(fixture.send({fixture.partition: row(2, last_epoch=EPOCH)})).rows
    assert read.high_watermark == 2


def test_follower_reports_that_its_log_starts_later(fixture: RackFixture) -> None:
    reported: list[object] = []
    fixture.follow()
    fixture.copy(batch(2), batch(2), high_watermark=4)
    fixture.manager.commits.on_follower_changed = reported.append
    fixture.manager.followers.follow_log_start(fixture.partition, 2)
    assert reported == [], "only a synced log start counts"
    fixture.threads.run()
    assert reported == [fixture.partition]


# -- other readers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "field"), [(12, "replica_id"), (17, "replica_state")])
def test_follower_serves_the_tool_that_compares_replicas(fixture: RackFixture, version: int, field: str) -> None:
    """kafka-replica-verification has the replica id -2 and no rack."""
    fixture.follow()
    fixture.copy(batch(3), high_watermark=3)
    asked = {field: -2 if field == "replica_id" else ReplicaState(replica_id=-2)}
    assert fixture.ask(0, version=version, isolation=READ_UNCOMMITTED, max_wait=0, **asked).offsets == [0]
    refused = fixture.ask(0, version=version, isolation=READ_UNCOMMITTED, max_wait=0)
    assert refused.row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_new_leader_names_no_replica_before_it_has_committed(fixture: RackFixture) -> None:
    """The answer would contain a high watermark, which may be lower than that of the leader before it."""
    fixture.commit()
    fixture.write(fixture.partition, 2)
    fixture.lead(fixture.partition, EPOCH + 1)
    answer = fixture.read("b", max_wait=0)
    assert (answer.offsets, answer.row.preferred_read_replica, answer.row.high_watermark) == ([0], -1, -1)
