"""The metadata store of a single broker: transactions, damaged files, and the format of older versions."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from metadata_store_fixtures import Embedded, Tree, contents, play

from ottla.broker.metadata.embedded import FILE_NAME, EmbeddedStore
from ottla.broker.metadata.store import Conflict, Create, MetadataStore, Node, StoreError, UnusableStore
from ottla.model.errors import StartError

WRITE_UNTIL_KILLED = """
import asyncio
from ottla.broker.metadata.embedded import EmbeddedStore
from ottla.broker.metadata.store import Create

async def main():
    store = EmbeddedStore.open({path!r})
    await store.multi([Create("/pairs"), Create("/alive", ephemeral=True)])
    async def write(number):
        await store.multi([Create(f"/pairs/{{number}}", b"x" * 1000), Create(f"/pairs/{{number}}/twin")])
        print(number, flush=True)
    for start in range(0, 10**9, 5):
        await asyncio.gather(*(write(number) for number in range(start, start + 5)))

asyncio.run(main())
"""


def test_acknowledged_multis_survive_a_kill(tmp_path: Path) -> None:
    place = Embedded(tmp_path)
    script = WRITE_UNTIL_KILLED.format(path=str(place.path))
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


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """The connections to SQLite that are opened from now on."""
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remember(*a: object, **options: object) -> sqlite3.Connection:
        opened.append(connect(*a, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    return opened


def test_commits_are_synced_before_they_are_acknowledged(tmp_path: Path, opened: list[sqlite3.Connection]) -> None:
    async def scenario(store: MetadataStore) -> None:
        (connection,) = opened
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)

    play(Embedded(tmp_path), scenario)


def test_a_full_disk_fails_the_multi_and_the_store_recovers(tmp_path: Path, opened: list[sqlite3.Connection]) -> None:
    async def scenario(store: MetadataStore) -> None:
        (connection,) = opened
        tree = Tree()
        await store.watch("/", tree)
        connection.execute("PRAGMA max_page_count = 10")
        with pytest.raises(StoreError, match="full") as raised:
            await store.multi([Create("/small"), Create("/large", bytes(900_000))])
        assert not isinstance(raised.value, Conflict)
        assert tree.calls == []
        await store.multi([Create("/small")])
        assert await store.children("/") == ("small",)

    play(Embedded(tmp_path), scenario)


def test_a_defect_in_the_thread_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(connection: sqlite3.Connection, path: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("ottla.broker.metadata.embedded._get", fail)

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


def test_file_of_format_1_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    old = sqlite3.connect(path)
    old.executescript(
        """
        CREATE TABLE node (
            path TEXT PRIMARY KEY, parent TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
            ephemeral INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE INDEX node_parent ON node (parent);
        INSERT INTO node VALUES ('/a', '/', x'31', 3, 0);
        PRAGMA application_id = 0x4F74746C;
        PRAGMA user_version = 1;
        """
    )
    old.close()

    async def write(store: MetadataStore) -> None:
        assert await store.get("/a") == Node(b"1", 3, created=0)
        assert await store.multi([Create("/b")]) == (1, (0,))

    async def read(store: MetadataStore) -> None:
        assert await contents(store, "/") == {"/a": (b"1", 3), "/b": (b"", 0)}

    play(Embedded(tmp_path), write, read)


def test_file_without_its_number_of_changes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    asyncio.run(EmbeddedStore.open(path).close())
    damaged = sqlite3.connect(path)
    damaged.execute("DELETE FROM change")
    damaged.commit()
    damaged.close()
    assert_unusable(path, "number of changes")
