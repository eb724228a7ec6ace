"""The topic of changes: who changed what in the console, when, from which value to which one.

A change has two records with the same id: `requested` is acknowledged by all in-sync replicas before anything is
changed, and `done` or `failed` follows. So a change that was made is always in the topic, and without the topic nothing
can be changed.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from ottla.admin.client import AdminClient
from ottla.edge.console.pages import Change
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

#: a year
_RETENTION_MS: Final = str(365 * 86_400_000)
#: changes that a page shows; the records of each are small
SHOWN_MAX: Final = 500
#: offsets before the end that are read for a page: two records for each change
_READ_BACK: Final = 2 * SHOWN_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRecord:
    """One value of the topic."""

    id: str
    #: requested, done or failed
    outcome: str
    time_ms: int
    user: str
    address: str
    title: str
    changes: Sequence[Mapping[str, Any]]
    #: what was done, or why not
    result: Sequence[str] = ()

    @classmethod
    def requested(cls, *, user: str, address: str, title: str, changes: Sequence[Change]) -> Self:
        rows = [{"what": each.what, "from": each.before, "to": each.after} for each in changes]
        return cls(
            id=secrets.token_hex(8), outcome="requested", time_ms=int(time.time() * 1000), user=user, address=address,
            title=title, changes=rows,
        )  # fmt: skip

    @classmethod
    def event(cls, *, user: str, title: str) -> Self:
        """Return a record of something that has happened, and that was not made in the console."""
        return cls(
            id=secrets.token_hex(8), outcome="done", time_ms=int(time.time() * 1000), user=user, address="",
            title=title, changes=[],
        )  # fmt: skip

    def ended(self, outcome: str, result: Sequence[str]) -> ChangeRecord:
        return ChangeRecord(
            id=self.id, outcome=outcome, time_ms=int(time.time() * 1000), user=self.user, address=self.address,
            title=self.title, changes=self.changes, result=list(result),
        )  # fmt: skip


def append(client: AdminClient, topic: str, record: ChangeRecord) -> None:
    """Append a record and wait for its acknowledgement. Create the topic if it does not exist. Raise Failure."""
    if topic not in client.topics():
        settings = {"cleanup.policy": "delete", "retention.ms": _RETENTION_MS}
        # Another console may create it at the same time.
        failures = [each.failure for each in client.create_topics([topic], 1, -1, settings, dry_run=False)]
        if failures[0] is not None and topic not in client.topics():
            raise failures[0]
        client.await_topics([topic])
    value = json.dumps(asdict(record), ensure_ascii=False).encode()
    batch = build_batch([Record(timestamp=record.time_ms, key=record.id.encode(), value=value)])
    client.append_batch(TopicPartition(topic, 0), batch)


def read_last(client: AdminClient, topic: str) -> list[dict[str, Any]]:
    """Return the last changes, the newest first; each has the outcome of its last record."""
    if topic not in client.topics():
        return []
    place = TopicPartition(topic, 0)
    start, end = client.log_ranges([place])[place]
    by_id: dict[str, dict[str, Any]] = {}
    for value in client.read_values(place, max(start, end - _READ_BACK), end):
        parsed = _parsed(value)
        if parsed is not None:
            known = by_id.get(parsed["id"])
            by_id[parsed["id"]] = {**parsed, "began_ms": known["began_ms"] if known else parsed["time_ms"]}
    newest = sorted(by_id.values(), key=lambda each: int(each["began_ms"]), reverse=True)
    return newest[:SHOWN_MAX]


def _parsed(value: bytes | None) -> dict[str, Any] | None:
    """Return the fields of a record; None if another program wrote it."""
    try:
        fields = json.loads(value or b"")
    except ValueError:
        return None
    names = {"id": str, "outcome": str, "time_ms": int, "user": str, "title": str, "changes": list, "result": list}
    is_complete = isinstance(fields, dict) and all(isinstance(fields.get(name), kind) for name, kind in names.items())
    return fields if is_complete else None
