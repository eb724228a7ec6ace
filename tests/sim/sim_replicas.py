"""Replicas of one partition on three machines: real logs, partitions, fetchers and Fetch handlers, a model controller.

The controller of this model knows everything at once; what brokers learn from it arrives late, and states in between
may be skipped, as with watches. Producers append at the leader. Faults are killed processes, cut and reset connections,
slow metadata and leader changes without a reason.

What must hold:

- committed   a batch below the high watermark of a leader stays what it is, on that leader and on all later ones
- acked       every acknowledged batch is at its offset in the log of the last leader
- identical   when all faults have ended, all replicas have the same bytes up to the same log end
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from random import Random
from struct import Struct
from typing import Any

from sim_host import SimulatedClock, SimulatedThreads
from sim_loop import Life, VirtualLoop, run_in_life
from sim_network import HostNetwork, SimulatedNetwork

from ottla.broker.access.permissions import ALL_ALLOWED
from ottla.broker.fetch.api import FetchApi
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import PartitionView
from ottla.broker.partitions.follower_fetchers import ReplicaFetchers
from ottla.broker.partitions.isr import Limits, wanted_isr
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.partitions.writers import Until
from ottla.client.async_connections import BrokerClients
from ottla.env.deferred import Deferred
from ottla.env.metrics import Histogram
from ottla.env.timers import TimerWheel
from ottla.log.folders import PartitionSpec
from ottla.log.log import Log
from ottla.log.store import LogStore
from ottla.model.batch import read_header
from ottla.model.errors import KafkaError
from ottla.model.records import Record, build_batch
from ottla.model.settings import BrokerSettings, TopicSettings
from ottla.model.types import Endpoint, TopicPartition
from ottla.net.server import ConnectionLimits, Server
from ottla.testing.disk import MemoryDisk

NAME = TopicPartition("orders", 0)
TOPIC_ID = bytes(range(16))
PORT = 9092
LAG_S = 1.0
_START = Struct(">hhi")
SETTINGS = BrokerSettings.parse({"broker.id": "1", "listeners": f"PLAINTEXT://broker-1:{PORT}"})


class Writer:
    """One produced batch that waits for its acknowledgement."""

    def __init__(self, world: ReplicaWorld, offset: int, data: bytes, deadline: float) -> None:
        self._world = world
        self._offset = offset
        self._data = data
        self.deadline = deadline

    def on_write_complete(self, error_code: int) -> None:
        if not error_code:
            self._world.acked[self._offset] = self._data


class ReplicaHost:
    """One machine with one replica; the process on it runs or not."""

    def __init__(self, world: ReplicaWorld, number: int) -> None:
        self.world = world
        self.number = number
        self.name = f"broker-{number}"
        self.endpoint = Endpoint("PLAINTEXT", self.name, PORT)
        self.disk = MemoryDisk()
        self.disk.makedirs("/data")
        self.disk.fsync_dir("/")
        self.life: Life | None = None
        self.partition: Partition | None = None
        #: increases with every start, as the epoch of a registration does
        self.epoch = 0
        self.graves: list[Any] = []

    def start(self) -> None:
        self.epoch = self.world.next_epoch()
        self.life = Life(f"{self.name}/{self.epoch}")
        run_in_life(self.life, self._start)

    def _start(self) -> None:
        world = self.world
        loop: Any = world.loop
        clock = SimulatedClock(loop)
        threads: Any = SimulatedThreads(loop, lambda: world.rng.expovariate(1 / 0.002))
        store = LogStore(self.disk, ["/data"], threads)
        store.lock()
        store.write_meta("cluster", self.number, lambda _: "directory")
        spec = PartitionSpec(name=NAME, topic_id=TOPIC_ID, settings=world.topic)
        store.load({NAME: spec})
        store.begin_writing()
        self.manager = ReplicaManager(
            broker_id=self.number, clock=clock, disk=self.disk, store=store, threads=threads, free_bytes_min=0,
            on_all_dirs_failed=world.fail,
        )  # fmt: skip
        network: Any = HostNetwork(world.network, self.name, self.disk)
        self.server = Server(
            loop, clock=clock, request_bytes_max=1 << 20, limits=ConnectionLimits(1000, 1000),
            idle_ms_max=600_000, in_flight_max=10, before_replies=self._write, latency={1: Histogram()},
            network=network,
        )  # fmt: skip
        unused: Any = None
        new_id = partial(Random(self.number).randbytes, 16)
        metadata = ClusterMetadata(unused, SETTINGS, cluster_id="cluster", new_id=new_id)
        metadata.broker_id = self.number
        self.fetch = FetchApi(
            metadata=metadata, replicas=self.manager, loop=loop, wheel=TimerWheel(loop),
            deferred=Deferred(loop, clock.monotonic), access=ALL_ALLOWED, throttling=unused,
        )  # fmt: skip
        self.clients = BrokerClients(loop, network, client_id=self.name)
        self.fetchers = ReplicaFetchers(
            loop=loop, clients=self.clients, replicas=self.manager, clock=clock, broker_id=self.number,
            broker_epoch=lambda: self.epoch, settings=lambda: SETTINGS,
        )  # fmt: skip
        self.partition = self.manager.add(spec, world.state)
        world.check_restored(self, self.partition.log)
        listener = network.bind(self.endpoint)
        self.graves.append(loop.create_task(self.server.start(listener, self._handle)))
        self._set_role()
        loop.call_later(0.1, self._tick)

    def _write(self) -> bool:
        self.manager.commits.write_turn()
        return True

    def _handle(self, connection: Any, buffer: Any, view: memoryview, start: int, end: int) -> None:
        _, version, correlation_id = _START.unpack_from(buffer, start)
        waiting = self.fetch.waiting.get(connection)
        if waiting is not None:
            waiting.answer_now()
        self.fetch.handle(connection, buffer, view, start, end, version, correlation_id)

    def kill(self) -> None:
        """End the process now. What it has written stays."""
        if self.life is None:
            return
        self.world.loop.end_life(self.life)
        self.world.network.end_host(self.name, lose_bytes=False)
        self.graves.append((self.partition, self.disk, self.server, self.fetchers))
        self.disk = self.disk.crash(self.world.rng, "process")
        self.life = self.partition = None

    # -- metadata ---------------------------------------------------------------------------------------------------

    def learn(self, state: PartitionView) -> None:
        """Apply the state of the store, which the controller sent a while ago."""
        assert self.partition is not None
        if not self.partition.log.deleted:
            self.manager.apply_state(self.partition, state)
            self._set_role()

    def _set_role(self) -> None:
        partition = self.partition
        assert partition is not None
        if partition.role is Role.FOLLOWER and partition.leader_id >= 0:
            self.fetchers.follow(partition, self.world.hosts[partition.leader_id].endpoint)
        else:
            self.fetchers.unfollow(partition)

    def _tick(self) -> None:
        """Propose a change of the in-sync replicas, as the leader does."""
        world, partition = self.world, self.partition
        assert partition is not None
        world.loop.call_later(0.1, self._tick)
        self.manager.commits.expire_writers()
        if partition.role is not Role.LEADER:
            return
        epochs = {number: host.epoch for number, host in world.hosts.items() if host.life is not None}
        isr = wanted_isr(partition, epochs, Limits(LAG_S), world.loop.time())
        if set(isr) != set(partition.isr) and partition.proposed_isr is None:
            partition.proposed_isr = isr
            leader_epoch, partition_epoch = partition.leader_epoch, partition.partition_epoch
            world.loop.call_later(world.delay(), world.change_isr, self.number, leader_epoch, partition_epoch, isr)

    # -- produce ----------------------------------------------------------------------------------------------------

    def produce(self, data: bytes, until: Until) -> None:
        partition = self.partition
        if partition is None or partition.role is not Role.LEADER:
            return
        buffer = bytearray(data)
        try:
            partition.check_enough_replicas()
            base, end = self.manager.append(partition, buffer, memoryview(buffer), 0, len(buffer), 1)
        except KafkaError:
            return
        writer = Writer(self.world, base, data, self.world.loop.time() + 5)
        self.manager.commits.wait(partition, until, end, writer)
        self.server.ensure_turn()


class ReplicaWorld:
    """Three hosts, the network between them and the controller."""

    def __init__(self, seed: int, **settings: object) -> None:
        self.rng = Random(seed)
        self.loop = VirtualLoop()
        self.network = SimulatedNetwork(self.loop, Random(seed + 1), lambda line: None)
        texts = {"segment.bytes": "4000", "min.insync.replicas": "2", **{k: str(v) for k, v in settings.items()}}
        self.topic = TopicSettings.resolve(texts, BrokerSettings())
        self._epochs = 0
        self._values = 0
        self.state = PartitionView(leader=1, leader_epoch=0, replicas=(1, 2, 3), isr=(1, 2, 3))
        self.hosts = {number: ReplicaHost(self, number) for number in (1, 2, 3)}
        #: acknowledged batches and batches below a high watermark, by their offsets
        self.acked: dict[int, bytes] = {}
        self.committed: dict[int, bytes] = {}
        self.violations: dict[str, str] = {}
        self.truncations = 0
        self.is_over = False
        #: a broker that learns nothing for the moment
        self._late = 0

    def run(self, seconds: float = 20.0) -> dict[str, str]:
        """Run with faults, then without; return what did not hold."""
        self.loop.set_exception_handler(self._unexpected)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self.loop.run_until_complete(self._main(seconds))
        finally:
            self.loop.close()
        return self.violations

    async def _main(self, seconds: float) -> None:
        for host in self.hosts.values():
            host.start()
        end = self.loop.time() + seconds
        while self.loop.time() < end and not self.violations:
            await asyncio.sleep(self.rng.expovariate(1 / 0.05))
            self._step()
            self.check_committed()
        self.is_over = True
        self._late = 0
        self._set(self.state)
        self.network.heal_all()
        for host in self.hosts.values():
            if host.life is None:
                self._restart(host)
        deadline = self.loop.time() + 60
        while not self.violations and not self._is_identical():
            if self.loop.time() > deadline:
                self.violations["identical"] = self._describe()
            await asyncio.sleep(0.2)
            self.check_committed()
        self._check_acked()
        self.truncations = sum(host.fetchers.truncations for host in self.hosts.values())

    def _step(self) -> None:
        """Do one thing at random: mostly produce."""
        draw = self.rng.random()
        host = self.rng.choice(list(self.hosts.values()))
        if draw < 0.75:
            self._values += 1
            size = self.rng.choice([10, 100, 1500])
            values = [f"{self._values}/{n}".encode() + b"v" * size for n in range(self.rng.randrange(1, 4))]
            data = build_batch([Record(timestamp=1, key=None, value=value) for value in values])
            until = self.rng.choice([Until.DURABLE, Until.COMMITTED])
            for each in self.hosts.values():  # also a broker that wrongly believes that it leads
                each.produce(data, until)
        elif draw < 0.80:
            self.elect(self.rng.choice(self.state.isr))
        elif draw < 0.84:
            self._kill(host)
        elif draw < 0.89:
            other = self.rng.choice(list(self.hosts.values()))
            if other is not host:
                self.network.cut(host.name, other.name)
                self.loop.call_later(3 * self.rng.random(), self.network.heal, host.name, other.name)
        elif draw < 0.92:
            self.network.reset_some(0.5)
        elif draw < 0.95:
            self.loop.create_task(self._bounce())

    def _kill(self, host: ReplicaHost) -> None:
        host.kill()
        self.loop.call_later(0.05 + self.rng.random(), self._host_died, host)
        self.loop.call_later(1.5 + 2 * self.rng.random(), self._restart, host)

    async def _bounce(self) -> None:
        """Move the leadership away and back, so that one broker learns only the last of the three states.

        Then kill the leader while the others still compare their logs with its log.
        """
        leader = self.state.leader
        others = [number for number in (1, 2, 3) if number != leader]
        self.rng.shuffle(others)
        elected, late = others
        if leader < 0:
            return
        names = self.hosts[leader].name, self.hosts[elected].name
        self.network.cut(*names)
        await asyncio.sleep(0.5)
        self._late = late
        if elected in self.state.isr:
            self.elect(elected)
        self.network.heal(*names)
        await asyncio.sleep(1 + self.rng.random())
        if leader in self.state.isr:
            self.elect(leader)
        self._late = 0
        self._set(self.state)
        if self.rng.random() < 0.7:
            await asyncio.sleep(0.3 * self.rng.random())
            if self.state.leader > 0:
                self._kill(self.hosts[self.state.leader])

    def delay(self) -> float:
        """Return how late metadata arrives: mostly soon, sometimes after seconds."""
        return self.rng.expovariate(1 / (1.0 if self.rng.random() < 0.1 and not self.is_over else 0.01))

    def next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    # -- controller -------------------------------------------------------------------------------------------------

    def elect(self, leader: int, isr: tuple[int, ...] | None = None) -> None:
        if leader < 0 or self.hosts[leader].life is not None:
            isr = self.state.isr if isr is None else isr
            self._set(self.state.changed(leader=leader, leader_epoch=self.state.leader_epoch + 1, isr=isr))

    def change_isr(self, leader: int, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...]) -> None:
        """Apply a leader's proposal if it is based on the current state; otherwise tell it the state again."""
        current = self.state
        alive = all(self.hosts[number].life is not None or number in current.isr for number in isr)
        same = (leader, leader_epoch, partition_epoch) == (
            current.leader, current.leader_epoch, current.partition_epoch,
        )  # fmt: skip
        self._set(current.changed(isr=isr) if same and alive else current.changed())

    def _host_died(self, host: ReplicaHost) -> None:
        if host.life is None:
            alive = tuple(n for n in self.state.isr if self.hosts[n].life is not None)
            if self.state.leader == host.number or host.number in self.state.isr:
                leader = self.state.leader if self.state.leader in alive else next(iter(alive), -1)
                self.elect(leader, alive or self.state.isr)

    def _restart(self, host: ReplicaHost) -> None:
        if host.life is None:
            host.start()
            if self.state.leader < 0 or self.hosts[self.state.leader].life is None:
                alive = [n for n in self.state.isr if self.hosts[n].life is not None]
                if alive:
                    self.elect(alive[0])

    def _set(self, state: PartitionView) -> None:
        self.state = state
        for host in self.hosts.values():
            if host.life is not None and host.number != self._late:
                run_in_life(host.life, self.loop.call_later, self.delay(), self._deliver, host)

    def _deliver(self, host: ReplicaHost) -> None:
        host.learn(self.state)

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check_committed(self) -> None:
        for host in self.hosts.values():
            partition = host.partition
            if partition is not None and partition.role is Role.LEADER:
                for offset, data in batches(partition.log, partition.high_watermark).items():
                    known = self.committed.setdefault(offset, data)
                    if known != data:
                        self.violations["committed"] = f"batch at offset {offset} changed on {host.name}"

    def check_restored(self, host: ReplicaHost, log: Log) -> None:
        """A killed process keeps what it has written."""

    def _check_acked(self) -> None:
        leader = self.hosts[self.state.leader].partition
        assert leader is not None
        kept = batches(leader.log, leader.log.log_end_offset)
        for offset, data in {**self.acked, **self.committed}.items():
            if kept.get(offset, b"")[21:] != data[21:]:  # what the leader does not change
                self.violations["acked"] = f"batch at offset {offset} is lost"

    def _is_identical(self) -> bool:
        partitions = [host.partition for host in self.hosts.values() if host.partition is not None]
        leader = next((each for each in partitions if each.role is Role.LEADER), None)
        if leader is None or len(partitions) < 3 or leader.leader_epoch != self.state.leader_epoch:
            return False
        end = leader.log.log_end_offset
        if set(leader.isr) != {1, 2, 3} or any(each.high_watermark != end for each in partitions):
            return False
        contents = [batches(each.log, end) for each in partitions]
        if contents[0] != contents[1] or contents[0] != contents[2]:
            self.violations["identical"] = "the replicas have different bytes"
        return True

    def _describe(self) -> str:
        rows = []
        for host in self.hosts.values():
            partition = host.partition
            if partition is not None:
                log = partition.log
                rows.append(
                    f"{host.name} {partition.role.value} epoch={partition.leader_epoch} hw={partition.high_watermark} "
                    f"log={log.log_start_offset}..{log.log_end_offset} isr={partition.isr} epochs={log.epochs.epochs}"
                )
        return f"{self.state}; " + "; ".join(rows)

    def fail(self, reason: str) -> None:
        self.violations["disk"] = reason

    def _unexpected(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.violations["exception"] = f"{type(error).__name__}: {error} ({context.get('message')})"


def batches(log: Log, end_offset: int) -> dict[int, bytes]:
    """Return all written batches below ``end_offset``, by their base offsets."""
    found: dict[int, bytes] = {}
    offset = log.log_start_offset
    end_offset = min(end_offset, log.written_end_offset)
    while offset < end_offset:
        region = log.read(offset, 1 << 20, end_offset, at_least_one=True)
        if region is None:
            break
        data = region.read()
        position = 0
        while position < len(data):
            header = read_header(data, position)
            following = position + header.length + 12
            found[header.base_offset] = data[position:following]
            position, offset = following, header.next_offset
    return found
