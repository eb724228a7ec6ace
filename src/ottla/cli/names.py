"""Names as arguments, which the shell completes by asking the cluster: topics, groups, transactional ids, subjects.

The shell waits for the answer, so there is a limit of time, and a cache for the next key. No failure is reported,
because the text would appear in the line that the user types.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from ottla.cli.connection import ClusterOptions, load_properties, make_connection
from ottla.cli.profiles import chosen
from ottla.model.errors import OttlaError

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient
    from ottla.client.registry import SchemaRegistry

#: limit for the requests of a completion
_TIMEOUT_S = 1.0
#: names that a shell gets
_COUNT_MAX = 10_000
_FAILURES = (OttlaError, OSError, ValueError, click.ClickException)


class _Question(NamedTuple):
    """A way to list names, and what identifies the answer."""

    key: list[Any]
    ask: Callable[[], Iterable[str]]


class NameType(click.ParamType):  # type: ignore[type-arg]
    """Any text, because the cluster decides whether a name is valid."""

    def __init__(self, noun: str, question: Callable[[click.Context], _Question]) -> None:
        self.name = noun
        self._question = question

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            with ctx.scope(cleanup=False):
                question = self._question(ctx)
                names = _list_names([self.name, *question.key], question.ask)
        except _FAILURES:
            # A wrong option, profile or file: there is nothing to complete.
            return []
        given = ctx.params.get(param.name or "") if param.nargs == -1 or param.multiple else None
        found = [name for name in names if name.startswith(incomplete) and name not in (given or ())]
        return [CompletionItem(name) for name in found[:_COUNT_MAX]]


def _list_names(key: list[Any], ask: Callable[[], Iterable[str]]) -> list[str]:
    from ottla.cli import completion_cache

    cached = completion_cache.read(key)
    if cached is not None and cached.is_fresh:
        return cached.names
    names = _within(_TIMEOUT_S, ask)
    if names is None:
        # The next key does not wait for the cluster again.
        names, is_answer = (cached.names if cached is not None else []), False
    else:
        names, is_answer = sorted(set(names)), True
    completion_cache.write(key, names, is_answer=is_answer)
    return names


def _within(limit_s: float, ask: Callable[[], Iterable[str]]) -> list[str] | None:
    """Return the names; None if there is no answer in time, or a failure."""
    answers: list[list[str]] = []

    def run() -> None:
        try:
            answers.append(list(ask()))
        except _FAILURES:
            return

    # A daemon: the process ends while it may still wait for a broker.
    thread = threading.Thread(target=run, name="completion", daemon=True)
    thread.start()
    thread.join(limit_s)
    return answers[0] if answers else None


def _connection(ctx: click.Context) -> ClusterOptions:
    path = ctx.params.get("command_config")
    filed = load_properties(path) if path is not None else {}
    properties = ctx.params.get("properties") or {}
    return make_connection(ctx.params.get("bootstrap_server"), properties, filed, _TIMEOUT_S, choice=chosen())


def _of_cluster(list_names: Callable[[ClusterClient], Iterable[str]]) -> Callable[[click.Context], _Question]:
    def question(ctx: click.Context) -> _Question:
        connection = _connection(ctx)
        key = [connection.bootstrap, sorted(connection.properties.items())]
        return _Question(key, lambda: list_names(connection.connect()))

    return question


def _of_registry(list_names: Callable[[SchemaRegistry], Iterable[str]]) -> Callable[[click.Context], _Question]:
    def question(ctx: click.Context) -> _Question:
        from ottla.cli.registry_options import make_address

        address = make_address(ctx.params.get("url"), ctx.params.get("registry_properties") or {})

        def ask() -> list[str]:
            with address.open() as registry:
                return list(list_names(registry))

        return _Question([address.urls, sorted(address.properties.items())], ask)

    return question


def _transactional_ids(cluster: ClusterClient) -> list[str]:
    from ottla.admin.transactions import Transactions

    return [listing.transactional_id for listing in Transactions(cluster).list_ids()]


TOPIC_NAME = NameType("topic", _of_cluster(lambda cluster: cluster.topics()))
GROUP_NAME = NameType("group", _of_cluster(lambda cluster: [group.group_id for group in cluster.groups()[0]]))
TRANSACTIONAL_ID = NameType("transactional id", _of_cluster(_transactional_ids))
SUBJECT = NameType("subject", _of_registry(lambda registry: registry.ask("GET", "/subjects")))
