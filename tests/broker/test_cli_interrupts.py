"""Ctrl-C in commands as people run them: a real SIGINT, no traceback, and no wait for a broker that never answers."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

SCRIPT = [sys.executable, "-m", "ottla"]
DEADLINE_S = 60
#: far beyond the test's own deadline: only Ctrl-C can end the command
FOREVER = ("--timeout", "3600")


def start(*words: str, bootstrap: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SCRIPT, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OTTLA_BOOTSTRAP_SERVER": bootstrap},
    )  # fmt: skip


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in err, err
    return process.returncode, out, err


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """An address that accepts connections and never answers a request."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        yield server


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "describe", "t"),
        ("offsets", "t"),
        ("group", "describe", "g"),
        ("consume", "t"),
        ("perf", "produce", "t"),
        ("txn", "list"),
    ],
    ids=" ".join,
)
def test_ctrl_c_ends_a_command_that_waits_for_a_silent_broker(words: tuple[str, ...], silent: socket.socket) -> None:
    process = start(*words, *FOREVER, bootstrap=f"127.0.0.1:{silent.getsockname()[1]}")
    connections = []
    while True:
        # The first connection only tries whether the port is open; the command waits once it has sent a request.
        connection, _ = silent.accept()
        connection.settimeout(DEADLINE_S)
        connections.append(connection)
        if connection.recv(1):
            break
    code, _, err = interrupt(process)
    for connection in connections:
        connection.close()
    assert code == 130, err


def test_ctrl_c_in_a_throttled_load_test_prints_what_was_measured(ottla_broker: BrokerProcess) -> None:
    done = subprocess.run([*SCRIPT, "topic", "create", f"load-{os.getpid()}", "-b", ottla_broker.bootstrap])
    assert done.returncode == 0
    process = start("perf", "produce", f"load-{os.getpid()}", "--throughput", "1000", bootstrap=ottla_broker.bootstrap)
    assert process.stderr is not None
    assert "records produced" in process.stderr.readline()
    code, out, err = interrupt(process)
    assert code == 0, err
    assert "records/s" in out


def test_ctrl_c_while_the_broker_imports_its_modules_is_exit_code_130(tmp_path: Path) -> None:
    # The module that the broker command imports first tells us that the import has begun, and waits there.
    package = tmp_path / "uvloop"
    package.mkdir()
    (package / "__init__.py").write_text("print('importing', flush=True)\nimport time\ntime.sleep(3600)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = subprocess.Popen(
        [*SCRIPT, "broker", "--data", str(tmp_path / "data"), "--listener", "PLAINTEXT://127.0.0.1:0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    code, _, err = interrupt(process)
    assert (code, err.strip()) == (130, "")


def test_a_million_partitions_are_refused_in_one_line(ottla_broker: BrokerProcess) -> None:
    done = subprocess.run(
        [*SCRIPT, "topic", "create", "big", "-p", "1000000", "-b", ottla_broker.bootstrap],
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert "1<=x<=100000" in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_second_ctrl_c_gives_up_records_that_a_paused_broker_does_not_acknowledge(
    fresh_ottla_broker: BrokerProcess,
) -> None:
    subprocess.run([*SCRIPT, "topic", "create", "t", "-b", fresh_ottla_broker.bootstrap], check=True)
    process = start("perf", "produce", "t", "--throughput", "1000", bootstrap=fresh_ottla_broker.bootstrap)
    assert process.stderr is not None
    assert "records produced" in process.stderr.readline()
    os.kill(fresh_ottla_broker.pid, signal.SIGSTOP)
    try:
        # The paused broker acknowledges nothing, and the command goes on sending: from this line on, records wait.
        while ", 0 records/s" not in (line := process.stderr.readline()):
            assert line, "the command ended before it was interrupted"
        process.send_signal(signal.SIGINT)
        while "press Ctrl-C again" not in (line := process.stderr.readline()):
            assert line, "the command ended before the records were acknowledged"
        code, _, err = interrupt(process)
    finally:
        os.kill(fresh_ottla_broker.pid, signal.SIGCONT)
    assert code == 130, err
