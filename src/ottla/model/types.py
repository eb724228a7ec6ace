"""Types that every package uses."""

from __future__ import annotations

import base64
import ipaddress
from mmap import mmap
from typing import NamedTuple

#: The bytes of a request frame. A frame larger than the receive buffer is read into anonymous memory.
FrameBuffer = bytearray | mmap


class TopicPartition(NamedTuple):
    """A partition's name; its text form is also the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Endpoint(NamedTuple):
    """The address that a listener binds to, or that is advertised to clients."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Parse ``NAME://host:port``; the host may be empty (all interfaces) or a bracketed IPv6 address.

    >>> parse_endpoint("PLAINTEXT://127.0.0.1:9092")
    Endpoint(name='PLAINTEXT', host='127.0.0.1', port=9092)
    """
    name, separator, address = text.strip().partition("://")
    host, colon, port_text = address.rpartition(":")
    if not separator or not colon or not name.replace("_", "").replace("-", "").isalnum():
        raise ValueError(f"listener {text!r} is not of the form PLAINTEXT://HOST:PORT")
    if not port_text.isdigit() or int(port_text) > 65535:
        raise ValueError(f"listener {text!r} needs a port between 0 and 65535")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return Endpoint(name.upper(), host, int(port_text))


def is_loopback(host: str) -> bool:
    """Return whether only programs on this machine reach a listener. A name other than localhost counts as no.

    >>> [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "", "0.0.0.0", "10.0.0.1", "db")]
    [True, True, True, False, False, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def network_of(host: str) -> str:
    """Return the addresses that the owner of this one has, too: of IPv6 the first 64 bits. Another text is returned.

    >>> [network_of(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "2001:db8::1:2:3:4", "fe80::1%eth0", "?")]
    ['10.0.0.1', '10.0.0.1', '2001:db8::', 'fe80::', '?']
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


def topic_id_text(topic_id: bytes) -> str:
    """Return a topic id as Kafka prints it: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
