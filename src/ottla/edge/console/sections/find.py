"""The palette: finds topics, groups, subjects, brokers and actions by a part of their names.

The answer is bounded, and what it is made from is read at most every few seconds: a request for each key that is
pressed costs the cluster nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.edge.console.cluster_map import read_map
from ottla.edge.console.pages import PageRequest, Route, View
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.edge.web.authentication import Identity
from ottla.model.errors import OttlaError

_AGE_S: Final = 10.0
_TEXT_MAX: Final = 250
#: hits of each kind
_HITS_MAX: Final = 8
_USERS_MAX: Final = 100
#: title, path below the cluster, role
_ACTIONS: Final = (
    ("Create a topic", "create-topic", Role.EDITOR),
    ("Topics that need care", "topics?state=care", Role.VIEWER),
    ("Largest topics", "topics?sort=size&order=desc", Role.VIEWER),
    ("Moves in progress", "moves", Role.VIEWER),
    ("Move partitions", "moves/plan", Role.ADMIN),
    ("Balance leaders: elect the preferred ones", "elect", Role.ADMIN),
    ("Add an ACL", "access", Role.ADMIN),
    ("Add a user", "access/users", Role.ADMIN),
    ("Set a quota", "access/quotas", Role.ADMIN),
)


class Find:
    """The search over all objects. It has no entry of its own in the navigation."""

    def __init__(self) -> None:
        #: by user: when the subjects were read, and their names
        self._subjects: dict[Identity, tuple[float, list[str]]] = {}

    def routes(self) -> Sequence[Route]:
        return [Route("find", self.find, summary="Find topics, groups, subjects, brokers and actions by name.")]

    async def find(self, page: PageRequest) -> View:
        text = page.query.get("q", "").strip()[:_TEXT_MAX]
        found: list[dict[str, str]] = []
        problems: list[str] = []
        if text:
            parts = (self._in_cluster(page, text), self._groups(page, text), self._in_registry(page, text))
            for part in await asyncio.gather(*parts, return_exceptions=True):
                if isinstance(part, OttlaError):
                    problems.append(str(part))
                elif isinstance(part, BaseException):
                    raise part
                else:
                    found += part
            found += _actions(page, text)
            found.sort(key=lambda hit: _rank(hit["title"], text))
        data = {"q": text, "found": found, "problems": problems}
        return View("find.html", "Find", data, commands=("ottla topic list", "ottla group list"))

    async def _in_cluster(self, page: PageRequest, text: str) -> list[dict[str, str]]:
        known = await page.read("cluster map", read_map, age_s=_AGE_S)
        name = page.cluster.name
        topics = [_hit("topic", topic, url("c", name, "topics", topic)) for topic in _matching(known.rows, text)]
        brokers = [
            _hit("broker", f"{number} {node.host}:{node.port}", url("c", name, "brokers", number))
            for number, node in known.brokers.items()
            if text.lower() in f"broker {number} {node.host}:{node.port}".lower()
        ]
        return topics + brokers[:_HITS_MAX]

    async def _groups(self, page: PageRequest, text: str) -> list[dict[str, str]]:
        reading = page.console.watch(page.cluster).state.reading
        names: Iterable[str]
        if reading is not None:
            names = reading.groups
        else:
            names = await page.read("group names", _group_names, age_s=_AGE_S)
        return [_hit("group", name, url("c", page.cluster.name, "groups", name)) for name in _matching(names, text)]

    async def _in_registry(self, page: PageRequest, text: str) -> list[dict[str, str]]:
        registry, user = page.console.registry, page.caller.identity
        if registry is None:
            return []
        at, names = self._subjects.get(user, (-_AGE_S, []))
        if time.monotonic() - at >= _AGE_S:
            names = [str(each) for each in await registry.ask(user, "GET", "/subjects")]
            if len(self._subjects) >= _USERS_MAX:
                self._subjects.clear()
            self._subjects[user] = time.monotonic(), names
        return [_hit("subject", name, url("c", page.cluster.name, "schemas", name)) for name in _matching(names, text)]


def _group_names(client: AdminClient) -> list[str]:
    groups, _ = client.groups()
    return [each.group_id for each in groups]


def _actions(page: PageRequest, text: str) -> list[dict[str, str]]:
    base = url("c", page.cluster.name)
    return [
        _hit("do", title, f"{base}/{path}")
        for title, path, role in _ACTIONS
        if page.may(role) and text.lower() in title.lower()
    ][:_HITS_MAX]


def _hit(kind: str, title: str, href: str) -> dict[str, str]:
    return {"kind": kind, "title": title, "href": href}


def _matching(names: Iterable[str], text: str) -> list[str]:
    """Return the best names that contain a text.

    >>> _matching(["reorders", "orders.eu", "orders"], "ORDERS")
    ['orders', 'orders.eu', 'reorders']
    """
    lowered = text.lower()
    found = [name for name in names if lowered in name.lower()]
    return sorted(found, key=lambda name: _rank(name, text))[:_HITS_MAX]


def _rank(name: str, text: str) -> tuple[Any, ...]:
    """Return a key by which the name itself is first, then names that begin with the text, then others."""
    lowered, wanted = name.lower(), text.lower()
    return lowered != wanted, not lowered.startswith(wanted), len(name), name
