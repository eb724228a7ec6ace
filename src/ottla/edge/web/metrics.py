"""Counts of requests, and the page `/metrics` in Prometheus' text format, with the words of the broker's page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from ottla.edge.web.connections import ConnectionTable
from ottla.env.metrics import Histogram, Page, label_text

#: more than the operations of a service have
_SERIES_MAX: Final = 20_000
#: the label of requests whose path belongs to no operation
NO_OPERATION: Final = "none"


class HttpMetrics:
    """What an app counts. Labels are the ids of operations, so that clients cannot make new series."""

    def __init__(self, connections: ConnectionTable | None = None) -> None:
        self._connections = connections
        self.in_flight = 0
        #: by operation and status
        self.requests: Counter[tuple[str, int]] = Counter()
        #: seconds until the begin of the answer, by operation
        self.latencies: dict[str, Histogram] = {}
        #: functions that add the series of the service itself
        self.sources: list[Callable[[Page], None]] = []

    def observe(self, operation: str, status: int, seconds: float) -> None:
        self.requests[operation, status] += 1
        found = self.latencies.get(operation)
        if found is None:
            found = self.latencies[operation] = Histogram()
        found.observe(seconds)

    def page(self) -> bytes:
        page = Page(_SERIES_MAX)
        self.fill(page)
        return b"".join(page.pieces())

    def fill(self, page: Page) -> None:
        """Add the series of the service to a page."""
        for (operation, status), count in sorted(self.requests.items()):
            labels = label_text(operation=operation, status=status)
            page.counter("ottla_http_requests", "Requests that were answered.", count, labels)
        for operation, histogram in sorted(self.latencies.items()):
            labels = label_text(operation=operation)
            page.histogram("ottla_http_request_seconds", "Time until the answer begins.", histogram, labels)
        page.gauge("ottla_http_requests_in_flight", "Requests that are being answered.", self.in_flight)
        if self._connections is not None:
            page.gauge("ottla_http_connections", "Open connections.", len(self._connections.open))
            for limit, count in self._connections.closed.items():
                labels = label_text(limit=limit)
                page.counter("ottla_http_connections_closed", "Connections closed because of a limit.", count, labels)
        for source in self.sources:
            source(page)
