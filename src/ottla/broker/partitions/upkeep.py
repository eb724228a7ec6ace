"""The periodic work on partitions: time limits of writers, flushes, compaction, retention and checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from ottla.broker.component import Component
from ottla.broker.environment import Environment
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.seen_metadata import SeenMetadata
from ottla.broker.partitions.log_upkeep import LogUpkeep
from ottla.broker.partitions.manager import ReplicaManager
from ottla.env.metrics import Page
from ottla.env.tasks import attempt

_PRODUCER_EXPIRY_S = 600.0


class Upkeep(Component):
    """Does what is due, once a second or less often. A failure is reported, and the rest is done."""

    def __init__(
        self, environment: Environment, *, metadata: ClusterMetadata, replicas: ReplicaManager, seen: SeenMetadata
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._logs = LogUpkeep(replicas)
        self._seen = seen
        self._threads = environment.threads
        self._clock = environment.clock
        self._tasks = environment.tasks
        now = environment.loop.time()
        settings = metadata.started_settings
        self._retention_s = settings.log_retention_check_interval_ms / 1000
        self._checkpoint_s = settings.log_flush_offset_checkpoint_interval_ms / 1000
        self._compaction_s = settings.log_cleaner_backoff_ms / 1000
        self._retention_due = now + self._retention_s
        self._checkpoint_due = now + self._checkpoint_s
        self._expiry_due = now + _PRODUCER_EXPIRY_S
        self._compaction_due = now

    def tick(self, now: float) -> None:
        replicas = self._replicas
        attempt(replicas.commits.expire_writers, "expire writers")
        attempt(replicas.storage.check_free_space, "check free space")
        attempt(self._logs.apply_flush_interval, "apply the flush interval")
        attempt(self._evict_producers, "evict producers")
        if now >= self._compaction_due and not attempt(self._compact, "compact logs"):
            self._compaction_due = now + self._compaction_s
        if now >= self._retention_due:
            self._retention_due = now + self._retention_s
            self._tasks.start(self._apply_retention(), "apply retention")
        if now >= self._checkpoint_due:
            self._checkpoint_due = now + self._checkpoint_s
            attempt(replicas.write_checkpoints, "write checkpoints")
            attempt(self._write_seen, "write what was seen of the metadata")
        if now >= self._expiry_due:
            self._expiry_due = now + _PRODUCER_EXPIRY_S
            attempt(self._expire_producers, "expire producers")

    def metrics(self, page: Page) -> Iterator[None]:
        page.counter("ottla_producers_evicted", "Producers that expired early.", self._logs.producers_evicted)
        page.gauge("ottla_producers", "Producers whose sequence numbers are kept.", self._logs.producers)
        yield

    async def stop(self) -> None:
        self._write_seen()

    def _write_seen(self) -> None:
        """Write what was seen of the metadata, in a thread."""
        self._seen.write(self._metadata.view, self._threads)

    def _evict_producers(self) -> None:
        self._logs.evict_producers(self._metadata.settings.producer_id_max_count)

    def _expire_producers(self) -> None:
        oldest_ms = self._clock.wall_ms() - self._metadata.settings.producer_id_expiration_ms
        for partition in self._replicas.all():
            partition.log.expire_producers(oldest_ms)

    def _compact(self) -> bool:
        """Start or continue a compaction. Return whether one is in progress."""
        return self._logs.maybe_compact(self._clock.wall_ms(), self._metadata.settings)

    async def _apply_retention(self) -> None:
        for number, partition in enumerate(self._replicas.all()):
            attempt(partial(self._logs.apply_retention, partition, self._clock.wall_ms()), "apply retention")
            if number % 50 == 0:
                await asyncio.sleep(0)  # serve clients in between
