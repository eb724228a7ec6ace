"""The rules of a MetadataStore that several clients share: sessions, lost answers and late watches.

They run against the simulated ensemble; a distributed implementation adds a class with the same methods.
"""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest
from metadata_store_fixtures import Simulated, Tree, VirtualLoop, contents, run_on

from ottla.cluster.store import (
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


@pytest.fixture(params=[Simulated])
def servers(request: pytest.FixtureRequest) -> Simulated:
    return request.param()


def play(servers: Simulated, scenario: Callable[[SimulatedEnsemble], Awaitable[None]]) -> None:
    servers.run(scenario(servers.ensemble))


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


def test_one_of_two_clients_wins(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        await one.multi([Create("/a")])
        outcomes = await asyncio.gather(
            *(store.multi([Put("/a", b"x", version=0)]) for store in (one, two)), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["VersionConflict", "Written"]

    play(servers, scenario)


def test_read_shows_what_another_client_has_written(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        for number in range(50):
            await one.multi([Create(f"/{number}")])
            assert await two.get(f"/{number}") is not None

    play(servers, scenario)


def test_watchers_of_other_clients_get_changes_late_and_merged_and_end_with_the_same_tree(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        tree = Tree()
        await two.watch("/", tree)
        await one.multi([Create("/a")])
        behind = 0
        for number in range(100):
            await one.multi([Put("/a", b"%d" % number)])
            behind += tree.contents.get("/a") != (b"%d" % number, number + 1)
        await settle(lambda: tree.contents == {"/a": (b"99", 100)})
        versions = [changes[-1].node.version for changes in tree.calls]
        assert versions == sorted(set(versions)), "a watcher never goes back"
        assert behind > 0 and len(tree.calls) < 100

    play(servers, scenario)


def test_watcher_sees_the_tree_of_one_moment(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
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

    play(servers, scenario)


def test_own_multi_returns_after_the_watchers_got_all_changes_before_it(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        tree = Tree()
        await two.watch("/", tree)
        for number in range(50):
            await one.multi([Create(f"/one-{number}")])
            await two.multi([Create(f"/two-{number}")])
            assert f"/one-{number}" in tree.nodes and f"/two-{number}" in tree.nodes

    play(servers, scenario)


@pytest.mark.parametrize("applied", [True, False])
def test_outcome_of_a_multi_whose_answer_is_lost_is_unknown(servers: Simulated, applied: bool) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store = ensemble.connect("one")
        sessions, before = Sessions(store), store.session
        ensemble.lose_answer("one", applied=applied)
        with pytest.raises(OutcomeUnknown):
            await store.multi([Create("/a")])
        assert sessions.states == [SUSPENDED], "the listener is called first"
        with pytest.raises(NotConnected):
            await store.get("/a")
        await sessions.reach(ESTABLISHED)
        assert store.session == before
        assert await contents(store, "/") == ({"/a": (b"", 0)} if applied else {})

    play(servers, scenario)


def test_watcher_gets_what_it_missed_while_the_connection_was_lost(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        tree, sessions = Tree(), Sessions(two)
        await one.multi([Create("/kept"), Create("/deleted"), Create("/again")])
        await two.watch("/", tree)
        ensemble.cut("two")
        await sessions.reach(SUSPENDED)
        await one.multi([Create("/new"), Delete("/deleted"), Put("/kept", b"x"), Delete("/again"), Create("/again")])
        ensemble.heal("two")
        await sessions.reach(ESTABLISHED)
        expected = await one.load("/")
        await settle(lambda: tree.nodes == expected)

    play(servers, scenario)


def test_ephemeral_nodes_outlive_a_short_loss_of_the_connection(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        sessions, before = Sessions(one), one.session
        await one.multi([Create("/alive", ephemeral=True)])
        ensemble.break_connection("one")
        await sessions.reach(ESTABLISHED)
        assert one.session == before
        assert "/alive" in await two.load("/")

    play(servers, scenario)


def test_cut_off_client_loses_its_ephemeral_nodes_before_it_learns_of_it(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        sessions, before = Sessions(one), one.session
        tree = Tree()
        await two.watch("/", tree)
        await one.multi([Create("/alive", ephemeral=True), Create("/kept")])
        await settle(lambda: "/alive" in tree.nodes)
        ensemble.cut("one")
        await settle(lambda: "/alive" not in tree.nodes)
        assert sessions.states == [SUSPENDED]
        ensemble.heal("one")
        after = await sessions.reach(ESTABLISHED)
        assert sessions.states == [SUSPENDED, EXPIRED, ESTABLISHED] and after.session_id != before.session_id
        assert list(await one.load("/")) == ["/kept"]
        await one.multi([Create("/alive", ephemeral=True)])

    play(servers, scenario)


def test_expired_session_deletes_its_ephemeral_nodes_and_a_new_one_follows(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        store = ensemble.connect("one")
        sessions, tree = Sessions(store), Tree()
        await store.watch("/", tree)
        await store.multi([Create("/alive", ephemeral=True)])
        ensemble.expire("one")
        await sessions.reach(ESTABLISHED)
        assert sessions.states == [SUSPENDED, EXPIRED, ESTABLISHED]
        await settle(lambda: tree.nodes == {})
        await store.multi([Create("/alive", ephemeral=True)])
        assert list(tree.nodes) == ["/alive"]

    play(servers, scenario)


def test_killed_clients_ephemeral_node_is_in_the_way_until_its_session_expires(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        first = ensemble.connect("one")
        await first.multi([Create("/alive", b"first", ephemeral=True), Create("/kept")])
        ensemble.crash("one")
        second = ensemble.connect("one")
        with pytest.raises(NodeExists):
            await second.multi([Create("/alive", b"second", ephemeral=True)])
        tree = Tree()
        await second.watch("/", tree)
        await settle(lambda: "/alive" not in tree.nodes)
        await second.multi([Create("/alive", b"second", ephemeral=True)])
        assert await contents(second, "/") == {"/alive": (b"second", 0), "/kept": (b"", 0)}

    play(servers, scenario)


def test_version_of_a_deleted_node_fits_the_node_that_replaced_it(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        await one.multi([Create("/a", b"first")])
        first = await two.get("/a")
        await one.multi([Delete("/a")])
        await one.multi([Create("/a", b"second")])
        await two.multi([Put("/a", b"third", version=first.version)])
        second = await two.get("/a")
        assert second.created != first.created, "versions alone do not protect against this"
        with pytest.raises(VersionConflict):
            await two.multi([Put("/a", b"fourth", version=0)])

    play(servers, scenario)


def test_close_while_cut_off_returns_and_the_session_expires(servers: Simulated) -> None:
    async def scenario(ensemble: SimulatedEnsemble) -> None:
        one, two = ensemble.connect("one"), ensemble.connect("two")
        tree = Tree()
        await two.watch("/", tree)
        await one.multi([Create("/alive", ephemeral=True)])
        await settle(lambda: "/alive" in tree.nodes)
        ensemble.cut("one")
        await one.close()
        await settle(lambda: tree.nodes == {})

    play(servers, scenario)


# The simulation itself


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
