"""The budget of throttled replicas, and which replicas are throttled."""

from __future__ import annotations

import pytest

from ottla.broker.partitions.replication_throttle import ReplicationQuota, is_throttled
from ottla.model.setting_types import LONG_MAX


@pytest.mark.parametrize(
    ("replicas", "expected"), [((), False), (("*",), True), (("3:1", "4:2"), True), (("3:2", "4:1"), False)]
)
def test_replica_is_throttled_if_the_setting_names_its_partition_and_broker(
    replicas: tuple[str, ...], expected: bool
) -> None:
    assert is_throttled(replicas, 3, 1) is expected


def test_budget_is_one_second_at_once_and_then_the_rate() -> None:
    quota = ReplicationQuota()
    sent, now, rate = 0, 100.0, 1000
    while now < 110:
        if wait_s := quota.wait_s(rate, now):
            now += wait_s
        else:
            quota.record(250, rate, now)
            sent += 250
    assert 10_000 <= sent <= 11_250
    assert quota.total_bytes == sent


def test_overdrawn_budget_is_paid_back() -> None:
    quota = ReplicationQuota()
    quota.record(6000, 1000, 0.0)
    assert quota.wait_s(1000, 4.9) > 0
    assert quota.wait_s(1000, 5.1) == 0


def test_rate_of_zero_stops_all_until_it_is_raised() -> None:
    quota = ReplicationQuota()
    assert quota.wait_s(0, 0.0) == quota.wait_s(0, 1000.0) == 1.0
    quota.wait_s(1000, 1001.0)
    assert quota.wait_s(1000, 1001.1) == 0


def test_default_rate_never_waits() -> None:
    quota = ReplicationQuota()
    quota.record(1 << 40, LONG_MAX, 0.0)
    assert quota.wait_s(LONG_MAX, 0.0) == 0
