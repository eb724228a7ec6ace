"""A validator for the part of JSON Schema that OpenLineage's specification uses. An unknown keyword is an error."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "number": (int, float)}
_IGNORED = {"description", "example", "$schema", "$id", "$defs", "deprecated", "title"}


class Schemas:
    """The schemas of a directory, found by their `$id`."""

    def __init__(self, directory: Path) -> None:
        documents = [json.loads(path.read_text("utf-8")) for path in sorted(directory.glob("*.json"))]
        self._by_id = {document["$id"]: document for document in documents}

    def problems(self, value: Any, reference: str) -> list[str]:
        """Return what is wrong with a value by the schema at `reference`, a URL with a JSON pointer."""
        url, _, pointer = reference.partition("#")
        return list(self._check(value, self._at(url, pointer), url, "$"))

    def _at(self, url: str, pointer: str) -> Any:
        part: Any = self._by_id[url]
        for name in filter(None, pointer.split("/")):
            part = part[name]
        return part

    def _check(self, value: Any, schema: dict[str, Any], url: str, where: str) -> Iterator[str]:
        for keyword, rule in schema.items():
            if keyword not in _IGNORED:
                yield from getattr(self, f"_{keyword.lstrip('$')}")(value, rule, url, where)

    def _ref(self, value: Any, rule: str, url: str, where: str) -> Iterator[str]:
        target, _, pointer = rule.partition("#")
        yield from self._check(value, self._at(target or url, pointer), target or url, where)

    def _type(self, value: Any, rule: str, url: str, where: str) -> Iterator[str]:
        if not isinstance(value, _TYPES[rule]) or (rule == "integer" and isinstance(value, bool)):
            yield f"{where}: {value!r} is not of type {rule}"

    def _allOf(self, value: Any, rule: list[Any], url: str, where: str) -> Iterator[str]:
        for one in rule:
            yield from self._check(value, one, url, where)

    def _anyOf(self, value: Any, rule: list[Any], url: str, where: str) -> Iterator[str]:
        if all(list(self._check(value, one, url, where)) for one in rule):
            yield from self._check(value, rule[0], url, where)

    def _oneOf(self, value: Any, rule: list[Any], url: str, where: str) -> Iterator[str]:
        if sum(not list(self._check(value, one, url, where)) for one in rule) != 1:
            yield f"{where}: not exactly one of the alternatives holds"

    def _not(self, value: Any, rule: dict[str, Any], url: str, where: str) -> Iterator[str]:
        if not list(self._check(value, rule, url, where)):
            yield f"{where}: has what it must not have: {rule}"

    def _required(self, value: Any, rule: list[str], url: str, where: str) -> Iterator[str]:
        yield from (f"{where}: {name} is missing" for name in rule if isinstance(value, dict) and name not in value)

    def _properties(self, value: Any, rule: dict[str, Any], url: str, where: str) -> Iterator[str]:
        for name, schema in rule.items():
            if isinstance(value, dict) and name in value:
                yield from self._check(value[name], schema, url, f"{where}.{name}")

    def _additionalProperties(self, value: Any, rule: Any, url: str, where: str) -> Iterator[str]:
        # In this specification it stands without `properties` beside it, or is true.
        for name, inner in value.items() if isinstance(rule, dict) else ():
            yield from self._check(inner, rule, url, f"{where}.{name}")

    def _items(self, value: Any, rule: dict[str, Any], url: str, where: str) -> Iterator[str]:
        for at, inner in enumerate(value):
            yield from self._check(inner, rule, url, f"{where}[{at}]")

    def _enum(self, value: Any, rule: list[Any], url: str, where: str) -> Iterator[str]:
        if value not in rule:
            yield f"{where}: {value!r} is none of {rule}"

    def _minimum(self, value: Any, rule: int, url: str, where: str) -> Iterator[str]:
        if value < rule:
            yield f"{where}: {value} is less than {rule}"

    def _format(self, value: Any, rule: str, url: str, where: str) -> Iterator[str]:
        try:
            if rule == "uuid":
                uuid.UUID(value)
            elif rule == "date-time":
                assert datetime.fromisoformat(value).tzinfo is not None
            elif rule == "uri":
                assert urlsplit(value).scheme
            else:
                raise AssertionError(f"the format {rule} is not known")
        except (ValueError, AssertionError):
            yield f"{where}: {value!r} is no {rule}"
