"""Python imports this module first in a process whose PYTHONPATH names this directory.

It appends every name lookup, every address that a socket connects to and every file that is opened to the file
OTTLA_AUDIT_FILE, so that a test can tell what a service reached. The calls of asyncio and of libraries in Python are
seen, also those of uvloop, which asks `socket` for the address of a name.
"""

from __future__ import annotations

import os
import sys

_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "open")


def _record(event: str, args: tuple[object, ...]) -> None:
    if event not in _EVENTS:
        return
    place = args[1] if event in ("socket.connect", "socket.sendto") else args[0]
    os.write(_FILE, f"{event} {place!r}\n".encode("utf-8", "backslashreplace"))


_FILE = os.open(os.environ["OTTLA_AUDIT_FILE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
sys.addaudithook(_record)
