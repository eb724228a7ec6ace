"""Kafka's commands that start and stop brokers and ZooKeeper, and that prepare their directories."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.cli.kafka import (
    processes,
    server_start,
    server_stop,
    storage,
    zookeeper_shell,
    zookeeper_start,
    zookeeper_stop,
)
from ottla.cli.kafka.errors import ToolError

#: what Kafka's own file contains, without its comments
SERVER_PROPERTIES = """\
broker.id=0
#listeners=PLAINTEXT://:9092
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kafka-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


@pytest.fixture
def properties(tmp_path: Path) -> Path:
    path = tmp_path / "server.properties"
    path.write_text(SERVER_PROPERTIES)
    return path


# -- kafka-server-start -----------------------------------------------------------------------------------------------


def test_kafkas_file_listens_on_this_machine(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = server_start.settings_of(str(properties), {"broker.id": "7"})
    assert (settings["broker.id"], settings["listeners"]) == ("7", "PLAINTEXT://127.0.0.1:9092")
    assert "allow.insecure.listeners=true" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("listeners", "expected"),
    [
        ("PLAINTEXT://:9093", "PLAINTEXT://127.0.0.1:9093"),
        ("SSL://:9093,sasl_plaintext://:9094", "SSL://:9093,sasl_plaintext://127.0.0.1:9094"),
        ("PLAINTEXT://10.0.0.1:9093", "PLAINTEXT://10.0.0.1:9093"),
    ],
)
def test_only_open_listeners_without_a_host_are_moved(properties: Path, listeners: str, expected: str) -> None:
    assert server_start.settings_of(str(properties), {"listeners": listeners})["listeners"] == expected


def test_open_listeners_can_be_allowed(properties: Path) -> None:
    more = {"listeners": "PLAINTEXT://:9093", "allow.insecure.listeners": "true"}
    assert server_start.settings_of(str(properties), more)["listeners"] == "PLAINTEXT://:9093"


def test_unknown_settings_are_ignored_with_a_warning(properties: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = server_start.settings_of(
        str(properties), {"my.plugin.class": "x", "listener.name.a.ssl.client.auth": "none"}
    )
    assert "my.plugin.class" not in settings
    assert "listener.name.a.ssl.client.auth" in settings
    assert (
        "WARN These configurations '[my.plugin.class]' were supplied but are not used yet." in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"process.roles": "controller"},
        {"process.roles": "broker"},
        {"process.roles": "broker,controller", "controller.quorum.voters": "1@a:1,2@b:1,3@c:1"},
    ],
)
def test_nodes_of_kraft_clusters_are_refused_with_the_way_out(properties: Path, settings: dict[str, str]) -> None:
    with pytest.raises(ToolError, match=r"zookeeper\.connect"):
        server_start.settings_of(str(properties), settings)


def test_a_kraft_file_of_one_broker_is_accepted(properties: Path) -> None:
    more = {"process.roles": "broker,controller", "controller.quorum.voters": "1@localhost:9093"}
    assert server_start.settings_of(str(properties), more)["process.roles"] == "broker,controller"


def test_overrides() -> None:
    assert server_start.parse_overrides(["--override", "a=1=2", "--override=b = 3"]) == {"a": "1=2", "b": "3"}
    for words in (["more"], ["--override"], ["--override", "a"], ["--bogus", "a=1"]):
        with pytest.raises(ToolError):
            server_start.parse_overrides(words)


@pytest.mark.parametrize(
    ("words", "output", "errors"),
    [
        ([], server_start.USAGE, ""),
        (["--help"], "", server_start.USAGE),
        (["/nonexistent/server.properties"], "", "/nonexistent/server.properties (No such file or directory)"),
    ],
)
def test_wrong_usage_ends_with_1(
    words: list[str], output: str, errors: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert server_start.main(words) == 1
    printed = capsys.readouterr()
    assert (printed.out.strip(), printed.err.strip()) == (output, errors)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert server_start.main(["--version"]) == 0
    assert capsys.readouterr().out == "4.3.0\n"


# -- processes --------------------------------------------------------------------------------------------------------


def proc(directory: Path, cwd: Path, **command_lines: list[str]) -> Path:
    for name, words in command_lines.items():
        path = directory / name.removeprefix("p")
        path.mkdir(parents=True)
        (path / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))
        (path / "cwd").symlink_to(cwd)
    return directory


def test_brokers_are_found_by_their_command_line(tmp_path: Path, properties: Path) -> None:
    daemon = "from ottla.cli.kafka.start import start; start('kafka-server-start')"
    listed = proc(
        tmp_path / "proc",
        tmp_path,
        p11=["/usr/bin/python3", "/opt/bin/kafka-server-start.sh", "server.properties", "--override", "broker.id=3"],
        p12=["/usr/bin/python3.12", "-c", daemon, str(properties)],
        p13=["/venv/bin/python", "/venv/bin/ottla", "kafka", "server-start", "gone.properties"],
        p14=["/usr/bin/vim", "kafka-server-start.sh"],
        p15=["/usr/bin/python3", "tool.py", "server-start"],
        p16=[],
    )
    found = processes.running("kafka-server-start", listed)
    assert [(each.pid, processes.node_id(each)) for each in found] == [(11, "3"), (12, "0"), (13, None)]
    assert processes.running("zookeeper-server-start", listed) == []


def test_only_the_named_broker_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, properties: Path) -> None:
    found = [
        processes.Running(11, ("server.properties",), str(tmp_path)),
        processes.Running(12, ("server.properties", "--override", "broker.id=5"), str(tmp_path)),
    ]
    killed: list[int] = []
    monkeypatch.setattr(processes, "running", lambda _: found)
    monkeypatch.setattr(os, "kill", lambda pid, _: killed.append(pid))
    assert server_stop.main(["--node-id=5"]) == 0
    assert killed == [12]
    assert server_stop.main(["--process-role=controller"]) == 0
    assert killed == [12]
    assert server_stop.main([]) == zookeeper_stop.main([]) == 0
    assert killed == [12, 11, 12, 11, 12]


def test_nothing_to_stop_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(processes, "running", lambda _: [])
    assert server_stop.main([]) == zookeeper_stop.main([]) == 1
    assert capsys.readouterr().out == "No kafka server to stop\nNo zookeeper server to stop\n"


# -- kafka-storage ----------------------------------------------------------------------------------------------------


def test_directories_are_prepared_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, logs = tmp_path / "server.properties", tmp_path / "logs"
    path.write_text(f"process.roles=broker,controller\nlisteners=PLAINTEXT://127.0.0.1:9092\nlog.dirs={logs}\n")
    config = ["--config", str(path)]
    assert storage.main(["info", *config]) == 1
    assert capsys.readouterr().out == f"Found problem:\n  {logs} does not exist\n\n"
    assert storage.main(["format", "-t", "T3R0bGFCZW5jaG1hcmtzMQ", "--standalone", *config]) == 0
    expected = f"Formatting dynamic metadata voter directory {logs} with metadata.version 4.3-IV0.\n"
    assert capsys.readouterr().out == expected
    (logs / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=abc\n")
    assert storage.main(["info", *config]) == 0
    assert capsys.readouterr().out == (
        f"Found log directory:\n  {logs}\n\nFound metadata: {{cluster.id=abc, node.id=1, version=1}}\n\n"
    )
    assert storage.main(["format", "-t", "x", *config]) == 1
    assert "is already formatted" in capsys.readouterr().err
    assert storage.main(["format", "-t", "x", "-g", *config]) == 0


@pytest.mark.parametrize("flags", [["--add-scram", "x"], ["--initial-controllers", "x"], ["-r", "1.0"]])
def test_what_a_broker_cannot_do_is_refused(properties: Path, flags: list[str]) -> None:
    assert storage.main(["format", "-t", "x", "-c", str(properties), *flags]) == 1


def test_random_ids_have_22_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert storage.main(["random-uuid"]) == 0
    assert len(capsys.readouterr().out.strip()) == 22


# -- zookeeper --------------------------------------------------------------------------------------------------------


def test_kafkas_zookeeper_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "zookeeper.properties"
    path.write_text("dataDir=/tmp/zookeeper\nclientPort=2182\nmaxClientCnxns=0\nadmin.enableServer=false\n")
    server = zookeeper_start.server_of(str(path))
    assert (str(server.data), server.host, server.port, server.number) == ("/tmp/zookeeper", "127.0.0.1", 2182, 0)
    assert server.settings == {"maxClientCnxns": "0"}
    assert "clientPortAddress" in capsys.readouterr().err


def test_members_of_ensembles_have_their_number_in_myid(tmp_path: Path) -> None:
    path = tmp_path / "zookeeper.properties"
    members = "server.1=localhost:2888:3888\nserver.2=localhost:2889:3889\n"
    path.write_text(f"dataDir={tmp_path}\nclientPortAddress=127.0.0.1\ntickTime=100\nsyncLimit=2\n{members}")
    with pytest.raises(ToolError, match="myid"):
        zookeeper_start.server_of(str(path))
    (tmp_path / "myid").write_text("2\n")
    server = zookeeper_start.server_of(str(path))
    assert (server.number, server.ensemble[1], server.tick_ms, server.sync_limit) == (2, "localhost:2888:3888", 100, 2)


@pytest.mark.parametrize("text", ["clientPort=1\n", "dataDir=x\nclientPort=many\n"])
def test_wrong_zookeeper_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "zookeeper.properties"
    path.write_text(text)
    assert zookeeper_start.main([str(path)]) == 1


def test_zookeepers_names_of_tls_settings() -> None:
    given = {
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.keystore.location": "/k",
        "zookeeper.ssl.endpoint.identification.algorithm": "HTTPS",
    }
    assert zookeeper_shell.tls_settings(given) == {
        "zookeeper.client.secure": "true",
        "zookeeper.ssl.keyStore.location": "/k",
        "zookeeper.ssl.hostnameVerification": "true",
    }
    with pytest.raises(ToolError, match="foo"):
        zookeeper_shell.tls_settings({"foo": "1"})


def test_usages_of_zookeepers_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert zookeeper_start.main([]) == zookeeper_shell.main([]) == 1
    assert capsys.readouterr().out == f"{zookeeper_start.USAGE}\n{zookeeper_shell.USAGE}\n"
