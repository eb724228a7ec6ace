"""The request header and the frame around a reply.

A frame is an int32 size and that many bytes. A request starts with API key, version and correlation id, then the client
id, which is a string with an int16 length in every header version, and from header version 2 on tagged fields.
"""

from __future__ import annotations

from struct import Struct

from ottla.model.types import FrameBuffer
from ottla.wire.primitives import STRING_BYTES_MAX, WireError

Buffer = bytes | memoryview | FrameBuffer

#: tagged fields that newer clients may add to one structure of a request
TAGS_MAX = 16
#: and to the header of a request
HEADER_TAGS_MAX = 10_000

REQUEST_START = Struct(">hhi")
_INT16 = Struct(">h")
_REPLY_V0 = Struct(">ii")
_REPLY_V1 = Struct(">iix")


def skip_client_id(buffer: Buffer, position: int, end: int) -> int:
    """Return the position behind the client id that starts at ``position``; its length is -1 if there is none."""
    (length,) = _INT16.unpack_from(buffer, position)
    following: int = position + 2 + (length if length > 0 else 0)
    if length < -1 or following > end:
        raise WireError("the client id does not end within the frame")
    return following


def read_client_id(buffer: Buffer, position: int, end: int) -> str:
    """Return the client id as text; empty if there is none."""
    following = skip_client_id(buffer, position, end)
    return bytes(buffer[position + 2 : following]).decode("utf-8", "replace")


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return an unsigned varint of at most five bytes, and the position behind it. Raise WireError if it is longer."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 28:
            raise WireError("a varint is longer than five bytes")


def read_compact_length(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the length of a compact string, -1 for null, and the position behind it. Raise WireError."""
    length, position = read_uvarint(buffer, position)
    if length > STRING_BYTES_MAX + 1:
        raise WireError(f"a string of {length - 1} bytes is longer than Kafka allows ({STRING_BYTES_MAX})")
    return length - 1, position


def skip_tags(buffer: Buffer, position: int, end: int, count_max: int = TAGS_MAX) -> int:
    """Return the position behind a section of tagged fields, without reading them.

    Raise WireError if there are more than ``count_max``: there may be a section for each partition of a request.
    Bytes behind ``end`` belong to another request, so a section cannot begin there.
    """
    if position >= end:
        raise WireError("the frame ends where tagged fields should be")
    count = buffer[position]
    if not count:
        return position + 1
    count, position = read_uvarint(buffer, position)
    if count > count_max:
        raise WireError(f"{count} tagged fields")
    for _ in range(count):
        _, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        position += size
        if position > end:
            raise WireError("a tagged field does not end within the frame")
    return position


def frame_reply(correlation_id: int, body: bytes, header_version: int) -> bytes:
    """Return a reply frame: size, response header and body."""
    if header_version:
        return _REPLY_V1.pack(len(body) + 5, correlation_id) + body
    return _REPLY_V0.pack(len(body) + 4, correlation_id) + body
