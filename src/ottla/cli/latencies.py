"""A histogram of latencies in little memory: the width of a bucket is at most 1/64 of its values."""

from __future__ import annotations

import math

_BITS = 6
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


class Latencies:
    """A histogram over microseconds: a bucket per number up to 127, above that 64 per power of two."""

    __slots__ = ("_buckets", "_max_us", "_sum_us", "count")

    def __init__(self) -> None:
        self._buckets: list[int] = []
        self._max_us = 0
        self._sum_us = 0
        self.count = 0

    def note(self, seconds: float) -> None:
        us = int(seconds * 1_000_000)
        shift = max(us.bit_length() - _BITS - 1, 0)
        bucket = (shift << _BITS) + (us >> shift)
        buckets = self._buckets
        if bucket >= len(buckets):
            buckets.extend([0] * (bucket + 1 - len(buckets)))
        buckets[bucket] += 1
        self._sum_us += us
        self._max_us = max(self._max_us, us)
        self.count += 1

    def summary_ms(self) -> dict[str, float] | None:
        """Return average, percentiles and maximum in milliseconds; None without a latency."""
        if not self.count:
            return None
        return {
            "avg": round(self._sum_us / self.count / 1000, 3),
            **{name: round(self._percentile_us(share) / 1000, 3) for name, share in _PERCENTILES.items()},
            "max": round(self._max_us / 1000, 3),
        }

    def _percentile_us(self, share: float) -> int:
        rank, seen = max(1, math.ceil(self.count * share)), 0
        for bucket, count in enumerate(self._buckets):
            seen += count
            if seen >= rank:
                return min(_bucket_top_us(bucket), self._max_us)
        raise AssertionError("the buckets hold as many as were counted")


def _bucket_top_us(bucket: int) -> int:
    shift = max((bucket >> _BITS) - 1, 0)
    return ((bucket - (shift << _BITS) + 1) << shift) - 1
