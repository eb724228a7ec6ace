"""How a failed connection to the leader is reported."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import Request

from ottla.edge.registry.election import Instance
from ottla.edge.registry.forwarding import Forwarding, LeaderUnreachable
from ottla.edge.web.app import HttpError


def send(error: Exception) -> None:
    """Forward a request over a transport that fails with this error."""

    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    async def run() -> None:
        forwarding = Forwarding()
        forwarding._client = httpx.AsyncClient(transport=httpx.MockTransport(fail))
        scope = {"type": "http", "method": "POST", "path": "/subjects/a/versions", "query_string": b"", "headers": []}
        try:
            await forwarding.send(Instance("http", "127.0.0.1", 8081), Request(scope), b"{}")
        finally:
            await forwarding.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [
    httpx.ConnectError("refused"),
    httpx.ConnectTimeout("late"),
    # what anyio raises on uvloop if the connection is reset while it is opened
    AttributeError("'NoneType' object has no attribute 'getpeername'"),
])  # fmt: skip
def test_leader_without_a_connection_is_unreachable(error: Exception) -> None:
    with pytest.raises(LeaderUnreachable):
        send(error)


def test_request_that_was_sent_is_not_sent_to_another_leader() -> None:
    with pytest.raises(HttpError) as raised:
        send(httpx.ReadError("reset"))
    assert raised.value.error_code == 50003
