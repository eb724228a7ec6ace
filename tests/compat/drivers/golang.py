"""Clients in Go: each a small program beside this package, built once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.locking import locked

from drivers import DEADLINE_S

MISSING = "Go is not installed: see https://go.dev/doc/install"
_SOURCES = Path(__file__).resolve().parent.parent
_BUILD_S_MAX = 300.0


def build(name: str, built: Path) -> str | None:
    """Build the command from that directory unless it is there and new. Return one line that says why not."""
    go = shutil.which("go")
    if go is None:
        return MISSING
    with locked(built):
        return _build(go, _SOURCES / name, built)


def _build(go: str, source: Path, built: Path) -> str | None:
    if built.exists() and built.stat().st_mtime > max(path.stat().st_mtime for path in source.iterdir()):
        return None
    command = [go, "build", "-o", str(built), "."]
    # Without C there is less to compile, and no compiler for C is needed.
    environment = {**os.environ, "CGO_ENABLED": "0"}
    try:
        done = subprocess.run(
            command, cwd=source, env=environment, capture_output=True, text=True, timeout=_BUILD_S_MAX
        )
    except subprocess.TimeoutExpired:
        return f"{source.name} could not be built in time: is the Go module proxy reachable?"
    return f"{source.name} cannot be built: {done.stderr.strip().splitlines()[-1]}" if done.returncode else None


class Member:
    """A client that is asked for one thing: to be a member of a group until it has so many records."""

    def __init__(self, bootstrap: str, command: Path) -> None:
        self._bootstrap = bootstrap
        self._command = command

    def consume(self, topic: str, group: str, count: int) -> list[tuple[int, int, str]]:
        """Partition, offset and value of each record; all are committed."""
        command = [str(self._command), self._bootstrap, topic, group, str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = (line.split(" ", 2) for line in done.stdout.splitlines())
        return [(int(partition), int(offset), value) for partition, offset, value in lines]
