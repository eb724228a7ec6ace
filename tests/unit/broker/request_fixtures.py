"""Contexts of requests for handlers that are called without a dispatcher."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ottla.broker.access.permissions import ALL_ALLOWED, Access
from ottla.broker.client import Client
from ottla.broker.request import RequestContext
from ottla.net.connection import ANONYMOUS


@dataclass(slots=True, kw_only=True)
class ContextFixture(RequestContext):
    known_client: Client | None = None

    @property
    def client(self) -> Client:
        return self.known_client or RequestContext.client.fget(self)  # type: ignore[attr-defined, no-any-return]


def request_context(
    version: int, *, client: Client | None = None, listener: str = "PLAINTEXT", api_key: int = -1,
    port: int = 9092, access: Access = ALL_ALLOWED, principal: str = ANONYMOUS,
) -> ContextFixture:  # fmt: skip
    """Return the context of a request; everything is allowed unless ``access`` says otherwise."""
    connection: Any = SimpleNamespace(
        local_address=("dialled", port), peer_host="10.0.0.1", principal=principal, number=1, listener=listener
    )
    connection.is_closed, connection.software = False, ""
    connection.close = lambda: setattr(connection, "is_closed", True)
    return ContextFixture(
        api_key=api_key, version=version, client_id="client", listener=listener, connection=connection, access=access,
        known_client=client,
    )  # fmt: skip
