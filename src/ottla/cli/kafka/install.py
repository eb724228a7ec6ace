"""`ottla kafka install`: small scripts with the names of Kafka's commands, with and without .sh."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from ottla.admin.failure import Failure
from ottla.cli.kafka.commands import COMMANDS

#: a line of each script, by which `install` knows its own files
_MARK = "# written by 'ottla kafka install'"
#: the kernel reads no longer first line
_INTERPRETER_MAX = 120
_MODE = 0o755


def install(directory: Path, *, force: bool = False) -> int:
    """Write the scripts and return how many. Raise Failure, and write none, if another file has one of the names."""
    paths = {directory / f"{name}{suffix}": name for name in COMMANDS for suffix in ("", ".sh")}
    if not force:
        for path in paths:
            _check_own(path)
    directory.mkdir(parents=True, exist_ok=True)
    for path, name in paths.items():
        # Renamed, so that a script that is being started is never half a file.
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        partial.write_text(script(name, sys.executable))
        partial.chmod(_MODE)
        partial.replace(path)
    return len(paths)


def script(name: str, interpreter: str) -> str:
    """Return the text of a script that runs a command with this Python."""
    body = f"{_MARK}\nfrom ottla.cli.kafka.start import start\n\nstart({name!r})\n"
    if len(interpreter) <= _INTERPRETER_MAX and " " not in interpreter:
        return f"#!{interpreter}\n{body}"
    # Such a path cannot stand in the first line; /bin/sh runs the third line, which is a text for Python.
    return f"#!/bin/sh\n''':'\nexec {shlex.quote(interpreter)} \"$0\" \"$@\"\n'''\n{body}"


def _check_own(path: Path) -> None:
    if path.is_symlink() or path.exists():
        with open(path, "rb") as file:
            start = file.read(1024)
        if _MARK.encode() not in start:
            raise Failure(f"{path} exists and is not a script of Ottla; name another directory, or pass --force")
