"""ACLs of the nodes in ZooKeeper, and what a broker without the credentials sees. Needs Java; skips without it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from zookeeper_fixtures import SESSION_S, ZooKeeper

from ottla.broker.metadata.access_nodes import ACCESS_SKELETON
from ottla.broker.metadata.nodes import CLUSTER_SECRET, SKELETON
from ottla.broker.metadata.store import Create, Put, StoreError, UnusableStore
from ottla.broker.metadata.zookeeper import wire
from ottla.broker.metadata.zookeeper.acl import ALL, OPEN, READ, Entry, ZooKeeperSecurity, digest_identity, encode_acl
from ottla.broker.metadata.zookeeper.store import ZooKeeperStore

pytestmark = pytest.mark.foreign

DIGEST = "ottla:canary-secret"
PROTECTED = ZooKeeperSecurity(DIGEST, True)
BROKERS = Entry(ALL, "digest", digest_identity(DIGEST))
EVERYONE = Entry(READ, "world", "anyone")
#: nodes with secrets, and those that say who may do what
SECRETS = ("/config/users", "/config/brokers", "/kafka-acl", "/kafka-acl-extended", "/delegation_token", CLUSTER_SECRET)


@pytest.fixture
def address(zookeeper_address: str) -> str:
    """The address of a chroot of its own."""
    return f"{zookeeper_address}{ZooKeeper(zookeeper_address).chroot}"


def with_stores(
    address: str, scenario: Callable[..., Awaitable[None]], securities: Sequence[ZooKeeperSecurity]
) -> None:
    """Run a scenario with a store for each of these settings, opened one after the other."""

    async def run() -> None:
        stores = []
        try:
            for security in securities:
                stores.append(await ZooKeeperStore.open(address, session_timeout_s=SESSION_S, security=security))
            await scenario(*stores)
        finally:
            for store in stores:
                await store.close()

    asyncio.run(run())


async def fill(store: ZooKeeperStore) -> None:
    nodes = await store.load("/")
    paths = [*SKELETON, *ACCESS_SKELETON, "/config/users/alice", CLUSTER_SECRET]
    await store.multi([Create(path) for path in paths if path not in nodes])
    await store.multi([Create("/brokers/ids/1", b"{}", ephemeral=True)])


async def acls_of(store: ZooKeeperStore) -> dict[str, set[Entry]]:
    paths = ["/", *await store.load("/")]
    return {path: set(await store._ask(wire.acl_request(store._full(path)))) for path in paths}


def expected(path: str) -> set[Entry]:
    is_secret = any(path == secret or path.startswith(secret + "/") for secret in SECRETS)
    return {BROKERS} if is_secret else {BROKERS, EVERYONE}


def test_new_nodes_belong_to_the_brokers(address: str) -> None:
    async def scenario(store: ZooKeeperStore) -> None:
        await fill(store)
        found = await acls_of(store)
        assert {"/", "/brokers/ids/1", *SECRETS} <= found.keys()
        assert found == {path: expected(path) for path in found}

    with_stores(address, scenario, [PROTECTED])


def test_nodes_that_exist_get_acls_at_the_start(address: str) -> None:
    async def before(store: ZooKeeperStore) -> None:
        await fill(store)
        assert set(map(frozenset, (await acls_of(store)).values())) == {frozenset(OPEN)}

    async def after(store: ZooKeeperStore) -> None:
        found = await acls_of(store)
        assert len(found) > 20 and found == {path: expected(path) for path in found}

    with_stores(address, before, [ZooKeeperSecurity()])
    with_stores(address, after, [PROTECTED])
    with_stores(address, after, [PROTECTED])


@pytest.mark.parametrize(
    "security", [ZooKeeperSecurity(), ZooKeeperSecurity("ottla:wrong"), ZooKeeperSecurity("x:y", True)]
)
def test_broker_without_the_credentials_is_refused(security: ZooKeeperSecurity, address: str) -> None:
    with_stores(address, fill, [PROTECTED])

    async def unwanted(store: ZooKeeperStore) -> None:
        raise AssertionError("the store was opened")

    with pytest.raises(UnusableStore, match=r"set zookeeper\.auth\.digest") as refused:
        with_stores(address, unwanted, [security])
    assert "canary" not in str(refused.value) and "wrong" not in str(refused.value)


def test_others_can_read_but_not_change_nodes_without_secrets(address: str) -> None:
    async def scenario(brokers: ZooKeeperStore, stranger: ZooKeeperStore) -> None:
        await brokers.multi([Create("/topics", b"x")])
        node = await stranger.get("/topics")
        assert node is not None and node.value == b"x"
        for op in (Put("/topics", b"y"), Create("/topics/a")):
            with pytest.raises(StoreError, match="does not let this broker change /topics"):
                await stranger.multi([op])
        assert await brokers.get("/topics") == node

    with_stores(address, scenario, [PROTECTED, ZooKeeperSecurity()])


def test_store_goes_on_after_its_connection_was_lost(address: str) -> None:
    async def scenario(store: ZooKeeperStore) -> None:
        await store.multi([Create("/config"), Create("/config/users", b"x")])
        reconnected = asyncio.Event()
        store.on_session(lambda session: reconnected.set() if session.state.name == "ESTABLISHED" else None)
        store._connection.drop()
        async with asyncio.timeout(60):
            await reconnected.wait()
            await store.multi([Put("/config/users", b"y")])
        node = await store.get("/config/users")
        assert node is not None and node.value == b"y"

    with_stores(address, scenario, [PROTECTED])


@pytest.mark.parametrize(
    "security", [ZooKeeperSecurity("", True), ZooKeeperSecurity("canary"), ZooKeeperSecurity(":canary")]
)
def test_settings_that_contradict_each_other_are_refused(security: ZooKeeperSecurity) -> None:
    with pytest.raises(UnusableStore, match=r"zookeeper\.auth\.digest") as refused:
        asyncio.run(ZooKeeperStore.open("127.0.0.1:1", security=security))
    assert "canary" not in f"{refused.value} {security!r}"


def test_acl_is_encoded_as_zookeeper_has_it() -> None:
    assert encode_acl(OPEN) == b"\0\0\0\1\0\0\0\x1f\0\0\0\5world\0\0\0\6anyone"
    answer = encode_acl((BROKERS, EVERYONE))
    assert wire.acl_request("/a").decode(answer, 0) == (BROKERS, EVERYONE)
