"""Clients in Go: each a small program beside this package, built once."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from drivers import DEADLINE_S

MISSING = "Go is not installed: see https://go.dev/doc/install"
_SOURCES = Path(__file__).resolve().parent.parent
_BUILD_S_MAX = 300.0


def build(name: str, built: Path) -> str | None:
    """Makes the command from the directory of that name unless it is there and new; or one line that says why not."""
    go = shutil.which("go")
    if go is None:
        return MISSING
    source = _SOURCES / name
    if built.exists() and built.stat().st_mtime > max(path.stat().st_mtime for path in source.iterdir()):
        return None
    built.parent.mkdir(parents=True, exist_ok=True)
    command = [go, "build", "-o", str(built), "."]
    try:
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=_BUILD_S_MAX)
    except subprocess.TimeoutExpired:
        return f"{name} could not be built in time: is the Go module proxy reachable?"
    return f"{name} cannot be built: {done.stderr.strip().splitlines()[-1]}" if done.returncode else None


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
