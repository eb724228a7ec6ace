"""The components of a broker that runs. All of them are treated alike: see `component.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial

from ottla.broker.component import Component
from ottla.broker.metadata.view import ViewChanges
from ottla.env.tasks import attempt

_TICK_S = 1.0


class Components:
    """Calls the components in the order of their list, or in the reverse order where work ends."""

    def __init__(self) -> None:
        #: empty until the metadata store is open and the logs are loaded
        self._components: Sequence[Component] = ()
        #: changes of the store come until the session ends, but change no log any more
        self._are_logs_closed = False
        #: how late the event loop's last tick was
        self.loop_lag_s = 0.0

    def __iter__(self) -> Iterator[Component]:
        return iter(self._components)

    def begin(self, components: Sequence[Component]) -> None:
        """Call these components from now on, first with the current settings of the broker."""
        self._components = components
        self._apply_settings()

    def announce(self, changes: ViewChanges) -> None:
        """Report changes of the metadata to each component in turn. Do nothing when the logs are closed."""
        if self._are_logs_closed:
            return
        if changes.broker_settings:
            self._apply_settings()
        for component in self._components:
            if changes.access:
                component.on_access(changes.access)
            if type(component).on_view is not Component.on_view:
                component.on_view(changes)

    def _apply_settings(self) -> None:
        for component in self._components:
            component.on_settings()

    async def start(self) -> None:
        for component in self._components:
            await component.start()

    async def tick(self) -> None:
        """Let the components do their periodic work, once a second. This never returns."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + _TICK_S
            await asyncio.sleep(_TICK_S)
            now = loop.time()
            self.loop_lag_s = max(now - wanted, 0.0)
            for component in self._components:
                attempt(partial(component.tick, now), type(component).__name__)

    def check_invariants(self) -> None:
        """Raise AssertionError if a component contradicts itself or the partitions that are served."""
        for component in self._components:
            component.check_invariants()

    async def complete_requests(self) -> None:
        for component in reversed(self._components):
            await component.complete_requests()

    async def stop(self) -> None:
        for component in reversed(self._components):
            await component.stop()

    def note_closed_logs(self) -> None:
        """Announce no changes any more, because components would apply them to closed logs."""
        self._are_logs_closed = True
