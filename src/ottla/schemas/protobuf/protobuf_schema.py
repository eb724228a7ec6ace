"""Protobuf schemas for the registry: texts in .proto syntax, and FileDescriptorProto in base64."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

from ottla.schemas.protobuf.checks import json_name
from ottla.schemas.protobuf.differences import Side, compare
from ottla.schemas.protobuf.linker import Linked
from ottla.schemas.protobuf.loading import load
from ottla.schemas.protobuf.model import Enum, Field, File, ImportKind, Message
from ottla.schemas.protobuf.normal_form import NormalPrinter
from ottla.schemas.protobuf.printer import Printer
from ottla.schemas.protobuf.tags import collect_tags, tagged_entities, tagged_file
from ottla.schemas.schema import (
    NO_REFERENCES,
    Budget,
    Entity,
    Incompatibility,
    ParsedSchema,
    Resolved,
    SchemaType,
    UnknownFormat,
)

_DIFFERENT_TYPE: Final = "DIFFERENT_SCHEMA_TYPE"


def parse(text: str, resolved: Resolved = NO_REFERENCES) -> ProtobufSchema:
    """Return the schema of a .proto text, or of a FileDescriptorProto in base64. Raise InvalidSchema if it is wrong."""
    linked, canonical = load(text, resolved.texts, Budget())
    return ProtobufSchema(linked, canonical, resolved)


class _ShortPrinter(Printer):
    """Prints no names in JSON that fields have anyway. Python's descriptors state them, Java's do not."""

    def json_name(self, field: Field) -> str | None:
        return None if field.json_name == json_name(field.name) else field.json_name


class ProtobufSchema(ParsedSchema):
    """A valid Protobuf file together with the files that it imports."""

    schema_type: ClassVar[SchemaType] = SchemaType.PROTOBUF

    def __init__(self, linked: Linked, text: str, resolved: Resolved) -> None:
        self._linked = linked
        self._text = text
        self._resolved = resolved

    @property
    def name(self) -> str | None:
        """The full name of the first message, or of the first enum if there is no message."""
        file = self._visible_file
        first: Message | Enum | None = next((item for item in file.types if isinstance(item, Message)), None)
        if first is None:
            first = next(iter(file.types), None)
        if first is None:
            return None
        return f"{file.package}.{first.name}" if file.package else first.name

    def normalized(self) -> Self:
        text = NormalPrinter(self._linked.scope).file(self._linked.file)
        references = tuple(
            sorted(set(self._resolved.references), key=lambda item: (item.name, item.subject, item.version))
        )
        resolved = Resolved(references, self._resolved.texts)
        return self._parsed(text, resolved)

    def formatted(self, format_name: str) -> str:
        match format_name.strip().lower():
            case "" | "default":
                return self._text
            case "ignore_extensions":
                return Printer(without_extensions=True).file(self._linked.file)
            case "serialized":
                return base64.b64encode(self._linked.serialized).decode()
        raise UnknownFormat(f'Protobuf has no format "{format_name[:60]}"; use "ignore_extensions" or "serialized"')

    @property
    def file_descriptor(self) -> Any:
        """The FileDescriptorProto of the schema; it must not be changed. Its path is `default`."""
        return self._linked.descriptor

    def descriptors(self) -> list[bytes]:
        """Return the FileDescriptorProtos of all files that the schema needs, imported files first, its own last."""
        return [linked.serialized for linked in (*self._linked.imported.values(), self._linked)]

    def incompatibilities(self, writer: ParsedSchema, *, lenient: bool = False) -> list[Incompatibility]:
        if not isinstance(writer, ProtobufSchema):
            return [Incompatibility(_DIFFERENT_TYPE, "#/", "the writer's schema is not a Protobuf schema")]
        differences = compare(Side(writer._linked, writer._resolved), Side(self._linked, self._resolved), Budget())
        return [difference.incompatibility() for difference in differences if not difference.is_compatible]

    def is_equivalent(self, other: ParsedSchema) -> bool:
        if not isinstance(other, ProtobufSchema):
            return False
        if other.text != self._text and _ShortPrinter().file(other._linked.file) != _ShortPrinter().file(
            self._linked.file
        ):
            return False
        return not self._resolved.references or self._resolved.references == other.resolved.references

    def tags(self) -> frozenset[str]:
        return frozenset(collect_tags(self._linked.file))

    def tagged_entities(self) -> Mapping[Entity, frozenset[str]]:
        return tagged_entities(self._linked.file)

    def with_tags(self, add: Mapping[Entity, frozenset[str]], remove: Mapping[Entity, frozenset[str]]) -> Self:
        return self._parsed(Printer().file(tagged_file(self._linked.file, add, remove)), self._resolved)

    def has_top_level_field(self, name: str) -> bool:
        messages = (item for item in self._visible_file.types if isinstance(item, Message))
        return any(isinstance(member, Field) and member.name == name for item in messages for member in item.members)

    @property
    def _visible_file(self) -> File:
        """The file whose messages the schema offers: a file that only imports another one publicly stands for that."""
        file = self._linked.file
        if file.types or file.services or file.extends or len(file.imports) != 1:
            return file
        if file.imports[0].kind is not ImportKind.PUBLIC:
            return file
        imported = self._linked.imported.get(file.imports[0].path)
        return imported.file if imported is not None and imported.file.types else file

    def _parsed(self, text: str, resolved: Resolved) -> Self:
        linked, canonical = load(text, resolved.texts, Budget())
        return type(self)(linked, canonical, resolved)
