"""The connection to ZooKeeper: kazoo connects, keeps the session alive and connects again. Its thread ends here.

kazoo runs one thread per connection. This module lets that thread do two things only: send the queued requests, and
put what it receives into one queue, in the order in which the server sent it. The event loop is woken once for many
messages and calls ``receive`` with each of them:

    Connected       a connection was opened; its number goes into every request, so that none is sent on another one
    Event           a node below the watched path changed
    Answer          the answer of a request
    Lost            the connection was lost; no message of it follows
    Expired         the server has ended the session; a new one follows

The order matters: ZooKeeper sends an event before the first answer that shows the change. kazoo itself gives events
and answers to two threads, which may swap them, forgets watches when a connection is lost, and queues requests while it
is not connected. None of these parts is used. The parts that are used are internals of kazoo, so its version is pinned.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import Close, Connect, int_struct, read_string, reply_header_struct
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry

from ottla.broker.metadata.zookeeper.messages import Answer, Call, Connected, Event, Expired, Lost, Message
from ottla.broker.metadata.zookeeper.wire import MALFORMED_ANSWER
from ottla.security.errors import SecurityConfigError

log = logging.getLogger(__name__)
#: kazoo's own lines; the brokers log the changes of a session themselves
_kazoo_log = logging.getLogger(f"{__name__}.kazoo")
_kazoo_log.setLevel(logging.CRITICAL)

#: events that are received in one iteration of the event loop; an answer, which may hold many nodes, counts as several
_EVENTS_PER_ITERATION = 500
_EVENTS_PER_ANSWER = 50
#: bytes that are sent in one write, if one request has not more
_WRITE_BYTES_MAX = 1 << 20
_READ_BYTES_MAX = 1 << 18
#: bytes of the largest answer: a read of many nodes
_FRAME_BYTES_MAX = 1 << 29
#: in the frame of an event: behind the header, its type and the state of the session
_EVENT_PATH_POSITION = reply_header_struct.size + 2 * int_struct.size
#: the first and the longest time between two attempts to connect
_RETRY_S, _RETRY_S_MAX = 0.05, 1.0
#: part of the session timeout for an attempt to open a connection, so that several servers can be tried in time
_CONNECT_PART = 1 / 6
_CONNECT_S_MIN = 0.5
#: part of the session timeout that ``close`` waits for the server to confirm the end of the session
_CLOSE_PART = 1 / 3
_CLOSE_AGAIN_S = 0.2
_SHUTDOWN_BOTH = 2  # socket.SHUT_RDWR


class Connection:
    """Sends requests to one of several servers and receives messages. All methods are called on the event loop."""

    def __init__(
        self,
        servers: tuple[str, ...],
        session_timeout_s: float,
        receive: Callable[[list[Message]], None],
        *,
        digest: str = "",
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """``tls`` returns the context for a new connection; None: connections do not use TLS."""
        self._loop = asyncio.get_running_loop()
        self._receive = receive
        self._session_timeout_s = session_timeout_s
        #: messages of the thread, in their order
        self._inbox: deque[Message] = deque()
        #: whether the event loop will look into the inbox
        self._woken = False
        self._client = _Client(",".join(servers), session_timeout_s, self._deliver, digest, tls)

    @property
    def failure(self) -> str:
        """Return why the last handshake of TLS failed; empty if it did not."""
        return str(self._client.handler.failure)

    def start(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        self._client.start_async()

    def send(self, call: Call) -> None:
        """Send a request. It has no answer if its connection is lost, and is not sent if that happened before."""
        self._client.submit(call)

    def drop(self) -> None:
        """Close the connection. The thread notices at once and connects again."""
        self._client.drop_connection()

    async def close(self) -> None:
        """End the session, which deletes its ephemeral nodes, and the thread."""
        stopping = self._loop.run_in_executor(None, self._client.stop)
        await asyncio.wait([stopping], timeout=self._session_timeout_s * _CLOSE_PART)
        while not stopping.done():
            # The server does not answer; the session will expire. The thread may open one more connection.
            self._client.drop_connection()
            await asyncio.wait([stopping], timeout=_CLOSE_AGAIN_S)
        await stopping
        self._client.close()

    def _deliver(self, message: Message) -> None:
        """Called by the thread: queue a message for the event loop."""
        self._inbox.append(message)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._empty_inbox)

    def _empty_inbox(self) -> None:
        # The flag first: a message that is appended from now on wakes the loop again.
        self._woken = False
        inbox = self._inbox
        messages: list[Message] = []
        size = 0
        while inbox and size < _EVENTS_PER_ITERATION:
            message = inbox.popleft()
            messages.append(message)
            size += _EVENTS_PER_ANSWER if isinstance(message, Answer) else 1
        if inbox and not self._woken:
            self._woken = True
            self._loop.call_soon(self._empty_inbox)
        self._receive(messages)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads without the two that call back, because nothing is called back."""

    def __init__(self, connect_s_max: float, tls: Callable[[], ssl.SSLContext] | None) -> None:
        super().__init__()
        self._connect_s_max = connect_s_max
        self._tls = tls
        #: why the last handshake of TLS failed
        self.failure = ""

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def create_connection(self, *args: Any, timeout: float, hostname: str | None = None, **kwargs: Any) -> Any:
        limit_s = min(timeout, self._connect_s_max)
        plain = super().create_connection(*args, timeout=limit_s, hostname=hostname, **kwargs)
        return plain if self._tls is None else self._encrypt(plain, hostname, limit_s, self._tls)

    def _encrypt(
        self, plain: Any, host: str | None, limit_s: float, tls: Callable[[], ssl.SSLContext]
    ) -> ssl.SSLSocket:
        """Return the connection with TLS. Not kazoo's, which by default does not check the name of the host."""
        plain.settimeout(limit_s)
        try:
            encrypted = tls().wrap_socket(plain, server_hostname=host)
        except (OSError, SecurityConfigError) as error:
            plain.close()
            reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)
            if reason != self.failure:
                log.warning("no TLS connection to ZooKeeper, trying again server=%s error=%s", host, reason)
            self.failure = reason
            raise ConnectionDropped(f"no TLS connection: {reason}") from None
        self.failure = ""
        return encrypted


class _Client(KazooClient):  # type: ignore[misc]
    """A kazoo client whose requests, answers and events do not pass through kazoo's own queues."""

    def __init__(
        self,
        servers: str,
        session_timeout_s: float,
        deliver: Callable[[Message], None],
        digest: str,
        tls: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        handler = _Handler(max(session_timeout_s * _CONNECT_PART, _CONNECT_S_MIN), tls)
        retry = {"max_tries": -1, "delay": _RETRY_S, "max_jitter": 0.5, "max_delay": _RETRY_S_MAX}
        super().__init__(
            hosts=servers, timeout=session_timeout_s, handler=handler, logger=_kazoo_log,
            connection_retry=KazooRetry(sleep_func=handler.sleep_func, **retry),
            # kazoo sends it on each new connection before any request of the queue.
            auth_data=[("digest", digest)] if digest else None,
        )  # fmt: skip
        self.deliver = deliver
        #: number of the last connection
        self.connection_number = 0
        #: session timeout of the last connection
        self.granted_timeout_ms = 0
        #: whether the thread will look into the queue of requests
        self.woken = False
        self._connection = _ConnectionHandler(self, self._conn_retry.copy(), logger=self.logger)

    def submit(self, call: Call) -> None:
        self._queue.append((call.request, call))
        self.wake_thread()

    def wake_thread(self) -> None:
        if not self.woken:
            self.woken = True
            socket = self._connection._write_sock
            if socket is not None:  # None: the client is closed
                with suppress(OSError):
                    socket.send(b"\0")

    def drop_connection(self) -> None:
        socket = self._connection._socket
        if socket is not None:
            with suppress(OSError):
                # That of the base class: the shutdown of an SSLSocket ends the encryption first, and the thread could
                # write a request in the clear before the connection is closed.
                super(type(socket), socket).shutdown(_SHUTDOWN_BOTH)

    def _session_callback(self, state: str) -> None:
        if state != self._state:
            if state in (KeeperState.CONNECTED, KeeperState.CONNECTED_RO):
                self.connection_number += 1
                self.deliver(Connected(self.connection_number, self._session_id, self.granted_timeout_ms / 1000))
            else:
                self.deliver(Expired() if state == KeeperState.EXPIRED_SESSION else Lost())
        super()._session_callback(state)

    def _reset(self) -> None:
        # Keep last_zxid: a server that has not applied this change refuses the next session, so that no read goes back.
        last_zxid = getattr(self, "last_zxid", 0)
        super()._reset()
        self.last_zxid = last_zxid


class _ConnectionHandler(ConnectionHandler):  # type: ignore[misc]
    """The thread: sends queued requests in one write, and delivers answers and events in the order of their arrival."""

    #: of the last request of this connection
    _xid: int

    def _send_request(self, read_timeout: float, connect_timeout: float) -> None:
        client = self.client
        xid = self._xid
        self._read_sock.recv(4096)
        # The flag first: a request that is queued from now on wakes the thread again.
        client.woken = False
        queue, frames = client._queue, bytearray()
        while queue and len(frames) < _WRITE_BYTES_MAX:
            request, call = queue.popleft()
            if call is not None and call.connection != client.connection_number:
                continue  # its connection was lost, which the event loop learns by a message
            xid = xid % 0x7FFFFFFF + 1
            opcode, payload = (request.type, b"") if call is None else (request.opcode, request.payload)
            frames += int_struct.pack(8 + len(payload)) + int_struct.pack(xid) + int_struct.pack(opcode) + payload
            client._pending.append((request, call, xid))
        self._xid = xid
        if queue:
            client.wake_thread()
        if frames:
            self._write(frames, connect_timeout)

    def _connect(self, *args: Any) -> Any:
        self._received = bytearray()
        return super()._connect(*args)

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect):
            self.client.granted_timeout_ms = answer[0].time_out
        return answer

    def _read_socket(self, read_timeout: float) -> Any:
        # Read many frames at once: kazoo would wait for each half of a frame with a selector of its own.
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            is_more = True
            while is_more:
                chunk = self._socket.recv(_READ_BYTES_MAX)
                if not chunk:
                    raise ConnectionDropped("closed by the server")
                self._received += chunk
                # Bytes that are decrypted already do not wake the thread.
                is_more = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0
        received, start = self._received, 0
        response = None
        while len(received) >= start + int_struct.size:
            (size_bytes,) = int_struct.unpack_from(received, start)
            end = start + int_struct.size + size_bytes
            if not reply_header_struct.size <= size_bytes <= _FRAME_BYTES_MAX:
                raise ConnectionDropped(f"a frame of {size_bytes} bytes")
            if len(received) < end:
                break
            response = self._process_frame(bytes(received[start + int_struct.size : end]))
            start = end
        del received[:start]
        return response

    def _process_frame(self, frame: bytes) -> Any:
        xid, zxid, error = reply_header_struct.unpack_from(frame)
        if xid == PING_XID:
            self.ping_outstanding.clear()
            return None
        try:
            if xid == WATCH_XID:
                path, _ = read_string(frame, _EVENT_PATH_POSITION)
                self.client.deliver(Event(zxid, path))
                return None
            return self._process_answer(xid, zxid, error, frame)
        except MALFORMED_ANSWER as problem:
            log.warning("ZooKeeper sent a malformed message: %s", problem)
            raise ConnectionDropped("malformed message") from problem

    def _process_answer(self, xid: int, zxid: int, error: int, frame: bytes) -> Any:
        client = self.client
        if not client._pending or client._pending[0][2] != xid:
            raise ConnectionDropped(f"an answer to no request: {xid}")
        request, call, _ = client._pending.popleft()
        if zxid > 0:
            client.last_zxid = zxid
        if isinstance(request, Close):
            return CLOSE_RESPONSE
        result = None if error else request.decode(frame, reply_header_struct.size)
        client.deliver(Answer(call, zxid, error, result))
        return None
