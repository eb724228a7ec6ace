"""Which quota is for whom, and how long clients wait."""

from __future__ import annotations

from random import Random

import pytest

from ottla.security.quotas import BURST_S, DEFAULT, THROTTLE_S_MAX, Bucket, Entity, Quota, Quotas

RATE = Quota.PRODUCE.value
#: from the most specific to the least specific one
PRECEDENCE = [
    Entity("alice", "app"), Entity("alice", DEFAULT), Entity("alice"), Entity(DEFAULT, "app"), Entity(DEFAULT, DEFAULT),
    Entity(DEFAULT), Entity(None, "app"), Entity(None, DEFAULT),
]  # fmt: skip


def rate(quotas: Quotas, user: str = "alice", client_id: str = "app", quota: Quota = Quota.PRODUCE) -> float | None:
    found = quotas.bucket(quota, user, client_id, 0.0)
    return None if found is None else found.rate


def test_most_specific_quota_wins() -> None:
    quotas = Quotas()
    assert rate(quotas) is None
    for number, entity in reversed(list(enumerate(PRECEDENCE, 1))):
        quotas.put(entity, {RATE: number})
        assert rate(quotas) == number
    for number, entity in enumerate(PRECEDENCE, 1):
        assert rate(quotas) == number
        quotas.put(entity, {})
    assert rate(quotas) is None


def test_entity_without_the_quota_does_not_hide_others() -> None:
    quotas = Quotas()
    quotas.put(Entity("alice", "app"), {Quota.FETCH.value: 5})
    quotas.put(Entity(DEFAULT), {RATE: 7})
    assert rate(quotas) == 7 and rate(quotas, quota=Quota.FETCH) == 5
    assert quotas.active == {Quota.FETCH, Quota.PRODUCE}


@pytest.mark.parametrize(
    ("entity", "shares_clients", "shares_users"),
    [(Entity("alice"), True, False), (Entity(DEFAULT), True, False), (Entity(DEFAULT, DEFAULT), False, False),
     (Entity(None, DEFAULT), False, True)],
)  # fmt: skip
def test_who_shares_a_bucket(entity: Entity, shares_clients: bool, shares_users: bool) -> None:
    quotas = Quotas()
    quotas.put(entity, {RATE: 10})
    one = quotas.bucket(Quota.PRODUCE, "alice", "app", 0.0)
    assert one is not None
    assert (quotas.bucket(Quota.PRODUCE, "alice", "other", 0.0) is one) == shares_clients
    assert (quotas.bucket(Quota.PRODUCE, "bob", "app", 0.0) is one) == shares_users


def test_changed_rate_applies_to_what_is_owed() -> None:
    quotas = Quotas()
    quotas.put(Entity("alice"), {RATE: 10})
    bucket = quotas.bucket(Quota.PRODUCE, "alice", "app", 0.0)
    assert bucket is not None and bucket.take(30, 0.0) == 2.0
    quotas.put(Entity("alice"), {RATE: 40})
    same = quotas.bucket(Quota.PRODUCE, "alice", "app", 0.0)
    assert same is bucket and same.wait_s(0.0) == 0.5


def test_connections_of_an_address() -> None:
    quotas = Quotas()
    assert quotas.ip_bucket("10.0.0.1", 0.0) is None
    quotas.put(Entity(ip=DEFAULT), {Quota.CONNECTION.value: 2})
    quotas.put(Entity(ip="10.0.0.2"), {Quota.CONNECTION.value: 8})
    one, two = quotas.ip_bucket("10.0.0.1", 0.0), quotas.ip_bucket("10.0.0.2", 0.0)
    assert one is not None and two is not None and (one.rate, two.rate) == (2, 8)


@pytest.mark.parametrize("size", [1, 300, 50_000, 900_000])
def test_rate_over_a_minute_is_the_quota(size: int) -> None:
    """A client that waits as long as it is told, and then sends at once."""
    rng, bucket, now, used = Random(size), Bucket(100_000, 0.0), 0.0, 0.0
    while now < 60:
        amount = size * rng.uniform(0.5, 1.5)
        used += amount
        now += bucket.take(amount, now) + 0.0005
    assert used / now == pytest.approx(min(100_000, size / 0.0005), rel=0.1)


def test_debt_that_is_longer_than_the_longest_wait_is_kept() -> None:
    bucket = Bucket(1, 0.0)
    assert bucket.take(100 + BURST_S, 0.0) == THROTTLE_S_MAX
    assert bucket.wait_s(70.0) == 30.0 and bucket.wait_s(90.0) == 10.0 and bucket.may_take(100.0)


def test_time_that_goes_back_changes_nothing() -> None:
    bucket = Bucket(10, 5.0)
    assert bucket.take(10, 4.0) == 0.0
    assert bucket.take(10, 5.0) == 1.0
