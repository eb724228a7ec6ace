"""`ottla zookeeper` as people run it: one server, and an ensemble of three. Needs Java and pyspark."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.broker.metadata.store import Create, Put, StoreError
from ottla.broker.metadata.zookeeper.store import ZooKeeperStore
from ottla.cli.zookeeper_server import ZooKeeperFailed, ask_mode, java_command

pytestmark = [pytest.mark.broker, pytest.mark.foreign]

DEADLINE_S = 60


@pytest.fixture(scope="module", autouse=True)
def _java() -> None:
    try:
        java_command(Path("unused"))
    except ZooKeeperFailed as failure:
        pytest.skip(f"no ZooKeeper: {failure}")


class Command:
    """A running `ottla zookeeper`."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "zookeeper", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait_until_ready(self) -> dict[str, str]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready "), line + self.end(signal.SIGKILL)[1]
        _, address, *pairs = line.split()
        return {"address": address, **dict(pair.split("=", 1) for pair in pairs)}

    def end(self, number: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@pytest.fixture
def commands() -> Iterator[list[Command]]:
    started: list[Command] = []
    yield started
    for command in started:
        if command.process.poll() is None:
            command.end(signal.SIGKILL)


def test_server_keeps_its_nodes_and_stops_on_signals(tmp_path: Path, commands: list[Command]) -> None:
    async def write(address: str) -> None:
        store = await ZooKeeperStore.open(f"{address}/ottla")
        await store.multi([Create("/a", b"kept")])
        await store.close()

    async def read(address: str) -> bytes:
        store = await ZooKeeperStore.open(f"{address}/ottla")
        node = await store.get("/a")
        await store.close()
        assert node is not None
        return node.value

    for number in (signal.SIGINT, signal.SIGTERM):
        command = Command("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
        commands.append(command)
        ready = command.wait_until_ready()
        assert ready["mode"] == "standalone" and ready["data"] == str(tmp_path / "data")
        if number is signal.SIGINT:
            asyncio.run(write(ready["address"]))
        else:
            assert asyncio.run(read(ready["address"])) == b"kept"
        assert command.end(number) == (0, "")


async def read_what_others_have_written(addresses: list[str]) -> None:
    """Let each server's client write, and those of the other servers read it at once: a follower may be behind."""
    stores = [await ZooKeeperStore.open(f"{address}/ottla", session_timeout_s=10) for address in addresses]
    for number in range(30):
        for writer in stores:
            written = await writer.multi([Put("/a", b"%d" % number)])
            nodes = await asyncio.gather(*(store.get("/a") for store in stores))
            assert [node and node.version for node in nodes] == [written.versions[0]] * 3
    for store in stores:
        await store.close()


def test_ensemble_survives_the_kill_of_its_leader(tmp_path: Path, commands: list[Command]) -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(9)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    members = ",".join(f"{n + 1}=127.0.0.1:{ports[3 * n + 1]}:{ports[3 * n + 2]}" for n in range(3))
    addresses = [f"127.0.0.1:{ports[3 * n]}" for n in range(3)]
    for n in range(3):
        words = ("--id", str(n + 1), "--ensemble", members, "--data", str(tmp_path / str(n)), "--listen", addresses[n])
        commands.append(Command(*words))
    modes = [command.wait_until_ready()["mode"] for command in commands]
    assert sorted(modes) == ["follower", "follower", "leader"]
    leader = modes.index("leader")

    async def scenario() -> None:
        store = await ZooKeeperStore.open(f"{','.join(addresses)}/ottla", session_timeout_s=10)
        session_id = store.session.session_id
        await store.multi([Create("/a"), Create("/alive", ephemeral=True)])
        await read_what_others_have_written(addresses)
        commands[leader].end(signal.SIGKILL)
        version = 0
        while version < 91:
            try:
                (version,) = (await store.multi([Put("/a", b"after")])).versions
            except StoreError:
                await asyncio.sleep(0.02)  # not connected yet
        assert set(await store.load("/")) == {"/a", "/alive"} and store.session.session_id == session_id
        await store.close()

    asyncio.run(scenario())
    assert ask_mode("127.0.0.1", ports[3 * leader]) is None, "the server ends with its command"
