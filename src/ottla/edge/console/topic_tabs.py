"""The tabs of a topic. Each is a page of its own, `topics/TOPIC/KEY`; `topics/TOPIC` opens the partitions."""

from __future__ import annotations

from typing import Final

from ottla.edge.console.pages import PageRequest, Tab
from ottla.edge.console.rendering import url

#: title and last segment of the path
TABS: Final = (
    ("Messages", "messages"),
    ("Partitions", "partitions"),
    ("Groups", "groups"),
    ("Configs", "configs"),
    ("Schema", "schema"),
    ("Producers", "producers"),
    ("ACLs", "acls"),
)


def topic_tabs(page: PageRequest, topic: str, open_tab: str) -> list[Tab]:
    """Return the tabs of a topic; ``open_tab`` is the key of the one that the page shows.

    The tab Schema needs a registry: without one it is not there.
    """
    return [
        Tab(title=title, href=url("c", page.cluster.name, "topics", topic, key), is_open=key == open_tab)
        for title, key in TABS
        if key != "schema" or page.console.registry is not None
    ]
