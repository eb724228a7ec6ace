"""Counting that costs next to nothing, and the page that Prometheus reads.

The broker counts in plain integers on its own loop; nothing is locked or looked up per request. Only when somebody
reads ``/metrics`` are the numbers put into Prometheus' form, in the HTTP server's thread. This file is the only one
that imports prometheus_client, and only when metrics are switched on.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ottla.env.advice import listen_advice
from ottla.model.errors import StartError
from ottla.model.types import Endpoint

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

LATENCY_BOUNDS_S = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip


class Histogram:
    """Counts by bucket; the last bucket takes what is above all bounds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


class Sample(NamedTuple):
    """One line or one histogram of the page."""

    kind: str  # counter, gauge or histogram
    name: str
    help: str
    labels: tuple[tuple[str, str], ...]
    value: float | Histogram


class MetricsServer:
    """Serves ``/metrics`` in a thread of its own."""

    def __init__(self, endpoint: Endpoint, samples: Callable[[], Iterator[Sample]]) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(_Collector(samples))  # type: ignore[arg-type]
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(endpoint.port, endpoint.host or "0.0.0.0", registry)
        except OSError as error:
            raise StartError(
                f"cannot serve metrics on {endpoint}: "
                f"{listen_advice(error, host=endpoint.host, port=endpoint.port, option='--metrics')}"
            ) from None
        self.port = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    def __init__(self, samples: Callable[[], Iterator[Sample]]) -> None:
        self._samples = samples

    def describe(self) -> list[object]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[object]:
        # A module that the server's own import has loaded: by now there may be no file descriptor left to read another.
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        families: dict[str, CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily] = {}
        for kind, name, text, labels, value in self._samples():
            family = families.get(name)
            if family is None:
                names = [label for label, _ in labels]
                shape = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
                family = families[name] = shape[kind](name, text, labels=names)
            values = [text for _, text in labels]
            if isinstance(value, Histogram):
                assert isinstance(family, HistogramMetricFamily)
                family.add_metric(values, _cumulative(value.counts), value.sum_s)
            else:
                assert not isinstance(family, HistogramMetricFamily)
                family.add_metric(values, value)
        yield from families.values()


def _cumulative(counts: list[int]) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound, count in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), counts, strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets
