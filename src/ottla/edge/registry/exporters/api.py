"""The operations on exporters. The leader answers all of them; `routes.py` has their paths and documentation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from starlette.requests import Request
from starlette.responses import Response

from ottla.edge.registry.answers import answer
from ottla.edge.registry.api import Handlers
from ottla.edge.registry.exporters.definition import Entry
from ottla.edge.registry.exporters.running import Exporters
from ottla.edge.registry.forwarding import Forwarding
from ottla.edge.registry.records import Json
from ottla.edge.registry.requests import parse_body
from ottla.edge.registry.service import Registry
from ottla.edge.web.app import HttpError
from ottla.edge.web.authentication import identity_of


class ExporterHandlers(Handlers):
    """Operations on exporters."""

    def __init__(
        self, registry: Registry, forwarding: Forwarding, exporters: Exporters, users: Collection[str]
    ) -> None:
        """`users` may change exporters; if there are none, every user may."""
        super().__init__(registry, forwarding)
        self._exporters = exporters
        self._users = frozenset(users)

    async def names(self, request: Request) -> Response:
        async def make() -> Response:
            return answer(request, await self._exporters.names())

        return await self.at_leader(request, make)

    async def get(self, request: Request) -> Response:
        return await self._show(request, lambda entry: entry.exporter.as_json())

    async def config(self, request: Request) -> Response:
        return await self._show(request, lambda entry: entry.exporter.visible_config())

    async def status(self, request: Request) -> Response:
        return await self._show(request, Entry.status_json)

    async def create(self, request: Request) -> Response:
        body = parse_body(await request.body())

        async def make() -> Response:
            return answer(request, {"name": await self._exporters.create(body)})

        self._check_user(request)
        return await self.at_leader(request, make)

    async def update(self, request: Request) -> Response:
        body = parse_body(await request.body())
        return await self._change(request, lambda name: self._exporters.update(name, body))

    async def set_config(self, request: Request) -> Response:
        config = parse_body(await request.body())
        return await self._change(request, lambda name: self._exporters.update(name, {"config": config}))

    async def delete(self, request: Request) -> Response:
        return await self._change(request, self._exporters.delete, status=204)

    async def pause(self, request: Request) -> Response:
        return await self._change(request, self._exporters.pause)

    async def resume(self, request: Request) -> Response:
        return await self._change(request, self._exporters.resume)

    async def reset(self, request: Request) -> Response:
        return await self._change(request, self._exporters.reset)

    async def _show(self, request: Request, show: Callable[[Entry], Json]) -> Response:
        async def make() -> Response:
            return answer(request, show(await self._exporters.get(request.path_params["name"])))

        return await self.at_leader(request, make)

    async def _change(self, request: Request, work: Callable[[str], Awaitable[None]], *, status: int = 200) -> Response:
        name = request.path_params["name"]

        async def make() -> Response:
            await work(name)
            return answer(request, {"name": name}) if status == 200 else Response(status_code=status)

        self._check_user(request)
        return await self.at_leader(request, make)

    def _check_user(self, request: Request) -> None:
        """Raise HttpError 40301 if the user may not change exporters: they make the registry open connections."""
        if self._users and identity_of(request).name not in self._users:
            raise HttpError(403, 40301, "This user may not change exporters; see the setting exporter.users.")
