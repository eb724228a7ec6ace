"""Run an ASGI app with uvicorn: addresses, the `ready` line, an orderly stop."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from ottla.edge.web.connections import Acceptor, ConnectionTable, HttpConnection
from ottla.model.errors import StartError

#: connections that wait for accept
_BACKLOG: Final = 1024
#: an idle connection is kept this long; clients and load balancers close theirs after 60 s
_KEEP_ALIVE_S: Final = 75
_STOP_S_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on: `http://127.0.0.1:8081`. Port 0 chooses a free port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Listener:
        """Raise StartError if the text is not `http://HOST:PORT` or `https://HOST:PORT`."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None or parts.path not in ("", "/"):
            raise StartError(f"{text!r} is not an address to listen on: write http://HOST:PORT or https://HOST:PORT")
        return cls(parts.scheme, parts.hostname, port)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def bind(listener: Listener) -> tuple[Listener, socket.socket]:
    """Return a bound socket and the listener with the port that it really has. Raise StartError if it is taken."""
    family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((listener.host, listener.port))
    except OSError as error:
        bound.close()
        raise StartError(
            f"cannot listen on {listener}: {error.strerror or error}. Choose another address with --listen"
        ) from None
    return Listener(listener.scheme, listener.host, bound.getsockname()[1]), bound


class BoundSocket(NamedTuple):
    """A socket to listen on, with the TLS context of its connections; None for plain HTTP."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers and with our connections: the service decides when it stops."""

    def __init__(
        self,
        config: uvicorn.Config,
        sockets: Sequence[BoundSocket],
        table: ConnectionTable,
        started: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._sockets = sockets
        self._table = table
        self._tell_started = started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.servers: list[Acceptor] = []  # type: ignore[assignment]
        for bound in self._sockets:
            try:
                acceptor = Acceptor(bound.socket, self._table, self._make_connection, bound.tls, backlog=_BACKLOG)
            except OSError as error:
                for each in self.servers:
                    each.close()
                raise StartError(f"cannot listen on {bound.socket.getsockname()}: {error.strerror or error}") from None
            self.servers.append(acceptor)
        self.started = True
        self._tell_started()

    def _make_connection(self) -> HttpConnection:
        return HttpConnection(self._table, config=self.config, server_state=self.server_state, app_state={})


async def serve(
    app: ASGIApp,
    sockets: Sequence[BoundSocket],
    stop: asyncio.Event,
    *,
    started: Callable[[], None],
    connections: ConnectionTable,
    before_stop: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until `stop` is set; then answer the requests in progress for up to five seconds.

    Raise StartError if another process has begun to listen on one of the addresses.
    """
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, date_header=True,
        timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=_STOP_S_MAX, ws="none", http=HttpConnection,
        # A client could choose its address for the limits and the log with X-Forwarded-For.
        proxy_headers=False,
        # Each malformed request is a warning of uvicorn, and clients could fill the log with them.
        log_level=logging.ERROR,
    )  # fmt: skip
    server = _Server(config, sockets, connections, started)
    serving = asyncio.create_task(server.serve())
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if before_stop is not None and not serving.done():
            await before_stop()
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
