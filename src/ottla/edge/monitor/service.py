"""`ottla monitor`: makes the app and runs it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ottla.client.logins import check_login
from ottla.edge.monitor import (
    burrow_metrics,
    kafka_exporter_metrics,
    kminion_metrics,
    lag_exporter_metrics,
    own_metrics,
)
from ottla.edge.monitor.alerts.routes import AlertRoutes, start_alerts
from ottla.edge.monitor.alerts.service import AlertService
from ottla.edge.monitor.burrow_routes import BurrowRoutes
from ottla.edge.monitor.clusters import MonitoredCluster, MonitoredClusters
from ottla.edge.monitor.metric_view import MetricView
from ottla.edge.monitor.reading import ClusterReading
from ottla.edge.monitor.remora_routes import RemoraRoutes
from ottla.edge.monitor.settings import MonitorSettings
from ottla.edge.web.app import HttpError, Operation, Parameter
from ottla.edge.web.metrics import HttpMetrics
from ottla.edge.web.service import Service, run_service
from ottla.env.metrics import Page
from ottla.env.process_figures import fill_process
from ottla.env.tasks import Tasks
from ottla.model.errors import OttlaError

#: the message of the router
_NO_ROUTE: Final = "HTTP 404 Not Found"
_PATH_BYTES_MAX: Final = 16 << 10
_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_PARAMETERS: Final = (
    Parameter("cluster", "Name of a cluster."),
    Parameter("group", "Id of a consumer group."),
    Parameter("topic", "Name of a topic."),
    Parameter("name", "Name of a module."),
)


def run(texts: Mapping[str, str]) -> int:
    """Run the monitor until it is stopped. Return the exit code."""
    return run_service("monitor", MonitorSettings.parse, texts, start, check_login)


@asynccontextmanager
async def start(service: Service[MonitorSettings]) -> AsyncIterator[ASGIApp]:
    """Make the app. The clusters need not be reachable: they are read as soon as they are."""
    settings = service.settings
    clusters = MonitoredClusters(settings)
    tasks = Tasks()
    alerts = start_alerts(settings, clusters, tasks)
    metrics = MetricRoutes(clusters, settings, service.guard.metrics, alerts)
    operations: list[Operation] = []
    for routes in (BurrowRoutes(clusters, settings), RemoraRoutes(clusters), metrics, AlertRoutes(alerts)):
        operations += routes.operations()
    clusters.start()
    try:
        yield service.make_app(
            operations, title="Ottla monitor", error_response=_error_response, describe_error=_describe_error,
            parameters=_PARAMETERS, path_bytes_max=_PATH_BYTES_MAX, health=clusters.problem,
        )  # fmt: skip
    finally:
        await tasks.stop()
        if alerts is not None:
            alerts.close()
        await clusters.close()


class MetricRoutes:
    """The pages `/metrics`, and `/metrics/CLUSTER` of one cluster alone."""

    def __init__(
        self, clusters: MonitoredClusters, settings: MonitorSettings, own: HttpMetrics, alerts: AlertService | None
    ) -> None:
        self._alerts = alerts
        self._clusters = clusters
        self._settings = settings
        self._own = own

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        return [
            Operation(
                method="GET", path="/metrics", handler=self.get_all, tag="About", produces=("text/plain",),
                answers={200: {"type": "string"}}, summary="Get metrics in Prometheus' text format.",
            ),
            Operation(
                method="GET", path="/metrics/{cluster}", handler=self.get_one, tag="About", produces=("text/plain",),
                answers={200: {"type": "string"}}, summary="Get the metrics of one cluster.",
                errors={404: "There is no such cluster."},
            ),
        ]  # fmt: skip

    async def get_all(self, request: Request) -> Response:
        return await self._answer([*self._clusters.by_name.values()])

    async def get_one(self, request: Request) -> Response:
        cluster = self._clusters.by_name.get(request.path_params["cluster"])
        if cluster is None:
            raise HttpError(404, 404, f"there is no cluster {request.path_params['cluster']!r}")
        return await self._answer([cluster])

    async def _answer(self, clusters: Sequence[MonitoredCluster]) -> Response:
        readings = await asyncio.gather(*(each.fresh() for each in clusters))
        page = Page(self._settings.metrics_series_max)
        self._own.fill(page)
        if self._alerts is not None:
            self._alerts.fill(page)
        # A page of 200,000 series takes a second.
        text = await self._clusters.in_thread(lambda: self._fill(page, clusters, readings))
        return Response(text, media_type=_PROMETHEUS)

    def _fill(self, page: Page, clusters: Sequence[MonitoredCluster], readings: Sequence[ClusterReading]) -> bytes:
        settings = self._settings
        views = [MetricView(each, settings.metrics_granularity, settings.metrics_topics_max) for each in readings]
        for cluster, view in zip(clusters, views, strict=True):
            own_metrics.fill_state(page, view, cluster.reader.histories, cluster.failed)
        fill_process(page)
        # What an earlier round has found says nothing about a cluster that is away.
        fresh = [view for view in views if view.reading.is_fresh]
        for view in fresh:
            own_metrics.fill_health(page, view)
            own_metrics.fill_forecasts(page, view)
            lag_exporter_metrics.fill(page, view)
            burrow_metrics.fill(page, view)
        # These have no label for the cluster, so that a page has them of one cluster only.
        if views and views[0].reading.is_fresh:
            kminion_metrics.fill(page, views[0])
            kafka_exporter_metrics.fill(page, views[0])
        return b"".join(page.pieces())


def _error_response(error: HttpError) -> Response:
    """Return an error that no route of Burrow has, with Burrow's body for a path that does not exist."""
    message = "invalid request type" if error.status == 404 and error.message == _NO_ROUTE else error.message
    body = {"error": True, "message": message, "result": {}}
    text = json.dumps(body, separators=(",", ":"))
    return Response(text, error.status, error.headers, media_type="application/json")


def _describe_error(error: Exception) -> HttpError | None:
    return HttpError(502, 502, str(error)) if isinstance(error, OttlaError) else None
