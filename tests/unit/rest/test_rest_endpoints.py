"""Operations that settings disable."""

from __future__ import annotations

import asyncio
from typing import cast

import httpx
import pytest

from ottla.edge.rest.consumers import Instances
from ottla.edge.rest.errors import describe_error
from ottla.edge.rest.kafka import Kafka
from ottla.edge.rest.proxy import Proxy
from ottla.edge.rest.service import error_response, operations
from ottla.edge.rest.settings import RestSettings
from ottla.edge.rest.v3_read import ReadRoutes
from ottla.edge.rest.writable_topics import Topics
from ottla.edge.web.app import App, Operation, Router
from ottla.edge.web.server import Listener
from ottla.model.errors import StartError


def rows(**texts: str) -> list[Operation]:
    settings = RestSettings.parse({name.replace("_", "."): text for name, text in texts.items()})
    kafka = cast("Kafka", None)
    proxy = Proxy(settings, kafka, Listener("http", "127.0.0.1", 8082))
    return operations(proxy, Instances(settings, kafka), ReadRoutes(proxy), Topics(kafka), None)


def statuses(app_rows: list[Operation], *requests: tuple[str, str]) -> list[int]:
    """Return the status of each request; 500 is that of an operation that asks Kafka, which does not exist here."""
    app = App(Router(app_rows), error_response=error_response, describe_error=describe_error)

    async def run() -> list[int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://rest:1") as client:
            return [(await client.request(method, path)).status_code for method, path in requests]

    return asyncio.run(run())


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [row.name for row in rows()]
    assert all(name.startswith(("api.v2.", "api.v3.")) for name in names)
    assert len(set(names)) == len(names)


def test_lists_disable_operations() -> None:
    served = rows(
        api_endpoints_allowlist="api.v3.topics.*,  api.v3.clusters.list",
        api_endpoints_blocklist="api.v3.topics.delete, api.v3.clusters.list",
    )
    found = statuses(
        served, ("GET", "/v3/clusters/x/topics"), ("GET", "/v3/clusters/x/topics/t"),
        ("DELETE", "/v3/clusters/x/topics/t"), ("GET", "/v3/clusters"), ("HEAD", "/v3/clusters"),
        ("GET", "/v3/clusters/x"), ("POST", "/v3/clusters/x/broker-configs:alter"), ("GET", "/brokers"),
        ("OPTIONS", "/v3/clusters"), ("OPTIONS", "/v3/clusters/x/topics"),
    )  # fmt: skip
    assert found == [500, 500, 405, 404, 404, 404, 405, 404, 200, 200]


def test_versions_can_be_disabled() -> None:
    requests = (("GET", "/"), ("GET", "/v3/clusters"))
    assert statuses(rows(api_v2_enable="false"), *requests) == [404, 500]
    assert statuses(rows(api_v3_enable="false"), *requests) == [200, 404]


def test_unknown_names_are_refused() -> None:
    for name in ("api.v3.topic.list", "api.v2.produce-to-topic.json", "topics"):
        with pytest.raises(StartError, match=name):
            rows(api_endpoints_blocklist=name)
