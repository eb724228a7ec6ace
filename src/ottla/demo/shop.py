"""Generates the events of a shop: orders, payments and clicks, and the results that a pipeline must compute from them.

The shop has a clock of its own, which moves from event to event. The same seed and start give the same bytes. Each
event is one of these:

    fine          most of them
    malformed     cut off, of a wrong type, without an id, or with a negative amount: for quarantine, or dropped
    duplicate     sent again a little later, byte for byte
    late          sent after its time, but before the watermark of the pipeline has passed it
    held back     orders of a till that was offline: sent together, long after the watermark has passed them

`Totals` has the expected results. It grows with each event that is taken.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Any, NamedTuple

ORDERS = "shop.orders"
PAYMENTS = "shop.payments"
CLICKS = "shop.clicks"
TOPICS = (ORDERS, PAYMENTS, CLICKS)

#: the default start of the shop's clock: always the same, so that the seed alone decides the events
OPENING = datetime(2026, 1, 5, 8, tzinfo=UTC)

# Shares of all events. Held-back orders are sent in addition.
MALFORMED = 0.02
DUPLICATED = 0.02
LATE = 0.03

#: how late the late events are; the pipeline waits ten minutes for orders and payments, and one for clicks
_LATE_S = {ORDERS: (30, 180), PAYMENTS: (30, 180), CLICKS: (5, 20)}
_AGAIN_S = (1, 90)
_PAID_AFTER_S = (5, 120)
_TILL_EVERY = timedelta(minutes=45)
#: how old the orders of the till are: older than the watermark, whatever the batches
_TILL_AGE_S = (30 * 60, 40 * 60)
_TILL_ORDERS = (3, 6)
#: the last events are so much later that every minute before them is final
_CLOSING_AFTER = timedelta(hours=1)

_CLICKS_PER_VISIT = (1, 5)
_ORDERS_PER_VISIT = 0.5
_PAID = 0.92
_EVENTS_PER_VISIT = sum(_CLICKS_PER_VISIT) / 2 + _ORDERS_PER_VISIT * (1 + _PAID)

_PAGES = ("/", "/boots", "/coats", "/hats", "/lamps", "/sale", "/cart")
#: currency, its share, and the factor of its amounts; GBP is a currency that the pipeline does not know
_CURRENCIES = (("EUR", 0.6, 1), ("CZK", 0.25, 25), ("USD", 0.13, 1), ("GBP", 0.02, 1))
_CENTS = (499, 24_999)

#: bounds for a shop that never ends: orders that are not paid, minutes of results
_OPEN_ORDERS_MAX = 10_000
_MINUTES_MAX = 20_000


class Event(NamedTuple):
    """One record to send."""

    topic: str
    key: bytes
    value: bytes
    #: when it happened; the value of a malformed event may have another time
    event_time: datetime
    #: when it is sent, by the shop's clock; never earlier than the previous event
    sent_at: datetime
    #: whether it is sent long after the watermark has passed it
    held_back: bool = False


class Revenue(NamedTuple):
    """The revenue of one minute in one currency."""

    amount: Decimal
    payments: int


@dataclass(slots=True)
class Totals:
    """The numbers of sent events, and the results if no event is lost or counted twice."""

    #: by topic
    sent: Counter[str] = field(default_factory=Counter)
    duplicates: Counter[str] = field(default_factory=Counter)
    #: late but before the watermark has passed them, by topic
    late: Counter[str] = field(default_factory=Counter)
    #: orders only
    held_back: int = 0
    #: events that cannot be used, by topic and cause
    malformed: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: distinct usable events by topic: the rows of the trusted zone
    good: Counter[str] = field(default_factory=Counter)
    #: payments of good orders
    paid: int = 0
    #: by minute and currency, by minute and page
    revenue: dict[tuple[datetime, str], Revenue] = field(default_factory=dict)
    clicks: Counter[tuple[datetime, str]] = field(default_factory=Counter)

    @property
    def events(self) -> int:
        return self.sent.total()

    def malformed_in(self, topic: str, *causes: str) -> int:
        return sum(count for (one, cause), count in self.malformed.items() if one == topic and cause in causes)


class _Fate(Enum):
    FINE = "fine"
    LATE = "late"
    DUPLICATE = "duplicate"
    HELD_BACK = "held back"
    MALFORMED = "malformed"


class _Planned(NamedTuple):
    """An event that will be sent, with what `Totals` needs to count it. Sorted by time."""

    sent_ms: int
    number: int
    event: Event
    fate: _Fate
    fields: dict[str, Any]
    cause: str
    at_ms: int


class ShopEvents:
    """Iterates over events in the order in which they are sent, forever or until there are `limit` of them."""

    def __init__(
        self, seed: int = 1, *, start: datetime = OPENING, per_minute: float = 100.0, limit: int | None = None
    ) -> None:
        self.totals = Totals()
        self.limit = limit
        self.per_minute = per_minute
        #: the minute of the last events, which never becomes final
        self.open_minute: datetime | None = None
        self._random = Random(seed)
        self._start_ms = _milliseconds(start)
        # Ids of another start must differ, because a pipeline deduplicates by them.
        self._day = f"{self._start_ms // 60_000:x}"
        self._numbers = itertools.count()
        self._visits = itertools.count(1)
        self._waiting: list[_Planned] = []
        self._next_visit_ms = self._start_ms
        self._next_till_ms = self._start_ms + _TILL_EVERY // timedelta(milliseconds=1)
        self._now_ms = self._start_ms
        #: valid orders without a payment and payments without an order: currency, or time and amount, by order id
        self._orders: dict[str, str] = {}
        self._payments: dict[str, tuple[int, Decimal]] = {}

    @property
    def clock(self) -> datetime:
        """Return the time of the shop's clock."""
        return _moment(self._now_ms)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._upcoming() is None:
            raise StopIteration
        planned = heapq.heappop(self._waiting)
        self._now_ms = planned.sent_ms
        self._count(planned)
        return planned.event

    def take(self, within: timedelta) -> list[Event]:
        """Return the next events that are sent within this time of the first; held-back ones never with others."""
        events: list[Event] = []
        while (event := self._upcoming()) is not None:
            if events and (event.sent_at - events[0].sent_at >= within or event.held_back != events[0].held_back):
                break
            events.append(next(self))
        return events

    def _upcoming(self) -> Event | None:
        if self.limit is not None and self.totals.events >= self.limit:
            return None
        while not self._waiting or self._waiting[0].sent_ms > min(self._next_visit_ms, self._next_till_ms):
            if self._next_till_ms < self._next_visit_ms:
                self._plan_till()
            else:
                self._visit()
        return self._waiting[0].event

    def closing(self) -> list[Event]:
        """Return an order, its payment and a click, much later: they make every minute before them final."""
        at_ms = self._now_ms + _CLOSING_AFTER // timedelta(milliseconds=1)
        self._waiting = []
        order = {"order_id": f"o-{self._day}-closing", "customer_id": "c-0000", "amount": 1.0, "currency": "EUR"}
        payment = {"payment_id": f"p-{self._day}-closing", "order_id": order["order_id"], "amount": 1.0}
        click = {"session_id": f"s-{self._day}-closing", "page": "/"}
        for topic, fields in ((ORDERS, order), (PAYMENTS, payment), (CLICKS, click)):
            self._plan(topic, "c-0000", fields, at_ms, _Fate.FINE)
        self.open_minute = _minute(at_ms)
        for planned in self._waiting:
            self._count(planned)
        self.totals.revenue = {at: one for at, one in self.totals.revenue.items() if at[0] != self.open_minute}
        self.totals.clicks = Counter(
            {at: count for at, count in self.totals.clicks.items() if at[0] != self.open_minute}
        )
        self._now_ms = at_ms
        return [planned.event for planned in self._waiting]

    # -- events -------------------------------------------------------------------------------------------------------

    def _visit(self) -> None:
        """Plan the clicks of one customer, and perhaps an order and its payment."""
        random = self._random
        at_ms = self._next_visit_ms
        minutes_between = random.expovariate(self.per_minute / _EVENTS_PER_VISIT)
        self._next_visit_ms += max(1, int(minutes_between * 60_000))
        number = next(self._visits)
        session, customer = f"s-{self._day}-{number}", f"c-{random.randrange(2_000):04d}"
        for _ in range(random.randint(*_CLICKS_PER_VISIT)):
            self._send(CLICKS, session, {"session_id": session, "page": random.choice(_PAGES)}, at_ms)
            at_ms += random.randrange(1_000, 15_000)
        if random.random() >= _ORDERS_PER_VISIT:
            return
        order = self._new_order(f"o-{self._day}-{number}", customer)
        self._send(ORDERS, customer, order, at_ms)
        if random.random() < _PAID:
            payment = {
                "payment_id": f"p-{self._day}-{number}", "order_id": order["order_id"], "amount": order["amount"],
            }  # fmt: skip
            self._send(PAYMENTS, customer, payment, at_ms + self._between_ms(_PAID_AFTER_S))

    def _plan_till(self) -> None:
        """Plan the orders of a till that is online again."""
        sent_ms = self._next_till_ms
        self._next_till_ms += _TILL_EVERY // timedelta(milliseconds=1)
        for number in range(self._random.randint(*_TILL_ORDERS)):
            order = self._new_order(f"o-{self._day}-till-{sent_ms // 60_000:x}-{number}", "c-till")
            self._plan(
                ORDERS, "c-till", order, sent_ms - self._between_ms(_TILL_AGE_S), _Fate.HELD_BACK, sent_ms=sent_ms
            )

    def _new_order(self, order_id: str, customer: str) -> dict[str, Any]:
        shares = [share for _, share, _ in _CURRENCIES]
        ((currency, _, factor),) = self._random.choices(_CURRENCIES, shares)
        amount = self._random.randint(*_CENTS) * factor / 100
        return {"order_id": order_id, "customer_id": customer, "amount": amount, "currency": currency}

    def _between_ms(self, bounds_s: tuple[int, int]) -> int:
        return self._random.randrange(bounds_s[0] * 1_000, bounds_s[1] * 1_000)

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self, topic: str, key: str, fields: dict[str, Any], at_ms: int) -> None:
        """Plan an event: on time, late, twice, or malformed, at random."""
        drawn = self._random.random()
        # Clicks have no id, so a duplicate could not be recognised.
        again = DUPLICATED if topic != CLICKS else 0.0
        if drawn < MALFORMED:
            self._plan(topic, key, fields, at_ms, _Fate.MALFORMED)
        elif drawn < MALFORMED + LATE:
            self._plan(topic, key, fields, at_ms, _Fate.LATE, sent_ms=at_ms + self._between_ms(_LATE_S[topic]))
        else:
            self._plan(topic, key, fields, at_ms, _Fate.FINE)
            if drawn < MALFORMED + LATE + again:
                self._plan(topic, key, fields, at_ms, _Fate.DUPLICATE, sent_ms=at_ms + self._between_ms(_AGAIN_S))

    def _plan(
        self, topic: str, key: str, fields: dict[str, Any], at_ms: int, fate: _Fate, *, sent_ms: int | None = None
    ) -> None:
        sent_ms = at_ms if sent_ms is None else sent_ms
        value, cause = _encode({**fields, _TIME_FIELDS[topic]: _format(at_ms)}), ""
        if fate is _Fate.MALFORMED:
            value, cause = self._spoil(topic, fields, at_ms)
        event = Event(topic, key.encode(), value, _moment(at_ms), _moment(sent_ms), fate is _Fate.HELD_BACK)
        planned = _Planned(sent_ms, next(self._numbers), event, fate, fields, cause, at_ms)
        heapq.heappush(self._waiting, planned)

    def _spoil(self, topic: str, fields: dict[str, Any], at_ms: int) -> tuple[bytes, str]:
        """Return a value that cannot be used, and the cause that the pipeline must report."""
        time_field = _TIME_FIELDS[topic]
        whole = {**fields, time_field: _format(at_ms)}
        text = _encode(whole)
        ways: list[tuple[bytes, str]] = [
            (text[: len(text) // 2], "not JSON"),
            (_encode({**whole, time_field: "soon"}), "type mismatch"),
        ]
        if topic == ORDERS:
            ways.append((_encode({**whole, "order_id": None}), "order has an id"))
            ways.append((_encode({**whole, "amount": -whole["amount"]}), "amount is positive"))
        elif topic == PAYMENTS:
            ways.append((_encode({**whole, "order_id": None}), "payment belongs to an order"))
        else:
            ways.append((_encode(fields), "click has a time"))
        return self._random.choice(ways)

    # -- expected results ---------------------------------------------------------------------------------------------

    def _count(self, planned: _Planned) -> None:
        totals, topic = self.totals, planned.event.topic
        totals.sent[topic] += 1
        if planned.fate is _Fate.MALFORMED:
            totals.malformed[topic, planned.cause] += 1
        elif planned.fate is _Fate.DUPLICATE:
            totals.duplicates[topic] += 1
        elif planned.fate is _Fate.HELD_BACK:
            totals.held_back += 1
        else:
            totals.late[topic] += planned.fate is _Fate.LATE
            totals.good[topic] += 1
            self._count_good(topic, planned.fields, planned.at_ms)

    def _count_good(self, topic: str, fields: dict[str, Any], at_ms: int) -> None:
        if topic == CLICKS:
            self.totals.clicks[_minute(at_ms), fields["page"]] += 1
            _forget_oldest(self.totals.clicks, _MINUTES_MAX)
            return
        order_id = fields["order_id"]
        if topic == ORDERS:
            self._orders[order_id] = fields["currency"]
            _forget_oldest(self._orders, _OPEN_ORDERS_MAX)
        else:
            self._payments[order_id] = (at_ms, Decimal(str(fields["amount"])))
            _forget_oldest(self._payments, _OPEN_ORDERS_MAX)
        if order_id in self._orders and order_id in self._payments:
            currency, (paid_ms, amount) = self._orders.pop(order_id), self._payments.pop(order_id)
            at = (_minute(paid_ms), currency)
            before = self.totals.revenue.get(at, Revenue(Decimal(0), 0))
            self.totals.revenue[at] = Revenue(before.amount + amount, before.payments + 1)
            self.totals.paid += 1
            _forget_oldest(self.totals.revenue, _MINUTES_MAX)


_TIME_FIELDS = {ORDERS: "ordered_at", PAYMENTS: "paid_at", CLICKS: "clicked_at"}


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _milliseconds(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1_000, UTC) + timedelta(milliseconds=at_ms % 1_000)


def _minute(at_ms: int) -> datetime:
    return _moment(at_ms - at_ms % 60_000)


def _format(at_ms: int) -> str:
    return _moment(at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _forget_oldest(known: dict[Any, Any], count_max: int) -> None:
    while len(known) > count_max:
        del known[next(iter(known))]
