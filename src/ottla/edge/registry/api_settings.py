"""The operations on configurations, modes and contexts, and about the service itself."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

import ottla
from ottla.edge.registry import changes, errors
from ottla.edge.registry.answers import answer, flag, page
from ottla.edge.registry.api import Handlers, in_context
from ottla.edge.registry.forwarding import Forwarding
from ottla.edge.registry.records import Json, Record
from ottla.edge.registry.requests import parse_config, parse_context, parse_mode
from ottla.edge.registry.service import Registry
from ottla.edge.registry.subjects import Subject, is_valid, normalize


class SettingHandlers(Handlers):
    """Configurations and modes: of all subjects, of a context, of a subject."""

    def place(self, request: Request) -> str | None:
        """Return the subject or context of the path; None for the default context, which is the global setting."""
        subject = normalize(in_context(request, request.path_params.get("subject", "")))
        return None if not subject or Subject.parse(subject).is_default_context else subject

    def _writable_place(self, request: Request) -> str | None:
        place = self.place(request)
        if place is not None and not is_valid(place, may_be_context=True):
            raise errors.invalid_subject(place)
        return place

    async def get_config(self, request: Request) -> Response:
        place = self.place(request)
        config = self.state.config_in_scope(place) if flag(request, "defaultToGlobal") else self.state.config(place)
        if config is None:
            raise errors.no_subject_config(str(place))
        return answer(request, config)

    async def set_config(self, request: Request) -> Response:
        place = self._writable_place(request)
        return await self.change(
            request, lambda body: changes.set_config(self.state, place, parse_config(body)),
            lambda config: answer(request, _echoed(config)),
        )  # fmt: skip

    async def delete_config(self, request: Request) -> Response:
        place = self.place(request)
        return await self.change(request, lambda _: changes.delete_config(self.state, place))

    async def get_mode(self, request: Request) -> Response:
        place = self.place(request)
        mode = self.state.mode_in_scope(place) if flag(request, "defaultToGlobal") else self.state.mode(place)
        if mode is None:
            raise errors.no_subject_mode(str(place))
        return answer(request, {"mode": mode})

    async def set_mode(self, request: Request) -> Response:
        place, force = self._writable_place(request), flag(request, "force")

        def decide(body: Json) -> tuple[str | None, list[Record]]:
            mode = parse_mode(body)
            return mode, changes.set_mode(self.state, place, mode, force=force)

        return await self.change(request, decide, lambda mode: answer(request, {"mode": mode} if mode else {}))

    async def delete_mode(self, request: Request) -> Response:
        place, recursive = self.place(request), flag(request, "recursive")
        return await self.change(
            request, lambda _: changes.delete_mode(self.state, place, recursive=recursive),
            lambda mode: answer(request, {"mode": mode} if mode else {}),
        )  # fmt: skip

    async def contexts(self, request: Request) -> Response:
        prefix = request.query_params.get("contextPrefix", "")
        names = [name for name in self.state.context_names() if name.startswith(prefix)]
        return answer(request, page(request, names))

    async def delete_context(self, request: Request) -> Response:
        context = Subject.parse(parse_context(request.path_params["context"])).context
        return await self.change(
            request, lambda _: (None, changes.delete_context(self.state, context)),
            lambda _: Response(status_code=204),
        )  # fmt: skip


def _echoed(config: Json) -> Json:
    """Return a configuration as PUT answers it: the level is called `compatibility` there."""
    rest = {name: value for name, value in config.items() if name != "compatibilityLevel"}
    level = config.get("compatibilityLevel")
    return ({"compatibility": level} if level else {}) | rest


class ServiceHandlers(Handlers):
    """The service itself."""

    def __init__(self, registry: Registry, forwarding: Forwarding, *, cluster_id: str, group: str) -> None:
        super().__init__(registry, forwarding)
        self._cluster_id = cluster_id
        self._group = group
        self._started = time.monotonic()

    async def root(self, request: Request) -> Response:
        return answer(request, {})

    async def cluster(self, request: Request) -> Response:
        scope = {"path": [], "clusters": {"kafka-cluster": self._cluster_id, "schema-registry-cluster": self._group}}
        return answer(request, {"scope": scope, "id": ""})

    async def version(self, request: Request) -> Response:
        return answer(request, {"version": ottla.__version__, "commitId": ""})

    async def deployment(self, request: Request) -> Response:
        return answer(request, {"attributes": []})

    async def health(self, request: Request) -> Response:
        """Answer 200 if this instance can read schemas and knows the leader, and 503 if not."""
        leader = self.registry.leader
        is_ok = self.registry.failure is None and leader is not None
        status: Json = {
            "process_uptime_sec": int(time.monotonic() - self._started),
            "status": {
                "is_leader": self.registry.is_leader,
                "leader": leader.url if leader is not None else None,
                "schema_registry_ready": self.registry.failure is None,
                "position": self.registry.position,
            },
            "healthy": is_ok,
        }
        return answer(request, status, 200 if is_ok else 503)

    async def leader_available(self, request: Request) -> Response:
        available = self.registry.leader is not None
        return answer(request, {"master_available": available}, 200 if available else 503)
