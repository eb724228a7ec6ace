"""Lookups of an instance that has not read the end of the topic yet."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.requests import Request
from tests.unit.registry.registry_fixtures import FakeRegistry, record

from ottla.edge.registry.api import SchemaHandlers
from ottla.edge.web.app import HttpError


class FollowerRegistry(FakeRegistry):
    """An instance that reads a schema of the leader only when it refreshes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.refreshed = 0

    async def refresh(self) -> None:
        self.refreshed += 1
        self.register("s", self._text)


def request(**path_params: str) -> Request:
    return Request({"type": "http", "method": "GET", "headers": [], "query_string": b"", "path_params": path_params})


@pytest.mark.parametrize("route", ["by_id", "by_guid", "ids_of_guid"])
def test_lookup_reads_up_to_the_end_of_the_topic_before_it_says_not_found(route: str) -> None:
    made = FakeRegistry().register("s", record())
    registry: Any = FollowerRegistry(record())
    handlers = SchemaHandlers(registry, None)  # type: ignore[arg-type]
    answer = asyncio.run(getattr(handlers, route)(request(id=str(made.id), guid=made.guid)))
    value = json.loads(answer.body)
    assert value == [{"context": ".", "id": made.id}] if route == "ids_of_guid" else value["guid"] == made.guid
    with pytest.raises(HttpError) as raised:
        asyncio.run(getattr(handlers, route)(request(id="77", guid="other")))
    assert raised.value.error_code == 40403
    assert registry.refreshed == 2
