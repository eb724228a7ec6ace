"""The records of a topic."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.edge.console.pages import Route


def message_routes() -> Sequence[Route]:
    """Return the routes of the tab Messages, and of records."""
    return []
