"""How often each client may do something: a bucket of tokens for each key, in bounded memory."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from ottla.model.types import network_of

_KEYS_MAX: Final = 10_000


class Rates:
    """A rate for each key. A key that was not used for a while may use ``burst_s`` seconds of it at once."""

    def __init__(self, *, per_s: float, burst_s: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = max(per_s * burst_s, 1.0)
        self._now = now
        #: key -> tokens at a time; a key that is missing has a full bucket. The least recently used is first
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Return how long the key has to wait for its next use; 0 if it need not. Use nothing."""
        return max(0.0, (1.0 - self._tokens(key)) / self._per_s)

    def spend(self, key: str, tokens: float = 1.0) -> None:
        """Take tokens of a key, also if it has less: then it waits longer."""
        self._buckets[key] = (self._tokens(key) - tokens, self._now())
        self._buckets.move_to_end(key)
        if len(self._buckets) > _KEYS_MAX:
            self._buckets.popitem(last=False)

    def take(self, key: str) -> float:
        """Take one token and return 0, or return how many seconds to wait for one."""
        wait_s = self.wait_s(key)
        if wait_s == 0.0:
            self.spend(key)
        return wait_s

    def _tokens(self, key: str) -> float:
        found = self._buckets.get(key)
        if found is None:
            return self._burst
        tokens, at = found
        return min(self._burst, tokens + (self._now() - at) * self._per_s)


def network_of_client(request: Request) -> str:
    """Return what limits of addresses count by: the address, of IPv6 its first 64 bits. Empty if it is not known."""
    return "" if request.client is None else network_of(request.client.host)
