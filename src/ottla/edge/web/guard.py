"""What every service does with every request, and the operations that return its state: `/health` and `/metrics`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.web.app import HttpError, Operation
from ottla.edge.web.authentication import client_key
from ottla.edge.web.hosts import Hosts
from ottla.edge.web.metrics import NO_OPERATION, HttpMetrics
from ottla.edge.web.openapi import operation_id
from ottla.edge.web.origins import Origins
from ottla.edge.web.rates import Rates
from ottla.edge.web.settings import WebSettings

_PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
#: a client that was idle may send the requests of this many seconds at once
_BURST_S: Final = 2.0


class ServiceGuard:
    """Rates, foreign hosts, web pages of other origins, metrics: see `app.Guard`."""

    def __init__(self, settings: WebSettings, metrics: HttpMetrics) -> None:
        self.metrics = metrics
        self._hosts = Hosts(settings.own_hosts(), settings.allowed_hosts)
        self._origins = Origins(settings)
        per_s = settings.rate_limit_requests_per_sec
        self._rates = Rates(per_s=per_s, burst_s=_BURST_S) if per_s else None
        #: operation -> its label
        self._labels: dict[int, str] = {}

    def begin(self) -> None:
        self.metrics.in_flight += 1

    def end(self, operation: Operation | None, status: int, seconds: float) -> None:
        self.metrics.in_flight -= 1
        label = NO_OPERATION
        if operation is not None:
            label = self._labels.get(id(operation)) or self._labels.setdefault(id(operation), operation_id(operation))
        self.metrics.observe(label, status, seconds)

    def check_host(self, request: Request) -> None:
        if request.scope.get("scheme") != "https":
            self._hosts.check(request.headers.getlist("host"))

    def check_origin(self, request: Request) -> dict[str, str]:
        return self._origins.headers_for(request.method, request.headers)

    def admit(self, request: Request) -> None:
        if self._rates is not None and not request.scope["operation"].is_public:
            wait_s = self._rates.take(client_key(request))
            if wait_s > 0:
                headers = {"retry-after": str(int(wait_s) + 1)}
                raise HttpError(429, 42901, "too many requests per second; try again later", headers)

    def preflight(self, request: Request) -> Response | None:
        if request.method != "OPTIONS":
            return None
        headers = self._origins.preflight_headers(request.headers)
        return None if headers is None else Response(status_code=204, headers=headers)


def state_operations(metrics: HttpMetrics, health: Callable[[], str | None]) -> list[Operation]:
    """Return the operations that return the state of the service."""

    async def get_health(request: Request) -> Response:
        reason = health()
        state = {"status": "ok"} if reason is None else {"status": "unhealthy", "reason": reason}
        return Response(json.dumps(state), 200 if reason is None else 503, media_type="application/json")

    async def get_metrics(request: Request) -> Response:
        return Response(metrics.page(), media_type=_PROMETHEUS)

    state = {
        "type": "object", "required": ["status"],
        "properties": {"status": {"enum": ["ok", "unhealthy"]}, "reason": {"type": "string"}},
    }  # fmt: skip
    return [
        Operation(
            method="GET", path="/health", handler=get_health, tag="About", is_public=True,
            answers={200: state, 503: state}, summary="Tell whether the service can do its work.",
        ),
        Operation(
            method="GET", path="/metrics", handler=get_metrics, tag="About", produces=("text/plain",),
            answers={200: {"type": "string"}}, summary="Get metrics in Prometheus' text format.",
        ),
    ]  # fmt: skip
