"""A .proto file as a tree. Text and FileDescriptorProto both become this, and it is printed, linked and compared.

The tree keeps what the canonical text shows: type names as they were written, options in their order, and numbers
as they were spelled. `at` is the index of an element in the text that was parsed, for error messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

FIELD_NUMBER_MAX: Final = 536_870_911
INT32_MAX: Final = 2_147_483_647
INT32_MIN: Final = -2_147_483_648

#: nested messages; protoc has the same limit
NESTING_MAX: Final = 32

SCALARS: Final = frozenset((
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32",
    "sfixed64", "bool", "string", "bytes",
))  # fmt: skip


class Kind(StrEnum):
    """How a literal of an option is written."""

    STRING = "string"
    BOOLEAN = "boolean"
    ENUM = "identifier"
    NUMBER = "number"


@dataclass(frozen=True, slots=True)
class Literal:
    """A value of an option. Bytes of a string that are not UTF-8 are lone surrogates (`surrogateescape`)."""

    kind: Kind
    text: str


#: dict: the fields of a message literal; the name of an extension is in brackets
Value = Literal | list["Value"] | dict[str, "Value"]


@dataclass(frozen=True, slots=True)
class NamePart:
    """One part of an option's name: `(a.b)` is an extension, `c` is a field."""

    name: str
    is_extension: bool


@dataclass(slots=True)
class Option:
    parts: tuple[NamePart, ...]
    value: Value
    at: int = -1
    #: full name of the first part if it is an extension and the linker found it
    resolved: str | None = None
    #: full names of the extensions inside of the value, by the names in brackets
    resolved_keys: dict[str, str] = field(default_factory=dict)

    @property
    def parenthesized(self) -> bool:
        return self.parts[0].is_extension

    @property
    def uses_extension(self) -> bool:
        return any(part.is_extension for part in self.parts)

    @property
    def name(self) -> str:
        """Return the extension's name, or for an option of Protobuf itself the whole name with its dots."""
        if self.parenthesized:
            return self.parts[0].name
        return ".".join(f"({part.name})" if part.is_extension else part.name for part in self.parts)

    @property
    def path(self) -> tuple[NamePart, ...]:
        """Return the parts that `name` does not show: the path inside of an extension's value."""
        return self.parts[1:] if self.parenthesized else ()


def simple_option(name: str, value: Value, at: int = -1) -> Option:
    return Option((NamePart(name, False),), value, at)


def extension_option(name: str, value: Value, at: int = -1) -> Option:
    return Option((NamePart(name, True),), value, at)


@dataclass(slots=True)
class Field:
    name: str
    #: as written; "group" for a group, "" for a map
    type: str
    number: int
    #: "optional", "required", "repeated" or None
    label: str | None = None
    #: types of key and value of a map
    map_types: tuple[str, str] | None = None
    group: Message | None = None
    default: Literal | None = None
    json_name: str | None = None
    options: list[Option] = field(default_factory=list)
    at: int = -1
    type_at: int = -1
    number_at: int = -1
    #: full name of the message or enum, without a leading dot; of a map: that of its value
    resolved: str | None = None
    is_enum: bool = False
    #: the field is a map: either written as one, or its type is a message with the option map_entry
    map_entry: Message | None = None

    @property
    def type_text(self) -> str:
        if self.map_types is not None:
            return f"map<{self.map_types[0]}, {self.map_types[1]}>"
        return self.type


@dataclass(slots=True)
class OneOf:
    name: str
    fields: list[Field] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    at: int = -1


#: the first and the last number of a range; "max" is the last number that is possible
Range = tuple[int, int]


def span(item: int | Range) -> Range:
    """Return the first and the last number of a statement's item, which may be one number."""
    return (item, item) if isinstance(item, int) else item


@dataclass(slots=True)
class Reserved:
    """One statement `reserved`: names, numbers and ranges. A number is an int, a range a tuple."""

    values: list[str | int | Range]
    at: int = -1

    @property
    def spans(self) -> list[Range]:
        """Return the numbers and ranges, without the names."""
        return [span(value) for value in self.values if not isinstance(value, str)]


@dataclass(slots=True)
class Extensions:
    ranges: list[int | Range]
    options: list[Option] = field(default_factory=list)
    at: int = -1


@dataclass(slots=True)
class Extend:
    #: the extended message, as written
    name: str
    fields: list[Field] = field(default_factory=list)
    at: int = -1
    resolved: str | None = None


@dataclass(slots=True)
class EnumValue:
    name: str
    number: int
    options: list[Option] = field(default_factory=list)
    at: int = -1


@dataclass(slots=True)
class Enum:
    name: str
    values: list[EnumValue] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)
    at: int = -1


@dataclass(slots=True)
class Message:
    name: str
    #: fields and oneofs in the order of the text
    members: list[Field | OneOf] = field(default_factory=list)
    nested: list[Message | Enum] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    reserved: list[Reserved] = field(default_factory=list)
    extensions: list[Extensions] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    at: int = -1

    @property
    def fields(self) -> list[Field]:
        """Return the fields outside of oneofs, without groups."""
        return [member for member in self.members if isinstance(member, Field) and member.group is None]

    @property
    def groups(self) -> list[Field]:
        return [member for member in self.members if isinstance(member, Field) and member.group is not None]

    @property
    def oneofs(self) -> list[OneOf]:
        return [member for member in self.members if isinstance(member, OneOf)]

    @property
    def all_fields(self) -> list[Field]:
        """Return all fields in the order of the text, also those of oneofs."""
        fields: list[Field] = []
        for member in self.members:
            if isinstance(member, OneOf):
                fields.extend(member.fields)
            else:
                fields.append(member)
        return fields

    @property
    def is_map_entry(self) -> bool:
        return option_is_true(self.options, "map_entry")


@dataclass(slots=True)
class Rpc:
    name: str
    request: str
    response: str
    request_stream: bool = False
    response_stream: bool = False
    options: list[Option] = field(default_factory=list)
    at: int = -1
    request_resolved: str | None = None
    response_resolved: str | None = None


@dataclass(slots=True)
class Service:
    name: str
    rpcs: list[Rpc] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    at: int = -1


class ImportKind(StrEnum):
    PLAIN = ""
    PUBLIC = "public"
    WEAK = "weak"


@dataclass(frozen=True, slots=True)
class Import:
    path: str
    kind: ImportKind = ImportKind.PLAIN
    at: int = -1


@dataclass(slots=True)
class File:
    #: "proto2" or "proto3"; None: not written, which means proto2
    syntax: str | None = None
    #: "2023" or "2024" of a file that states an edition instead of a syntax
    edition: str | None = None
    package: str = ""
    imports: list[Import] = field(default_factory=list)
    #: messages and enums in the order of the text
    types: list[Message | Enum] = field(default_factory=list)
    extends: list[Extend] = field(default_factory=list)
    services: list[Service] = field(default_factory=list)
    options: list[Option] = field(default_factory=list)
    package_at: int = -1

    @property
    def is_proto3(self) -> bool:
        return self.syntax == "proto3"


def option_is_true(options: list[Option], name: str) -> bool:
    """Return whether the last option of this name is `true`."""
    value = find_option(options, name)
    return isinstance(value, Literal) and value.text == "true"


def find_option(options: list[Option], name: str) -> Value | None:
    """Return the value of the last option of Protobuf itself that has this name."""
    for option in reversed(options):
        if not option.parenthesized and option.name == name:
            return option.value
    return None
