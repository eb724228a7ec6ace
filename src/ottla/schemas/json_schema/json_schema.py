"""A parsed JSON schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from ottla.schemas.json_schema.comparison import Comparison
from ottla.schemas.json_schema.differences import COMPATIBLE, COMPATIBLE_LENIENT
from ottla.schemas.json_schema.documents import Documents
from ottla.schemas.json_schema.nodes import SchemaNodes
from ottla.schemas.json_schema.report import Differences, Side
from ottla.schemas.json_schema.tags import TAGS, change_tags, tagged_entities
from ottla.schemas.json_schema.text import JsonValue, print_json, sort_members
from ottla.schemas.schema import (
    NO_REFERENCES,
    Budget,
    Entity,
    Incompatibility,
    ParsedSchema,
    Reference,
    Resolved,
    SchemaType,
    UnknownFormat,
)


class JsonSchema(ParsedSchema):
    """A JSON schema of one of the drafts 4, 6, 7, 2019-09 and 2020-12. Immutable."""

    schema_type = SchemaType.JSON

    def __init__(self, text: str, resolved: Resolved = NO_REFERENCES) -> None:
        """Raise InvalidSchema if the text is not a valid schema, with the place as a JSON pointer."""
        self._resolved = resolved
        self._documents = Documents(text, resolved, Budget())
        self._documents.patterns.release()
        self._nodes = SchemaNodes(self._documents)
        self._text = print_json(self._root)

    @property
    def _root(self) -> JsonValue:
        return self._documents.root

    @property
    def name(self) -> str | None:
        """The title of the schema."""
        title = self._root.get("title") if isinstance(self._root, dict) else None
        return title if isinstance(title, str) else None

    def normalized(self) -> Self:
        references = tuple(sorted(dict.fromkeys(self._resolved.references), key=_reference_order))
        return type(self)(print_json(sort_members(self._root)), Resolved(references, self._resolved.texts))

    def formatted(self, format_name: str) -> str:
        if format_name.strip():
            raise UnknownFormat(f"a JSON schema has no format {format_name!r}")
        return self._text

    def incompatibilities(self, writer: ParsedSchema, *, lenient: bool = False) -> list[Incompatibility]:
        """Return the reasons why this schema cannot read what `writer` wrote.

        :param lenient: the compatibility policy LENIENT, which lets properties be added to and removed from objects.
        """
        if not isinstance(writer, JsonSchema):
            return [
                Incompatibility(
                    "TYPE_CHANGED", "#/", f"the writer's schema is of the type {writer.schema_type}, the reader's JSON"
                )
            ]
        compatible = COMPATIBLE_LENIENT if lenient else COMPATIBLE
        found = self.differences(writer, lenient=lenient)
        return [difference.as_incompatibility() for difference in found if difference.kind not in compatible]

    def differences(self, writer: JsonSchema, *, lenient: bool = False) -> Differences:
        """Return all differences from a writer's schema to this one, also those that a reader tolerates."""
        compatible = COMPATIBLE_LENIENT if lenient else COMPATIBLE
        try:
            return Comparison(writer._side, self._side, compatible, Budget()).differences()
        finally:
            for schema in (writer, self):
                schema._documents.patterns.release()

    @property
    def _side(self) -> Side:
        return Side(self._nodes, self._documents.patterns)

    def is_equivalent(self, other: ParsedSchema) -> bool:
        """Return whether both have the same text and references; a schema without references also finds one with."""
        if not isinstance(other, JsonSchema) or self._text != other.text:
            return False
        return not self._resolved.references or self._resolved.references == other.resolved.references

    def tags(self) -> frozenset[str]:
        return frozenset(TAGS.inside(self._root))

    def tagged_entities(self) -> Mapping[Entity, frozenset[str]]:
        return tagged_entities(self._nodes)

    def with_tags(self, add: Mapping[Entity, frozenset[str]], remove: Mapping[Entity, frozenset[str]]) -> Self:
        copy = type(self)(self._text, self._resolved)
        change_tags(copy._nodes, add, remove)
        return type(self)(print_json(copy._root), self._resolved)

    def has_top_level_field(self, name: str) -> bool:
        properties = self._root.get("properties") if isinstance(self._root, dict) else None
        return isinstance(properties, dict) and name in properties


def _reference_order(reference: Reference) -> tuple[bytes, int]:
    return reference.subject.encode("utf-16-be", "surrogatepass"), reference.version
