"""A parsed Avro schema: what the registry and the serialisers use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Final, Self

from ottla.schemas.avro import json_text, tags
from ottla.schemas.avro.compatibility import incompatibilities
from ottla.schemas.avro.equality import same_schema_and_documentation
from ottla.schemas.avro.nodes import Named, Node, Record
from ottla.schemas.avro.normal_form import normal_text
from ottla.schemas.avro.parser import Parser
from ottla.schemas.avro.printer import schema_text
from ottla.schemas.schema import (
    NO_REFERENCES,
    TEXT_BYTES_MAX,
    Budget,
    Entity,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    Resolved,
    SchemaTooComplex,
    SchemaType,
    UnknownFormat,
)
from ottla.schemas.tags import MEMBER

#: a character of UTF-8 has at most this many bytes
_CHARACTER_BYTES_MAX: Final = 4


class AvroSchema(ParsedSchema):
    """An Avro schema; `parse` creates one."""

    __slots__ = ("_is_new", "_known_names", "_resolved", "_root", "_text")

    schema_type: ClassVar[SchemaType] = SchemaType.AVRO

    def __init__(self, text: str, resolved: Resolved = NO_REFERENCES, *, is_new: bool = True) -> None:
        """Parse `text`. Raise InvalidSchema.

        A new schema may use only ASCII names, and its defaults must fit. A stored schema (`is_new` false) was accepted
        before, perhaps by an older release, so it is checked less.
        """
        _check_size([text, *resolved.texts.values()])
        budget = Budget()
        parser = Parser(is_new, budget)
        roots = [parser.parse(reference) for reference in resolved.texts.values()]
        self._is_new = is_new
        self._resolved = resolved
        #: types that the canonical text mentions by name: the outermost type of each reference
        self._known_names = frozenset([root.name.full for root in roots if isinstance(root, Named)])
        self._root: Node = parser.parse(text)
        if not is_new:
            parser.check_stored_names(self._root)
        self._text = schema_text(self._root, budget, self._known_names)
        if not self._text.isascii():
            _check_characters(self._text)

    @property
    def root(self) -> Node:
        """The outermost type; it must not be changed."""
        return self._root

    @property
    def name(self) -> str | None:
        return self._root.name.full if isinstance(self._root, Record) else None

    def normalized(self) -> Self:
        text = normal_text(self._root, self._known_names, Budget())
        references = dict.fromkeys(sorted(self._resolved.references, key=lambda each: (each.subject, each.version)))
        return type(self)(text, replace(self._resolved, references=tuple(references)), is_new=self._is_new)

    def formatted(self, format_name: str) -> str:
        """Return the canonical text ("" and "default"), or the text with all referenced types ("resolved")."""
        match format_name.strip().lower():
            case "" | "default":
                return self._text
            case "resolved":
                return schema_text(self._root, Budget())
        raise UnknownFormat(f"Avro schemas have the formats default and resolved, not {format_name!r}")

    def incompatibilities(self, writer: ParsedSchema, *, lenient: bool = False) -> list[Incompatibility]:
        if not isinstance(writer, AvroSchema):
            description = f"the reader's schema is {self.schema_type.value}, the writer's {writer.schema_type.value}"
            return [Incompatibility("TYPE_MISMATCH", "/", description, self._text, writer.text)]
        return incompatibilities(self._root, writer._root, Budget())

    def is_equivalent(self, other: ParsedSchema) -> bool:
        """Return whether both schemas are equal, with their documentation and aliases, when references are expanded.

        The references must be the same, too, except that a schema without references finds one that has some.
        """
        if not isinstance(other, AvroSchema):
            return False
        references, others = self._resolved.references, other._resolved.references
        if references != others and references:
            return False
        if references == others and self._text == other._text and self._resolved.texts == other._resolved.texts:
            return True
        return same_schema_and_documentation(self._root, other._root, Budget())

    def tags(self) -> frozenset[str]:
        return frozenset(tags.TAGS.inside(json_text.read(self._text))) if MEMBER in self._text else frozenset()

    def tagged_entities(self) -> Mapping[Entity, frozenset[str]]:
        return tags.tagged_entities(self._root)

    def with_tags(self, add: Mapping[Entity, frozenset[str]], remove: Mapping[Entity, frozenset[str]]) -> Self:
        json = json_text.read(self._text)
        tags.change_tags(json, add, remove)
        return type(self)(json_text.write(json), self._resolved, is_new=self._is_new)

    def has_top_level_field(self, name: str) -> bool:
        return isinstance(self._root, Record) and name in self._root.fields_by_name


def parse(text: str, resolved: Resolved = NO_REFERENCES, *, is_new: bool = True) -> AvroSchema:
    """Return the parsed schema. Raise InvalidSchema; the message names the place in the text.

    `is_new` is false for a schema that was stored before, and for one that is only looked up.
    """
    return AvroSchema(text, resolved, is_new=is_new)


def _check_size(texts: list[str]) -> None:
    if sum(map(len, texts)) * _CHARACTER_BYTES_MAX <= TEXT_BYTES_MAX:
        return
    if sum(len(text.encode("utf-8", "replace")) for text in texts) > TEXT_BYTES_MAX:
        raise SchemaTooComplex(f"the schema and its references have more than {TEXT_BYTES_MAX:,} bytes")


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidSchema(f"the schema contains half of a surrogate pair, {text[error.start]!r}") from None
