"""Single cases of replication, with three replicas in virtual time: truncation, syncs, log start, failing disks."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest
import sim_replicas
from sim_replicas import NAME, ReplicaHost, ReplicaWorld, batches

from ottla.broker.metadata.view import PartitionView
from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.leader_fetcher import LeaderFetcher, _Followed
from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.partitions.writers import Until
from ottla.log.folders import PartitionSpec
from ottla.model.errors import ErrorCode
from ottla.model.records import Record, build_batch
from ottla.model.settings import BrokerSettings
from ottla.model.types import TopicPartition
from ottla.wire.replica_fetch import FetchedRow


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Case(ReplicaWorld):
    """A world without faults; broker 1 leads."""

    #: when a measurement began, and its result, in virtual seconds
    started = elapsed = 0.0

    def run_case(self, case: Callable[[Case], Awaitable[None]]) -> None:
        async def main() -> None:
            for host in self.hosts.values():
                host.start()
            await self.until(self._is_identical)
            await case(self)

        self.loop.set_exception_handler(self._unexpected)
        try:
            self.loop.run_until_complete(main())
        finally:
            self.loop.close()
        assert self.violations == {}

    def partition(self, number: int) -> Partition:
        partition = self.hosts[number].partition
        assert partition is not None
        return partition

    def write(self, number: int, text: str, until: Until = Until.COMMITTED, *, size: int = 10) -> None:
        data = build_batch([Record(timestamp=1, key=None, value=text.encode() + b"v" * size)])
        self.hosts[number].produce(data, until)

    async def until(self, condition: Callable[[], bool], step_s: float = 0.001) -> None:
        deadline = self.loop.time() + 60
        while not condition():
            assert self.loop.time() < deadline, self._describe()
            await asyncio.sleep(step_s)

    async def settle(self) -> None:
        await self.until(self._is_identical)

    def end(self, number: int) -> int:
        return self.partition(number).log.log_end_offset

    def isolate(self, host: ReplicaHost) -> None:
        for other in self.hosts.values():
            if other is not host:
                self.network.cut(host.name, other.name)
                self.network.cut(other.name, host.name)


# -- truncation -------------------------------------------------------------------------------------------------------


async def leader_of_an_unknown_epoch_follows(case: Case) -> None:
    """Broker 2 leads in an epoch that broker 1 never sees, with records that no other has; then broker 1 leads again.

    Broker 2 must keep the ten records of the common history at any moment: it is in sync, and may be elected.
    """
    for n in range(10):
        case.write(1, f"common-{n}")
    await case.settle()
    case.partition(2).high_watermark = 8  # the last reply with the high watermark was lost
    case.isolate(case.hosts[2])
    case.elect(2)
    await case.until(lambda: case.partition(2).role is Role.LEADER)
    for n in range(3):
        case.write(2, f"lost-{n}")
    await case.until(lambda: case.end(2) == 13)
    assert case.partition(2).high_watermark == 8
    case.elect(1)
    await case.until(lambda: case.partition(1).leader_epoch == 2 and case.partition(2).leader_epoch == 2)
    for n in range(5):
        case.write(1, f"kept-{n}")
    case.network.heal_all()
    await case.until(lambda: case.end(2) != 13, 0.0001)
    assert case.end(2) == 10
    await case.settle()
    assert case.end(2) == 15


def test_follower_truncates_to_the_end_of_the_common_history() -> None:
    Case(1).run_case(leader_of_an_unknown_epoch_follows)


def test_truncation_to_the_high_watermark_for_an_unknown_epoch_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-279: the leader says that it does not know the epoch, and the follower truncates to its high watermark."""
    epoch_end, handle_error = Partition.epoch_end, LeaderFetcher._handle_error

    def only_known(self: Partition, epoch: int) -> tuple[int, int]:
        known = epoch == self.leader_epoch or epoch in self.log.epochs.epochs
        return epoch_end(self, epoch) if known else (-1, -1)

    def to_high_watermark(self: LeaderFetcher, followed: _Followed, row: FetchedRow) -> None:
        if row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            request = TruncationRequest(followed.partition, followed.partition.high_watermark)
            self._request_truncation(followed, request)
        else:
            handle_error(self, followed, row)

    monkeypatch.setattr(Partition, "epoch_end", only_known)
    monkeypatch.setattr(LeaderFetcher, "_handle_error", to_high_watermark)
    with pytest.raises(AssertionError, match="8 == 10"):
        Case(1).run_case(leader_of_an_unknown_epoch_follows)


def test_truncation_goes_on_until_no_epoch_diverges() -> None:
    """The follower has two epochs that the leader does not have, and lacks the one in between that the leader has."""

    async def case(case: Case) -> None:
        for n in range(4):
            case.write(1, f"common-{n}")
        await case.settle()
        case.isolate(case.hosts[2])
        for epoch, leader in enumerate([2, 3, 2, 3], 1):
            case.isolate(case.hosts[3])
            case.elect(leader)
            await case.until(lambda leader=leader, epoch=epoch: case.partition(leader).leader_epoch == epoch)  # type: ignore[misc]
            for n in range(2):
                case.write(leader, f"of-{leader}-{epoch}-{n}")
            end = case.end(leader)
            await case.until(lambda leader=leader, end=end: case.partition(leader).log.written_end_offset == end)  # type: ignore[misc]
        assert case.partition(2).log.epochs.epochs == [0, 1, 3]
        assert case.partition(3).log.epochs.epochs == [0, 2, 4]
        case.network.heal_all()
        await case.settle()
        assert case.partition(2).log.epochs.epochs == [0, 2, 4]
        assert case.end(2) == 8

    Case(1).run_case(case)


def test_parked_reader_is_released_when_records_below_the_high_watermark_are_truncated() -> None:
    class Reader:
        released = 0

        def on_high_watermark(self, size_bytes: int) -> None: ...
        def on_stable(self) -> None: ...
        def on_changed(self) -> None: ...
        def on_partition_deleted(self) -> None:
            self.released += 1

    async def case(case: Case) -> None:
        for n in range(5):
            case.write(1, str(n))
        await case.settle()
        partition, reader = case.partition(2), Reader()
        partition.park(reader, read_committed=False)
        case.hosts[2].manager.followers.begin_truncations([TruncationRequest(partition, 5)])
        assert (reader.released, partition.high_watermark) == (0, 5)
        case.hosts[2].manager.followers.begin_truncations([TruncationRequest(partition, 3)])
        assert (reader.released, partition.high_watermark) == (1, 3)
        assert not partition.readers

    Case(1).run_case(case)


# -- syncs ------------------------------------------------------------------------------------------------------------


def test_sync_of_a_follower_is_reported_without_waiting_for_the_parked_fetch() -> None:
    async def case(case: Case) -> None:
        for n in range(20):
            began = case.loop.time()
            case.write(1, str(n), Until.DURABLE)
            await case.until(lambda n=n: len(case.acked) == n + 1)  # type: ignore[misc]
            assert case.loop.time() - began < 0.4, "shorter than a fetch waits"
        await case.settle()
        assert case.partition(2).log.synced_end_offset == 20

    Case(3).run_case(case)


def test_follower_that_gets_records_syncs_only_if_a_writer_waits_for_it() -> None:
    async def case(case: Case) -> None:
        for n in range(10):
            case.write(1, str(n), Until.COMMITTED)
            await asyncio.sleep(0.01)
        await case.until(lambda: case.end(2) == case.end(3) == 10)
        assert [case.hosts[n].manager.commits.syncs for n in (1, 2, 3)] == [0, 0, 0]
        case.write(1, "last", Until.DURABLE)
        await case.until(lambda: len(case.acked) == 11)
        assert case.hosts[2].manager.commits.syncs + case.hosts[3].manager.commits.syncs >= 1

    Case(1).run_case(case)


def test_follower_syncs_when_no_records_arrive_for_a_while() -> None:
    """A producer that repeats a batch waits for a sync of records that followers have already."""

    async def case(case: Case) -> None:
        case.write(1, "first", Until.COMMITTED)
        await case.until(lambda: case.end(2) == case.end(3) == 1)
        await case.until(lambda: case.partition(1).followers[2].synced_end_offset == 1)

    Case(1).run_case(case)


def test_records_are_sent_once_to_each_follower() -> None:
    async def case(case: Case) -> None:
        for n in range(300):
            case.write(1, str(n), Until.DURABLE, size=500)
            await asyncio.sleep(0.002 * case.rng.random())
        await case.settle()
        size = sum(map(len, batches(case.partition(1).log, case.end(1)).values()))
        assert case.hosts[1].fetch.bytes_out == 2 * size

    Case(1).run_case(case)


# -- log start --------------------------------------------------------------------------------------------------------


def test_log_start_of_followers_is_that_of_the_leader() -> None:
    async def case(case: Case) -> None:
        for n in range(10):
            case.write(1, str(n))
        await case.settle()
        case.hosts[1].manager.delete_records(case.partition(1), 7)
        await case.until(lambda: all(case.partition(n).log.log_start_offset == 7 for n in (2, 3)))

    Case(1).run_case(case)


def test_follower_behind_the_log_start_restarts_there() -> None:
    async def case(case: Case) -> None:
        for n in range(5):
            case.write(1, str(n))
        await case.settle()
        case.hosts[3].kill()
        for n in range(5):
            case.write(1, str(n), size=3000)  # segments
        await case.until(lambda: case.partition(2).high_watermark == 10 or set(case.state.isr) == {1, 2}, 0.1)
        await case.until(lambda: case.partition(1).high_watermark == 10)
        case.hosts[1].manager.delete_records(case.partition(1), 9)
        case.hosts[3].start()
        await case.settle()
        log = case.partition(3).log
        assert (log.log_start_offset, log.log_end_offset) == (9, 10)

    Case(1).run_case(case)


# -- disks ------------------------------------------------------------------------------------------------------------


def test_failing_disk_takes_the_follower_offline_and_nothing_else() -> None:
    async def case(case: Case) -> None:
        case.write(1, "first")
        await case.settle()
        case.hosts[2].disk.fail("pwrite", errno.EIO)
        case.write(1, "second")
        await case.until(lambda: case.partition(2).role is Role.OFFLINE)
        await case.until(lambda: case.partition(3).high_watermark == 2)
        assert set(case.state.isr) == {1, 3}
        assert list(case.violations) == ["disk"]
        case.violations.clear()

    Case(1).run_case(case)


def test_follower_goes_on_when_its_full_disk_has_room_again() -> None:
    async def case(case: Case) -> None:
        case.write(1, "first")
        await case.settle()
        case.hosts[2].disk.fail("pwrite", errno.ENOSPC)
        case.write(1, "second")
        await case.until(lambda: not case.partition(2).has_room)
        await case.until(lambda: case.partition(3).high_watermark == 2)
        assert case.end(2) == 1
        case.hosts[2].disk.heal()
        case.hosts[2].manager.storage.check_free_space()
        await case.settle()

    Case(1).run_case(case)


# -- leader changes ---------------------------------------------------------------------------------------------------


def test_reply_to_a_fetch_before_the_new_epoch_is_ignored() -> None:
    """KAFKA-7164: the same leader may have truncated its log before its new epoch."""

    async def case(case: Case) -> None:
        case.write(1, "first")
        await case.settle()
        partition, fetchers = case.partition(2), case.hosts[2].fetchers
        case.write(1, "second")
        case.hosts[2].manager.apply_state(partition, case.state.changed(leader_epoch=case.state.leader_epoch + 1))
        await asyncio.sleep(0.3)
        assert case.end(2) == 1, "the reply came from the earlier epoch"
        fetchers.follow(partition, case.hosts[1].endpoint)
        assert case.end(2) == 1
        case.elect(1)
        await case.settle()

    Case(1).run_case(case)


def test_removed_partition_is_not_followed_any_more() -> None:
    async def case(case: Case) -> None:
        host = case.hosts[2]
        partition = case.partition(2)
        case.write(1, "first")
        host.manager.remove(partition, "0" * 32)
        await case.until(lambda: case.end(3) == 1)
        requests = host.fetchers.requests
        await asyncio.sleep(5)
        assert host.fetchers.requests == requests
        assert not host.fetchers.is_following
        assert partition.log.log_end_offset == 0

    Case(1).run_case(case)


def test_partition_is_copied_again_after_it_was_unfollowed() -> None:
    async def case(case: Case) -> None:
        case.hosts[2].fetchers.unfollow(case.partition(2))
        case.write(1, "first")
        await case.until(lambda: case.end(3) == 1)
        await asyncio.sleep(0.5)
        assert case.end(2) == 0
        case.hosts[2].fetchers.follow(case.partition(2), case.hosts[1].endpoint)
        await case.settle()
        assert str(case.partition(2).name) == str(NAME)

    Case(1).run_case(case)


# -- many partitions --------------------------------------------------------------------------------------------------


class ManyPartitions:
    """Partitions of one leader and one follower that begin and end to be copied, each at its own time."""

    def __init__(self, case: Case, count: int) -> None:
        self._case = case
        self._leader, self._follower = case.hosts[1], case.hosts[2]
        state = PartitionView(leader=1, leader_epoch=0, replicas=(1, 2), isr=(1,))
        self._states = dict.fromkeys(range(1, count + 1), state)
        self._at: dict[int, dict[int, Partition]] = {1: {}, 2: {}}
        for number in self._states:
            spec = PartitionSpec(name=TopicPartition("many", number), topic_id=bytes(15) + b"m", settings=case.topic)
            for broker in (1, 2):
                self._at[broker][number] = case.hosts[broker].manager.add(spec, state)
            self.follow(number)

    def step(self) -> None:
        case, number, draw = self._case, self._case.rng.choice(list(self._states)), self._case.rng.random()
        if draw < 0.6:
            self.write(number)
        elif draw < 0.7:
            self._follower.fetchers.unfollow(self._at[2][number])
        elif draw < 0.85:
            self.follow(number)
        elif draw < 0.95:
            self.next_epoch(number)
        elif draw < 0.97:
            case.network.reset_some(1.0)
        else:
            case.network.cut("broker-1", "broker-2")
            case.loop.call_later(2 * case.rng.random(), case.network.heal, "broker-1", "broker-2")

    def write(self, number: int) -> None:
        value = b"v" * self._case.rng.choice([10, 1000, 40_000])
        buffer = bytearray(build_batch([Record(timestamp=1, key=None, value=value)]))
        partition = self._at[1][number]
        self._leader.manager.append(partition, buffer, memoryview(buffer), 0, len(buffer), 1)
        self._leader.server.ensure_turn()

    def follow(self, number: int) -> None:
        self._follower.fetchers.follow(self._at[2][number], self._leader.endpoint)

    def next_epoch(self, number: int) -> None:
        """The same leader is elected again; one of the two learns it later than the other."""
        state = self._states[number]
        state = self._states[number] = state.changed(leader_epoch=state.leader_epoch + 1)
        for broker in (1, 2):
            self._case.loop.call_later(0.1 * self._case.rng.random(), self._learn, broker, number, state)

    def _learn(self, broker: int, number: int, state: PartitionView) -> None:
        self._case.hosts[broker].manager.apply_state(self._at[broker][number], state)
        if broker == 2 and self._case.rng.random() < 0.8:
            self.follow(number)

    def follow_all(self) -> None:
        for number in self._states:
            self.follow(number)

    def is_identical(self) -> bool:
        return all(
            self._at[1][number].log.log_end_offset == self._at[2][number].log.log_end_offset
            and batches(self._at[1][number].log, 1 << 60) == batches(self._at[2][number].log, 1 << 60)
            and self._at[1][number].followers[2].end_offset == self._at[1][number].log.log_end_offset
            for number in self._states
        )


@pytest.mark.parametrize("seed", range(1, 9))
def test_partitions_of_one_session_are_copied_independently(seed: int) -> None:
    async def case(case: Case) -> None:
        many = ManyPartitions(case, 8)
        for _ in range(400):
            await asyncio.sleep(case.rng.expovariate(1 / 0.01))
            many.step()
        case.network.heal_all()
        await asyncio.sleep(1)
        many.follow_all()
        await case.until(many.is_identical, 0.1)

    Case(seed).run_case(case)


# -- throttles --------------------------------------------------------------------------------------------------------


async def replica_catches_up(case: Case) -> None:
    """Broker 2 is out of sync and 40,000 bytes behind, then reads them. Broker 3 is in sync and never waits."""
    case.isolate(case.hosts[2])
    case.elect(1, (1, 3))
    await case.until(lambda: case.partition(1).isr == (1, 3))
    for n in range(40):
        case.write(1, f"text-{n}", size=1000)
    await case.until(lambda: case.end(3) == 40)
    case.network.heal_all()
    await case.until(lambda: case.end(2) > 0)
    case.started = case.loop.time()
    await case.until(lambda: case.end(2) == 40)
    case.elapsed = case.loop.time() - case.started


@pytest.mark.parametrize("side", ["leader", "follower"])
@pytest.mark.parametrize(("replicas", "is_slow"), [("0:1,0:2", True), ("0:3", False)])
def test_throttled_replica_catches_up_at_the_rate(
    monkeypatch: pytest.MonkeyPatch, side: str, replicas: str, is_slow: bool
) -> None:
    rate = {f"{side}.replication.throttled.rate": "5000", "replica.fetch.max.bytes": "1000"}
    monkeypatch.setattr(sim_replicas, "SETTINGS", BrokerSettings.parse(rate))
    case = Case(1, **{f"{side}.replication.throttled.replicas": replicas})
    case.run_case(replica_catches_up)
    assert (4 < case.elapsed < 10) is is_slow
    assert is_slow or case.elapsed < 2
