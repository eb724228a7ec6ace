"""Throttles of replication: which replicas are throttled, and how many bytes they may copy. Pure: time comes in.

The topic settings ``leader.replication.throttled.replicas`` and ``follower.replication.throttled.replicas`` name
replicas as PARTITION:BROKER. The broker settings ``leader.replication.throttled.rate`` and
``follower.replication.throttled.rate`` are the bytes per second that a broker sends to, or fetches for, all throttled
replicas together. As in Kafka all bytes of a throttled replica count, but only a replica that is not in sync waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

ALL_REPLICAS = "*"
#: a broker looks again after this time at the latest, because the rate may have changed
_WAIT_S_MAX = 1.0
#: the budget that a broker may use at once, as the time in which it is filled
_BURST_S = 1.0


def is_throttled(replicas: Sequence[str], partition: int, broker_id: int) -> bool:
    """Return whether a topic setting names the replica of a partition on a broker."""
    return bool(replicas) and (ALL_REPLICAS in replicas or f"{partition}:{broker_id}" in replicas)


class ReplicationQuota:
    """A budget of bytes that is filled at a rate. It may be overdrawn once; the debt has to be paid before the next."""

    def __init__(self) -> None:
        self._left = math.inf
        self._rate = math.inf
        self._at = -math.inf
        #: all bytes that were counted
        self.total_bytes = 0

    def record(self, size_bytes: int, rate: int, now: float) -> None:
        """Count bytes of throttled replicas."""
        self._fill(rate, now)
        self._left -= size_bytes
        self.total_bytes += size_bytes

    def wait_s(self, rate: int, now: float) -> float:
        """Return how long a throttled replica has to wait; 0 if it may copy now."""
        self._fill(rate, now)
        if self._left > 0:
            return 0.0
        return _WAIT_S_MAX if not rate else min(max(-self._left / rate, 0.001), _WAIT_S_MAX)

    def _fill(self, rate: int, now: float) -> None:
        """Fill the budget at the rate until now. From now on ``rate`` holds."""
        self._left = min(self._left + (now - self._at) * self._rate, rate * _BURST_S)
        self._rate, self._at = rate, now
