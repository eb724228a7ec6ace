"""Finds the process that listens on a port, in /proc of Linux."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_LISTEN = "0A"
#: an option with the value of a setting that may be a secret
_SECRET = re.compile(r"(?i)((?:password|secret|jaas|token|credential|key)[^=]*=).+", re.DOTALL)


def find_listener(port: int, proc: str = "/proc") -> str | None:
    """Return `pid N, command` of the process that listens on `port`; None if it is another user's or unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port, proc)}
    if not sockets:
        return None
    for pid in filter(str.isdigit, _list(proc)):
        descriptors = os.path.join(proc, pid, "fd")
        if any(_link(os.path.join(descriptors, fd)) in sockets for fd in _list(descriptors)):
            return f"pid {pid}, {_command(pid, proc)}"
    return None


def _listening_inodes(port: int, proc: str) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        for line in _read(os.path.join(proc, "net", name)).splitlines()[1:]:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _command(pid: str, proc: str) -> str:
    words = [_SECRET.sub(r"\1(hidden)", word) for word in _read(os.path.join(proc, pid, "cmdline")).split("\0") if word]
    text = " ".join([os.path.basename(words[0]), *words[1:]]) if words else "?"
    return re.sub(r"(?<=.{60}).+", "...", text)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _list(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
