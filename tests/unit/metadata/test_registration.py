"""A broker registers, keeps its lease, and notices that it is no longer registered."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

import pytest
from tests.unit.metadata.metadata_store_fixtures import Simulated

from ottla.broker.cluster.registration import Lease, Registration, dirs_of_last_run
from ottla.broker.metadata.broker_nodes import RegisteredDirs
from ottla.broker.metadata.decide import load_view
from ottla.broker.metadata.nodes import (
    broker_json,
    broker_path,
    incarnation_of,
    ops_create_skeleton,
    registered_path,
    unregistered_json,
)
from ottla.broker.metadata.store import Delete, MetadataStore, Node, Put
from ottla.model.errors import StartError
from ottla.model.types import Endpoint

ID = 3
SESSION_S = 6.0
HERE = Endpoint("PLAINTEXT", "localhost", 9092)
THERE = Endpoint("PLAINTEXT", "elsewhere", 9092)


class LoopClock:
    """The virtual time of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.monotonic = self.since_boot = loop.time

    def wall_ms(self) -> int:
        return 1_800_000_000_000


def registration(
    place: Simulated, store: MetadataStore, run: bytes = b"1", endpoint: Endpoint = HERE,
    session_s: float | None = SESSION_S,
) -> Registration:  # fmt: skip
    value = broker_json([endpoint], rack=None, incarnation=run, timestamp_ms=0)
    return Registration(
        store, ID, incarnation=run, session_s=session_s, clock=LoopClock(place.loop), value=lambda: value,
        endpoints=lambda: (endpoint,),
    )  # fmt: skip


async def opened(place: Simulated, client: str) -> MetadataStore:
    store = await place.open_client(client)
    nodes = await store.load("/")
    if ops := ops_create_skeleton(nodes):
        await store.multi(ops)
    return store


async def started(place: Simulated, client: str = "broker", run: bytes = b"1") -> tuple[Registration, MetadataStore]:
    store = await opened(place, client)
    made = registration(place, store, run)
    node = await store.get(registered_path(ID))
    await made.begin_run(None if node is None else dirs_of_last_run(node))
    await made.register()
    return made, store


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, at most 300 s of the loop's time."""
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


def test_lease_counts_from_the_moment_when_the_read_was_sent() -> None:
    lease = Lease(SESSION_S)
    assert lease.until == -math.inf
    lease.confirm(10.0)
    assert lease.until == 14.0
    lease.confirm(9.0)
    assert lease.until == 14.0
    lease.end()
    assert lease.until == -math.inf


def test_lease_of_a_broker_that_is_alone_never_ends() -> None:
    lease = Lease(None)
    lease.end()
    assert lease.until == math.inf


def test_broker_epoch_is_the_change_that_created_the_node() -> None:
    place = Simulated()

    async def main() -> None:
        made, store = await started(place)
        node = await store.get(broker_path(ID))
        assert node is not None
        assert made.epoch == node.created
        assert made.lease.until > place.loop.time()

    place.run(main())


def test_each_run_replaces_the_incarnation_and_keeps_the_directories_until_it_writes_its_own() -> None:
    place = Simulated()

    async def main() -> None:
        store = await opened(place, "broker")

        async def node() -> Node:
            found = await store.get(registered_path(ID))
            assert found is not None
            return found

        first = registration(place, store, b"1")
        await first.begin_run(None)
        assert dirs_of_last_run(await node()) == RegisteredDirs(b"1".hex(), {})
        written = RegisteredDirs(b"1".hex(), {"B": b"0".hex(), "A": b"1".hex()}, ("B",), {"A": "/a", "B": "/b"})
        await first.write_dirs(written)
        last = dirs_of_last_run(await node())
        assert last == written
        second = registration(place, store, b"2")
        await second.begin_run(last)
        assert incarnation_of((await node()).value) == b"2"
        assert dirs_of_last_run(await node()) == last
        with pytest.raises(StartError, match="another broker with id 3"):
            await first.write_dirs(last)
        await second.write_dirs(RegisteredDirs(b"2".hex(), {}))
        with pytest.raises(StartError, match="another broker with id 3"):
            await registration(place, store, b"3").begin_run(last)

    place.run(main())


def test_restarted_broker_replaces_the_node_of_its_earlier_process_at_once() -> None:
    """It listens on the same address, so the earlier process cannot run any more."""
    place = Simulated()

    async def main() -> None:
        first, _ = await started(place)
        place.crash("broker")
        before = place.loop.time()
        second, _ = await started(place, run=b"2")
        assert place.loop.time() - before < SESSION_S / 2
        assert second.epoch > first.epoch

    place.run(main())


def test_broker_with_the_id_of_a_running_one_is_refused() -> None:
    place = Simulated()

    async def main() -> None:
        first, _ = await started(place)
        keeping = asyncio.create_task(first.keep())
        other = registration(place, await opened(place, "other"), b"2", THERE)
        with pytest.raises(StartError, match="id 3 is already registered"):
            await other.begin_run(None)
        keeping.cancel()

    place.run(main())


def test_lease_ends_while_the_store_cannot_be_reached_and_comes_back() -> None:
    place = Simulated()

    async def main() -> None:
        made, _ = await started(place)
        keeping = asyncio.create_task(made.keep())
        await asyncio.sleep(10.0)
        assert made.lease.until > place.loop.time()
        place.cut("broker")
        await until(lambda: made.lease.until <= place.loop.time())
        epoch = made.epoch
        place.heal("broker")
        await until(lambda: made.lease.until > place.loop.time())
        assert made.epoch == epoch, "the session did not expire"
        keeping.cancel()

    place.run(main())


def test_broker_registers_again_after_its_session_has_expired() -> None:
    place = Simulated()

    async def main() -> None:
        made, store = await started(place)
        changes: list[int] = []
        made.on_change = lambda: changes.append(made.epoch)
        keeping = asyncio.create_task(made.keep())
        epoch = made.epoch
        place.expire("broker")
        await until(lambda: made.epoch > epoch)
        assert changes[0] == -1
        assert changes[-1] == made.epoch
        node = await store.get(broker_path(ID))
        assert node is not None
        assert node.created == made.epoch
        keeping.cancel()

    place.run(main())


def test_broker_that_is_alone_registers_again_after_its_session_has_expired() -> None:
    place = Simulated()

    async def main() -> None:
        made = registration(place, await opened(place, "broker"), session_s=None)
        await made.begin_run(None)
        await made.register()
        keeping = asyncio.create_task(made.keep())
        await asyncio.sleep(1.0)
        epoch = made.epoch
        place.expire("broker")
        await until(lambda: made.epoch > epoch)
        assert made.lease.until == math.inf
        keeping.cancel()

    place.run(main())


def test_end_of_a_registration_that_the_controller_has_deleted_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    place = Simulated()

    async def main() -> None:
        made, store = await started(place)
        await store.multi([Delete(broker_path(ID))])
        await made.end()
        assert not caplog.records

    place.run(main())


def test_broker_registers_again_after_its_node_was_deleted() -> None:
    place = Simulated()

    async def main() -> None:
        made, _ = await started(place)
        keeping = asyncio.create_task(made.keep())
        epoch = made.epoch
        controller = await opened(place, "controller")
        await controller.multi([Delete(broker_path(ID))])
        await until(lambda: made.epoch > epoch)
        keeping.cancel()

    place.run(main())


def test_answer_of_the_registration_is_lost() -> None:
    place = Simulated()

    async def main() -> None:
        store = await opened(place, "broker")
        made = registration(place, store)
        await made.begin_run(None)
        place.lose_answer("broker", applied=True)
        registering = asyncio.create_task(made.register())
        await registering
        node = await store.get(broker_path(ID))
        assert node is not None
        assert made.epoch == node.created

    place.run(main())


def test_clean_stop_is_announced_until_the_next_start() -> None:
    place = Simulated()

    async def main() -> None:
        first, store = await started(place)
        before = await load_view(store)
        assert ID in before.brokers and not before.leaving
        await first.announce_leave()
        await first.announce_leave()
        view = await load_view(store)
        assert view.leaving == {ID} and ID in view.brokers
        assert view.registered[ID] == before.registered[ID] + 1, "additions to an ISR that were decided before conflict"
        await first.end()
        assert (await load_view(store)).leaving == {ID}
        await started(place, "again", b"2")
        view = await load_view(store)
        assert ID in view.brokers and not view.leaving

    place.run(main())


def test_broker_that_stops_registers_again_if_its_node_is_deleted_before_it_knows_its_mark() -> None:
    place = Simulated()

    async def main() -> None:
        broker, store = await started(place)
        version = broker._run_version
        await broker.announce_leave()
        broker._run_version = version  # as when the reply to the mark is still in flight
        await store.multi([Delete(broker_path(ID))])
        await broker.register()
        assert ID in (await load_view(store)).brokers

    place.run(main())


def test_earlier_run_does_not_announce_the_stop_of_a_later_one() -> None:
    place = Simulated()

    async def main() -> None:
        earlier, store = await started(place)
        await started(place, "again", b"2")
        await earlier.announce_leave()
        assert not (await load_view(store)).leaving

    place.run(main())


def test_directories_that_are_written_during_a_clean_stop_keep_its_mark() -> None:
    place = Simulated()

    async def main() -> None:
        broker, store = await started(place)
        await broker.announce_leave()
        await broker.write_dirs(RegisteredDirs("run", {"a": "run"}))
        assert (await load_view(store)).leaving == {ID}

    place.run(main())


@pytest.mark.parametrize("dirs", [RegisteredDirs("run", {"a": "run"}), RegisteredDirs("run", {"b": "run"})])
def test_broker_goes_on_after_it_could_not_know_whether_its_directories_were_written(dirs: RegisteredDirs) -> None:
    place = Simulated()

    async def main() -> None:
        broker, store = await started(place)
        version = broker._run_version
        await broker.write_dirs(RegisteredDirs("run", {"a": "run"}))
        broker._run_version = version  # as when the store was away for longer than the writer waits for it
        await store.multi([Delete(broker_path(ID))])
        await broker.register()
        assert ID in (await load_view(store)).brokers
        broker._run_version = version
        await broker.write_dirs(dirs)
        node = await store.get(registered_path(ID))
        assert node is not None and dirs_of_last_run(node) == dirs and node.version == broker._run_version

    place.run(main())


def test_broker_that_was_unregistered_does_not_register_again() -> None:
    place = Simulated()

    async def main() -> None:
        broker, store = await started(place)
        node = await store.get(registered_path(ID))
        assert node is not None
        unregister = Put(registered_path(ID), unregistered_json(node.value), node.version)
        await store.multi([Delete(broker_path(ID)), unregister])
        with pytest.raises(StartError):
            await broker.write_dirs(RegisteredDirs("run", {"a": "run"}))
        with pytest.raises(StartError):
            await broker.register()

    place.run(main())
