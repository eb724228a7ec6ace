"""The commands that a demonstration prints for people to try. A test runs them as they are printed."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from ottla.demo.check import REVENUE

_QUERY = "SELECT currency, sum(revenue) AS total FROM revenue_per_minute GROUP BY 1"


class Command(NamedTuple):
    """A command for a shell, and a description of its output."""

    text: str
    what: str


def commands_to_try(bootstrap: str, file: Path) -> list[Command]:
    """Return three commands that work while the demonstration runs; the last two also work without its broker."""
    path = shlex.quote(short_path(file))
    ottla = own_command()
    return [
        Command(f"kcat -b {bootstrap} -C -t {REVENUE} -o -10 -e -q", "the newest results, with any Kafka client"),
        Command(f'{ottla} pipeline sql {path} "{_QUERY}"', "SQL over a table"),
        Command(f"{ottla} pipeline explain {path}", "the pipeline as a drawing"),
    ]


def commands_after(listener: str, data: Path, file: Path, *, insecure: bool = False) -> list[Command]:
    """Return the same commands for the time after a demonstration. The first one starts its broker again."""
    bootstrap = listener.rpartition("/")[2]
    start = f"{own_command()} broker --data {shlex.quote(short_path(data))} --listener {listener}"
    start += " --insecure &" if insecure else " &"
    return [Command(start, "the broker again, with its records"), *commands_to_try(bootstrap, file)]


def own_command() -> str:
    """Return the words with which this program was called, for a shell in the same directory."""
    name = sys.argv[0]
    if Path(name).name == "ottla":
        return "ottla" if shutil.which("ottla") == os.path.abspath(name) else shlex.quote(short_path(Path(name)))
    return f"{shlex.quote(sys.executable)} -m ottla"


def short_path(path: Path) -> str:
    """Return the path relative to the working directory, or absolute if it is not below it."""
    absolute = Path(os.path.abspath(path))
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else str(absolute)
