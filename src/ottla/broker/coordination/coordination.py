"""Connects the coordinators to the broker: topic metadata for groups, requests to other brokers, periodic work.

Coordinators have no access to the metadata store, and the rest of the broker does not know groups.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable

from ottla.broker.component import Component
from ottla.broker.coordination.peer_requests import PeerRequests
from ottla.broker.environment import Environment
from ottla.broker.groups.context import GroupContext
from ottla.broker.groups.journal import Rebalance
from ottla.broker.groups.runtime import OFFSETS_TOPIC, GroupRuntime
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import ViewChanges
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.transactions.awaited_commits import AwaitedCommits
from ottla.broker.transactions.checks import TransactionChecks
from ottla.broker.transactions.remote_markers import RemoteMarkers
from ottla.broker.transactions.runtime import TRANSACTION_TOPIC, MarkerWriter, TransactionRuntime
from ottla.client.async_connections import BrokerClients
from ottla.env.tasks import Tasks

log = logging.getLogger(__name__)


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
        environment: Environment,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        begin_turn: Callable[[], None],
        new_clients: Callable[[], BrokerClients],
        on_rebalance: Callable[[Rebalance], None],
        accepted: Callable[[], int],
    ) -> None:
        clock, wheel = environment.clock, environment.wheel
        self._metadata = metadata
        self._clock = clock
        self._tasks = Tasks()
        context = GroupContext(
            settings=metadata.settings,
            topics=ViewTopics(metadata, replicas),
            new_uuid=lambda: str(uuid.UUID(bytes=environment.new_id(), version=4)),
            accepted=accepted,
        )
        parts = {
            "loop": environment.loop, "clock": clock, "wheel": wheel, "replicas": replicas,
            "context": context, "begin_turn": begin_turn,
        }  # fmt: skip
        self.runtime = GroupRuntime(on_rebalance=on_rebalance, **parts)
        context.usage.shards = self.runtime.loaded_shards
        self.peers = PeerRequests(metadata, new_clients)
        self.checks = TransactionChecks(self.peers, replicas.find)
        replicas.referrers.append(self.checks)
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

    def on_settings(self) -> None:
        # The settings of groups follow their changes: the view keeps them in one dict.
        self.runtime.context.settings = self._metadata.settings
        self.runtime.context.overrides = self._metadata.view.group_configs

    def on_view(self, changes: ViewChanges) -> None:
        """Load and unload shards: partitions of these topics were added or removed, or their leaders changed."""
        deleted = []
        for old, new in changes.topics:
            name = new.name if new is not None else old.name if old is not None else ""
            if name == OFFSETS_TOPIC:
                self.runtime.refresh()
            elif name == TRANSACTION_TOPIC:
                self.transactions.refresh()
            elif old is not None and (new is None or new.topic_id != old.topic_id):
                deleted.append(old.name)
        if deleted:
            self.runtime.topics_deleted(deleted)

    def roles_changed(self) -> None:
        """Load and unload shards: this broker stopped to lead partitions, or leads them again, in the same epoch.

        While it did not lead, markers and replies were given up, so its shards must be loaded again.
        """
        self.runtime.refresh()
        self.transactions.refresh()

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
