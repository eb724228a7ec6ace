"""The store in ZooKeeper: what the rules of every MetadataStore do not say. Needs Java; skips without it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_store_fixtures import Tree, contents
from test_store_contract import OPS, results
from test_store_sessions import ESTABLISHED, SUSPENDED, Sessions, settle
from zookeeper_fixtures import SESSION_S, ZooKeeper, running_zookeeper

from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.store import (
    Changed,
    Check,
    Create,
    Delete,
    MultiTooLarge,
    NotConnected,
    Op,
    OutcomeUnknown,
    Put,
    StoreError,
    UnusableStore,
    in_multis,
)
from ottla.broker.metadata.zookeeper.ensemble import EnsembleReader
from ottla.broker.metadata.zookeeper.messages import parse_address
from ottla.broker.metadata.zookeeper.store import ZooKeeperStore
from ottla.broker.metadata.zookeeper.wire import MALFORMED_ANSWER, multi_request, read_request
from ottla.net.network import SocketNetwork

pytestmark = pytest.mark.foreign


@pytest.fixture
def zookeeper(zookeeper_address: str) -> ZooKeeper:
    return ZooKeeper(zookeeper_address)


# Addresses


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("host", ("host:2181",), ""),
        ("host:2182/", ("host:2182",), ""),
        ("a:1, b:2,[::1]:3/ottla/one", ("a:1", "b:2", "[::1]:3"), "/ottla/one"),
    ],
)
def test_address_names_servers_and_chroot(text: str, servers: tuple[str, ...], chroot: str) -> None:
    assert parse_address(text) == (servers, chroot)


@pytest.mark.parametrize("text", ["", "a,,b", "a:0", "a:70000", "a:b", "a/b//c", "a/../b", "a b"])
def test_malformed_address_is_rejected(text: str) -> None:
    with pytest.raises(UnusableStore, match="host:port,host:port/chroot"):
        parse_address(text)


def test_open_names_the_servers_that_do_not_answer() -> None:
    async def scenario() -> None:
        with pytest.raises(UnusableStore, match=r"127\.0\.0\.1:1/x did not answer within 0\.1 s.*zookeeper\.connect"):
            await ZooKeeperStore.open("127.0.0.1:1/x", connect_timeout_s=0.1)

    asyncio.run(scenario())


def test_session_timeout_that_the_server_shortens_is_rejected(zookeeper_address: str) -> None:
    async def scenario() -> None:
        with pytest.raises(UnusableStore, match=r"at most 60000 ms: set zookeeper\.session\.timeout\.ms"):
            await ZooKeeperStore.open(zookeeper_address, session_timeout_s=61)

    asyncio.run(scenario())


def test_store_uses_another_server_if_one_does_not_listen(zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        store = await ZooKeeperStore.open(f"127.0.0.1:1,{zookeeper.address}{zookeeper.chroot}")
        await store.multi([Create("/a")])
        await store.close()

    zookeeper.run(scenario())


def test_chroot_separates_two_trees(zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        stores = [
            await ZooKeeperStore.open(f"{zookeeper.address}{zookeeper.chroot}/deep/{name}", session_timeout_s=SESSION_S)
            for name in ("one", "one-more")
        ]
        trees = [Tree(), Tree()]
        for store, tree in zip(stores, trees, strict=True):
            await store.watch("/", tree)
            await store.multi([Create("/a", store.session.session_id.to_bytes(8, "big"))])
        for store, tree in zip(stores, trees, strict=True):
            assert tree.nodes == await store.load("/") and len(tree.nodes) == 1
            await store.close()

    zookeeper.run(scenario())


def test_nodes_of_zookeeper_itself_are_hidden_without_a_chroot(tmp_path: Path) -> None:
    """It reads all nodes of the server. In the one that tests share, some may not be read."""

    async def scenario() -> None:
        inside = await zookeeper.open()
        await inside.multi([Create("/a")])
        store = await ZooKeeperStore.open(zookeeper.address)
        nodes = await store.load("/")
        assert f"{zookeeper.chroot}/a" in nodes
        assert not [path for path in nodes if path.startswith("/zookeeper")]
        await store.close()
        await inside.close()

    with running_zookeeper(tmp_path) as address:
        zookeeper = ZooKeeper(address)
        zookeeper.run(scenario())


def test_ensemble_of_one_server_has_no_configured_members(zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        store = await zookeeper.open()
        assert store.servers == (zookeeper.address,)
        assert await store.ensemble_config() == ""
        reader = EnsembleReader(asyncio.get_running_loop(), SocketNetwork(), store.servers, store.ensemble_config)
        ensemble = await reader.read()
        assert ensemble is not None
        assert (ensemble.leader_id, ensemble.epoch, len(ensemble.members)) == (0, 0, 1)
        await store.close()
        with pytest.raises(StoreError):
            await store.ensemble_config()

    zookeeper.run(scenario())


def test_multi_that_a_long_chroot_makes_too_large_is_not_sent(zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        store = await ZooKeeperStore.open(f"{zookeeper.address}{zookeeper.chroot}/{'x' * 100}")
        with pytest.raises(MultiTooLarge):
            await store.multi([Check("/a", 0)] * 14_000)
        await store.heartbeat()
        await store.close()

    zookeeper.run(scenario())


def test_kazoo_is_imported_with_the_first_connection() -> None:
    """A broker without ZooKeeper imports the store, and saves the time and the memory of kazoo."""
    code = "import sys, ottla.broker.metadata.zookeeper.store; sys.exit('kazoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# Operations


@given(st.lists(st.lists(OPS, min_size=1, max_size=3), max_size=12))
@settings(max_examples=25)
def test_zookeeper_gives_the_same_results_as_the_embedded_store(zookeeper_address: str, multis: list[list[Op]]) -> None:
    async def embedded() -> list[object]:
        with TemporaryDirectory() as directory:
            store = EmbeddedStore.open(Path(directory, "store"))
            try:
                return await results(store, multis)
            finally:
                await store.close()

    place = ZooKeeper(zookeeper_address)

    async def real() -> list[object]:
        store = await place.open()
        try:
            return await results(store, multis)
        finally:
            await store.close()

    assert place.run(real()) == asyncio.run(embedded())


def test_tree_of_many_nodes_is_loaded_and_followed(zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        one = await zookeeper.open()
        creations = [Create("/t"), *(Create(f"/t/{number}", b"%d" % number) for number in range(1600))]
        for multi in in_multis(creations):
            await one.multi(multi)
        two = await zookeeper.open()
        assert await two.load("/") == await one.load("/")
        tree = Tree()
        await two.watch("/", tree)
        puts = [Put(f"/t/{number}", b"new") for number in range(1600)]
        await asyncio.gather(*map(one.multi, in_multis(puts)))
        expected = await one.load("/")
        await settle(lambda: tree.nodes == expected)
        await one.close()
        await two.close()

    zookeeper.run(scenario())


# Connections


def test_request_is_not_sent_on_a_later_connection(zookeeper: ZooKeeper) -> None:
    """The event loop may not know yet that the connection was lost; the request may belong to an expired session."""

    async def scenario() -> None:
        store = await zookeeper.open()
        sessions, client = Sessions(store), store._connection._client
        store._connection.drop()
        while client.connection_number == 1:
            time.sleep(0.001)  # keeps the event loop from learning of it
        with pytest.raises(OutcomeUnknown):
            await store.multi([Create("/a")])
        await sessions.reach(ESTABLISHED)
        assert sessions.states == [SUSPENDED, ESTABLISHED]
        assert await store.load("/") == {}
        await store.close()

    zookeeper.run(scenario())


def test_silent_server_suspends_the_session_and_calls_are_not_queued(zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        store = await zookeeper.open_client("one", session_s=1.0)
        sessions = Sessions(store)
        zookeeper._clients["one"].proxy.pause()
        beats = asyncio.ensure_future(store.heartbeat())
        await sessions.reach(SUSPENDED)
        with pytest.raises(NotConnected):
            await beats
        for call in (store.get("/a"), store.multi([Create("/a")]), store.heartbeat()):
            with pytest.raises(NotConnected):
                await call
        zookeeper._clients["one"].proxy.resume()
        await sessions.reach(ESTABLISHED)
        assert await store.load("/") == {}

    zookeeper.run(scenario())


def test_close_returns_while_the_server_is_silent(zookeeper: ZooKeeper) -> None:
    async def scenario() -> None:
        store = await zookeeper.open_client("one", session_s=1.0)
        zookeeper._clients["one"].proxy.pause()
        await store.close()

    zookeeper.run(scenario())


def test_watchers_follow_writers_whose_connections_break(zookeeper: ZooKeeper) -> None:
    rng = Random(20)

    async def write(store: ZooKeeperStore, name: str) -> None:
        for number in range(60):
            path = f"/{name}-{rng.randrange(8)}"
            op: Op = rng.choice([Create(path), Put(path, b"%d" % number), Delete(path)])
            try:
                await store.multi([Put("/a", b"%d" % number), op, Put("/b", b"%d" % number)])
            except StoreError:
                await asyncio.sleep(0.005)  # refused, or not connected

    async def scenario() -> None:
        stores = [await zookeeper.open_client(name) for name in "xyz"]
        await stores[0].multi([Create("/a"), Create("/b")])
        trees = [Tree() for _ in stores]
        differing: list[list[Changed]] = []

        def follow(tree: Tree, changes: list[Changed]) -> None:
            tree(changes)
            if tree.contents["/a"] != tree.contents["/b"]:
                differing.append(changes)

        for store, tree in zip(stores, trees, strict=True):
            await store.watch("/", lambda changes, tree=tree: follow(tree, changes))
        writers = asyncio.gather(*map(write, stores, "xyz"))
        for _ in range(8):
            await asyncio.sleep(0.02)
            rng.choice([zookeeper.break_connection, zookeeper.expire])(rng.choice("xyz"))
        await writers
        observer = await zookeeper.open()
        expected = await observer.load("/")
        await settle(lambda: all(tree.nodes == expected for tree in trees))
        assert not differing, "a watcher saw one half of a multi"
        assert await contents(observer, "/a")
        await observer.close()

    zookeeper.run(scenario())


# Malformed answers


@pytest.mark.parametrize("with_children", [True, False])
def test_malformed_answers_are_refused(with_children: bool) -> None:
    rng = Random(7)
    requests = [multi_request([Create("/a"), Put("/a", b"x")], ""), read_request(["/a"], with_children=with_children)]
    for request in requests:
        with pytest.raises(MALFORMED_ANSWER):
            request.decode(b"\0\0\0\x63\0\0\0\0\0", 0)
        for _ in range(300):
            try:
                request.decode(rng.randbytes(rng.randrange(60)), 0)
            except MALFORMED_ANSWER:
                pass
