"""Quotas: how much a user, a client id or an address may use, and how long it must wait when it has used more. Pure.

    quota                     unit            counted for
    producer_byte_rate        bytes/s         bytes of Produce requests
    consumer_byte_rate        bytes/s         bytes of records in Fetch replies
    request_percentage        % of one CPU    time in which the broker handles requests
    controller_mutation_rate  partitions/s    partitions that are created or deleted
    connection_creation_rate  connections/s   connections of an address

The most specific quota wins, in Kafka's order: user and client id, user and default client id, user, default user and
client id, default user and default client id, default user, client id, default client id. A quota of a default entity
applies to each user or client id separately.

Each quota has a token bucket that fills at the rate of the quota. A request takes its tokens after it was handled, so
that the bucket may go below zero: then the client waits until it is at zero again. Over a longer time the rate is
therefore that of the quota, whatever the sizes of the requests are.

Kafka measures rates over 11 windows of one second, which lets a client use ten seconds' worth at once, again and
again. Here it is one second's worth for bytes and request time, because with Kafka's windows a producer exceeds its
quota in its first minute: by 3 to 47 % with one connection, and 2.8 times with five, in a simulation of them. The
quotas of mutations and of connections have Kafka's burst: 11 seconds for controller mutations (Kafka has a token bucket
for them, too), ten for connections.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from enum import Enum
from ipaddress import ip_address
from typing import Final, NamedTuple

#: the name of the default entity in the metadata store
DEFAULT: Final = "<default>"
#: tokens that a full bucket has, as the time in which it is filled
BURST_S: Final = 1.0
#: throttle_time_ms is an int32
THROTTLE_S_MAX: Final = (2**31 - 1) / 1000
#: as in Kafka, a client is throttled by at most one window at a time for the time of its requests
REQUEST_THROTTLE_S_MAX: Final = 1.0
#: a bucket for request time goes below zero by at most this many seconds; Kafka's windows cover the same time
_REQUEST_DEBT_S_MAX: Final = 11.0
#: buckets that are kept; when there are more, full ones are deleted
_BUCKETS_MAX: Final = 50_000


class Quota(Enum):
    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    CONTROLLER_MUTATION = "controller_mutation_rate"
    CONNECTION = "connection_creation_rate"

    #: members are looked up for each request; Enum computes a hash in Python
    __hash__ = object.__hash__

    @property
    def burst_s(self) -> float:
        return _BURSTS_S.get(self, BURST_S)


_BURSTS_S: Final = {Quota.CONTROLLER_MUTATION: 11.0, Quota.CONNECTION: 10.0}


class Entity(NamedTuple):
    """Who a quota is for: a name, DEFAULT, or None if the quota does not depend on it."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class Bucket:
    """The token bucket of one quota; below zero while its client must wait."""

    __slots__ = ("_burst_s", "_changed_at", "_debt_s_max", "_left", "_wait_s_max", "rate")

    def __init__(
        self,
        rate: float,
        now: float,
        *,
        burst_s: float = BURST_S,
        wait_s_max: float = THROTTLE_S_MAX,
        debt_s_max: float = math.inf,
    ) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self._wait_s_max = wait_s_max
        self._debt_s_max = debt_s_max
        self._left = rate * burst_s
        self._changed_at = now

    @property
    def size(self) -> float:
        """Return the number of tokens in a full bucket."""
        return self.rate * self._burst_s

    def take(self, amount: float, now: float) -> float:
        """Take this amount of tokens. Return for how many seconds the client must wait."""
        self._fill(now)
        left = self._left - amount
        if left >= 0:
            self._left = left
            return 0.0
        self._left = max(left, -self.rate * self._debt_s_max)
        return min(-self._left / self.rate, self._wait_s_max)

    def wait_s(self, now: float) -> float:
        """Return the seconds until the bucket is at zero again; 0 if it is not below zero."""
        self._fill(now)
        return 0.0 if self._left >= 0 else min(-self._left / self.rate, self._wait_s_max)

    def wait_for_one_s(self, now: float) -> float:
        """Take one token if there is one and return 0; otherwise return the seconds until there is one."""
        self._fill(now)
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self.rate

    def is_full(self, now: float) -> bool:
        self._fill(now)
        return self._left >= self.size

    def change_rate(self, rate: float, now: float) -> None:
        """Fill at another rate from now on.

        A higher rate shortens the time that a client must still wait; a lower rate does not extend it.
        """
        self._fill(now)
        self._left = max(self._left, self._left / self.rate * rate) if self._left < 0 else self._left
        self.rate = rate
        self._left = min(self._left, self.size)

    def _fill(self, now: float) -> None:
        if now > self._changed_at:
            self._left = min(self._left + (now - self._changed_at) * self.rate, self.size)
            self._changed_at = now


def new_bucket(quota: Quota, rate: float, now: float) -> Bucket:
    """Return a full bucket for a quota. ``rate`` is in units per second (``rate_of``)."""
    if quota is Quota.REQUEST:
        return Bucket(rate, now, wait_s_max=REQUEST_THROTTLE_S_MAX, debt_s_max=_REQUEST_DEBT_S_MAX)
    # A bucket that never has a whole token would refuse every connection.
    burst_s = max(quota.burst_s, 1 / rate) if quota is Quota.CONNECTION else quota.burst_s
    return Bucket(rate, now, burst_s=burst_s)


def is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def rate_of(quota: Quota, value: float) -> float:
    """Return the rate that the value of a quota stands for: 50 % is half a second per second."""
    return value / 100 if quota is Quota.REQUEST else value


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
        """Replace the quotas of an entity; none remove it. Values that are not positive numbers are ignored."""
        if entity.ip is not None and entity.ip != DEFAULT and is_address(entity.ip):
            entity = Entity(ip=str(ip_address(entity.ip)))  # as the system writes addresses of connections
        valid = {name: rate for name, rate in rates.items() if math.isfinite(rate) and rate > 0}
        if valid:
            self._rates[entity] = valid
        else:
            self._rates.pop(entity, None)
        names = {name for each in self._rates.values() for name in each}
        self.active = frozenset(quota for quota in Quota if quota.value in names)
        # Buckets keep their tokens. Their rates are looked up again when they are used next.
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
                made = self._buckets[place] = new_bucket(quota, rate, now)
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
            value = self._rates.get(entity, {}).get(quota.value)
            if value is not None:
                return rate_of(quota, value), shared
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
            made = self._ip_buckets[ip] = new_bucket(Quota.CONNECTION, rate, now)
        elif made.rate != rate:
            made.change_rate(rate, now)
        return made
