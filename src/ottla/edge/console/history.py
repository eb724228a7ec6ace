"""What the last readings of a cluster say about rates and trends. Pure: readings go in, figures come out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ottla.lag.types import LagSnapshot
from ottla.model.types import TopicPartition

#: readings that are kept, for charts
READINGS_MAX: Final = 150
#: objects with a history of their own; others have none
_NAMES_MAX: Final = 5000


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of the whole cluster at one reading."""

    at_ms: int
    #: records per second that were appended since the reading before; None for the first one
    records_per_s: float | None
    #: the lag of all groups
    lag: int | None


class History:
    """The last readings of one cluster."""

    def __init__(self) -> None:
        self.totals: deque[Totals] = deque(maxlen=READINGS_MAX)
        #: records per second of each topic, since the reading before
        self.topic_rates: Mapping[str, float] = {}
        #: the total lag of each group at the last readings
        self.group_lags: dict[str, deque[int | None]] = {}
        self._ends: Mapping[TopicPartition, int] = {}
        self._at_ms = 0

    def add(self, reading: LagSnapshot) -> None:
        """Add a reading of all groups and all topics."""
        seconds = (reading.read_at_ms - self._at_ms) / 1000
        rates = _rates(self._ends, reading.log_ends, seconds) if self._at_ms and seconds > 0 else None
        known = [lag for each in reading.groups.values() if (lag := each.total) is not None]
        total = None if rates is None else sum(rates.values())
        self.totals.append(Totals(reading.read_at_ms, total, sum(known) if known else None))
        self.topic_rates = rates or {}
        self._ends, self._at_ms = reading.log_ends, reading.read_at_ms
        for name in self.group_lags.keys() - reading.groups.keys():
            del self.group_lags[name]
        for name, each in reading.groups.items():
            if name in self.group_lags or len(self.group_lags) < _NAMES_MAX:
                self.group_lags.setdefault(name, deque(maxlen=READINGS_MAX)).append(each.total)

    @property
    def records_per_s(self) -> float | None:
        return self.totals[-1].records_per_s if self.totals else None


def _rates(
    before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int], seconds: float
) -> dict[str, float]:
    """Return the offsets per second by which each topic has grown. A topic that was created again counts from 0."""
    grown: dict[str, int] = {}
    for name, end in after.items():
        start = before.get(name, end)
        grown[name.topic] = grown.get(name.topic, 0) + (end - start if end >= start else end)
    return {topic: offsets / seconds for topic, offsets in grown.items()}
