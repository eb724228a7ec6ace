"""The asyncio client: connections that a broker opens to other brokers.

An ``AsyncBrokerConnection`` sends requests without waiting for earlier replies, and gets the replies in the order of
the requests. A small reply is copied out of the process-wide receive buffer. A larger one is received into memory of
its own, of which the connection keeps one piece for the next reply.

A connection that was lost is never used again: its requests fail with ``PeerUnreachable``, and its owner opens another
one.
"""

from __future__ import annotations

import asyncio
import mmap
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

from ottla.client.protocol.frames import MALFORMED, SIZE, RequestWriter, decode_reply, is_free, reply_size
from ottla.client.protocol.handshake import Ask, log_in
from ottla.env.tasks import start_task
from ottla.model.errors import AuthenticationFailed, OttlaError
from ottla.model.types import Endpoint, FrameBuffer
from ottla.net.network import Network
from ottla.net.tls import TlsLayer
from ottla.wire import Message, WireError

CONNECT_TIMEOUT_S = 5.0
ASK_TIMEOUT_S = 10.0
#: a larger reply closes the connection before memory is allocated for it
REPLY_BYTES_MAX = 128 << 20
_RECEIVE_BYTES = 256 << 10
#: memory of up to this size is kept for the next reply that does not fit into the receive buffer
_KEPT_BYTES_MAX = 2 << 20
_SMALL_BYTES = 64 << 10
#: part of the lifetime of a session after which this broker authenticates again
_SESSION_PART = 0.85
_SASL_AUTHENTICATE_VERSION = 2

_receive = bytearray(_RECEIVE_BYTES)
_receive_view = memoryview(_receive)


class PeerUnreachable(OttlaError):
    """A broker cannot be reached: the connection cannot be opened, was lost, or a reply did not arrive in time."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        #: no process listens at the address
        self.refused = refused


class AsyncBrokerConnection(asyncio.BufferedProtocol):
    """One connection to one broker."""

    __slots__ = (
        "_filled", "_frame", "_frame_view", "_kept", "_leftover", "_loop", "_reason", "_transport", "_waiting",
        "endpoint", "lost",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: Endpoint) -> None:
        self._loop = loop
        self.endpoint = endpoint
        #: done when the connection is closed, by either side
        self.lost: asyncio.Future[None] = loop.create_future()
        self._reason = "the connection was closed"
        self._transport: asyncio.Transport | None = None
        #: correlation id and future of each request without a reply
        self._waiting: deque[tuple[bytes, asyncio.Future[memoryview]]] = deque()
        self._leftover = b""  # the beginning of a reply, less than its size prefix
        self._frame: FrameBuffer | None = None  # an incomplete reply with its size
        self._frame_view: memoryview | None = None
        self._filled = 0
        #: memory of an earlier reply; used again when no view refers to it
        self._kept: bytearray | None = None

    @property
    def is_lost(self) -> bool:
        """Return whether the connection is closed, also if ``connection_lost`` has not been called yet."""
        return self.lost.done() or (self._transport is not None and self._transport.is_closing())

    @property
    def in_flight(self) -> int:
        """Return the number of requests without a reply."""
        return len(self._waiting)

    def send(self, frame: Sequence[bytes | memoryview]) -> asyncio.Future[memoryview]:
        """Send a request: header and body without the size. The first part contains the correlation id.

        The future gets the reply without the size, or PeerUnreachable if the connection is lost first.
        """
        future: asyncio.Future[memoryview] = self._loop.create_future()
        transport = self._transport
        if transport is None or self.lost.done():
            self._fail(future)
            return future
        self._waiting.append((bytes(frame[0][4:8]), future))
        transport.write(b"".join((SIZE.pack(sum(map(len, frame))), *frame)))
        return future

    def close(self) -> None:
        """Close the connection. Requests without a reply fail with PeerUnreachable."""
        self._lose("this broker closed the connection")

    # -- called by the event loop -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.lost.done():  # closed while the connection was opened
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"the connection was lost ({exc})" if exc is not None else "the broker closed the connection")

    def eof_received(self) -> bool:
        # At once, because ``connection_lost`` comes some iterations of the loop later.
        self._lose("the broker closed the connection")
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame_view is not None:
            return self._frame_view[self._filled :]
        leftover = self._leftover
        if leftover:
            _receive[: len(leftover)] = leftover
            return _receive_view[len(leftover) :]
        return _receive_view

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame_view is not None:
            self._filled += nbytes
            if self._filled == len(self._frame_view):
                view, self._frame, self._frame_view = self._frame_view, None, None
                self._complete(view[4:])
            return
        end = nbytes + len(self._leftover)
        self._leftover = b""
        position = 0
        while end - position >= 4:
            try:
                size = reply_size(_receive, position, REPLY_BYTES_MAX)
            except WireError as error:
                self._lose(str(error))
                return
            following = position + 4 + size
            if following > end:
                self._begin_frame(position, end, size + 4)
                return
            self._complete(memoryview(bytes(_receive_view[position + 4 : following])))
            position = following
        if position < end:
            self._leftover = bytes(_receive_view[position:end])

    def _begin_frame(self, position: int, end: int, total: int) -> None:
        """Allocate memory for an incomplete reply, into which its remaining bytes are received."""
        if total > _KEPT_BYTES_MAX:
            # Pages of anonymous memory cost nothing until they are written.
            frame: FrameBuffer = mmap.mmap(-1, total)
        elif self._kept is not None and len(self._kept) >= total and is_free(self._kept):
            frame = self._kept
        else:
            # Replies differ a little in size: a power of two fits the next one, too.
            frame = self._kept = bytearray(1 << max(total - 1, _SMALL_BYTES - 1).bit_length())
        self._frame = frame
        self._frame_view = memoryview(frame)[:total]
        self._filled = end - position
        self._frame_view[: self._filled] = _receive_view[position:end]

    def _complete(self, reply: memoryview) -> None:
        if not self._waiting or self._waiting[0][0] != reply[:4]:
            self._lose("a reply belongs to no request")
            return
        _, future = self._waiting.popleft()
        if not future.done():
            future.set_result(reply)

    def _lose(self, reason: str) -> None:
        if self.lost.done():
            return
        self._reason = reason
        self.lost.set_result(None)
        if self._transport is not None:
            self._transport.abort()
        self._frame = self._frame_view = self._kept = None
        while self._waiting:
            self._fail(self._waiting.popleft()[1])

    def _fail(self, future: asyncio.Future[memoryview]) -> None:
        if not future.done():
            future.set_exception(PeerUnreachable(f"{self.endpoint}: {self._reason}"))
            future.exception()  # asyncio logs exceptions that are never retrieved


class Login(Protocol):
    """The client's side of a login, see `broker/access/peer_logins.py`. Both methods raise AuthenticationFailed."""

    async def first(self) -> bytes: ...
    async def answer(self, challenge: bytes) -> bytes | None: ...


class PeerSecurity(NamedTuple):
    """How this broker connects to others; the defaults are a plain connection."""

    #: returns the current TLS context
    tls: Callable[[], ssl.SSLContext] | None = None
    mechanism: str = ""
    #: begins a login with that mechanism to a broker
    log_in: Callable[[Endpoint], Login] | None = None


PLAIN = PeerSecurity()


class BrokerClients:
    """The connections of this broker to others: those that callers own, and one shared connection per endpoint."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, network: Network, *, client_id: str, security: PeerSecurity = PLAIN
    ) -> None:
        self._loop = loop
        self._network = network
        self._security = security
        self._requests = RequestWriter(client_id)
        #: tasks that open the shared connections, by endpoint; each stays until its connection is lost
        self._shared: dict[Endpoint, asyncio.Task[AsyncBrokerConnection]] = {}
        #: all open connections, in the order in which they were opened
        self._open: dict[AsyncBrokerConnection, None] = {}
        #: tasks that authenticate again, by connection
        self._logins: dict[AsyncBrokerConnection, asyncio.Task[None]] = {}
        #: when a connection to each endpoint was last opened
        self.opened_at: dict[Endpoint, float] = {}
        self._is_closed = False

    async def open(self, endpoint: Endpoint, *, timeout_s: float = CONNECT_TIMEOUT_S) -> AsyncBrokerConnection:
        """Return a new connection that belongs to the caller. Raise PeerUnreachable if it cannot be opened."""
        connection = AsyncBrokerConnection(self._loop, endpoint)
        self._open[connection] = None
        connection.lost.add_done_callback(partial(self._forget, connection))
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect(endpoint, connection)
                if self._security.log_in is not None:
                    session_s = await self._log_in(connection, self._security.log_in)
                    self._log_in_later(connection, session_s)
        except TimeoutError:
            connection.close()
            raise PeerUnreachable(f"{endpoint} did not accept a connection within {timeout_s:g} s") from None
        except (ssl.SSLError, AuthenticationFailed) as error:
            connection.close()
            raise PeerUnreachable(f"{endpoint} refused this broker, or cannot be trusted: {error}") from None
        except MALFORMED as error:
            connection.close()
            raise PeerUnreachable(f"{endpoint} sent a malformed reply to the login: {error}") from None
        except OSError as error:
            connection.close()
            raise PeerUnreachable(
                f"{endpoint}: {error.strerror or error}", refused=isinstance(error, ConnectionRefusedError)
            ) from None
        except BaseException:  # includes the cancellation
            connection.close()
            raise
        if self._is_closed:
            connection.close()
        self.opened_at[endpoint] = self._loop.time()
        return connection

    async def _connect(self, endpoint: Endpoint, connection: AsyncBrokerConnection) -> None:
        """Open the socket, and complete the TLS handshake. Raise OSError, which includes SSLError."""
        if self._security.tls is None:
            await self._network.connect(endpoint, lambda: connection)
            return
        shaken: asyncio.Future[None] = self._loop.create_future()

        def done(layer: TlsLayer, error: ssl.SSLError | None) -> None:
            if not shaken.done():
                shaken.set_result(None) if error is None else shaken.set_exception(error)

        layer = TlsLayer(
            connection, self._security.tls(), server_name=endpoint.host, call_soon=self._loop.call_soon,
            handshake_done=done,
        )  # fmt: skip
        await self._network.connect(endpoint, lambda: layer)
        await shaken

    async def _log_in(self, connection: AsyncBrokerConnection, begin: Callable[[Endpoint], Login]) -> float:
        """Authenticate this broker. Return the lifetime of the session in seconds, 0 if it does not end.

        Raise AuthenticationFailed.
        """
        login = begin(connection.endpoint)
        steps = log_in(self._security.mechanism, _SASL_AUTHENTICATE_VERSION)
        result: Any = None
        while True:
            try:
                step = steps.send(result)
            except StopIteration as done:
                return float(done.value)
            if isinstance(step, Ask):
                _, frame = self._requests.frame(step.request, step.version)
                result = await connection.send(frame)
            else:
                result = await (login.first() if step.challenge is None else login.answer(step.challenge))

    def _log_in_later(self, connection: AsyncBrokerConnection, session_s: float) -> None:
        """Authenticate again before the session ends (KIP-368). Other requests continue meanwhile."""
        if session_s > 0 and not connection.is_lost:
            timer = self._loop.call_later(session_s * _SESSION_PART, self._log_in_again, connection, session_s)
            connection.lost.add_done_callback(lambda _: timer.cancel())

    def _log_in_again(self, connection: AsyncBrokerConnection, session_s: float) -> None:
        if not connection.is_lost and not self._is_closed:
            self._logins[connection] = start_task(
                self._renew_session(connection, session_s), f"authenticate again to {connection.endpoint}"
            )

    async def _renew_session(self, connection: AsyncBrokerConnection, session_s: float) -> None:
        """Authenticate again. If that fails, close the connection: the reason is reported when it is opened again."""
        assert self._security.log_in is not None
        try:
            async with asyncio.timeout(max(session_s * (1 - _SESSION_PART), CONNECT_TIMEOUT_S)):
                session_s = await self._log_in(connection, self._security.log_in)
        except (AuthenticationFailed, PeerUnreachable, TimeoutError, *MALFORMED) as error:
            connection._lose(f"this broker could not authenticate again ({error})")
            return
        except BaseException:
            connection.close()
            raise
        finally:
            self._logins.pop(connection, None)
        self._log_in_later(connection, session_s)

    async def ask(
        self, endpoint: Endpoint, request: Message, version: int, *, timeout_s: float = ASK_TIMEOUT_S
    ) -> Message:
        """Send a request over the shared connection to ``endpoint``, which is opened if necessary. Return the reply.

        Raise PeerUnreachable if the broker cannot be reached. The request may have been handled then, unless
        ``refused`` is set. A reply that does not arrive in time, or is malformed, closes the shared connection.
        """
        sent, frame = self._requests.frame(request, version)
        connection: AsyncBrokerConnection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._shared_connection(endpoint)
                reply = await connection.send(frame)
        except TimeoutError:
            if connection is not None:
                connection.close()
            raise PeerUnreachable(f"{endpoint} did not answer within {timeout_s:g} s") from None
        try:
            message: Message = decode_reply(reply, sent)
        except MALFORMED as error:
            connection.close()
            raise PeerUnreachable(f"{endpoint} sent a malformed reply: {error}") from None
        return message

    def close(self) -> None:
        """Close all connections and open no further one."""
        self._is_closed = True
        for task in list(self._shared.values()):
            task.cancel()
        for login in list(self._logins.values()):
            login.cancel()
        for connection in list(self._open):
            connection.close()

    async def _shared_connection(self, endpoint: Endpoint) -> AsyncBrokerConnection:
        task = self._shared.get(endpoint)
        if task is None or _has_ended(task):
            if self._is_closed:
                raise PeerUnreachable(f"{endpoint}: this broker is stopping")
            task = start_task(self.open(endpoint), f"connect to {endpoint}", expected=(PeerUnreachable,))
            self._shared[endpoint] = task
            task.add_done_callback(partial(self._shared_opened, endpoint))
        try:
            # Another caller may wait for the same connection, so the cancellation of this one must not end the task.
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise PeerUnreachable(f"{endpoint}: this broker is stopping") from None
            raise

    def _shared_opened(self, endpoint: Endpoint, task: asyncio.Task[AsyncBrokerConnection]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._forget_shared(endpoint, task)
        else:
            task.result().lost.add_done_callback(lambda _: self._forget_shared(endpoint, task))

    def _forget_shared(self, endpoint: Endpoint, task: asyncio.Task[AsyncBrokerConnection]) -> None:
        if self._shared.get(endpoint) is task:
            del self._shared[endpoint]

    def _forget(self, connection: AsyncBrokerConnection, _: asyncio.Future[None]) -> None:
        self._open.pop(connection, None)


def _has_ended(task: asyncio.Task[AsyncBrokerConnection]) -> bool:
    """Return whether a shared connection could not be opened or was lost; the callback that removes it may be late."""
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().lost.done())
