"""Quotas: how much a user, a client id or an address may use, and how long it must wait when it has used more. Pure.

    quota            unit                   counted for
    producer_byte_rate      bytes/s         bytes of Produce requests
    consumer_byte_rate      bytes/s         bytes of Fetch replies
    request_percentage      % of one CPU    time in which the broker handles requests
    controller_mutation_rate  changes/s     partitions that are created or deleted
    connection_creation_rate  connections/s connections of an address

The most specific quota wins, in Kafka's order: user and client id, user and default client id, user, default user and
client id, default user and default client id, default user, client id, default client id. A quota of a default entity
holds for each user or client id on its own.

Each quota has a bucket that fills with its rate, up to the amount of BURST_S seconds. What is used is taken out,
and the bucket may go below zero: then the client waits until it is back at zero. So over a longer time the rate is that
of the quota, whatever the sizes of the requests are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Final, NamedTuple

#: the name of the default entity in the metadata store
DEFAULT: Final = "<default>"
BURST_S: Final = 1.0
#: a client is never told to wait longer at a time; it still owes the rest, and waits again after its next request
THROTTLE_S_MAX: Final = 30.0
#: buckets that are kept; when there are more, those of clients that owe nothing are forgotten
_BUCKETS_MAX: Final = 50_000


class Quota(Enum):
    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"


class Entity(NamedTuple):
    """Who a quota is for: a name, DEFAULT, or None if the quota does not depend on it."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class Bucket:
    """What is left of a quota."""

    __slots__ = ("_changed_at", "_left", "rate")

    def __init__(self, rate: float, now: float) -> None:
        self.rate = rate
        self._left = rate * BURST_S
        self._changed_at = now

    def take(self, amount: float, now: float) -> float:
        """Use an amount. Return for how many seconds the client must wait."""
        self._fill(now)
        self._left -= amount
        return self.wait_s(now)

    def wait_s(self, now: float) -> float:
        self._fill(now)
        if self._left >= 0:
            return 0.0
        return min(-self._left / self.rate, THROTTLE_S_MAX) if self.rate > 0 else THROTTLE_S_MAX

    def may_take(self, now: float) -> bool:
        """Return whether nothing is owed: a strict quota then refuses the request instead of delaying the next one."""
        return self.wait_s(now) == 0.0

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._left >= self.rate * BURST_S

    def change_rate(self, rate: float, now: float) -> None:
        self._fill(now)
        self.rate = rate
        self._left = min(self._left, rate * BURST_S)

    def _fill(self, now: float) -> None:
        if now > self._changed_at:
            self._left = min(self._left + (now - self._changed_at) * self.rate, self.rate * BURST_S)
            self._changed_at = now


#: for each quota: the rate, and the part of (user, client id) that shares a bucket
_Found = tuple[float, tuple[str | None, str | None]]


class Quotas:
    """All quotas of the cluster, and the buckets of the clients of this broker."""

    def __init__(self) -> None:
        self._rates: dict[Entity, Mapping[str, float]] = {}
        self._buckets: dict[tuple[Quota, str | None, str | None], Bucket] = {}
        #: the bucket of a user and client id; None if there is no quota
        self._resolved: dict[tuple[Quota, str, str], Bucket | None] = {}
        self._ip_buckets: dict[str, Bucket] = {}
        #: whether a quota of this kind exists at all: without one nothing is counted
        self.active: frozenset[Quota] = frozenset()

    # -- changes --------------------------------------------------------------------------------------------------

    def put(self, entity: Entity, rates: Mapping[str, float]) -> None:
        """Replace the quotas of an entity; none remove it."""
        if rates:
            self._rates[entity] = dict(rates)
        else:
            self._rates.pop(entity, None)
        names = {name for each in self._rates.values() for name in each}
        self.active = frozenset(quota for quota in Quota if quota.value in names)
        # Buckets keep what is owed. Their rates are looked up again when they are needed next.
        self._resolved.clear()

    def entities(self) -> Iterator[tuple[Entity, Mapping[str, float]]]:
        yield from self._rates.items()

    # -- buckets --------------------------------------------------------------------------------------------------

    def bucket(self, quota: Quota, user: str, client_id: str, now: float) -> Bucket | None:
        """Return the bucket that a client of this user uses; None if there is no quota for it."""
        key = quota, user, client_id
        if key in self._resolved:
            return self._resolved[key]
        found = self._find(quota, user, client_id)
        made = None
        if found is not None:
            rate, (shared_user, shared_client) = found
            place = quota, shared_user, shared_client
            made = self._buckets.get(place)
            if made is None:
                self._make_room(now)
                made = self._buckets[place] = Bucket(rate, now)
            elif made.rate != rate:
                made.change_rate(rate, now)
        if len(self._resolved) >= _BUCKETS_MAX:
            self._resolved.clear()
        self._resolved[key] = made
        return made

    def _make_room(self, now: float) -> None:
        if len(self._buckets) >= _BUCKETS_MAX:
            self._buckets = {place: each for place, each in self._buckets.items() if not each.is_full(now)}
            self._resolved.clear()

    def _find(self, quota: Quota, user: str, client_id: str) -> _Found | None:
        both, user_only, client_only = (user, client_id), (user, None), (None, client_id)
        for entity, shared in (
            (Entity(user, client_id), both),
            (Entity(user, DEFAULT), both),
            (Entity(user), user_only),
            (Entity(DEFAULT, client_id), both),
            (Entity(DEFAULT, DEFAULT), both),
            (Entity(DEFAULT), user_only),
            (Entity(None, client_id), client_only),
            (Entity(None, DEFAULT), client_only),
        ):
            rate = self._rates.get(entity, {}).get(quota.value)
            if rate is not None:
                return rate, shared
        return None

    def ip_bucket(self, ip: str, now: float) -> Bucket | None:
        """Return the bucket for new connections of an address; None if there is no quota for it."""
        name = Quota.CONNECTION.value
        rate = self._rates.get(Entity(ip=ip), {}).get(name, self._rates.get(Entity(ip=DEFAULT), {}).get(name))
        if rate is None:
            self._ip_buckets.pop(ip, None)
            return None
        made = self._ip_buckets.get(ip)
        if made is None:
            if len(self._ip_buckets) >= _BUCKETS_MAX:
                self._ip_buckets = {each: kept for each, kept in self._ip_buckets.items() if not kept.is_full(now)}
            made = self._ip_buckets[ip] = Bucket(rate, now)
        elif made.rate != rate:
            made.change_rate(rate, now)
        return made
