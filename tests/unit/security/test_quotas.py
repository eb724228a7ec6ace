"""Which quota is for whom, and how long clients wait."""

from __future__ import annotations

import math
from random import Random

import pytest

from ottla.security.quotas import DEFAULT, Bucket, Entity, Quota, Quotas, new_bucket

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


def test_debt_of_bytes_is_kept_however_long_it_takes() -> None:
    bucket = Bucket(1, 0.0)
    assert bucket.take(101, 0.0) == 100.0
    assert bucket.wait_s(70.0) == 30.0 and bucket.wait_s(100.0) == 0.0


def test_throttle_time_fits_into_its_field() -> None:
    assert int(Bucket(0.001, 0.0).take(1e9, 0.0) * 1000) == 2**31 - 1


def test_request_time_is_throttled_by_a_second_at_most_and_forgotten_after_eleven() -> None:
    bucket = new_bucket(Quota.REQUEST, 0.5, 0.0)
    assert bucket.take(100, 0.0) == 1.0
    assert bucket.wait_s(10.5) == 0.5 and bucket.wait_s(11.0) == 0.0


def test_percentage_is_a_part_of_a_second_per_second() -> None:
    quotas = Quotas()
    quotas.put(Entity("alice"), {Quota.REQUEST.value: 50})
    assert rate(quotas, quota=Quota.REQUEST) == 0.5


def test_values_that_are_not_positive_numbers_are_ignored() -> None:
    quotas = Quotas()
    quotas.put(Entity("alice"), {RATE: 0, Quota.FETCH.value: math.nan, Quota.REQUEST.value: -1})
    assert quotas.active == frozenset() and rate(quotas) is None


def test_lower_rate_does_not_lengthen_what_is_owed() -> None:
    bucket = Bucket(100, 0.0)
    assert bucket.take(300, 0.0) == 2.0
    bucket.change_rate(1, 0.0)
    assert bucket.wait_s(0.0) == 2.0


def test_tokens_of_connections_are_taken_one_by_one() -> None:
    bucket = new_bucket(Quota.CONNECTION, 2, 0.0)
    assert [bucket.wait_for_one_s(0.0) for _ in range(21)] == [0.0] * 20 + [0.5]
    assert bucket.wait_for_one_s(0.5) == 0.0 and bucket.wait_for_one_s(0.5) == 0.5


def test_low_rate_of_connections_still_allows_one() -> None:
    bucket = new_bucket(Quota.CONNECTION, 0.01, 0.0)
    assert bucket.wait_for_one_s(0.0) == 0.0
    assert bucket.wait_for_one_s(50.0) == pytest.approx(50) and bucket.wait_for_one_s(100.0) == 0.0


def test_address_is_found_however_it_is_written() -> None:
    quotas = Quotas()
    quotas.put(Entity(ip="0:0:0:0:0:0:0:1"), {Quota.CONNECTION.value: 3})
    found = quotas.ip_bucket("::1", 0.0)
    assert found is not None and found.rate == 3


def test_time_that_goes_back_changes_nothing() -> None:
    bucket = Bucket(10, 5.0)
    assert bucket.take(10, 4.0) == 0.0
    assert bucket.take(10, 5.0) == 1.0
