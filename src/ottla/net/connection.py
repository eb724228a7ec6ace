"""One client: whole frames in, replies out in the order of the requests.

This is the first of the hot modules. What makes it fast, each point measured:

* One receive buffer for the whole process. The loop reads into it and ``buffer_updated`` runs at once, so no two
  connections ever use it together; five thousand clients cost no five thousand buffers, and small frames are handled
  where they lie. Only a frame that is not whole yet gets a buffer of its own, and the rest is received straight into
  it.
* No task, no future and no object per field: frames are handled synchronously, in a loop, by one function.
* Replies are grouped. A turn is everything that the loop read in one go; at its end the broker writes its files once
  and every connection that has something to say is written once.

Order. Each request gets a ``Slot`` when it arrives; replies leave from the head of the queue as long as it is filled.
A request that waits, for bytes or for a disk, leaves its slot empty and holds back only what this client asked later.

Bounds. A frame larger than the maximum closes the connection before anything is allocated. A client that does not
read its replies, has too much in flight, or waits for a request that must not be overtaken is not read from: what was
already received is held (at most one buffer's worth) and the socket is paused. ``peers.py`` notices when a client
closes its connection meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import mmap
import os
import socket
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Protocol, cast

from ottla.model.types import FrameBuffer

if TYPE_CHECKING:
    from ottla.net.server import Server

log = logging.getLogger(__name__)

RECEIVE_BYTES = 256 << 10
#: a frame up to this size that is not whole yet gets a buffer of just its size
_SMALL_FRAME_BYTES = 64 << 10
#: one up to this size gets a buffer that is kept for the next such frame; a larger one grows as it really arrives
_POOLED_BYTES = 2 << 20
_POOLED_BUFFERS = 8
#: what is left with the loop to wait with when a socket is full; the rest stays in the file
_REGION_CHUNK_BYTES = 4 << 10

#: replies in memory that were not sent yet; a client with more is not read from, however few requests they answer
_OWED_BYTES_MAX = 1 << 20
#: replies up to this size are bounded well enough by the number of requests in flight; they are not added up
_SMALL_REPLY_BYTES = 1024

_receive = bytearray(RECEIVE_BYTES)
_receive_view = memoryview(_receive)
_pool: list[FrameBuffer] = []
_unpack_size = Struct(">i").unpack_from


class Region(Protocol):
    """A stretch of a file to be sent as it is."""

    position: int
    size_bytes: int

    @property
    def file(self) -> OpenFile: ...


class OpenFile(Protocol):
    fd: int


Part = bytes | Region
Handler = Callable[["Connection", FrameBuffer, memoryview, int, int], None]


class Slot:
    """The place of one reply."""

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
        """Give the reply. It leaves at the end of this turn, or when those before it have left."""
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
        "_socket", "_socket_fd", "_watched", "_write_paused", "cache", "last_active", "local_address", "number",
        "on_close", "owed_bytes", "peer_host", "touched", "transport",
    )  # fmt: skip

    def __init__(self, server: Server, handle: Handler) -> None:
        # Shared
        self._server = server
        self._handle = handle
        #: requests that may be unanswered; Kafka allows one, clients send five
        self._in_flight_max = server.in_flight_max

        # Per connection
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self._socket_fd = -1
        #: the same descriptor as an object; made for the first large reply
        self._socket: socket.socket | None = None
        self.peer_host = ""
        #: counts connections in the order in which they were accepted
        self.number = 0
        #: the address that the client dialled; told back to it when no other is advertised
        self.local_address = ("", 0)
        self.last_active = 0.0
        #: the handler's own: what it remembers of this client's requests
        self.cache: object = None
        #: called when the client has closed its side of the connection: requests that are parked for it are answered
        self.on_close: dict[Callable[[], None], None] = {}

        # Intake
        self._leftover = b""  # a size prefix that is not whole yet
        self._frame: FrameBuffer | None = None  # a frame that is not whole yet
        self._frame_view: memoryview | None = None
        self._frame_bytes = 0
        self._filled = 0
        self._held = b""  # received, not looked at: intake is stopped
        self._muted = 0
        self._reading = True
        self._ending = False  # to be closed when nothing is owed any more
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
        # Writes go to the kernel at once, and we hear of it as soon as it takes no more.
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        self._socket_fd = sock.fileno()
        self.local_address = transport.get_extra_info("sockname")[:2]
        self.peer_host = str((transport.get_extra_info("peername") or ("?",))[0])
        if not self._server.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._server.forget(self)
        if self._watched:
            self._server.peers.remove(self, self._socket_fd)
        self._frame = self._frame_view = None
        if self._socket is not None:
            self._socket.detach()  # the descriptor is the transport's to close
        self._held = b""
        self._sending.clear()
        self._release_parked()
        self.on_close.clear()
        self._replies.clear()

    def close(self) -> None:
        """Read nothing more, and end the connection once the replies that are owed have left."""
        if not self._ending and not self._closing:
            self._ending = True
            self.stop_intake()
            self.touch()

    def abort(self) -> None:
        """End the connection now."""
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
        """Whether replies are on their way that the client has not taken yet."""
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
        # A client that closed its side may still read the replies it is owed.
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

    def peer_closed(self, *, gone: bool) -> None:
        """The client closed its side; ``gone``: it will not read replies either."""
        self._peer_closed = True
        if gone:
            self.abort()
        elif not self._reading:
            self._release_parked()

    def _release_parked(self) -> None:
        for release in list(self.on_close):
            release()

    def _intake(self, buffer: FrameBuffer, view: memoryview, end: int) -> None:
        """Handle every whole frame in ``buffer[:end]``; keep what follows the last one."""
        handle = self._handle
        frame_bytes_max = self._server.request_bytes_max
        position = 0
        while end - position >= 4:
            (size,) = _unpack_size(buffer, position)
            if size < 8 or size > frame_bytes_max:
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
        """The rest of this frame is received straight into a buffer of its own."""
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
        """The buffer is full: either the frame is whole, or it turns out to be as large as it claims to be."""
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

    # -- stop and go ----------------------------------------------------------------------------------------------

    def mute(self) -> None:
        """Take no further request until ``unmute``: this one must not be overtaken."""
        self._muted += 1

    def unmute(self) -> None:
        self._muted -= 1
        self._maybe_resume()

    def stop_intake(self) -> None:
        """Take no further request, ever; the replies that are owed are still sent."""
        self.mute()
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
        """The place of the reply to the request at hand."""
        slot = Slot(self, api_key, self._server.turn_started)
        self.enqueue(slot)
        return slot

    def enqueue(self, slot: Slot) -> None:
        self._replies.append(slot)
        if not self.touched:
            self.touched = True
            self._server.touched.append(self)

    @property
    def turn_started(self) -> float:
        return self._server.turn_started

    def withdraw(self, slot: Slot) -> None:
        """There will be no reply in this place."""
        if slot in self._replies:
            self._replies.remove(slot)

    def touch(self) -> None:
        """A slot was filled: look at it at the end of this turn."""
        server = self._server
        if not server.in_turn:
            server.begin_turn()
        if not self.touched:
            self.touched = True
            server.touched.append(self)

    def flush(self) -> None:
        """Send what is filled at the head of the queue. Called once per turn, after the files are written."""
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
        """Move parts to the socket until the kernel takes no more; a slow reader costs one chunk, not its reply."""
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
        """Send what stands before a region in one packet with it; returns what the kernel did not take."""
        if self._socket is None:
            self._socket = socket.socket(fileno=self._socket_fd)
        try:
            return data[self._socket.send(data, socket.MSG_MORE) :]
        except OSError:
            return data  # full, or gone: the transport finds out which

    def _send_region(self, region: Region) -> bool:
        """One step of a region; True when it is all on its way."""
        if not self.transport.get_write_buffer_size():
            try:
                sent = os.sendfile(self._socket_fd, region.file.fd, region.position, region.size_bytes)
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
        # The socket is full. Leave the loop a chunk to wait with; it says when there is room again.
        try:
            chunk = os.pread(region.file.fd, min(region.size_bytes, _REGION_CHUNK_BYTES), region.position)
        except OSError as error:
            self._end_after(error, region)
            return False
        if not chunk:
            self._cut_short()
            return False
        region.position += len(chunk)
        region.size_bytes -= len(chunk)
        self.transport.write(chunk)
        return region.size_bytes == 0

    def _end_after(self, error: OSError, region: Region) -> None:
        """Close the connection: the peer is gone, or the disk failed to read part of a reply whose length was sent."""
        if error.errno == errno.EIO:
            log.error("records cannot be read, a connection is closed position=%d error=%s", region.position, error)
        self.abort()

    def _cut_short(self) -> None:
        # The file is shorter than what the reply's header promised: it was truncated. Nothing right can follow.
        self._sending.clear()
        self.abort()


def _lazy_buffer(size: int) -> FrameBuffer:
    """A buffer whose pages cost nothing until they are written, unlike those of a bytearray, which are zeroed at once.

    For all that is done with it here, anonymous memory is a bytearray.
    """
    return mmap.mmap(-1, size)


def _in_memory(data: bytes, parts: list[Part] | None) -> int:
    """The bytes of a reply that are held in memory; regions stay in their files."""
    if parts is None:
        return len(data)
    return len(data) + sum(len(part) for part in parts if isinstance(part, bytes))
