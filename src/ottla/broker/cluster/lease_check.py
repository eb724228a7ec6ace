"""What a leader does when its lease is over, because it cannot reach the metadata store.

Others may have been elected in its place. It acknowledges only what the in-sync replicas have, and it stops leading
partitions whose in-sync replicas are silent (docs/decisions/0017).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable

from ottla.broker.cluster.registration import Registration
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.partitions.isr import may_lead_again_without_store, may_lead_without_store
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.env.clock import Clock

log = logging.getLogger(__name__)

#: without the store a leader goes on if its in-sync replicas have fetched within this time
_SILENCE_S = 1.5


class LeaseCheck:
    """Compares the lease of this broker with the clock, and suspends and resumes leaderships."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        registration: Registration,
        clock: Clock,
        is_alone: bool,
        follow: Callable[[Iterable[Partition]], None],
        roles_changed: Callable[[], None],
    ) -> None:
        """``follow`` fetches partitions that this broker follows.

        ``roles_changed`` is called when partitions stop to be led, or are led again, without a change of the view.
        """
        self._metadata = metadata
        self._replicas = replicas
        self._registration = registration
        self._clock = clock
        self._is_alone = is_alone
        self._follow = follow
        self._roles_changed = roles_changed
        #: whether others may have been elected in the place of this broker, as of the last check
        self.is_over = False
        self._silence_check_due = 0.0
        self._checked_at = clock.since_boot()

    def check_now(self) -> None:
        """Stop to lead and to coordinate if this process was paused for longer than its lease.

        The lease of a broker that is alone never ends.
        """
        if not self._is_alone:
            self.check(self._clock.since_boot())

    def check(self, now: float) -> None:
        """Called at the end of each turn, before anything is acknowledged, before a coordinator reads its state, and
        every CHECK_S. ``now`` is ``Clock.since_boot``.
        """
        has_stalled = now - self._checked_at > _SILENCE_S
        self._checked_at = now
        is_over = now >= self._registration.lease.until
        if is_over != self.is_over:
            self.is_over = is_over
            log.warning("the lease of this broker %s", "is over" if is_over else "is valid again")
            self._replicas.set_lease(is_over=is_over)
            if not is_over:
                self._lead_again()
        if is_over and (has_stalled or now >= self._silence_check_due):
            self._silence_check_due = now + _SILENCE_S / 5
            self._check_silence(has_stalled=has_stalled)

    def _check_silence(self, *, has_stalled: bool) -> None:
        """Stop to lead partitions whose in-sync replicas are silent. Lead those again whose replicas are not."""
        replicas, now = self._replicas, self._clock.monotonic()
        if has_stalled:
            # A process that was paused finds old requests of its followers in its sockets: they do not prove that the
            # followers still follow it.
            replicas.distrust_fetches()
        silence_s = -math.inf if has_stalled else _SILENCE_S
        suspended = resumed = 0
        for partition in replicas.replicated():
            if partition.role is Role.LEADER:
                if not may_lead_without_store(partition, silence_s, now):
                    replicas.suspend(partition)
                    suspended += 1
            elif self._registration.epoch >= 0 and may_lead_again_without_store(partition, silence_s, now):
                self._apply_view(partition)
                resumed += partition.leader_id == partition.broker_id
        if suspended or resumed:
            log.warning("leaders without the metadata store stopped=%d resumed=%d", suspended, resumed)
            self._metadata.is_cut_off = any(partition.suspended is not None for partition in replicas.replicated())
            self._roles_changed()

    def _apply_view(self, partition: Partition) -> None:
        """Give a partition the role that the view says."""
        topic = self._metadata.view.topics.get(partition.name.topic)
        if topic is not None and topic.topic_id == partition.topic_id:
            state = topic.partitions[partition.name.partition]
            self._replicas.apply_state(partition, state.applied_by(partition.broker_id))

    def _lead_again(self) -> None:
        """Give the partitions that were suspended the roles that the view says."""
        self._metadata.is_cut_off = False
        for partition in self._replicas.replicated():
            self._apply_view(partition)
        self._follow(self._replicas.replicated())
        self._roles_changed()
