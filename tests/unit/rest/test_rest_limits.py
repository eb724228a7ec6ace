"""The limit for the rate of bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from ottla.edge.rest.limits import ByteRates
from ottla.edge.rest.producing import with_pauses
from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.app import HttpError, Operation


async def handler(request: Request) -> Response:
    return Response(await request.body())


def send(limits: ByteRates, *pieces: bytes, host: str = "10.0.0.1") -> Any:
    """Send a request and return its body, or the error."""
    (operation,) = limits.apply([Operation(method="POST", path="/", handler=handler, summary="", tag="")])
    messages: list[Message] = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces) - 1}
        for number, piece in enumerate(pieces)
    ]

    async def receive() -> Message:
        return messages.pop(0)

    request = Request({"type": "http", "headers": [], "client": (host, 1), "method": "POST"}, receive)
    try:
        return asyncio.run(operation.handler(request)).body  # type: ignore[arg-type]
    except HttpError as error:
        return error


def settings(**numbers: int) -> RestSettings:
    return RestSettings.parse({f"rate.limit.{name}.per.sec": str(value) for name, value in numbers.items()})


def test_bytes_of_one_address_are_limited() -> None:
    limits = ByteRates(settings(bytes=1000))
    assert len(send(limits, b"x" * 3000)) == 3000
    error = send(limits, b"x")
    assert (error.status, error.error_code) == (429, 42902)
    assert 1 <= int(error.headers["retry-after"]) <= 3  # less on a busy machine
    refused = send(limits, b"x" * 900, b"x" * 900, b"x", host="10.0.0.3")
    assert refused.error_code == 42902
    assert send(limits, b"", host="10.0.0.4") == b""


def test_operations_are_unchanged_without_limits() -> None:
    row = Operation(method="GET", path="/", handler=handler, summary="", tag="")
    assert ByteRates(settings()).apply([row])[0].handler is handler


def test_limit_is_not_negative() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        settings(bytes=-1)


def test_other_requests_have_their_turn_between_many_records() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def run() -> list[int]:
        beside = asyncio.create_task(other())
        found = [number async for number in with_pauses(range(5000))]
        beside.cancel()
        return found

    assert asyncio.run(run()) == list(range(5000))
    assert turns >= 9
