"""What every MetadataStore promises, and what the embedded one promises on top.

The first part runs against every implementation; a new one adds a class beside ``Embedded`` and nothing else.
"""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import pytest

from ottla.cluster.embedded import FILE_NAME, EmbeddedStore
from ottla.cluster.store import (
    Changed,
    Check,
    Conflict,
    Create,
    Delete,
    EphemeralParent,
    MetadataStore,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    Put,
    StoreClosed,
    StoreError,
    UnusableStore,
    VersionConflict,
    check_path,
)
from ottla.model.errors import StartError

Scenario = Callable[[MetadataStore], Awaitable[None]]


class Place(Protocol):
    """One tree, wherever an implementation keeps it, empty at the beginning of a test."""

    #: Python source of an expression that opens the store in another process, and the imports it needs
    source: tuple[str, str]

    async def open(self) -> MetadataStore: ...


class Embedded:
    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self.source = (
            "from ottla.cluster.embedded import EmbeddedStore",
            f"EmbeddedStore.open({str(self.path)!r})",
        )

    async def open(self) -> MetadataStore:
        return EmbeddedStore.open(self.path)


@pytest.fixture(params=[Embedded])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return request.param(tmp_path)


def play(place: Place, *scenarios: Scenario) -> None:
    """Each scenario gets the same tree through a store of its own, opened after the one before was closed."""

    async def run(scenario: Scenario) -> None:
        store = await place.open()
        try:
            await scenario(store)
        finally:
            await store.close()

    for scenario in scenarios:
        asyncio.run(run(scenario))


class Tree:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[list[Changed]] = []
        self.nodes: dict[str, Node] = {}

    def __call__(self, changes: list[Changed]) -> None:
        self.calls.append(changes)
        for path, node in changes:
            if node is None:
                self.nodes.pop(path, None)
            else:
                self.nodes[path] = node

    @property
    def paths(self) -> list[str]:
        return [path for changes in self.calls for path, _ in changes]


# Reading and writing


def test_a_created_node_is_read_with_version_0(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a", b"one")])
        assert await store.get("/a") == Node(b"one", 0)

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
        assert await store.get("/a") == Node(b"two", 2)

    play(place, scenario)


def test_a_put_without_version_always_applies(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a"), Put("/a", b"x"), Put("/a", b"y")])
        assert await store.get("/a") == Node(b"y", 2)

    play(place, scenario)


def test_a_node_created_again_starts_at_version_0(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a"), Put("/a", b"x")])
        await store.multi([Delete("/a", version=1)])
        assert await store.get("/a") is None
        await store.multi([Create("/a")])
        assert await store.get("/a") == Node(b"", 0)

    play(place, scenario)


def test_any_bytes_are_kept(place: Place) -> None:
    value = bytes(range(256)) * 1000

    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a", value)])
        assert (await store.get("/a")) == Node(value, 0)

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
        assert await store.load("/a") == {path: Node(path.encode(), 0) for path in ("/a", "/a/b", "/a/b/c")}
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
        assert await store.load("/") == {"/a": Node(b"", 0)}

    play(place, scenario)


def test_a_check_that_holds_lets_the_multi_pass(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/epoch")])
        await store.multi([Check("/epoch", 0), Create("/a")])
        assert await store.get("/a") == Node(b"", 0)

    play(place, scenario)


def test_one_of_two_rivals_wins(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a")])
        rivals = [store.multi([Put("/a", name, version=0)]) for name in (b"one", b"two")]
        outcomes = await asyncio.gather(*rivals, return_exceptions=True)
        assert sorted(map(str, outcomes)) == ["/a has another version", "None"]
        assert (await store.get("/a")).version == 1

    play(place, scenario)


def test_a_refused_multi_does_not_harm_those_beside_it(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        multis = [store.multi([Create(f"/{number % 60}", b"%d" % number)]) for number in range(100)]
        outcomes = await asyncio.gather(*multis, return_exceptions=True)
        assert outcomes[:60] == [None] * 60
        assert [error.path for error in outcomes[60:]] == [f"/{number}" for number in range(40)]
        assert await store.load("/") == {f"/{number}": Node(b"%d" % number, 0) for number in range(60)}

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
        assert tree.nodes == {"/a": Node(b"x", 0), "/a/b": Node(b"", 0)}

    play(place, scenario)


def test_changes_have_reached_the_watcher_when_the_multi_returns(place: Place) -> None:
    async def scenario(store: MetadataStore) -> None:
        tree = Tree()
        await store.watch("/", tree)
        await store.multi([Create("/a"), Create("/b")])
        assert tree.nodes == {"/a": Node(b"", 0), "/b": Node(b"", 0)}
        await store.multi([Put("/a", b"x"), Delete("/b")])
        assert tree.nodes == {"/a": Node(b"x", 1)}

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
        assert await store.load("/") == {"/a": Node(b"x", 1)}

    play(place, write, read)


def test_ephemeral_nodes_vanish_with_the_store(place: Place) -> None:
    async def write(store: MetadataStore) -> None:
        await store.multi([Create("/ids"), Create("/ids/1", b"here", ephemeral=True)])
        assert await store.get("/ids/1") == Node(b"here", 0)

    async def read(store: MetadataStore) -> None:
        assert await store.load("/") == {"/ids": Node(b"", 0)}

    play(place, write, read)


def test_calls_after_close_are_refused(place: Place) -> None:
    async def run() -> None:
        store = await place.open()
        await store.close()
        for call in (store.get("/a"), store.multi([Create("/a")]), store.watch("/", Tree())):
            with pytest.raises(StoreClosed):
                await call

    asyncio.run(run())


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
        assert await asyncio.gather(*asked) == [None] * 50

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


WRITE_UNTIL_KILLED = """
import asyncio
from ottla.cluster.store import Create
{imports}

async def main():
    store = {opened}
    await store.multi([Create("/pairs"), Create("/alive", ephemeral=True)])
    async def write(number):
        await store.multi([Create(f"/pairs/{{number}}", b"x" * 1000), Create(f"/pairs/{{number}}/twin")])
        print(number, flush=True)
    for start in range(0, 10**9, 5):
        await asyncio.gather(*(write(number) for number in range(start, start + 5)))

asyncio.run(main())
"""


def test_acknowledged_multis_survive_a_kill(place: Place) -> None:
    imports, opened = place.source
    script = WRITE_UNTIL_KILLED.format(imports=imports, opened=opened)
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    acknowledged = []
    with writer:
        while len(acknowledged) < 200:
            acknowledged.append(int(writer.stdout.readline()))
        writer.send_signal(signal.SIGKILL)
        acknowledged += [int(line) for line in writer.stdout if line.endswith("\n")]

    async def read(store: MetadataStore) -> None:
        nodes = await store.load("/")
        assert "/alive" not in nodes
        assert {f"/pairs/{number}" for number in acknowledged} <= nodes.keys()
        numbers = await store.children("/pairs")
        assert all(f"/pairs/{number}/twin" in nodes for number in numbers)

    play(place, read)


# The embedded store


def test_the_loop_turns_while_the_store_works(tmp_path: Path) -> None:
    async def scenario(store: MetadataStore) -> None:
        work = asyncio.ensure_future(store.multi([Create(f"/{number}") for number in range(5000)]))
        turns = 0
        while not work.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 100

    play(Embedded(tmp_path), scenario)


def test_a_thousand_creates_at_once_take_a_few_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0

    class Counting(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            nonlocal commits
            commits += sql == "COMMIT"
            return super().execute(sql, *parameters)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **options: connect(*a, factory=Counting, **options))

    async def scenario(store: MetadataStore) -> None:
        before = commits
        await asyncio.gather(*(store.multi([Create(f"/{number}")]) for number in range(1000)))
        assert commits - before <= 2

    play(Embedded(tmp_path), scenario)


def test_commits_are_synced_before_they_are_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*a: object, **options: object) -> sqlite3.Connection:
        opened.append(connect(*a, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)

    async def scenario(store: MetadataStore) -> None:
        (connection,) = opened
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)

    play(Embedded(tmp_path), scenario)


def test_a_full_disk_fails_the_multi_and_the_store_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*a: object, **options: object) -> sqlite3.Connection:
        opened.append(connect(*a, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)

    async def scenario(store: MetadataStore) -> None:
        (connection,) = opened
        tree = Tree()
        await store.watch("/", tree)
        connection.execute("PRAGMA max_page_count = 10")
        with pytest.raises(StoreError, match="full") as raised:
            await store.multi([Create("/small"), Create("/large", bytes(1_000_000))])
        assert not isinstance(raised.value, Conflict)
        assert tree.calls == []
        await store.multi([Create("/small")])
        assert await store.children("/") == ("small",)

    play(Embedded(tmp_path), scenario)


def test_a_defect_in_the_thread_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sqlite3.Connection, path: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ottla.cluster.embedded._get", fail)

    async def scenario(store: MetadataStore) -> None:
        writing = asyncio.ensure_future(store.multi([Create("/lost")]))
        with pytest.raises(ZeroDivisionError):
            await store.get("/a")
        with pytest.raises(ZeroDivisionError):
            await writing
        await store.multi([Create("/a")])
        assert await store.children("/") == ("a",)

    play(Embedded(tmp_path), scenario)


def assert_unusable(path: Path, text: str) -> None:
    with pytest.raises(UnusableStore, match=text) as raised:
        EmbeddedStore.open(path)
    assert str(path) in str(raised.value)
    assert isinstance(raised.value, StartError)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"these are notes, not a database\n" * 100)
    assert_unusable(path, "restore it from a backup")
    assert path.read_bytes() == b"these are notes, not a database\n" * 100


def test_a_database_of_another_program_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    foreign = sqlite3.connect(path)
    foreign.execute("CREATE TABLE bookmarks (url TEXT)")
    foreign.close()
    before = path.read_bytes()
    assert_unusable(path, "another program")
    assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    asyncio.run(EmbeddedStore.open(path).close())
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    assert_unusable(path, "newer Ottla")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    async def write(store: MetadataStore) -> None:
        await store.multi([Create(f"/{number}", bytes(500)) for number in range(200)])

    place = Embedded(tmp_path)
    play(place, write)
    with open(place.path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 4096 * 4)
    assert_unusable(place.path, "damaged")


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    async def scenario(store: MetadataStore) -> None:
        assert_unusable(tmp_path / FILE_NAME, "in use")
        await store.multi([Create("/a")])

    play(Embedded(tmp_path), scenario)


def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    assert_unusable(tmp_path / "absent" / FILE_NAME, "check that its directory exists")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    asyncio.run(EmbeddedStore.open(path).close())
    path.chmod(0o400)
    assert_unusable(path, "may be written")


def test_an_empty_file_left_by_a_crash_becomes_a_store(tmp_path: Path) -> None:
    place = Embedded(tmp_path)
    place.path.touch()

    async def scenario(store: MetadataStore) -> None:
        await store.multi([Create("/a")])

    play(place, scenario)
