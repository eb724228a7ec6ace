"""`ottla console`: makes the app and runs it."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from ottla.client.logins import check_login
from ottla.edge.console import rendering
from ottla.edge.console.clusters import Clusters
from ottla.edge.console.console import FORM_BYTES_MAX, Console, own_target
from ottla.edge.console.pages import Route, Section
from ottla.edge.console.roles import Roles
from ottla.edge.console.sections import all_sections
from ottla.edge.console.sessions import Sessions
from ottla.edge.console.settings import ConsoleSettings
from ottla.edge.web.app import Handler, HttpError, Operation, Parameter
from ottla.edge.web.service import Service, run_service
from ottla.model.errors import OttlaError
from ottla.security.password_hashes import SALT_BYTES, hash_password, user_line

_USER: Final = "admin"
_FORM_TYPES: Final = ("application/x-www-form-urlencoded",)
_PATH_BYTES_MAX: Final = 16 << 10
_THEME_AGE_S: Final = 365 * 86_400


def run(texts: Mapping[str, str]) -> int:
    """Run the console until it is stopped. Return the exit code."""
    return run_service("console", parse, texts, start, check_login)


def parse(texts: Mapping[str, str]) -> ConsoleSettings:
    """Return the settings. Without a setting for logins, the console has users of its own, and creates the first."""
    settings = ConsoleSettings.parse(texts)
    if "authentication.method" in texts or settings.ssl_client_authentication == "REQUIRED":
        return settings
    path = settings.authentication_users_file or _first_user(settings)
    own = {"authentication.method": "BASIC", "authentication.users.file": path}
    roles = texts.get("roles") or f"{_USER}:admin"
    return ConsoleSettings.parse({**texts, **own, "roles": roles})


def _first_user(settings: ConsoleSettings) -> str:
    """Return the file with the console's users. Create it with one user, and print the password, if there is none."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = Path(settings.data_dir or os.path.join(state, "ottla", "console"))
    path = folder / "users"
    if path.exists():
        return str(path)
    password = secrets.token_urlsafe(12)
    line = user_line(_USER, hash_password(password.encode(), os.urandom(SALT_BYTES)))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(line + "\n")
    except FileExistsError:
        return str(path)
    except OSError as error:
        raise ValueError(
            f"the file for the users of the console cannot be written: {error}; choose a directory with -X data.dir=DIR"
        ) from None
    sys.stderr.write(
        f"log in as {_USER} with the password {password} to change things; it is shown once, {path} has its hash, and "
        "ottla user hash makes others\n"
    )
    sys.stderr.flush()
    return str(path)


@asynccontextmanager
async def start(service: Service[ConsoleSettings]) -> AsyncIterator[ASGIApp]:
    """Make the app. The cluster need not be reachable: pages then say so."""
    settings = service.settings
    has_logins = bool(settings.authentication_methods)
    sessions = Sessions(
        service.authenticator, Roles(settings, service.listeners), lifetime_s=settings.session_hours * 3600,
        needs_login=has_logins,
    )  # fmt: skip
    console = Console(settings, Clusters(settings), sessions, all_sections())
    try:
        yield service.make_app(
            operations(console), title="Ottla console", error_response=_error_response, describe_error=_describe_error,
            parameters=(Parameter("cluster", "Name of a cluster."),), path_bytes_max=_PATH_BYTES_MAX,
            error_media_types=("text/html",), authenticate=sessions.authenticate,
        )  # fmt: skip
    finally:
        await console.close()


def operations(console: Console) -> list[Operation]:
    """Return the table of all paths."""

    async def root(request: Request) -> Response:
        return rendering.redirect(rendering.url("c", console.clusters.first.name))

    async def theme(request: Request) -> Response:
        name = request.query_params.get("to", "")
        age = _THEME_AGE_S if name in ("light", "dark") else 0
        cookie = f"ottla_theme={name if age else ''}; Path=/; Max-Age={age}; SameSite=Lax"
        return rendering.redirect(own_target(request.query_params.get("next", "")), {"set-cookie": cookie})

    async def static(request: Request) -> Response:
        found = rendering.static(request.path_params["name"])
        if found is None:
            raise HttpError(404, 404, "there is no such file")
        return found

    own = [
        _get("/", root, "Open the first page."),
        _get("/login", console.login_page, "Show the form for a login."),
        _post("/login", console.log_in, "Log in."),
        _post("/logout", console.log_out, "Log out."),
        _get("/theme", theme, "Choose light or dark pages."),
        _get("/static/{digest}/{name}", static, "Get a script or a style."),
    ]
    pages = [
        each for section in console.sections for route in section.routes() for each in _routed(console, section, route)
    ]
    return own + pages


def _routed(console: Console, section: Section, route: Route) -> list[Operation]:
    path = f"/c/{{cluster}}/{route.path}".rstrip("/")
    handler = partial(console.answer, section, route)
    summary = route.summary or f"{section.title}: {route.path}"
    found = [_get(path, handler, summary, section.key)] if route.handler is not None else []
    if route.handler is not None and not path.endswith("}"):
        found.append(_get(f"{path}.json", handler, summary, section.key))
    elif route.plan is not None:
        found.append(_get(path, handler, summary, section.key))
    if route.plan is not None:
        found.append(_post(path, handler, summary, section.key))
    return found


def _get(path: str, handler: Handler, summary: str, tag: str = "console") -> Operation:
    return Operation(
        method="GET", path=path, handler=handler, summary=summary, tag=tag, produces=("text/html",),
        answers={200: {"type": "string"}},
    )  # fmt: skip


def _post(path: str, handler: Handler, summary: str, tag: str = "console") -> Operation:
    return Operation(
        method="POST", path=path, handler=handler, summary=summary, tag=tag, body={"type": "object"},
        consumes=_FORM_TYPES, checks_media_type=True, body_bytes_max=FORM_BYTES_MAX, produces=("text/html",),
        answers={200: {"type": "string"}},
    )  # fmt: skip


def _error_response(error: HttpError) -> Response:
    """Return the answer to a request that has no page: a wrong path, or wrong credentials."""
    values = {"status": error.status, "message": error.message}
    response = rendering.html("bare_error.html", values, status=error.status)
    response.headers.update(error.headers)
    return response


def _describe_error(error: Exception) -> HttpError | None:
    return HttpError(502, 502, str(error)) if isinstance(error, OttlaError) else None
