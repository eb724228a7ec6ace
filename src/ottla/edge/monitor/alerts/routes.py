"""Starts the alerts of a monitor, and its route `/alerts`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ottla.edge.monitor.alerts.service import AlertService
from ottla.edge.monitor.clusters import MonitoredClusters
from ottla.edge.monitor.settings import MonitorSettings
from ottla.edge.web.app import HttpError, Operation
from ottla.env.tasks import Tasks

_OFF: Final = "there are no rules of alerts; start the monitor with --alerts default"


def start_alerts(settings: MonitorSettings, clusters: MonitoredClusters, tasks: Tasks) -> AlertService | None:
    """Start the alerts of all clusters; return None if the settings name no file. Raise StartError."""
    if not settings.alerts_file:
        return None
    service = AlertService(
        settings.alerts_file,
        {name: cluster.bootstrap for name, cluster in clusters.by_name.items()},
        _folder(settings),
        interval_s=settings.interval_seconds,
        tasks=tasks,
    )
    for cluster in clusters.by_name.values():
        cluster.subscribe(service.offer)
    tasks.keep(service.run, "alerts")
    return service


def _folder(settings: MonitorSettings) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(settings.data_dir or os.path.join(state, "ottla", "monitor"))


class AlertRoutes:
    """The route with the open alerts of all clusters."""

    def __init__(self, alerts: AlertService | None) -> None:
        self._alerts = alerts

    def operations(self) -> list[Operation]:
        """Return the rows of the table of operations."""
        return [
            Operation(
                method="GET", path="/alerts", handler=self.get, tag="Alerts", answers={200: {"type": "object"}},
                summary="Get the open and pending alerts of all clusters.",
                errors={404: "There are no rules of alerts."},
            )
        ]  # fmt: skip

    async def get(self, request: Request) -> Response:
        if self._alerts is None:
            raise HttpError(404, 404, _OFF)
        return JSONResponse(self._alerts.view())
