"""Rates and trends of a cluster from its last readings."""

from __future__ import annotations

import pytest

from ottla.edge.console.history import READINGS_MAX, History
from ottla.lag.types import GroupLag, LagSnapshot, PartitionLag
from ottla.model.types import TopicPartition

ORDERS, CLICKS = TopicPartition("orders", 0), TopicPartition("clicks", 0)


def reading(at_s: float, ends: dict[TopicPartition, int], committed: int | None = None) -> LagSnapshot:
    groups = {}
    if committed is not None:
        partition = PartitionLag(name=ORDERS, committed=committed, log_start=0, log_end=ends[ORDERS])
        at_ms = int(at_s * 1000)
        groups["g"] = GroupLag(group_id="g", state="Stable", read_at_ms=at_ms, partitions={ORDERS: partition})
    return LagSnapshot(
        read_at_ms=int(at_s * 1000), groups=groups, log_starts={}, log_ends=ends, seconds=0.0, problems=()
    )  # fmt: skip


def test_rate_is_known_from_the_second_reading_on() -> None:
    history = History()
    history.add(reading(100, {ORDERS: 1000, CLICKS: 5}))
    assert history.records_per_s is None and history.topic_rates == {}
    history.add(reading(102, {ORDERS: 1200, CLICKS: 5}))
    assert history.topic_rates == {"orders": 100.0, "clicks": 0.0}
    assert history.records_per_s == pytest.approx(100.0)


def test_new_topic_and_topic_that_was_created_again_give_no_negative_rate() -> None:
    history = History()
    history.add(reading(100, {ORDERS: 1000}))
    history.add(reading(101, {ORDERS: 10, CLICKS: 500}))
    assert history.topic_rates == {"orders": 10.0, "clicks": 0.0}


def test_lag_of_each_group_is_kept_until_the_group_is_deleted() -> None:
    history = History()
    for second in range(READINGS_MAX + 10):
        history.add(reading(100 + second, {ORDERS: 1000}, committed=second))
    assert len(history.totals) == READINGS_MAX == len(history.group_lags["g"])
    assert history.totals[-1].lag == history.group_lags["g"][-1] == 1000 - (READINGS_MAX + 9)
    history.add(reading(1000, {ORDERS: 1000}))
    assert history.group_lags == {} and history.totals[-1].lag is None
