"""What a part of the broker is: a feature with its APIs, its periodic work and its end.

`assembly.py` creates the components, each with the others that it needs, and `components.py` treats all of them alike.
It calls

    apis               once, for the table of `dispatch.py`
    on_settings        when the metadata were read, and after each change of the settings of brokers in them
    on_access          after a change of ACLs, or of settings of users, client ids or addresses
    on_view            after every change of the metadata, in the order of the list in `assembly.py`; a component gets
                       ``on_access`` and ``on_view`` before the next component gets either
    start              when clients can connect
    tick               once a second
    metrics            for each metrics page: first ``collect_metrics`` and ``metrics`` of all, then
                       ``detailed_metrics``
    check_invariants   in simulations, while the broker runs
    complete_requests  when the broker stops, in the reverse order of the list: answer the requests that wait
    stop               when no request is in progress any more, in the reverse order of the list

A component overrides what it needs. To add a feature, write a package with a component, and add it to the list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ottla.broker.metadata.view import AccessChanges, ViewChanges
from ottla.broker.request import RequestContext
from ottla.env.metrics import Page
from ottla.wire import Message

ApiHandler = Callable[[Any, RequestContext], Message | Awaitable[Message]]


class ServedApi(NamedTuple):
    """A row of the table of APIs. An API is advertised if and only if it is served."""

    version_min: int
    version_max: int
    #: None for the APIs that `dispatch.py` handles itself
    handler: ApiHandler | None = None
    #: whether replies may be cached: they depend on the request and the metadata only
    cached: bool = False
    #: a small request may have a large reply, which takes long to make
    large_reply: bool = False
    #: advertised instead of ``version_min``: librdkafka before 2.11 compresses only if it sees Produce v0 (KAFKA-18659)
    advertised_min: int | None = None


class Component:
    """A part of the broker; see above."""

    def apis(self) -> Mapping[int, ServedApi]:
        """Return the APIs of this component by API key."""
        return {}

    def on_settings(self) -> None:
        """The settings of this broker in the metadata have been read, or have changed."""

    def on_access(self, changed: AccessChanges) -> None:
        """The ACLs of these patterns, or the settings of these users, client ids and addresses, have changed."""

    def on_view(self, changes: ViewChanges) -> None:
        """The metadata have changed."""

    async def start(self) -> None:
        """Begin to work."""

    def tick(self, now: float) -> None:
        """A second has passed; ``now`` is the time of the event loop."""

    async def collect_metrics(self) -> None:
        """Prepare the figures of a metrics page that take long, or that need the disk."""

    def metrics(self, page: Page) -> Iterator[None]:
        """Add the figures of this component as a whole to a metrics page. Yield after some milliseconds of work."""
        return iter(())

    def detailed_metrics(self, page: Page) -> Iterator[None]:
        """Add the figures of partitions, topics or groups, for which a page may have no room. Yield as ``metrics``."""
        return iter(())

    def check_invariants(self) -> None:
        """Raise AssertionError if the state of this component contradicts itself or the partitions that are served.

        Only the simulator calls this, often.
        """

    async def complete_requests(self) -> None:
        """Answer the requests that wait."""

    async def stop(self) -> None:
        """End all work."""
