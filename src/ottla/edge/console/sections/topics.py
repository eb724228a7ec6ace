"""The list of topics, and the pages of a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ottla.edge.console.cluster_map import TopicSummary, cluster_map
from ottla.edge.console.console import Console
from ottla.edge.console.pages import PAGE_ROWS, PageRequest, Route, View
from ottla.edge.console.sections.messages import message_routes
from ottla.edge.console.topic_tabs import topic_tabs

_SORTS: Final[Mapping[str, Callable[[TopicSummary], Any]]] = {
    "name": lambda each: each.name,
    "partitions": lambda each: each.partitions,
    "replication_factor": lambda each: each.replication_factor,
}


class Topics:
    """The section of the topics."""

    key, title, path, letter = "topics", "Topics", "topics", "t"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [
            Route("topics", self.list, summary="List the topics."),
            Route("topics/{topic}", self.show_partitions, summary="Show a topic."),
            Route("topics/{topic}/partitions", self.show_partitions, summary="Show the partitions of a topic."),
            *message_routes(),
        ]

    async def list(self, page: PageRequest) -> View:
        known = (await cluster_map(page)).summaries
        found = _selected(page, known.values())
        start = page.number("start", 0, high=max(len(known), 1))
        shown = found[start : start + PAGE_ROWS]
        data = {
            "topics": [each.row() for each in shown], "start": start, "matched": len(found), "total": len(known),
        }  # fmt: skip
        return View(
            "topics/list.html", "Topics", data, extra={"page_rows": PAGE_ROWS},
            commands=("ottla topic list", "kafka-topics --list"),
        )  # fmt: skip

    async def show_partitions(self, page: PageRequest) -> View:
        name = page.params["topic"]
        topic = (await cluster_map(page)).topic(name)
        rows = [
            {"partition": each.name.partition, "leader": each.leader, "replicas": each.replicas, "isr": each.isr}
            for each in topic.partitions
        ]
        return View(
            "topics/partitions.html", name, {"topic": name, "partitions": rows},
            tabs=topic_tabs(page, name, "partitions"),
            commands=(f"ottla topic describe {name}", f"kafka-topics --describe --topic {name}"),
        )  # fmt: skip


def _selected(page: PageRequest, topics: Iterable[TopicSummary]) -> list[TopicSummary]:
    """Return the topics that the query asks for, in its order; without one, those with problems are first."""
    text = page.query.get("q", "").strip().lower()
    with_internal = page.query.get("internal", "") == "yes"
    only_care = page.choice("state", ["", "care"]) == "care"
    found = [
        each
        for each in topics
        if text in each.name.lower() and (with_internal or not each.is_internal) and (each.severity or not only_care)
    ]
    sort = page.choice("sort", ["", *_SORTS])
    if not sort:
        return sorted(found, key=lambda each: (-each.severity, each.name))
    return sorted(found, key=_SORTS[sort], reverse=page.choice("order", ["asc", "desc"]) == "desc")
