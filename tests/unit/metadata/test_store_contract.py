"""The rules of every MetadataStore. A new implementation adds a class with the interface ``Place``."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_store_fixtures import Embedded, Place, Simulated, Tree, content, contents, play
from zookeeper_fixtures import ZooKeeper

from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.store import (
    MULTI_BYTES_MAX,
    Changed,
    Check,
    Conflict,
    Create,
    Delete,
    EphemeralParent,
    MetadataStore,
    MultiTooLarge,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    Put,
    SessionState,
    StoreClosed,
    VersionConflict,
    Written,
    check_path,
    in_multis,
)


@pytest.fixture(params=[Embedded, Simulated, pytest.param(ZooKeeper, marks=pytest.mark.foreign)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return request.param(request.getfixturevalue("zookeeper_address") if request.param is ZooKeeper else tmp_path)


# Reading and writing


def test_a_created_node_is_read_with_version_0(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a", b"one")])
        assert await content(store, "/a") == (b"one", 0)

    play(place, scenario)


def test_a_node_that_does_not_exist_is_none(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert await store.get("/a") is None

    play(place, scenario)


def test_every_put_counts_the_version_up(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a")])
        await store.multi([Put("/a", b"one", version=0)])
        await store.multi([Put("/a", b"two", version=1)])
        assert await content(store, "/a") == (b"two", 2)

    play(place, scenario)


def test_a_put_without_version_always_applies(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a"), Put("/a", b"x"), Put("/a", b"y")])
        assert await content(store, "/a") == (b"y", 2)

    play(place, scenario)


def test_a_node_created_again_starts_at_version_0(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a"), Put("/a", b"x")])
        await store.multi([Delete("/a", version=1)])
        assert await store.get("/a") is None
        await store.multi([Create("/a")])
        assert await content(store, "/a") == (b"", 0)

    play(place, scenario)


def test_any_bytes_are_kept(place: Place) -> None:
    value = bytes(range(256)) * 1000

    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a", value)])
        assert await content(store, "/a") == (value, 0)

    play(place, scenario)


def test_children_are_named_in_order_and_one_level_deep(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a"), Create("/a/z"), Create("/a/b"), Create("/a/b/c"), Create("/ab")])
        assert await store.children("/a") == ("b", "z")
        assert await store.children("/") == ("a", "ab")

    play(place, scenario)


def test_what_does_not_exist_has_no_children(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert await store.children("/a") == ()

    play(place, scenario)


def test_loading_a_prefix_takes_the_node_and_all_below_but_no_namesakes(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        paths = ("/a", "/a/b", "/a/b/c", "/a-b", "/a.b", "/ab", "/b")
        await store.multi([Create(path, path.encode()) for path in paths])
        assert await contents(store, "/a") == {path: (path.encode(), 0) for path in ("/a", "/a/b", "/a/b/c")}
        assert set(await store.load("/")) == set(paths)
        assert await store.load("/c") == {}

    play(place, scenario)


# Refusals


@pytest.mark.parametrize(
    ("op", "error", "path"),
    [
        (Create("/there"), NodeExists, "/there"),
        (Create("/absent/child"), NoNode, "/absent"),
        (Create("/fleeting/child"), EphemeralParent, "/fleeting"),
        (Put("/absent", b""), NoNode, "/absent"),
        (Put("/there", b"", version=5), VersionConflict, "/there"),
        (Delete("/absent"), NoNode, "/absent"),
        (Delete("/there/child", version=5), VersionConflict, "/there/child"),
        (Delete("/there"), NotEmpty, "/there"),
        (Check("/absent", 0), NoNode, "/absent"),
        (Check("/there", 1), VersionConflict, "/there"),
    ],
)
def test_a_refused_multi_changes_nothing_and_names_the_path(
    place: Place, op: object, error: type[Conflict], path: str
) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/there"), Create("/there/child"), Create("/fleeting", ephemeral=True)])
        before = await store.load("/")
        with pytest.raises(error) as raised:
            await store.multi([Create("/first"), Put("/there/child", b"new"), op, Create("/last")])
        assert raised.value.path == path
        assert await store.load("/") == before

    play(place, scenario)


def test_operations_of_a_multi_see_each_other(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi(
            [Create("/a"), Create("/a/b"), Put("/a/b", b"x", version=0), Check("/a/b", 1), Delete("/a/b", 1)]
        )
        assert await contents(store, "/") == {"/a": (b"", 0)}

    play(place, scenario)


def test_a_check_that_holds_lets_the_multi_pass(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/epoch")])
        await store.multi([Check("/epoch", 0), Create("/a")])
        assert await content(store, "/a") == (b"", 0)

    play(place, scenario)


def test_one_of_two_rivals_wins(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a")])
        rivals = [store.multi([Put("/a", name, version=0)]) for name in (b"one", b"two")]
        outcomes = await asyncio.gather(*rivals, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["VersionConflict", "Written"]
        assert (await store.get("/a")).version == 1

    play(place, scenario)


def test_a_refused_multi_does_not_harm_those_beside_it(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        multis = [store.multi([Create(f"/{number % 60}", b"%d" % number)]) for number in range(100)]
        outcomes = await asyncio.gather(*multis, return_exceptions=True)
        assert all(isinstance(outcome, Written) for outcome in outcomes[:60])
        assert [error.path for error in outcomes[60:]] == [f"/{number}" for number in range(40)]
        assert await contents(store, "/") == {f"/{number}": (b"%d" % number, 0) for number in range(60)}

    play(place, scenario)


@pytest.mark.parametrize("path", ["", "/", "a", "/a/", "//a", "/a//b", "/a/../b", "/.", "/a\0", "/a\ud800"])
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        check_path(path)


@pytest.mark.parametrize("path", ["/a", "/a/b", "/config/topics/my.topic-1_x", "/...", "/.a", "/größe", "/a b"])
def test_an_ordinary_path_is_accepted(path: str) -> None:
    check_path(path)


def test_a_value_that_is_not_bytes_is_refused(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        with pytest.raises(TypeError, match="/a is str"):
            await store.multi([Create("/a", "text")])

    play(place, scenario)


# Watching


def test_a_watcher_first_sees_what_is_there(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a", b"x"), Create("/a/b")])
        tree = Tree()
        await store.watch("/", tree)
        assert tree.contents == {"/a": (b"x", 0), "/a/b": (b"", 0)}

    play(place, scenario)


def test_changes_have_reached_the_watcher_when_the_multi_returns(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        tree = Tree()
        await store.watch("/", tree)
        await store.multi([Create("/a"), Create("/b")])
        assert tree.contents == {"/a": (b"", 0), "/b": (b"", 0)}
        await store.multi([Put("/a", b"x"), Delete("/b")])
        assert tree.contents == {"/a": (b"x", 1)}

    play(place, scenario)


def test_changes_come_in_the_order_of_commits(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        tree = Tree()
        await store.watch("/", tree)
        await asyncio.gather(*(store.multi([Create(f"/{number:03}")]) for number in range(200)))
        assert tree.paths == [f"/{number:03}" for number in range(200)]

    play(place, scenario)


def test_a_watcher_sees_its_prefix_only(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        tree = Tree()
        await store.multi([Create("/a"), Create("/ab")])
        await store.watch("/a", tree)
        await store.multi([Create("/a/b"), Create("/ab/c"), Create("/b"), Put("/a", b"x")])
        assert tree.paths == ["/a", "/a/b", "/a"]

    play(place, scenario)


def test_a_refused_multi_is_not_reported(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        tree = Tree()
        await store.watch("/", tree)
        with pytest.raises(NoNode):
            await store.multi([Create("/a"), Delete("/absent")])
        assert tree.calls == []

    play(place, scenario)


def test_nothing_falls_between_the_first_sight_and_the_changes(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        trees = [Tree() for _ in range(20)]
        calls = []
        for number, tree in enumerate(trees):
            calls += [store.multi([Create(f"/{number}")]), store.watch("/", tree)]
        await asyncio.gather(*calls, store.multi([Delete("/0")]))
        for tree in trees:
            assert tree.nodes == await store.load("/")

    play(place, scenario)


def test_a_watcher_that_raises_harms_neither_others_nor_the_writer(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        reported: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

        def fail(changes: list[Changed]) -> None:
            raise RuntimeError("a defect of the watcher")

        tree = Tree()
        await store.watch("/", fail)
        await store.watch("/", tree)
        await store.multi([Create("/a")])
        assert tree.paths == ["/a"]
        assert len(reported) == 1

    play(place, scenario)


# Life and death


def test_nodes_outlive_the_store(place: Place) -> None:
    async def write(store: MetadataStore) -> None:
        await store.multi([Create("/a"), Put("/a", b"x")])

    async def read(store: MetadataStore) -> None:
        assert await contents(store, "/") == {"/a": (b"x", 1)}

    play(place, write, read)


def test_ephemeral_nodes_vanish_with_the_store(place: Place) -> None:
    async def write(store: MetadataStore) -> None:
        await store.multi([Create("/ids"), Create("/ids/1", b"here", ephemeral=True)])
        assert await content(store, "/ids/1") == (b"here", 0)

    async def read(store: MetadataStore) -> None:
        assert await contents(store, "/") == {"/ids": (b"", 0)}

    play(place, write, read)


def test_calls_after_close_are_refused(place: Place) -> None:
    async def run() -> None:
        store = await place.open()
        await store.close()
        for call in (store.get("/a"), store.multi([Create("/a")]), store.watch("/", Tree()), store.heartbeat()):
            with pytest.raises(StoreClosed):
                await call

    place.run(run())


def test_closing_again_does_nothing(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.close()
        await store.close()

    play(place, scenario)


def test_close_finishes_what_was_asked_before(place: Place) -> None:
    async def write(store: MetadataStore) -> None:
        asked = [asyncio.ensure_future(store.multi([Create(f"/{number}")])) for number in range(50)]
        await asyncio.wait(asked, timeout=0)
        await store.close()
        assert [written.versions for written in await asyncio.gather(*asked)] == [(0,)] * 50

    async def read(store: MetadataStore) -> None:
        assert len(await store.children("/")) == 50

    play(place, write, read)


def test_a_multi_whose_caller_gave_up_harms_nobody(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        given_up = asyncio.ensure_future(store.multi([Create("/a")]))
        await asyncio.wait([given_up], timeout=0)
        given_up.cancel()
        await store.multi([Create("/b")])
        assert await store.children("/") == ("a", "b")
        assert given_up.cancelled()

    play(place, scenario)


def test_multi_returns_the_new_version_of_each_node(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        written = await store.multi([Create("/a"), Put("/a", b"x"), Create("/b"), Check("/a", 1)])
        assert written.versions == (0, 1, 0, None)
        assert (await store.multi([Put("/a", b"y", version=1), Delete("/b", version=0)])).versions == (2, None)

    play(place, scenario)


def test_creations_of_a_node_are_told_apart(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        first = await store.multi([Create("/a"), Create("/b")])
        assert (await store.get("/a")).created == (await store.get("/b")).created == first.change
        await store.multi([Put("/a", b"x")])
        assert (await store.get("/a")).created == first.change
        second = await store.multi([Delete("/a"), Create("/a")])
        assert (await store.get("/a")).created == second.change > first.change
        await store.multi([Delete("/a"), Delete("/b")])
        assert (await store.multi([Create("/a")])).change > second.change

    async def later(store: MetadataStore) -> None:
        before = (await store.get("/a")).created
        assert (await store.multi([Create("/later")])).change > before

    play(place, scenario, later)


def test_watcher_gets_versions_and_creations(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        tree = Tree()
        await store.watch("/", tree)
        await store.multi([Create("/a"), Create("/b")])
        await store.multi([Put("/a", b"x"), Delete("/b")])
        await store.multi([Create("/b")])
        assert tree.nodes == await store.load("/")

    play(place, scenario)


def test_multi_of_too_many_bytes_is_refused_and_changes_nothing(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/large", bytes(MULTI_BYTES_MAX - 100))])
        with pytest.raises(MultiTooLarge, match=f"at most {MULTI_BYTES_MAX}"):
            await store.multi([Create("/small"), Put("/large", bytes(MULTI_BYTES_MAX - 100))])
        assert list(await store.load("/")) == ["/large"]

    play(place, scenario)


def test_operations_are_split_into_multis_of_a_bounded_size() -> None:
    many = [Create(f"/{number}") for number in range(250)]
    assert [len(multi) for multi in in_multis(many)] == [100, 100, 50]
    large = [Create(f"/{number}", bytes(MULTI_BYTES_MAX // 5)) for number in range(5)]
    assert [len(multi) for multi in in_multis(large)] == [2, 2, 1]
    assert list(in_multis([])) == []


def test_session_is_established_until_the_store_is_closed(place: Place) -> None:
    async def run() -> None:
        store = await place.open()
        assert store.session.state is SessionState.ESTABLISHED
        await store.close()
        assert store.session.state is SessionState.EXPIRED

    place.run(run())


def test_heartbeat_returns_when_the_store_has_answered(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.heartbeat()
        assert await store.load("/") == {}

    play(place, scenario)


# The same operations give the same results in every implementation

PATHS = st.sampled_from(["/a", "/a/b", "/a/b/c", "/b", "/b/c"])
VERSIONS = st.one_of(st.none(), st.integers(0, 3))
OPS = st.one_of(
    st.builds(Create, PATHS, st.binary(max_size=2), st.booleans()),
    st.builds(Create, PATHS, st.binary(max_size=2)),
    st.builds(Put, PATHS, st.binary(max_size=2), VERSIONS),
    st.builds(Delete, PATHS, VERSIONS),
    st.builds(Check, PATHS, st.integers(0, 3)),
)


async def results(store: MetadataStore, multis: list[list[Op]]) -> list[object]:
    """Apply the multis. Return the result of each, the tree and the copy of a watcher."""
    tree = Tree()
    await store.watch("/", tree)
    outcomes = await asyncio.gather(*map(store.multi, multis), return_exceptions=True)
    described = [(type(o), o.path) if isinstance(o, Conflict) else o.versions for o in outcomes]
    return [*described, await contents(store, "/"), tree.contents]


@given(st.lists(st.lists(OPS, min_size=1, max_size=3), max_size=12))
@settings(max_examples=50)
def test_every_implementation_gives_the_same_results(multis: list[list[Op]]) -> None:
    async def embedded() -> list[object]:
        with TemporaryDirectory() as directory:
            store = EmbeddedStore.open(Path(directory, "store"))
            try:
                return await results(store, multis)
            finally:
                await store.close()

    servers = Simulated()

    async def simulated() -> list[object]:
        return await results(await servers.open(), multis)

    assert asyncio.run(embedded()) == servers.run(simulated())
