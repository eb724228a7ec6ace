"""The host names that requests may name: protection against DNS rebinding.

A web page of another site can let the name of its own host point to the address of this service. For the browser the
service is then a part of that site, so that the page may send every request and read the answers. Such requests have
the name of the other site in their Host header. So a request is refused unless Host is an address, a name of the
loopback interface, a name that the service listens on or advertises, or one of `allowed.hosts`.

Requests over https are not checked: the browser has compared the name with the certificate of this service.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from typing import Final

from ottla.edge.web.app import HttpError
from ottla.model.http_host import host_of, is_address, is_local_or_address

#: any host, in `allowed.hosts`
_ALL: Final = "*"
_SHOWN_CHARACTERS_MAX: Final = 100


class Hosts:
    """The names of a service."""

    def __init__(self, own: Iterable[str], allowed: Iterable[str]) -> None:
        """`own` has the hosts of listeners and the advertised ones, `allowed` names and suffixes such as .example."""
        names = {name.lower().rstrip(".") for name in (*own, *allowed) if name}
        if any(_is_any_address(name) for name in names):
            names.add(socket.gethostname().lower())
        self._allows_all = _ALL in names
        self._names = frozenset(name for name in names if not name.startswith("."))
        self._suffixes = tuple(name for name in names if name.startswith("."))

    def check(self, headers: Iterable[str]) -> None:
        """Raise HttpError 403 (40302) if one of the Host headers of a request is not a name of this service."""
        for text in headers:
            host = host_of(text)
            if not self._allows_all and not self._is_own(host):
                raise HttpError(
                    403, 40302,
                    f"{host[:_SHOWN_CHARACTERS_MAX]!r} is not a name of this service: use one of its addresses, or add "
                    "the name to the setting allowed.hosts",
                )  # fmt: skip

    def _is_own(self, host: str) -> bool:
        return is_local_or_address(host) or host in self._names or host.endswith(self._suffixes)


def _is_any_address(host: str) -> bool:
    return is_address(host) and ipaddress.ip_address(host).is_unspecified
