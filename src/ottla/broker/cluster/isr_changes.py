"""Writes the leader's ISR changes to the metadata store: many partitions in one multi, one change of each at a time.

A replica that has caught up joins within CHECK_S. A replica that lags leaves when ``replica.lag.time.max.ms`` is over,
a silent one when ``replica.silence.time.max.ms`` is over, at most a tenth of this time later.
The decision is `partitions/isr.py`; versions in the store make sure that it is applied to the state it was made from.
After a conflict it is not repeated with the new version: the watch brings the new state, and the next check decides
again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.leadership import change_isr, ops_change_isr, replace_partition
from ottla.broker.metadata.multis import names_by_multi
from ottla.broker.metadata.store import Op, StoreError
from ottla.broker.metadata.view import ClusterView, TopicView
from ottla.broker.partitions.isr import Limits, wanted_isr
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.tasks import Tasks
from ottla.model.errors import KafkaError

log = logging.getLogger(__name__)

#: how often leaders look at the replicas that are not in sync
CHECK_S = 0.1
#: part of ``replica.lag.time.max.ms`` after which leaders look at all replicas, also at those that are in sync, and
#: part of ``replica.silence.time.max.ms`` after which they look at partitions with records that a replica may lack
_FULL_CHECK_PART = 1 / 10
#: a follower may be silent for this time more than for ``replica.fetch.wait.max.ms``
_SILENCE_MARGIN_S = 1.0
#: after a longer time without a check this process stood still
_PAUSE_S = 1.0
#: topics whose states are written in one multi
_TOPICS_PER_MULTI = 100


class IsrChanges:
    """The ISR changes of the partitions that this broker leads."""

    def __init__(self, *, metadata: ClusterMetadata, replicas: ReplicaManager, tasks: Tasks) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._tasks = tasks
        self._is_writing = False
        self._full_check_due = self._silence_check_due = 0.0
        self._checked_at = self._running_since = -math.inf
        # Counters
        self.shrinks = 0
        self.expands = 0

    def check(self, now: float) -> None:
        """Propose the changes that are due. Called every CHECK_S while the lease is valid."""
        if now - self._checked_at > _PAUSE_S:
            self._running_since = now
        self._checked_at = now
        if self._is_writing:
            return
        replicas, limits = self._replicas, self._limits()
        is_full, is_silence_due = now >= self._full_check_due, now >= self._silence_check_due
        if is_full:
            self._full_check_due = now + limits.lag_s * _FULL_CHECK_PART
        if is_silence_due:
            self._silence_check_due = now + limits.silence_s * _FULL_CHECK_PART
        view = self._metadata.view
        epochs = {number: broker.epoch for number, broker in view.brokers.items() if number not in view.leaving}
        wanted: dict[Partition, tuple[int, ...]] = {}
        # Thousands of partitions are in sync for days: between full checks only the others cost time.
        for partition in replicas.replicated() if is_full or is_silence_due else replicas.unsettled():
            if partition.role is not Role.LEADER:
                continue
            is_settled = partition.proposed_isr is None
            # An in-sync replica lacks records only if they are above the high watermark.
            is_behind = is_silence_due and partition.high_watermark < partition.log.log_end_offset
            if not (is_full or is_behind or not is_settled or _can_grow(partition, epochs)):
                continue
            isr = wanted_isr(partition, epochs, limits, now)
            if not is_settled or set(isr) != set(partition.isr):
                wanted[partition] = isr
        if wanted:
            # What is known of the followers belongs to the processes that are registered now (KIP-903).
            registered = dict(self._metadata.view.registered)
            unsettled = {partition for partition in wanted if partition.proposed_isr is not None}
            for partition, isr in wanted.items():
                # From now on a record is committed only when the replicas that join have it: the decision is right for
                # this high watermark. Until the outcome of all proposals is known, each of them may be the stored one.
                partition.proposed_isr = tuple(sorted({*(partition.proposed_isr or ()), *isr}))
                replicas.note_isr(partition)
            self._is_writing = True
            self._tasks.start(self._propose(wanted, registered, unsettled), "change in-sync replicas")

    def _limits(self) -> Limits:
        settings = self._metadata.settings
        lag_s = settings.replica_lag_time_max_ms / 1000
        fetch_s = settings.replica_fetch_wait_max_ms / 1000 + _SILENCE_MARGIN_S
        silence_s = min(max(settings.replica_silence_time_max_ms / 1000, fetch_s), lag_s)
        return Limits(lag_s, silence_s, self._running_since)

    async def _propose(
        self, wanted: dict[Partition, tuple[int, ...]], registered: Mapping[int, int], unsettled: set[Partition]
    ) -> None:
        try:
            by_topic: dict[str, list[Partition]] = {}
            for partition in wanted:
                by_topic.setdefault(partition.name.topic, []).append(partition)
            for names in names_by_multi(self._metadata.view, by_topic, _TOPICS_PER_MULTI):
                batch = [each for name in names for each in by_topic[name]]
                await self._write({partition: wanted[partition] for partition in batch}, registered, unsettled)
        finally:
            self._is_writing = False

    async def _write(
        self, wanted: dict[Partition, tuple[int, ...]], registered: Mapping[int, int], unsettled: set[Partition]
    ) -> None:
        """Write the changes of some partitions. ``unsettled`` are those with an earlier proposal of unknown outcome."""
        epochs = {partition: partition.leader_epoch for partition in wanted}
        # The watch brings the new ISR before the write returns.
        sizes = {partition: len(partition.isr) for partition in wanted}
        not_written: list[Partition] = []

        def decide(view: ClusterView) -> tuple[Sequence[Op], None]:
            not_written.clear()
            topics: dict[str, TopicView] = {}
            for partition, isr in wanted.items():
                name, number = partition.name
                topic = topics.get(name) or view.topics.get(name)
                if topic is None or topic.topic_id != partition.topic_id:
                    continue
                if partition.proposed_isr is None:
                    # Another change was applied meanwhile. Records may have been committed without the new replicas.
                    not_written.append(partition)
                    continue
                stored = topic.partitions[number]
                same_run = [n for n in isr if n in stored.isr or view.registered.get(n) == registered.get(n)]
                try:
                    state = change_isr(
                        topic, number, leader=self._metadata.broker_id, leader_epoch=epochs[partition], isr=same_run,
                        alive=view.brokers.keys() - view.leaving,
                        min_isr=self._metadata.topic_settings(topic).min_insync_replicas,
                    )  # fmt: skip
                except KafkaError as error:
                    log.info("an ISR change is refused partition=%s error=%s", partition.name, error)
                    state = stored
                if state is stored and partition in unsettled and stored.leader == self._metadata.broker_id:
                    state = stored.changed()  # a new version settles whether the earlier proposal was applied
                if (changed := replace_partition(topic, number, state)) is not None:
                    topics[name] = changed
                elif partition not in unsettled:
                    not_written.append(partition)
            return ops_change_isr(view, topics.values(), registered), None

        try:
            await self._metadata.write(decide)
        except (KafkaError, StoreError) as error:
            log.warning("in-sync replicas cannot be changed now error=%s", error)
            return
        for partition in not_written:
            partition.proposed_isr = None
            self._replicas.note_isr(partition)
            partition.update_high_watermark()
        for partition in wanted.keys() - set(not_written):
            self.shrinks += len(wanted[partition]) < sizes[partition]
            self.expands += len(wanted[partition]) > sizes[partition]


def _can_grow(partition: Partition, broker_epochs: Mapping[int, int]) -> bool:
    """Return whether a replica that is not in the ISR belongs to a registered broker that does not stop."""
    isr = partition.isr
    if len(isr) == len(partition.replicas):
        return False
    return any(number in broker_epochs for number in partition.replicas if number not in isr)
