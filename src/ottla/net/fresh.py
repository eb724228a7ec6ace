"""Connections that have not proven anything yet, and which of them is closed for a new one. Pure.

One machine can open thousands of connections per second. If the oldest connection were closed in every case,
a client behind a slow network would lose its own before the end of its login. So the network with the most of these
connections loses its oldest one. For each address of IPv4 a network is the address itself; for IPv6 it is the first 64
bits, because every customer of a provider has all addresses behind them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from ottla.model.types import network_of


class Fresh(Protocol):
    """A connection, as far as this file knows it."""

    listener: str
    peer_host: str


_C = TypeVar("_C", bound=Fresh)


class FreshConnections(Generic[_C]):
    """Fresh connections by network. Each call takes the same time, however many there are, unless a limit says which.

    >>> class Each:
    ...     def __init__(self, host): self.peer_host, self.listener = host, ""
    >>> slow, first, second = Each("10.0.0.1"), Each("10.0.0.2"), Each("10.0.0.2")
    >>> fresh = FreshConnections()
    >>> for each in (slow, first, second): fresh.add(each)
    >>> fresh.next_to_leave() is first
    True
    """

    def __init__(self) -> None:
        self._networks: dict[_C, str] = {}
        #: network -> its connections, the oldest first
        self._members: dict[str, dict[_C, None]] = {}
        #: number of connections -> the networks that have so many, of which the first has had them for the longest time
        self._by_count: dict[int, dict[str, None]] = {}
        self._count_max = 0

    def __len__(self) -> int:
        return len(self._networks)

    def add(self, connection: _C) -> None:
        network = self._networks[connection] = network_of(connection.peer_host)
        members = self._members.setdefault(network, {})
        members[connection] = None
        self._move(network, len(members) - 1, len(members))

    def discard(self, connection: _C) -> None:
        network = self._networks.pop(connection, None)
        if network is None:
            return
        members = self._members[network]
        del members[connection]
        if not members:
            del self._members[network]
        self._move(network, len(members) + 1, len(members))

    def next_to_leave(self, listener: str | None = None, host: str | None = None) -> _C | None:
        """Return the connection that is closed next, of a listener and of an address if they are given; else None."""
        for network in self._largest_first() if host is None else (network_of(host),):
            for each in self._members.get(network, ()):
                if listener in (None, each.listener) and host in (None, each.peer_host):
                    return each
        return None

    def _largest_first(self) -> Iterator[str]:
        for count in range(self._count_max, 0, -1):
            yield from self._by_count.get(count, ())

    def _move(self, network: str, before: int, after: int) -> None:
        if before:
            del self._by_count[before][network]
            if not self._by_count[before]:
                del self._by_count[before]
        if after:
            self._by_count.setdefault(after, {})[network] = None
        if after > self._count_max or self._count_max not in self._by_count:
            # Counts change by one, so no network has more than this one now.
            self._count_max = after
