"""What a page of the console is: a section adds routes, a route returns a view, an action returns a plan.

    class Topics:                                  # a section: one entry of the navigation
        key, title, path, letter = "topics", "Topics", "topics", "t"

        def routes(self) -> Sequence[Route]:
            return [Route("topics", self.list), Route("topics/{topic}", self.show), Route.action(...)]

        async def list(self, page: PageRequest) -> View:
            topics = await page.cluster.read("topics", AdminClient.topics, age_s=2)
            return View("topics/list.html", "Topics", {"topics": rows(topics)}, commands=("ottla topic list",))

To add a page, write a section and its templates, and add the section to `sections/__init__.py`. Paths are relative to
`/c/{cluster}/`. The view's `data` is what the template gets, and also the JSON form of the page: with `.json` at the
end of the path, `?format=json`, or `Accept: application/json`.

An action changes something. Its function reads the form and returns a plan: what changes from which value to which
one, the commands that do the same, and a function that does it. Without `confirm` in the form the plan is shown; with
it the plan is carried out, if the role allows it, and is written to the topic of changes before and after.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.requests import Request

from ottla.admin.client import AdminClient
from ottla.edge.console.clusters import ClusterAccess, T
from ottla.edge.console.roles import Role
from ottla.edge.console.sessions import Caller
from ottla.model.errors import OttlaError

if TYPE_CHECKING:
    from ottla.edge.console.console import Console

#: rows of a page of a list
PAGE_ROWS: Final = 50


class BadInput(OttlaError):
    """A value of a form or of the query cannot be used. The message says which and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """What a handler gets."""

    console: Console
    cluster: ClusterAccess
    caller: Caller
    #: decoded variable segments of the path
    params: Mapping[str, str]
    query: Mapping[str, str]
    #: fields of the form; empty for GET. A field with several values has the last one
    form: Mapping[str, str] = field(default_factory=dict)
    request: Request

    async def run(self, function: Callable[[AdminClient], T]) -> T:
        """Return what a blocking function returns, with the user's own login at the cluster if he has one."""
        return await self.cluster.run(function, self.caller.identity)

    async def read(self, key: object, function: Callable[[AdminClient], T], *, age_s: float, stale_s: float = 0.0) -> T:
        """Return what a function returns, or has returned at most ``age_s`` seconds ago for the same key.

        Up to ``stale_s`` seconds an older result is returned at once, and read again for the next page.
        """
        return await self.cluster.read(key, function, age_s=age_s, stale_s=stale_s, identity=self.caller.identity)

    def may(self, role: Role) -> bool:
        return self.console.sessions.roles.allows(self.caller.role, role)

    def number(self, name: str, default: int, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """Return a number of the form or the query. Raise BadInput if it is none, or is not allowed."""
        text = (self.form.get(name) or self.query.get(name) or "").strip().replace(",", "").replace("_", "")
        if not text:
            return default
        try:
            value = int(text)
        except ValueError:
            raise BadInput(f"{name}: {text!r} is not a whole number") from None
        if not low <= value <= high:
            raise BadInput(f"{name}: {value} is not between {low} and {high}")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Return a word of the form or the query; the first of the allowed ones without it. Raise BadInput."""
        text = self.form.get(name) or self.query.get(name) or allowed[0]
        if text not in allowed:
            raise BadInput(f"{name}: {text!r} is not one of {', '.join(filter(None, allowed))}")
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Tab:
    """A tab of an object's page."""

    title: str
    href: str
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """An answer: a template with its data."""

    template: str
    title: str
    #: values that JSON has: they are the JSON form of the page, and what the template gets
    data: Mapping[str, Any]
    _: KW_ONLY
    #: the state of an object in one word, after the title: ok, warning, error
    state: str = ""
    tabs: Sequence[Tab] = field(default=())
    #: the same as `ottla` and as `kafka-*` commands
    commands: Sequence[str] = ()
    #: more values for the template, which are not part of the JSON form
    extra: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Download:
    """An answer that a browser stores as a file."""

    name: str
    media_type: str
    content: bytes | AsyncIterator[bytes]


@dataclass(frozen=True, slots=True)
class Events:
    """A live answer: server-sent events, as (name, text) pairs. An empty text keeps the connection open."""

    events: AsyncIterator[tuple[str, str]]


Answer = View | Download | Events


@dataclass(frozen=True, slots=True)
class Change:
    """One value that an action changes; None if there was or will be none."""

    what: str
    before: str | None
    after: str | None
    #: what the change means, such as a difference
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What an action would do."""

    #: one line, such as "Delete topic orders"
    title: str
    changes: Sequence[Change]
    #: what people have to type before the plan is carried out; empty if a button is enough
    confirm: str = ""
    #: what may surprise, such as "3 groups read this topic"
    warnings: Sequence[str] = ()
    commands: Sequence[str] = ()
    #: does it, in a thread; returns one line for each thing that was done, and raises Failure
    apply: Callable[[AdminClient], Sequence[str]]
    #: the page to open afterwards, relative to /c/{cluster}/
    then: str


Handler = Callable[[PageRequest], Awaitable[Answer]]
Planner = Callable[[PageRequest], Awaitable[Plan]]


@dataclass(frozen=True, slots=True)
class Route:
    """One path of a section: a page that is read, or an action."""

    #: relative to /c/{cluster}/, with {name} for a variable segment
    path: str
    handler: Handler | None = None
    _: KW_ONLY
    plan: Planner | None = None
    role: Role = Role.VIEWER
    summary: str = ""


def action(path: str, plan: Planner, role: Role, summary: str) -> Route:
    """Return the route of an action without a form: GET shows its plan, POST carries it out.

    An action with a form is a `Route` with both: GET calls the handler, whose view has the form, POST shows the plan.
    """
    return Route(path, plan=plan, role=role, summary=summary)


class Section(Protocol):
    """One entry of the navigation, with its pages."""

    #: a word that names the section in paths, tests and templates
    key: str
    title: str
    #: of its first page, relative to /c/{cluster}/
    path: str
    #: `g` and this letter open it
    letter: str

    def routes(self) -> Sequence[Route]: ...

    def is_available(self, console: Console) -> bool:
        """Return whether the service that the section shows is configured."""
