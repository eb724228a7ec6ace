"""What ties the coordinators to this broker: topics as groups see them, the journal, upkeep, figures for Prometheus.

A coordinator knows no metadata store and no metrics page; the broker knows no group. This file knows both.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ottla.broker.apis.topics import create_internal_topic
from ottla.broker.services import Services
from ottla.cluster.store import StoreError
from ottla.cluster.view import TopicView
from ottla.coordinator.group_runtime import OFFSETS_TOPIC, GroupRuntime
from ottla.coordinator.journal import JOURNAL_TOPIC, Rebalance, journal_key
from ottla.coordinator.outcome import World
from ottla.coordinator.transaction_runtime import TRANSACTION_TOPIC, MarkerWriter, TransactionRuntime
from ottla.env.metrics import Sample
from ottla.env.tasks import Tasks
from ottla.log.segment import FileRegion
from ottla.model.errors import InvalidRecord, KafkaError
from ottla.model.records import Record, build_batch, iterate_records
from ottla.replica.partition import Partition

log = logging.getLogger(__name__)

#: entries that wait for the journal's topic to be made; it takes milliseconds, so more means that it cannot be
_JOURNAL_WAITING_MAX = 1000
_JOURNAL_CONFIG = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(30 * 24 * 3_600_000),
    "segment.bytes": str(1 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}
#: a scrape that the loop does not get to in this time goes without lag
_COLLECT_S = 5.0
#: the first batch at an offset is wanted, however large it is
_ONE_BATCH = 1


class ViewTopics:
    """The broker's view of the cluster, as the coordinator asks for it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def version(self) -> int:
        return self._services.view.topics_version

    def partition_count(self, topic: str) -> int | None:
        view = self._services.view.topics.get(topic)
        return len(view.partitions) if view is not None else None

    def topic_id(self, topic: str) -> bytes | None:
        view = self._services.view.topics.get(topic)
        return view.topic_id if view is not None else None

    def topic_name(self, topic_id: bytes) -> str | None:
        view = self._services.view.topics_by_id.get(topic_id)
        return view.name if view is not None else None

    def names(self) -> Iterable[str]:
        return self._services.view.topics

    def end_offset(self, topic: str, partition: int) -> int | None:
        found = self._services.replicas.find(topic, partition)
        return found.high_watermark if found is not None else None


class Lag(NamedTuple):
    """One partition of one group at the time of a scrape."""

    group: str
    state: str
    is_simple: bool
    topic: str
    partition: int
    committed: int
    end_offset: int
    #: where the record at the committed offset is; None when there is none, and so no lag
    region: FileRegion | None


class Collected(NamedTuple):
    """What the loop owns, at the time of a scrape."""

    lags: list[Lag]
    #: by state and type
    groups: Counter[tuple[str, str]]
    #: by state
    transactional_ids: Counter[str]
    #: of the oldest transaction that is under way, 0 when none is
    oldest_transaction_ms: int


class Coordination:
    """The coordinators' place in a broker."""

    def __init__(
        self, services: Services, *, begin_turn: Callable[[], None], random_bytes: Callable[[int], bytes]
    ) -> None:
        self._services = services
        self._begin_turn = begin_turn
        self._tasks = Tasks()
        self._journal_waiting: deque[Rebalance] = deque(maxlen=_JOURNAL_WAITING_MAX)
        self.rebalances = 0
        world = World(
            settings=services.settings,
            topics=ViewTopics(services),
            new_uuid=lambda: str(uuid.UUID(bytes=random_bytes(16), version=4)),
        )
        parts = {
            "loop": services.loop, "clock": services.clock, "wheel": services.wheel, "replicas": services.replicas,
            "world": world, "begin_turn": begin_turn,
        }  # fmt: skip
        self.runtime = GroupRuntime(on_rebalance=self._note_rebalance, **parts)
        self.markers = MarkerWriter(
            replicas=services.replicas, clock=services.clock, wheel=services.wheel, begin_turn=begin_turn,
            on_written=self._marker_written,
        )  # fmt: skip
        self.transactions = TransactionRuntime(markers=self.markers, **parts)
        now = services.clock.monotonic()
        self._timeouts_due = now
        self._expiry_due = now + services.settings.offsets_retention_check_interval_ms / 1000
        self._verify_due = now
        self._verifying = False
        #: (group, topic, partition) -> (offset, timestamp of its record); an offset's record does not change
        self._timestamps: dict[tuple[str, str, int], tuple[int, int]] = {}

    # -- changes --------------------------------------------------------------------------------------------------

    def settings_changed(self) -> None:
        self.runtime.world.settings = self._services.settings

    def topics_changed(self, pairs: Iterable[tuple[TopicView | None, TopicView | None]]) -> None:
        """Called when the partitions of these topics are served, or no longer are."""
        deleted = []
        for old, new in pairs:
            name = new.name if new is not None else old.name if old is not None else ""
            if name == OFFSETS_TOPIC:
                self.runtime.serve(self._services.replicas.topics.get(OFFSETS_TOPIC.encode(), {}))
            elif name == TRANSACTION_TOPIC:
                self.transactions.serve(self._services.replicas.topics.get(TRANSACTION_TOPIC.encode(), {}))
            elif old is not None and (new is None or new.topic_id != old.topic_id):
                deleted.append(old.name)
        if deleted:
            self.runtime.topics_deleted(deleted)

    # -- upkeep ---------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        settings = self._services.settings
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
            self._verify_due = self._services.clock.monotonic() + interval_s

    async def stop(self) -> None:
        """Answer everybody who waits, so that the broker need not wait for them."""
        await self._tasks.stop()
        await self.runtime.stop()
        await self.transactions.stop()

    def _marker_written(self, partition: Partition, producer_id: int, commit: bool, end_offset: int) -> None:
        if partition.name.topic == OFFSETS_TOPIC:
            self.runtime.marker_written(partition, producer_id, commit=commit, end_offset=end_offset)

    # -- the journal ----------------------------------------------------------------------------------------------

    def _note_rebalance(self, rebalance: Rebalance) -> None:
        """Keep why a group rebalanced. Nobody waits for it, and a journal that cannot be written stops nothing."""
        self.rebalances += 1
        log.info(
            "group rebalanced group=%r generation=%d members=%d cause=%s seconds=%.3f", rebalance.group_id,
            rebalance.generation, rebalance.members_after,
            rebalance.causes[0].kind.value if rebalance.causes else "unknown", rebalance.duration_ms / 1000,
        )  # fmt: skip
        self._journal_waiting.append(rebalance)
        if JOURNAL_TOPIC in self._services.view.topics:
            self._write_journal()
        elif len(self._journal_waiting) == 1:
            self._tasks.start(self._make_journal(), "make the journal")

    async def _make_journal(self) -> None:
        try:
            await create_internal_topic(
                self._services, JOURNAL_TOPIC, partitions=1, replication_factor=3, config=_JOURNAL_CONFIG
            )
        except (StoreError, KafkaError) as error:
            self._journal_waiting.clear()
            log.error("the journal of rebalances cannot be made error=%s", error)
            return
        self._write_journal()

    def _write_journal(self) -> None:
        replicas = self._services.replicas
        partition = replicas.find(JOURNAL_TOPIC, 0)
        now_ms = self._services.clock.wall_ms()
        while self._journal_waiting:
            entry = self._journal_waiting.popleft()
            record = Record(
                timestamp=now_ms, key=journal_key(entry.group_id, entry.generation), value=entry.to_json()
            )  # fmt: skip
            batch = bytearray(build_batch([record]))
            try:
                if partition is not None:
                    self._begin_turn()
                    settings = partition.log.settings
                    replicas.append(partition, batch, memoryview(batch), 0, len(batch), now_ms, opened=settings)
            except KafkaError as error:
                log.warning("a rebalance was not noted group=%r error=%s", entry.group_id, error)

    # -- metrics --------------------------------------------------------------------------------------------------

    def samples(self, cluster: str) -> Iterator[Sample]:
        """Called in the metrics server's thread, which reads records; what the loop owns is asked for there."""
        started = self._services.clock.monotonic()
        future = asyncio.run_coroutine_threadsafe(self._collect(), self._services.loop)
        try:
            collected = future.result(_COLLECT_S)
        except (TimeoutError, asyncio.CancelledError):
            future.cancel()
            return
        for (state, kind), count in collected.groups.items():
            labels = (("state", state), ("type", kind))
            yield Sample("gauge", "ottla_groups", "Groups by state and type.", labels, count)
        yield Sample("counter", "ottla_group_rebalances", "Rebalances that were finished.", (), self.rebalances)
        yield Sample(
            "counter", "ottla_group_replay_mismatches", "Shards found to differ from a replay of their log.", (),
            self.runtime.mismatches + self.transactions.mismatches,
        )  # fmt: skip
        yield from self._transaction_samples(collected)
        yield from self._lag_samples(collected.lags, cluster)
        took_ms = (self._services.clock.monotonic() - started) * 1000
        where = (("cluster_name", cluster),)
        yield Sample("gauge", "kafka_consumergroup_poll_time_ms", "Time to collect the lag.", where, took_ms)

    async def _collect(self) -> Collected:
        """Commits first, heads second: a lag is never negative."""
        groups: Counter[tuple[str, str]] = Counter()
        rows: list[tuple[str, str, bool, str, int, int]] = []
        for shard in list(self.runtime.shards()):
            for group_id, group in shard.groups.items():
                state = group.state, group.group_type
                groups[state] += 1
                committed = shard.offsets.by_group.get(group_id, {})
                simple = group.protocol_type is None
                rows.extend((group_id, state[0], simple, *place, value.offset) for place, value in committed.items())
            await asyncio.sleep(0)
        lags = []
        for number, row in enumerate(rows):
            lag = self._lag(*row)
            if lag is not None:
                lags.append(lag)
            if number % 100 == 99:
                await asyncio.sleep(0)
        return Collected(lags, groups, *await self._collect_transactions())

    async def _collect_transactions(self) -> tuple[Counter[str], int]:
        ids: Counter[str] = Counter()
        now_ms = self._services.clock.wall_ms()
        began_ms = now_ms
        for shard in list(self.transactions.shards()):
            counts, oldest_ms = shard.census()
            ids += counts
            if oldest_ms is not None:
                began_ms = min(began_ms, oldest_ms)
            await asyncio.sleep(0)
        return ids, now_ms - began_ms

    def _transaction_samples(self, collected: Collected) -> Iterator[Sample]:
        for state, count in collected.transactional_ids.items():
            labels = (("state", state),)
            yield Sample("gauge", "ottla_transactional_ids", "Transactional ids by state.", labels, count)
        age_s = collected.oldest_transaction_ms / 1000
        yield Sample("gauge", "ottla_oldest_transaction_seconds", "Age of the oldest one under way.", (), age_s)
        for ending, count in self.transactions.ended.items():
            labels = (("outcome", ending.value),)
            yield Sample("counter", "ottla_transactions", "Transactions whose outcome was settled.", labels, count)
        yield Sample("counter", "ottla_transaction_markers", "Markers written.", (), self.markers.written)

    def _lag(self, group: str, state: str, simple: bool, topic: str, number: int, committed: int) -> Lag | None:
        partition = self._services.replicas.find(topic, number)
        if partition is None or partition.offline:
            return None
        end, region = partition.high_watermark, None
        known = self._timestamps.get((group, topic, number))
        if committed < end and (known is None or known[0] != committed):
            try:
                start = max(committed, partition.log.log_start_offset)
                region = partition.log.read(start, _ONE_BATCH, end, at_least_one=True)
            except (OSError, KafkaError) as error:
                log.warning("time lag cannot be read partition=%s error=%s", partition.name, error)
        return Lag(group, state, simple, topic, number, committed, max(end, committed), region)

    def _lag_samples(self, lags: list[Lag], cluster: str) -> Iterator[Sample]:
        now_ms = self._services.clock.wall_ms()
        by_group: dict[tuple[str, str, str], list[tuple[str, int, float]]] = {}
        for lag in lags:
            simple = str(lag.is_simple).lower()
            labels = (
                ("cluster_name", cluster), ("group", lag.group), ("topic", lag.topic),
                ("partition", str(lag.partition)), ("state", lag.state), ("is_simple_consumer", simple),
            )  # fmt: skip
            behind, seconds = lag.end_offset - lag.committed, self._lag_seconds(lag, now_ms)
            by_group.setdefault((lag.group, lag.state, simple), []).append((lag.topic, behind, seconds))
            prefix = "kafka_consumergroup_group"
            yield Sample("gauge", f"{prefix}_offset", "Last committed offset.", labels, lag.committed)
            yield Sample("gauge", f"{prefix}_lag", "Records that are not consumed yet.", labels, behind)
            yield Sample("gauge", f"{prefix}_lag_seconds", "Age of the first of them.", labels, seconds)
        for (group, state, simple), rows in by_group.items():
            yield from _group_totals(cluster, group, state, simple, rows)
        for partition in self._services.replicas.all():
            where = (
                ("cluster_name", cluster), ("topic", partition.name.topic),
                ("partition", str(partition.name.partition)),
            )  # fmt: skip
            yield Sample("gauge", "kafka_partition_latest_offset", "End offset.", where, partition.high_watermark)
            start = partition.log.log_start_offset
            yield Sample("gauge", "kafka_partition_earliest_offset", "First offset.", where, start)

    def _lag_seconds(self, lag: Lag, now_ms: int) -> float:
        """Now minus the timestamp of the record at the committed offset, read from the log."""
        if lag.committed >= lag.end_offset:
            return 0.0
        place = lag.group, lag.topic, lag.partition
        if lag.region is not None:
            try:
                timestamp = next(
                    (each.timestamp for each in iterate_records(lag.region.read()) if each.offset >= lag.committed), -1
                )
            except (OSError, InvalidRecord):
                timestamp = -1
            self._timestamps[place] = lag.committed, timestamp
        timestamp = self._timestamps.get(place, (0, -1))[1]
        return max(now_ms - timestamp, 0) / 1000 if timestamp >= 0 else float("nan")


def _group_totals(
    cluster: str, group: str, state: str, simple: str, rows: list[tuple[str, int, float]]
) -> Iterator[Sample]:
    labels = (("cluster_name", cluster), ("group", group), ("state", state), ("is_simple_consumer", simple))
    prefix = "kafka_consumergroup_group"
    # A partition whose record has no time says nothing about the others.
    seconds = [each for _, _, each in rows if each == each] or [float("nan")]
    yield Sample("gauge", f"{prefix}_max_lag", "Largest lag of a partition.", labels, max(row[1] for row in rows))
    yield Sample("gauge", f"{prefix}_max_lag_seconds", "Largest age of a partition.", labels, max(seconds))
    yield Sample("gauge", f"{prefix}_sum_lag", "Lag of all partitions.", labels, sum(row[1] for row in rows))
    by_topic: dict[str, int] = {}
    for topic, behind, _ in rows:
        by_topic[topic] = by_topic.get(topic, 0) + behind
    for topic, behind in by_topic.items():
        of_topic = (*labels, ("topic", topic))
        yield Sample("gauge", f"{prefix}_topic_sum_lag", "Lag of a topic's partitions.", of_topic, behind)
