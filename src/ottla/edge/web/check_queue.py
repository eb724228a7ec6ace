"""Checks of credentials that wait for a thread, in a fair order. Pure.

A check of a password takes a quarter of a second, and a client can send any number of wrong passwords, from several
addresses. Other clients must still be able to log in:

    waiting:  addresses take turns, so that an address with many checks delays only itself
    full:     the address with the most checks loses its latest one
    trusted:  a user who has logged in from the same address before comes first

A client that has never logged in, behind the address of an attacker, has no way to prove that it is another one: it
waits for its turn among the checks of this address.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, TypeVar

_TRUSTED_MAX: Final = 10_000
_TRUSTED_S: Final = 86_400.0

_T = TypeVar("_T")


class Sender(NamedTuple):
    """Who asks for a check: the address, and the user name that was sent, if any."""

    address: str
    name: str = ""


class TrustedSenders:
    """The users who have logged in during the last day, each with the address of the request."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        #: with the time until which they count; the least recent is first
        self._senders: OrderedDict[Sender, float] = OrderedDict()

    def add(self, sender: Sender) -> None:
        if not sender.name:
            return
        self._senders[sender] = self._now() + _TRUSTED_S
        self._senders.move_to_end(sender)
        if len(self._senders) > _TRUSTED_MAX:
            self._senders.popitem(last=False)

    def __contains__(self, sender: Sender) -> bool:
        return self._senders.get(sender, 0.0) > self._now()


class CheckQueue(Generic[_T]):
    """Checks that wait, at most ``waiting_max``."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        #: address -> its checks; the next address in turn is first. Trusted ones, and others
        self._lanes: tuple[OrderedDict[str, deque[_T]], OrderedDict[str, deque[_T]]] = (OrderedDict(), OrderedDict())
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, check: _T, address: str, *, is_trusted: bool) -> _T | None:
        """Add a check. Return the one that loses its place, which may be the new one; None if there is room."""
        self._lanes[not is_trusted].setdefault(address, deque()).append(check)
        self._count += 1
        return self._evict() if self._count > self._waiting_max else None

    def take(self) -> _T | None:
        """Remove and return the next check; None if there is none."""
        for lane in self._lanes:
            if lane:
                address, checks = lane.popitem(last=False)
                check = checks.popleft()
                if checks:
                    lane[address] = checks  # it is the last in turn now
                self._count -= 1
                return check
        return None

    def _evict(self) -> _T:
        lane = self._lanes[1] or self._lanes[0]
        # Of addresses with the same number, the last in turn.
        address = max(reversed(lane), key=lambda each: len(lane[each]))
        check = lane[address].pop()
        if not lane[address]:
            del lane[address]
        self._count -= 1
        return check
