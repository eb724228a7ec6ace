"""The rules of a MetadataStore that several clients share: sessions, lost answers and late watches.

They run against every implementation of ``Servers``: simulated servers and a real ZooKeeper.
"""

import asyncio
from collections.abc import Callable
from random import Random

import pytest
from metadata_store_fixtures import Servers, Simulated, Tree, VirtualLoop, contents, run_on
from zookeeper_fixtures import ZooKeeper

from ottla.broker.metadata.store import (
    Create,
    Delete,
    MetadataStore,
    NodeExists,
    NotConnected,
    OutcomeUnknown,
    Put,
    Session,
    SessionState,
    VersionConflict,
)
from ottla.testing.metadata_store import SimulatedEnsemble, Timing

ESTABLISHED, SUSPENDED, EXPIRED = SessionState.ESTABLISHED, SessionState.SUSPENDED, SessionState.EXPIRED


@pytest.fixture(params=[Simulated, pytest.param(ZooKeeper, marks=pytest.mark.foreign)])
def servers(request: pytest.FixtureRequest) -> Servers:
    return ZooKeeper(request.getfixturevalue("zookeeper_address")) if request.param is ZooKeeper else request.param()


class Sessions:
    """Records the sessions of a store, and waits for a state."""

    def __init__(self, store: MetadataStore) -> None:
        self.seen: list[Session] = []
        self._changed = asyncio.Event()
        store.on_session(self._note)

    def _note(self, session: Session) -> None:
        self.seen.append(session)
        self._changed.set()

    @property
    def states(self) -> list[SessionState]:
        return [session.state for session in self.seen]

    async def reach(self, state: SessionState) -> Session:
        """Return the session when its state is this one; states seen before do not count."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self.seen[-1].state is state:
                return self.seen[-1]


async def settle(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    while not condition():
        await asyncio.sleep(0.01)


def test_one_of_two_clients_wins(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        await one.multi([Create("/a")])
        outcomes = await asyncio.gather(
            *(store.multi([Put("/a", b"x", version=0)]) for store in (one, two)), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["VersionConflict", "Written"]

    servers.run(scenario())


def test_read_shows_what_another_client_has_written(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        for number in range(50):
            await one.multi([Create(f"/{number}")])
            assert await two.get(f"/{number}") is not None

    servers.run(scenario())


def test_watchers_of_other_clients_never_go_back_and_end_with_the_same_tree(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        tree = Tree()
        await two.watch("/", tree)
        await write_a_hundred_versions(one)
        await settle(lambda: tree.contents == {"/a": (b"99", 100)})
        versions = [changes[-1].node.version for changes in tree.calls]
        assert versions == sorted(set(versions))

    servers.run(scenario())


async def write_a_hundred_versions(store: MetadataStore) -> None:
    await store.multi([Create("/a")])
    for number in range(100):
        await store.multi([Put("/a", b"%d" % number)])


def test_watcher_sees_the_tree_of_one_moment(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        tree = Tree()
        pairs = []

        def compare(changes: list) -> None:
            tree(changes)
            pairs.append((tree.contents.get("/a"), tree.contents.get("/b")))

        await two.watch("/", compare)
        await one.multi([Create("/a"), Create("/b")])
        for number in range(100):
            await one.multi([Put("/a", b"%d" % number), Put("/b", b"%d" % number)])
        await settle(lambda: tree.contents.get("/a") == (b"99", 100))
        assert all(a == b for a, b in pairs)

    servers.run(scenario())


def test_own_multi_returns_after_the_watchers_got_all_changes_before_it(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        tree = Tree()
        await two.watch("/", tree)
        for number in range(50):
            await one.multi([Create(f"/one-{number}")])
            await two.multi([Create(f"/two-{number}")])
            assert f"/one-{number}" in tree.nodes and f"/two-{number}" in tree.nodes

    servers.run(scenario())


@pytest.mark.parametrize("applied", [True, False])
def test_outcome_of_a_multi_whose_answer_is_lost_is_unknown(servers: Servers, applied: bool) -> None:
    async def scenario() -> None:
        store = await servers.open_client("one")
        sessions, before = Sessions(store), store.session
        servers.lose_answer("one", applied=applied)
        with pytest.raises(OutcomeUnknown):
            await store.multi([Create("/a")])
        assert sessions.states == [SUSPENDED], "the listener is called first"
        with pytest.raises(NotConnected):
            await store.get("/a")
        await sessions.reach(ESTABLISHED)
        assert store.session == before
        assert await contents(store, "/") == ({"/a": (b"", 0)} if applied else {})

    servers.run(scenario())


def test_watcher_gets_what_it_missed_while_the_connection_was_lost(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        tree, sessions = Tree(), Sessions(two)
        await one.multi([Create("/kept"), Create("/deleted"), Create("/again")])
        await two.watch("/", tree)
        servers.cut("two")
        await sessions.reach(SUSPENDED)
        await one.multi([Create("/new"), Delete("/deleted"), Put("/kept", b"x"), Delete("/again"), Create("/again")])
        servers.heal("two")
        await sessions.reach(ESTABLISHED)
        expected = await one.load("/")
        await settle(lambda: tree.nodes == expected)

    servers.run(scenario())


def test_ephemeral_nodes_outlive_a_short_loss_of_the_connection(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        sessions, before = Sessions(one), one.session
        await one.multi([Create("/alive", ephemeral=True)])
        servers.break_connection("one")
        await sessions.reach(ESTABLISHED)
        assert one.session == before
        assert "/alive" in await two.load("/")

    servers.run(scenario())


def test_cut_off_client_loses_its_ephemeral_nodes_before_it_learns_of_it(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        sessions, before = Sessions(one), one.session
        tree = Tree()
        await two.watch("/", tree)
        await one.multi([Create("/alive", ephemeral=True), Create("/kept")])
        await settle(lambda: "/alive" in tree.nodes)
        servers.cut("one")
        await settle(lambda: "/alive" not in tree.nodes)
        assert sessions.states == [SUSPENDED]
        servers.heal("one")
        after = await sessions.reach(ESTABLISHED)
        assert sessions.states == [SUSPENDED, EXPIRED, ESTABLISHED] and after.session_id != before.session_id
        assert list(await one.load("/")) == ["/kept"]
        await one.multi([Create("/alive", ephemeral=True)])

    servers.run(scenario())


def test_expired_session_deletes_its_ephemeral_nodes_and_a_new_one_follows(servers: Servers) -> None:
    async def scenario() -> None:
        store = await servers.open_client("one")
        sessions, tree = Sessions(store), Tree()
        await store.watch("/", tree)
        await store.multi([Create("/alive", ephemeral=True)])
        servers.expire("one")
        await sessions.reach(ESTABLISHED)
        assert sessions.states == [SUSPENDED, EXPIRED, ESTABLISHED]
        await settle(lambda: tree.nodes == {})
        await store.multi([Create("/alive", ephemeral=True)])
        assert list(tree.nodes) == ["/alive"]

    servers.run(scenario())


def test_killed_clients_ephemeral_node_is_in_the_way_until_its_session_expires(servers: Servers) -> None:
    async def scenario() -> None:
        first = await servers.open_client("one")
        await first.multi([Create("/alive", b"first", ephemeral=True), Create("/kept")])
        servers.crash("one")
        second = await servers.open_client("one")
        with pytest.raises(NodeExists):
            await second.multi([Create("/alive", b"second", ephemeral=True)])
        tree = Tree()
        await second.watch("/", tree)
        await settle(lambda: "/alive" not in tree.nodes)
        await second.multi([Create("/alive", b"second", ephemeral=True)])
        assert await contents(second, "/") == {"/alive": (b"second", 0), "/kept": (b"", 0)}

    servers.run(scenario())


def test_version_of_a_deleted_node_fits_the_node_that_replaced_it(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        await one.multi([Create("/a", b"first")])
        first = await two.get("/a")
        await one.multi([Delete("/a")])
        await one.multi([Create("/a", b"second")])
        await two.multi([Put("/a", b"third", version=first.version)])
        second = await two.get("/a")
        assert second.created != first.created, "versions alone do not protect against this"
        with pytest.raises(VersionConflict):
            await two.multi([Put("/a", b"fourth", version=0)])

    servers.run(scenario())


def test_close_while_cut_off_returns_and_the_session_expires(servers: Servers) -> None:
    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        tree = Tree()
        await two.watch("/", tree)
        await one.multi([Create("/alive", ephemeral=True)])
        await settle(lambda: "/alive" in tree.nodes)
        servers.cut("one")
        await one.close()
        await settle(lambda: tree.nodes == {})

    servers.run(scenario())


# The simulation itself


def test_simulated_watchers_get_changes_late_and_merged() -> None:
    servers, tree = Simulated(), Tree()

    async def scenario() -> None:
        one, two = await servers.open_client("one"), await servers.open_client("two")
        await two.watch("/", tree)
        await write_a_hundred_versions(one)
        assert tree.contents != {"/a": (b"99", 100)}
        await settle(lambda: tree.contents == {"/a": (b"99", 100)})
        assert len(tree.calls) < 100

    servers.run(scenario())


def faulty_run(seed: int) -> list[str]:
    """Let three clients write under random faults; return the trace."""
    loop, rng, trace = VirtualLoop(), Random(seed), []
    ensemble = SimulatedEnsemble(loop, Random(seed), timing=Timing(lost_answer_rate=0.1), trace=trace.append)

    async def write(name: str) -> None:
        store = ensemble.connect(name)
        for number in range(20):
            try:
                await store.multi([Create(f"/{name}-{number}")])
            except (OutcomeUnknown, NotConnected):
                await asyncio.sleep(rng.uniform(0, 1))

    async def disturb() -> None:
        for _ in range(10):
            name = rng.choice("abc")
            fault = rng.choice([ensemble.cut, ensemble.expire, ensemble.break_connection])
            fault(name)
            await asyncio.sleep(rng.uniform(0, 3))
            ensemble.heal(name)

    async def main() -> None:
        await asyncio.gather(*map(write, "abc"), disturb())
        trace.append(f"end time={loop.time()!r} nodes={list(ensemble.tree())}")

    run_on(loop, main())
    return trace


def test_same_seed_gives_the_same_run() -> None:
    assert faulty_run(7) == faulty_run(7) != faulty_run(8)
    assert len(faulty_run(7)) > 30


def test_process_that_starts_at_a_lagging_server_sees_the_later_changes_too() -> None:
    place = Simulated()

    async def main() -> None:
        writer = await place.open_client("writer")
        place.ensemble.lag("reader", 2.0)
        await writer.multi([Create("/a")])
        reader = await place.open_client("reader")
        assert await reader.get("/a") is None, "its server has not applied the change"
        seen: list[str] = []
        await reader.watch("/", lambda changes: seen.extend(path for path, _ in changes))
        await asyncio.sleep(5)
        assert "/a" in seen

    place.run(main())
