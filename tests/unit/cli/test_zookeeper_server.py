"""The configuration of a ZooKeeper server, and the errors of `ottla zookeeper` before it starts one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from ottla.cli import zookeeper_server
from ottla.cli.zookeeper import command
from ottla.cli.zookeeper_server import (
    Server,
    ServerProcess,
    ZooKeeperFailed,
    find_jars,
    java_command,
    parse_ensemble,
    write_config,
)
from ottla.spark.java import JavaMissing

MEMBERS = {1: "127.0.0.1:2888:3888", 2: "127.0.0.1:2889:3889", 3: "host:2890:3890"}


def test_ensemble_is_named_in_one_text_or_in_several() -> None:
    texts = [f"{number}={address}" for number, address in MEMBERS.items()]
    assert parse_ensemble(texts) == parse_ensemble([", ".join(texts)]) == MEMBERS


@pytest.mark.parametrize(
    "text", ["", "1", "1=host", "1=host:1", "0=host:1:2", "256=host:1:2", "x=host:1:2", "1=a:1:2,"]
)
def test_malformed_ensemble_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="N=HOST:QUORUM_PORT:ELECTION_PORT"):
        parse_ensemble([text])


def test_member_that_is_named_twice_is_rejected() -> None:
    with pytest.raises(ValueError, match="member 1 is named twice"):
        parse_ensemble(["1=a:1:2,1=b:1:2"])


def test_server_listens_on_its_address_only(tmp_path: Path) -> None:
    lines = write_config(Server(data=tmp_path / "new", port=2182)).read_text().splitlines()
    assert {"clientPortAddress=127.0.0.1", "clientPort=2182", "admin.enableServer=false"} <= set(lines)
    assert not [line for line in lines if line.startswith("server.")]


def test_member_keeps_its_number(tmp_path: Path) -> None:
    lines = write_config(Server(data=tmp_path, number=2, ensemble=MEMBERS)).read_text().splitlines()
    assert {f"server.{number}={address}" for number, address in MEMBERS.items()} <= set(lines)
    assert (tmp_path / "myid").read_text() == "2\n"
    write_config(Server(data=tmp_path, number=2, ensemble=MEMBERS))
    with pytest.raises(ZooKeeperFailed, match="has the data of member 2: start it with --id 2"):
        write_config(Server(data=tmp_path, number=3, ensemble=MEMBERS))


def test_missing_jars_are_named(tmp_path: Path) -> None:
    for name in ("zookeeper-3.9.5", "zookeeper-jute-3.9.5", "slf4j-api-2.0.17", "metrics-core-4.2.37"):
        (tmp_path / f"{name}.jar").touch()
    with pytest.raises(ZooKeeperFailed, match=r"has no snappy-java jar; .*pip install -e '\.\[spark\]'"):
        find_jars(tmp_path)
    (tmp_path / "snappy-java-1.1.10.8.jar").touch()
    assert [path.name.split("-3.")[0] for path in find_jars(tmp_path)][:2] == ["zookeeper", "zookeeper-jute"]


def test_missing_pyspark_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ZooKeeperFailed, match=r"pyspark, which is not installed; .*pip install -e '\.\[spark\]'"):
        find_jars()


def test_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def find_java(*, program: str) -> None:
        raise JavaMissing(f"{program} needs Java")

    monkeypatch.setattr(zookeeper_server, "find_jars", list)
    monkeypatch.setattr(zookeeper_server, "find_java", find_java)
    with pytest.raises(ZooKeeperFailed, match="ZooKeeper needs Java"):
        java_command(tmp_path)


@pytest.mark.parametrize("option", ["--listen", "--ensemble"])
def test_address_in_use_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, option: str) -> None:
    monkeypatch.setattr(zookeeper_server, "java_command", lambda *_, **__: ["false"])
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        if option == "--listen":
            server = Server(data=tmp_path, port=port)
        else:
            server = Server(data=tmp_path, port=other, number=1, ensemble={1: f"127.0.0.1:{port}:{port}"})
        with pytest.raises(ZooKeeperFailed, match=rf"127\.0\.0\.1:{port} \(Address already in use\).* with {option}"):
            ServerProcess(server)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "nonsense"], "is not of the form HOST:PORT"),
        (["--listen", "::1:2181"], "is not of the form HOST:PORT"),
        (["--listen", "127.0.0.1:70000"], "is not of the form HOST:PORT"),
        (["--id", "1"], "needs both --id and --ensemble"),
        (["--ensemble", "1=a:1:2"], "needs both --id and --ensemble"),
        (["--id", "2", "--ensemble", "1=a:1:2"], "no member 2"),
        (["--id", "1", "--ensemble", "1=a"], "N=HOST:QUORUM_PORT:ELECTION_PORT"),
    ],
)
def test_wrong_usage_is_reported(tmp_path: Path, words: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["--data", str(tmp_path / "data"), *words])
    assert result.exit_code == 2 and message in result.output
    assert not (tmp_path / "data").exists()
