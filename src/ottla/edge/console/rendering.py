"""Makes HTML and JSON of a view. Values of a cluster are text in a page, never HTML, and no script is in a page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import quote, urlencode

import jinja2
from starlette.responses import Response, StreamingResponse

from ottla.edge.console import formats
from ottla.edge.console.pages import Download, Events, View

#: nothing of other hosts, no script in the page, no frame around it
_POLICY: Final = (
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_STATIC: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
#: an idle stream sends a comment, so that proxies keep it open
KEEP_ALIVE: Final = ": \n\n"


def url(*segments: object, **query: object) -> str:
    """Return a path with quoted segments and a query without empty values.

    A dot becomes %2E, so that the name `a.json` is not taken for the JSON form of `a`.

    >>> url("c", "main", "topics", "a/b.json", page=2, q="")
    '/c/main/topics/a%2Fb%2Ejson?page=2'
    """
    path = "/" + "/".join(quote(str(each), safe="").replace(".", "%2E") for each in segments)
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


@cache
def environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("ottla.edge.console", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(formats.FILTERS)
    made.globals.update(url=url, asset=asset)
    return made


def html(template: str, values: Mapping[str, Any], *, status: int = 200) -> Response:
    text = environment().get_template(template).render(values)
    return Response(text.encode("utf-8", "replace"), status, HEADERS, "text/html; charset=utf-8")


def json_of(data: Mapping[str, Any], *, status: int = 200) -> Response:
    try:
        content = json.dumps(data, ensure_ascii=False, default=_plain).encode()
    except UnicodeEncodeError:
        # Records may have halves of surrogate pairs, which JSON can only have as escapes.
        content = json.dumps(data, default=_plain).encode()
    return Response(content, status, HEADERS, "application/json")


def redirect(path: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer that lets the browser open another page of the console."""
    return Response(status_code=303, headers={**HEADERS, **(headers or {}), "location": path})


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    raise TypeError(f"a page's data have a {type(value).__name__}, which JSON has not")


def download(answer: Download) -> Response:
    name = quote(answer.name, safe="")
    headers = {**HEADERS, "content-disposition": f"attachment; filename*=UTF-8''{name}"}
    if isinstance(answer.content, bytes):
        return Response(answer.content, 200, headers, answer.media_type)
    return StreamingResponse(answer.content, 200, headers, answer.media_type)


def events(answer: Events) -> Response:
    """Return a stream of server-sent events."""

    async def lines() -> AsyncIterator[str]:
        yield "retry: 3000\n\n"
        async for name, text in answer.events:
            yield event_text(name, text) if text else KEEP_ALIVE

    return StreamingResponse(lines(), 200, {**HEADERS, "x-accel-buffering": "no"}, "text/event-stream")


def event_text(name: str, text: str) -> str:
    """Return one event; each line of the text has its own field.

    >>> event_text("rows", "a\\nb")
    'event: rows\\ndata: a\\ndata: b\\n\\n'
    """
    lines = text.replace("\r", "").split("\n")
    return "".join((f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n"))


def part(template: str, **values: Any) -> str:
    """Return a part of a page, for a live stream."""
    return environment().get_template(template).render(values)


# -- static files -----------------------------------------------------------------------------------------------------


@cache
def static_files() -> Mapping[str, bytes]:
    """Return the scripts and styles by name."""
    folder = resources.files("ottla.edge.console") / "static"
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name.endswith(tuple(_STATIC))}


@cache
def asset(name: str) -> str:
    """Return the path of a static file; it has a digest of the content, so that browsers may keep it."""
    digest = hashlib.sha256(static_files()[name]).hexdigest()[:12]
    return f"/static/{digest}/{name}"


def static(name: str) -> Response | None:
    content = static_files().get(name)
    if content is None:
        return None
    media_type = next(kind for ending, kind in _STATIC.items() if name.endswith(ending))
    headers = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(content, 200, headers, f"{media_type}; charset=utf-8")


def page_values(view: View) -> dict[str, Any]:
    """Return what the template of a view gets, besides what all pages have."""
    return {**view.data, **view.extra, "title": view.title, "state": view.state, "tabs": view.tabs,
            "commands": view.commands}  # fmt: skip
