"""Run an ASGI app with uvicorn: addresses, the `ready` line, an orderly stop."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import uvicorn
from starlette.types import ASGIApp

from ottla.model.errors import StartError

#: connections that wait for accept
_BACKLOG: Final = 1024
#: an idle connection is kept this long; clients and load balancers close theirs after 60 s
_KEEP_ALIVE_S: Final = 75
#: bytes of a request's head (request line and headers)
_HEAD_BYTES_MAX: Final = 64 << 10
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


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: the service decides when it stops."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell_started = started

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell_started()


async def serve(
    app: ASGIApp,
    sockets: Sequence[socket.socket],
    stop: asyncio.Event,
    *,
    started: Callable[[], None],
    tls: ssl.SSLContext | None = None,
    connections_max: int = 10_000,
    before_stop: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Serve until `stop` is set; then answer the requests in progress for up to five seconds."""
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", server_header=False, date_header=True,
        backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE_S, timeout_graceful_shutdown=_STOP_S_MAX,
        limit_concurrency=connections_max, h11_max_incomplete_event_size=_HEAD_BYTES_MAX, ws="none",
        # A client could choose its address for the limits and the log with X-Forwarded-For.
        proxy_headers=False,
        # Each malformed request is a warning of uvicorn, and clients could fill the log with them.
        log_level=logging.ERROR,
    )  # fmt: skip
    if tls is not None:
        config.load()
        config.ssl = tls
    server = _Server(config, started)
    serving = asyncio.create_task(server.serve(list(sockets)))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if before_stop is not None and not serving.done():
            await before_stop()
        server.should_exit = True
        await serving
    finally:
        stopping.cancel()
