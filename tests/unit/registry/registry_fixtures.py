"""A registry without a topic: changes are applied to the state at once."""

from __future__ import annotations

import json
from typing import Any

from ottla.edge.registry import changes
from ottla.edge.registry.parsing import Parser
from ottla.edge.registry.records import Record, SchemaVersion
from ottla.edge.registry.requests import NewSchema, parse_config
from ottla.edge.registry.state import State


def record(name: str = "A", *fields: dict[str, Any], **members: Any) -> str:
    """Return an Avro record."""
    return json.dumps({"type": "record", "name": name, "fields": list(fields), **members})


def number(name: str, **members: Any) -> dict[str, Any]:
    return {"name": name, "type": "int", **members}


class FakeRegistry:
    """Decides changes and applies their records, as the leader does. `log` has every record that was appended."""

    def __init__(self) -> None:
        self.state = State()
        self.parser = Parser(self.state)
        self.log: list[Record] = []

    def apply(self, records: list[Record]) -> None:
        for row in records:
            self.state.apply(row.key, row.value, len(self.log), 1000 + len(self.log))
            self.log.append(row)

    def register(
        self, subject: str, text: str, *, normalize: bool = False, force: bool = False, **members: Any
    ) -> SchemaVersion:
        new = NewSchema.parse({"schema": text, **members})
        row, records = changes.register(self.state, self.parser, subject, new, normalize=normalize, force=force)
        self.apply(records)
        return row

    def find(self, subject: str, text: str, *, deleted: bool = False, **members: Any) -> SchemaVersion | None:
        new = NewSchema.parse({"schema": text, **members})
        return changes.find(self.state, self.parser, subject, new, normalize=False, deleted=deleted)

    def delete(self, subject: str, *, permanent: bool = False) -> list[int]:
        versions, records = changes.delete_subject(self.state, subject, permanent=permanent)
        self.apply(records)
        return versions

    def delete_version(self, subject: str, version: int, *, permanent: bool = False) -> int:
        deleted, records = changes.delete_version(self.state, subject, version, permanent=permanent)
        self.apply(records)
        return deleted

    def config(self, subject: str | None, **members: Any) -> None:
        _, records = changes.set_config(self.state, subject, parse_config(members))
        self.apply(records)

    def mode(self, subject: str | None, mode: str | None, *, force: bool = False) -> None:
        self.apply(changes.set_mode(self.state, subject, mode, force=force))

    def replayed(self, *, compacted: bool = False) -> State:
        """Return the state of an instance that reads the whole topic, or what compaction leaves of it."""
        last = {row.key: position for position, row in enumerate(self.log)}
        state = State()
        for position, row in enumerate(self.log):
            if not compacted or (last[row.key] == position and row.value is not None):
                state.apply(row.key, row.value, position, 1000 + position)
        return state
