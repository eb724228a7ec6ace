"""The simulated world does what its faults say."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest
from sim_host import SimulatedDisk
from sim_loop import START_S, Life, VirtualLoop, run_in_life
from sim_network import HostNetwork, SimulatedNetwork
from sim_world import VirtualRecorder, World

from ottla.broker.metadata.nodes import state_path
from ottla.broker.metadata.store import Create, Node, Put
from ottla.env.tasks import RESTART_S, Tasks
from ottla.model.types import Endpoint
from ottla.testing.history import Outcome, Place


class Echo(asyncio.BufferedProtocol):
    """Sends back what it receives; ``received`` has all of it."""

    def __init__(self) -> None:
        self._buffer = bytearray(1000)
        self.received = b""
        self.lost: list[Exception | None] = []
        self.answers = False
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._buffer[:nbytes])
        self.received += data
        if self.answers:
            self.transport.write(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class TwoHosts:
    """A server and a client on two hosts, each in a process of its own."""

    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.network = SimulatedNetwork(self.loop, Random(1), lambda line: None)
        self.lives = {name: Life(name) for name in ("a", "b")}
        self.server, self.client = Echo(), Echo()
        self.server.answers = True

    def connect(self) -> None:
        endpoint = Endpoint("", "b", 9092)

        async def serve() -> None:
            listener = HostNetwork(self.network, "b", SimulatedDisk()).bind(endpoint)
            await listener.serve(self.loop, lambda: self.server)

        async def open_connection() -> None:
            await HostNetwork(self.network, "a", SimulatedDisk()).connect(endpoint, lambda: self.client)

        for name, work in (("b", serve), ("a", open_connection)):
            self.loop.run_until_complete(run_in_life(self.lives[name], self.loop.create_task, work()))

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.wait_for(asyncio.sleep(seconds), None))


@pytest.fixture
def hosts() -> Any:
    hosts = TwoHosts()
    hosts.connect()
    yield hosts
    hosts.loop.close()


def test_brokers_exchange_bytes(hosts: TwoHosts) -> None:
    hosts.client.transport.write(b"hello")
    hosts.wait(1)
    assert hosts.server.received == hosts.client.received == b"hello"


def test_connection_without_a_listener_is_refused(hosts: TwoHosts) -> None:
    network = HostNetwork(hosts.network, "a", SimulatedDisk())
    with pytest.raises(ConnectionRefusedError):
        hosts.loop.run_until_complete(network.connect(Endpoint("", "b", 1), Echo))


def test_bytes_wait_while_their_direction_is_cut(hosts: TwoHosts) -> None:
    hosts.network.cut("b", "a")
    hosts.client.transport.write(b"hello")
    hosts.wait(5)
    assert (hosts.server.received, hosts.client.received) == (b"hello", b"")
    hosts.network.heal("b", "a")
    hosts.wait(1)
    assert hosts.client.received == b"hello"


def test_paused_process_receives_bytes_when_it_goes_on(hosts: TwoHosts) -> None:
    hosts.loop.pause_life(hosts.lives["b"])
    hosts.client.transport.write(b"hello")
    hosts.wait(5)
    assert hosts.server.received == b""
    assert hosts.client.lost == []
    hosts.loop.resume_life(hosts.lives["b"])
    hosts.wait(1)
    assert hosts.server.received == hosts.client.received == b"hello"


def test_timer_of_a_paused_process_runs_late() -> None:
    loop = VirtualLoop()
    life = Life("process")
    ran: list[float] = []
    run_in_life(life, loop.call_later, 1.0, lambda: ran.append(loop.time() - START_S))
    loop.pause_life(life)
    loop.call_later(7.0, loop.resume_life, life)
    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(9), None))
    assert ran == [7.0]
    loop.close()


def test_callbacks_that_waited_during_a_pause_run_before_those_that_are_due_now() -> None:
    loop = VirtualLoop()
    life = Life("process")
    ran: list[str] = []
    loop.pause_life(life)
    run_in_life(life, loop.call_later, 1.0, ran.append, "waited")
    loop.call_later(2.0, loop.resume_life, life)
    run_in_life(life, loop.call_later, 2.0, ran.append, "due")
    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(3), None))
    assert ran == ["waited", "due"]
    loop.close()


def test_exceptions_of_callbacks_and_tasks_are_violations() -> None:
    world = World(1)

    async def fail() -> None:
        raise ValueError("from a task")

    async def main() -> None:
        world.loop.call_soon(int, "from a callback")
        tasks = [asyncio.create_task(fail(), name="failing")]
        supervised = Tasks()
        supervised.keep(fail, "kept")
        await asyncio.sleep(RESTART_S * 1.5)
        await supervised.stop()
        assert tasks[0].done()

    world.loop.run_until_complete(main())
    world.loop.report_failed_tasks()
    world.loop.close()
    lines = world.violations["exception"]
    assert "a callback" in lines[0]
    kept = [line for line in lines if "name=kept" in line and "from a task" in line]
    assert len(kept) == 2  # it began again
    assert "task failing: ValueError" in lines[-1]


def test_process_that_is_killed_while_it_is_paused_runs_nothing(hosts: TwoHosts) -> None:
    hosts.loop.pause_life(hosts.lives["b"])
    hosts.client.transport.write(b"hello")
    hosts.wait(1)
    hosts.loop.end_life(hosts.lives["b"])
    hosts.loop.resume_life(hosts.lives["b"])
    hosts.wait(1)
    assert hosts.server.received == b""


@pytest.mark.parametrize("lose_bytes", [False, True], ids=["kill", "power-failure"])
@pytest.mark.parametrize("ended", ["a", "b"])
def test_peer_of_a_process_that_ended_loses_its_connection(hosts: TwoHosts, ended: str, lose_bytes: bool) -> None:
    hosts.loop.end_life(hosts.lives[ended])
    hosts.network.end_host(ended, lose_bytes=lose_bytes)
    hosts.wait(10)
    peer, other = (hosts.server, hosts.client) if ended == "a" else (hosts.client, hosts.server)
    assert (len(peer.lost), len(other.lost)) == (1, 0)


def _state(leader: int, leader_epoch: int, isr: list[int], partition_epoch: int) -> bytes:
    return json.dumps({"version": 2, "partitions": [[leader, leader_epoch, isr, partition_epoch]]}).encode()


@pytest.mark.parametrize(("state", "violation"), [
    ((1, 5, [1, 2, 3], 8), None),
    ((2, 6, [2, 3], 8), None),
    ((-1, 6, [1], 8), None),
    ((2, 5, [2, 3], 8), "leader-without-epoch"),
    ((1, 4, [1, 2], 8), "store-epoch-moved-back"),
    ((1, 5, [1, 2, 3], 7), "store-epoch-moved-back"),
    ((1, 5, [2, 3], 8), "leader-not-in-sync"),
    ((1, 5, [1, 4], 8), "isr-invalid"),
])  # fmt: skip
def test_change_of_a_partition_in_the_store_is_checked(
    state: tuple[int, int, list[int], int], violation: str | None
) -> None:
    world = World(1, brokers=3)
    topic = {"version": 3, "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": {"0": [1, 2, 3]}}
    store = world.ensemble.connect("test")
    paths = [Create(path) for path in ("/brokers", "/brokers/topics")]
    world.ensemble.multi(store, [
        *paths, Create("/brokers/topics/t", json.dumps(topic).encode()),
        Create(state_path("t"), _state(1, 5, [1, 2], 7)),
    ])  # fmt: skip
    assert world.violations == {}
    node: Node = world.ensemble.tree()[state_path("t")]
    world.ensemble.multi(store, [Put(state_path("t"), _state(*state), node.version)])
    assert list(world.violations) == ([violation] if violation else [])
    world.loop.close()


def test_each_acknowledgement_of_one_offset_is_forgotten_if_its_record_is_lost() -> None:
    """Another leader may acknowledge the offset of a record that it lacks, before the lost record is noticed."""
    history, place = VirtualRecorder(), Place("events", 0)
    history.init("p", "p")
    for value in ("first", "second"):
        txn = history.begin("p")
        history.send(txn, place, value)
        history.sent_weakly(txn, place, value, 25)
    history.forget_weak(place, lambda offset, value: offset == 25 and value != "second")
    sent = [(each["value"], each["offset"], each["outcome"]) for each in history.events if each["event"] == "sent"]
    assert sent == [("first", None, Outcome.UNKNOWN), ("second", 25, Outcome.OK)]


def test_broker_that_starts_without_the_store_waits_for_it() -> None:
    world = World(1, brokers=3)
    host = world.hosts[1]

    async def main() -> None:
        host.cut_from_store()
        for each in world.hosts.values():
            each.start()
        await asyncio.sleep(20)
        assert (host.is_ready, host.starts, world.hosts[2].is_ready) == (False, 1, True)
        host.heal_store()
        await asyncio.sleep(2)
        assert (host.is_ready, host.starts, host.ends) == (True, 1, {})

    world.loop.run_until_complete(main())
    world.loop.close()


@pytest.mark.parametrize(
    ("broker", "seconds_later", "expected"),
    [(1, 1.0, ["allowed"]), (1, 3.0, ["committed-offset-lost"]), (2, 1.0, ["committed-offset-lost"])],
    ids=["replaced", "replaced-long-ago", "current"],
)
def test_only_a_replaced_coordinator_may_return_an_old_offset_and_not_for_long(
    broker: int, seconds_later: float, expected: list[str]
) -> None:
    world = World(1, brokers=3)
    assert world.replication is not None
    place = Place("__consumer_offsets", 0)
    store: Any = world.replication.store
    store._elected_at[place] = world.loop.time()
    store.leader_of = lambda place: 2
    is_replaced = store.may_act_on_old_role(broker, place, world.loop.time() + seconds_later)
    world.groups.sends("group", 0, 6)
    world.groups.fetched("group", 0, 5, 6, is_replaced=is_replaced)
    assert (list(world.violations) or ["allowed"]) == expected
    world.loop.close()
