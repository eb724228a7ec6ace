"""Requests and replies as bytes, and the memory that replies are received into.

A frame is an int32 size and that many bytes. A request starts with its header, a reply with the correlation id of its
request. Functions that read a reply get it without its size, and raise WireError, IndexError or struct.error if it is
malformed: `MALFORMED`.
"""

from __future__ import annotations

from itertools import count
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple

from ottla.wire import (
    Message,
    WireError,
    decode,
    encode,
    request_header_version,
    response_class,
    response_header_version,
)
from ottla.wire.frame import Buffer, skip_tags

SIZE: Final = Struct(">i")
MALFORMED: Final = (WireError, StructError, IndexError)
_REQUEST_HEADER: Final = Struct(">hhih")
_CORRELATION_ID_MAX: Final = 0x7FFFFFFF


class Sent(NamedTuple):
    """The fields of a request that are needed to read its reply."""

    correlation_id: int
    api_key: int
    version: int


class RequestWriter:
    """Numbers the requests of one client and writes their headers."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id.encode()
        self._correlation_ids = count(1)

    def header(self, api_key: int, version: int) -> tuple[Sent, bytes]:
        """Return the next request and its header. The caller sends the size, the header and the body."""
        sent = Sent(next(self._correlation_ids) & _CORRELATION_ID_MAX, api_key, version)
        return sent, request_header(sent, self._client_id)

    def frame(self, request: Message, version: int) -> tuple[Sent, list[bytes]]:
        """Return the next request, and its header and its body."""
        sent, header = self.header(request.API_KEY, version)
        return sent, [header, encode(request, version)]


def request_header(sent: Sent, client_id: bytes | None) -> bytes:
    """Return the header of a request, without the size of the frame. It has no tagged fields."""
    length = -1 if client_id is None else len(client_id)
    header = _REQUEST_HEADER.pack(sent.api_key, sent.version, sent.correlation_id, length) + (client_id or b"")
    return header + b"\0" if request_header_version(sent.api_key, sent.version) == 2 else header


def reply_size(buffer: Buffer, position: int, size_max: int) -> int:
    """Return the size of the reply that starts at `position`. Raise WireError if it cannot be the size of a reply."""
    (size,) = SIZE.unpack_from(buffer, position)
    if not SIZE.size <= size <= size_max:
        raise WireError(f"a reply of {size} bytes is invalid")
    return int(size)


def read_correlation_id(reply: Buffer) -> int:
    return int(SIZE.unpack_from(reply)[0])


def body_position(reply: Buffer, sent: Sent) -> int:
    """Return where the body of a reply begins."""
    if response_header_version(sent.api_key, sent.version):
        return skip_tags(reply, SIZE.size, len(reply))
    return SIZE.size


def decode_reply(reply: bytes | memoryview, sent: Sent) -> Any:
    """Return the message in a reply. Raise WireError if bytes follow it: then the broker has another schema for it."""
    message, end = decode(response_class(sent.api_key), sent.version, reply, body_position(reply, sent))
    if end != len(reply):
        raise WireError(f"{len(reply) - end} bytes follow the message in the reply")
    return message


class ReplyMemory:
    """Memory for large replies. A piece is used again when no view refers to it."""

    _PIECES = 3
    _ROUNDING = 1 << 18

    def __init__(self) -> None:
        self._pieces: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Return a view of `size` bytes. They are not used for another reply while this view, or one of it, exists."""
        for piece in self._pieces:
            if len(piece) >= size and is_free(piece):
                return memoryview(piece)[:size]
        piece = bytearray(-(-size // self._ROUNDING) * self._ROUNDING)
        self._pieces.append(piece)
        if len(self._pieces) > self._PIECES:
            del self._pieces[0]
        return memoryview(piece)[:size]


def is_free(memory: bytearray) -> bool:
    """Return whether no view refers to the memory: Python refuses to change the size of a bytearray with views."""
    try:
        memory.append(memory.pop())
    except BufferError:
        return False
    return True
