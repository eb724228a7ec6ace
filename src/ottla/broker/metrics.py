"""The broker's metrics page: the figures of its server and its event loop, and those of all components.

Names and meanings are in docs/reference/metrics.md. A page that is full leaves out the series that come last. So the
figures of the broker as a whole come first, then those of partitions and groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from ottla.broker.components import Components
from ottla.broker.dispatch import Dispatcher
from ottla.env.metrics import Page, in_slices, label_text
from ottla.env.metrics_server import MetricsServer
from ottla.env.watchdog import LoopWatchdog
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint
from ottla.net.server import Server
from ottla.wire import APIS


class BrokerMetrics:
    """Reads the figures of one broker. Runs on the event loop."""

    def __init__(
        self,
        *,
        server: Server,
        dispatchers: Sequence[Dispatcher],
        components: Components,
        settings: Callable[[], BrokerSettings],
    ) -> None:
        """``dispatchers`` and ``components`` are empty until the broker is started."""
        self._server = server
        self._dispatchers = dispatchers
        self._components = components
        self._settings = settings
        #: None in simulations
        self._watchdog: LoopWatchdog | None = None
        #: None if the broker has no metrics port
        self._http: MetricsServer | None = None

    async def serve(self, endpoint: Endpoint) -> int:
        """Serve the page at an address and return its port. Raise StartError."""
        self._http = MetricsServer(endpoint, self.fill)
        await self._http.start()
        return self._http.port

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def watch(self, watchdog: LoopWatchdog) -> None:
        """Show what the watchdog of the event loop has seen."""
        self._watchdog = watchdog

    async def fill(self) -> list[bytes]:
        """Return the page, in pieces."""
        page = Page(self._settings().metrics_series_max)
        components = list(self._components)
        for component in components:
            await component.collect_metrics()
        await in_slices(chain(self._metrics(page), *(component.metrics(page) for component in components)))
        await in_slices(chain.from_iterable(component.detailed_metrics(page) for component in components))
        return page.pieces()

    def _metrics(self, page: Page) -> Iterator[None]:
        for key, histogram in self._server.latency.items():
            if histogram.count:
                labels = label_text(api=APIS[key].name)
                page.counter("ottla_requests", "Requests answered.", histogram.count, labels)
                page.histogram("ottla_request_seconds", "Time from request to reply.", histogram, labels)
                yield
        server = self._server
        page.gauge("ottla_connections", "Open connections.", len(server.connections))
        page.counter("ottla_connections_refused", "Connections over a limit.", server.refused_connections)
        text = "Connections without a login or a request that were closed for new ones."
        page.counter("ottla_connections_evicted", text, server.evicted_connections)
        refused = server.refused_frames + sum(each.refused for each in self._dispatchers)
        page.counter("ottla_frames_refused", "Frames that could not be understood.", refused)
        refused = self._http.refused if self._http is not None else 0
        page.counter("ottla_metrics_connections_refused", "Connections to this page over a limit.", refused)
        page.gauge("ottla_loop_lag_seconds", "How late the event loop's last tick was.", self._components.loop_lag_s)
        longest_s = self._watchdog.longest_s if self._watchdog else 0.0
        text = "The longest time that the event loop stood still."
        page.gauge("ottla_loop_stall_seconds_max", text, longest_s)
