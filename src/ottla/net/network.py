"""The network, passed in as an argument so that a simulation can run brokers without sockets.

``Network`` lists the calls of the operating system that the server and its connections use. ``SocketNetwork`` makes
these calls. Bytes that a connection receives and small replies take no detour: they pass through the transport of the
event loop. Only large replies, which are sent from files, call the methods of ``Network``.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Callable
from typing import Protocol

from ottla.env.advice import listen_advice
from ottla.model.errors import StartError
from ottla.model.types import Endpoint
from ottla.net.peers import Peers, PeerWatch

#: a flag of ``DirectSocket.send``: the kernel waits for the bytes that follow
MSG_MORE = socket.MSG_MORE
#: an option of ``DirectSocket.setsockopt``: the event loop reads the socket only when it has so many bytes
SOL_SOCKET, SO_RCVLOWAT = socket.SOL_SOCKET, socket.SO_RCVLOWAT
#: descriptors that are reserved for the files of logs
_DESCRIPTORS_KEPT_MAX = 256

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]


class Listener(Protocol):
    """One address on which the broker listens."""

    @property
    def port(self) -> int:
        """Return the port, which the operating system chose if the endpoint has port 0."""

    async def serve(self, loop: asyncio.AbstractEventLoop, factory: ProtocolFactory) -> None:
        """Accept connections; ``factory`` creates the protocol object of each."""

    def close(self) -> None:
        """Accept no further connection. Those that exist stay open."""


class DirectSocket(Protocol):
    """The socket of a connection, for calls that bypass the transport."""

    def send(self, data: bytes, flags: int, /) -> int: ...
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...
    def detach(self) -> int: ...


class Network(Protocol):
    """The calls of the operating system that concern connections."""

    def bind(self, endpoint: Endpoint, *, backlog: int, send_buffer_bytes: int, receive_buffer_bytes: int) -> Listener:
        """Listen on an address. Raise StartError, which says what to do, if the address cannot be used."""

    async def connect(self, endpoint: Endpoint, factory: ProtocolFactory) -> asyncio.Transport:
        """Open a connection; ``factory`` creates its protocol object. Raise OSError if that fails.

        ConnectionRefusedError means that no process listens at the address.
        """

    def watch_peers(self, loop: asyncio.AbstractEventLoop) -> Peers:
        """Return an object that notices when clients close connections that are not read from."""

    def descriptors_for_clients(self) -> int:
        """Return the first descriptor number that clients may not have."""

    def direct_socket(self, socket_fd: int) -> DirectSocket:
        """Return a socket object for a descriptor that the transport owns."""

    def sendfile(self, socket_fd: int, file_fd: int, position: int, size: int, /) -> int:
        """Send bytes of a file; return how many were sent. Raise BlockingIOError if the socket is full."""

    def pread(self, file_fd: int, size: int, position: int, /) -> bytes:
        """Return bytes of a file."""


class SocketListener:
    """A listening socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._server: asyncio.Server | None = None
        self._port = int(sock.getsockname()[1])

    @property
    def port(self) -> int:
        return self._port

    async def serve(self, loop: asyncio.AbstractEventLoop, factory: ProtocolFactory) -> None:
        self._server = await loop.create_server(factory, sock=self._socket)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        else:
            self._socket.close()


class SocketNetwork:
    """The sockets of the operating system."""

    sendfile = staticmethod(os.sendfile)
    pread = staticmethod(os.pread)

    def bind(
        self, endpoint: Endpoint, *, backlog: int, send_buffer_bytes: int, receive_buffer_bytes: int
    ) -> SocketListener:
        """Return a listening socket.

        Accepted connections inherit the sizes of the kernel's buffers; -1 lets the kernel choose.
        docs/reference/performance.md has measurements of these sizes.
        """
        host = endpoint.host or "0.0.0.0"
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
        except socket.gaierror as error:
            raise StartError(f"listener {endpoint}: host is unknown ({error.strerror}); check --listener") from None
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for option, size in ((socket.SO_SNDBUF, send_buffer_bytes), (socket.SO_RCVBUF, receive_buffer_bytes)):
            if size != -1:
                sock.setsockopt(socket.SOL_SOCKET, option, size)
        try:
            sock.bind(address)
            # Listen at once, so that a second broker on this port fails before it opens any data.
            sock.listen(backlog)
        except OSError as error:
            sock.close()
            raise StartError(
                f"cannot listen on {endpoint}: "
                f"{listen_advice(error, host=endpoint.host, port=endpoint.port, option='--listener')}"
            ) from None
        return SocketListener(sock)

    async def connect(self, endpoint: Endpoint, factory: ProtocolFactory) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        error: OSError = ConnectionError(f"{endpoint.host} has no address")
        for family, _, _, _, address in await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM):
            try:
                # Each address by itself, so that the error of the last one is not merged with others.
                transport, _ = await loop.create_connection(factory, str(address[0]), endpoint.port, family=family)
            except OSError as raised:
                error = raised
                continue
            sock = transport.get_extra_info("socket")
            if sock is None or transport.is_closing():
                # The peer has ended: the connection was reset before this task ran again.
                error = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
                continue
            # Without it the kernel would hold back a request until the reply to the one before arrives.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return transport
        raise error

    def watch_peers(self, loop: asyncio.AbstractEventLoop) -> PeerWatch:
        return PeerWatch(loop)

    def descriptors_for_clients(self) -> int:
        # The kernel assigns the lowest free number, so a number from here on means that few descriptors are left for
        # the files of logs.
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return limit - min(limit // 8, _DESCRIPTORS_KEPT_MAX)

    def direct_socket(self, socket_fd: int) -> socket.socket:
        return socket.socket(fileno=socket_fd)
