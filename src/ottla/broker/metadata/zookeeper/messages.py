"""Messages between the connection to ZooKeeper and the store, and the address of the servers. Does not import kazoo.

The import of kazoo takes 50 ms and 4 MB, which a broker without ZooKeeper saves.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ottla.broker.metadata.store import UnusableStore, check_path
from ottla.broker.metadata.zookeeper.wire import Request

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s,:/\[\]]+)(?::([0-9]{1,5}))?")
_DEFAULT_PORT = 2181


class Connected(NamedTuple):
    #: of this connection; higher than that of the one before
    number: int
    session_id: int
    #: granted by the server, which may be another one than asked for
    session_timeout_s: float


class Lost(NamedTuple):
    pass


class Expired(NamedTuple):
    pass


class Event(NamedTuple):
    #: of the change; -1 from servers before 3.9
    zxid: int
    #: the full path of the node
    path: str


class Answer(NamedTuple):
    call: Call
    #: of the last change that the answer shows, or of the change that a multi made
    zxid: int
    error: int
    #: None if there is an error
    result: Any


Message = Connected | Lost | Expired | Event | Answer


class Call:
    """A request and the connection on which it may be sent."""

    __slots__ = ("connection", "request")

    def __init__(self, request: Request, connection: int) -> None:
        self.request = request
        self.connection = connection

    def set_exception(self, error: Exception) -> None:
        """Called by kazoo for requests without an answer when a connection is lost. ``Lost`` reports this."""


class Address(NamedTuple):
    """A parsed ``zookeeper.connect``: servers, and the path below which all nodes are."""

    servers: tuple[str, ...]
    #: empty or a path
    chroot: str


def parse_address(text: str) -> Address:
    """Return the servers and the chroot of ``host:port,host:port/chroot``. Raise UnusableStore if it is malformed."""
    servers, slash, rest = text.strip().partition("/")
    chroot = (slash + rest).rstrip("/")
    try:
        parsed = tuple(_parse_server(server.strip()) for server in servers.split(","))
        if chroot:
            check_path(chroot)
    except ValueError as problem:
        raise UnusableStore(
            f"zookeeper.connect={text!r}: {problem}. It has the form host:port,host:port/chroot"
        ) from None
    return Address(parsed, chroot)


def _parse_server(text: str) -> str:
    match = _HOST.fullmatch(text)
    if match is None or not 0 < int(match[2] or _DEFAULT_PORT) < 1 << 16:
        raise ValueError(f"{text!r} is not the address of a server")
    return f"{match[1]}:{match[2] or _DEFAULT_PORT}"
