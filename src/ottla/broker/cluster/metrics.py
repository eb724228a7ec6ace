"""Metrics of a broker as a member of a cluster: replicas, leaders, controller, and the session of the metadata store.

Names and meanings are in docs/reference/metrics.md; each is Kafka's metric of the same words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from ottla.broker.cluster.cluster_apis import ClusterApis
from ottla.broker.cluster.membership import Membership
from ottla.broker.component import Component
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.store import Session, SessionState
from ottla.broker.metadata.view import NO_LEADER
from ottla.broker.partitions.follower import Follower
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.clock import Clock
from ottla.env.metrics import Page, label_text


class ClusterMetrics(Component):
    """Reads the figures that concern other brokers. Runs on the event loop."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        clock: Clock,
        membership: Membership,
        requests: ClusterApis,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._requests = requests
        self._membership = membership
        # Counters
        self.disconnects = 0
        self.expires = 0
        self._metadata.store.on_session(self._session_changed)

    def _session_changed(self, session: Session) -> None:
        self.disconnects += session.state is SessionState.SUSPENDED
        self.expires += session.state is SessionState.EXPIRED

    def metrics(self, page: Page) -> Iterator[None]:
        membership = self._membership
        controller, isr_changes, fetchers = membership.controller, membership.isr_changes, membership.fetchers
        for name, text, value in (
            (
                "ottla_isr_shrinks",
                "Replicas that left the in-sync replicas of partitions led here.",
                isr_changes.shrinks,
            ),
            ("ottla_isr_expands", "Replicas that joined the in-sync replicas.", isr_changes.expands),
            (
                "ottla_leader_elections",
                "Leaders elected by this broker, as the controller or for a request.",
                controller.elections + self._requests.elections,
            ),
            (
                "ottla_unclean_leader_elections",
                "Elections of a replica that may lack committed records.",
                controller.unclean_elections + self._requests.unclean_elections,
            ),
            ("ottla_replication_bytes_in", "Bytes of batches fetched.", self._replicas.followers.bytes_in),
            (
                "ottla_throttled_replication_bytes_in",
                "Bytes that throttled replicas of this broker have fetched.",
                fetchers.quota.total_bytes,
            ),
            ("ottla_replica_fetches", "Fetch requests sent to leaders.", fetchers.requests),
            ("ottla_replica_truncations", "Truncations of logs followed here.", fetchers.truncations),
            ("ottla_metadata_disconnects", "Lost connections to the metadata store.", self.disconnects),
            ("ottla_metadata_expires", "Expired sessions of the metadata store.", self.expires),
        ):
            page.counter(name, text, value)
        page.gauge("ottla_active_controller", "1 if this broker is the controller.", int(controller.is_active))
        page.gauge("ottla_brokers", "Registered brokers.", len(self._metadata.view.brokers))
        state = self._metadata.store.session.state
        for each in SessionState:
            text = "1 for the current state of the session."
            page.gauge("ottla_metadata_session", text, int(each is state), label_text(state=each.value))
        text = "Time from a heartbeat to the metadata store to its answer."
        page.histogram("ottla_metadata_heartbeat_seconds", text, membership.registration.heartbeat_seconds)
        yield
        yield from self._count_replicas(page)
        yield from self._count_offline(page)

    def _count_replicas(self, page: Page) -> Iterator[None]:
        leaders = under_replicated = under_min = at_min = offline = lag_max = 0
        lags: dict[int, FollowerLag] = {}
        now = self._clock.monotonic()
        for partition in self._replicas.all():
            offline += partition.offline
            if partition.role is Role.LEADER:
                size, size_min = len(partition.isr), partition.min_in_sync
                leaders += 1
                under_replicated += size < len(partition.replicas)
                under_min += size < size_min
                at_min += size == size_min
                for number, follower in partition.followers.items():
                    lag = lags.setdefault(number, FollowerLag())
                    lag_max = max(lag_max, lag.add(partition, follower, now))
            yield
        for number, lag in sorted(lags.items()):
            lag.show(page, label_text(replica=number))
        for name, text, value in (
            ("ottla_leaders", "Partitions led by this broker.", leaders),
            (
                "ottla_under_replicated_partitions",
                "Led here, with fewer in-sync replicas than replicas.",
                under_replicated,
            ),
            ("ottla_under_min_isr_partitions", "Led here, with fewer than min.insync.replicas in sync.", under_min),
            ("ottla_at_min_isr_partitions", "Led here, with min.insync.replicas replicas in sync.", at_min),
            ("ottla_offline_replicas", "Replicas whose log, or log directory, failed.", offline),
            ("ottla_replication_max_lag_records", "Largest lag of a follower of partitions led here.", lag_max),
        ):
            page.gauge(name, text, value)

    def _count_offline(self, page: Page) -> Iterator[None]:
        """Add what the controller says about the cluster; 0 on all other brokers, so that the sum is the number."""
        offline = reassigning = 0
        if self._membership.controller.is_active:
            for topic in list(self._metadata.view.topics.values()):
                offline += sum(partition.leader == NO_LEADER for partition in topic.partitions)
                reassigning += sum(bool(each.adding or each.removing) for each in topic.partitions)
                yield
        page.gauge("ottla_offline_partitions", "Partitions without a leader, on the controller.", offline)
        page.gauge("ottla_reassigning_partitions", "Partitions whose replicas are moved.", reassigning)

    def detailed_metrics(self, page: Page) -> Iterator[None]:
        """Add the lag of each follower of the partitions led here."""
        now = self._clock.monotonic()
        for partition in self._replicas.replicated():
            if partition.role is Role.LEADER:
                for number, follower in partition.followers.items():
                    lag = lag_records(partition, follower)
                    lag_s = max(now - follower.caught_up_at, 0.0) if lag else 0.0
                    where = label_text(topic=partition.name.topic, partition=partition.name.partition, replica=number)
                    page.gauge("ottla_replication_lag_records", "Records that a follower has not fetched.", lag, where)
                    size = lag_bytes(partition, follower) if lag else 0
                    page.gauge("ottla_replication_lag_bytes", "Bytes that a follower has not fetched.", size, where)
                    page.gauge("ottla_replication_lag_seconds", "Time since it had all records.", lag_s, where)
            yield


class FollowerLag:
    """How far one broker is behind in all partitions that it follows and this broker leads."""

    def __init__(self) -> None:
        self._records = self._records_max = self._bytes = self._bytes_max = 0
        self._seconds_max = 0.0

    def add(self, partition: Partition, follower: Follower, now: float) -> int:
        """Add the lag in one partition. Return it, in records."""
        records = lag_records(partition, follower)
        if records:
            size = lag_bytes(partition, follower)
            self._records += records
            self._records_max = max(self._records_max, records)
            self._bytes += size
            self._bytes_max = max(self._bytes_max, size)
            self._seconds_max = max(self._seconds_max, now - follower.caught_up_at)
        return records

    def show(self, page: Page, where: str) -> None:
        text = "Lag of a follower in the partitions led here"
        for name, scope, value in (
            ("records", "sum of records", self._records),
            ("records_max", "records, largest of a partition", self._records_max),
            ("bytes", "sum of bytes", self._bytes),
            ("bytes_max", "bytes, largest of a partition", self._bytes_max),
            ("seconds_max", "time since it had all records, largest of a partition", self._seconds_max),
        ):
            page.gauge(f"ottla_follower_lag_{name}", f"{text}: {scope}.", value, where)


def lag_bytes(partition: Partition, follower: Follower) -> int:
    """Return about how many bytes of the log the follower does not have, exact to index.interval.bytes."""
    its_log = partition.log
    offset = max(follower.end_offset, its_log.log_start_offset)
    segments = its_log.segments
    first = max(bisect_right(segments, offset, key=attrgetter("base_offset")) - 1, 0)
    size = sum(segment.size_bytes for segment in segments[first:])
    try:
        return max(size - segments[first].indexed_position(offset), 0)
    except OSError:
        return size  # the index cannot be read; the fetch of the follower reports that


def lag_records(partition: Partition, follower: Follower) -> int:
    """Return how many offsets the follower is behind the end of the log; all of them before its first fetch."""
    its_log = partition.log
    return max(its_log.log_end_offset - max(follower.end_offset, its_log.log_start_offset), 0)
