"""A broker whose metadata store is damaged starts with what it holds, or says in one line what to do."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from ottla.broker.broker import Broker
from ottla.broker.environment import system_environment
from ottla.broker.metadata.topic_plans import ops_create_topic
from ottla.broker.metadata.view import PartitionView, TopicView
from ottla.model.errors import StartError
from ottla.model.settings import BrokerSettings

Damage = Callable[[bytes], bytes]
PAGE_BYTES = 4096


def settings_for(data: Path) -> BrokerSettings:
    return BrokerSettings.parse({"log.dirs": str(data), "listeners": "PLAINTEXT://127.0.0.1:0"})


async def live(data: Path, *, topics: int = 0) -> None:
    """Start a broker, create some topics, stop it. Raise what the start raises."""
    settings = settings_for(data)
    broker = Broker(settings, system_environment(settings, asyncio.get_running_loop()))
    try:
        await broker.start()
    except BaseException:
        await broker.abandon()
        raise
    try:
        for number in range(topics):
            topic = TopicView(
                name=f"topic-{number}", topic_id=bytes([number + 1] * 16),
                partitions=(PartitionView(leader=1, leader_epoch=0, replicas=(1,), isr=(1,)),) * 3,
                config={"retention.ms": "1000"},
            )  # fmt: skip
            assert broker.store is not None
            await broker.store.multi(ops_create_topic(broker.view, topic))
    finally:
        await broker.stop()


@pytest.fixture(autouse=True)
def no_frozen_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker freezes what it has loaded; hundreds of them in one process must not."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    monkeypatch.setattr(gc, "collect", lambda: 0)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("original") / "data"
    asyncio.run(live(data, topics=20))
    assert not (data / "metadata.db-wal").exists()
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


def outcome_of_start(data: Path) -> str:
    """Return what the start says; empty if it succeeded. Any exception but StartError fails the test."""
    line = ""
    try:
        asyncio.run(live(data))
    except StartError as error:
        line = str(error)
    assert not line or ("metadata.db" in line and "\n" not in line), line
    return line


def page_damages(size: int) -> Iterator[tuple[str, Damage]]:
    rng = Random(11)
    for start in range(0, size, PAGE_BYTES):
        for name, fill in (("zeros", bytes(PAGE_BYTES)), ("garbage", rng.randbytes(PAGE_BYTES))):
            yield (
                f"{name} in page {start // PAGE_BYTES}",
                lambda content, start=start, fill=fill: content[:start] + fill + content[start + PAGE_BYTES :],
            )
    for end in (1, 50, 99, 100, 512, PAGE_BYTES - 1, *range(PAGE_BYTES, size, PAGE_BYTES), size - 1, size - 100):
        yield f"cut at {end}", lambda content, end=end: content[:end]


def test_every_damaged_page_and_lost_end_is_reported(data: Path) -> None:
    metadata = data / "metadata.db"
    content = metadata.read_bytes()
    assert len(content) > 3 * PAGE_BYTES
    for name, damage in page_damages(len(content)):
        metadata.write_bytes(damage(content))
        line = outcome_of_start(data)
        assert "metadata.db" in line and "backup" in line, f"{name}: {line!r}"
        metadata.write_bytes(content)


def test_flipped_bits_never_end_a_start_with_a_traceback(data: Path) -> None:
    metadata = data / "metadata.db"
    content = metadata.read_bytes()
    rng = Random(12)
    logging.disable(logging.CRITICAL)
    try:
        for _ in range(40):
            flipped = bytearray(content)
            flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            metadata.write_bytes(flipped)
            outcome_of_start(data)
    finally:
        logging.disable(logging.NOTSET)


def test_emptied_file_is_refused_and_stays_empty(data: Path) -> None:
    metadata = data / "metadata.db"
    metadata.write_bytes(b"")
    line = outcome_of_start(data)
    assert "metadata.db" in line and "backup" in line
    assert metadata.read_bytes() == b""


def execute(data: Path, *statements: str) -> None:
    with closing(sqlite3.connect(data / "metadata.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        for statement in statements:
            connection.execute(statement)


WRONG_SCHEMAS = {
    "no table": ["DROP TABLE node"],
    "no index": ["DROP INDEX node_parent"],
    "no value column": ["ALTER TABLE node DROP COLUMN value"],
    "no ephemeral column": ["ALTER TABLE node DROP COLUMN ephemeral"],
    "another program's": ["PRAGMA application_id = 7"],
    "newer": ["PRAGMA user_version = 99"],
    "value is a number": ["UPDATE node SET value = 7 WHERE path LIKE '%/state'"],
    "value is text": ["UPDATE node SET value = 'text' WHERE path LIKE '%/state'"],
    "path is a blob": ["UPDATE node SET path = x'FF00' WHERE path = '/brokers/topics/topic-7'"],
    "path is not UTF-8": ["UPDATE node SET path = CAST(x'2FFF' AS TEXT) WHERE path = '/brokers/topics/topic-7'"],
    "version is text": ["UPDATE node SET version = 'x' WHERE path = '/brokers/topics/topic-7'"],
    "all nodes are gone": ["DELETE FROM node"],
    "no cluster id": ["DELETE FROM node WHERE path = '/cluster/id'"],
}


@pytest.mark.parametrize("statements", WRONG_SCHEMAS.values(), ids=WRONG_SCHEMAS)
def test_store_with_a_wrong_schema_is_refused(data: Path, statements: list[str]) -> None:
    execute(data, *statements)
    line = outcome_of_start(data)
    assert "metadata.db" in line and any(word in line for word in ("backup", "move it away", "newer version")), line


MALFORMED = [
    b"", b"\x00", b"{", b"[]", b"7", b"null", b'"text"', b"{}", b"\xff\xfe", b"[" * 100_000,
    b'{"version":1,"partitions":{}}', b'{"version":1,"partitions":[[1]]}', b'{"version":1,"partitions":[["a","b",[]]]}',
    b'{"version":1,"partitions":[[1,0,["x"]]]}', b'{"version":1,"partitions":[[1,0,[1]]],"x":1}',
    b'{"version":3,"topic_id":"short","partitions":{"0":[1]}}', b'{"version":3,"topic_id":7,"partitions":{"0":[1]}}',
    b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAAAA","partitions":{"a":[1]}}',
    b'{"version":3,"topic_id":"AAAAAAAAAAAAAAAAAAAAAA","partitions":{"0":["x"]}}',
    b'{"version":1,"config":7}', b'{"version":1,"config":{"retention.ms":7}}',
    b'{"version":1,"config":{"retention.ms":"many"}}', b'{"version":1,"id":7}',
]  # fmt: skip


@pytest.mark.parametrize("path", ["/cluster/id", "/brokers/topics/topic-7", "/brokers/topics/topic-7/state",
                                  "/config/topics/topic-7", "/config/brokers/1"])  # fmt: skip
def test_malformed_node_is_named(data: Path, path: str) -> None:
    metadata = data / "metadata.db"
    content = metadata.read_bytes()
    for value in MALFORMED:
        parent = path.rpartition("/")[0]
        execute(data, f"INSERT OR REPLACE INTO node VALUES ('{path}', '{parent}', x'{value.hex()}', 0, 0, 0)")
        line = outcome_of_start(data)
        # Some of them are well-formed in one place or another.
        if line and "different clusters" not in line:
            assert path in line, f"{value[:60]!r}: {line}"
        if value in (b"", b"{", b"[]", b"null", b"\xff\xfe"):
            assert line, f"{value!r} was accepted"
        metadata.write_bytes(content)


def test_directory_with_the_metadata_must_be_named_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"

    async def start(*directories: Path) -> None:
        dirs = ",".join(map(str, directories))
        settings = BrokerSettings.parse({"log.dirs": dirs, "listeners": "PLAINTEXT://127.0.0.1:0"})
        broker = Broker(settings, system_environment(settings, asyncio.get_running_loop()))
        try:
            await broker.start()
        except BaseException:
            await broker.abandon()
            raise
        await broker.stop()

    asyncio.run(start(first, second))
    with pytest.raises(StartError, match="name the directory that has the file first"):
        asyncio.run(start(second, first))
    asyncio.run(start(first, second))
