"""Invariants of replication, checked while several brokers run and when the world has healed.

``StoreMirror`` applies every change of the metadata store at the moment when the ensemble makes it. Brokers learn of it
later. ``ReplicationInvariants`` compares the replicas with it and with each other.

A record below the high watermark is in the files of all in-sync replicas, but not necessarily synced. Power failures of
several brokers may therefore lose records that were read, as long as no producer got an acknowledgement of acks=all for
them or for a later one. The history forgets these reads when a leader is elected whose log does not have them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from sim_contents import CommittedContent
from sim_host import BrokerHost
from sim_invariants import batches_of

from ottla.broker.cluster.controller import Controller
from ottla.broker.cluster.membership import Membership
from ottla.broker.cluster.registration import Lease
from ottla.broker.metadata.nodes import CONTROLLER_EPOCH
from ottla.broker.metadata.store import Changed, Op
from ottla.broker.metadata.view import NO_LEADER, ClusterView, ControllerView, PartitionView
from ottla.broker.partitions.partition import Partition, Role
from ottla.log.log import Log
from ottla.model.records import iterate_records
from ottla.testing.history import Place
from ottla.testing.metadata_store import SimulatedStore

if TYPE_CHECKING:
    from sim_world import World

#: a healed cluster has all replicas in sync after this time
IN_SYNC_WITHIN_S = 40.0
#: how long a broker without a lease may act on its old role after another one was elected: its followers are silent
#: then, and it looks at that every 0.3 seconds
_OLD_ROLE_S = 2.0


class StoreMirror:
    """The metadata as the ensemble has it, and checks of every change."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.view = ClusterView()
        #: the time of the last change of the leader
        self._elected_at: dict[Place, float] = {}
        #: by broker: until when its last lease was valid that ended with a session
        self._leased_until: dict[int, float] = {}
        #: operations that a controller has decided, with its epoch; by the identity of the operation
        self._decided: dict[int, tuple[Op, ControllerView]] = {}
        ensemble = world.ensemble
        publish, multi = ensemble._publish, ensemble.multi

        def publish_and_check(changes: list[Changed]) -> None:
            self._apply(changes)
            publish(changes)

        def multi_and_check(store: SimulatedStore, ops: Sequence[Op]) -> Any:
            before = ensemble._change
            written = multi(store, ops)
            # None is the answer of a multi that was applied and of one that was not.
            if ensemble._change != before:
                self._check_decision(ops)
            return written

        ensemble._publish = publish_and_check  # type: ignore[method-assign]
        ensemble.multi = multi_and_check  # type: ignore[method-assign]

    def watch_controller(self, host: BrokerHost, controller: Controller) -> None:
        """Note the decisions of a broker's controller."""
        decide = controller._next_changes

        def decide_and_note(names: Collection[str] | None, view: ClusterView) -> Any:
            ops, result = decide(names, view)
            decided_as = ControllerView(host.broker_id, controller.epoch)
            self._decided.update((id(op), (op, decided_as)) for op in ops)
            return ops, result

        controller._next_changes = decide_and_note  # type: ignore[method-assign]

    def watch_lease(self, host: BrokerHost, lease: Lease) -> None:
        """Note when a broker learns that its session has expired: what it acknowledged before may still arrive."""
        end = lease.end

        def note_and_end() -> None:
            now = self._world.loop.time()
            self._leased_until[host.broker_id] = now + min(lease.until - host.clock.since_boot(), 0.0)
            end()

        lease.end = note_and_end  # type: ignore[method-assign]

    def _check_decision(self, ops: Sequence[Op]) -> None:
        """A multi was applied. A decision of a controller counts only while no other broker has become it."""
        decided = [self._decided[id(op)][1] for op in ops if id(op) in self._decided]
        epoch = self.view.versions.get(CONTROLLER_EPOCH, 0)
        if decided and decided[0].epoch != epoch:
            line = f"broker {decided[0].broker_id} decided as the controller of epoch {decided[0].epoch}"
            self._say("former-controller-decided", f"{line}, but the epoch is {epoch}")

    def _apply(self, changes: list[Changed]) -> None:
        controller_epoch = self.view.versions.get(CONTROLLER_EPOCH, 0)
        for old, new in self.view.apply(changes).topics:
            if old is not None and new is not None and old.topic_id == new.topic_id:
                for number, (before, after) in enumerate(zip(old.partitions, new.partitions, strict=False)):
                    self._compare(Place(new.name, number), before, after)
            for number, state in enumerate(new.partitions if new is not None else ()):
                assert new is not None
                self._check(Place(new.name, number), state)
        if self.view.versions.get(CONTROLLER_EPOCH, 0) < controller_epoch:
            self._world.violation("controller-epoch-moved-back", f"it was {controller_epoch}")

    def _compare(self, place: Place, before: PartitionView, after: PartitionView) -> None:
        if before == after:
            return
        self._world.trace(
            f"state of {place}: leader {after.leader} epoch {after.leader_epoch} isr {list(after.isr)} "
            f"partition epoch {after.partition_epoch} elr {list(after.elr)} unclean {[tuple(e) for e in after.unclean]}"
        )
        if after.leader != before.leader:
            self._elected_at[place] = self._world.loop.time()
        if after.leader_epoch < before.leader_epoch or after.partition_epoch <= before.partition_epoch:
            line = f"{place}: from {before.leader_epoch}/{before.partition_epoch}"
            self._say("store-epoch-moved-back", f"{line} to {after.leader_epoch}/{after.partition_epoch}")
        if after.leader != before.leader and after.leader_epoch == before.leader_epoch:
            self._say("leader-without-epoch", f"{place}: from {before.leader} to {after.leader}")
        if self._world.replication is not None:
            self._world.replication.check_eligible(place)

    def _check(self, place: Place, state: PartitionView) -> None:
        if state.leader != NO_LEADER and state.leader not in state.isr:
            self._say("leader-not-in-sync", f"{place}: leader {state.leader}, ISR {list(state.isr)}")
        if not state.isr or not {*state.isr, *state.elr} <= {*state.replicas}:
            self._say("isr-invalid", f"{place}: ISR {list(state.isr)}, ELR {list(state.elr)} of {list(state.replicas)}")

    def _say(self, name: str, line: str) -> None:
        self._world.violation(name, line)

    # -- questions ------------------------------------------------------------------------------------------------

    def leader_of(self, place: Place) -> int | None:
        """Return the broker that leads a partition; None if there is none."""
        topic = self.view.topics.get(place.topic)
        if topic is None or place.partition >= len(topic.partitions):
            return None
        leader = topic.partitions[place.partition].leader
        return None if leader == NO_LEADER else leader

    def epoch_of(self, place: Place) -> int:
        """Return the leader epoch of a partition; -1 if it does not exist."""
        topic = self.view.topics.get(place.topic)
        is_there = topic is not None and place.partition < len(topic.partitions)
        return topic.partitions[place.partition].leader_epoch if topic is not None and is_there else -1

    def may_act_on_old_role(
        self, broker: int | None, place: Place, asked_at: float, s_after: float = _OLD_ROLE_S
    ) -> bool:
        """Return whether a broker that does not lead a partition any more may answer at this time as if it did.

        It may do so as long as it has its lease, and for some seconds after the election.
        """
        if broker is None or self.leader_of(place) == broker:
            return False
        host = self._world.hosts[broker]
        membership = host.membership
        lease_s = membership.registration.lease.until - host.clock.since_boot() if membership is not None else -math.inf
        leased_until = max(self._world.loop.time() + lease_s, self._leased_until.get(broker, -math.inf))
        has_lease = asked_at < leased_until
        return has_lease or asked_at < self._elected_at.get(place, 0.0) + s_after

    def partitions(self) -> Iterator[tuple[Place, PartitionView]]:
        for topic in self.view.topics.values():
            for number, state in enumerate(topic.partitions):
                yield Place(topic.name, number), state

    def out_of_sync(self) -> list[str]:
        """Return what keeps partitions from having a leader and all replicas in sync."""
        return [
            f"{place}: leader {state.leader}, ISR {list(state.isr)} of {list(state.replicas)}"
            for place, state in self.partitions()
            if state.leader == NO_LEADER or set(state.isr) != set(state.replicas)
        ]

    def lost_logs_of(self, broker: int) -> bool:
        """Return whether the store lists the broker's log of some partition as lost or as an older copy."""
        return any(
            end.broker == broker and end.end_offset < 0 for _, state in self.partitions() for end in state.unclean
        )


class Election(NamedTuple):
    """A broker began to lead a partition."""

    epoch: int
    #: the end of its log
    end_offset: int
    #: power failures before it
    power_failures: int


class ReplicationInvariants:
    """What replication promises."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.store = StoreMirror(world)
        #: what the partitions of the clients have committed
        self._committed: dict[Place, CommittedContent] = {}
        #: by partition, in their order
        self.elections: dict[Place, list[Election]] = {}
        #: the broker that leads, and the number of its start, by topic id, partition and leader epoch: the epochs of
        #: a topic that is created again start at 0
        self._leaders: dict[tuple[bytes, int, int], tuple[int, int]] = {}
        #: the highest offset that acks=all acknowledged
        self._acknowledged: dict[Place, int] = {}
        #: the highest high watermark that a reader was told, with the leader epoch
        self._told: dict[Place, tuple[int, int]] = {}
        #: power failures before the request of that reader
        self._told_failures: dict[Place, int] = {}
        #: the synced end of each replica when its process ended or it was removed
        self._synced: dict[tuple[int, Place], int] = {}
        #: power failures so far
        self.power_failures = 0
        #: by broker: the part of its process whose decisions are noted
        self._watched: dict[int, Membership] = {}

    # -- events ---------------------------------------------------------------------------------------------------

    def process_ends(self, host: BrokerHost, *, power_failed: bool) -> None:
        self.power_failures += power_failed
        self._world.history.power_failures = self.power_failures
        for partition in host.broker.replicas.all() if host.broker is not None else ():
            self._synced[host.broker_id, _place(partition)] = partition.log.synced_end_offset

    def state_applied(self, host: BrokerHost, partition: Partition) -> None:
        """A broker applied the store's state of a partition. Check a broker that begins to lead."""
        if partition.role is not Role.LEADER:
            return
        place, epoch, process = _place(partition), partition.leader_epoch, (host.broker_id, host.starts)
        key = partition.topic_id, place.partition, epoch
        known = self._leaders.get(key)
        if known == process:
            return
        if known is not None and known[0] != host.broker_id:
            self._say("two-leaders", f"{place}: brokers {known[0]} and {host.broker_id} in epoch {epoch}")
            return
        self._leaders[key] = process
        end = _end_of_records(partition)
        self._world.trace(f"{host.name} leads {place} in epoch {epoch} from offset {end}")
        if self.store.epoch_of(place) > epoch:
            return  # an old state, for example of a server of the store that lags: another broker leads by now
        elections = self.elections.setdefault(place, [])
        if not elections or elections[-1].epoch < epoch:
            elections.append(Election(epoch, end, self.power_failures))
        acknowledged = self._acknowledged.get(place, -1)
        if acknowledged >= end:
            line = f"{place}: {host.name} leads from offset {end}, but acks=all acknowledged offset {acknowledged}"
            self._say("leader-lacks-acknowledged", line)
        self._check_committed(host, place, epoch, end)
        self._forget_weak(place, partition.log)
        if self.power_failures:
            self._world.history.forget_unsynced(
                lambda where, offset: where == place and offset >= end and offset > acknowledged
            )

    def _check_committed(self, host: BrokerHost, place: Place, epoch: int, end: int) -> None:
        """A new leader has every record that was committed or read, unless a power failure has lost it since then."""
        told_epoch, told = self._told.get(place, (-1, -1))
        if told > end and told_epoch < epoch:
            if self._told_failures.get(place) == self.power_failures:
                line = f"{place}: {host.name} leads from offset {end}, but a reader was told the high watermark {told}"
                self._say("leader-below-high-watermark", line)
            self._told[place] = told_epoch, end
        committed = self._committed.get(place)
        if committed is not None and committed.end_offset > end:
            if committed.power_failures == self.power_failures:
                line = f"{place}: {host.name} leads from offset {end}, but offset {committed.end_offset - 1}"
                self._say("leader-lacks-committed", f"{line} was committed, and the power has not failed since then")
            committed.remove_from(end)

    def _forget_weak(self, place: Place, log: Log) -> None:
        """A new leader need not have what acks=1 acknowledged and was not committed."""
        committed = self._committed.get(place)
        uncommitted_from = committed.end_offset if committed is not None else 0
        self._world.history.forget_weak(
            place, lambda offset, value: offset >= uncommitted_from and _value_at(log, offset) != value
        )

    def leadership(self, place: Place) -> tuple[int, int]:
        """Return the leader of a partition and its epoch as the store has them."""
        state = self.store.view.topics[place.topic].partitions[place.partition]
        return state.leader, state.leader_epoch

    def acknowledged_weakly(
        self, broker: int, place: Place, offset: int, asked_at: float, before: tuple[int, int] | None
    ) -> bool:
        """A producer that asked at this time got an acknowledgement of acks=1. Return whether the record must stay.

        ``before`` was the leadership when it asked. Without a lease a broker acknowledges nothing that another leader
        may not have. One that was elected, and does not know it yet, may still have copied the record. Without a leader
        one of the in-sync replicas will be elected.
        """
        leadership = self.leadership(place)
        in_sync = self.store.view.topics[place.topic].partitions[place.partition].isr
        leads_next = in_sync if leadership[0] == NO_LEADER else leadership[:1]
        if (
            leadership[0] != broker
            and not self.store.may_act_on_old_role(broker, place, asked_at, s_after=0.0)
            and not self._have_same(place, offset, broker, *leads_next)
        ):
            line = f"{place}: broker {broker}, which had no lease, acknowledged offset {offset} with acks=1"
            self._say("acknowledged-by-replaced-leader", f"{line}; {leadership[0]} leads in epoch {leadership[1]}")
        return leadership == before and leadership[0] == broker

    def _have_same(self, place: Place, offset: int, *brokers: int) -> bool:
        """Return whether the logs of these brokers have the same record at an offset."""
        values = []
        for number in brokers:
            host = self._world.hosts.get(number)
            partition = host.broker.replicas.find(*place) if host is not None and host.broker is not None else None
            values.append(_value_at(partition.log, offset) if partition is not None else None)
        return None not in values and len({*values}) == 1

    def acknowledged(self, place: Place, offset: int) -> None:
        """A producer got an acknowledgement of acks=all: enough replicas have synced the record."""
        self._acknowledged[place] = max(offset, self._acknowledged.get(place, -1))
        ends = {}
        for number, host in self._world.hosts.items():
            partition = host.broker.replicas.find(*place) if host.broker is not None else None
            running = partition.log.synced_end_offset if partition is not None else -1
            ends[number] = max(running, self._synced.get((number, place), -1))
        synced = sum(end > offset for end in ends.values())
        if synced < self._world.min_in_sync:
            self._say("acknowledged-unsynced", f"{place}: offset {offset} is synced on {synced} replicas, {ends}")

    def told_before(self, place: Place) -> tuple[int, int]:
        """Return the leader epoch and the high watermark that readers know when they send a Fetch."""
        return self._told.get(place, (-1, -1))

    def told(self, place: Place, epoch: int, high_watermark: int, before: tuple[int, int], power_failures: int) -> None:
        """A reader was told a high watermark by the leader of ``epoch``.

        When it sent its request, readers knew ``before``, and there had been this many power failures.
        """
        if before[0] <= epoch and high_watermark < before[1]:
            line = f"{place}: {high_watermark} in epoch {epoch} after {before[1]} in epoch {before[0]}"
            self._say("told-high-watermark-moved-back", line)
        if high_watermark > self.told_before(place)[1]:
            self._told[place] = epoch, high_watermark
            self._told_failures[place] = power_failures

    def sample(self) -> None:
        """Take over what the leaders have committed, and check every replica that may be elected."""
        for host in self._world.hosts.values():
            membership = host.membership
            if membership is not None and self._watched.get(host.broker_id) is not membership:
                self._watched[host.broker_id] = membership
                self.store.watch_controller(host, membership.controller)
                self.store.watch_lease(host, membership.registration.lease)
                self._watch_removals(host)
            if membership is not None:
                self._check_controller(host, membership.controller)
        for place in self._world.places:
            self._extend_committed(place)
            self.check_eligible(place)

    def _check_controller(self, host: BrokerHost, controller: Controller) -> None:
        """The controller looks at the topics that have changed. It must not overlook one."""
        assert host.broker is not None
        view, truth = host.broker.view, self.store.view
        for changed in controller.overlooked():
            # What it has not learned yet it may have decided already, from metadata that it read after a conflict.
            name = changed.name
            if view.topics[name] == truth.topics.get(name) and view.brokers.keys() == truth.brokers.keys():
                line = f"{host.name} has nothing left to decide, but {name} would become {changed.partitions}"
                self._world.violation("overlooked-change", line)

    def _watch_removals(self, host: BrokerHost) -> None:
        """Note the synced ends of replicas that are moved to other brokers: acknowledgements may arrive later."""
        assert host.broker is not None
        host.broker.replicas.referrers.append(_Removals(host.broker_id, self._synced))

    def _extend_committed(self, place: Place) -> None:
        leader = self.store.leader_of(place)
        host = self._world.hosts.get(-1 if leader is None else leader)
        partition = host.broker.replicas.find(*place) if host is not None and host.broker is not None else None
        if partition is None or partition.role is not Role.LEADER:
            return
        if partition.leader_epoch == self.store.view.topics[place.topic].partitions[place.partition].leader_epoch:
            committed = self._committed.setdefault(place, CommittedContent())
            committed.extend(partition, self.power_failures)

    def check_eligible(self, place: Place) -> None:
        """Every replica that may be elected has every record that is committed or that acks=all acknowledged."""
        topic = self.store.view.topics.get(place.topic)
        if topic is None:
            return
        state = topic.partitions[place.partition]
        unclean = {end.broker for end in state.unclean}
        for number in (*state.isr, *state.elr):
            host = self._world.hosts.get(number)
            if number in unclean or host is None or not host.is_ready or host.broker is None:
                continue
            partition = host.broker.replicas.find(*place)
            if partition is not None and not partition.offline:
                line = f"{place}: broker {number} of ISR {list(state.isr)}, ELR {list(state.elr)}"
                key = topic.topic_id, place.partition, state.leader_epoch
                self._check_eligible(line, place, partition, has_leader=key in self._leaders)

    def _check_eligible(self, line: str, place: Place, partition: Partition, *, has_leader: bool) -> None:
        acknowledged, end = self._acknowledged.get(place, -1), partition.log.log_end_offset
        if end <= acknowledged:
            line = f"{line} ends at {end}, but acks=all acknowledged {acknowledged}"
            self._say("eligible-lacks-acknowledged", line)
            return
        committed = self._committed.get(place)
        # Until a broker leads in the current epoch, it is not known what the last power failure has lost.
        if committed is None or not has_leader:
            return
        if end < committed.end_offset:
            line = f"{line} ends at {end}, but offset {committed.end_offset - 1} is committed"
            self._say("eligible-lacks-committed", line)
        elif (offset := committed.difference(partition.broker_id, partition.log)) is not None:
            self._say("eligible-differs", f"{line} has another batch than the committed one at offset {offset}")

    # -- the end --------------------------------------------------------------------------------------------------

    async def wait_until_in_sync(self) -> None:
        """Wait until all replicas are in sync, start where they may and end together.

        Report a violation if it takes too long.
        """
        until = self._world.loop.time() + IN_SYNC_WITHIN_S
        while True:
            missing = self.store.out_of_sync() or self._differing_ends()
            if not missing:
                return
            if self._world.loop.time() >= until:
                self._say("not-in-sync", f"{IN_SYNC_WITHIN_S:.0f} s after the last fault: {'; '.join(missing[:3])}")
                return
            await asyncio.sleep(0.2)

    def _replicas(self, place: Place) -> dict[int, Partition]:
        found = {}
        for number, host in self._world.hosts.items():
            partition = host.broker.replicas.find(*place) if host.broker is not None and host.is_ready else None
            if partition is not None:
                found[number] = partition
        return found

    def _differing_ends(self) -> list[str]:
        lines = []
        for place in self._world.places:
            replicas = self._replicas(place)
            ends = {number: each.log.written_end_offset for number, each in replicas.items()}
            marks = {number: each.high_watermark for number, each in replicas.items()}
            synced = {
                number: each.log.synced_end_offset
                for number, each in replicas.items()
                if each.role is Role.FOLLOWER and each.log.synced_end_offset < each.high_watermark
            }
            if synced:
                lines.append(f"{place}: followers have synced {synced}, high watermarks {marks}")
            starts = {number: each.log.log_start_offset for number, each in replicas.items()}
            leader_start = starts.get(self.store.leader_of(place) or -1, -1)
            deletions = self._world.deletions
            if not all(deletions.is_follower_start(place, start, leader_start) for start in starts.values()):
                lines.append(f"{place}: log starts {starts}")
            if len(set(ends.values()) | set(marks.values())) > 1 or len(ends) < self._world.replication_factor:
                lines.append(f"{place}: ends {ends}, high watermarks {marks}")
        return lines

    def at_end(self) -> None:
        """All replicas of a partition are byte-identical below the high watermark, and so are their leader epochs."""
        for place in self._world.places:
            replicas = self._replicas(place)
            leader = replicas.get(self.store.leader_of(place) or -1)
            if leader is None:
                continue
            start = max(replica.log.log_start_offset for replica in replicas.values())
            expected = _content(leader, start, leader.high_watermark)
            for number, replica in replicas.items():
                self._check_epochs(f"{place}: broker {number}", replica.log)
                if replica is not leader:
                    line = f"{place}: broker {number} and the leader {leader.broker_id}"
                    self._compare_replicas(line, expected, _content(replica, start, leader.high_watermark))
                    epochs = [_epochs(each, start, leader.high_watermark) for each in (replica, leader)]
                    if epochs[0] != epochs[1]:
                        self._say("epochs-differ", f"{line}: {epochs[0]}, {epochs[1]}")

    def _check_epochs(self, line: str, its_log: Log) -> None:
        """The leader epochs of a log are those of its batches."""
        for header, _ in batches_of(its_log):
            epoch = its_log.epochs.epoch_at(max(header.base_offset, its_log.log_start_offset))
            if epoch != header.leader_epoch:
                line = f"{line} has epoch {epoch} at offset {header.base_offset}"
                self._say("epochs-differ", f"{line}, its batch has epoch {header.leader_epoch}")
                return

    def _compare_replicas(self, line: str, expected: dict[int, bytes], found: dict[int, bytes]) -> None:
        for offset in sorted({*expected, *found}):
            if expected.get(offset) != found.get(offset):
                self._say("replicas-differ", f"{line} have different batches at offset {offset}")
                return

    def _say(self, name: str, line: str) -> None:
        self._world.violation(name, line)


class _Removals:
    """Notes the synced end of each replica that a broker stops to serve."""

    def __init__(self, broker_id: int, synced: dict[tuple[int, Place], int]) -> None:
        self._broker_id = broker_id
        self._synced = synced

    def discard(self, partition: Partition) -> None:
        self._synced[self._broker_id, _place(partition)] = partition.log.synced_end_offset

    def check_invariants(self, served: Set[Partition]) -> None:
        pass


def _end_of_records(partition: Partition) -> int:
    """Return the log end, or the first offset that a power failure has lost from the only replica of a partition.

    A batch without records stands for lost offsets that the broker knows to be assigned (`log/gaps.py`).
    """
    if len(partition.replicas) == 1:
        *_, last = (None, *(header for header, _ in batches_of(partition.log)))
        if last is not None and not last.record_count:
            return int(last.base_offset)
    return partition.log.log_end_offset


def _place(partition: Partition) -> Place:
    return Place(partition.name.topic, partition.name.partition)


def _value_at(log: Log, offset: int) -> str | None:
    """Return the value of the record at an offset, None if there is none in the files."""
    for header, content in batches_of(log, offset):
        if header.base_offset > offset:
            return None
        values = [record.value for record in iterate_records(content) if record.offset == offset]
        return (values[0] or b"").rstrip(b".").decode() if values else None
    return None


def _content(partition: Partition, start_offset: int, end_offset: int) -> dict[int, bytes]:
    """Return the batches of a replica between two offsets by their base offsets."""
    return {
        header.base_offset: content
        for header, content in batches_of(partition.log, start_offset)
        if header.base_offset < end_offset
    }


def _epochs(partition: Partition, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
    """Return the leader epochs of a replica's log with records between two offsets, each with its first offset there.

    A log that has deleted records may know or not know where the epochs of these records began.
    """
    known = partition.log.epochs
    return [
        (epoch, max(start, start_offset))
        for epoch, (start, end) in zip(known.epochs, pairwise([*known.starts, end_offset]), strict=True)
        if start < end_offset and end > start_offset
    ]
