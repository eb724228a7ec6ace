"""The periodic work on the logs: compaction, retention, flushes, and the limit on producers."""

from __future__ import annotations

import logging

from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.log.compaction import Compactor, plan_compaction
from ottla.log.log import Log
from ottla.log.retention import retention_start_offset
from ottla.model.settings import BrokerSettings

log = logging.getLogger(__name__)

_LONG_MAX = (1 << 63) - 1


class LogUpkeep:
    """Does what is due for the logs of all partitions."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._compactor: Compactor = replicas.compactor
        self._bytes_in_at_eviction = 0
        #: producers whose sequence numbers are kept, and those that expired early, because there were too many
        self.producers = 0
        self.producers_evicted = 0

    def apply_retention(self, partition: Partition, now_ms: int) -> None:
        """Delete the segments that are beyond the retention limits of the topic."""
        if partition.offline:
            return
        try:
            start = retention_start_offset(partition.log, partition.high_watermark, now_ms)
            self._replicas.advance_log_start(partition, start)
        except OSError as error:
            self._replicas.storage.log_failed(partition.log, error)

    def maybe_compact(self, now_ms: int, settings: BrokerSettings) -> bool:
        """Start to compact the log with the largest dirty ratio in the background. Return True while that runs."""
        if self._compactor.busy:
            self._compactor.resume()
            return True
        if not settings.log_cleaner_enable:
            return False
        plans = []
        for partition in self._replicas.all():
            its_log = partition.log
            if not its_log.settings.compact or partition.offline or its_log.is_uncleanable:
                continue
            if partition in self._replicas.moving:
                continue  # a copy would have other batches
            try:
                its_log.maybe_roll_by_age(now_ms)
                plan = plan_compaction(its_log, partition.last_stable_offset, now_ms)
            except OSError as error:
                self._replicas.storage.log_failed(its_log, error)
                continue
            if plan is not None:
                plans.append(plan)
        return self._compactor.start(plans, now_ms, settings)

    def apply_flush_interval(self) -> None:
        """Sync logs whose topic sets `flush.ms`."""
        for partition in self._replicas.all():
            its_log = partition.log
            if its_log.settings.flush_ms < _LONG_MAX and its_log.synced_end_offset < partition.high_watermark:
                self._replicas.commits.sync_in_background(partition)

    def evict_producers(self, count_max: int) -> None:
        """Forget idle producers, in the partitions that have most of them, until there are no more than ``count_max``.

        Called once a second. A producer that writes is not idle; an open transaction is never forgotten.
        """
        if self._replicas.commits.bytes_in == self._bytes_in_at_eviction:
            return  # no batch was written since the last call
        self._bytes_in_at_eviction = self._replicas.commits.bytes_in
        logs = [partition.log for partition in self._replicas.all()]
        self.producers = sum(each.producer_count for each in logs)
        if self.producers <= count_max:
            return
        for each in sorted(logs, key=_idle_producers, reverse=True):
            evicted = each.producers.evict(self.producers - count_max) if each.idle_producers else 0
            self.producers -= evicted
            self.producers_evicted += evicted
            if not evicted or self.producers <= count_max:
                break
        log.warning("producers expired early producers=%d evicted_in_total=%d", self.producers, self.producers_evicted)


def _idle_producers(its_log: Log) -> int:
    return its_log.idle_producers
