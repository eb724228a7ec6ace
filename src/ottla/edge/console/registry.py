"""The schema registry of the console. Its client blocks, so that requests run in threads.

With `authentication.pass.through=true` the registry gets the login of each user, so that no user acts with the rights
of the console; over plain http only on loopback, because a password would be readable on the network.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from ottla.client.errors import PropertyRefused
from ottla.client.registry import SchemaRegistry
from ottla.edge.console.settings import ConsoleSettings
from ottla.edge.web.authentication import Identity
from ottla.model.errors import StartError
from ottla.model.types import is_loopback

_TIMEOUT_S: Final = 10.0
_USERS_MAX: Final = 100

T = TypeVar("T")


class ConsoleRegistry:
    """The registry at `schema.registry.url`. Used on the event loop."""

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raise StartError if an address or a property of the registry is not valid."""
        self._urls = ",".join(settings.schema_registry_url)
        self._properties = dict(settings.registry)
        hosts = [urlsplit(url.strip()) for url in settings.schema_registry_url]
        is_private = all(url.scheme == "https" or is_loopback(url.hostname or "") for url in hosts)
        self._passes_users = settings.authentication_pass_through and is_private
        #: the least recently used is first; the console's own client has an identity without a name
        self._clients: OrderedDict[Identity, SchemaRegistry] = OrderedDict()
        try:
            self.client_of(Identity())
        except PropertyRefused as error:
            raise StartError(str(error)) from None

    async def run(self, function: Callable[[SchemaRegistry], T], identity: Identity) -> T:
        """Return what a blocking function returns. Raise RegistryError or RegistryUnreachable."""
        return await asyncio.to_thread(function, self.client_of(identity))

    async def ask(self, identity: Identity, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON body of an answer. Raise RegistryError or RegistryUnreachable."""
        return await self.run(lambda client: client.ask(method, path, body), identity)

    def client_of(self, identity: Identity) -> SchemaRegistry:
        """Return the client with the login of a user, or with that of the console. Its methods block."""
        user = identity if self._passes_users and (identity.token or identity.properties) else Identity()
        if user not in self._clients:
            properties = {**self._properties, **_login(user)}
            self._clients[user] = SchemaRegistry(self._urls, properties, timeout_s=_TIMEOUT_S)
            if len(self._clients) > _USERS_MAX:
                self._clients.popitem(last=False)[1].close()
        self._clients.move_to_end(user)
        return self._clients[user]

    def close(self) -> None:
        for each in self._clients.values():
            each.close()


def _login(identity: Identity) -> dict[str, str]:
    if identity.token:
        return {"bearer.auth.token": identity.token}
    properties = dict(identity.properties)
    if "sasl.username" not in properties:
        return {}
    return {"basic.auth.user.info": f"{properties['sasl.username']}:{properties['sasl.password']}"}
