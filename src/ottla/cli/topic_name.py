"""A topic's name as an argument: the shell completes it by asking the cluster."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ottla.cli.connection import make_connection

#: a completion that takes longer is worse than none
_TIMEOUT_S = 1.0


class TopicNameType(click.ParamType):  # type: ignore[type-arg]
    """Any name; the cluster judges it."""

    name = "topic"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from ottla.cli.cluster import connect

        try:
            connection = make_connection(
                ctx.params.get("bootstrap_server"), ctx.params.get("properties") or {}, {}, _TIMEOUT_S
            )
            names = connect(connection).topics()
        except click.ClickException:
            return []
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


TOPIC_NAME = TopicNameType()
