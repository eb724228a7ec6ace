"""The connection of one client: receives request frames, sends replies in the order of the requests.

This is the first of the hot modules. It is fast for these reasons, each of them measured:

* One receive buffer for the whole process. The event loop reads into it and calls ``buffer_updated`` at once, so two
  connections never use it at the same time. 5,000 clients therefore need one buffer, and a small frame is handled in
  it without a copy. Only an incomplete frame gets its own buffer, and its remaining bytes are received into that one.
* No task, no future and no object per field: one function handles frames synchronously, in a loop.
* Replies are grouped. A turn is one iteration of the event loop. At its end the broker writes its files once, and
  then sends the replies of each connection with one write.

Order. Each request gets a ``Slot`` in a queue when it arrives. Replies are sent from the head of the queue, up to the
first slot that is empty. A request that waits for records or for a sync leaves its slot empty and delays only later
requests of the same client.

Limits. A frame larger than the maximum closes the connection before memory is allocated for it. The connection is not
read while its client does not read its replies, has too many requests in flight, or has a request that later ones must
not overtake: bytes that were already received are held (at most one receive buffer) and reading is paused.
``peers.py`` notices when a client closes its connection meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Protocol, cast

from ottla.env.log_limit import LogLimit
from ottla.model.types import FrameBuffer
from ottla.net.network import MSG_MORE, DirectSocket

if TYPE_CHECKING:
    from ottla.net.server import Server

log = logging.getLogger(__name__)
log.addFilter(LogLimit())

RECEIVE_BYTES = 256 << 10
#: an incomplete frame up to this size gets a buffer of exactly its size
_SMALL_FRAME_BYTES = 64 << 10
#: one up to this size gets a buffer from a pool; the buffer of a larger one grows as its bytes arrive
_POOLED_BYTES = 2 << 20
_POOLED_BUFFERS = 8
#: so many bytes are handed to the transport of a full socket, which reports when there is room; the rest stays in
#: its file
_REGION_CHUNK_BYTES = 4 << 10

#: replies in memory that were not sent yet; a connection with more is not read, however few its requests are
_OWED_BYTES_MAX = 1 << 20
#: replies up to this size are not counted: the number of requests in flight bounds them
_SMALL_REPLY_BYTES = 1024

#: every request starts with its API key, its version and a correlation id
_REQUEST_BYTES_MIN = 8
#: the principal of a client that did not say who it is
ANONYMOUS = "User:ANONYMOUS"

_receive = bytearray(RECEIVE_BYTES)
_receive_view = memoryview(_receive)
_pool: list[FrameBuffer] = []
_unpack_size = Struct(">i").unpack_from


class Region(Protocol):
    """A range of bytes of a file that is sent unchanged."""

    position: int
    size_bytes: int

    @property
    def file(self) -> OpenFile: ...


class OpenFile(Protocol):
    fd: int


Part = bytes | Region
Handler = Callable[["Connection", FrameBuffer, memoryview, int, int], None]


class Slot:
    """The position of one reply in the queue of its connection."""

    __slots__ = ("api_key", "connection", "data", "parts", "started")

    def __init__(self, connection: Connection, api_key: int, started: float) -> None:
        self.connection = connection
        self.api_key = api_key
        self.started = started
        #: None until the reply is known
        self.data: bytes | None = None
        #: file regions and bytes that follow ``data``
        self.parts: list[Part] | None = None

    def fill(self, data: bytes, parts: list[Part] | None = None) -> None:
        """Set the reply. It is sent at the end of this turn, or after the replies before it."""
        self.parts = parts
        self.data = data
        connection = self.connection
        if parts is not None or len(data) > _SMALL_REPLY_BYTES:
            connection.owed_bytes += _in_memory(data, parts)
        if not connection.touched:
            connection.touch()


class Connection(asyncio.BufferedProtocol):
    """The protocol object of one accepted socket."""

    __slots__ = (
        "_closing", "_ending", "_filled", "_frame", "_frame_bytes", "_frame_view", "_handle", "_held",
        "_in_flight_max", "_leftover", "_muted", "_peer_closed", "_reading", "_replies", "_sending", "_server",
        "_socket", "_socket_fd", "_watched", "_write_paused", "cache", "client_id", "frame_bytes_max",
        "frame_bytes_min", "is_peer", "last_active", "listener", "local_address", "login", "number", "on_close",
        "owed_bytes", "peer_host", "principal", "software", "touched", "transport",
    )  # fmt: skip

    def __init__(self, server: Server, handle: Handler, listener: str = "") -> None:
        # Shared
        self._server = server
        self._handle = handle
        #: limit of requests without a reply; Kafka allows one, clients send five
        self._in_flight_max = server.in_flight_max
        #: sizes of frames that are accepted; smaller before the client is authenticated
        self.frame_bytes_max = server.request_bytes_max
        self.frame_bytes_min = _REQUEST_BYTES_MIN
        #: the name of the listener that accepted it
        self.listener = listener

        # Per connection
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._socket_fd = -1
        #: a socket object for the same descriptor; created for the first large reply
        self._socket: DirectSocket | None = None
        self.peer_host = ""
        #: name and version of the client library, if it has sent them in ApiVersions (KIP-511)
        self.software = ""
        #: the number of this connection in the order in which they were accepted
        self.number = 0
        #: the address that the client connected to; Metadata returns it if no listener is advertised
        self.local_address = ("", 0)
        self.last_active = 0.0
        #: who the client is
        self.principal = ANONYMOUS
        #: the client id of the last request that was counted for a quota
        self.client_id = ""
        #: whether the client is another broker
        self.is_peer = False
        #: belongs to the listener: the client's login, while it is not complete
        self.login: object = None
        #: belongs to the handler: what it remembers of this client's requests
        self.cache: object = None
        #: called when the client has closed its side of the connection: requests that are parked for it are answered
        self.on_close: dict[Callable[[], None], None] = {}

        # Intake
        self._leftover = b""  # an incomplete size prefix
        self._frame: FrameBuffer | None = None  # an incomplete frame
        self._frame_view: memoryview | None = None
        self._frame_bytes = 0
        self._filled = 0
        self._held = b""  # received and not handled, because reading is paused
        self._muted = 0
        self._reading = True
        self._ending = False  # close the connection when all replies are sent
        self._closing = False
        self._watched = False  # peers.py reports when the client closes its side
        self._peer_closed = False  # it has reported it

        # Replies
        self._replies: deque[Slot] = deque()
        #: bytes in memory of the replies in ``_replies`` that are not small
        self.owed_bytes = 0
        self._sending: deque[Part] = deque()
        self._write_paused = False
        self.touched = False

    # -- life -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport = cast(asyncio.Transport, transport)
        # The transport writes to the kernel at once and calls pause_writing as soon as the socket is full.
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        self._socket_fd = sock.fileno()
        self.local_address = transport.get_extra_info("sockname")[:2]
        self.peer_host = _plain_address(str((transport.get_extra_info("peername") or ("?",))[0]))
        if not self._server.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._server.forget(self)
        if self._watched:
            self._server.peers.remove(self, self._socket_fd)
        self._frame = self._frame_view = None
        if self._socket is not None:
            self._socket.detach()  # the transport closes the descriptor
        self._held = b""
        self._sending.clear()
        self._release_parked()
        self.on_close.clear()
        self._replies.clear()

    def close(self) -> None:
        """Read no more requests, and close the connection after the outstanding replies are sent."""
        if not self._ending and not self._closing:
            self._ending = True
            self.stop_intake()
            self.touch()

    def abort(self) -> None:
        """Close the connection now, without sending outstanding replies."""
        if not self._closing:
            self._closing = True
            self.transport.abort()

    def _maybe_end(self) -> None:
        if self._ending and not self._replies and not self._sending and not self._closing:
            self._closing = True
            self.transport.close()

    @property
    def closing(self) -> bool:
        return self._closing

    @property
    def reading(self) -> bool:
        return self._reading

    @property
    def in_flight(self) -> int:
        return len(self._replies)

    @property
    def sending(self) -> bool:
        """Whether the socket has not taken all replies yet."""
        return self._write_paused or bool(self._sending)

    # -- intake ---------------------------------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame_view
        if frame is not None:
            return frame[self._filled :]
        leftover = self._leftover
        if leftover:
            _receive[: len(leftover)] = leftover
            return _receive_view[len(leftover) :]
        return _receive_view

    def buffer_updated(self, nbytes: int) -> None:
        server = self._server
        if not server.in_turn:
            server.begin_turn()
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == len(self._frame_view):  # type: ignore[arg-type]
                self._frame_filled()
            return
        end = nbytes + len(self._leftover)
        self._leftover = b""
        self._intake(_receive, _receive_view, end)

    def eof_received(self) -> bool:
        # A client that closed its side may still read the outstanding replies.
        self.close()
        self._release_parked()
        return True

    def watch_peer(self) -> None:
        """Notice from now on when the client closes its side, although the connection is not read from.

        Called for a request that waits for other clients. When the client closes its side, or if it already has, the
        callbacks in ``on_close`` are called. They answer the request, so that the connection is read again up to its
        end.
        """
        if self._peer_closed:
            self._server.call_soon(self._release_parked)
        elif not self._watched and not self._closing:
            self._watched = True
            self._server.peers.add(self, self._socket_fd)

    def peer_closed(self, *, reads_nothing: bool) -> None:
        """The client closed its side; ``reads_nothing``: it will not read replies either."""
        self._peer_closed = True
        if reads_nothing:
            self.abort()
        elif not self._reading:
            self._release_parked()

    def _release_parked(self) -> None:
        for release in list(self.on_close):
            release()

    def _intake(self, buffer: FrameBuffer, view: memoryview, end: int) -> None:
        """Handle every complete frame in ``buffer[:end]``; keep the bytes behind the last one."""
        handle = self._handle
        frame_bytes_min, frame_bytes_max = self.frame_bytes_min, self.frame_bytes_max
        position = 0
        while end - position >= 4:
            (size,) = _unpack_size(buffer, position)
            if size < frame_bytes_min or size > frame_bytes_max:
                self._server.refused_frames += 1
                self.close()
                return
            following = position + 4 + size
            if following > end:
                self._begin_frame(view, position, end, size)
                return
            handle(self, buffer, view, position + 4, following)
            position = following
            if (
                self._muted
                or self._write_paused
                or len(self._replies) >= self._in_flight_max
                or self.owed_bytes > _OWED_BYTES_MAX
            ):
                if not self._ending:
                    self._held = bytes(view[position:end])
                    self._pause()
                return
        if position < end:
            self._leftover = bytes(view[position:end])

    def _begin_frame(self, view: memoryview, position: int, end: int, size: int) -> None:
        """Give an incomplete frame its own buffer, into which its remaining bytes are received."""
        total = size + 4
        if total <= _SMALL_FRAME_BYTES:
            frame: FrameBuffer = bytearray(total)
        elif total <= _POOLED_BYTES:
            frame = _pool.pop() if _pool else _lazy_buffer(_POOLED_BYTES)
        else:
            frame = _lazy_buffer(_POOLED_BYTES)
        self._frame = frame
        self._frame_bytes = total
        self._frame_view = memoryview(frame)[: min(total, len(frame))]
        self._filled = end - position
        self._frame_view[: self._filled] = view[position:end]

    def _frame_filled(self) -> None:
        """The buffer of a frame is full: handle the frame if it is complete, enlarge the buffer if not."""
        frame, view = self._frame, self._frame_view
        assert frame is not None and view is not None
        if self._filled < self._frame_bytes:
            larger = _lazy_buffer(min(self._frame_bytes, 2 * len(frame)))
            larger[: self._filled] = view
            self._frame, self._frame_view = larger, memoryview(larger)
            return
        self._frame = self._frame_view = None
        self._handle(self, frame, view, 4, self._frame_bytes)
        view.release()
        if len(frame) == _POOLED_BYTES and len(_pool) < _POOLED_BUFFERS:
            _pool.append(frame)
        if self._muted or self._write_paused or self._owes_too_much():
            self._pause()

    def handle_with(self, handle: Handler, *, frame_bytes_min: int = _REQUEST_BYTES_MIN, frame_bytes_max: int) -> None:
        """Give the following frames to another handler. Called while the connection is muted."""
        self._handle = handle
        self.frame_bytes_min, self.frame_bytes_max = frame_bytes_min, frame_bytes_max

    def exchange_handler(self, handle: Handler) -> Handler:
        """Give the following frames to another handler, and return the current one."""
        before, self._handle = self._handle, handle
        return before

    # -- pause and resume -----------------------------------------------------------------------------------------

    def mute(self) -> None:
        """Handle no further request until ``unmute``, because later requests must not overtake this one."""
        self._muted += 1

    def unmute(self) -> None:
        self._muted -= 1
        self._maybe_resume()

    def stop_intake(self) -> None:
        """Handle no further request; outstanding replies are still sent."""
        self.mute()
        self._pause()

    def stop_reading(self) -> None:
        """Read nothing more while the connection is muted. Otherwise it is read until the next frame is complete."""
        if self._muted and not self._closing:
            self._pause()

    def _owes_too_much(self) -> bool:
        return len(self._replies) >= self._in_flight_max or self.owed_bytes > _OWED_BYTES_MAX

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()

    def _maybe_resume(self) -> None:
        if self._reading or self._closing or self._muted or self._write_paused or self._owes_too_much():
            return
        held, self._held = self._held, b""
        self._reading = True  # so that _intake may pause again
        if held:
            buffer = bytearray(held)
            if not self._server.in_turn:
                self._server.begin_turn()
            self._intake(buffer, memoryview(buffer), len(buffer))
            if not self._reading:
                return
        self.transport.resume_reading()

    # -- replies --------------------------------------------------------------------------------------------------

    def reserve(self, api_key: int) -> Slot:
        """Return a new slot at the end of the queue, for the reply to the current request."""
        slot = Slot(self, api_key, self._server.turn_started)
        self.enqueue(slot)
        return slot

    def enqueue(self, slot: Slot) -> None:
        self._replies.append(slot)
        if not self.touched:
            self.touched = True
            self._server.touched.append(self)

    @property
    def newest_slot(self) -> Slot | None:
        """Return the slot of the last request; None if no request waits for its reply to be sent."""
        return self._replies[-1] if self._replies else None

    @property
    def turn_started(self) -> float:
        return self._server.turn_started

    def withdraw(self, slot: Slot) -> None:
        """Remove a slot from the queue: its request gets no reply."""
        if slot in self._replies:
            self._replies.remove(slot)

    def touch(self) -> None:
        """Flush this connection at the end of the turn; begin a turn if there is none."""
        server = self._server
        if not server.in_turn:
            server.begin_turn()
        if not self.touched:
            self.touched = True
            server.touched.append(self)

    def flush(self) -> None:
        """Send the replies at the head of the queue. Called once per turn, after the files are written."""
        self.touched = False
        replies = self._replies
        if self._closing:
            return
        out: list[bytes] = []
        latency, now = self._server.latency, self._server.now
        while replies:
            slot = replies[0]
            data = slot.data
            if data is None:
                break
            replies.popleft()
            latency[slot.api_key].observe(now - slot.started)
            out.append(data)
            if slot.parts is not None or len(data) > _SMALL_REPLY_BYTES:
                self.owed_bytes -= _in_memory(data, slot.parts)
            if slot.parts is not None:
                self._sending.append(b"".join(out))
                out = []
                self._sending.extend(slot.parts)
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            if not self._sending and not self._write_paused:
                if data:
                    self.transport.write(data)
            else:
                self._sending.append(data)
        if self._sending:
            self._pump()
        if not self._reading:
            self._maybe_resume()
            self._maybe_end()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self.last_active = self._server.monotonic()
        self._pump()
        if not self._reading:
            self._maybe_resume()
            self._maybe_end()

    def _pump(self) -> None:
        """Send parts until the socket is full. A slow reader keeps one chunk in memory, not its whole reply."""
        sending, transport = self._sending, self.transport
        while sending and not self._write_paused and not self._closing:
            part = sending[0]
            if isinstance(part, bytes):
                sending.popleft()
                if sending and not transport.get_write_buffer_size():
                    part = self._send_with_more(part)
                if part:
                    transport.write(part)
            elif self._send_region(part):
                sending.popleft()

    def _send_with_more(self, data: bytes) -> bytes:
        """Send the bytes before a region in one packet with it. Return the bytes that the socket did not take."""
        if self._socket is None:
            self._socket = self._server.network.direct_socket(self._socket_fd)
        try:
            return data[self._socket.send(data, MSG_MORE) :]
        except OSError:
            return data  # the socket is full or closed; the transport finds out which

    def _send_region(self, region: Region) -> bool:
        """Send part of a region. Return True when all of it is sent."""
        if not self.transport.get_write_buffer_size():
            try:
                sent = self._server.network.sendfile(
                    self._socket_fd, region.file.fd, region.position, region.size_bytes
                )
            except BlockingIOError:
                sent = -1
            except OSError as error:
                self._end_after(error, region)
                return False
            if sent == 0:
                self._cut_short()
                return False
            if sent > 0:
                region.position += sent
                region.size_bytes -= sent
                return region.size_bytes == 0
        # The socket is full. Hand a chunk to the transport, which calls resume_writing when there is room again.
        self._write_chunk(region, _REGION_CHUNK_BYTES)
        return region.size_bytes == 0

    def _write_chunk(self, region: Region, bytes_max: int) -> int:
        """Read the next bytes of a region and hand them to the transport. Return how many; 0 ends the connection."""
        try:
            chunk = self._server.network.pread(region.file.fd, min(region.size_bytes, bytes_max), region.position)
        except OSError as error:
            self._end_after(error, region)
            return 0
        if not chunk:
            self._cut_short()
            return 0
        region.position += len(chunk)
        region.size_bytes -= len(chunk)
        self.transport.write(chunk)
        return len(chunk)

    def _end_after(self, error: OSError, region: Region) -> None:
        """Close the connection: the peer closed it, or a part of a reply whose length was sent cannot be read."""
        if error.errno == errno.EIO:
            log.error("records cannot be read, a connection is closed position=%d error=%s", region.position, error)
        self.abort()

    def _cut_short(self) -> None:
        # The file was truncated, and the reply's header has announced more bytes: no valid byte can follow.
        self._sending.clear()
        self.abort()


def _plain_address(address: str) -> str:
    """Return an address as ACLs and quotas name it: one of IPv4 also on a listener for IPv6, without an interface."""
    mapped = address.removeprefix("::ffff:")
    return mapped if "." in mapped else address.partition("%")[0]


def _lazy_buffer(size: int) -> FrameBuffer:
    """A buffer whose pages cost nothing until they are written, unlike those of a bytearray, which are zeroed at once.

    For all that is done with it here, anonymous memory is a bytearray.
    """
    return mmap.mmap(-1, size)


def _in_memory(data: bytes, parts: list[Part] | None) -> int:
    """Return the size of the parts of a reply that are held in memory; regions stay in their files."""
    if parts is None:
        return len(data)
    return len(data) + sum(len(part) for part in parts if isinstance(part, bytes))
