"""The names that a file defines and sees, and how a name in it is resolved.

A name without a leading dot is searched from the innermost scope outwards, by its first part, as protoc does. A file
sees its own names and those of the files that it imports, also of files that these import publicly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from enum import StrEnum
from typing import Final

from ottla.schemas.protobuf.model import (
    Enum,
    Extend,
    Field,
    File,
    ImportKind,
    Kind,
    Literal,
    Message,
    OneOf,
    Service,
    simple_option,
)
from ottla.schemas.protobuf.tokens import error_at
from ottla.schemas.schema import Budget, InvalidSchema, SchemaTooComplex

#: characters of the full name of a message, a field or another element
NAME_CHARS_MAX: Final = 4096
#: protoc has the same limits
PACKAGE_CHARS_MAX: Final = 511
PACKAGE_PARTS_MAX: Final = 100


class SymbolKind(StrEnum):
    MESSAGE = "message"
    ENUM = "enum"
    VALUE = "value of an enum"
    FIELD = "field"
    ONEOF = "oneof"
    EXTENSION = "extension"
    SERVICE = "service"
    METHOD = "method"
    PACKAGE = "package"


_SCOPES: Final = (SymbolKind.MESSAGE, SymbolKind.ENUM, SymbolKind.SERVICE, SymbolKind.PACKAGE)
_TYPES: Final = (SymbolKind.MESSAGE, SymbolKind.ENUM)


@dataclass(frozen=True, slots=True)
class Symbol:
    kind: SymbolKind
    full_name: str
    #: path of the file that defines it
    path: str
    element: Message | Enum | Field | None = None
    #: it belongs to a file in proto2, whose enums are closed
    is_proto2: bool = False
    #: the package of its file
    package: str = ""


@dataclass(slots=True)
class FileSymbols:
    """The names that one file defines, and the files that it shows to those that import it."""

    path: str
    file: File
    names: dict[str, Symbol] = dataclass_field(default_factory=dict)
    #: paths of the files that this one imports publicly, directly or not, and its own
    shown: frozenset[str] = frozenset()
    #: paths of all files that it needs, directly or not, without its own
    needed: frozenset[str] = frozenset()


class Symbols:
    """All names that a file may use, after the file itself and its imports have been collected."""

    def __init__(self, own: FileSymbols, files: Mapping[str, FileSymbols], budget: Budget) -> None:
        _check_package(own.file)
        self._own = own
        self._budget = budget
        self._names: dict[str, Symbol] = {}
        self._packages: set[str] = set()
        self._visible = {own.path}
        direct = [files[item.path] for item in own.file.imports if item.path in files]
        for imported in direct:
            self._visible |= imported.shown
        own.shown = frozenset({own.path}).union(
            *(
                files[item.path].shown
                for item in own.file.imports
                if item.kind is ImportKind.PUBLIC and item.path in files
            )
        )
        own.needed = frozenset().union(*({imported.path} | imported.needed for imported in direct))
        for path in sorted(own.needed):
            budget.spend(1 + len(files[path].names) // 16)
            self._names.update(files[path].names)
        for path in self._visible:
            package = own.file.package if path == own.path else files[path].file.package
            self._packages.update(_prefixes(package))

    @property
    def names(self) -> Mapping[str, Symbol]:
        return self._names

    def define(self, symbol: Symbol, text: str, at: int) -> None:
        """Add a name of the file itself. Raise InvalidSchema if it is taken."""
        name = symbol.full_name
        self._budget.spend(1 + (len(name) >> 6))
        if len(name) > NAME_CHARS_MAX:
            raise SchemaTooComplex(f'the full name of "{name[-60:]}" has more than {NAME_CHARS_MAX} characters')
        known = self._names.get(name)
        if known is not None:
            where = "" if known.path == symbol.path else f' in "{known.path}"'
            raise error_at(text, at, f'"{name}" is already defined{where}')
        if name in self._packages:
            raise error_at(text, at, f'"{name}" is already defined as a package')
        self._names[name] = self._own.names[name] = symbol

    def resolve(self, name: str, scope: str, *, types_only: bool = False) -> Symbol | None:
        """Return what a name means in a scope, the full name of a message or a package; None if it means nothing."""
        if name.startswith("."):
            return self._find(name[1:])
        first, dot, _ = name.partition(".")
        while True:
            prefix = f"{scope}." if scope else ""
            self._budget.spend(1 + (len(prefix) + len(name) >> 6))
            found = self._find(prefix + first)
            if found is not None:
                if dot and found.kind in _SCOPES:
                    return self._find(prefix + name)
                if not dot and (not types_only or found.kind in _TYPES):
                    return found
            if not scope:
                return None
            scope = scope.rpartition(".")[0]

    def hidden(self, name: str, scope: str) -> Symbol | None:
        """Return the symbol of a file that is not imported that the name would mean if it were."""
        name = name.removeprefix(".")
        while True:
            found = self._names.get(f"{scope}.{name}" if scope else name)
            if found is not None and found.path not in self._visible:
                return found
            if not scope:
                return None
            scope = scope.rpartition(".")[0]

    def extension(self, full_name: str) -> Field | None:
        symbol = self._names.get(full_name)
        return symbol.element if symbol is not None and isinstance(symbol.element, Field) else None

    def message(self, full_name: str) -> Message | None:
        symbol = self._names.get(full_name)
        return symbol.element if symbol is not None and isinstance(symbol.element, Message) else None

    def has_value(self, enum: str, value: str) -> bool:
        """Return whether an enum has a value of this name. Values are names in the scope that surrounds the enum."""
        scope = enum.rpartition(".")[0]
        symbol, owner = self._names.get(f"{scope}.{value}" if scope else value), self._names.get(enum)
        return symbol is not None and owner is not None and symbol.element is owner.element

    def type(self, full_name: str) -> Symbol | None:
        symbol = self._names.get(full_name)
        return symbol if symbol is not None and symbol.kind in _TYPES else None

    def _find(self, full_name: str) -> Symbol | None:
        symbol = self._names.get(full_name)
        if symbol is not None and symbol.path in self._visible:
            return symbol
        if full_name in self._packages:
            return Symbol(SymbolKind.PACKAGE, full_name, "")
        return None


def collect(own: FileSymbols, symbols: Symbols, text: str) -> None:
    """Define all names of a file. Raise InvalidSchema if two elements have the same name."""
    file = own.file
    for prefix in _prefixes(file.package):
        known = symbols.names.get(prefix)
        if known is not None:
            raise error_at(text, file.package_at, f'"{prefix}" is already defined, as a {known.kind} in "{known.path}"')
    _Collector(own.path, text, symbols, not file.is_proto3 and file.edition is None).file(file)


class _Collector:
    def __init__(self, path: str, text: str, symbols: Symbols, is_proto2: bool) -> None:
        self._package = ""
        self._path = path
        self._text = text
        self._symbols = symbols
        self._is_proto2 = is_proto2

    def file(self, file: File) -> None:
        self._package = file.package
        for item in file.types:
            self._type(item, file.package)
        for extend in file.extends:
            self._extend(extend, file.package)
        for service in file.services:
            self._service(service, file.package)

    def _type(self, item: Message | Enum, scope: str) -> None:
        if isinstance(item, Message):
            self._message(item, scope)
        else:
            self._enum(item, scope)

    def _message(self, message: Message, scope: str) -> None:
        full_name = self._define(SymbolKind.MESSAGE, message.name, scope, message.at, message)
        for member in message.members:
            if isinstance(member, OneOf):
                self._define(SymbolKind.ONEOF, member.name, full_name, member.at)
                for field in member.fields:
                    self._field(field, full_name)
            else:
                self._field(member, full_name)
        for item in message.nested:
            self._type(item, full_name)
        for extend in message.extends:
            self._extend(extend, full_name)

    def _field(self, field: Field, scope: str, kind: SymbolKind = SymbolKind.FIELD) -> None:
        self._define(kind, field.name, scope, field.at, field)
        if field.group is not None:
            self._message(field.group, scope)
        if field.map_types is not None:
            field.map_entry = map_entry(field)
            self._message(field.map_entry, scope)

    def _extend(self, extend: Extend, scope: str) -> None:
        for field in extend.fields:
            self._field(field, scope, SymbolKind.EXTENSION)

    def _enum(self, enum: Enum, scope: str) -> None:
        self._define(SymbolKind.ENUM, enum.name, scope, enum.at, enum)
        for value in enum.values:
            self._define(SymbolKind.VALUE, value.name, scope, value.at, enum)

    def _service(self, service: Service, scope: str) -> None:
        full_name = self._define(SymbolKind.SERVICE, service.name, scope, service.at)
        for rpc in service.rpcs:
            self._define(SymbolKind.METHOD, rpc.name, full_name, rpc.at)

    def _define(
        self, kind: SymbolKind, name: str, scope: str, at: int, element: Message | Enum | Field | None = None
    ) -> str:
        full_name = f"{scope}.{name}" if scope else name
        self._symbols.define(
            Symbol(kind, full_name, self._path, element, self._is_proto2, self._package), self._text, at
        )
        return full_name


def map_entry(field: Field) -> Message:
    """Return the message that stands for an entry of a map: protoc's name, and the fields key and value."""
    assert field.map_types is not None
    key, value = field.map_types
    return Message(
        map_entry_name(field.name),
        [
            Field("key", key, 1, at=field.at, type_at=field.type_at),
            Field("value", value, 2, at=field.at, type_at=field.type_at),
        ],
        options=[simple_option("map_entry", Literal(Kind.BOOLEAN, "true"))],
        at=field.at,
    )


def map_entry_name(field_name: str) -> str:
    words = field_name.split("_")
    return "".join(word[:1].upper() + word[1:] for word in words) + "Entry"


def _check_package(file: File) -> None:
    if len(file.package) > PACKAGE_CHARS_MAX or file.package.count(".") >= PACKAGE_PARTS_MAX:
        raise InvalidSchema(f"a package has at most {PACKAGE_CHARS_MAX} characters and {PACKAGE_PARTS_MAX} parts")


def _prefixes(package: str) -> list[str]:
    parts = package.split(".") if package else []
    return [".".join(parts[: index + 1]) for index in range(len(parts))]
