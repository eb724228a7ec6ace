"""Opens pages in a browser and reports what a person would call broken."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Route

Scheme = Literal["light", "dark"]
DESKTOP, PHONE = 1280, 390
#: a page of 390 px must not scroll sideways
_OVERFLOW = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
#: elements that are wider than their page
_WIDE = """() => [...document.querySelectorAll('main *')]
  .filter(each => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
  .filter(each => !each.closest('.graph, pre'))
  .slice(0, 3).map(each => each.outerHTML.slice(0, 120))"""
#: whether every page is opened in each colour scheme and width, as the campaign `browser` does
IS_COMPLETE = os.environ.get("OTTLA_BROWSER") == "all"
#: file of axe-core, which the campaign installs; empty in `make test`
_AXE = os.environ.get("OTTLA_AXE", "")
#: where pictures of the pages are stored; empty: nowhere
_PICTURES = os.environ.get("OTTLA_PICTURES", "")


class OpenPage:
    """A page with everything that went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self._url = url
        self.problems: list[str] = []
        page.on("console", self._note_message)
        page.on("pageerror", lambda error: self.problems.append(f"script failed: {error}"))
        page.on("requestfailed", self._note_failed)

    def _note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type} in the console: {message.text}")

    def _note_failed(self, request: Request) -> None:
        # A live stream ends when the next page is opened, and so does an icon that was not complete.
        was_left = "ERR_ABORTED" in (request.failure or "")
        if request.resource_type not in ("eventsource", "fetch") and not was_left:
            self.problems.append(f"request failed: {request.url} {request.failure}")

    def open(self, path: str) -> None:
        answer = self.page.goto(self._url + path, wait_until="load")
        assert answer is not None
        if answer.status >= 400:
            self.problems.append(f"status {answer.status}")

    def check(self, name: str) -> list[str]:
        """Return what is wrong with the page that is open; store its picture if that is wanted."""
        page = self.page
        if not page.locator("h1").first.inner_text().strip():
            self.problems.append("the page has no heading")
        if page.evaluate(_OVERFLOW) > 1:
            self.problems.append(f"the page is wider than the screen: {page.evaluate(_WIDE)}")
        if _AXE:
            self.problems += _accessibility(page)
        if _PICTURES:
            page.screenshot(path=str(Path(_PICTURES) / f"{name}.png"), full_page=True)
        found, self.problems = self.problems, []
        return [f"{name}: {problem}" for problem in found]


@contextmanager
def opened(
    browser: Browser, url: str, *, scheme: Scheme = "light", width: int = DESKTOP, **more: Any
) -> Iterator[OpenPage]:
    """Yield a page with cookies of its own that reaches no other host."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, **more)
    own = urlsplit(url).netloc
    foreign: list[str] = []

    def guard(route: Route) -> None:
        if urlsplit(route.request.url).netloc == own:
            route.continue_()
        else:
            foreign.append(route.request.url)
            route.abort()

    context.route("**/*", guard)
    page = context.new_page()
    try:
        yield OpenPage(page, url)
        assert foreign == [], "requests to other hosts"
    finally:
        context.close()


def _accessibility(page: Page) -> list[str]:
    """Return the violations that axe-core finds. The policy of the pages does not apply to scripts of the test."""
    page.evaluate(Path(_AXE).read_text())
    found = page.evaluate("async () => (await axe.run()).violations.map(v => [v.id, v.impact, v.nodes[0].html])")
    return [f"accessibility: {json.dumps(each)}" for each in found]
