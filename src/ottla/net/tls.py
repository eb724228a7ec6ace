"""TLS between a socket and a connection: decrypts what arrives and encrypts what is sent, with Python's SSLObject.

    socket ──► TlsLayer.buffer_updated ──► SSLObject ──► protocol.buffer_updated   (Connection, AsyncBrokerConnection)
    socket ◄── raw transport ◄── SSLObject ◄── TlsTransport.write ◄── protocol

The event loop's own TLS is not used. It counts a client only after its handshake, needs ten times the memory for each
connection, and does not let the certificate change while the broker runs. docs/reference/performance.md has figures.

Memory. One buffer for encrypted bytes serves the whole process, as the receive buffer of `connection.py` does. An
SSLObject keeps the size of the largest piece that it was ever given, so it gets small pieces. While the protocol does
not read, at most one buffer of encrypted bytes is kept, and nothing is decrypted.

Small records. librdkafka writes each message by itself, as two records. The event loop would read a few bytes at a
time, which takes more than their decryption. While a frame is incomplete, the low watermark of the socket (SO_RCVLOWAT)
makes the loop wait for the rest of it.

The loop. To encrypt a megabyte takes about 0.7 ms. A connection that sends a large reply lets others in after
``_TURN_BYTES``.

Nothing may bypass the SSLObject: `TlsConnection` replaces the two functions of `Connection` that write to the socket.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from ottla.env.log_limit import LogLimit
from ottla.net.connection import Connection, Handler, Region
from ottla.net.network import SO_RCVLOWAT, SOL_SOCKET

if TYPE_CHECKING:
    from ottla.net.server import Server

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

_RECEIVE_BYTES = 256 << 10
#: bytes of a record before they are encrypted
_RECORD_BYTES_MAX = 16 << 10
#: encrypted bytes that an SSLObject gets at a time: two records
_FEED_BYTES = 33 << 10
#: bytes that are encrypted at a time
_WRITE_BYTES = 64 << 10
#: bytes of a reply that a connection encrypts before other connections have their turn
_TURN_BYTES = 256 << 10
#: limits of the low watermark of a socket; one below the first limit is not worth the call that sets it
_LOW_WATERMARK_MIN = 2 << 10
_LOW_WATERMARK_MAX = 32 << 10

_receive = bytearray(_RECEIVE_BYTES)
_receive_view = memoryview(_receive)


class Inner(Protocol):
    """The protocol behind the TLS layer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def get_buffer(self, sizehint: int) -> Any: ...
    def buffer_updated(self, nbytes: int) -> None: ...
    def eof_received(self) -> bool | None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...


class TlsLayer(asyncio.BufferedProtocol):
    """The protocol of a socket whose bytes are encrypted."""

    __slots__ = (
        "_call_soon", "_context", "_failure", "_handshake_done", "_has_begun", "_held", "_incoming", "_inner",
        "_is_ended", "_is_open", "_is_paused", "_outgoing", "_pending", "_raw", "_read", "_server_name", "_transport",
        "_undecrypted_bytes_max", "handshake_begins", "object", "received",
    )  # fmt: skip

    def __init__(
        self,
        inner: Inner,
        context: ssl.SSLContext,
        *,
        server_name: str | None,
        call_soon: Callable[[Callable[[], None]], object],
        handshake_done: Callable[[TlsLayer, ssl.SSLError | None], None],
    ) -> None:
        """``server_name`` is the host that a client connects to; None for the server's side.

        ``handshake_done`` is called once, with the error if the handshake failed. It may abort the connection.
        """
        self._inner = inner
        self._call_soon = call_soon
        self._handshake_done = handshake_done
        #: called before the handshake, which a server begins with the first bytes of the client
        self.handshake_begins: Callable[[TlsLayer], None] = _ignore
        #: called when the protocol has got all bytes up to an incomplete record, with the largest possible size of that
        #: record's bytes that have arrived
        self.received: Callable[[int], None] = _keep_low_watermark
        self._context, self._server_name = context, server_name
        # Made for the handshake: a connection that sends nothing has no state of TLS, which is 10 KB.
        self._incoming: ssl.MemoryBIO = None  # type: ignore[assignment]
        self._outgoing: ssl.MemoryBIO = None  # type: ignore[assignment]
        self.object: ssl.SSLObject = None  # type: ignore[assignment]
        self._read: Any = None  # functions of the SSLObject
        self._pending: Any = None
        #: bytes that the SSLObject got, less those that it decrypted; 0 when it has no incomplete record
        self._undecrypted_bytes_max = 0
        #: the end of the connection, or an invalid record, that follows the bytes of a protocol that does not read
        self._failure: ssl.SSLError | None = None
        self._has_begun = False
        self._raw: asyncio.Transport = None  # type: ignore[assignment]
        self._transport = TlsTransport(self)
        self._is_open = False  # the handshake is complete
        self._is_paused = False
        self._is_ended = False  # the peer sends nothing more, or the connection is closed
        self._held = b""  # encrypted bytes that arrived while the protocol does not read

    # -- the socket -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._inner.connection_made(self._transport)
        if self._server_name is not None and not self._raw.is_closing():
            self._begin_handshake()
            self._shake_hands()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_ended = True
        self._held = b""
        self._inner.connection_lost(exc)
        if not self._is_open:
            self._report(ssl.SSLError("the connection was lost during the handshake"))
        # The layer and its transport refer to each other: the collector would free up to 50 KB of OpenSSL much later.
        self.object = self._incoming = self._outgoing = None  # type: ignore[assignment]
        self._read = self._pending = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return _receive_view

    def buffer_updated(self, nbytes: int) -> None:
        self._receive(_receive_view, nbytes)
        if self._is_open and not self._is_paused and not self._is_ended and not self._raw.is_closing():
            self.received(self._undecrypted_bytes_max)

    def eof_received(self) -> bool:
        if self._is_ended:
            return True
        self._is_ended = True
        if not self._is_open:
            self._raw.abort()
            return True
        return bool(self._inner.eof_received())

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    # -- receive --------------------------------------------------------------------------------------------------

    def _receive(self, view: memoryview, end: int) -> None:
        position = 0
        while position < end and not self._is_ended:
            if self._is_paused:
                self._held = bytes(view[position:end])
                return
            if not self._has_begun:
                self._begin_handshake()
            following = min(position + _FEED_BYTES, end)
            self._incoming.write(view[position:following])
            self._undecrypted_bytes_max += following - position
            position = following
            if not self._is_open:
                self._shake_hands()
            if self._is_open:
                self._decrypt()

    def _begin_handshake(self) -> None:
        self._has_begun = True
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = self._context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._server_name is None, server_hostname=self._server_name
        )
        # A Python function of SSLObject does no more than to call the same one of its inner object, and takes 0.1 µs.
        reader = getattr(self.object, "_sslobj", self.object)
        self._read, self._pending = reader.read, reader.pending
        self.handshake_begins(self)

    def _shake_hands(self) -> None:
        try:
            self.object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            self._is_ended = True
            self._flush()  # an alert tells the peer the reason
            self._report(error)
            self._raw.close()
            return
        self._is_open = True
        self._flush()
        self._report(None)

    def end_handshake(self, reason: str) -> None:
        """Close the connection of a client whose handshake is not complete."""
        self.abort()
        self._report(ssl.SSLError(reason))

    def _report(self, error: ssl.SSLError | None) -> None:
        done, self._handshake_done = self._handshake_done, _reported
        done(self, error)

    def _decrypt(self) -> None:
        """Decrypt what the SSLObject got, up to an incomplete record, and hand it to the protocol.

        Records can be small: librdkafka sends two for each message. Therefore the protocol is called when its buffer is
        full or everything is decrypted, not for each record. And the SSLObject is read only while it has bytes, because
        the exception by which it asks for more takes longer than the decryption of a small record.
        """
        inner, incoming, pending, read = self._inner, self._incoming, self._pending, self._read
        error, self._failure = self._failure, None
        count, is_full = 0, error is None
        while is_full and not self._is_paused and not self._is_ended:
            buffer: Any = inner.get_buffer(-1)
            size, filled = len(buffer), 0
            try:
                while filled < size and (incoming.pending or pending()):
                    count = read(_RECORD_BYTES_MAX, buffer[filled:])
                    if not count:
                        raise ssl.SSLZeroReturnError
                    filled += count
            except ssl.SSLError as raised:
                error = raised
            is_full = filled == size
            self._undecrypted_bytes_max -= filled
            if count and not is_full and error is None:  # a record was decrypted, and no byte follows it
                self._undecrypted_bytes_max = 0
            if filled:
                inner.buffer_updated(filled)
        if error is not None and not isinstance(error, ssl.SSLWantReadError):
            if self._is_paused:
                self._failure = error  # the protocol first handles the bytes that it has
            else:
                self._end_after(error)
        if self._outgoing.pending and not self._raw.is_closing():
            self._flush()  # answers of TLS itself, for example to an update of the keys

    def _end_after(self, error: ssl.SSLError) -> None:
        """End the connection: the peer sends nothing more, or it sent bytes that cannot be decrypted."""
        if isinstance(error, ssl.SSLZeroReturnError):
            self._is_ended = True
            self._inner.eof_received()
        else:
            log.info("connection closed, its bytes cannot be decrypted reason=%s", _reason_of(error))
            self.abort()

    # -- what the transport does ----------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        if self._raw.is_closing():
            return
        view = memoryview(data)
        for start in range(0, len(view), _WRITE_BYTES):
            self.object.write(view[start : start + _WRITE_BYTES])
            self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def pause_reading(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            # Not now: the protocol may be in the middle of the bytes that it got last.
            self._call_soon(self._go_on)

    def _go_on(self) -> None:
        """Decrypt what was held back, then read from the socket again."""
        if self._is_paused or self._is_ended or self._raw.is_closing():
            return
        if self._is_open:
            self._decrypt()
        held, self._held = self._held, b""
        self._receive(memoryview(held), len(held))
        if not self._is_paused and not self._raw.is_closing():
            self._raw.resume_reading()
            if self._is_open and not self._is_ended:
                self.received(self._undecrypted_bytes_max)

    def close(self) -> None:
        """Tell the peer that nothing follows, and close the socket when everything is sent."""
        if self._is_open and not self._raw.is_closing():
            try:
                self.object.unwrap()
            except ssl.SSLError:
                pass  # the peer has not closed its side yet, which it need not do
            self._flush()
        self._is_ended = True
        self._raw.close()

    def abort(self) -> None:
        self._is_ended = True
        self._raw.abort()

    @property
    def raw(self) -> asyncio.Transport:
        return self._raw

    @property
    def is_open(self) -> bool:
        """Return whether the handshake is complete."""
        return self._is_open


def _reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's word for an error, or the text of an error that does not come from OpenSSL."""
    return getattr(error, "reason", None) or str(error)


def _reported(layer: TlsLayer, error: ssl.SSLError | None) -> None:
    """The outcome of a handshake was reported before."""


def _ignore(layer: TlsLayer) -> None:
    """Do nothing: without limits, handshakes are not counted."""


def _keep_low_watermark(undecrypted_bytes_max: int) -> None:
    """The protocol is called for every byte that arrives."""


class TlsTransport(asyncio.Transport):
    """What the protocol behind a TLS layer writes to."""

    def __init__(self, layer: TlsLayer) -> None:
        self._layer = layer
        self.write = layer.write  # type: ignore[method-assign, assignment]

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "ssl_object":
            return self._layer.object
        return self._layer.raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._layer.raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._layer.raw.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._layer.raw.is_closing()

    def pause_reading(self) -> None:
        self._layer.pause_reading()

    def resume_reading(self) -> None:
        self._layer.resume_reading()

    def close(self) -> None:
        self._layer.close()

    def abort(self) -> None:
        self._layer.abort()


class TlsServer:
    """TLS of one listener.

    A handshake takes milliseconds, and up to 50 KB until its end. If too many are under way, the oldest one is ended:
    the clients that began them and say nothing more must not keep others out.
    """

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        *,
        handshakes_max: int,
        setup_s: float,
        ready: Callable[[Connection, ssl.SSLObject], None],
    ) -> None:
        """``context`` returns the current context: it changes with the certificate.

        ``ready`` is called after the handshake of each connection. It says who the client is, or aborts.
        """
        self._context = context
        self._handshakes_max = handshakes_max
        self._setup_s = setup_s
        self._ready = ready
        #: connections in their handshake, oldest first
        self._shaking: dict[TlsLayer, None] = {}
        self.failed = 0

    def factory(self, server: Server, handle: Handler, name: str) -> Callable[[], TlsLayer]:
        def make() -> TlsLayer:
            connection = TlsConnection(server, handle, name)
            layer = TlsLayer(
                connection, self._context(), server_name=None, call_soon=server.call_soon,
                handshake_done=partial(self._done, server, connection),
            )  # fmt: skip
            layer.handshake_begins = self._count
            layer.received = connection.set_low_watermark
            server.call_soon(partial(self._begin, server, connection))
            return layer

        return make

    def _begin(self, server: Server, connection: Connection) -> None:
        if connection in server.connections:  # else it was not admitted, or has ended already
            server.expect_setup(connection, self._setup_s)

    def _count(self, layer: TlsLayer) -> None:
        """A handshake begins."""
        self._shaking[layer] = None
        if len(self._shaking) > self._handshakes_max:
            next(iter(self._shaking)).end_handshake(f"there are more than {self._handshakes_max} handshakes")

    def _done(self, server: Server, connection: Connection, layer: TlsLayer, error: ssl.SSLError | None) -> None:
        self._shaking.pop(layer, None)
        if error is not None:
            self.failed += 1
            log.info("TLS handshake failed peer=%s reason=%s", connection.peer_host, _reason_of(error))
        else:
            self._ready(connection, layer.object)


class TlsConnection(Connection):
    """A connection of a client that uses TLS. It writes to its transport only, never to the socket."""

    __slots__ = ("_encrypted_bytes", "_is_socket_full", "_low_watermark")

    def __init__(self, server: Server, handle: Handler, listener: str = "") -> None:
        super().__init__(server, handle, listener)
        #: since others had their turn
        self._encrypted_bytes = 0
        self._is_socket_full = False
        #: bytes that the socket must have before the event loop reads it
        self._low_watermark = 1

    def set_low_watermark(self, undecrypted_bytes_max: int) -> None:
        """Let the event loop wait for the rest of an incomplete frame, up to ``_LOW_WATERMARK_MAX``.

        Bytes do not become fewer when they are encrypted. So at least as many bytes as are missing must still arrive,
        less those that have arrived in an incomplete record. The loop also reads when the client closes its side, and
        when the kernel has no room for so many bytes.
        """
        wanted = 1
        if self._frame is not None:
            missing = self._frame_bytes - self._filled - undecrypted_bytes_max
            if missing >= _LOW_WATERMARK_MIN:
                wanted = min(missing, _LOW_WATERMARK_MAX)
        if wanted < self._low_watermark or wanted >= 2 * self._low_watermark:  # else the present one does as well
            if self._socket is None:
                self._socket = self._server.network.direct_socket(self._socket_fd)
            self._socket.setsockopt(SOL_SOCKET, SO_RCVLOWAT, wanted)
            self._low_watermark = wanted

    def pause_writing(self) -> None:
        self._is_socket_full = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._is_socket_full = False
        self._encrypted_bytes = 0
        super().resume_writing()

    def _send_with_more(self, data: bytes) -> bytes:
        return data  # the transport sends it

    def _send_region(self, region: Region) -> bool:
        if self._encrypted_bytes >= _TURN_BYTES:
            self._let_others_in()
            return False
        self._encrypted_bytes += self._write_chunk(region, _WRITE_BYTES)
        return region.size_bytes == 0

    def _let_others_in(self) -> None:
        """Stop sending until the next iteration of the loop."""
        self._write_paused = True
        self._server.call_soon(self._send_more)

    def _send_more(self) -> None:
        if not self._is_socket_full and not self._closing:
            self.resume_writing()
