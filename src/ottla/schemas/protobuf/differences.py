"""Compares two Protobuf schemas: the same differences, paths and verdicts as Confluent's registry.

Fields are compared by their numbers, messages and enums by their names. The type of a field is compared by its name. If
both schemas define that type themselves, or refer to the same version of its subject, its content is compared
only where it is defined; otherwise it is compared here as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ottla.schemas.protobuf.linker import Linked
from ottla.schemas.protobuf.loading import ROOT
from ottla.schemas.protobuf.model import SCALARS, Enum, Field, Message, OneOf
from ottla.schemas.protobuf.printer import Printer
from ottla.schemas.protobuf.symbols import Symbol
from ottla.schemas.schema import Budget, Incompatibility, Resolved, SchemaTooComplex

#: messages of other files inside of each other that are compared
_COMPARED_DEPTH_MAX: Final = 60
#: characters of a part of a schema in an incompatibility
_FRAGMENT_CHARS_MAX: Final = 2000


class Kind(StrEnum):
    """Confluent's names of the differences."""

    PACKAGE_CHANGED = "PACKAGE_CHANGED"
    MESSAGE_ADDED = "MESSAGE_ADDED"
    MESSAGE_REMOVED = "MESSAGE_REMOVED"
    MESSAGE_MOVED = "MESSAGE_MOVED"
    ENUM_ADDED = "ENUM_ADDED"
    ENUM_REMOVED = "ENUM_REMOVED"
    ENUM_CONST_ADDED = "ENUM_CONST_ADDED"
    ENUM_CONST_CHANGED = "ENUM_CONST_CHANGED"
    ENUM_CONST_REMOVED = "ENUM_CONST_REMOVED"
    FIELD_ADDED = "FIELD_ADDED"
    FIELD_REMOVED = "FIELD_REMOVED"
    FIELD_NAME_CHANGED = "FIELD_NAME_CHANGED"
    FIELD_KIND_CHANGED = "FIELD_KIND_CHANGED"
    FIELD_SCALAR_KIND_CHANGED = "FIELD_SCALAR_KIND_CHANGED"
    FIELD_NAMED_TYPE_CHANGED = "FIELD_NAMED_TYPE_CHANGED"
    FIELD_NUMERIC_LABEL_CHANGED = "FIELD_NUMERIC_LABEL_CHANGED"
    FIELD_STRING_OR_BYTES_LABEL_CHANGED = "FIELD_STRING_OR_BYTES_LABEL_CHANGED"
    REQUIRED_FIELD_ADDED = "REQUIRED_FIELD_ADDED"
    REQUIRED_FIELD_REMOVED = "REQUIRED_FIELD_REMOVED"
    ONEOF_ADDED = "ONEOF_ADDED"
    ONEOF_REMOVED = "ONEOF_REMOVED"
    ONEOF_FIELD_ADDED = "ONEOF_FIELD_ADDED"
    ONEOF_FIELD_REMOVED = "ONEOF_FIELD_REMOVED"
    ONEOF_FIELD_MOVED_TO_TOP_LEVEL = "ONEOF_FIELD_MOVED_TO_TOP_LEVEL"
    MULTIPLE_FIELDS_MOVED_TO_ONEOF = "MULTIPLE_FIELDS_MOVED_TO_ONEOF"
    FIELD_MOVED_TO_EXISTING_ONEOF = "FIELD_MOVED_TO_EXISTING_ONEOF"


_INCOMPATIBLE: Final = {
    Kind.PACKAGE_CHANGED: "the packages differ",
    Kind.MESSAGE_REMOVED: "the reader does not have this message of the writer",
    Kind.FIELD_KIND_CHANGED: "one schema has a scalar, a message or a map where the other has something else",
    Kind.FIELD_SCALAR_KIND_CHANGED: "the scalar types of the field are encoded differently",
    Kind.FIELD_NAMED_TYPE_CHANGED: "the field has another message as its type",
    Kind.FIELD_NUMERIC_LABEL_CHANGED: "the field is repeated in one schema and single in the other, and it is a number",
    Kind.REQUIRED_FIELD_ADDED: "the reader requires this field, which the writer does not have",
    Kind.REQUIRED_FIELD_REMOVED: "the writer requires this field, which the reader does not have",
    Kind.ONEOF_FIELD_REMOVED: "the reader does not have this field of the writer's oneof",
    Kind.MULTIPLE_FIELDS_MOVED_TO_ONEOF: "fields that a record may have together are in one oneof of the reader",
    Kind.FIELD_MOVED_TO_EXISTING_ONEOF: "a field that a record may have beside a oneof is in that oneof of the reader",
}

_SCALAR_KINDS: Final = {
    "int32": "number", "int64": "number", "uint32": "number", "uint64": "number", "bool": "number",
    "sint32": "signed", "sint64": "signed", "string": "string", "bytes": "string",
    "fixed32": "fixed32", "sfixed32": "fixed32", "fixed64": "fixed64", "sfixed64": "fixed64",
    "float": "float", "double": "double",
}  # fmt: skip

Element = Message | Enum | Field | OneOf | str | None


@dataclass(frozen=True, slots=True)
class Difference:
    kind: Kind
    path: str
    writer: Element = None
    reader: Element = None

    @property
    def is_compatible(self) -> bool:
        return self.kind not in _INCOMPATIBLE

    def incompatibility(self) -> Incompatibility:
        return Incompatibility(
            self.kind,
            self.path,
            f"{_INCOMPATIBLE[self.kind]} (at {self.path})",
            _fragment(self.reader),
            _fragment(self.writer),
        )


@dataclass(frozen=True, slots=True)
class Side:
    """A schema with its references."""

    linked: Linked
    resolved: Resolved

    def type(self, full_name: str | None) -> Symbol | None:
        return None if full_name is None else self.linked.scope.type(full_name)

    def origin(self, symbol: Symbol) -> tuple[str, int] | None:
        """Return subject and version that define a type; None for a file that is neither the schema nor a reference."""
        if symbol.path == ROOT:
            return "", -1
        for reference in reversed(self.resolved.references):
            if reference.name == symbol.path:
                return reference.subject, reference.version
        return None


def compare(writer: Side, reader: Side, budget: Budget) -> list[Difference]:
    """Return all differences from the writer's schema to the reader's, also those that are compatible."""
    comparison = _Comparison(writer, reader, budget)
    comparison.files()
    return comparison.differences


class _Comparison:
    def __init__(self, writer: Side, reader: Side, budget: Budget) -> None:
        self._writer = writer
        self._reader = reader
        self._budget = budget
        self._path: list[str] = []
        #: messages of the writer that are being compared; a message may contain itself
        self._open: set[int] = set()
        self._depth = 0
        self.differences: list[Difference] = []

    def files(self) -> None:
        writer, reader = self._writer.linked.file, self._reader.linked.file
        if writer.package != reader.package:
            self._add(Kind.PACKAGE_CHANGED, f"package {writer.package};", f"package {reader.package};")
        self._types(writer.types, reader.types)

    def _types(self, writer: list[Message | Enum], reader: list[Message | Enum]) -> None:
        self._messages(
            {item.name: item for item in writer if isinstance(item, Message)},
            {item.name: item for item in reader if isinstance(item, Message)},
        )
        self._enums(
            {item.name: item for item in writer if isinstance(item, Enum)},
            {item.name: item for item in reader if isinstance(item, Enum)},
        )

    def _messages(self, writer: dict[str, Message], reader: dict[str, Message]) -> None:
        positions = {name: index for index, name in enumerate(reader)}
        for index, (name, message) in enumerate(writer.items()):
            with self._at(name):
                other = reader.get(name)
                if other is not None:
                    self._message(message, other)
                    if positions[name] != index:
                        self._add(Kind.MESSAGE_MOVED, message, other)
                elif not message.is_map_entry:
                    self._add(Kind.MESSAGE_REMOVED, message)
        for name, message in reader.items():
            if name not in writer and not message.is_map_entry:
                with self._at(name):
                    self._add(Kind.MESSAGE_ADDED, None, message)

    def _enums(self, writer: dict[str, Enum], reader: dict[str, Enum]) -> None:
        for name in {**writer, **reader}:
            with self._at(name):
                if name not in reader:
                    self._add(Kind.ENUM_REMOVED, writer[name])
                elif name not in writer:
                    self._add(Kind.ENUM_ADDED, None, reader[name])
                else:
                    self._enum(writer[name], reader[name])

    def _enum(self, writer: Enum, reader: Enum) -> None:
        before = {value.number: value.name for value in writer.values}
        after = {value.number: value.name for value in reader.values}
        for number in sorted({**before, **after}):
            with self._at(str(number)):
                if number not in after:
                    self._add(Kind.ENUM_CONST_REMOVED, before[number])
                elif number not in before:
                    self._add(Kind.ENUM_CONST_ADDED, None, after[number])
                elif before[number] != after[number]:
                    self._add(Kind.ENUM_CONST_CHANGED, before[number], after[number])

    def _message(self, writer: Message, reader: Message) -> None:
        if id(writer) not in self._open:
            self._open.add(id(writer))
            self._members(_Members(writer), _Members(reader))
            self._types(writer.nested, reader.nested)
            self._open.discard(id(writer))
        else:
            self._types(writer.nested, reader.nested)

    def _members(self, writer: _Members, reader: _Members) -> None:
        for oneof in reader.oneofs.values():
            self._exclusive_fields(oneof, writer)
        for name in sorted({**writer.oneofs, **reader.oneofs}):
            with self._at(name):
                if name not in reader.oneofs:
                    self._add(Kind.ONEOF_REMOVED, writer.oneofs[name])
                elif name not in writer.oneofs:
                    self._add(Kind.ONEOF_ADDED, None, reader.oneofs[name])
        deleted = {
            name
            for name, oneof in writer.oneofs.items()
            if name not in reader.oneofs and not any(field.number in reader.fields for field in oneof.fields)
        }
        for number in sorted({**writer.fields, **reader.fields}):
            if number not in reader.fields:
                self._removed(writer, number, deleted)
            elif number not in writer.fields:
                self._added(reader, number)
            else:
                self._kept(writer, reader, number)

    def _exclusive_fields(self, oneof: OneOf, writer: _Members) -> None:
        """Find fields of a reader's oneof that were not exclusive in the writer."""
        groups: set[str] = set()
        moved = 0
        for field in oneof.fields:
            if field.number in writer.oneof_of:
                groups.add(f"oneof {writer.oneof_of[field.number]}")
            elif field.number in writer.fields:
                groups.add(f"field {field.number}")
                moved += 1
        if len(groups) > 1:
            with self._at(oneof.name):
                kind = Kind.MULTIPLE_FIELDS_MOVED_TO_ONEOF if moved > 1 else Kind.FIELD_MOVED_TO_EXISTING_ONEOF
                self._add(kind, writer.oneofs.get(oneof.name), oneof)

    def _removed(self, writer: _Members, number: int, deleted: set[str]) -> None:
        field, oneof = writer.fields[number], writer.oneof_of.get(number)
        if oneof is None:
            with self._at(str(number)):
                self._add(Kind.REQUIRED_FIELD_REMOVED if field.label == "required" else Kind.FIELD_REMOVED, field)
        elif oneof not in deleted:
            with self._at(oneof, str(number)):
                self._add(Kind.ONEOF_FIELD_REMOVED, field)

    def _added(self, reader: _Members, number: int) -> None:
        field, oneof = reader.fields[number], reader.oneof_of.get(number)
        if oneof is None:
            with self._at(str(number)):
                self._add(Kind.REQUIRED_FIELD_ADDED if field.label == "required" else Kind.FIELD_ADDED, None, field)
        else:
            with self._at(oneof, str(number)):
                self._add(Kind.ONEOF_FIELD_ADDED, None, field)

    def _kept(self, writer: _Members, reader: _Members, number: int) -> None:
        before, after = writer.fields[number], reader.fields[number]
        oneof = reader.oneof_of.get(number)
        if oneof is not None:
            with self._at(oneof, str(number)):
                self._field(before, after)
            return
        with self._at(str(number)):
            if number in writer.oneof_of:
                self._add(Kind.ONEOF_FIELD_MOVED_TO_TOP_LEVEL, before, after)
            self._field(before, after)

    def _field(self, writer: Field, reader: Field) -> None:
        if writer.name != reader.name:
            self._add(Kind.FIELD_NAME_CHANGED, writer, reader)
        self._field_type(writer, reader, writer.label, reader.label)

    def _field_type(self, writer: Field, reader: Field, before: str | None, after: str | None) -> None:
        kinds = _type_kind(writer), _type_kind(reader)
        if kinds[0] != kinds[1]:
            self._add(Kind.FIELD_KIND_CHANGED, writer, reader)
        elif kinds[0] == "scalar":
            self._scalar(writer, reader, before, after)
        elif kinds[0] == "map":
            assert writer.map_entry is not None
            assert reader.map_entry is not None
            for key_or_value, other in zip(writer.map_entry.all_fields, reader.map_entry.all_fields, strict=True):
                self._field_type(key_or_value, other, None, None)
        else:
            self._message_type(writer, reader)

    def _scalar(self, writer: Field, reader: Field, before: str | None, after: str | None) -> None:
        kind = _scalar_kind(writer)
        if kind != _scalar_kind(reader):
            self._add(Kind.FIELD_SCALAR_KIND_CHANGED, writer, reader)
        elif before is not None and after is not None and before != after:
            is_text = kind == "string"
            changed = Kind.FIELD_STRING_OR_BYTES_LABEL_CHANGED if is_text else Kind.FIELD_NUMERIC_LABEL_CHANGED
            self._add(changed, writer, reader)

    def _message_type(self, writer: Field, reader: Field) -> None:
        before, after = self._writer.type(writer.resolved), self._reader.type(reader.resolved)
        assert before is not None
        assert after is not None
        name = _local_name(before)
        if name != _local_name(after):
            self._add(Kind.FIELD_NAMED_TYPE_CHANGED, writer, reader)
            return
        origin = self._writer.origin(before)
        if origin is not None and origin == self._reader.origin(after):
            return
        if not isinstance(before.element, Message) or not isinstance(after.element, Message):
            return
        if not self._compatible_elsewhere(name, before.element, after.element):
            self._add(Kind.FIELD_NAMED_TYPE_CHANGED, writer, reader)

    def _compatible_elsewhere(self, name: str, writer: Message, reader: Message) -> bool:
        """Compare a type of another file at its own path. Return whether all differences are compatible."""
        if self._depth >= _COMPARED_DEPTH_MAX:
            raise SchemaTooComplex(f"messages of references contain each other more than {_COMPARED_DEPTH_MAX} deep")
        path, found, opened = self._path, len(self.differences), self._open
        self._path, self._open = name.split("."), set(opened)
        self._depth += 1
        self._message(writer, reader)
        self._depth -= 1
        self._path, self._open = path, opened
        return all(difference.is_compatible for difference in self.differences[found:])

    @contextmanager
    def _at(self, *parts: str) -> Iterator[None]:
        self._budget.spend()
        self._path.extend(parts)
        yield
        del self._path[-len(parts) :]

    def _add(self, kind: Kind, writer: Element = None, reader: Element = None) -> None:
        self.differences.append(Difference(kind, "#/" + "/".join(self._path), writer, reader))


class _Members:
    """The fields of a message by number, and the oneof of each that is in one. Groups are fields."""

    def __init__(self, message: Message) -> None:
        self.fields: dict[int, Field] = {}
        self.oneofs: dict[str, OneOf] = {}
        self.oneof_of: dict[int, str] = {}
        for member in message.members:
            if isinstance(member, Field):
                self.fields[member.number] = member
                continue
            self.oneofs[member.name] = member
            for field in member.fields:
                self.fields[field.number] = field
                self.oneof_of[field.number] = member.name


def _type_kind(field: Field) -> str:
    if field.map_entry is not None:
        return "map"
    if field.group is not None:
        return "group"
    return "scalar" if field.type in SCALARS or field.is_enum else "message"


def _scalar_kind(field: Field) -> str:
    return "number" if field.is_enum else _SCALAR_KINDS[field.type]


def _local_name(symbol: Symbol) -> str:
    return symbol.full_name.removeprefix(f"{symbol.package}.") if symbol.package else symbol.full_name


def _fragment(element: Element) -> str:
    if element is None or isinstance(element, str):
        return element or ""
    printer = Printer()
    if isinstance(element, Message):
        lines = printer.message(element)
    elif isinstance(element, Enum):
        lines = printer.enum(element)
    else:
        lines = printer.oneof(element) if isinstance(element, OneOf) else printer.field(element)
    text = "\n".join(lines)
    return text if len(text) <= _FRAGMENT_CHARS_MAX else text[:_FRAGMENT_CHARS_MAX] + "..."
