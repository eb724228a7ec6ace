"""Readings of a cluster that pages share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ottla.admin.client import AdminClient
from ottla.edge.console.clusters import ClusterAccess


class Counter:
    """A function that returns how often it was called; it waits while it is held."""

    def __init__(self) -> None:
        self.calls = 0
        self.free = threading.Event()
        self.free.set()

    def __call__(self, client: AdminClient) -> int:
        self.calls += 1
        called = self.calls
        assert self.free.wait(60)
        return called


def run(test: Callable[[ClusterAccess, Counter], Coroutine[Any, Any, None]]) -> None:
    async def inner() -> None:
        with ThreadPoolExecutor(4) as threads:
            cluster = ClusterAccess("main", {"bootstrap.servers": "127.0.0.1:1"}, 1.0, threads)
            await test(cluster, Counter())
            cluster.close()

    asyncio.run(inner())


def test_requests_at_the_same_time_share_one_reading_and_later_ones_use_it() -> None:
    async def test(cluster: ClusterAccess, read: Counter) -> None:
        found = await asyncio.gather(*(cluster.read("key", read, age_s=60) for _ in range(5)))
        assert found == [1] * 5
        assert await cluster.read("key", read, age_s=60) == 1
        assert await cluster.read("other", read, age_s=60) == 2
        assert await cluster.read("key", read, age_s=0) == 3

    run(test)


def test_old_reading_is_returned_while_it_is_read_again() -> None:
    async def test(cluster: ClusterAccess, read: Counter) -> None:
        assert await cluster.read("key", read, age_s=0, stale_s=60) == 1
        read.free.clear()
        assert await cluster.read("key", read, age_s=0, stale_s=60) == 1
        assert await cluster.read("key", read, age_s=0, stale_s=60) == 1
        waiting = asyncio.ensure_future(cluster.read("key", read, age_s=0))
        read.free.set()
        assert await waiting == 2, "a page that wants no old reading waits for the one in progress"
        assert await cluster.read("key", read, age_s=60, stale_s=60) == 2

    run(test)


def test_nothing_that_was_read_before_a_change_is_used_after_it() -> None:
    async def test(cluster: ClusterAccess, read: Counter) -> None:
        read.free.clear()
        waiting = asyncio.ensure_future(cluster.read("key", read, age_s=60))
        await asyncio.sleep(0)
        cluster.forget_readings()
        read.free.set()
        assert await cluster.read("key", read, age_s=60, stale_s=60) in (1, 2)
        assert {await waiting, await cluster.read("key", read, age_s=60)} == {1, 2}
        assert read.calls == 2

    run(test)
