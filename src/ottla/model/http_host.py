"""The Host header of HTTP requests, for the protection against DNS rebinding.

A web page of another site can let the name of its own host point to an address of this machine. The browser then
sends the page's requests here, with the name of the other site in their Host header. A request with an address in this
header cannot come from such a page.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from ottla.model.types import is_loopback

LOCAL: Final = "localhost"


def host_of(text: str) -> str:
    """Return the host of a Host header in lower case, without its port.

    >>> [host_of(text) for text in ("A.Example.:80", "[::1]:8081", "127.0.0.1", "a")]
    ['a.example', '::1', '127.0.0.1', 'a']
    """
    text = text.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_local_or_address(host: str) -> bool:
    """Return whether no other site can have this host: an address, a name of the loopback interface, or none.

    A client that speaks HTTP/1.0 has no name or an empty one; a browser always sends one.

    >>> [is_local_or_address(host) for host in ("", "localhost", "a.localhost", "10.0.0.1", "::1", "evil.example")]
    [True, True, True, True, True, False]
    """
    return host in ("", LOCAL) or host.endswith(f".{LOCAL}") or is_address(host)


def is_refused(headers: Iterable[str], *, bound_address: str, listening_host: str) -> bool:
    """Return whether a server without a list of its names must refuse a request with these Host headers.

    A server that is bound to loopback is asked by an address, by a name of the loopback interface or by the host that
    it was configured with. A server on another address, or on all, is asked by names that it does not know, as those
    of a DNS server or of a container network, so it refuses nothing.

    >>> [is_refused(["evil.example"], bound_address=to, listening_host="db") for to in ("127.0.1.1", "::1", "0.0.0.0")]
    [True, True, False]
    >>> hosts = ("db:9404", "10.0.0.1:9404", "localhost")
    >>> [is_refused([host], bound_address="127.0.1.1", listening_host="DB") for host in hosts]
    [False, False, False]
    """
    if not is_loopback(bound_address):
        return False
    own = host_of(listening_host)
    return any(host != own and not is_local_or_address(host) for host in map(host_of, headers))
