"""Parameters and results of the coordinators' state machines. Pure: no I/O, no clock, no event loop.

    request ──► handler(request, client, ticket, now) ──► Outcome ──► runtime: append the records ──► replay them
                                                                               └──► durable: send the replies

One request can complete other requests: the join that completes a rebalance completes all parked joins. Each request
therefore has a ticket, and an outcome has a reply for each ticket that it completes. The runtime sends the replies of
an outcome when its records, and all records before them in the same log, are durable. If the write fails, the runtime
replies NOT_COORDINATOR instead and rebuilds the state from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ottla.broker.groups.journal import Rebalance
from ottla.broker.groups.records import CoordinatorRecord
from ottla.broker.groups.usage import HostUsage
from ottla.model.settings import BrokerSettings, GroupSettings
from ottla.wire import Message

#: identifies a parked request for the runtime; state machines store it and return it without reading it
Ticket = Any

NEVER = float("inf")


class Moment(NamedTuple):
    """The current time of both clocks."""

    #: in seconds; all deadlines of sessions and rebalances use this clock
    monotonic_s: float
    #: the clock of timestamps in records; never compared with ``monotonic_s``
    wall_ms: int


class Topics(Protocol):
    """The topic metadata that the coordinators read."""

    def partition_count(self, topic: str) -> int | None:
        """Return the number of partitions, or None if the topic does not exist."""

    def topic_id(self, topic: str) -> bytes | None: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def names(self) -> Iterable[str]: ...

    def end_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset up to which consumers can read, or None if this broker does not know it."""

    @property
    def version(self) -> int:
        """Return a number that increases with every change of the metadata."""


@dataclass(slots=True, kw_only=True)
class CoordinatorContext:
    """Dependencies shared by all groups and transactional ids of this broker."""

    #: replaced by a new object when a setting changes at run time: do not keep a reference to the old object
    settings: BrokerSettings
    topics: Topics
    #: returns a new UUID as text, for member ids
    new_uuid: Callable[[], str]
    #: group -> settings that override the broker's settings; changes at run time
    group_overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    usage: HostUsage = field(default_factory=HostUsage)
    #: returns how many connections the broker has accepted since its start
    accepted: Callable[[], int] = lambda: 0
    #: unloads shards if this broker was paused for so long that another one may coordinate in its place
    check_lease: Callable[[], None] = lambda: None

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the session timeout of a group of the consumer protocol."""
        if overrides := self.group_overrides.get(group_id):
            return GroupSettings.resolve(overrides, self.settings).consumer_session_timeout_ms
        return self.settings.group_consumer_session_timeout_ms

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval of a group of the consumer protocol."""
        if overrides := self.group_overrides.get(group_id):
            return GroupSettings.resolve(overrides, self.settings).consumer_heartbeat_interval_ms
        return self.settings.group_consumer_heartbeat_interval_ms


class Producer(NamedTuple):
    """The producer id and epoch that write in a transaction."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Outcome:
    """The result of an operation on a group. ``transaction_records.py`` has the result for transactions."""

    #: appended as one batch, in this order, then replayed
    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Ticket, Message]] = field(default_factory=list)
    #: rebalances that the operation completes, for the journal that explains rebalances
    rebalances: list[Rebalance] = field(default_factory=list)
    #: the batch belongs to this producer's transaction; its offsets are pending until the transaction is committed
    producer: Producer | None = None
