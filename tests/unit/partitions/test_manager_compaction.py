"""ReplicaManager.maybe_compact: which log is taken, one at a time, beside the loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.unit.log.compaction_fixtures import compacted, pairs_batch
from tests.unit.log.log_fixtures import NOW, contents, sync
from tests.unit.log.store_fixtures import spec
from tests.unit.partitions.test_replica_manager import ONLY_REPLICA, ManagerFixture

from ottla.broker.partitions.log_upkeep import LogUpkeep
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.env.clock import SystemClock
from ottla.env.disk import RealDisk
from ottla.env.tasks import ThreadPool
from ottla.log import compaction
from ottla.log.log import Log
from ottla.log.store import LogStore
from ottla.model.records import iterate_records
from ottla.model.settings import BrokerSettings
from ottla.model.types import TopicPartition

SETTINGS = BrokerSettings()


@pytest.fixture
def fixture(tmp_path: Path) -> ManagerFixture:
    return ManagerFixture(tmp_path)


def fill(fixture: ManagerFixture, partition: Partition, dirty: int = 4) -> None:
    for number in range(dirty):
        fixture.append(partition, pairs_batch((b"key", b"value %d" % number)))
        fixture.manager.commits.write_turn()
        partition.log.roll()
    fixture.threads.run()


def values(log: Log) -> list[bytes | None]:
    return [record.value for batch in contents(log) for record in iterate_records(batch)]


def test_dirtiest_log_is_compacted_first_and_one_at_a_time(fixture: ManagerFixture) -> None:
    first, second = (fixture.add(number, settings=compacted(min_cleanable_dirty_ratio=0.1)) for number in range(2))
    fill(fixture, first, 6)
    assert LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)
    fixture.threads.run()
    fill(fixture, first, 1)
    fill(fixture, second)
    assert LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)
    assert LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS), "one is under way"
    fixture.threads.run()
    assert values(second.log) == [b"value 3"]
    assert len(values(first.log)) == 2
    assert LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)
    fixture.threads.run()
    assert values(first.log) == [b"value 0"]
    assert not LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)


def test_topics_that_are_not_compacted_are_left_alone(fixture: ManagerFixture) -> None:
    partition = fixture.add()
    fill(fixture, partition)
    assert not LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)


def test_cleaner_can_be_switched_off(fixture: ManagerFixture) -> None:
    fill(fixture, fixture.add(settings=compacted()))
    assert not LogUpkeep(fixture.manager).maybe_compact(NOW, BrokerSettings.parse({"log.cleaner.enable": "false"}))


def test_nothing_is_compacted_where_there_is_no_room_for_it(fixture: ManagerFixture) -> None:
    fill(fixture, fixture.add(settings=compacted()))
    fixture.disk.free = 100
    assert not LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)


def test_quiet_log_is_rolled_and_compacted_when_its_records_are_due(fixture: ManagerFixture) -> None:
    partition = fixture.add(settings=compacted(max_compaction_lag_ms=1000, min_cleanable_dirty_ratio=1))
    for number in range(3):
        fixture.append(partition, pairs_batch((b"key", b"value %d" % number)))
    fixture.manager.commits.write_turn()
    assert not LogUpkeep(fixture.manager).maybe_compact(NOW + 1000, SETTINGS)
    assert not LogUpkeep(fixture.manager).maybe_compact(NOW + 1001, SETTINGS), "rolled, and not on disk yet"
    fixture.threads.run()
    assert LogUpkeep(fixture.manager).maybe_compact(NOW + 1001, SETTINGS)
    fixture.threads.run()
    assert values(partition.log) == [b"value 2"]


def test_log_with_a_damaged_batch_is_not_tried_again(fixture: ManagerFixture) -> None:
    partition = fixture.add(settings=compacted())
    fill(fixture, partition)
    segment = partition.log.segments[0]
    fixture.disk.pwrite(segment.file.fd, b"!", segment.size_bytes - 2)
    assert LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)
    fixture.threads.run()
    assert not LogUpkeep(fixture.manager).maybe_compact(NOW, SETTINGS)
    assert not partition.offline


def test_process_compacts_a_large_log_while_the_loop_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing: files, threads, a process, and batches that come in meanwhile."""
    monkeypatch.setattr(compaction, "PROCESS_BYTES_MIN", 0)

    async def scenario() -> None:
        threads = ThreadPool(asyncio.get_running_loop(), 2, "test")
        store = LogStore(RealDisk(), [str(tmp_path)], threads)
        store.lock()
        store.write_meta("cluster", 1, lambda _: "directory")
        store.load({})
        store.begin_writing()
        manager = ReplicaManager(
            broker_id=1, clock=SystemClock(), disk=RealDisk(), store=store, threads=threads, free_bytes_min=0,
            on_all_dirs_failed=pytest.fail,
        )  # fmt: skip
        partition = manager.add(
            spec(TopicPartition("orders", 0), settings=compacted(segment_bytes=100_000)),
            ONLY_REPLICA,
        )  # fmt: skip
        expected: dict[bytes | None, bytes | None] = {}

        def produce(number: int) -> None:
            pairs = [(b"key %d" % ((number + n) % 500), b"%d" % number * 30) for n in range(50)]
            buffer = bytearray(pairs_batch(*pairs))
            manager.append(partition, buffer, memoryview(buffer), 0, len(buffer), NOW)
            manager.commits.write_turn()
            expected.update(pairs)

        for number in range(100):
            produce(number)
        partition.log.roll()
        sync(partition.log)
        await threads.drain()
        before = partition.log.size_bytes
        assert LogUpkeep(manager).maybe_compact(NOW, SETTINGS)
        number = 100
        async with asyncio.timeout(30):
            while manager.compactor.busy:
                produce(number)
                number += 1
                await asyncio.sleep(0.01)
        assert partition.log.first_dirty_offset == 5000
        assert sum(s.size_bytes for s in partition.log.segments if s.base_offset < 5000) < before / 2
        found = {r.key: r.value for batch in contents(partition.log) for r in iterate_records(batch)}
        assert found == expected
        await threads.drain()
        store.close({})
        threads.close()

    asyncio.run(scenario())
