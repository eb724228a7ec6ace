"""What the group state machines are given and what they give back. Pure: no I/O, no clock, no loop.

    request ──► handler(request, client, ticket, now) ──► Outcome ──► runtime: append records ──► replay them
                                                                               └──► durable? replies leave

A reply may be to another request than the one at hand: a join that completes a rebalance answers everybody who waits.
So each request comes with a ticket, and an outcome names the tickets that are answered. The runtime keeps all replies
of an outcome back until its records, and everything before them in the same log, are durable; when they cannot be, it
answers NOT_COORDINATOR instead and rebuilds the state from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ottla.coordinator.journal import Rebalance
from ottla.coordinator.records import CoordinatorRecord
from ottla.model.settings import BrokerSettings, GroupSettings
from ottla.wire import Message

#: whatever the runtime needs to find a parked request again; state machines keep it and give it back unseen
Ticket = Any

NEVER = float("inf")


class Moment(NamedTuple):
    """Now, on both clocks."""

    #: seconds; every deadline counts on it
    monotonic_s: float
    #: goes into records, and into nothing that is compared with ``monotonic_s``
    wall_ms: int


class Client(NamedTuple):
    """Who asks."""

    client_id: str
    host: str
    #: of the request at hand
    version: int
    #: counts the connections in the order in which they were accepted; 0 where that is not known
    connection: int = 0
    #: of the request at hand
    correlation_id: int = 0


class Topics(Protocol):
    """What the coordinator knows of topics."""

    def partition_count(self, topic: str) -> int | None:
        """None when there is no such topic."""

    def topic_id(self, topic: str) -> bytes | None: ...

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def names(self) -> Iterable[str]: ...

    def end_offset(self, topic: str, partition: int) -> int | None:
        """Where readers can read up to; None when this broker does not know."""

    @property
    def version(self) -> int:
        """Goes up with every change."""


@dataclass(slots=True, kw_only=True)
class World:
    """What every group of this broker shares."""

    #: replaced as a whole when a setting changes at run time: read it anew each time
    settings: BrokerSettings
    topics: Topics
    #: a fresh UUID as text, for member ids
    new_uuid: Callable[[], str]
    #: group -> settings of its own, changed at run time
    group_overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

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
    """Who writes in a transaction."""

    producer_id: int
    epoch: int


@dataclass(slots=True)
class Outcome:
    """What a handler of groups decided; that of transactions is in ``transaction_records.py``."""

    #: appended as one batch, in this order, then replayed
    records: list[CoordinatorRecord] = field(default_factory=list)
    replies: list[tuple[Ticket, Message]] = field(default_factory=list)
    #: rebalances that this completes, for those who ask why
    rebalances: list[Rebalance] = field(default_factory=list)
    #: the batch belongs to this producer's transaction: what it says counts when the transaction is committed
    producer: Producer | None = None
