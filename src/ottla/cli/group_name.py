"""A group's name: as an argument that the shell completes, and as text that is safe to print."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from ottla.cli.connection import make_connection

#: a completion that takes longer is worse than none
_TIMEOUT_S = 1.0


class GroupNameType(click.ParamType):  # type: ignore[type-arg]
    """Any name; the cluster judges it."""

    name = "group"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from ottla.cli.cluster import connect

        try:
            connection = make_connection(
                ctx.params.get("bootstrap_server"), ctx.params.get("properties") or {}, {}, _TIMEOUT_S
            )
            groups, _ = connect(connection).groups()
        except click.ClickException:
            return []
        return [CompletionItem(group.group_id) for group in groups if group.group_id.startswith(incomplete)]


GROUP_NAME = GroupNameType()
