"""ReplicaFetchers: copies the logs of leaders into the logs of the partitions that this broker follows.

`leader_fetcher.py` copies all partitions that one broker leads, over one connection (`leader_session.py`). Records that
the leader has not asked to sync are synced when no further ones arrive for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set

from ottla.broker.partitions.leader_fetcher import LeaderFetcher
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replication_throttle import ReplicationQuota
from ottla.broker.partitions.truncations import LogTruncations
from ottla.client.async_connections import BrokerClients
from ottla.env.clock import Clock
from ottla.env.tasks import Tasks
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint

#: after this time without records a follower syncs what it has fetched
_SYNC_WHEN_IDLE_S = 0.2


class ReplicaFetchers:
    """The fetchers of this broker, one per leader broker."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clients: BrokerClients,
        replicas: ReplicaManager,
        clock: Clock,
        broker_id: int,
        broker_epoch: Callable[[], int],
        settings: Callable[[], BrokerSettings],
    ) -> None:
        """``broker_epoch`` returns the epoch of this broker's registration, ``settings`` the current settings."""
        self.loop = loop
        self.clients = clients
        self.replicas = replicas
        self.wall_ms = clock.wall_ms
        self.broker_id = broker_id
        self.client_id = f"broker-{broker_id}-fetcher".encode()
        self.broker_epoch = broker_epoch
        self.settings = settings
        self._fetchers: dict[Endpoint, LeaderFetcher] = {}
        self._by_partition: dict[Partition, LeaderFetcher] = {}
        self.log_truncations = LogTruncations(loop, replicas)
        replicas.commits.on_follower_changed = self._report
        replicas.referrers.append(self)

        #: partitions with records that the leader has not asked to sync, and when the last ones were appended
        self._unsynced: dict[Partition, float] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        #: open connections to leaders
        self.tasks = Tasks()
        # Counters
        self.requests = 0
        self.truncations = 0
        #: what throttled replicas of this broker have fetched
        self.quota = ReplicationQuota()

    @property
    def is_following(self) -> bool:
        return bool(self._by_partition)

    def just_lost(self) -> list[Endpoint]:
        """Return the leaders whose connection was closed within the last second and is not open again.

        Their processes have probably ended. The metadata store says so a moment later.
        """
        return [endpoint for endpoint, fetcher in self._fetchers.items() if fetcher.is_just_lost]

    def follow(self, partition: Partition, endpoint: Endpoint) -> None:
        """Copy the log of the leader at ``endpoint``, in the leader epoch of the partition. Do nothing if it is done.

        Call this again when the leader, its endpoint or the leader epoch has changed.
        """
        current = self._by_partition.get(partition)
        if current is not None:
            if current.endpoint == endpoint and current.follows(partition):
                return
            if current.endpoint != endpoint:
                self.unfollow(partition)
        fetcher = self._fetchers.get(endpoint)
        if fetcher is None:
            fetcher = self._fetchers[endpoint] = LeaderFetcher(self, endpoint)
        self._by_partition[partition] = fetcher
        fetcher.add(partition)

    def unfollow(self, partition: Partition) -> None:
        """Stop to copy: this broker leads the partition, no broker does, or the partition is deleted."""
        fetcher = self._by_partition.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)
            if fetcher.is_empty:
                fetcher.close()
                del self._fetchers[fetcher.endpoint]

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""
        self.unfollow(partition)
        self._unsynced.pop(partition, None)
        self.log_truncations.discard(partition)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a partition is known that is not served, or a fetcher has nothing to fetch."""
        assert self._by_partition.keys() <= served, "_by_partition"
        assert self._unsynced.keys() <= served, "_unsynced"
        for endpoint, fetcher in self._fetchers.items():
            followed = {partition for partition, its in self._by_partition.items() if its is fetcher}
            assert fetcher.partitions() == followed, f"the fetcher of {endpoint}"
            assert followed, f"the fetcher of {endpoint} has nothing to fetch"
        self.log_truncations.check_invariants(served)

    def stop(self) -> None:
        """Stop to copy all partitions, and close the connections."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._by_partition.clear()

    def sync_when_idle(self, partition: Partition) -> None:
        """Sync a log that the leader has not asked to sync when no records have arrived for a while.

        A producer that repeats a batch waits for a sync of records that this broker has fetched already, and a replica
        joins the ISR only when its records are synced.
        """
        self._unsynced[partition] = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(_SYNC_WHEN_IDLE_S, self._sync_idle)

    def _sync_idle(self) -> None:
        due = self.loop.time() - _SYNC_WHEN_IDLE_S
        self._idle_timer = None
        try:
            for partition, appended_at in list(self._unsynced.items()):
                if appended_at <= due:
                    del self._unsynced[partition]
                    if partition in self._by_partition:
                        self.replicas.followers.sync(partition)
        finally:
            if self._unsynced:
                self._idle_timer = self.loop.call_later(_SYNC_WHEN_IDLE_S, self._sync_idle)

    def _report(self, partition: Partition) -> None:
        fetcher = self._by_partition.get(partition)
        if fetcher is not None:
            fetcher.report(partition)
