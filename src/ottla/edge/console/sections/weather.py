"""The first page: what is wrong with the cluster, and its main figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.admin.client import AdminClient
from ottla.edge.console.console import Console
from ottla.edge.console.pages import PageRequest, Route, View

_AGE_S = 2.0


class Weather:
    """The section of the first page."""

    key, title, path, letter = "weather", "Weather", "", "w"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [Route("", self.show, summary="Show what is wrong with the cluster.")]

    async def show(self, page: PageRequest) -> View:
        figures = await page.read("weather", _figures, age_s=_AGE_S)
        return View("weather/show.html", page.cluster.name, figures, commands=("ottla cluster status", "ottla doctor"))


def _figures(client: AdminClient) -> dict[str, Any]:
    metadata = client.metadata()
    topics = client.topics()
    partitions = [each for topic in topics.values() for each in topic.partitions]
    return {
        "brokers": [{"id": node.node_id, "host": node.host, "port": node.port} for node in metadata.brokers],
        "controller": metadata.controller_id,
        "topics": len(topics),
        "partitions": len(partitions),
        "offline": [str(each.name) for each in partitions if each.leader is None],
        "under_replicated": [str(each.name) for each in partitions if each.is_under_replicated],
    }
