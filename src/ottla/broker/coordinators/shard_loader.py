"""Decides which shard is loaded next, and when a load that failed is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic

from ottla.broker.coordinators.hosted_shard import HostedShard, S
from ottla.env.tasks import RESTART_S, Tasks
from ottla.model.errors import KafkaError


class ShardLoader(Generic[S]):
    """Loads the shards of one internal topic, one after the other."""

    def __init__(
        self,
        topic: str,
        *,
        load: Callable[[HostedShard[S]], Awaitable[None]],
        on_unreadable: Callable[[HostedShard[S], OSError | KafkaError], None],
        reload: Callable[[HostedShard[S]], None],
    ) -> None:
        """``load`` replays the log of a shard, and ``reload`` replaces a shard whose log could not be read."""
        self._topic = topic
        self._load = load
        self._on_unreadable = on_unreadable
        self._reload = reload
        #: the shards that ``_task`` still has to load, in this order
        self.waiting: list[HostedShard[S]] = []
        self._task: asyncio.Task[None] | None = None
        self._tasks = Tasks()

    def add(self, hosted: HostedShard[S]) -> None:
        """Load a shard after those that wait."""
        self.waiting.append(hosted)
        if self._task is None or self._task.done():
            self._task = self._tasks.start(self._load_all(), f"load {self._topic}")

    def remove(self, hosted: HostedShard[S]) -> None:
        """Do not load a shard that still waits."""
        if hosted in self.waiting:
            self.waiting.remove(hosted)

    async def stop(self) -> None:
        await self._tasks.stop()

    async def _load_all(self) -> None:
        while self.waiting:
            hosted = self.waiting.pop(0)
            try:
                await self._load(hosted)
            except (OSError, KafkaError) as error:
                self._on_unreadable(hosted, error)
                self._tasks.start(self._load_again(hosted), "load a shard again")
            except Exception:  # a bug, which ends this task: the next one loads the other shards, too
                self._tasks.start(self._load_again(hosted), "load a shard again")
                raise

    async def _load_again(self, hosted: HostedShard[S]) -> None:
        await asyncio.sleep(RESTART_S)
        if not hosted.loaded:
            self._reload(hosted)
