"""Requests of one reading: a broker that gives no answer is asked once, and a part that is refused is noted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.admin.client import AdminClient
from ottla.admin.error_codes import failure_of
from ottla.admin.failure import Failure, NotHealthy
from ottla.client.protocol.metadata import Node
from ottla.health.types import Part
from ottla.wire import Message

#: what messages of the admin client advise, and what no finding may: `ottla doctor` shows the findings
_DOCTOR = ("; see 'ottla doctor'", ", or run 'ottla doctor'")


def without_doctor(text: str) -> str:
    """Return a message without the advice to run `ottla doctor`.

    >>> without_doctor("broker 3 cannot be reached (refused); see 'ottla doctor'")
    'broker 3 cannot be reached (refused)'
    """
    for words in _DOCTOR:
        text = text.replace(words, "")
    return text


class Asker:
    """Sends the requests of one reading, counts them, and remembers what failed."""

    def __init__(self, client: AdminClient, timeout_s: float) -> None:
        self.client = client
        self._timeout_s = min(timeout_s, client.timeout_s)
        self.requests = 0
        #: parts that are not known, or not completely, with the first reason
        self.unknown: dict[Part, str] = {}
        #: brokers that gave no answer, with the reason
        self.problems: dict[int, str] = {}

    def ask(self, part: Part, node: Node, request: Message, version_min: int = 0) -> Any | None:
        """Return the reply of a broker; None if it gave none, or does not support the request."""
        if node.broker_id in self.problems:
            return None
        self.requests += 1
        try:
            return self.client.ask(node, request, version_min, timeout_s=self._timeout_s)
        except NotHealthy as failure:
            self.problems[node.broker_id] = without_doctor(failure.message)
        except Failure as failure:
            self.refused(part, failure.message)
        return None

    def ask_any(self, part: Part, nodes: Iterable[Node], request: Message, version_min: int = 0) -> Any | None:
        """Return the reply of the first of these brokers that answers."""
        for node in nodes:
            answer = self.ask(part, node, request, version_min)
            if answer is not None or part in self.unknown:
                return answer
        self.refused(part, "no broker answered")
        return None

    def accepts(self, part: Part, code: int, text: str | None = None) -> bool:
        """Return whether a reply has no error; note the error for this part."""
        if code:
            self.refused(part, failure_of(code, part.value, text).message)
        return not code

    def refused(self, part: Part, reason: str) -> None:
        self.unknown.setdefault(part, without_doctor(reason))
