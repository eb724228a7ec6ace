"""The associations of a registry: which subject has the schemas of a topic's keys or values. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from ottla.edge.registry.records import Association, Json

#: as the name or namespace of a resource: any
WILDCARD: Final = "-"
TOPIC: Final = "topic"
STRONG: Final = "STRONG"
WEAK: Final = "WEAK"
LIFECYCLES: Final = frozenset({STRONG, WEAK})


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects associations; an empty or missing member selects all."""

    resource_type: str | None = None
    association_types: Collection[str] = ()
    lifecycle: str | None = None

    def select(self, rows: Iterable[Association]) -> list[Association]:
        """Return the selected rows, sorted."""
        return sorted(
            row for row in rows
            if (self.resource_type is None or row.resource_type == self.resource_type)
            and (not self.association_types or row.association_type in self.association_types)
            and (self.lifecycle is None or row.lifecycle == self.lifecycle)
        )  # fmt: skip


class Associations:
    """All associations, by their keys in the topic."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Association] = {}
        #: key -> row, for each subject, resource id and resource name
        self._by_subject: dict[str, dict[bytes, Association]] = {}
        self._by_id: dict[str, dict[bytes, Association]] = {}
        self._by_name: dict[str, dict[bytes, Association]] = {}

    def of_subject(self, subject: str) -> Collection[Association]:
        return self._by_subject.get(subject, {}).values()

    def of_id(self, resource_id: str) -> Collection[Association]:
        return self._by_id.get(resource_id, {}).values()

    def of_name(self, name: str, namespace: str) -> Collection[Association]:
        """Return the associations of a resource; `WILDCARD` stands for all names, or all namespaces."""
        rows = self._rows if name == WILDCARD else self._by_name.get(name, {})
        return [row for row in rows.values() if namespace in (WILDCARD, row.resource_namespace)]

    def has_strong(self, subject: str) -> bool:
        return any(row.lifecycle == STRONG for row in self.of_subject(subject))

    def apply(self, key: Json, value: Json | None, timestamp_ms: int) -> None:
        """Apply one record of the topic."""
        names = ("resourceName", "resourceNamespace", "resourceType", "associationType", "subject")
        place = "\0".join(str(key[name]) for name in names).encode()
        old = self._rows.pop(place, None)
        if old is not None:
            for index, name in self._indexes(old):
                del index[name][place]
                if not index[name]:
                    del index[name]
        if value is None:
            return
        row = Association.parse(value, timestamp_ms)
        if old is not None:
            row = replace(row, created_ms=old.created_ms)
        self._rows[place] = row
        for index, name in self._indexes(row):
            index.setdefault(name, {})[place] = row

    def _indexes(self, row: Association) -> list[tuple[dict[str, dict[bytes, Association]], str]]:
        return [(self._by_subject, row.subject), (self._by_id, row.resource_id), (self._by_name, row.resource_name)]
