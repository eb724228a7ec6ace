"""wire: Kafka's messages as bytes and as Python objects.

Knows: the schema of every API and version it speaks. Never: sockets, loops, disks, what a message means.
Message classes are in `ottla.wire.messages.<api>`; import those you need, each costs its own import.
"""

from ottla.wire.codec import (
    REQUEST_ELEMENTS_MAX,
    decode,
    encode,
    request_class,
    request_header_version,
    response_class,
    response_header_version,
)
from ottla.wire.messages import APIS
from ottla.wire.primitives import WireError
from ottla.wire.schema import ZERO_UUID, Api, Message, Struct

__all__ = [
    "APIS",
    "REQUEST_ELEMENTS_MAX",
    "ZERO_UUID",
    "Api",
    "Message",
    "Struct",
    "WireError",
    "decode",
    "encode",
    "request_class",
    "request_header_version",
    "response_class",
    "response_header_version",
]
