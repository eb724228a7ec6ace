"""Appends the causes of rebalances to the topic `__ottla_rebalances`, which this creates for the first of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.component import Component
from ottla.broker.groups.journal import JOURNAL_TOPIC, Rebalance, journal_key
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import StoreError
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.clock import Clock
from ottla.env.metrics import Page
from ottla.env.tasks import Tasks
from ottla.model.errors import KafkaError, NotLeaderOrFollower
from ottla.model.hashing import java_hash
from ottla.model.records import Record, build_batch

log = logging.getLogger(__name__)

#: entries that wait for the creation of the journal's topic; that takes milliseconds, so more mean that it failed
_WAITING_MAX = 1000
_PARTITIONS = 16
_CONFIG = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(30 * 24 * 3_600_000),
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


class RebalanceJournal(Component):
    """The rebalances of the groups that this broker coordinates."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        topics: TopicApis,
        clock: Clock,
        begin_turn: Callable[[], None],
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topics = topics
        self._clock = clock
        self._begin_turn = begin_turn
        self._tasks = Tasks()
        #: rebalances that wait for the creation of the topic
        self._waiting: deque[Rebalance] = deque(maxlen=_WAITING_MAX)
        self._rebalances = 0

    def metrics(self, page: Page) -> Iterator[None]:
        page.counter("ottla_group_rebalances", "Rebalances that were finished.", self._rebalances)
        yield

    async def complete_requests(self) -> None:
        await self._tasks.stop()

    def note(self, rebalance: Rebalance) -> None:
        """Append the causes of a rebalance to the journal. A failure is logged and has no other effect."""
        self._rebalances += 1
        log.info(
            "group rebalanced group=%r generation=%d members=%d cause=%s seconds=%.3f", rebalance.group_id,
            rebalance.generation, rebalance.members_after,
            rebalance.causes[0].kind.value if rebalance.causes else "unknown", rebalance.duration_ms / 1000,
        )  # fmt: skip
        self._waiting.append(rebalance)
        if JOURNAL_TOPIC in self._metadata.view.topics:
            self._write()
        elif len(self._waiting) == 1:
            self._tasks.start(self._create_topic(), "create the journal")

    async def _create_topic(self) -> None:
        # Each broker writes to partitions that it leads itself, so in a cluster all of them must lead some.
        partitions = _PARTITIONS if len(self._metadata.view.brokers) > 1 else 1
        try:
            await self._topics.create_internal_topic(
                JOURNAL_TOPIC, partitions=partitions, replication_factor=None,
                config=lambda _: _CONFIG,
            )  # fmt: skip
            self._write()
        except (StoreError, KafkaError) as error:
            log.error("the journal of rebalances cannot be made error=%s", error)
        finally:
            # The next rebalance makes the journal if it finds none that waits.
            self._waiting.clear()

    def _write(self) -> None:
        replicas = self._replicas
        now_ms = self._clock.wall_ms()
        while self._waiting:
            entry = self._waiting.popleft()
            record = Record(
                timestamp=now_ms, key=journal_key(entry.group_id, entry.generation), value=entry.to_json()
            )  # fmt: skip
            batch = bytearray(build_batch([record]))
            try:
                partition = journal_partition(replicas.topics.get(JOURNAL_TOPIC.encode(), {}), entry.group_id)
                self._begin_turn()
                settings = partition.log.settings
                replicas.append(partition, batch, memoryview(batch), 0, len(batch), now_ms, opened=settings)
            except KafkaError as error:
                log.warning("a rebalance was not noted group=%r error=%s", entry.group_id, error)


def journal_partition(partitions: Mapping[int, Partition], group_id: str) -> Partition:
    """Return the partition in which this broker notes the rebalances of a group: always one that it leads.

    Raise NotLeaderOrFollower if it leads none.
    """
    led = [each for _, each in sorted(partitions.items()) if each.role is Role.LEADER]
    if not led:
        raise NotLeaderOrFollower(f"this broker leads no partition of {JOURNAL_TOPIC}")
    return led[java_hash(group_id) % len(led)]
