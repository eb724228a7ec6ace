"""`--watch` as people use it: through a pipe and on a terminal, with Ctrl-C, and while the broker restarts."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

OTTLA = [sys.executable, "-m", "ottla"]
DEADLINE_S = 90


@contextmanager
def watching(*words: str, stdout: int, stderr: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    command = [*OTTLA, *words, "--watch", "0.1"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def read_until(fd: int, wanted: bytes) -> bytes:
    """Return the output up to the chunk in which `wanted` is complete."""
    found, deadline = b"", time.monotonic() + DEADLINE_S
    while wanted not in found:
        ready, _, _ = select.select([fd], [], [], max(deadline - time.monotonic(), 0))
        chunk = os.read(fd, 65536) if ready else b""
        assert chunk, f"{wanted!r} did not come after {found[-2000:]!r}"
        found += chunk
    return found


def create(broker: BrokerProcess, name: str) -> None:
    subprocess.run([*OTTLA, "topic", "create", name, "-b", broker.bootstrap], check=True, stdout=subprocess.DEVNULL)


def test_pipe_gets_the_new_state_and_ctrl_c_is_no_failure(ottla_broker: BrokerProcess) -> None:
    name = f"watched-{os.getpid()}"
    with watching("topic", "list", "-b", ottla_broker.bootstrap, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert name.encode() not in read_until(process.stdout.fileno(), b"NAME")
        create(ottla_broker, name)
        read_until(process.stdout.fileno(), name.encode())
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(DEADLINE_S) == 0


def test_terminal_is_redrawn_from_its_first_line(ottla_broker: BrokerProcess) -> None:
    name = f"drawn-{os.getpid()}"
    outer, inner = pty.openpty()
    try:
        with watching("topic", "list", "-b", ottla_broker.bootstrap, stdout=inner) as process:
            first = read_until(outer, b"NAME")
            assert b"\x1b[Hevery 0.1 s: " in first.split(b"NAME")[0]
            create(ottla_broker, name)
            assert b"\x1b[J" in read_until(outer, name.encode())
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
    finally:
        os.close(inner)
        os.close(outer)


def test_watch_survives_a_restart_of_the_broker() -> None:
    with (
        BrokerProcess.start() as broker,
        watching("topic", "list", "-b", broker.bootstrap, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), b"NAME")
        broker.kill()
        read_until(process.stderr.fileno(), b"error: ")
        broker.launch()
        create(broker, "after")
        read_until(process.stdout.fileno(), b"after")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0


def test_end_of_the_reader_ends_the_command(ottla_broker: BrokerProcess) -> None:
    with watching(
        "topic", "list", "-b", ottla_broker.bootstrap, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        read_until(process.stdout.fileno(), b"NAME")
        process.stdout.close()
        assert (process.wait(DEADLINE_S), process.stderr.read()) == (0, b"")
