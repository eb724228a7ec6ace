"""The runtime between shards and the log: who is answered when, and what a disk that fails leaves behind."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from tests.unit.coordinator.classic_room import DictTopics
from tests.unit.log.store_room import StoreRoom, spec
from tests.unit.replica.test_replica_manager import ManagerRoom

from ottla.coordinator.group_runtime import OFFSETS_TOPIC, GroupRuntime
from ottla.coordinator.outcome import Client, Outcome, World
from ottla.coordinator.records import (
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from ottla.coordinator.runtime import PendingReply, java_hash
from ottla.env.timers import Expiring
from ottla.model.errors import ErrorCode
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.types import TopicPartition
from ottla.replica.manager import ReplicaManager
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


class RuntimeRoom(ManagerRoom):
    """A runtime on one partition of ``__consumer_offsets``, on a disk in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.partition = self.add(name=OFFSETS_TOPIC, settings=COMPACT)
        self.wheel = HandDrivenWheel()
        self.runtime = self.start(self.manager)
        self.runtime.serve({0: self.partition})

    def start(self, manager: ReplicaManager) -> GroupRuntime:
        topics = DictTopics()
        topics.create("orders", 4)
        ids = count(1)
        world = World(
            settings=BrokerSettings.parse({"group.initial.rebalance.delay.ms": "0"}), topics=topics,
            new_uuid=lambda: str(next(ids)),
        )  # fmt: skip
        wheel: Any = self.wheel
        return GroupRuntime(
            loop=asyncio.get_running_loop(), clock=self.clock, wheel=wheel, replicas=manager, world=world,
            begin_turn=lambda: None, on_rebalance=lambda _: None,
        )  # fmt: skip

    def restarted(self, *, seed: int = 0) -> tuple[GroupRuntime, ReplicaManager]:
        """Another broker on what a power cut leaves."""
        disk = self.disk.crash(Random(seed), "power")
        self.room.abandon()
        room = self.room = StoreRoom(disk, *self.paths)
        name = TopicPartition(OFFSETS_TOPIC, 0)
        room.start(spec(name, settings=COMPACT))
        threads: Any = room.threads
        manager = ReplicaManager(
            clock=self.clock, disk=disk, store=room.store, threads=threads, free_bytes_min=0,
            on_all_dirs_failed=self.failures.append,
        )  # fmt: skip
        partition = manager.add(
            spec(name, settings=COMPACT), leader_id=1, leader_epoch=1, replicas=(1,), isr=(1,)
        )  # fmt: skip
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
            lambda shard, ticket, now: shard.commit_offsets(request, CLIENT, ticket, now),
            lambda code: JoinGroupResponse(error_code=code),
        )

    def turn(self) -> None:
        self.manager.write_turn()

    @property
    def committed(self) -> int | None:
        return committed(self.runtime)


def committed(runtime: GroupRuntime, group: str = "g") -> int | None:
    value = runtime.shard(group).offsets.by_group.get(group, {}).get(("orders", 1))
    return value.offset if value is not None else None


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
            await test(RuntimeRoom(tmp_path))

        asyncio.run(inside())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@in_loop
async def test_commit_is_answered_when_it_is_on_disk(room: RuntimeRoom) -> None:
    answer = room.commit(7)
    room.turn()
    assert is_waiting(answer)
    room.threads.run()
    assert code_of(answer) == 0


@in_loop
async def test_committed_offset_survives_a_power_cut_once_it_was_answered(room: RuntimeRoom) -> None:
    room.commit(7)
    room.turn()
    room.threads.run()
    for seed in range(5):
        again, _ = room.restarted(seed=seed)
        await loaded(again)
        assert committed(again) == 7


@in_loop
async def test_offset_that_was_read_is_told_only_when_it_is_on_disk(room: RuntimeRoom) -> None:
    room.commit(7)
    wait = room.runtime.durable("g")
    room.turn()
    assert is_waiting(wait)
    room.threads.run()
    assert isinstance(wait, PendingReply) and wait.done()
    assert room.runtime.durable("g") is True


@in_loop
async def test_full_disk_takes_the_commit_back_and_says_so(room: RuntimeRoom) -> None:
    room.commit(7)
    room.turn()
    room.threads.run()
    answer = room.commit(8)
    assert room.committed == 8
    room.disk.fail("pwrite", errno.ENOSPC)
    room.turn()
    assert code_of(answer) == ErrorCode.NOT_COORDINATOR
    assert code_of(room.commit(9)) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    room.disk.heal()
    await loaded(room.runtime)
    assert room.committed == 7


@in_loop
async def test_directory_without_room_refuses_commits_and_changes_nothing(room: RuntimeRoom) -> None:
    room.partition.has_room = False
    assert code_of(room.commit(7)) == ErrorCode.NOT_COORDINATOR
    assert room.committed is None
    assert room.partition.log.log_end_offset == 0


@in_loop
async def test_failed_sync_ends_the_shard(room: RuntimeRoom) -> None:
    answer = room.commit(7)
    room.turn()
    room.disk.fail("fdatasync", errno.EIO)
    room.threads.run()
    assert code_of(answer) == ErrorCode.NOT_COORDINATOR
    assert code_of(room.commit(8)) == ErrorCode.NOT_COORDINATOR


@in_loop
async def test_slow_disk_is_a_timeout_and_the_commit_stays(room: RuntimeRoom) -> None:
    answer = room.commit(7)
    room.turn()
    room.clock.now += 6
    room.manager.expire_writers()
    assert code_of(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert room.committed == 7
    room.threads.run()
    assert committed(room.runtime) == 7


@in_loop
async def test_record_that_is_too_large_hurts_nobody_else(room: RuntimeRoom) -> None:
    room.commit(5, group="other")
    request = JoinGroupRequest(
        group_id="g", session_timeout=10_000, rebalance_timeout=10_000, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"x")],
    )  # fmt: skip
    room.runtime.run(
        "g",
        lambda shard, ticket, now: shard.join_group(request, Client("c", "/h", 3), ticket, now),
        lambda code: JoinGroupResponse(error_code=code),
    )
    member = MemberMetadata(
        member_id="m", client_id="c", client_host="/h", rebalance_timeout=1, session_timeout=1, assignment=b"",
        subscription=b"m" * 2_000_000,
    )  # fmt: skip
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", leader="m", members=(member,))
    large = [CoordinatorRecord(GroupMetadataKey("g"), value)]
    answer = room.runtime.run(
        "g",
        lambda shard, ticket, now: Outcome(records=large, replies=[(ticket, JoinGroupResponse())]),
        lambda code: JoinGroupResponse(error_code=code),
    )
    assert code_of(answer) == ErrorCode.UNKNOWN_SERVER_ERROR
    assert committed(room.runtime, "other") == 5
    assert "g" not in room.runtime.shard("g").groups


@in_loop
async def test_groups_are_refused_while_their_log_is_loaded(room: RuntimeRoom) -> None:
    room.commit(7)
    room.turn()
    room.threads.run()
    again, _ = room.restarted()
    assert again.is_loading
    answer = again.run("g", lambda *_: None, lambda code: JoinGroupResponse(error_code=code))  # type: ignore[arg-type, return-value]
    assert code_of(answer) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await loaded(again)
    assert committed(again) == 7


@in_loop
async def test_offsets_of_a_topic_that_went_meanwhile_are_removed_after_the_load(room: RuntimeRoom) -> None:
    record = CoordinatorRecord(OffsetCommitKey("g", "gone", 0), OffsetCommitValue(offset=1, commit_timestamp=0))
    room.runtime.run("g", lambda *_: Outcome(records=[record]), lambda code: JoinGroupResponse(error_code=code))
    room.turn()
    room.threads.run()
    again, _ = room.restarted()
    await loaded(again)
    assert again.shard("g").offsets.by_group == {}


@in_loop
async def test_state_is_what_a_replay_gives_and_a_difference_is_found(room: RuntimeRoom) -> None:
    for offset in range(5):
        room.commit(offset)
        room.turn()
        room.threads.run()
    assert await room.runtime.verify() == 0
    room.runtime.shard("g").offsets.by_group["g"][("orders", 1)] = OffsetCommitValue(offset=99, commit_timestamp=0)
    assert await room.runtime.verify() == 1
    assert room.runtime.mismatches == 1


@in_loop
async def test_member_that_falls_silent_is_removed_by_one_alarm(room: RuntimeRoom) -> None:
    request = JoinGroupRequest(
        group_id="g", session_timeout=10_000, rebalance_timeout=10_000, protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip
    answer = room.runtime.run(
        "g",
        lambda shard, ticket, now: shard.join_group(request, Client("c", "/h", 3), ticket, now),
        lambda code: JoinGroupResponse(error_code=code),
    )
    room.turn()
    room.threads.run()
    for _ in range(10):
        if not room.runtime.shard("g").groups.get("g") or room.runtime.shard("g").groups["g"].is_empty:
            break
        _, timer = room.wheel.timers.pop()
        timer.timer_bucket = None
        room.clock.now += 400
        timer.expire()
        room.turn()
        room.threads.run()
    assert not is_waiting(answer)
    group = room.runtime.shard("g").groups.get("g")
    assert group is None or group.is_empty


@in_loop
async def test_partition_that_goes_away_answers_who_waits(room: RuntimeRoom) -> None:
    room.runtime.serve({})
    assert code_of(room.commit(7)) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_partition_is_found_with_javas_hash() -> None:
    assert java_hash("hello") == 99162322
    assert java_hash("") == 0
    assert java_hash("🜁") == (31 * 0xD83D + 0xDF01) & 0xFFFFFFFF
