"""Metrics of groups and transactions: counts by state, and the lag of every group under Kafka Lag Exporter's names.

``metrics.group.granularity`` decides how much is shown of each group:

    partition   offset, lag and age of the lag per partition, and all of the following
    topic       lag per topic, and all of the following
    group       largest lag, its age, and the sum, per group
    none        the number of groups by state

A page is made in two steps. ``collect_metrics`` counts groups on the event loop, in slices, and reads the timestamps
of the records at committed offsets in a thread, because they come from disk. ``metrics`` and ``detailed_metrics`` write
the page. They walk through the groups again for each kind of series instead of keeping rows: with 50,000 groups, as
many new objects would make Python's garbage collector stop the loop for 150 ms.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Set
from typing import Final, NamedTuple

from ottla.broker.component import Component
from ottla.broker.coordination.coordination import Coordination
from ottla.broker.groups.records import OffsetCommitValue
from ottla.broker.groups.shard import Group
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.env.clock import Clock
from ottla.env.metrics import Page, in_slices, label_text
from ottla.log.file_region import FileRegion
from ottla.log.opener import Opener
from ottla.model.errors import KafkaError
from ottla.model.records import DECOMPRESSED_BYTES_MAX, INT64_MIN

log = logging.getLogger(__name__)

#: batches that are read for one page to learn the age of a lag, and the time for it; later pages read the rest
_READS_MAX: Final = 1000
_READ_S_MAX: Final = 0.5
#: the first batch at an offset is wanted, however large it is
_ONE_BATCH: Final = 1

#: how many kinds of series are written for each group: as a whole, per topic, per partition
_WRITERS: Final = {"none": 0, "group": 1, "topic": 2, "partition": 3}

_PREFIX: Final = "kafka_consumergroup_group"
_NAN: Final = float("nan")


class Timestamps(dict[Partition, dict[int, int]]):
    """Timestamps of records, by partition and offset."""

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""
        self.pop(partition, None)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a partition is known that is not served."""
        assert self.keys() <= served, "timestamps"


#: a group's offsets by topic and partition
Committed = dict[tuple[str, int], OffsetCommitValue]
_NO_OFFSETS: Final[Committed] = {}


class Row(NamedTuple):
    """One partition that a group has committed an offset for."""

    topic: str
    number: int
    committed: int
    #: not less than ``committed``
    end_offset: int
    partition: Partition

    @property
    def lag(self) -> int:
        return self.end_offset - self.committed


class Collected(NamedTuple):
    """The figures of one page."""

    started: float
    #: by state and type
    groups: Counter[tuple[str, str]]
    #: by state
    transactional_ids: Counter[str]
    #: of the oldest transaction that is under way, 0 when none is
    oldest_transaction_ms: int


class GroupMetrics(Component):
    """Reads the figures of groups and transactions of one broker."""

    def __init__(
        self, metadata: ClusterMetadata, replicas: ReplicaManager, clock: Clock, coordination: Coordination
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._coordination = coordination
        #: those that the last page needed
        self._timestamps = Timestamps()
        replicas.referrers.append(self._timestamps)
        self._collected: Collected | None = None

    # -- collect ----------------------------------------------------------------------------------------------------

    async def collect_metrics(self) -> None:
        """Count groups and transactions, and learn the age of lags."""
        started = self._clock.monotonic()
        groups: Counter[tuple[str, str]] = Counter()
        await in_slices(self._count_steps(groups))
        if self._metadata.settings.metrics_group_granularity != "none":
            await self._read_timestamps()
        self._collected = Collected(started, groups, *await self._collect_transactions())

    def _count_steps(self, groups: Counter[tuple[str, str]]) -> Iterator[None]:
        for _, group, _ in self._groups():
            groups[group.state, group.group_type] += 1
            yield

    def _groups(self) -> Iterator[tuple[str, Group, Committed]]:
        """Iterate over the groups and their committed offsets; groups may come and go between two steps."""
        for shard in self._coordination.runtime.loaded_shards():
            for group_id in list(shard.groups):
                group = shard.groups.get(group_id)
                if group is not None:
                    yield group_id, group, shard.offsets.by_group.get(group_id, _NO_OFFSETS)

    def _rows(self, committed: Committed) -> Iterator[Row]:
        """Iterate over the partitions that are served; a commit is read before the end offset."""
        find = self._replicas.find
        for (topic, number), value in committed.items():
            offset = value.offset
            partition = find(topic, number)
            if partition is not None and not partition.offline:
                yield Row(topic, number, offset, max(partition.high_watermark, offset), partition)

    async def _collect_transactions(self) -> tuple[Counter[str], int]:
        ids: Counter[str] = Counter()
        now_ms = self._clock.wall_ms()
        began_ms = now_ms
        for shard in self._coordination.transactions.loaded_shards():
            counts, oldest_ms = shard.count_by_state()
            ids += counts
            if oldest_ms is not None:
                began_ms = min(began_ms, oldest_ms)
            await asyncio.sleep(0)
        return ids, now_ms - began_ms

    # -- the age of a lag -------------------------------------------------------------------------------------------

    async def _read_timestamps(self) -> None:
        """Learn the timestamps of records at committed offsets. An offset's record does not change."""
        needed = Timestamps()
        regions: list[tuple[Partition, int, FileRegion]] = []
        await in_slices(self._timestamp_steps(needed, regions))
        if regions:
            for (partition, offset, _), timestamp in zip(
                regions, await asyncio.to_thread(_read_all, regions, self._replicas.opener), strict=False
            ):
                needed[partition][offset] = timestamp
        # Partitions may have been removed meanwhile.
        served = set(self._replicas.all())
        self._timestamps.clear()
        self._timestamps.update((partition, known) for partition, known in needed.items() if partition in served)

    def _timestamp_steps(self, needed: Timestamps, regions: list[tuple[Partition, int, FileRegion]]) -> Iterator[None]:
        """Take over timestamps that are known, and find where the others are to be read."""
        places = 0
        places_max = self._metadata.settings.metrics_series_max
        for _, _, committed in self._groups():
            for row in self._rows(committed):
                partition, offset = row.partition, row.committed
                if not row.lag or places >= places_max or offset in needed.setdefault(partition, {}):
                    continue
                places += 1
                known = self._timestamps.get(partition, {}).get(offset)
                if known is not None:
                    needed[partition][offset] = known
                elif len(regions) < _READS_MAX and (region := _region(row)) is not None:
                    needed[partition][offset] = -1
                    regions.append((partition, offset, region))
            yield

    def _age_s(self, row: Row, now_ms: int) -> float:
        """Return the age of the first record that is not consumed; 0 if there is none, NaN if it is not known."""
        if not row.lag:
            return 0.0
        timestamp = self._timestamps.get(row.partition, {}).get(row.committed, -1)
        return max(now_ms - timestamp, 0) / 1000 if timestamp >= 0 else _NAN

    # -- the page ---------------------------------------------------------------------------------------------------

    def metrics(self, page: Page) -> Iterator[None]:
        coordination, collected = self._coordination, self._collected
        assert collected is not None
        for (state, kind), count in collected.groups.items():
            page.gauge("ottla_groups", "Groups by state and type.", count, label_text(state=state, type=kind))
        text = "Requests refused by a limit of a client host."
        page.counter("ottla_group_requests_refused", text, coordination.runtime.context.usage.refused)
        mismatches = coordination.runtime.mismatches + coordination.transactions.mismatches
        text = "Shards found to differ from a replay of their log."
        page.counter("ottla_group_replay_mismatches", text, mismatches)
        for state, count in collected.transactional_ids.items():
            page.gauge("ottla_transactional_ids", "Transactional ids by state.", count, label_text(state=state))
        age_s = collected.oldest_transaction_ms / 1000
        page.gauge("ottla_oldest_transaction_seconds", "Age of the oldest transaction under way.", age_s)
        for ending, count in coordination.transactions.ended.items():
            outcome = label_text(outcome=ending.value)
            page.counter("ottla_transactions", "Transactions whose outcome was decided.", count, outcome)
        page.counter("ottla_transaction_markers", "Markers written.", coordination.markers.written)
        took_ms = (self._clock.monotonic() - collected.started) * 1000
        cluster = label_text(cluster_name=self._metadata.cluster_id)
        page.gauge("kafka_consumergroup_poll_time_ms", "Time to collect the lag.", took_ms, cluster)
        yield

    def detailed_metrics(self, page: Page) -> Iterator[None]:
        """Write the figures of each partition and group; those of groups as a whole come before the details."""
        yield from self._partition_steps(page)
        now_ms = self._clock.wall_ms()
        granularity = self._metadata.settings.metrics_group_granularity
        writers = [self._group_totals, self._topic_rows, self._partition_rows]
        for write in writers[: _WRITERS[granularity]]:
            for group_id, group, committed in self._groups():
                if committed:
                    labels = label_text(
                        cluster_name=self._metadata.cluster_id, group=group_id, state=group.state,
                        is_simple_consumer="true" if group.protocol_type is None else "false",
                    )  # fmt: skip
                    write(page, committed, labels, now_ms)
                yield

    def _partition_steps(self, page: Page) -> Iterator[None]:
        for partition in self._replicas.all():
            where = label_text(
                cluster_name=self._metadata.cluster_id, topic=partition.name.topic, partition=partition.name.partition
            )
            page.gauge("kafka_partition_latest_offset", "End offset.", partition.high_watermark, where)
            page.gauge("kafka_partition_earliest_offset", "First offset.", partition.log.log_start_offset, where)
            yield

    def _group_totals(self, page: Page, committed: Committed, labels: str, now_ms: int) -> None:
        if page.is_full:
            page.left_out += 3
            return
        largest = total = rows = 0
        # A partition whose record has no timestamp says nothing about the others.
        oldest_s = _NAN
        for row in self._rows(committed):
            rows += 1
            largest = max(largest, row.lag)
            total += row.lag
            age_s = self._age_s(row, now_ms)
            oldest_s = age_s if oldest_s != oldest_s else max(oldest_s, age_s)
        if rows:
            page.gauge(f"{_PREFIX}_max_lag", "Largest lag of a partition.", largest, labels)
            page.gauge(f"{_PREFIX}_max_lag_seconds", "Largest age of a partition's lag.", oldest_s, labels)
            page.gauge(f"{_PREFIX}_sum_lag", "Lag of all partitions.", total, labels)

    def _topic_rows(self, page: Page, committed: Committed, labels: str, now_ms: int) -> None:
        if page.is_full:
            page.left_out += len({topic for topic, _ in committed})
            return
        by_topic: dict[str, int] = {}
        for row in self._rows(committed):
            by_topic[row.topic] = by_topic.get(row.topic, 0) + row.lag
        for topic, lag in by_topic.items():
            of_topic = f"{labels},{label_text(topic=topic)}"
            page.gauge(f"{_PREFIX}_topic_sum_lag", "Lag of a topic's partitions.", lag, of_topic)

    def _partition_rows(self, page: Page, committed: Committed, labels: str, now_ms: int) -> None:
        if page.is_full:
            page.left_out += 3 * len(committed)
            return
        for row in self._rows(committed):
            where = f"{labels},{label_text(topic=row.topic, partition=row.number)}"
            page.gauge(f"{_PREFIX}_offset", "Last committed offset.", row.committed, where)
            page.gauge(f"{_PREFIX}_lag", "Records that are not consumed yet.", row.lag, where)
            page.gauge(f"{_PREFIX}_lag_seconds", "Age of the first of them.", self._age_s(row, now_ms), where)


def _region(row: Row) -> FileRegion | None:
    """Return where the batch with the first record that is not consumed is stored."""
    partition = row.partition
    try:
        start = max(row.committed, partition.log.log_start_offset)
        return partition.log.read(start, _ONE_BATCH, row.end_offset, at_least_one=True)
    except (OSError, KafkaError) as error:
        log.warning("the age of a lag cannot be read partition=%s error=%s", partition.name, error)
        return None


def _read_all(regions: list[tuple[Partition, int, FileRegion]], opener: Opener) -> list[int]:
    """Return the timestamps of these records, -1 for those that cannot be read; fewer if it takes too long.

    Runs in a thread.
    """
    found: list[int] = []
    until = time.monotonic() + _READ_S_MAX
    for _, offset, region in regions:
        if time.monotonic() > until:
            break
        try:
            record = opener.find_timestamp(
                region.read(), INT64_MIN, starting_offset=offset, max_bytes=DECOMPRESSED_BYTES_MAX
            )
        except (OSError, KafkaError):
            record = None
        found.append(-1 if record is None else record[1])
    return found
