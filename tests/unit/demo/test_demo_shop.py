"""The shop's events: the same for a seed, as messy as promised, and a truth that can be found in them again."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from ottla.demo.shop import CLICKS, DUPLICATED, LATE, MALFORMED, ORDERS, PAYMENTS, Event, Revenue, ShopEvents

COUNT = 20_000


@pytest.fixture(scope="module")
def shop() -> ShopEvents:
    return ShopEvents(7, per_minute=COUNT / 60, limit=COUNT)


@pytest.fixture(scope="module")
def events(shop: ShopEvents) -> list[Event]:
    return list(shop)


def test_same_seed_gives_the_same_bytes() -> None:
    assert list(ShopEvents(3, limit=500)) == list(ShopEvents(3, limit=500))


def test_another_seed_gives_others() -> None:
    assert list(ShopEvents(3, limit=500)) != list(ShopEvents(4, limit=500))


def test_another_day_has_other_ids() -> None:
    later = ShopEvents(3, start=datetime.fromisoformat("2026-02-01T08:00:00Z"), limit=500)
    keys = {event.key for event in later if event.topic == CLICKS}
    assert not keys & {event.key for event in ShopEvents(3, limit=500)}


def test_there_are_as_many_as_asked_for(shop: ShopEvents, events: list[Event]) -> None:
    assert len(events) == shop.totals.events == COUNT


def test_they_are_sent_in_the_order_of_time(events: list[Event]) -> None:
    times = [event.sent_at for event in events]
    assert times == sorted(times)


def test_an_hour_of_events_takes_about_an_hour(events: list[Event]) -> None:
    assert timedelta(minutes=55) < events[-1].sent_at - events[0].sent_at < timedelta(minutes=65)


def test_shares_of_what_is_odd_are_as_promised(shop: ShopEvents, events: list[Event]) -> None:
    totals = shop.totals
    can_be_sent_twice = totals.sent[ORDERS] + totals.sent[PAYMENTS]
    assert totals.malformed.total() / COUNT == pytest.approx(MALFORMED, rel=0.25)
    assert totals.late.total() / COUNT == pytest.approx(LATE, rel=0.25)
    assert totals.duplicates.total() / can_be_sent_twice == pytest.approx(DUPLICATED, rel=0.35)


def test_late_ones_are_late_and_no_later_than_the_pipeline_waits(events: list[Event]) -> None:
    most = {ORDERS: timedelta(minutes=3), PAYMENTS: timedelta(minutes=3), CLICKS: timedelta(seconds=20)}
    delays = {topic: timedelta(0) for topic in most}
    for event in events:
        if not event.held_back:
            delays[event.topic] = max(delays[event.topic], event.sent_at - event.event_time)
    assert all(timedelta(seconds=5) < delays[topic] <= most[topic] for topic in most)


def test_held_back_orders_are_far_behind_everybody_else(shop: ShopEvents, events: list[Event]) -> None:
    held_back = [event for event in events if event.held_back]
    assert len(held_back) == shop.totals.held_back > 0
    assert all(event.topic == ORDERS for event in held_back)
    assert all(event.sent_at - event.event_time > timedelta(minutes=29) for event in held_back)


def test_what_is_taken_together_is_close_together_and_nothing_is_left_out() -> None:
    shop, whole = ShopEvents(5, per_minute=20, limit=1_200), list(ShopEvents(5, per_minute=20, limit=1_200))
    parts = iter(lambda: shop.take(timedelta(seconds=15)), [])
    taken = list(parts)
    assert [event for part in taken for event in part] == whole
    assert all(part[-1].sent_at - part[0].sent_at < timedelta(seconds=15) for part in taken)
    assert all(len({event.held_back for event in part}) == 1 for part in taken)


def test_the_truth_can_be_found_in_the_bytes(shop: ShopEvents, events: list[Event]) -> None:
    """By a second, slower count that knows nothing but values."""
    orders, payments, clicks, malformed = _read([event for event in events if not event.held_back])
    totals = shop.totals
    assert (len(orders), len(payments)) == (totals.good[ORDERS], totals.good[PAYMENTS])
    assert clicks == totals.clicks
    assert malformed == totals.malformed.total()
    revenue: dict[tuple[datetime, str], Revenue] = {}
    for payment in payments.values():
        order = orders.get(payment["order_id"])
        if order is not None:
            at = (_minute(payment["paid_at"]), order["currency"])
            before = revenue.get(at, Revenue(Decimal(0), 0))
            revenue[at] = Revenue(before.amount + payment["amount"], before.payments + 1)
    assert revenue == totals.revenue


def test_closing_makes_every_minute_before_it_final() -> None:
    shop = ShopEvents(2, per_minute=10, limit=600)
    last = list(shop)[-1]
    before = dict(shop.totals.revenue), shop.totals.clicks.copy()
    closing = shop.closing()
    assert [event.topic for event in closing] == [ORDERS, PAYMENTS, CLICKS]
    assert all(event.event_time - last.sent_at >= timedelta(hours=1) for event in closing)
    assert (shop.totals.revenue, shop.totals.clicks) == before
    assert shop.totals.events == 603


def test_a_shop_that_never_closes_does_not_remember_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.demo.shop._MINUTES_MAX", 50)
    monkeypatch.setattr("ottla.demo.shop._OPEN_ORDERS_MAX", 20)
    shop = ShopEvents(1, per_minute=20)
    for _ in range(5_000):
        next(shop)
    assert len(shop.totals.revenue) <= 50
    assert len(shop.totals.clicks) <= 50


def _read(
    events: list[Event],
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], Counter[tuple[datetime, str]], int]:
    orders: dict[str, dict[str, Any]] = {}
    payments: dict[str, dict[str, Any]] = {}
    clicks: Counter[tuple[datetime, str]] = Counter()
    malformed = 0
    for event in events:
        try:
            fields = json.loads(event.value, parse_float=Decimal)
            times = [_minute(fields[name]) for name in ("ordered_at", "paid_at", "clicked_at") if name in fields]
        except ValueError:
            malformed += 1
            continue
        if not times or fields.get("order_id", "") is None or fields.get("amount", 1) <= 0:
            malformed += 1
        elif event.topic == CLICKS:
            clicks[times[0], fields["page"]] += 1
        elif event.topic == ORDERS:
            orders[fields["order_id"]] = fields
        else:
            payments[fields["payment_id"]] = fields
    return orders, payments, clicks, malformed


def _minute(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(second=0, microsecond=0)
