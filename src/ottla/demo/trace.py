"""Traces one figure back to the records of the topics that it was computed from.

The row of the figure has the positions of its records in `_lineage`. They are read from the topics again and added up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from ottla.client.cluster import Cluster
from ottla.demo.check import Check, Lake, in_utc, read_values
from ottla.demo.shop import ORDERS, PAYMENTS
from ottla.model.types import TopicPartition

#: figures of this many payments are chosen first, so that the list is short
_PAYMENTS_SHOWN = (2, 4)
_COLUMNS = ("minute", "currency", "revenue", "payments", "_lineage")


class Origin(NamedTuple):
    """A record that a figure was computed from, with the fields of its value."""

    topic: str
    partition: int
    offset: int
    order_id: str
    amount: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A figure and its records: payments and the orders that were paid."""

    minute: datetime
    currency: str
    revenue: Decimal
    origins: Sequence[Origin]

    @property
    def payments(self) -> list[Origin]:
        return [origin for origin in self.origins if origin.topic == PAYMENTS]

    @property
    def check(self) -> Check:
        """Compare the figure with the sum of the payments in the topic."""
        total = sum((origin.amount for origin in self.payments), Decimal(0))
        orders = {origin.order_id for origin in self.origins if origin.topic == ORDERS}
        is_right = total == self.revenue and orders == {origin.order_id for origin in self.payments}
        what = f"traced: {self.minute:%H:%M} {self.currency}, {len(self.payments)} payments in the topic"
        return Check(what, f"{total:,.2f}", f"{self.revenue:,.2f}", is_right)


def trace_figure(cluster: Cluster, lake: Lake) -> Trace | None:
    """Return the newest final figure with few records, and these records; None if there is no figure yet."""
    rows = lake.rows("refined", "revenue_per_minute", _COLUMNS)
    if not rows:
        return None
    row = max(rows, key=_rank)
    origins = [
        _read(cluster, TopicPartition(one["topic"], one["partition"]), one["first"])
        for one in sorted(row["_lineage"], key=lambda one: (one["topic"], one["partition"], one["first"]))
    ]
    return Trace(minute=in_utc(row["minute"]), currency=row["currency"], revenue=row["revenue"], origins=origins)


def _rank(row: dict[str, Any]) -> tuple[bool, str, str]:
    few, many = _PAYMENTS_SHOWN
    # The newest one, because the records of an old one may have been deleted by retention.
    return few <= row["payments"] <= many, str(row["minute"]), row["currency"]


def _read(cluster: Cluster, tp: TopicPartition, offset: int) -> Origin:
    values = read_values(cluster, tp, offset, offset + 1)
    assert values, f"{tp} has a record at offset {offset}"
    fields = json.loads(values[0], parse_float=Decimal, parse_int=Decimal)
    return Origin(tp.topic, tp.partition, offset, fields["order_id"], fields["amount"])
