"""A follower syncs what it has fetched when no further records arrive, and notices that its leader has ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from sim_loop import START_S, VirtualLoop

from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.leader_fetcher import LeaderFetcher
from ottla.model.types import Endpoint


def test_follower_syncs_when_no_records_arrive_for_a_while() -> None:
    loop = VirtualLoop()
    syncs: list[tuple[float, str]] = []
    followers = SimpleNamespace(sync=lambda partition: syncs.append((round(loop.time() - START_S, 3), partition)))
    replicas: Any = SimpleNamespace(followers=followers, commits=SimpleNamespace(), referrers=[])
    clock: Any = SimpleNamespace(wall_ms=lambda: 0)
    fetchers = ReplicaFetchers(
        loop=loop, clients=None, replicas=replicas, clock=clock, broker_id=2,  # type: ignore[arg-type]
        broker_epoch=lambda: 1, settings=lambda: None,  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    busy, idle, moved = "busy", "idle", "moved"
    fetchers._by_partition = {busy: None, idle: None}  # type: ignore[assignment,dict-item]

    async def run() -> None:
        for number in range(11):  # records of one partition arrive every 100 ms
            fetchers.sync_when_idle(busy)  # type: ignore[arg-type]
            if not number:
                fetchers.sync_when_idle(idle)  # type: ignore[arg-type]
                fetchers.sync_when_idle(moved)  # type: ignore[arg-type]
            await asyncio.sleep(0.1)
        await asyncio.sleep(1)

    loop.run_until_complete(run())
    loop.close()
    assert [partition for _, partition in syncs] == [idle, busy]
    (idle_at, _), (busy_at, _) = syncs
    assert idle_at < 0.5 and 1.2 <= busy_at < 1.5


def test_leader_whose_connection_was_closed_counts_as_lost_for_a_second() -> None:
    loop = VirtualLoop()
    endpoint = Endpoint("PLAINTEXT", "a", 1)
    replicas: Any = SimpleNamespace(commits=SimpleNamespace(), referrers=[])
    fetchers = ReplicaFetchers(
        loop=loop, clients=None, replicas=replicas, clock=SimpleNamespace(wall_ms=None),  # type: ignore[arg-type]
        broker_id=2, broker_epoch=lambda: 1, settings=lambda: None,  # type: ignore[arg-type,return-value]
    )  # fmt: skip
    fetcher = fetchers._fetchers[endpoint] = LeaderFetcher(fetchers, endpoint)
    assert fetchers.just_lost() == []
    connection: Any = SimpleNamespace(is_lost=False)
    fetcher._session._connection = connection
    assert fetchers.just_lost() == []
    connection.is_lost = True
    assert fetchers.just_lost() == [endpoint]

    async def run() -> None:
        fetcher._session._lost(connection, loop.create_future())
        assert fetchers.just_lost() == [endpoint]
        await asyncio.sleep(0.9)
        assert fetchers.just_lost() == [endpoint]
        await asyncio.sleep(0.2)
        assert fetchers.just_lost() == []

    loop.run_until_complete(run())
    loop.close()
