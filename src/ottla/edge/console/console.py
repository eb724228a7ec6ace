"""The console: its clusters, logins and sections, and how a request becomes an answer.

request ─► role of the route ─► handler of the section ─► View ─► HTML or JSON
   POST ─► token of the session ─► plan ─► preview, or:
             1 the change is `requested` in the topic of changes  2 it is carried out  3 `done` or `failed`
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from ottla.admin.failure import NOT_FOUND, NOT_HEALTHY, Failure
from ottla.edge.console import changes, rendering
from ottla.edge.console.clusters import ClusterAccess, Clusters, NoSuchCluster
from ottla.edge.console.pages import BadInput, Download, Events, PageRequest, Plan, Route, Section, View
from ottla.edge.console.registry import ConsoleRegistry
from ottla.edge.console.roles import Role
from ottla.edge.console.sessions import Caller, Sessions, caller_of
from ottla.edge.console.settings import ConsoleSettings
from ottla.edge.console.watch import ClusterWatch
from ottla.edge.web.app import HttpError
from ottla.env.tasks import Tasks
from ottla.model.errors import OttlaError

log = logging.getLogger(__name__)

_FORM_FIELDS_MAX: Final = 1000
FORM_BYTES_MAX: Final = 8 << 20
_JSON_ENDING: Final = ".json"
_TITLE_ENDING: Final = "Ottla"


class Console:
    """All that the pages share."""

    def __init__(
        self, settings: ConsoleSettings, clusters: Clusters, sessions: Sessions, sections: Sequence[Section]
    ) -> None:
        self.settings = settings
        self.clusters = clusters
        self.sessions = sessions
        #: None without `schema.registry.url`
        self.registry = ConsoleRegistry(settings) if settings.schema_registry_url else None
        self.sections = [each for each in sections if each.is_available(self)]
        self._watches = {each.name: ClusterWatch(each) for each in clusters.by_name.values()}
        self._tasks = Tasks()
        for each in self._watches.values():
            self._tasks.keep(each.run, "read a cluster for the console")
        self._streams = 0

    def watch(self, cluster: ClusterAccess) -> ClusterWatch:
        """Return what reads this cluster while somebody looks at it."""
        return self._watches[cluster.name]

    # -- pages --------------------------------------------------------------------------------------------------------

    async def answer(self, section: Section, route: Route, request: Request) -> Response:
        """Answer a request of a route. Errors are pages too, with the navigation."""
        as_json = wants_json(request)
        try:
            return await self._answer(section, route, request, as_json)
        except HttpError as error:
            if error.status == 401 and not as_json and request.method == "GET":
                return rendering.redirect(rendering.url("login", next=_own_path(request)))
            return self.error(request, error.status, error.message, as_json=as_json, headers=error.headers)
        except BadInput as error:
            return self.error(request, 400, str(error), as_json=as_json)
        except NoSuchCluster as error:
            return self.error(request, 404, str(error), as_json=as_json)
        except Failure as error:
            status = {NOT_FOUND: 404, NOT_HEALTHY: 503}.get(error.exit_code, 409)
            return self.error(request, status, error.message, as_json=as_json)
        except OttlaError as error:
            return self.error(request, 502, str(error), as_json=as_json)

    async def _answer(self, section: Section, route: Route, request: Request, as_json: bool) -> Response:
        caller = caller_of(request)
        self.sessions.check_role(caller, route.role)
        page = await self._page_request(route, request, caller)
        if route.plan is not None and (request.method == "POST" or route.handler is None):
            return await self._act(section, route.plan, page, as_json)
        assert route.handler is not None
        answer = await route.handler(page)
        if isinstance(answer, Download):
            return rendering.download(answer)
        if isinstance(answer, Events):
            return self._stream(answer)
        if as_json:
            return rendering.json_of(answer.data, status=answer.status)
        return self.html(page, section, answer)

    async def _page_request(self, route: Route, request: Request, caller: Caller) -> PageRequest:
        params = dict(request.path_params)
        ends_with_variable = not route.path or route.path.endswith("}")
        if ends_with_variable and _has_json_ending(request):
            last = next(reversed(params))
            params[last] = params[last].removesuffix(_JSON_ENDING)
        name = params.pop("cluster")
        form = await _form(request) if request.method == "POST" else {}
        if request.method == "POST":
            self.sessions.check_form(caller, form.pop("csrf", ""))
        return PageRequest(
            console=self, cluster=self.clusters.named(name), caller=caller, params=params,
            query=dict(request.query_params), form=form, request=request,
        )  # fmt: skip

    def _stream(self, answer: Events) -> Response:
        if self._streams >= self.settings.streams_max:
            raise HttpError(503, 503, "too many live pages are open; close one, or raise streams.max")
        self._streams += 1
        response = rendering.events(answer)
        inner = response.body_iterator  # type: ignore[attr-defined]

        async def counted() -> Any:
            try:
                async for part in inner:
                    yield part
            finally:
                self._streams -= 1

        response.body_iterator = counted()  # type: ignore[attr-defined]
        return response

    # -- actions ------------------------------------------------------------------------------------------------------

    async def _act(self, section: Section, planner: Any, page: PageRequest, as_json: bool) -> Response:
        plan: Plan = await planner(page)
        confirmed = page.form.get("confirm", "")
        if page.request.method == "GET" or not confirmed or (plan.confirm and confirmed != plan.confirm):
            wrong = bool(confirmed) and page.request.method == "POST"
            return self._preview(section, plan, page, as_json, is_wrong=wrong)
        lines = await self._carry_out(plan, page)
        page.cluster.forget_readings()
        if as_json:
            return rendering.json_of({"done": lines})
        return rendering.redirect(f"/c/{rendering.url(page.cluster.name)[1:]}/{plan.then}")

    def _preview(self, section: Section, plan: Plan, page: PageRequest, as_json: bool, *, is_wrong: bool) -> Response:
        rows = [{"what": each.what, "from": each.before, "to": each.after, "note": each.note} for each in plan.changes]
        data = {
            "plan": plan.title, "changes": rows, "confirm": plan.confirm or "yes", "warnings": list(plan.warnings),
            "is_typed": bool(plan.confirm), "is_wrong": is_wrong,
        }  # fmt: skip
        status = 400 if is_wrong else 200
        if as_json:
            return rendering.json_of(data, status=status)
        hidden = {name: text for name, text in page.form.items() if name != "confirm"}
        extra = {"hidden": hidden, "back": plan.then}
        view = View("plan.html", plan.title, data, commands=plan.commands, extra=extra, status=status)
        return self.html(page, section, view)

    async def _carry_out(self, plan: Plan, page: PageRequest) -> list[str]:
        """Carry out a plan between its two records in the topic of changes. Raise what prevented it."""
        topic = self.settings.changes_topic
        address = page.request.client.host if page.request.client else ""
        requested = changes.ChangeRecord.requested(
            user=page.caller.name, address=address, title=plan.title, changes=plan.changes
        )
        append = partial(changes.append, topic=topic)
        await page.cluster.run(lambda client: append(client, record=requested))
        try:
            lines = list(await page.run(plan.apply))
        except OttlaError as error:
            failed = requested.ended("failed", [str(error)])
            await page.cluster.run(lambda client: append(client, record=failed))
            raise
        done = requested.ended("done", lines)
        await page.cluster.run(lambda client: append(client, record=done))
        log.info("change made user=%s change=%s", page.caller.name, plan.title)
        return lines

    # -- HTML ---------------------------------------------------------------------------------------------------------

    def html(self, page: PageRequest, section: Section, view: View) -> Response:
        values = self._shared(page.request, page.caller, page.cluster, section.key)
        return rendering.html(view.template, {**values, **rendering.page_values(view)}, status=view.status)

    def _shared(
        self, request: Request, caller: Caller, cluster: ClusterAccess | None, section: str = ""
    ) -> dict[str, Any]:
        """Return what the templates of all pages get."""
        return {
            "clusters": list(self.clusters.by_name),
            "cluster": (cluster or self.clusters.first).name,
            "sections": [
                {"key": each.key, "title": each.title, "path": each.path, "letter": each.letter}
                for each in self.sections
            ],
            "section": section,
            "caller": caller,
            "csrf": caller.csrf,
            "has_logins": self.sessions.has_logins,
            "may_edit": self.sessions.roles.allows(caller.role, Role.EDITOR),
            "may_admin": self.sessions.roles.allows(caller.role, Role.ADMIN),
            "theme": theme_of(request),
            "path": request.url.path,
            "query": dict(request.query_params),
            "product": _TITLE_ENDING,
        }

    def error(
        self,
        request: Request,
        status: int,
        message: str,
        *,
        as_json: bool,
        headers: Mapping[str, str] | None = None,
    ) -> Response:
        if as_json:
            response = rendering.json_of({"error_code": status, "message": message}, status=status)
        else:
            name = request.path_params.get("cluster", "")
            values = self._shared(request, caller_of(request), self.clusters.by_name.get(name))
            view = View("error.html", "Not done", {"status": status, "message": message})
            response = rendering.html(view.template, {**values, **rendering.page_values(view)}, status=status)
        response.headers.update(headers or {})
        return response

    # -- logins -------------------------------------------------------------------------------------------------------

    async def login_page(self, request: Request, problem: str = "", status: int = 200) -> Response:
        values = self._shared(request, caller_of(request), None)
        data = {"next": own_target(request.query_params.get("next", "")), "problem": problem}
        view = View("login.html", "Log in", data)
        return rendering.html(view.template, {**values, **rendering.page_values(view)}, status=status)

    async def log_in(self, request: Request) -> Response:
        form = await _form(request)
        try:
            cookie = await self.sessions.log_in(request, form.get("name", ""), form.get("password", ""))
        except HttpError as error:
            text = "The name or the password is wrong." if error.status == 401 else error.message
            response = await self.login_page(request, text, error.status)
            response.headers.update({k: v for k, v in error.headers.items() if k != "www-authenticate"})
            return response
        return rendering.redirect(own_target(form.get("next", "")), {"set-cookie": cookie})

    async def log_out(self, request: Request) -> Response:
        caller = caller_of(request)
        form = await _form(request)
        self.sessions.check_form(caller, form.get("csrf", ""))
        return rendering.redirect("/", {"set-cookie": self.sessions.log_out(caller)})

    async def close(self) -> None:
        await self._tasks.stop()
        if self.registry is not None:
            self.registry.close()
        await asyncio.to_thread(self.clusters.close)


def wants_json(request: Request) -> bool:
    """Return whether the client wants the JSON form of a page."""
    if request.query_params.get("format") == "json" or _has_json_ending(request):
        return True
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def _has_json_ending(request: Request) -> bool:
    raw: bytes = request.scope.get("raw_path", b"")
    return raw.partition(b"?")[0].endswith(_JSON_ENDING.encode())


def theme_of(request: Request) -> str:
    theme = request.cookies.get("ottla_theme", "")
    return theme if theme in ("light", "dark") else ""


def own_target(text: str) -> str:
    """Return a path of this console; the start page if the text is the URL of another site.

    >>> own_target("/c/main/topics?page=2"), own_target("https://x.example/"), own_target("//x.example"), own_target("")
    ('/c/main/topics?page=2', '/', '/', '/')
    """
    parts = urlsplit(text)
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.netloc and text.isprintable()
    return text if is_own and "\\" not in text else "/"


def _own_path(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raise HttpError 400 or 415."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/x-www-form-urlencoded", ""):
        raise HttpError(415, 415, "send the form as application/x-www-form-urlencoded")
    try:
        text = (await request.body()).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX, errors="strict")
    except ValueError as error:
        raise HttpError(400, 400, f"the form cannot be read: {error}") from None
    return dict(fields)
