"""Notice that a client has closed its connection while the broker does not read from it.

A connection whose request waits for other clients (JoinGroup, for up to 30 minutes) is not read from, so the event loop
reports neither the end of its stream nor a reset. This module asks the kernel for these two events alone (EPOLLRDHUP,
EPOLLHUP), with an epoll descriptor of its own that the event loop watches for all connections together. The kernel
reports them also when unread requests are still in the socket's receive buffer, which a read could not.

A connection is registered when it waits for the first time and stays registered until it is closed, so requests that do
not wait cost nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.net.connection import Connection

#: both directions are closed, or the connection was reset: nothing can be sent any more
_READS_NOTHING = select.EPOLLHUP | select.EPOLLERR


class Peers(Protocol):
    """Reports clients that close a connection from which the broker does not read."""

    def add(self, connection: Connection, fd: int) -> None: ...
    def remove(self, connection: Connection, fd: int) -> None: ...
    def close(self) -> None: ...


class PeerWatch:
    """Reports the connections whose clients closed them, each at most once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: created with the first connection
        self._epoll: select.epoll | None = None
        #: by descriptor
        self._watched: dict[int, Connection] = {}

    def add(self, connection: Connection, fd: int) -> None:
        """Call ``connection.peer_closed`` as soon as the client closes its side of the connection."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._report)
        self._watched[fd] = connection
        self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def remove(self, connection: Connection, fd: int) -> None:
        """Forget a connection that has ended. Its descriptor may already belong to another one."""
        if self._epoll is not None and self._watched.get(fd) is connection:
            del self._watched[fd]
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
        self._watched.clear()

    def _report(self) -> None:
        assert self._epoll is not None
        for fd, events in self._epoll.poll(0):
            connection = self._watched.get(fd)
            if connection is not None:
                connection.peer_closed(reads_nothing=bool(events & _READS_NOTHING))
