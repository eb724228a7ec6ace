"""This broker as a member of the cluster: registration, controller, replication, and what happens without the store.

    start      begin_run: mark lost and unclean logs ─► register ─► (controller elects) ─► roles change by watching
    running    heartbeats renew the lease; leaders change their ISR; followers fetch; one broker is the controller
    lease over acks=1 waits for the in-sync replicas; a leader whose in-sync replicas are silent stops leading
    stop       hand over leaderships ─► delete the registration

A single broker on the embedded store does the same with a lease that never ends and no one to replicate to.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from ottla.broker.cluster.broker_addresses import endpoint_for_brokers
from ottla.broker.cluster.contacts import Contacts
from ottla.broker.cluster.controller import Controller
from ottla.broker.cluster.failed_directories import FailedDirectories
from ottla.broker.cluster.incarnation import (
    Comparison,
    compare_usable,
    next_dirs,
    path_text,
    paths_by_id,
    run_number,
    write_runs,
)
from ottla.broker.cluster.isr_changes import CHECK_S, IsrChanges
from ottla.broker.cluster.registration import Registration
from ottla.broker.component import Component
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.leadership import (
    leave,
    mark_offline,
    mark_unclean,
    must_mark_offline,
    ops_elect,
    ops_mark_unclean,
)
from ottla.broker.metadata.multis import in_one_multi, names_by_multi
from ottla.broker.metadata.nodes import broker_json
from ottla.broker.metadata.store import Op, StoreError
from ottla.broker.metadata.view import (
    LOG_LOST,
    LOG_OFFLINE,
    BrokerView,
    ClusterView,
    LogEnd,
    PartitionView,
    RegisteredDirs,
    TopicView,
    ViewChanges,
    changed_partitions,
)
from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.isr import may_lead_again_without_store, may_lead_without_store
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.client.async_connections import BrokerClients, PeerUnreachable
from ottla.env.clock import Clock
from ottla.env.disk import Disk
from ottla.env.tasks import Tasks
from ottla.log.directories import DirContent
from ottla.log.log import Log
from ottla.log.store import LogStore
from ottla.model.errors import KafkaError, StartError
from ottla.model.features import FEATURES
from ottla.model.types import Endpoint, TopicPartition

log = logging.getLogger(__name__)

#: without the store a leader goes on if its in-sync replicas have fetched within this time
_SILENCE_S = 1.5
#: topics whose states are written in one multi
_TOPICS_PER_MULTI = 100
#: how often a replica that is not in the ISR syncs what it has fetched
_SYNC_S = 0.5
#: between two attempts to report failed log directories; each reads the whole metadata
_RECORD_S = 2.0
#: between two attempts to reach a broker whose connection was lost
_PROBE_S = 0.1


class Membership(Component):
    """The parts of a broker that concern other brokers."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        tasks: Tasks,
        disk: Disk,
        log_store: LogStore,
        clients: BrokerClients,
        incarnation: bytes,
        endpoints: tuple[Endpoint, ...],
        session_s: float | None,
        role_of: Callable[[PartitionView], PartitionView],
        roles_changed: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        """``role_of`` returns the state of a partition as this broker applies it.

        ``roles_changed`` is called when partitions stop to be led, or are led again, without a change of the view.
        ``fail`` ends the process with a reason.
        """
        self._metadata = metadata
        self._replicas = replicas
        self._loop = loop
        self._clock = clock
        self._role_of = role_of
        self._roles_changed = roles_changed
        self._fail = fail
        self._disk = disk
        self._log_store = log_store
        self._incarnation = incarnation
        self._session_s = session_s
        self._tasks = Tasks()
        self.endpoints = endpoints
        self.registration = Registration(
            metadata.store, metadata.broker_id, incarnation=incarnation, session_s=session_s, clock=clock,
            value=self._registration_json, endpoints=lambda: self.endpoints, rack=metadata.settings.broker_rack,
        )  # fmt: skip
        settings = metadata.settings
        is_balanced = settings.auto_leader_rebalance_enable
        self.controller = Controller(
            metadata.store, metadata.broker_id, view=lambda: metadata.view, may_lead=self._may_control,
            min_isr=self._min_isr, clock=clock,
            wanted_min_isr=lambda view, topic, count: metadata.wanted_min_isr(view, topic.config, count),
            balance_s=settings.leader_imbalance_check_interval_seconds if is_balanced else math.inf,
            imbalance_percentage=settings.leader_imbalance_per_broker_percentage,
            unclean_allowed=lambda topic: metadata.topic_settings(topic).unclean_leader_election_enable,
        )  # fmt: skip
        # The watch reports the new controller before the controller itself knows that it is elected.
        self.controller.on_elected = lambda: self._probe_others(metadata.view)
        self.isr_changes = IsrChanges(metadata=metadata, replicas=replicas, tasks=tasks)
        self._clients = clients
        self.fetchers = ReplicaFetchers(
            loop=loop, clients=clients, replicas=replicas, clock=clock,
            broker_id=metadata.broker_id, broker_epoch=lambda: self.registration.epoch,
            settings=lambda: metadata.settings,
        )  # fmt: skip
        log_store.records_failures = session_s is not None
        self._failed_dirs = FailedDirectories(
            metadata, disk=disk, log_store=log_store, registration=self.registration,
            mark=partial(self._mark, watched=False),
        )  # fmt: skip
        metadata.just_lost = self._just_lost
        self.registration.on_change = self._registration_changed
        self._contacts = Contacts()
        #: by broker id: the registration that is probed, and the task
        self._probes: dict[int, tuple[int, asyncio.Task[None]]] = {}
        #: numbers of the last run, and of the one that had the logs in directories that cannot be used
        self._last_run = self._unusable_run = -1
        self._is_lease_over = False
        self._is_leaving = False
        self._is_reporting = self._is_recording = False
        self._silence_check_due = self._sync_due = self._record_due = 0.0
        self._lease_checked_at = clock.since_boot()

    # -- start ----------------------------------------------------------------------------------------------------

    async def begin_run(self, last: RegisteredDirs | None, compared: Comparison) -> None:
        """Begin a run of this broker: from now on nothing of an earlier run counts. Mark logs that may lack records.

        ``last`` has the log directories of the last run, and ``compared`` is their comparison with the present ones.
        `incarnation` explains the order of these steps; the first one is done.
        """
        store, run = self._log_store, self._incarnation.hex()
        compared = compare_usable(store, compared.present, last)  # directories may have failed since
        used = store.usable_dirs()
        is_complete = len(used) == len(store.dirs)
        if last is not None:
            present = {each.directory_id for each in store.dirs}
            store.has_absent_dirs = any(each not in present for each in last.last_runs)
            self._last_run = run_number(last.run)
            runs = {run_number(last.last_runs[each]) for each in compared.missing}
            self._unusable_run = runs.pop() if len(runs) == 1 else self._last_run
        await self.registration.begin_run(last)
        if last is not None and compared.missing and is_complete:
            log.error(
                "log directories of the last run are missing: %s. Partitions whose logs were there have no log until "
                "it is copied from another replica. If the directories exist, add them to log.dirs again and restart "
                "partitions=%d first=%s", ", ".join(path_text(last, each) for each in compared.missing),
                len(self._log_store.created), min(map(str, self._log_store.created), default="-"),
            )  # fmt: skip
        if unclean := self._unclean_ends(compared, is_first_run=last is None):
            await self._mark_unclean(unclean, {name for name in unclean if self._was_never_stored(name, last)})
        unusable = () if is_complete else compared.missing
        dirs = next_dirs(last, paths_by_id(store, used), run, unusable)
        await self.registration.write_dirs(dirs)
        self._failed_dirs.begin(dirs, used)
        store.begin_writing()
        for each in store.usable_dirs():
            try:
                write_runs(self._disk, each.path, each.directory_id, run)
            except OSError as error:
                store.set_unusable(each, error)
        if store.records_failures:
            await self._failed_dirs.record(store.set_unusable)

    def _unclean_ends(self, compared: Comparison, *, is_first_run: bool) -> dict[TopicPartition, LogEnd]:
        """Return the ends of the logs that may lack records of the last run."""
        store = self._log_store
        lost = set(store.created if compared.missing else store.lost)
        # A broker without others keeps older copies: they are what an administrator has restored.
        if self._session_s is not None and DirContent.UNKNOWN in compared.contents.values():
            lost |= {name for name, its_log in store.logs.items() if self._may_be_older(name, its_log)}
            if compared.older:
                lost |= store.created
        return {
            name: _log_end(self._metadata.broker_id, its_log, is_lost=its_log.lost_synced or name in lost)
            for name, its_log in store.logs.items()
            if name in lost or not self._is_clean(name, is_first_run)
        }

    def _was_never_stored(self, name: TopicPartition, last: RegisteredDirs | None) -> bool:
        """Return whether a log that counts as lost had no synced records.

        It can only have been in directories that have been absent since the run of its mark. All of them are back, and
        none has a trace of it.
        """
        lost = self._state_of(name).lost_end(self._metadata.broker_id)
        if lost is None or lost.last_epoch == -1 or last is None:
            return False
        absent = {each for each, run in last.last_runs.items() if run_number(run) == lost.last_epoch}
        back = [each for each in self._log_store.usable_dirs() if each.directory_id in absent]
        return bool(absent) and len(back) == len(absent) and all(
            each.content is not DirContent.UNKNOWN and name not in each.known_names for each in back
        )  # fmt: skip

    def _may_be_older(self, name: TopicPartition, its_log: Log) -> bool:
        """Return whether the directory of a log is not known to have its last version."""
        directory = self._log_store.dir_of(its_log)
        last_run = self._state_of(name).last_run_of(self._metadata.broker_id)
        return directory.content is DirContent.UNKNOWN and not directory.run == last_run != -1

    def _state_of(self, name: TopicPartition) -> PartitionView:
        return self._metadata.view.topics[name.topic].partitions[name.partition]

    def _content_of(self, its_log: Log) -> DirContent:
        return self._log_store.dir_of(its_log).content

    def _is_clean(self, name: TopicPartition, is_first_run: bool) -> bool:
        """Return whether a log is as it was, and as the metadata say, when this broker stopped cleanly."""
        store, own = self._log_store, self._metadata.broker_id
        its_log = store.logs[name]
        if self._state_of(name).last_run_of(own) is not None:
            return False  # what the log contains now must be written
        if self._session_s is None:
            return True  # there is no other replica that could have more records
        if its_log.lost_synced or its_log.failure is not None:
            return False
        if self._content_of(its_log) in (DirContent.RETURNED, DirContent.AWAITED):
            return False
        if name in store.created:
            # A power failure may have taken the folder with the log, in any of the directories.
            return is_first_run or all(
                each.has_clean_stop for each in store.dirs if each.content is not DirContent.UNKNOWN
            )  # fmt: skip
        return str(name) in store.dir_of(its_log).clean_folders

    async def _mark_unclean(
        self, unclean: Mapping[TopicPartition, LogEnd], never_stored: Collection[TopicPartition]
    ) -> None:
        """Write the ends of logs into the partitions whose committed records this broker was known to have."""
        own = self._metadata.broker_id
        ends: dict[str, dict[int, LogEnd | None]] = {}
        runs: dict[str, dict[int, int]] = {}
        for name, its_log in self._log_store.logs.items():
            end, directory = unclean.get(name), self._log_store.dir_of(its_log)
            if directory.offline and end is not None and end.end_offset == LOG_OFFLINE:
                end = end._replace(last_epoch=self._unusable_run)
            ends.setdefault(name.topic, {})[name.partition] = end
            if name not in self._log_store.created and not directory.offline:
                runs.setdefault(name.topic, {})[name.partition] = directory.run
        _report_unclean(unclean)
        lost_synced = {name for name, its_log in self._log_store.logs.items() if its_log.lost_synced}
        destroyed = _numbers_by_topic(lost_synced | self._log_store.lost)
        never = _numbers_by_topic(never_stored)
        opened = {name: topic.topic_id for name, topic in self._metadata.view.topics.items()}

        def mark(topic: TopicView) -> TopicView | None:
            if opened[topic.name] != topic.topic_id:
                return mark_unclean(topic, own, {})  # the topic was created again since the logs were opened
            return mark_unclean(
                topic, own, ends[topic.name], runs=runs.get(topic.name, {}), last_run=self._last_run,
                destroyed=destroyed.get(topic.name, ()), never_stored=never.get(topic.name, ()),
            )  # fmt: skip

        current = await load_view(self._metadata.store)
        await self._mark(current, [name for name in current.topics if name in ends], mark, watched=False)

    async def _mark(
        self, view: ClusterView, names: Sequence[str], mark: Callable[[TopicView], TopicView | None], *, watched: bool
    ) -> None:
        """Write what ``mark`` makes of these topics, some of them in each multi. Raise KafkaError, StoreError."""
        own = self._metadata.broker_id
        for batch in names_by_multi(view, names, _TOPICS_PER_MULTI):

            def decide(view: ClusterView, batch: Sequence[str] = batch) -> tuple[Sequence[Op], None]:
                marked = [mark(view.topics[name]) for name in batch if name in view.topics]
                return ops_mark_unclean(view, [topic for topic in marked if topic is not None], own), None

            await self._metadata.write(decide, view=view, watched=watched)

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
            self._probe_others(view)
        self.controller.wake()

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
        self.check_lease(self._clock.since_boot())
        if self._is_lease_over:
            self._replicas.complete_confirmed()
        else:
            self.isr_changes.check(now)
            self._report_offline()
            self._record_failed_dirs()
        if now >= self._sync_due:
            self._sync_due = now + _SYNC_S
            self._sync_outsiders()

    def _sync_outsiders(self) -> None:
        """Sync the logs of replicas that are not in sync here: they join the ISR only with synced records."""
        replicas, own = self._replicas, self._metadata.broker_id
        for partition in replicas.unsettled():
            if partition.role is Role.FOLLOWER and own not in partition.isr:
                replicas.commits.sync_in_background(partition)

    def _report_offline(self) -> None:
        """Write into the metadata store that logs are offline, so that others lead their partitions."""
        own = self._metadata.broker_id
        if not self._replicas.storage.offline or self._is_reporting or self._session_s is None:
            return
        runs: dict[str, dict[int, int]] = {}
        for partition in self._replicas.storage.offline:
            name, number = partition.name
            topic, run = self._metadata.view.topics.get(name), self._failed_dirs.run_of(partition.log)
            if topic is not None and must_mark_offline(topic.partitions[number], own, run):
                runs.setdefault(name, {})[number] = run
        if runs:
            self._is_reporting = True
            self._tasks.start(self._mark_offline(runs), "report logs that are offline")

    async def _mark_offline(self, runs: Mapping[str, Mapping[int, int]]) -> None:
        own = self._metadata.broker_id
        ids = {name: self._metadata.view.topics[name].topic_id for name in runs}

        def mark(topic: TopicView) -> TopicView | None:
            is_same = ids[topic.name] == topic.topic_id  # otherwise the topic was created again, with another log
            return mark_offline(topic, own, runs[topic.name]) if is_same else None

        try:
            await self._mark(self._metadata.view, list(runs), mark, watched=True)
        except (KafkaError, StoreError) as error:
            log.warning("logs that are offline cannot be reported now error=%s", error)
        finally:
            self._is_reporting = False

    def _record_failed_dirs(self) -> None:
        """Write into the metadata store that log directories are offline, so that logs may be created."""
        store = self._log_store
        if not store.records_failures or not store.unrecorded_dirs() or self._is_recording or self._is_leaving:
            return
        if self._clock.monotonic() >= self._record_due:
            self._is_recording = True
            self._tasks.start(self._record(), "report log directories that are offline")

    async def _record(self) -> None:
        try:
            await self._failed_dirs.record(self._replicas.storage.fail_dir)
        except (KafkaError, StoreError, StartError, OSError) as error:
            log.warning("log directories that are offline cannot be reported now error=%s", error)
            self._record_due = self._clock.monotonic() + _RECORD_S
        finally:
            self._is_recording = False

    # -- without the store ------------------------------------------------------------------------------------------

    def _may_control(self) -> bool:
        if self._is_leaving:
            return False
        return self.registration.epoch >= 0 and self._clock.since_boot() < self.registration.lease.until

    def before_replies(self) -> None:
        """Stop to lead and to coordinate if this process was paused for longer than its lease.

        The lease of a broker that is alone never ends.
        """
        if self._session_s is not None:
            self.check_lease(self._clock.since_boot())

    def check_invariants(self) -> None:
        self.fetchers.check_invariants(set(self._replicas.all()))

    def is_lease_over(self) -> bool:
        """Return whether others may have been elected in the place of this broker."""
        self.before_replies()
        return self._is_lease_over

    def check_lease(self, now: float) -> None:
        """Called at the end of each turn, before anything is acknowledged, before a coordinator reads its state, and
        every CHECK_S. ``now`` is ``Clock.since_boot``.
        """
        has_stalled = now - self._lease_checked_at > _SILENCE_S
        self._lease_checked_at = now
        is_over = now >= self.registration.lease.until
        if is_over != self._is_lease_over:
            self._is_lease_over = is_over
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
            elif self.registration.epoch >= 0 and may_lead_again_without_store(partition, silence_s, now):
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
            self._replicas.apply_state(partition, self._role_of(topic.partitions[partition.name.partition]))

    def _lead_again(self) -> None:
        """Give the partitions that were suspended the roles that the view says."""
        self._metadata.is_cut_off = False
        for partition in self._replicas.replicated():
            self._apply_view(partition)
        self._follow(self._replicas.replicated())
        self._roles_changed()

    # -- the processes of other brokers -------------------------------------------------------------------------------

    def _probe_others(self, view: ClusterView) -> None:
        """Keep a connection to the controller, or to every other broker if this one is the controller."""
        self._contacts.note_registered(view.brokers, view.registered, self._loop.time())
        wanted: Mapping[int, BrokerView] = view.brokers
        if not self.controller.is_active:
            leader = view.controller.broker_id if view.controller is not None else None
            wanted = {number: broker for number, broker in wanted.items() if number == leader}
        for number, (epoch, probe) in list(self._probes.items()):
            # A broker that was started again has another epoch; the view may not have shown its absence.
            if number not in wanted or wanted[number].epoch != epoch or probe.done():
                del self._probes[number]
                probe.cancel()
        for number, broker in wanted.items():
            if number != self._metadata.broker_id and number not in self._probes:
                probe = self._tasks.keep(partial(self._probe, broker), f"probe broker {number}")
                self._probes[number] = broker.epoch, probe

    async def _probe(self, broker: BrokerView) -> None:
        """Delete the registration of a broker when its connection is lost and a new one is refused.

        Then no process listens at its address, so the broker has ended. Its session would end only seconds later. See
        `contacts.py` for the connections that are refused for another reason.
        """
        while True:
            opened_at = math.inf
            try:
                connection = await self._clients.open(endpoint_for_brokers(broker, self._metadata.settings))
                opened_at = self._loop.time()
                self._contacts.note_reached(broker)
                await connection.lost
            except PeerUnreachable as error:
                view = self._metadata.view
                current, run = view.brokers.get(broker.broker_id), view.registered.get(broker.broker_id)
                is_current = current is not None and current.epoch == broker.epoch
                if error.refused and is_current and run is not None and self._may_declare_dead(broker, run):
                    # Not in this task: the change that it makes ends this task.
                    self._tasks.start(self._declare_dead(broker, run), "declare a broker dead")
            # A broker that closes each new connection is not asked in a loop.
            if self._loop.time() - opened_at < _PROBE_S:
                await asyncio.sleep(_PROBE_S)

    def _may_declare_dead(self, broker: BrokerView, run: int) -> bool:
        endpoint = endpoint_for_brokers(broker, self._metadata.settings)
        opened_at = self._clients.opened_at.get(endpoint, -math.inf)
        return self._contacts.may_declare_dead(broker, run, opened_at, self._loop.time())

    async def _declare_dead(self, broker: BrokerView, run: int) -> None:
        self._contacts.note_declared_dead(broker, run)
        try:
            await self.controller.declare_dead(broker.broker_id, run)
        except StoreError as failure:
            log.warning("a broker that has ended stays registered for now error=%s", failure)

    # -- stop -----------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Hand over the leaderships of this broker and leave the in-sync replicas, as far as others can take over."""
        own = self._metadata.broker_id
        if self._session_s is None or not self._may_control():
            return
        # A controller would elect itself, and a fetch would delay the stop.
        self._is_leaving = True
        self.fetchers.stop()
        await self.controller.resign()
        # Each topic is handed over once: another controller may elect this broker again while it is alive.
        handed_over: set[str] = set()

        def decide(view: ClusterView) -> tuple[Sequence[Op], list[str]]:
            changed = [topic for topic in leave(view, own, min_isr=self._min_isr) if topic.name not in handed_over]
            topics = in_one_multi(changed, _TOPICS_PER_MULTI)
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
        for _, probe in self._probes.values():
            probe.cancel()
        self._is_leaving = True
        self.fetchers.stop()
        self._clients.close()

    async def end_run(self) -> None:
        """Delete the nodes of this broker, so that others need not wait for the end of its session."""
        await self.controller.resign()
        await self.registration.end()


def _numbers_by_topic(names: Iterable[TopicPartition]) -> dict[str, set[int]]:
    """Return the numbers of partitions by their topics."""
    numbers: dict[str, set[int]] = {}
    for name in names:
        numbers.setdefault(name.topic, set()).add(name.partition)
    return numbers


def _log_end(broker_id: int, of: Log, *, is_lost: bool) -> LogEnd:
    if is_lost:
        return LogEnd(broker_id, -1, LOG_LOST)
    if of.failure is not None:
        return LogEnd(broker_id, -1, LOG_OFFLINE)
    return LogEnd(broker_id, of.epochs.epoch_at(of.log_end_offset - 1), of.log_end_offset)


def _report_unclean(unclean: Mapping[TopicPartition, LogEnd]) -> None:
    """Log which logs may lack records, why, and what to do."""
    lost = [str(name) for name, end in unclean.items() if end.end_offset == LOG_LOST]
    shorter = [str(name) for name, end in unclean.items() if end.end_offset >= 0]
    if shorter:
        log.warning(
            "the broker or a log directory was not stopped cleanly, so logs may lack their last records. Other "
            "replicas lead these partitions until this one has copied what it lacks. Do nothing unless "
            "'ottla cluster status' still shows partitions without a leader: then start the other brokers "
            "partitions=%d first=%s", len(shorter), min(shorter),
        )  # fmt: skip
    if lost:
        log.error(
            "logs are lost: their folders or their log directory are missing, damaged or an older copy. They are "
            "copied from other replicas, and do not lead before. If 'ottla cluster status' shows partitions without a "
            "leader, stop this broker, put the directory back and start it again, or start the other brokers "
            "partitions=%d first=%s", len(lost), min(lost),
        )  # fmt: skip
