"""Faults of a cluster in several steps: each leads to a state in which a bug of replication loses records.

Single faults reach these states too, but in few of many thousand runs.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from sim_host import BrokerHost

from ottla.broker.groups.runtime import OFFSETS_TOPIC
from ottla.broker.metadata.leadership import ops_elect, replace_partition
from ottla.broker.metadata.nodes import CONTROLLER
from ottla.broker.metadata.store import Conflict, Delete
from ottla.broker.partitions.partition import Partition
from ottla.testing.history import Place
from ottla.testing.metadata_store import SimulatedStore

if TYPE_CHECKING:
    from sim_world import World

#: how often each is drawn, beside the faults of ``sim_faults.py``
FAULT_SEQUENCES = {
    "move leaders": 4,
    "late power failure": 4,
    "power failure of the last replica": 3,
    "power failure of a joining replica": 5,
    "isolate a coordinator": 2,
    "isolate a leader": 2,
    "late controller": 2,
}
#: the mean duration of a sync of a disk that hardly syncs any more
_STALLED_S = 5.0
#: how long a sequence waits for its moment, and how often it looks
_WAIT_S = 4.0
_LOOK_S = 0.02


class FaultSequences:
    """Runs the steps of these faults."""

    def __init__(self, world: World, rng: Random, may_end: Callable[[], bool]) -> None:
        self._world = world
        self._rng = rng
        #: whether a process may end now
        self._may_end = may_end
        self._store: SimulatedStore | None = None
        self._joining: _Joining | None = None

    def strike(self, fault: str, host: BrokerHost) -> None:
        """Begin a fault of ``FAULT_SEQUENCES``."""
        place = self._rng.choice(self._world.places)
        if fault == "move leaders":
            self._move_leaders(place)
        elif fault == "late power failure":
            self._stall(host)
            self._later(self._rng.uniform(0.3, 4), self._fail_power, host)
        elif fault == "power failure of the last replica":
            self._leave_one_replica(place)
        elif fault == "isolate a coordinator":
            self._isolate_coordinator()
        elif fault == "isolate a leader":
            self._isolate(place, lambda _: False)
        elif fault == "late controller":
            self._delay_controller()
        elif fault == "power failure of a joining replica" and self._joining is None:
            self._joining = _Joining.of(self._world, self._rng, place, self._may_end)
            self._go_on_joining()

    # -- leaders move although no broker failed ----------------------------------------------------------------------

    def _move_leaders(self, place: Place) -> None:
        """Move a leader several times while the brokers do not reach each other, so that their logs diverge.

        The store allows it, for example when an administrator elects the preferred leader. All replicas stay in sync.
        """
        rng, hosts = self._rng, list(self._world.hosts.values())
        seconds = rng.uniform(0.2, 2.5)
        for one in hosts:
            for other in hosts:
                if one is not other and rng.random() < 0.9:
                    self._world.network.cut(one.name, other.name)
                    self._later(seconds, self._world.network.heal, one.name, other.name)
        after = 0.0
        for _ in range(rng.randint(2, 4)):
            after += rng.uniform(0.05, 0.8)
            self._later(after, self._move_leader, place)

    def _move_leader(self, place: Place) -> None:
        replication = self._world.replication
        assert replication is not None
        view = replication.store.view
        topic = view.topics.get(place.topic)
        if topic is None:
            return
        state = topic.partitions[place.partition]
        unclean = {end.broker for end in state.unclean}
        others = [each for each in state.isr if each != state.leader and each in view.brokers and each not in unclean]
        if not others:
            return
        leader = self._rng.choice(others)
        moved = replace_partition(
            topic, place.partition, state.changed(leader=leader, leader_epoch=state.leader_epoch + 1)
        )
        assert moved is not None
        if self._store is None:
            self._store = self._world.ensemble.connect("administrator of leaders")
        try:
            self._world.ensemble.multi(self._store, ops_elect(view, [moved]))
        except Conflict:
            self._world.trace(f"{place}: the leader cannot be moved now")

    def _isolate_coordinator(self) -> None:
        """Cut a coordinator from the cluster until another one has been elected and has got commits.

        Most members do not reach it, so they commit to its successor. The others still ask it.
        """
        rng, world = self._rng, self._world
        assert world.replication is not None
        places = [place for place, _ in world.replication.store.partitions() if place.topic == OFFSETS_TOPIC]
        if places:
            self._isolate(rng.choice(places), lambda name: name.startswith("member") and rng.random() < 0.8)

    def _isolate(self, place: Place, is_cut: Callable[[str], bool]) -> None:
        """Cut a leader from the cluster and from some clients until another one has been elected; others still ask it.

        A broker that does not check its lease would answer them.
        """
        rng, world = self._rng, self._world
        assert world.replication is not None
        leader = world.replication.store.leader_of(place)
        if leader is None:
            return
        host = world.hosts[leader]
        peers = [other.name for other in world.hosts.values() if other is not host]
        peers += [name for name in world.client_names if is_cut(name)]
        seconds = rng.uniform(8, 14)
        for peer in peers:
            for pair in ((peer, host.name), (host.name, peer)):
                world.network.cut(*pair)
                self._later(seconds, world.network.heal, *pair)
        host.cut_from_store()
        self._later(seconds, host.heal_store)

    def _delay_controller(self) -> None:
        """Let the controller learn that a broker has lost its session when another broker is the controller.

        The broker has registered again by then, so the new controller has nothing to decide.
        """
        rng, world = self._rng, self._world
        assert world.replication is not None
        controller = world.replication.store.view.controller
        if controller is None:
            return
        host, seconds = world.hosts[controller.broker_id], rng.uniform(0.8, 3)
        world.ensemble.delay_watches(host.name, seconds)
        self._later(seconds, world.ensemble.delay_watches, host.name, 0.0)
        other = rng.choice([each for each in world.hosts.values() if each is not host])
        world.ensemble.expire(other.name)
        self._later(rng.uniform(0.3, 0.7), self._delete_controller)

    def _delete_controller(self) -> None:
        """Delete the node of the controller, as administrators do to have another one elected."""
        if self._store is None:
            self._store = self._world.ensemble.connect("administrator of leaders")
        try:
            self._world.ensemble.multi(self._store, [Delete(CONTROLLER)])
        except Conflict:
            self._world.trace("there is no controller")

    # -- power failures that lose records ----------------------------------------------------------------------------

    def _stall(self, host: BrokerHost) -> None:
        """Let the disk of a broker sync hardly anything, until its power fails or the faults end."""
        host.disk_delay_s = _STALLED_S

    def _fail_power(self, host: BrokerHost) -> None:
        if self._may_end():
            host.kill("power")
            host.disk_delay_s = 0.002

    def _leave_one_replica(self, place: Place) -> None:
        """Remove all replicas but the leader from the ISR while the leader does not sync; then its power fails.

        The others have synced what was acknowledged, and the leader has not.
        """
        replication = self._world.replication
        assert replication is not None
        leader = replication.store.leader_of(place)
        if leader is None:
            return
        host = self._world.hosts[leader]
        self._stall(host)
        self._later(self._rng.uniform(0.2, 0.8), self._expire_others, host)
        self._later(0.8, self._fail_power_of_last, place, host, self._world.loop.time() + _WAIT_S)

    def _expire_others(self, host: BrokerHost) -> None:
        for other in self._world.hosts.values():
            if other is not host:
                for pair in ((host.name, other.name), (other.name, host.name)):
                    self._world.network.cut(*pair)
                    self._later(_WAIT_S, self._world.network.heal, *pair)
                self._world.ensemble.expire(other.name)

    def _fail_power_of_last(self, place: Place, host: BrokerHost, until: float) -> None:
        """Wait until the broker is the last replica in sync."""
        replication = self._world.replication
        assert replication is not None
        topic = replication.store.view.topics.get(place.topic)
        if topic is not None and topic.partitions[place.partition].isr == (host.broker_id,):
            self._fail_power(host)
        elif self._world.loop.time() < until and not self._world.is_over:
            self._later(_LOOK_S, self._fail_power_of_last, place, host, until)

    def _go_on_joining(self) -> None:
        joining = self._joining
        if joining is not None and joining.step():
            self._later(_LOOK_S, self._go_on_joining)
        else:
            self._joining = None

    def _later(self, seconds: float, call: Callable[..., None], *args: object) -> None:
        def run() -> None:
            if not self._world.is_over:
                call(*args)

        self._world.loop.call_later(seconds, run)


class _Joining:
    """A follower catches up, loses power and comes back before the leader can add it to the ISR.

    The leader then knows what the earlier process of the follower had. The follower has synced nothing of it.

        out        the power of the follower fails, and it starts again with a disk that hardly syncs
        catch up   the leader is cut from the store, and the third broker is paused: the high watermark stands still
        cut off    the follower has everything; its next fetch waits in the network while the power fails again
        back       the follower has started: everything heals, the way from the follower to the leader last
    """

    def __init__(self, world: World, rng: Random, place: Place, hosts: list[BrokerHost]) -> None:
        self._world = world
        self._rng = rng
        self._place = place
        self._leader, self._follower, *self._others = hosts
        self._until = world.loop.time() + _WAIT_S
        self._due = 0.0
        self._next: Callable[[], bool] = self._out

    @classmethod
    def of(cls, world: World, rng: Random, place: Place, may_end: Callable[[], bool]) -> _Joining | None:
        """Return the fault; None if the cluster is not healthy enough for it."""
        assert world.replication is not None
        leader = world.replication.store.leader_of(place)
        if leader is None or not may_end() or not all(host.is_ready for host in world.hosts.values()):
            return None
        replicas = world.replication.store.view.topics[place.topic].partitions[place.partition].replicas
        followers = [world.hosts[number] for number in sorted(replicas) if number != leader]
        if not followers:
            return None
        rng.shuffle(followers)
        return cls(world, rng, place, [world.hosts[leader], *followers])

    def step(self) -> bool:
        """Do what is due. Return whether there is more to do."""
        now = self._world.loop.time()
        if now >= self._until:
            self._heal()
            return False
        return now < self._due or self._next()

    def _out(self) -> bool:
        self._follower.kill("power")
        self._follower.disk_delay_s = _STALLED_S
        self._due, self._next = self._world.loop.time() + self._rng.uniform(0.1, 0.5), self._catch_up
        return True

    def _catch_up(self) -> bool:
        self._follower.start()
        if self._follower.is_ready:
            self._leader.cut_from_store()
            for other in self._others:
                other.pause()
            self._next = self._cut_off
        return True

    def _cut_off(self) -> bool:
        leader, follower = (
            host.broker.replicas.find(*self._place) if host.broker is not None else None
            for host in (self._leader, self._follower)
        )
        if leader is None or follower is None:
            self._heal()
            return False
        if follower.log.log_end_offset >= leader.high_watermark and self._is_known_to(leader):
            self._world.network.cut(self._follower.name, self._leader.name)
            self._due, self._next = self._world.loop.time() + self._rng.uniform(0.05, 0.7), self._back
        return True

    def _is_known_to(self, leader: Partition) -> bool:
        """Return whether the leader knows that the follower has everything."""
        known = leader.followers.get(self._follower.broker_id)
        return known is not None and known.end_offset >= leader.high_watermark

    def _back(self) -> bool:
        if self._follower.disk_delay_s == _STALLED_S:
            self._follower.kill("power")
            self._follower.disk_delay_s = 0.002
            self._follower.start()
        if not self._follower.is_ready:
            return True
        if self._rng.random() < 0.6:
            # The leader decides before it gets a fetch of the new process.
            self._follower.pause()
            self._world.loop.call_later(self._rng.uniform(0.3, 0.9), self._follower.resume)
        self._heal()
        return False

    def _heal(self) -> None:
        """Let the leader reach the store at once, and the others reach the leader a little later."""
        self._follower.disk_delay_s = 0.002
        self._leader.heal_store()
        for other in self._others:
            self._world.loop.call_later(self._rng.uniform(0.1, 0.6), other.resume)
        heal = self._world.network.heal
        self._world.loop.call_later(self._rng.uniform(0, 0.5), heal, self._follower.name, self._leader.name)
