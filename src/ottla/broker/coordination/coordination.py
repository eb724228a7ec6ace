"""Connects the coordinators to the broker: topic metadata for groups, the journal of rebalances, periodic work.

Coordinators have no access to the metadata store, and the rest of the broker does not know groups.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from ottla.broker.cluster.topic_apis import TopicApis
from ottla.broker.component import Component
from ottla.broker.coordination.peer_requests import PeerRequests
from ottla.broker.coordinators.hashing import java_hash
from ottla.broker.groups.context import GroupContext
from ottla.broker.groups.journal import JOURNAL_TOPIC, Rebalance, journal_key
from ottla.broker.groups.runtime import OFFSETS_TOPIC, GroupRuntime
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import StoreError
from ottla.broker.metadata.view import TopicView, ViewChanges
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.transactions.awaited_commits import AwaitedCommits
from ottla.broker.transactions.checks import TransactionChecks
from ottla.broker.transactions.remote_markers import RemoteMarkers
from ottla.broker.transactions.runtime import TRANSACTION_TOPIC, MarkerWriter, TransactionRuntime
from ottla.client.async_connections import BrokerClients
from ottla.env.clock import Clock
from ottla.env.tasks import Tasks
from ottla.env.timers import TimerWheel
from ottla.model.errors import KafkaError, NotLeaderOrFollower
from ottla.model.records import Record, build_batch

log = logging.getLogger(__name__)

#: entries that wait for the creation of the journal's topic; that takes milliseconds, so more mean that it failed
_JOURNAL_WAITING_MAX = 1000
_JOURNAL_PARTITIONS = 16
_JOURNAL_CONFIG = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(30 * 24 * 3_600_000),
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


def journal_partition(partitions: Mapping[int, Partition], group_id: str) -> Partition:
    """Return the partition in which this broker notes the rebalances of a group: always one that it leads.

    Raise NotLeaderOrFollower if it leads none.
    """
    led = [each for _, each in sorted(partitions.items()) if each.role is Role.LEADER]
    if not led:
        raise NotLeaderOrFollower(f"this broker leads no partition of {JOURNAL_TOPIC}")
    return led[java_hash(group_id) % len(led)]


class ViewTopics:
    """Topic metadata for the coordinator."""

    def __init__(self, metadata: ClusterMetadata, replicas: ReplicaManager) -> None:
        self._metadata = metadata
        self._replicas = replicas

    @property
    def version(self) -> int:
        return self._metadata.view.topics_version

    def partition_count(self, topic: str) -> int | None:
        view = self._metadata.view.topics.get(topic)
        return len(view.partitions) if view is not None else None

    def topic_id(self, topic: str) -> bytes | None:
        view = self._metadata.view.topics.get(topic)
        return view.topic_id if view is not None else None

    def topic_name(self, topic_id: bytes) -> str | None:
        view = self._metadata.view.topics_by_id.get(topic_id)
        return view.name if view is not None else None

    def names(self) -> Iterable[str]:
        return self._metadata.view.topics

    def end_offset(self, topic: str, partition: int) -> int | None:
        found = self._replicas.find(topic, partition)
        # The high watermark of a follower is at most a fetch behind that of its leader.
        return found.high_watermark if found is not None and not found.offline else None


class Coordination(Component):
    """The coordinators of one broker and their periodic work."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        topics: TopicApis,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        wheel: TimerWheel,
        begin_turn: Callable[[], None],
        random_bytes: Callable[[int], bytes],
        new_clients: Callable[[], BrokerClients],
        accepted: Callable[[], int],
        check_lease: Callable[[], None] = lambda: None,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._topics = topics
        self._clock = clock
        self._begin_turn = begin_turn
        self._tasks = Tasks()
        self._journal_waiting: deque[Rebalance] = deque(maxlen=_JOURNAL_WAITING_MAX)
        self.rebalances = 0
        context = GroupContext(
            settings=metadata.settings,
            topics=ViewTopics(metadata, replicas),
            new_uuid=lambda: str(uuid.UUID(bytes=random_bytes(16), version=4)),
            accepted=accepted,
            check_lease=check_lease,
        )
        parts = {
            "loop": loop, "clock": clock, "wheel": wheel, "replicas": replicas,
            "context": context, "begin_turn": begin_turn,
        }  # fmt: skip
        self.runtime = GroupRuntime(on_rebalance=self._note_rebalance, **parts)
        context.usage.shards = self.runtime.loaded_shards
        self.peers = PeerRequests(metadata, new_clients)
        self.checks = TransactionChecks(self.peers)
        self.awaited_commits = AwaitedCommits(wheel)
        self.remote_markers = RemoteMarkers(leader_of=self.peers.leader_of, send=self.peers.write_markers)
        self.markers = MarkerWriter(
            replicas=replicas, clock=clock, wheel=wheel, begin_turn=begin_turn,
            on_written=self._marker_written, on_lost=self._marker_lost, remote=self.remote_markers,
        )  # fmt: skip
        self.transactions = TransactionRuntime(markers=self.markers, **parts)
        now = clock.monotonic()
        self._timeouts_due = now
        self._expiry_due = now + metadata.settings.offsets_retention_check_interval_ms / 1000
        self._verify_due = now
        self._verifying = False
        self._refusals_reported = 0

    # -- changes --------------------------------------------------------------------------------------------------

    def settings_changed(self) -> None:
        """Use the current settings of the broker, and the view's settings of groups, which follow their changes."""
        self.runtime.context.settings = self._metadata.settings
        self.runtime.context.overrides = self._metadata.view.group_configs

    def on_view(self, changes: ViewChanges) -> None:
        if changes.broker_settings:
            self.settings_changed()
        self.topics_changed(changes.topics)

    def topics_changed(self, pairs: Iterable[tuple[TopicView | None, TopicView | None]]) -> None:
        """Load and unload shards: partitions of these topics were added or removed, or their leaders changed."""
        deleted = []
        for old, new in pairs:
            name = new.name if new is not None else old.name if old is not None else ""
            if name == OFFSETS_TOPIC:
                self.runtime.serve(self._replicas.topics.get(OFFSETS_TOPIC.encode(), {}))
            elif name == TRANSACTION_TOPIC:
                self.transactions.serve(self._replicas.topics.get(TRANSACTION_TOPIC.encode(), {}))
            elif old is not None and (new is None or new.topic_id != old.topic_id):
                deleted.append(old.name)
        if deleted:
            self.runtime.topics_deleted(deleted)

    def roles_changed(self) -> None:
        """Load and unload shards: this broker stopped to lead partitions, or leads them again, in the same epoch.

        While it did not lead, markers and replies were given up, so its shards must be loaded again.
        """
        for topic, runtime in ((OFFSETS_TOPIC, self.runtime), (TRANSACTION_TOPIC, self.transactions)):
            runtime.serve(self._replicas.topics.get(topic.encode(), {}))

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        settings = self._metadata.settings
        usage = self.runtime.context.usage
        if usage.refused != self._refusals_reported:
            count = usage.refused - self._refusals_reported
            log.warning("requests refused by a limit of a client host count=%d last=%r", count, usage.last_refusal)
            self._refusals_reported = usage.refused
        if now >= self._expiry_due:
            self._expiry_due = now + settings.offsets_retention_check_interval_ms / 1000
            self.runtime.expire_offsets()
        if now >= self._timeouts_due:
            interval_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
            self._timeouts_due = now + interval_ms / 1000
            self.transactions.expire()
        interval_ms = settings.group_verify_interval_ms
        if interval_ms > 0 and now >= self._verify_due and not self._verifying:
            self._verifying = True
            self._tasks.start(self._verify(interval_ms / 1000), "verify groups")

    async def _verify(self, interval_s: float) -> None:
        try:
            await self.runtime.verify()
            await self.transactions.verify()
        finally:
            self._verifying = False
            self._verify_due = self._clock.monotonic() + interval_s

    async def complete_requests(self) -> None:
        """Complete all requests that wait, so that the stop does not wait for them."""
        await self._tasks.stop()
        await self.runtime.stop()
        await self.transactions.stop()
        await self.markers.stop()
        await self.checks.stop()
        self.peers.close()

    def _marker_written(self, partition: Partition, producer_id: int, commit: bool, end_offset: int) -> None:
        self.checks.marker_written(partition.name, producer_id)
        if partition.name.topic == OFFSETS_TOPIC:
            self.runtime.marker_written(partition, producer_id, commit=commit, end_offset=end_offset)

    def _marker_lost(self, partition: Partition) -> None:
        if partition.name.topic == OFFSETS_TOPIC:
            self.runtime.marker_lost(partition)

    # -- the journal ----------------------------------------------------------------------------------------------

    def _note_rebalance(self, rebalance: Rebalance) -> None:
        """Append the causes of a rebalance to the journal. A failure is logged and has no other effect."""
        self.rebalances += 1
        log.info(
            "group rebalanced group=%r generation=%d members=%d cause=%s seconds=%.3f", rebalance.group_id,
            rebalance.generation, rebalance.members_after,
            rebalance.causes[0].kind.value if rebalance.causes else "unknown", rebalance.duration_ms / 1000,
        )  # fmt: skip
        self._journal_waiting.append(rebalance)
        if JOURNAL_TOPIC in self._metadata.view.topics:
            self._write_journal()
        elif len(self._journal_waiting) == 1:
            self._tasks.start(self._make_journal(), "make the journal")

    async def _make_journal(self) -> None:
        # Each broker writes to partitions that it leads itself, so in a cluster all of them must lead some.
        partitions = _JOURNAL_PARTITIONS if len(self._metadata.view.brokers) > 1 else 1
        try:
            await self._topics.create_internal_topic(
                JOURNAL_TOPIC, partitions=partitions, replication_factor=None,
                config=lambda _: _JOURNAL_CONFIG,
            )  # fmt: skip
            self._write_journal()
        except (StoreError, KafkaError) as error:
            log.error("the journal of rebalances cannot be made error=%s", error)
        finally:
            # The next rebalance makes the journal if it finds none that waits.
            self._journal_waiting.clear()

    def _write_journal(self) -> None:
        replicas = self._replicas
        now_ms = self._clock.wall_ms()
        while self._journal_waiting:
            entry = self._journal_waiting.popleft()
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
