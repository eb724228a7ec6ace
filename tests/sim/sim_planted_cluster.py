"""Bugs of replication that are planted into the broker; see ``sim_planted.py``. Kafka once had several of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace as changed
from typing import Any

import ottla.broker.cluster.isr_changes as isr_changes_module
import ottla.broker.metadata.leadership as leadership_module
import ottla.broker.partitions.isr as isr_module
import ottla.log.loading as loading_module
from ottla.broker.cluster.isr_changes import IsrChanges
from ottla.broker.cluster.unclean_logs import UncleanLogs
from ottla.broker.coordination.coordination import Coordination
from ottla.broker.coordinators.outcome import Producer
from ottla.broker.coordinators.runtime import ShardRuntime
from ottla.broker.fetch.api import FetchApi
from ottla.broker.metadata.leadership import ops_elect
from ottla.broker.metadata.nodes import REGISTERED
from ottla.broker.metadata.store import Op
from ottla.broker.metadata.view import ClusterView, LogEnd, PartitionView, TopicView
from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.leader_fetcher import LeaderFetcher, _Followed
from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.transactions.checks import Term, TransactionChecks
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.net.connection import Connection
from ottla.wire.fetch import FetchRequest
from ottla.wire.replica_fetch import FollowerRow

Replace = Callable[[Any, str, Any], None]


def verdict_is_used_up(replace: Replace) -> None:
    """A verdict of another coordinator is used up by the first look, so that a batch that is opened later has none."""
    original = TransactionChecks.verdict

    def verdict(self: TransactionChecks, name: TopicPartition, producer: Producer, term: Term) -> ErrorCode:
        code = original(self, name, producer, term)
        self._guards = {key: guard for key, guard in self._guards.items() if key != (name, producer)}
        return code

    replace(TransactionChecks, "verdict", verdict)


def kip_101(replace: Replace) -> None:
    """A broker that becomes a follower truncates its log to its high watermark, which may be old."""
    original = Partition._become_follower

    def become_follower(self: Partition) -> None:
        original(self)
        if not self.log.pending and self.log.failure is None and not self.log.deleted:
            self.log.truncate_to(max(self.high_watermark, self.log.log_start_offset))

    replace(Partition, "_become_follower", become_follower)


def kip_903(replace: Replace) -> None:
    """A broker that starts after an unclean stop does not say so, and stays in the ISR without its lost records."""

    async def write(self: UncleanLogs, unclean: Mapping[TopicPartition, LogEnd], never_stored: object) -> None:
        return

    replace(UncleanLogs, "_write", write)


def kip_966(replace: Replace) -> None:
    """The last replica in sync leads again after it lost records; those that left the ISR before are not eligible."""
    original = leadership_module._with_isr

    def with_isr(partition: PartitionView, isr: tuple[int, ...], min_isr: int) -> PartitionView:
        return changed(original(partition, isr, min_isr), elr=())

    replace(leadership_module, "_with_isr", with_isr)


def _join_when_written(partition: Partition, broker_id: int, broker_epochs: Mapping[int, int]) -> bool:
    """Kafka's rule for a replica that joins the ISR, without a check of its broker epoch; it need not have synced."""
    return broker_id in broker_epochs and partition.followers[broker_id].end_offset >= partition.high_watermark


def _elect_without_runs(view: ClusterView, topics: Iterable[TopicView], registered: object = None) -> list[Op]:
    """The operations of an ISR change without the checks that the brokers that join were not started again."""
    return [op for op in ops_elect(view, topics) if not op.path.startswith(REGISTERED)]


def isr_join_without_epoch_check(replace: Replace) -> None:
    """A leader adds a replica to the ISR because of what an earlier process of that broker had fetched."""
    propose = IsrChanges._propose

    async def propose_for_any_run(self: IsrChanges, wanted: Any, registered: object, unsettled: Any) -> None:
        await propose(self, wanted, self._metadata.view.registered, unsettled)

    replace(isr_module, "may_join", _join_when_written)
    replace(IsrChanges, "_propose", propose_for_any_run)
    replace(isr_changes_module, "ops_change_isr", _elect_without_runs)


def kip_380(replace: Replace) -> None:
    """A leader ignores the broker epoch of a fetch: a late one of an earlier process counts for the new one."""
    begin, seen = FetchApi._begin_replica, dict[tuple[Partition, int, int], float]()

    def begin_for_any_run(self: FetchApi, connection: Connection, request: FetchRequest, by_id: bool) -> Any:
        return begin(self, connection, request._replace(replica_epoch=1 << 60), by_id)

    def may_join(partition: Partition, broker_id: int, broker_epochs: Mapping[int, int]) -> bool:
        """The broker has fetched since the leader knows its registration. As in Kafka, it need not have synced."""
        run = partition, broker_id, broker_epochs.get(broker_id, -1)
        seen_at = seen.setdefault(run, asyncio.get_running_loop().time())
        has_fetched = partition.followers[broker_id].fetched_at >= seen_at
        return has_fetched and _join_when_written(partition, broker_id, broker_epochs)

    replace(FetchApi, "_begin_replica", begin_for_any_run)
    replace(isr_module, "may_join", may_join)


def kip_279(replace: Replace) -> None:
    """A follower truncates to the leader's answer once, and does not compare what remains."""
    row, compared = _Followed.row, dict[_Followed, None]()

    def truncate(self: LeaderFetcher, followed: _Followed, epoch: int, end_offset: int) -> None:
        offset = min(end_offset, followed.partition.log.log_end_offset)
        compared[followed] = None
        self._request_truncation(followed, TruncationRequest(followed.partition, offset))

    def row_without_epoch(self: _Followed, size_bytes_max: int) -> FollowerRow:
        fetched = row(self, size_bytes_max)
        return fetched._replace(last_fetched_epoch=-1) if self in compared else fetched

    replace(LeaderFetcher, "_truncate", truncate)
    replace(_Followed, "row", row_without_epoch)


def kafka_7164(replace: Replace) -> None:
    """A follower compares epochs once per leader broker: it goes on fetching in a new epoch of the same leader."""
    row, compared = _Followed.row, dict[_Followed, None]()

    def follows(self: LeaderFetcher, partition: Partition) -> bool:
        followed = self._followed.get((partition.topic_id, partition.name.partition))
        if followed is None:
            return False
        if followed.leader_epoch != partition.leader_epoch:
            followed.leader_epoch = partition.leader_epoch
            self._changed[followed] = None
            self._send_soon()
        return True

    def row_with_epoch_once(self: _Followed, size_bytes_max: int) -> FollowerRow:
        fetched = row(self, size_bytes_max)
        if self not in compared:
            compared[self] = None
            return fetched
        return fetched._replace(last_fetched_epoch=-1, size_bytes_max=size_bytes_max)

    replace(LeaderFetcher, "follows", follows)
    replace(_Followed, "row", row_with_epoch_once)


def kip_320(replace: Replace) -> None:
    """A leader answers consumers that know an older leader epoch, so they do not notice that the log was truncated."""
    original = Partition.check_leads
    replace(Partition, "check_leads", lambda self, epoch=-1, **options: original(self, **options))


def recovery_fills_lost_offsets(replace: Replace) -> None:
    """After a power failure a batch without records takes the place of records that other replicas have."""
    original = loading_module.open_log
    replace(loading_module, "open_log", lambda *args, **options: original(*args, **{**options, "replicated": False}))


def coordinators_ignore_pauses_of_leadership(replace: Replace) -> None:
    """A coordinator whose broker did not lead for a while, in the same epoch, keeps what it had."""
    replace(Coordination, "roles_changed", lambda self: None)


def followers_sync_only_for_writers(replace: Replace) -> None:
    """A follower syncs only records for which a writer waits when they are fetched."""
    replace(ReplicaFetchers, "sync_when_idle", lambda self, partition: None)


def acknowledge_before_followers_sync(replace: Replace) -> None:
    """acks=all counts what followers have written, not what they have synced."""
    original = Partition._synced_end_offset

    def synced_end_offset(self: Partition, broker_id: int) -> int:
        follower = self.followers.get(broker_id)
        return original(self, broker_id) if follower is None else follower.end_offset

    replace(Partition, "_synced_end_offset", synced_end_offset)


def elected_but_not_applied(replace: Replace) -> None:
    """A new leader answers consumers before its high watermark has reached the start of its epoch (KIP-207)."""
    original = Partition._become_leader

    def become_leader(self: Partition) -> None:
        original(self)
        self.epoch_start_offset = 0

    replace(Partition, "_become_leader", become_leader)


def high_watermark_moves_back_in_election(replace: Replace) -> None:
    """A new leader forgets the high watermark that it knew as a follower."""
    original = Partition._become_leader

    def become_leader(self: Partition) -> None:
        original(self)
        self.high_watermark = self.log.log_start_offset

    replace(Partition, "_become_leader", become_leader)


def high_watermark_counts_one_follower(replace: Replace) -> None:
    """The high watermark is the end of the fastest in-sync follower, not of the slowest."""

    def update(self: Partition) -> None:
        ends = [self.followers[each].end_offset for each in self.isr if each in self.followers]
        end_offset = min(self.log.written_end_offset, max(ends, default=self.log.written_end_offset))
        if len(self.isr) >= self.min_in_sync and end_offset > self.high_watermark:
            self.advance_high_watermark(end_offset)

    replace(Partition, "update_high_watermark", update)


def kafka_9307(replace: Replace) -> None:
    """A coordinator that leads again keeps what it had loaded in an earlier leader epoch."""
    original = ShardRuntime.serve

    def serve(self: Any, partitions: dict[int, Partition]) -> None:
        led_elsewhere = {
            number: self._shards.pop(number)
            for number, partition in partitions.items()
            if number in self._shards and partition.role is not Role.LEADER
        }
        for number, hosted in self._shards.items():
            if number in partitions and hosted.partition is partitions[number]:
                hosted.leader_epoch = hosted.partition.leader_epoch
        original(self, partitions)
        self._shards.update(led_elsewhere)

    replace(ShardRuntime, "serve", serve)


CLUSTER_PLANTED: dict[str, Callable[[Replace], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        kip_101,
        kip_279,
        kip_320,
        kip_380,
        kip_903,
        kip_966,
        kafka_7164,
        kafka_9307,
        recovery_fills_lost_offsets,
        coordinators_ignore_pauses_of_leadership,
        followers_sync_only_for_writers,
        isr_join_without_epoch_check,
        acknowledge_before_followers_sync,
        elected_but_not_applied,
        high_watermark_moves_back_in_election,
        high_watermark_counts_one_follower,
        verdict_is_used_up,
    )
}
