"""A row in quarantine, the record that it becomes when it is sent again, and the guard against loops. Pure.

A record that is sent again has the header `ottla.replay.count`. A pipeline keeps the headers of rejected records, so a
record that fails again comes back with its count, and is not sent again after REPLAYS_MAX times.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ottla.model.errors import OttlaError
from ottla.model.records import Record
from ottla.model.types import TopicPartition

#: how often a record is sent again
REPLAYS_MAX: Final = 3
REPLAY_COUNT: Final = "ottla.replay.count"
#: where the record was that was rejected
REPLAY_OF: Final = "ottla.replay.of"
#: largest value that can be edited
EDITED_BYTES_MAX: Final = 1 << 20


class CannotEdit(OttlaError):
    """A value is no JSON, or is too large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedRow:
    """A row of a quarantine table."""

    cause: str
    #: of the record that was rejected; None for a row that was computed from several records
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    #: the columns as JSON, if the record could be decoded; the bytes of the record need not be in the table then
    row: str | None

    @property
    def place(self) -> TopicPartition | None:
        if self.topic is None or self.partition is None or self.offset is None:
            return None
        return TopicPartition(self.topic, self.partition)

    @property
    def id(self) -> str:
        """Return where the rejected record was, as topic/partition/offset; empty without such a record."""
        return "" if self.place is None else f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def has_record(self) -> bool:
        """Return whether the table has the bytes of the record. Otherwise they are in its topic only."""
        return self.row is None or self.value is not None

    @property
    def replays(self) -> int:
        return replay_count(self.headers)


def replay_count(headers: Sequence[tuple[str, bytes | None]]) -> int:
    """Return how often a record was sent again. What is no number counts as the limit, so that it is not sent."""
    found = [value for name, value in headers if name == REPLAY_COUNT]
    if not found:
        return 0
    text = (found[-1] or b"").decode("ascii", "replace")
    return int(text) if text.isdecimal() and len(text) < 10 else REPLAYS_MAX


def replayed(record: Record, of: str) -> Record:
    """Return a record to send again, with its key, its value and its headers, and a higher count."""
    headers = [(name, value) for name, value in record.headers if name not in (REPLAY_COUNT, REPLAY_OF)]
    count = replay_count(record.headers) + 1
    headers += [(REPLAY_COUNT, str(count).encode()), (REPLAY_OF, of.encode(errors="surrogateescape"))]
    return Record(timestamp=time.time_ns() // 1_000_000, key=record.key, value=record.value, headers=headers)


def json_text(value: bytes | None) -> str | None:
    """Return a value as indented JSON; None if it is none, so that it cannot be edited as text."""
    if value is None or len(value) > EDITED_BYTES_MAX:
        return None
    try:
        return json.dumps(json.loads(value), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def edited(text: str) -> bytes:
    """Return an edited value. Raise CannotEdit if it is no JSON."""
    if len(text) > EDITED_BYTES_MAX:
        raise CannotEdit(f"value: it is larger than {EDITED_BYTES_MAX:,} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CannotEdit(f"value: this is no JSON: {error}") from None
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def row_of(fields: Mapping[str, Any]) -> QuarantinedRow:
    """Return a row from the columns of a quarantine table."""
    moment = fields.get("_timestamp")
    return QuarantinedRow(
        cause=str(fields.get("_cause") or ""),
        topic=fields.get("_topic"),
        partition=fields.get("_partition"),
        offset=fields.get("_offset"),
        timestamp_ms=None if moment is None else round(moment.timestamp() * 1000),
        key=fields.get("key"),
        value=fields.get("value"),
        headers=tuple((str(each["key"]), each["value"]) for each in fields.get("headers") or ()),
        row=fields.get("row"),
    )
