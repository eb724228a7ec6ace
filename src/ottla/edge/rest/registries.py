"""The clients of the schema registry: one with the login of the proxy, or one for each user.

With `authentication.pass.through=true` the registry gets the credentials of the user of each request, so that no user
acts with the rights of the proxy. With `schema.registry.pass.through=false` the proxy logs in as itself. Then it
registers schemas for a user only under subjects of topics that this user may write to (`SchemaData.find`). The same
holds if the registry ignores the credentials, because it needs none or accepts the certificate of the proxy.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from urllib.parse import urlsplit

from ottla.client.errors import PropertyRefused
from ottla.client.registry import RegistryError, SchemaRegistry
from ottla.edge.rest.kafka import SERVICE, Identity
from ottla.edge.rest.settings import RestSettings
from ottla.model.errors import StartError
from ottla.model.types import is_loopback

_LOGINS: Final = ("basic.auth.user.info", "bearer.auth.token")


class Registries:
    """The registry at the addresses of the settings. Used on the event loop."""

    def __init__(self, settings: RestSettings) -> None:
        """Raise StartError if the settings of the registry are not valid, or do not fit those of authentication."""
        self._urls = ",".join(settings.schema_registry_url)
        self._properties = dict(settings.registry)
        self._passes_users = settings.authentication_pass_through and settings.schema_registry_pass_through
        self._users_max = settings.identities_max
        #: the least recently used is first
        self._users: OrderedDict[Identity, SchemaRegistry] = OrderedDict()
        try:
            self._own = SchemaRegistry(self._urls, self._properties)
        except PropertyRefused as error:
            raise StartError(str(error)) from None
        if self._passes_users:
            self._check(settings)

    def _check(self, settings: RestSettings) -> None:
        own = next((name for name in _LOGINS if self._properties.get(name)), None)
        if own is not None:
            raise StartError(
                f"schema.registry.{own} is the login of the proxy, and authentication.pass.through=true sends that of "
                "each user to the registry: remove it, or set schema.registry.pass.through=false"
            )
        for url in map(str.strip, self._urls.split(",")):
            is_private = url.startswith("https:") or is_loopback(urlsplit(url).hostname or "")
            if not is_private and not settings.allow_insecure_listeners:
                raise StartError(
                    f"the passwords of users would be sent to {url} without encryption: use https, set "
                    "schema.registry.pass.through=false, or allow it with --insecure (allow.insecure.listeners=true)"
                )

    def acts_as(self, identity: Identity) -> Identity:
        """Return the identity that the registry sees in the requests of a user."""
        return identity if self._passes_users else SERVICE

    def checks(self, identity: Identity) -> bool:
        """Return whether the registry decides by the credentials of a user. Blocking, for a thread.

        It does if it refuses the proxy without them. Raise ClientError if it does not answer.
        """
        if self.acts_as(identity) == SERVICE:
            return False
        try:
            self._own.ask("GET", "/mode")
        except RegistryError as error:
            return error.status in (401, 403)
        return False

    def of(self, identity: Identity) -> SchemaRegistry:
        """Return the client for the requests of a user."""
        if self.acts_as(identity) == SERVICE:
            return self._own
        known = self._users.get(identity)
        if known is None:
            known = self._users[identity] = SchemaRegistry(self._urls, {**self._properties, **_login(identity)})
            if len(self._users) > self._users_max:
                self._users.popitem(last=False)[1].close()
        self._users.move_to_end(identity)
        return known

    def close(self) -> None:
        for each in (self._own, *self._users.values()):
            each.close()


def _login(identity: Identity) -> dict[str, str]:
    """Return the properties with which a client of the registry logs in as a user of the cluster."""
    if identity.token:
        return {"bearer.auth.token": identity.token}
    properties = dict(identity.properties)
    return {"basic.auth.user.info": f"{properties['sasl.username']}:{properties['sasl.password']}"}
