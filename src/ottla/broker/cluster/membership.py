"""This broker as a member of the cluster: it registers, controls, follows leaders, and hands over its leaderships.

    start      `run_start.py` has begun a run ─► register ─► (controller elects) ─► roles change by watching
    running    heartbeats renew the lease; leaders change their ISR; followers fetch; one broker is the controller
    lease over `lease_check.py`: acks=1 waits for the in-sync replicas; leaders whose followers are silent stop leading
    stop       hand over leaderships ─► delete the registration

A single broker on the embedded store does the same with a lease that never ends and no one to replicate to.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence

from ottla.broker.cluster.broker_addresses import endpoint_for_brokers
from ottla.broker.cluster.controller import Controller
from ottla.broker.cluster.failed_directories import FailedDirectories
from ottla.broker.cluster.isr_changes import CHECK_S, IsrChanges
from ottla.broker.cluster.lease_check import LeaseCheck
from ottla.broker.cluster.log_marks import TOPICS_PER_MULTI
from ottla.broker.cluster.offline_reports import OfflineReports
from ottla.broker.cluster.probes import Probes
from ottla.broker.cluster.registration import Registration
from ottla.broker.component import Component
from ottla.broker.environment import Environment
from ottla.broker.metadata.broker_nodes import BrokerView
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.leadership import leave, ops_elect
from ottla.broker.metadata.multis import in_one_multi
from ottla.broker.metadata.nodes import broker_json
from ottla.broker.metadata.store import Op, StoreError
from ottla.broker.metadata.view import ClusterView, TopicView, ViewChanges, changed_partitions
from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.client.async_connections import BrokerClients, PeerUnreachable
from ottla.env.tasks import Tasks
from ottla.log.store import LogStore
from ottla.model.errors import KafkaError, StartError
from ottla.model.features import FEATURES
from ottla.model.types import Endpoint

log = logging.getLogger(__name__)

#: how often a replica that is not in the ISR syncs what it has fetched
_SYNC_S = 0.5


class Membership(Component):
    """The parts of a broker that concern other brokers."""

    def __init__(
        self,
        *,
        environment: Environment,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        log_store: LogStore,
        clients: BrokerClients,
        incarnation: bytes,
        endpoints: tuple[Endpoint, ...],
        roles_changed: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        """``roles_changed`` is called when partitions stop to be led, or are led again, without a change of the view.
        ``fail`` ends the process with a reason.
        """
        loop, clock, settings = environment.loop, environment.clock, metadata.started_settings
        is_alone = not settings.zookeeper_connect
        session_s = None if is_alone else settings.zookeeper_session_timeout_ms / 1000
        self._metadata = metadata
        self._replicas = replicas
        self._clock = clock
        self._fail = fail
        self._incarnation = incarnation
        self._is_alone = is_alone
        self._tasks = Tasks()
        self.endpoints = endpoints
        self.registration = Registration(
            metadata.store, metadata.broker_id, incarnation=incarnation, session_s=session_s, clock=clock,
            value=self._registration_json, endpoints=lambda: self.endpoints, rack=metadata.settings.broker_rack,
        )  # fmt: skip
        is_balanced = settings.auto_leader_rebalance_enable
        self.controller = Controller(
            metadata.store, metadata.broker_id, view=lambda: metadata.view, may_lead=self._may_control,
            min_isr=self._min_isr, clock=clock,
            wanted_min_isr=lambda view, topic, count: metadata.wanted_min_isr(view, topic.config, count),
            balance_s=settings.leader_imbalance_check_interval_seconds if is_balanced else math.inf,
            imbalance_percentage=settings.leader_imbalance_per_broker_percentage,
            unclean_allowed=lambda topic: metadata.topic_settings(topic).unclean_leader_election_enable,
        )  # fmt: skip
        self.isr_changes = IsrChanges(metadata=metadata, replicas=replicas, tasks=environment.tasks)
        self._clients = clients
        self.fetchers = ReplicaFetchers(
            loop=loop, clients=clients, replicas=replicas, clock=clock,
            broker_id=metadata.broker_id, broker_epoch=lambda: self.registration.epoch,
            settings=lambda: metadata.settings,
        )  # fmt: skip
        log_store.records_failures = not is_alone
        self.failed_dirs = FailedDirectories(
            metadata, disk=environment.disk, log_store=log_store, registration=self.registration
        )
        self._offline_reports = OfflineReports(
            metadata=metadata, replicas=replicas, log_store=log_store, failed_dirs=self.failed_dirs,
            tasks=self._tasks, monotonic=clock.monotonic, is_alone=is_alone,
        )  # fmt: skip
        self.lease_check = LeaseCheck(
            metadata=metadata, replicas=replicas, registration=self.registration, clock=clock, is_alone=is_alone,
            follow=self._follow, roles_changed=roles_changed,
        )  # fmt: skip
        self._probes = Probes(
            metadata=metadata, controller=self.controller, clients=clients, tasks=self._tasks, loop=loop
        )
        # The watch reports the new controller before the controller itself knows that it is elected.
        self.controller.on_elected = lambda: self._probes.follow(metadata.view)
        metadata.just_lost = self._just_lost
        self.registration.on_change = self._registration_changed
        self._is_leaving = False
        self._sync_due = 0.0

    # -- start ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, and start the tasks. The view is watched by now."""
        await self.registration.register()
        self._tasks.keep(self._stay_registered, "stay registered")
        self._tasks.keep(self.controller.run, "controller")
        self._tasks.keep(self._check_isr, "in-sync replicas")

    async def _stay_registered(self) -> None:
        try:
            await self.registration.keep()
        except StartError as error:  # another process has the id of this broker: it can never register again
            self._fail(str(error))

    def _min_isr(self, topic: TopicView) -> int:
        return self._metadata.topic_settings(topic).min_insync_replicas

    def _registration_json(self) -> bytes:
        settings = self._metadata.settings
        return broker_json(
            self.endpoints, rack=settings.broker_rack, incarnation=self._incarnation,
            timestamp_ms=self._clock.wall_ms(), features=FEATURES,
        )  # fmt: skip

    # -- changes --------------------------------------------------------------------------------------------------

    def on_view(self, changes: ViewChanges) -> None:
        """The view has changed; the partitions have their new roles."""
        view = self._metadata.view
        if changes.brokers:
            self._follow(self._replicas.replicated())
        else:
            self._follow(
                replica for old, new in changes.topics if new is not None
                for number in changed_partitions(old, new)
                if (replica := self._replicas.find(new.name, number)) is not None
            )  # fmt: skip
        if changes.brokers or changes.controller:
            self._probes.follow(view)
        concerns_all = changes.brokers or changes.controller or changes.broker_settings
        self.controller.wake(None if concerns_all else [new.name for _, new in changes.topics if new is not None])

    def _registration_changed(self) -> None:
        """Fetch with the new broker epoch, or not at all without one: a leader knows followers by their epochs."""
        partitions = self._replicas.replicated()
        for partition in partitions:
            self.fetchers.unfollow(partition)
        self._follow(partitions)
        self.controller.wake()

    def _follow(self, partitions: Iterable[Partition]) -> None:
        """Fetch from the leaders of these partitions, or stop to. Do nothing when this broker stops."""
        if self._is_leaving:
            return
        brokers = self._metadata.view.brokers if self.registration.epoch >= 0 else {}
        for partition in partitions:
            leader = brokers.get(partition.leader_id)
            endpoint = None
            if partition.role is Role.FOLLOWER and leader is not None and leader.broker_id != partition.broker_id:
                endpoint = self._endpoint_of(leader)
            if endpoint is not None:
                self.fetchers.follow(partition, endpoint)
            else:
                self.fetchers.unfollow(partition)

    def _just_lost(self) -> frozenset[int]:
        endpoints = self.fetchers.just_lost()
        if not endpoints:
            return frozenset()
        brokers = self._metadata.view.brokers
        return frozenset(number for number, broker in brokers.items() if self._endpoint_of(broker) in endpoints)

    def _endpoint_of(self, broker: BrokerView) -> Endpoint | None:
        """Return the address of another broker for brokers, None if it does not have that listener."""
        try:
            return endpoint_for_brokers(broker, self._metadata.settings)
        except PeerUnreachable as error:
            log.error("replicas of a broker cannot be fetched broker=%d error=%s", broker.broker_id, error)
            return None

    async def _check_isr(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check_replicas(self._clock.monotonic())

    def check_replicas(self, now: float) -> None:
        """Look at the lease and at the replicas of this broker. Called every CHECK_S."""
        self.lease_check.check(self._clock.since_boot())
        if self.lease_check.is_over:
            self._replicas.complete_confirmed()
        else:
            self.isr_changes.check(now)
            self._offline_reports.report_logs()
            if not self._is_leaving:
                self._offline_reports.report_directories()
        if now >= self._sync_due:
            self._sync_due = now + _SYNC_S
            self._sync_outsiders()

    def _sync_outsiders(self) -> None:
        """Sync the logs of replicas that are not in sync here: they join the ISR only with synced records."""
        replicas, own = self._replicas, self._metadata.broker_id
        for partition in replicas.unsettled():
            if partition.role is Role.FOLLOWER and own not in partition.isr:
                replicas.commits.sync_in_background(partition)

    # -- the lease -----------------------------------------------------------------------------------------------

    def _may_control(self) -> bool:
        if self._is_leaving:
            return False
        return self.registration.epoch >= 0 and self._clock.since_boot() < self.registration.lease.until

    def is_lease_over(self) -> bool:
        """Return whether others may have been elected in the place of this broker."""
        self.lease_check.check_now()
        return self.lease_check.is_over

    # -- stop -----------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Hand over the leaderships of this broker and leave the in-sync replicas, as far as others can take over."""
        own = self._metadata.broker_id
        if self._is_alone or not self._may_control():
            return
        # A controller would elect itself, and a fetch would delay the stop.
        self._is_leaving = True
        self.fetchers.stop()
        await self.controller.resign()
        # Each topic is handed over once: another controller may elect this broker again while it is alive.
        handed_over: set[str] = set()

        def decide(view: ClusterView) -> tuple[Sequence[Op], list[str]]:
            changed = [topic for topic in leave(view, own, min_isr=self._min_isr) if topic.name not in handed_over]
            topics = in_one_multi(changed, TOPICS_PER_MULTI)
            return ops_elect(view, topics), [topic.name for topic in topics]

        try:
            # First, because a leader without new records would add this broker to the ISR again: it has everything.
            await self.registration.announce_leave()
            while names := await self._metadata.write(decide):
                handed_over.update(names)
        except (KafkaError, StoreError) as error:
            log.warning("leaderships could not be handed over error=%s", error)

    async def complete_requests(self) -> None:
        """Stop all work that concerns other brokers. The broker stays registered until its logs are closed."""
        await self._tasks.stop()
        self._probes.stop()
        self._is_leaving = True
        self.fetchers.stop()
        self._clients.close()

    async def end_run(self) -> None:
        """Delete the nodes of this broker, so that others need not wait for the end of its session."""
        await self.controller.resign()
        await self.registration.end()
