"""How fast a group consumes, and when it will have caught up. Pure.

The rates are those between the first and the last sample of a window, so that bursts within it count with their share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

#: seconds that the samples of a window must be apart for a rate
_SPAN_S_MIN = 1.0
#: rates that differ by less than this share are equal
_SAME_SHARE = 0.02
#: a longer wait than a year is shown as never
_WAIT_S_MAX = 365 * 86_400.0


class Sample(NamedTuple):
    """The position of a group, summed over its partitions, and the ends of these partitions."""

    at_ms: int
    committed: int
    end: int

    @property
    def lag(self) -> int:
        return max(self.end - self.committed, 0)


class Trend(Enum):
    """How the lag changes."""

    RISING = "rising"
    FALLING = "falling"
    STEADY = "steady"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Rates in records per second, and the seconds until the group has caught up."""

    trend: Trend
    consumed_per_s: float | None = None
    produced_per_s: float | None = None
    #: 0 if the group has caught up; None if it is not known, or never at this rate
    caught_up_in_s: float | None = None
    #: the group does not catch up at this rate
    is_never: bool = False


def forecast(samples: Sequence[Sample]) -> Forecast:
    """Return the rates between the first and the last sample, and when the lag will be 0.

    A window in which offsets went back (a reset, a topic that was created again) begins after that.
    """
    window = _since_last_step_back(samples)
    if not window:
        return Forecast(trend=Trend.UNKNOWN)
    first, last = window[0], window[-1]
    span_s = (last.at_ms - first.at_ms) / 1000
    if span_s < _SPAN_S_MIN:
        return Forecast(trend=Trend.UNKNOWN, caught_up_in_s=0.0 if last.lag == 0 else None)
    consumed = (last.committed - first.committed) / span_s
    produced = (last.end - first.end) / span_s
    trend = _trend(first, last, produced)
    if last.lag == 0:
        return Forecast(trend=trend, consumed_per_s=consumed, produced_per_s=produced, caught_up_in_s=0.0)
    gain = consumed - produced
    wait_s = last.lag / gain if gain > 0 else None
    if wait_s is None or wait_s > _WAIT_S_MAX:
        return Forecast(trend=trend, consumed_per_s=consumed, produced_per_s=produced, is_never=True)
    return Forecast(trend=trend, consumed_per_s=consumed, produced_per_s=produced, caught_up_in_s=wait_s)


def _trend(first: Sample, last: Sample, produced_per_s: float) -> Trend:
    # A share of what was produced: a group that commits every few seconds has a lag that goes up and down by that.
    span_s = (last.at_ms - first.at_ms) / 1000
    change, noise = last.lag - first.lag, _SAME_SHARE * max(first.lag, last.lag, produced_per_s * span_s)
    if abs(change) <= noise:
        return Trend.STEADY
    return Trend.RISING if change > 0 else Trend.FALLING


def _since_last_step_back(samples: Sequence[Sample]) -> Sequence[Sample]:
    start = 0
    for index in range(1, len(samples)):
        before, after = samples[index - 1], samples[index]
        if after.committed < before.committed or after.end < before.end or after.at_ms <= before.at_ms:
            start = index
    return samples[start:]
