"""Parameters and results of the coordinators' state machines. Pure: no I/O, no clock, no event loop.

    request ──► operation(shard, now) ──► Outcome ──► runtime: append the records ──► replay them
                                                                └──► durable: answer the requests

State machines know neither the requests nor the replies of the wire protocol. An operation returns the result of its
request, and the ticket of the request turns the result into a reply. One request can complete other requests: the join
that completes a rebalance completes all parked joins. A request that may be parked therefore gives its ticket to the
state machine, and an outcome has a result for each ticket that it completes. The runtime answers the requests of an
outcome when its records, and all records before them in the same log, are durable. If the write fails, it refuses them
with NOT_COORDINATOR instead and rebuilds the state from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ottla.model.settings import BrokerSettings

NEVER = float("inf")

#: the result of a request
R = TypeVar("R")


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
    """Dependencies shared by all shards of a coordinator."""

    #: replaced by a new object when a setting changes at run time: do not keep a reference to the old object
    settings: BrokerSettings
    topics: Topics
    #: returns how many connections the broker has accepted since its start
    accepted: Callable[[], int] = lambda: 0
    #: unloads shards if this broker was paused for so long that another one may coordinate in its place
    check_lease: Callable[[], None] = lambda: None


class Producer(NamedTuple):
    """The producer id and epoch that write in a transaction."""

    producer_id: int
    epoch: int


class Ticket(Protocol):
    """A request that is answered later. A state machine keeps it and returns it with a result, without calling it."""

    def answer(self, result: Any) -> None:
        """Turn the result of the request into a reply, and send it."""

    def refuse(self, code: int) -> None:
        """Reply with an error code that applies to the whole request."""


@dataclass(slots=True)
class Outcome(Generic[R]):
    """What an operation decided. Coordinators add what else they need."""

    #: appended as one batch, in this order, then replayed
    records: list[Any] = field(default_factory=list)
    #: of the request that began the operation; None if it has been given its ticket, or if there is no request
    result: R | None = None
    #: results of requests whose tickets the state machine has
    replies: list[tuple[Ticket, Any]] = field(default_factory=list)
    #: the batch belongs to this producer's transaction; its records are pending until the transaction is committed
    producer: Producer | None = None
