"""`ottla up` as people run it: processes that are started again, a stop in order, and the tour of README.md."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_documented_examples import ROOT, make_environment, snippets

from ottla.cli.zookeeper_server import ZooKeeperFailed, java_command
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

DEADLINE_S = 90
#: the command of README.md and of docs/start/local-cluster.md
UP = "ottla up --brokers 3 --data ./cluster-data"
BROKERS_ONLY = ("--port", "0", "--no-registry", "--no-rest", "--no-console")


class Command:
    """A running `ottla up`."""

    def __init__(self, data: Path, *words: str) -> None:
        self.data = data
        self._errors = data.with_suffix(".log").open("a+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "up", "--data", str(data), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip

    def wait_for(self, start: str) -> str:
        """Return the next line that starts with this text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return line.strip()
        raise AssertionError(f"no line starts with {start!r}: {self.errors()}")

    def wait_until_ready(self) -> str:
        """Return the bootstrap servers."""
        return self.wait_for("ready ").split()[1]

    def pid(self, name: str) -> int:
        return int((self.data / f"{name}.pid").read_text())

    def wait_until_all_ended(self) -> None:
        """Return when no process of the cluster is left: each has inherited the lock."""
        with (self.data / ".up.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def close(self) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Command] = []

    def start_one(*words: str) -> Command:
        started.append(Command(tmp_path / "cluster-data", *words))
        return started[-1]

    yield start_one
    for command in started:
        command.close()


@pytest.fixture
def _java() -> None:
    try:
        java_command(Path("unused"))
    except ZooKeeperFailed as failure:
        pytest.skip(f"no ZooKeeper: {failure}")


def ottla(*words: str, bootstrap: str, stdin: str = "", attempts: int = 1) -> str:
    environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVER": bootstrap}
    for _ in range(attempts):
        done = subprocess.run(
            [sys.executable, "-m", "ottla", *words], input=stdin, capture_output=True, text=True, env=environment,
            timeout=DEADLINE_S,
        )  # fmt: skip
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(url: str, body: object = None, media_type: str = "application/json") -> Any:
    """Return the JSON of an answer; with a body, of a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": media_type})
    with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
        return json.load(answer)


def test_services_run_beside_the_broker_and_are_started_again(start: Start) -> None:
    command = start("--port", "0")
    ready = command.wait_for("ready ").split()
    registry, rest = (word.partition("=")[2] for word in ready if word.startswith(("registry=", "rest=")))
    ottla("topic", "create", "orders", "--config", "schema.validation=reject", bootstrap=ready[1])
    # The REST proxy registers the schema.
    sent = {"value_schema": '"long"', "records": [{"value": 7}]}
    ask(f"{rest}/topics/orders", sent, "application/vnd.kafka.avro.v2+json")
    assert ask(f"{registry}/subjects") == ["orders-value"]
    # The broker asks the same registry.
    (refused,) = ask(f"{rest}/topics/orders", {"records": [{"value": 7}]}, "application/vnd.kafka.json.v2+json")[
        "offsets"
    ]
    assert (refused["offset"], bool(refused["error"])) == (None, True), refused
    for name in ("registry", "rest"):
        os.kill(command.pid(name), signal.SIGKILL)
        assert command.wait_for(f"{name} was") == f"{name} was killed by SIGKILL; it is started again"
        assert command.wait_for(f"{name} is ready").startswith(f"{name} is ready at 127.0.0.1:")
    assert ask(f"{registry}/subjects") == ["orders-value"]
    assert "orders" in ask(f"{rest}/topics")
    assert command.end(signal.SIGTERM) == 0
    assert " ERROR " not in command.errors()
    assert not list(command.data.glob("*.pid"))


def test_single_broker_is_started_again_and_keeps_its_records(start: Start) -> None:
    command = start(*BROKERS_ONLY)
    bootstrap = command.wait_until_ready()
    ottla("topic", "create", "kept", bootstrap=bootstrap)
    ottla("produce", "kept", bootstrap=bootstrap, stdin="one\n")
    os.kill(command.pid("broker-0"), signal.SIGKILL)
    assert command.wait_for("broker 0 was") == "broker 0 was killed by SIGKILL; it is started again"
    command.wait_for("broker 0 is ready")
    assert ottla("consume", "kept", "--exit", bootstrap=bootstrap) == "one\n"
    assert command.end(signal.SIGTERM) == 0
    assert not list(command.data.glob("*.pid"))


@pytest.mark.foreign
@pytest.mark.usefixtures("_java")
def test_cluster_tour_runs_as_written(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = [one.text for one in snippets((ROOT / "README.md").read_text()) if one.heading == "A cluster"]
    assert readme[0].splitlines() == ["pip install -e '.[spark,edge]'", UP]
    page = snippets((ROOT / "docs" / "start" / "local-cluster.md").read_text())
    install, first, *rest = [one.text for one in page if one.language == "sh"]
    assert f"{install}{first}" == "".join(f"{line}\n" for line in readme[0].splitlines())
    monkeypatch.setenv("PATH", str(make_environment(tmp_path)), prepend=os.pathsep)

    command = start("--brokers", "3", "--port", "0")
    bootstrap = command.wait_until_ready()
    for line in readme[1].splitlines():
        assert ottla(*shlex.split(line)[1:], bootstrap=bootstrap)
    tour = "".join(rest).replace("127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094", bootstrap)
    assert bootstrap in tour
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", tour], cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    assert "\n2000\n" in done.stdout, done.stdout
    before, after = re.findall(r"^ +0 +(\d) +\d+ +([\d,]+) ", done.stdout, re.M)
    assert before[1] == after[1] and before[0] != after[0], done.stdout
    command.wait_for(f"broker {before[0]} is ready")

    # Brokers stop before ZooKeeper: each could hand over its partitions and delete its registration.
    assert command.end(signal.SIGINT) == 0
    assert "the registration could not be deleted" not in command.errors()
    assert not list(command.data.glob("*.pid"))

    # The processes end when the command is killed, and the same data starts again.
    command = start("--brokers", "3", *BROKERS_ONLY)
    bootstrap = command.wait_until_ready()
    assert len(ottla("consume", "payments", "--exit", bootstrap=bootstrap).splitlines()) == 2000
    command.end(signal.SIGKILL)
    command.wait_until_all_ended()


def test_port_in_use_is_named(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = start("--port", str(port))
        assert command.process.wait(DEADLINE_S) == 1
    assert f"error: cannot listen on 127.0.0.1:{port} (Address already in use); stop" in command.errors()


def test_process_that_does_not_start_is_named_with_its_reason(start: Start) -> None:
    command = start(*BROKERS_ONLY, "-X", "num.partitions=none")
    assert command.process.wait(DEADLINE_S) == 1
    (line,) = command.errors().splitlines()
    assert line.startswith("error: broker 0 did not start: ")
    assert "num.partitions" in line


def test_cluster_goes_on_when_the_reader_of_its_output_has_ended(start: Start) -> None:
    command = start(*BROKERS_ONLY)
    bootstrap = command.wait_until_ready()
    assert command.process.stdout is not None
    command.process.stdout.close()
    first = command.pid("broker-0")
    ended = os.pidfd_open(first)
    os.kill(first, signal.SIGKILL)
    assert select.select([ended], [], [], DEADLINE_S)[0]
    os.close(ended)
    # The command finds no reader when it reports the restart.
    ottla("cluster", "status", "--wait", bootstrap=bootstrap, attempts=20)
    assert command.pid("broker-0") != first
    assert command.end(signal.SIGTERM) == 0


def test_data_directory_of_a_broker_keeps_its_id(start: Start, tmp_path: Path) -> None:
    with BrokerProcess.start(data=tmp_path / "cluster-data", settings={"broker.id": "7"}) as broker:
        broker.stop()
    command = start(*BROKERS_ONLY)
    command.wait_for("broker 7 is ready")
    assert command.end(signal.SIGTERM) == 0


def test_second_command_on_the_same_data_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(*BROKERS_ONLY)
    first.wait_until_ready()
    from click.testing import CliRunner

    from ottla.cli import up
    from ottla.cli.main import main

    monkeypatch.setattr(up, "_LOCK_S_MAX", 0.0)
    result = CliRunner().invoke(main, ["up", "--data", str(first.data), "--port", "0"])
    assert result.exit_code == 1
    assert f"another 'ottla up' uses {first.data}; stop it" in result.output
