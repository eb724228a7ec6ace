"""The limit for the rate of bytes in bodies: for each user, or for each address without authentication."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive

from ottla.edge.rest.errors import BYTES_EXCEEDED
from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.app import Handler, HttpError, Operation
from ottla.edge.web.authentication import client_key
from ottla.edge.web.rates import Rates


class ByteRates:
    """The rates of one process. Without a setting for them, requests cost nothing more."""

    def __init__(self, settings: RestSettings) -> None:
        size = settings.rate_limit_bytes_per_sec
        self._bytes = Rates(per_s=size) if size else None

    def apply(self, operations: Sequence[Operation]) -> list[Operation]:
        """Return the operations with handlers that obey the limit."""
        if self._bytes is None:
            return list(operations)
        return [replace(each, handler=self._limited(each.handler, self._bytes)) for each in operations]

    def _limited(self, handler: Handler, rates: Rates) -> Handler:
        async def handle(request: Request) -> Response:
            counted = self._counted(client_key(request), request.receive, rates)
            return await handler(Request(request.scope, counted))

        return handle

    def _counted(self, key: str, receive: Receive, rates: Rates) -> Receive:
        """Return `receive` that raises HttpError 429 (42902) when the client sends more bytes than allowed."""

        async def receive_and_count() -> Message:
            message = await receive()
            size = len(message.get("body", b""))
            if size:
                # One piece may exceed the rate, so that a body larger than a second's worth is possible.
                wait_s = rates.wait_s(key)
                if wait_s:
                    raise _exceeded(wait_s)
                rates.spend(key, size)
            return message

        return receive_and_count


def _exceeded(wait_s: float) -> HttpError:
    return HttpError(
        429, BYTES_EXCEEDED, f"The rate of bytes per second is exceeded. Try again after {wait_s:.3f} s.",
        {"retry-after": str(max(math.ceil(wait_s), 1))},
    )  # fmt: skip
