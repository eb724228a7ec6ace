"""Names as arguments, which the shell completes by asking the cluster: topics, groups and transactional ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from ottla.admin.failure import Failure
from ottla.cli.connection import make_connection

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient

#: limit for a completion: the shell waits for it
_TIMEOUT_S = 1.0


class NameType(click.ParamType):  # type: ignore[type-arg]
    """Any text, because the cluster decides whether a name is valid."""

    def __init__(self, noun: str, list_names: Callable[[ClusterClient], Iterable[str]]) -> None:
        self.name = noun
        self._list_names = list_names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        properties = ctx.params.get("properties") or {}
        try:
            connection = make_connection(ctx.params.get("bootstrap_server"), properties, {}, _TIMEOUT_S)
            names = list(self._list_names(connection.connect()))
        except (Failure, click.ClickException):
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _transactional_ids(cluster: ClusterClient) -> list[str]:
    from ottla.admin.transactions import Transactions

    return [listing.transactional_id for listing in Transactions(cluster).list_ids()]


TOPIC_NAME = NameType("topic", lambda cluster: cluster.topics())
GROUP_NAME = NameType("group", lambda cluster: [group.group_id for group in cluster.groups()[0]])
TRANSACTIONAL_ID = NameType("transactional id", _transactional_ids)
