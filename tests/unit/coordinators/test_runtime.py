"""The runtime between shards and the log: who is answered when, and what a disk that fails leaves behind."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.unit.coordinators.classic_fixtures import DictTopics
from tests.unit.log.store_fixtures import StoreFixture, spec
from tests.unit.partitions.test_replica_manager import ONLY_REPLICA, ManagerFixture

from ottla.broker.client import Client
from ottla.broker.coordinators.hosted_shard import HostedShard
from ottla.broker.coordinators.outcome import Outcome
from ottla.broker.coordinators.pending_reply import PendingReply, Unstored
from ottla.broker.groups.context import GroupContext
from ottla.broker.groups.records import (
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.broker.groups.replies import commit_reply, join_reply, read_commit, read_join
from ottla.broker.groups.runtime import OFFSETS_TOPIC, GroupRuntime
from ottla.broker.partitions.follower import Follower
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.timers import Expiring
from ottla.model.errors import CorruptMessage, ErrorCode, KafkaError
from ottla.model.hashing import java_hash
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.types import TopicPartition
from ottla.wire import Message
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

CLIENT = Client("test", "/127.0.0.1", 8)
COMPACT = TopicSettings.resolve({"cleanup.policy": "compact"}, BrokerSettings())


class HandDrivenWheel:
    """In place of TimerWheel: remembers who wants to be woken."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Expiring]] = []

    def add(self, timer: Expiring, delay_s: float) -> None:
        timer.timer_bucket = {timer: None}
        self.timers.append((delay_s, timer))


class RuntimeFixture(ManagerFixture):
    """A runtime on one partition of ``__consumer_offsets``, on a disk in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.partition = self.add(name=OFFSETS_TOPIC, settings=COMPACT)
        self.wheel = HandDrivenWheel()
        self.runtime = self.start(self.manager)
        self.runtime.serve({0: self.partition})

    def start(self, manager: ReplicaManager) -> GroupRuntime:
        topics = self.topics = DictTopics()
        topics.create("orders", 4)
        topics.create(OFFSETS_TOPIC, 1)
        ids = count(1)
        context = GroupContext(
            settings=BrokerSettings.parse({"group.initial.rebalance.delay.ms": "0"}), topics=topics,
            new_uuid=lambda: str(next(ids)),
        )  # fmt: skip
        wheel: Any = self.wheel
        return GroupRuntime(
            loop=asyncio.get_running_loop(), clock=self.clock, wheel=wheel, replicas=manager, context=context,
            begin_turn=lambda: None, on_rebalance=lambda _: None,
        )  # fmt: skip

    def restarted(self, *, seed: int = 0) -> tuple[GroupRuntime, ReplicaManager]:
        """Another broker on what a power cut leaves."""
        disk = self.disk.crash(Random(seed), "power")
        self.fixture.abandon()
        fixture = self.fixture = StoreFixture(disk, *self.paths)
        name = TopicPartition(OFFSETS_TOPIC, 0)
        fixture.start(spec(name, settings=COMPACT))
        threads: Any = fixture.threads
        manager = ReplicaManager(
            broker_id=1, clock=self.clock, disk=disk, store=fixture.store, threads=threads, free_bytes_min=0,
            on_all_dirs_failed=self.failures.append,
        )  # fmt: skip
        partition = manager.add(spec(name, settings=COMPACT), replace(ONLY_REPLICA, leader_epoch=1))
        runtime = self.start(manager)
        runtime.serve({0: partition})
        return runtime, manager

    def commit(self, offset: int, *, group: str = "g", metadata: str = "") -> Message | PendingReply:
        row = OffsetCommitRequestPartition(
            partition_index=1, committed_offset=offset, committed_metadata=metadata
        )  # fmt: skip
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name="orders", partitions=[row])]
        )  # fmt: skip
        return self.runtime.run(
            group,
            lambda shard, now: shard.commit_offsets(read_commit(request, CLIENT), now),
            commit_reply,
            refuse,
        )

    def turn(self) -> None:
        self.manager.commits.write_turn()

    @property
    def committed(self) -> int | None:
        return committed(self.runtime)


def committed(runtime: GroupRuntime, group: str = "g") -> int | None:
    value = runtime.shard(group).offsets.by_group.get(group, {}).get(("orders", 1))
    return value.offset if value is not None else None


def as_it_is(message: Message) -> Message:
    return message


def refuse(code: int) -> Message:
    return JoinGroupResponse(error_code=code)


def code_of(answer: Message | PendingReply) -> int:
    message: Any = answer.result() if isinstance(answer, PendingReply) else answer
    if hasattr(message, "topics"):
        return int(message.topics[0].partitions[0].error_code)
    return int(message.error_code)


async def loaded(runtime: GroupRuntime) -> None:
    while runtime.is_loading:
        await asyncio.sleep(0)


def is_waiting(answer: object) -> bool:
    return isinstance(answer, PendingReply) and not answer.done()


def in_loop(test: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Run a test that wants a room, inside an event loop."""

    def run(tmp_path: Path) -> None:
        async def inside() -> None:
            await test(RuntimeFixture(tmp_path))

        asyncio.run(inside())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@in_loop
async def test_commit_is_answered_when_it_is_on_disk(fixture: RuntimeFixture) -> None:
    answer = fixture.commit(7)
    fixture.turn()
    assert is_waiting(answer)
    fixture.threads.run()
    assert code_of(answer) == 0


@in_loop
async def test_committed_offset_survives_a_power_cut_once_it_was_answered(fixture: RuntimeFixture) -> None:
    fixture.commit(7)
    fixture.turn()
    fixture.threads.run()
    for seed in range(5):
        again, _ = fixture.restarted(seed=seed)
        await loaded(again)
        assert committed(again) == 7


@in_loop
async def test_offset_that_was_read_is_told_only_when_it_is_on_disk(fixture: RuntimeFixture) -> None:
    fixture.commit(7)
    wait = fixture.runtime.durable("g")
    fixture.turn()
    assert is_waiting(wait)
    fixture.threads.run()
    assert isinstance(wait, PendingReply) and wait.done()
    assert fixture.runtime.durable("g") is True


@in_loop
async def test_offset_is_not_read_from_a_coordinator_that_may_have_been_replaced(fixture: RuntimeFixture) -> None:
    """Without a lease the in-sync replicas must fetch once more: a new coordinator is one of them, and does not."""
    fixture.commit(7)
    fixture.turn()
    fixture.threads.run()
    partition = fixture.runtime._host_of("g").partition
    follower = partition.followers[2] = Follower(0.0)
    partition.isr = partition.replicas = (partition.broker_id, 2)
    follower.note_fetch(9, 9, 1, 9, fixture.clock.monotonic() - 0.1)
    assert fixture.runtime.durable("g") is True
    partition.set_lease(is_over=True)
    wait = fixture.runtime.durable("g")
    partition.complete_confirmed()
    assert is_waiting(wait)
    follower.note_fetch(9, 9, 1, 9, fixture.clock.monotonic() + 0.1)
    partition.complete_confirmed()
    assert isinstance(wait, PendingReply) and wait.done() and not isinstance(wait.result(), Unstored)

    fixture.clock.now += 1.0
    wait = fixture.runtime.durable("g")
    partition.suspend()
    assert isinstance(wait, PendingReply) and isinstance(wait.result(), Unstored)


@in_loop
async def test_full_disk_takes_the_commit_back_and_says_so(fixture: RuntimeFixture) -> None:
    fixture.commit(7)
    fixture.turn()
    fixture.threads.run()
    answer = fixture.commit(8)
    assert fixture.committed == 8
    fixture.disk.fail("pwrite", errno.ENOSPC)
    fixture.turn()
    assert code_of(answer) == ErrorCode.NOT_COORDINATOR
    assert code_of(fixture.commit(9)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    fixture.disk.heal()
    await loaded(fixture.runtime)
    assert fixture.committed == 7


@in_loop
async def test_directory_without_room_refuses_commits_and_changes_nothing(fixture: RuntimeFixture) -> None:
    fixture.partition.set_room(False)
    assert code_of(fixture.commit(7)) == ErrorCode.NOT_COORDINATOR
    assert fixture.committed is None
    assert fixture.partition.log.log_end_offset == 0


@in_loop
async def test_failed_sync_ends_the_shard(fixture: RuntimeFixture) -> None:
    answer = fixture.commit(7)
    fixture.turn()
    fixture.disk.fail("fdatasync", errno.EIO)
    fixture.threads.run()
    assert code_of(answer) == ErrorCode.NOT_COORDINATOR
    assert code_of(fixture.commit(8)) == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_slow_disk_is_a_timeout_and_the_commit_stays(fixture: RuntimeFixture) -> None:
    answer = fixture.commit(7)
    fixture.turn()
    fixture.clock.now += 6
    fixture.manager.commits.expire_writers()
    assert code_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fixture.committed == 7
    fixture.threads.run()
    assert committed(fixture.runtime) == 7


@in_loop
async def test_record_that_is_too_large_hurts_nobody_else(fixture: RuntimeFixture) -> None:
    fixture.commit(5, group="other")
    request = JoinGroupRequest(
        group_id="g", session_timeout=10_000, rebalance_timeout=10_000, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )  # fmt: skip
    fixture.runtime.run_parkable(
        "g",
        lambda shard, ticket, now: shard.join_group(read_join(request, Client("c", "/h", 3)), ticket, now),
        lambda result: join_reply(result, 3),
        refuse,
    )
    member = MemberMetadata(
        member_id="m", client_id="c", client_host="/h", rebalance_timeout=1, session_timeout=1, assignment=b"",
        subscription=b"m" * 2_000_000,
    )  # fmt: skip
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader="m", members=(member,))
    large = [CoordinatorRecord(GroupMetadataKey("g"), value)]
    answer = fixture.runtime.run(
        "g",
        lambda shard, now: Outcome(records=large, result=JoinGroupResponse()),
        as_it_is,
        refuse,
    )
    assert code_of(answer) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert committed(fixture.runtime, "other") == 5
    assert "g" not in fixture.runtime.shard("g").groups


@in_loop
async def test_groups_are_refused_while_their_log_is_loaded(fixture: RuntimeFixture) -> None:
    fixture.commit(7)
    fixture.turn()
    fixture.threads.run()
    again, _ = fixture.restarted()
    assert again.is_loading
    answer = again.run("g", lambda *_: None, as_it_is, refuse)  # type: ignore[arg-type, return-value]
    assert code_of(answer) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await loaded(again)
    assert committed(again) == 7


@pytest.mark.parametrize("error", [OSError("disk"), ValueError("a bug")])
def test_shard_that_could_not_be_loaded_is_loaded_again(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.broker.coordinators.shard_loader.RESTART_S", 0)

    async def scenario() -> None:
        fixture = RuntimeFixture(tmp_path)
        fixture.commit(7)
        fixture.turn()
        fixture.threads.run()
        again, _ = fixture.restarted()
        replay, errors = HostedShard.replay, [error]
        monkeypatch.setattr(HostedShard, "replay", lambda *args: replay(*args) if not errors else _raise(errors.pop()))
        async with asyncio.timeout(30):
            await loaded(again)
        assert committed(again) == 7

    asyncio.run(scenario())


def _raise(error: Exception) -> Any:
    raise error


@in_loop
async def test_offsets_of_a_topic_that_went_meanwhile_are_removed_after_the_load(fixture: RuntimeFixture) -> None:
    record = CoordinatorRecord(OffsetCommitKey("g", "gone", 0), OffsetCommitValue(offset=1, commit_timestamp=0))
    fixture.runtime.run("g", lambda *_: Outcome(records=[record]), as_it_is, refuse)
    fixture.turn()
    fixture.threads.run()
    again, _ = fixture.restarted()
    await loaded(again)
    assert again.shard("g").offsets.by_group == {}


@in_loop
async def test_state_is_what_a_replay_gives_and_a_difference_is_found(fixture: RuntimeFixture) -> None:
    for offset in range(5):
        fixture.commit(offset)
        fixture.turn()
        fixture.threads.run()
    assert await fixture.runtime.verify() == 0
    fixture.runtime.shard("g").offsets.by_group["g"][("orders", 1)] = OffsetCommitValue(offset=99, commit_timestamp=0)
    assert await fixture.runtime.verify() == 1
    assert fixture.runtime.mismatches == 1


def _commit_durably(fixture: RuntimeFixture, offset: int) -> None:
    fixture.commit(offset)
    fixture.turn()
    fixture.threads.run()


def _add_replica_in_sync(partition: Partition) -> None:
    partition.followers[2] = Follower(0.0)
    partition.isr = partition.replicas = (partition.broker_id, 2)


@in_loop
async def test_comparison_of_the_only_replica_that_cannot_be_read_is_counted_and_groups_go_on(
    fixture: RuntimeFixture,
) -> None:
    _commit_durably(fixture, 7)
    fixture.disk.fail("read", errno.EIO, times=None)
    assert await fixture.runtime.verify() == 0
    assert fixture.manager.storage.read_errors == 1
    assert fixture.committed == 7
    fixture.disk.heal()
    assert await fixture.runtime.verify() == 0


@in_loop
async def test_comparison_that_cannot_read_the_log_makes_another_replica_coordinator(fixture: RuntimeFixture) -> None:
    _commit_durably(fixture, 7)
    _add_replica_in_sync(fixture.partition)
    fixture.disk.fail("read", errno.EIO, times=None)
    assert await fixture.runtime.verify() == 0
    assert fixture.partition.offline and list(fixture.manager.storage.offline) == [fixture.partition]
    assert code_of(fixture.commit(8)) == ErrorCode.NOT_COORDINATOR
    assert not fixture.runtime.is_loading


@in_loop
async def test_comparison_of_a_damaged_log_goes_on_with_the_next_one(fixture: RuntimeFixture) -> None:
    _commit_durably(fixture, 7)
    fixture.runtime._read = lambda *_: _raise(CorruptMessage("damaged"))  # type: ignore[method-assign]
    assert await fixture.runtime.verify() == 0
    assert fixture.committed == 7


@in_loop
async def test_comparison_ends_when_the_partition_goes_offline_before_its_records_are_written(
    fixture: RuntimeFixture,
) -> None:
    fixture.commit(7)
    comparison = asyncio.ensure_future(fixture.runtime.verify())
    await asyncio.sleep(0)
    fixture.partition.role = Role.OFFLINE
    async with asyncio.timeout(60):
        assert await comparison == 0


@in_loop
async def test_load_that_cannot_read_the_log_makes_another_replica_coordinator(fixture: RuntimeFixture) -> None:
    _commit_durably(fixture, 7)
    again, manager = fixture.restarted()
    partition = manager.topics[OFFSETS_TOPIC.encode()][0]
    _add_replica_in_sync(partition)
    fixture.fixture.disk.fail("read", errno.EIO, times=None)
    async with asyncio.timeout(60):
        await loaded(again)
    assert partition.offline and list(manager.storage.offline) == [partition]
    answer = again.run("g", lambda *_: None, as_it_is, refuse)  # type: ignore[arg-type, return-value]
    assert code_of(answer) == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_member_that_falls_silent_is_removed_by_one_alarm(fixture: RuntimeFixture) -> None:
    request = JoinGroupRequest(
        group_id="g", session_timeout=10_000, rebalance_timeout=10_000, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    answer = fixture.runtime.run_parkable(
        "g",
        lambda shard, ticket, now: shard.join_group(read_join(request, Client("c", "/h", 3)), ticket, now),
        lambda result: join_reply(result, 3),
        refuse,
    )
    fixture.turn()
    fixture.threads.run()
    for _ in range(10):
        if not fixture.runtime.shard("g").groups.get("g") or fixture.runtime.shard("g").groups["g"].is_empty:
            break
        _, timer = fixture.wheel.timers.pop()
        timer.timer_bucket = None
        fixture.clock.now += 400
        timer.expire()
        fixture.turn()
        fixture.threads.run()
    assert not is_waiting(answer)
    group = fixture.runtime.shard("g").groups.get("g")
    assert group is None or group.is_empty


@in_loop
async def test_partition_that_goes_away_answers_who_waits(fixture: RuntimeFixture) -> None:
    fixture.runtime.serve({})
    assert code_of(fixture.commit(7)) == ErrorCode.NOT_COORDINATOR
    fixture.topics.delete(OFFSETS_TOPIC)
    assert code_of(fixture.commit(7)) == ErrorCode.COORDINATOR_NOT_AVAILABLE


# -- leadership -------------------------------------------------------------------------------------------------------


def lead(fixture: RuntimeFixture, *, leader: int, epoch: int) -> None:
    """The store names a leader, and the broker follows."""
    fixture.manager.apply_state(
        fixture.partition, replace(ONLY_REPLICA, leader=leader, leader_epoch=epoch, replicas=(1, 2))
    )
    fixture.runtime.serve({0: fixture.partition})


@in_loop
async def test_name_is_mapped_by_the_partitions_of_the_topic_not_by_those_of_this_broker(
    fixture: RuntimeFixture,
) -> None:
    fixture.topics.grow(OFFSETS_TOPIC, 50)
    assert fixture.runtime.partition_for("hello") == 99162322 % 50
    assert code_of(fixture.commit(7, group="hello")) == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_coordinator_checks_its_lease_before_it_reads_an_offset(fixture: RuntimeFixture) -> None:
    """The request waited in the socket while the process was paused and another broker coordinated the group."""
    fixture.commit(7)
    fixture.turn()
    assert fixture.committed == 7
    fixture.runtime.context.check_lease = lambda: lead(fixture, leader=2, epoch=1)
    with pytest.raises(KafkaError) as refused:
        committed(fixture.runtime)
    assert refused.value.code == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_coordinator_unloads_when_leadership_ends_and_answers_who_waits(fixture: RuntimeFixture) -> None:
    waiting = fixture.commit(7)
    lead(fixture, leader=2, epoch=1)
    assert code_of(waiting) == ErrorCode.NOT_COORDINATOR
    assert code_of(fixture.commit(8)) == ErrorCode.NOT_COORDINATOR
    assert list(fixture.runtime.shards()) == []


@in_loop
async def test_coordinator_answers_only_after_it_has_loaded_in_the_new_epoch(fixture: RuntimeFixture) -> None:
    waiting = fixture.commit(7)
    fixture.turn()
    fixture.threads.run()
    assert code_of(waiting) == 0
    lead(fixture, leader=2, epoch=1)
    lead(fixture, leader=1, epoch=2)
    assert code_of(fixture.commit(8)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    for _ in range(10):
        await asyncio.sleep(0)
    assert fixture.committed == 7
    assert is_waiting(fixture.commit(8))


@in_loop
async def test_coordinator_is_not_loaded_again_if_the_same_leader_goes_on_in_the_next_epoch(
    fixture: RuntimeFixture,
) -> None:
    """The epoch rises when another replica fails. Clients of the coordinator do not notice."""
    lead(fixture, leader=1, epoch=4)
    waiting = fixture.commit(7)
    before = fixture.runtime.shard("g")
    lead(fixture, leader=1, epoch=5)
    assert fixture.runtime.shard("g") is before
    assert is_waiting(waiting)
    assert is_waiting(fixture.commit(8))
    lead(fixture, leader=1, epoch=7)
    assert code_of(fixture.commit(9)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, (
        "another broker may have led in epoch 6"
    )


@in_loop
async def test_coordinator_is_loaded_again_after_its_partition_was_suspended(fixture: RuntimeFixture) -> None:
    """Without the store a leader stops in the same epoch, and its coordinator gives up what waits."""
    waiting = fixture.commit(7)
    fixture.manager.suspend(fixture.partition)
    fixture.runtime.refresh()
    assert code_of(waiting) == ErrorCode.NOT_COORDINATOR
    assert code_of(fixture.commit(8)) == ErrorCode.NOT_COORDINATOR
    lead(fixture, leader=1, epoch=0)
    fixture.turn()
    for _ in range(10):
        await asyncio.sleep(0)
    assert fixture.committed == 7
    assert is_waiting(fixture.commit(9))


@in_loop
async def test_shard_keeps_its_state_if_replicas_left_after_the_append(fixture: RuntimeFixture) -> None:
    """The log has the records, so there is nothing to load again."""
    waiting = fixture.commit(7)
    before = fixture.runtime.shard("g")
    fixture.partition.writers.fail(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    assert code_of(waiting) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert fixture.runtime.shard("g") is before
    assert fixture.committed == 7


@in_loop
async def test_coordinator_of_an_older_epoch_appends_nothing(fixture: RuntimeFixture) -> None:
    """The partition has a new leadership, and the runtime has not served it yet."""
    end = fixture.partition.log.log_end_offset
    fixture.manager.apply_state(fixture.partition, replace(ONLY_REPLICA, leader_epoch=5))
    assert code_of(fixture.commit(7)) == ErrorCode.NOT_COORDINATOR
    assert fixture.partition.log.log_end_offset == end


def test_partition_is_found_with_javas_hash() -> None:
    assert java_hash("hello") == 99162322
    assert java_hash("") == 0
    assert java_hash("🜁") == (31 * 0xD83D + 0xDF01) & 0xFFFFFFFF


def test_shard_is_loaded_again_when_its_log_lost_a_marker(tmp_path: Path) -> None:
    async def run() -> None:
        fixture = RuntimeFixture(tmp_path)
        fixture.commit(5)
        fixture.turn()
        before = fixture.runtime.shard("g")
        # The marker is applied when it is appended; its write fails because the disk is full.
        _, end = fixture.manager.append_marker(fixture.partition, 1, 0, commit=True, coordinator_epoch=0, now_ms=1)
        fixture.runtime.marker_written(fixture.partition, 1, commit=True, end_offset=end)
        fixture.disk.fail("write", errno.ENOSPC)
        fixture.turn()
        fixture.runtime.marker_lost(fixture.partition)
        await loaded(fixture.runtime)
        assert fixture.runtime.shard("g") is not before
        assert fixture.committed == 5
        assert await fixture.runtime.verify() == 0

    asyncio.run(run())
