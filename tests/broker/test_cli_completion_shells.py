"""The scripts of `ottla completion` in real shells on a terminal: bash, zsh and fish, with names of a real cluster."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.client.cluster import Cluster
from ottla.model.types import TopicPartition
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

DEADLINE_S = 120
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SETUP = {
    "bash": 'eval "$(ottla completion bash)"',
    "zsh": 'unsetopt beep; autoload -Uz compinit; compinit -u -D; eval "$(ottla completion zsh)"',
    "fish": "set fish_autosuggestion_enabled 0; ottla completion fish | source",
}
#: becomes a shell that owns the terminal of its standard input, which fish needs
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)
#: in place of `ottla`: completes, prints scripts, and writes down all other command lines
WRAPPER = """#!/bin/sh
if [ -n "$_OTTLA_COMPLETE" ] || [ "$1" = completion ]; then exec {python} -m ottla "$@"; fi
: > "$ARGUMENTS.new"
for word in "$@"; do printf '%s\\n' "$word" >> "$ARGUMENTS.new"; done
mv "$ARGUMENTS.new" "$ARGUMENTS"
echo written-"down"
"""

Complete = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """A broker with a few topics, and groups whose names need quotes."""
    with BrokerProcess.start() as running:
        topics = ["orders-eu", "orders-us", "payments"]
        command = [sys.executable, "-m", "ottla", "topic", "create", *topics, "-b", running.bootstrap]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with Cluster(running.bootstrap, {}) as cluster:
            for group in ("billing", "a:colon", "two words", "dollar$HOME"):
                cluster.commit(group, {TopicPartition("payments", 0): 0})
        yield running


class Shell:
    """A shell on a terminal, in a home directory of its own."""

    def __init__(self, name: str, home: Path, bootstrap: str) -> None:
        directory = home / "bin"
        directory.mkdir()
        wrapper = directory / "ottla"
        wrapper.write_text(WRAPPER.format(python=shlex.quote(sys.executable)))
        wrapper.chmod(0o755)
        self._arguments = home / "arguments"
        environment = {
            "HOME": str(home), "PATH": f"{directory}:{os.environ['PATH']}", "TERM": "xterm", "LANG": "C.UTF-8",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "ARGUMENTS": str(self._arguments),
            "OTTLA_BOOTSTRAP_SERVER": bootstrap,
        }  # fmt: skip
        self._outer, inner = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *START[name]],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment,
            cwd=home,
            start_new_session=True,
        )
        os.close(inner)
        # The words of the answer are not the words of the line, which the terminal echoes.
        self._run(f'{SETUP[name]}; echo set-"up"', b"set-up")

    def complete(self, line: str) -> list[str]:
        """Return the arguments of the command after this line, a tab and the enter key."""
        self._arguments.unlink(missing_ok=True)
        self._run(f"{line}\t", b"written-down")
        return self._arguments.read_text().splitlines()

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._outer)

    def _run(self, keys: str, answer: bytes) -> None:
        os.write(self._outer, f"{keys}\r".encode())
        found, deadline = b"", time.monotonic() + DEADLINE_S
        while answer not in found:
            ready, _, _ = select.select([self._outer], [], [], max(deadline - time.monotonic(), 0))
            assert ready, found.decode(errors="replace")
            try:
                found += os.read(self._outer, 65536)
            except OSError:
                pytest.fail(f"the shell has ended: {found.decode(errors='replace')}")


@pytest.fixture(params=list(START))
def complete(request: pytest.FixtureRequest, broker: BrokerProcess, tmp_path: Path) -> Iterator[Complete]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    shell = Shell(request.param, tmp_path, broker.bootstrap)
    try:
        yield shell.complete
    finally:
        shell.close()


def test_shell_completes_commands_options_and_names(complete: Complete, broker: BrokerProcess, tmp_path: Path) -> None:
    assert complete("ottla top") == ["topic"]
    assert complete("true; ottla top") == ["topic"]
    assert complete("ottla topic desc") == ["topic", "describe"]
    assert complete("ottla topic describe --conf") == ["topic", "describe", "--configs"]
    assert complete("ottla topic describe pay") == ["topic", "describe", "payments"]
    assert complete("ottla topic describe payments or") == ["topic", "describe", "payments", "orders-"]
    assert complete("ottla group describe bil") == ["group", "describe", "billing"]
    assert complete("ottla group describe a:co") == ["group", "describe", "a:colon"]
    assert complete("ottla group describe two") == ["group", "describe", "two words"]
    assert complete("ottla group describe dol") == ["group", "describe", "dollar$HOME"]
    assert complete("ottla txn hanging --topic=pay") == ["txn", "hanging", "--topic=payments"]
    # An address with a colon is one word, although bash splits it.
    words = ["topic", "describe", "-b", broker.bootstrap]
    assert complete(f"ottla topic describe -b {broker.bootstrap} pay") == [*words, "payments"]
    cached = list((tmp_path / ".cache" / "ottla" / "completion").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in cached} == {0o600}
    assert len(cached) == 2, "one file for topics, one for groups: an address is the same by option and environment"


def test_nothing_is_completed_or_printed_without_a_cluster(complete: Complete) -> None:
    assert complete("ottla topic describe -b 127.0.0.1:1 pay") == ["topic", "describe", "-b", "127.0.0.1:1", "pay"]
