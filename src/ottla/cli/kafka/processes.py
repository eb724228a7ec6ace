"""The processes that kafka-server-start and zookeeper-server-start have started, for the commands that stop them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ottla.cli.kafka.server_start import parse_overrides
from ottla.model.settings import parse_properties

_PROC = Path("/proc")


class Running(NamedTuple):
    """A process and the arguments of its command."""

    pid: int
    #: behind the name of the command
    words: tuple[str, ...]
    directory: str


def running(command: str, proc: Path = _PROC) -> list[Running]:
    """Return the processes of this user that run a command, with or without .sh, by `ottla kafka` or as a daemon."""
    found = []
    for path in proc.iterdir() if proc.is_dir() else ():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        try:
            if path.stat().st_uid != os.getuid():
                continue
            words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
            directory = os.readlink(path / "cwd")
        except OSError:  # it has ended
            continue
        arguments = _arguments(command, words)
        if arguments is not None:
            found.append(Running(int(path.name), tuple(arguments), directory))
    return sorted(found)


def _arguments(command: str, words: Sequence[str]) -> list[str] | None:
    """Return what stands behind the name of the command in a command line; None if it is that of another program."""
    if not words or "python" not in os.path.basename(words[0]):
        return None
    names = {command, f"{command}.sh"}
    for number, word in enumerate(words[1:], 1):
        is_named = os.path.basename(word) in names
        is_short = words[number - 1] == "kafka" and word.removesuffix(".sh") == command.removeprefix("kafka-")
        if is_named or is_short or word == f"from ottla.cli.kafka.start import start; start({command!r})":
            return list(words[number + 1 :])
    return None


def node_id(process: Running) -> str | None:
    """Return the broker.id or node.id of a broker, None if its file cannot be read."""
    words = [word for word in process.words if word != "-daemon"]
    try:
        text = Path(process.directory, words[0]).read_text("utf-8")
        settings = {**parse_properties(text), **parse_overrides(words[1:])}
    except (OSError, ValueError, IndexError):
        return None
    return settings.get("node.id", settings.get("broker.id", "0")).strip()


def stop(processes: Sequence[Running]) -> Iterator[int]:
    """Ask processes to stop, and yield their ids. The signal is that of the variable SIGNAL, TERM without one."""
    number = signal.Signals[f"SIG{os.environ.get('SIGNAL', 'TERM').upper().removeprefix('SIG')}"]
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue
        yield process.pid
