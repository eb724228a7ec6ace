"""Who changed what in the console."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ottla.edge.console.changes import SHOWN_MAX, read_last
from ottla.edge.console.console import Console
from ottla.edge.console.pages import PageRequest, Route, View
from ottla.edge.console.roles import Role

_AGE_S = 1.0


class Changes:
    """The section of the changes, from the topic that has them."""

    key, title, path, letter = "changes", "Changes", "changes", "h"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [Route("changes", self.list, role=Role.VIEWER, summary="Show the last changes.")]

    async def list(self, page: PageRequest) -> View:
        topic = page.console.settings.changes_topic
        rows = await page.read("changes", partial(read_last, topic=topic), age_s=_AGE_S)
        command = f"ottla consume {topic} --exit"
        return View(
            "changes/list.html", "Changes", {"changes": rows, "topic": topic, "shown_max": SHOWN_MAX},
            commands=(command, f"kafka-console-consumer --topic {topic} --from-beginning"),
        )  # fmt: skip
