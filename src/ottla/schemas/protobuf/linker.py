"""Turns the tree of a file into a FileDescriptorProto: resolves the names of types and options, and checks the file.

The result is what protoc makes of the same text, with two exceptions. The messages that stand for entries of maps and
for groups follow the other nested messages, because fields precede nested messages in the canonical text, and the
index of a nested message must not depend on maps. `json_name` is set only where the text sets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool

from ottla.schemas.protobuf import checks
from ottla.schemas.protobuf.defaults import default_text
from ottla.schemas.protobuf.model import (
    FIELD_NUMBER_MAX,
    SCALARS,
    Enum,
    Extend,
    Extensions,
    Field,
    File,
    ImportKind,
    Message,
    OneOf,
    Option,
    Reserved,
    Rpc,
    Service,
    span,
)
from ottla.schemas.protobuf.options import OptionTask, interpret_custom_options, interpret_options
from ottla.schemas.protobuf.symbols import FileSymbols, Symbol, SymbolKind, Symbols, collect
from ottla.schemas.protobuf.tokens import error_at
from ottla.schemas.schema import Budget, InvalidSchema

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_LABELS: Final = {
    None: _FIELD.LABEL_OPTIONAL,
    "optional": _FIELD.LABEL_OPTIONAL,
    "required": _FIELD.LABEL_REQUIRED,
    "repeated": _FIELD.LABEL_REPEATED,
}
#: linking a field takes as long as reading this number of tokens
_STEPS: Final = 10
_EDITIONS: Final = {"2023": 1000, "2024": 1001}


@dataclass
class Linked:
    """A file that is valid together with the files that it imports."""

    symbols: FileSymbols
    descriptor: Any
    #: the names of the file and of all files that it needs
    scope: Symbols
    #: all files that it needs, by path; imported files come first
    imported: dict[str, Linked]

    @property
    def file(self) -> File:
        return self.symbols.file

    @cached_property
    def serialized(self) -> bytes:
        return bytes(self.descriptor.SerializeToString(deterministic=True))


def link(
    path: str, file: File, text: str, imported: Mapping[str, Linked], *, pool: DescriptorPool, budget: Budget
) -> Linked:
    """Return the linked file. Raise InvalidSchema if it is invalid.

    `imported` has the files that may be imported, and so has `pool`, to which the file is added. An import that is not
    among them is ignored, as long as no type comes from it: Confluent's registry accepts files that import definitions
    of options without a reference.
    """
    own = FileSymbols(path, file)
    scope = Symbols(own, {name: linked.symbols for name, linked in imported.items()}, budget)
    collect(own, scope, text)
    needed = with_imports((item.path, imported[item.path]) for item in file.imports if item.path in imported)
    return Linked(own, _Linker(own, text, scope, needed, pool=pool, budget=budget).run(), scope, needed)


def with_imports(files: Iterable[tuple[str, Linked]]) -> dict[str, Linked]:
    """Return these files and all files that they need, by path, each after those that it imports itself."""
    needed: dict[str, Linked] = {}
    for path, direct in files:
        for name, linked in (*direct.imported.items(), (path, direct)):
            needed.setdefault(name, linked)
    return needed


class _Linker:
    def __init__(
        self,
        own: FileSymbols,
        text: str,
        scope: Symbols,
        imported: Mapping[str, Linked],
        *,
        pool: DescriptorPool,
        budget: Budget,
    ) -> None:
        self._pool = pool
        self._own = own
        self._file = own.file
        self._text = text
        self._scope = scope
        self._imported = imported
        self._budget = budget
        self._is_proto3 = own.file.is_proto3
        self._options: list[OptionTask] = []
        self._fields_with_options: list[tuple[Field, Any]] = []

    def run(self) -> Any:
        file = self._file
        target = descriptor_pb2.FileDescriptorProto(name=self._own.path)
        if file.package:
            target.package = file.package
        if file.is_proto3:
            target.syntax = "proto3"
        elif file.edition is not None:
            target.syntax, target.edition = "editions", _EDITIONS[file.edition]
        missing = self._dependencies(target)
        for item in file.types:
            if isinstance(item, Message):
                self._message(item, file.package, target.message_type.add())
            else:
                self._enum(item, file.package, target.enum_type.add())
        for extend in file.extends:
            self._extend(extend, file.package, target.extension, target.message_type)
        for service in file.services:
            self._service(service, file.package, target.service.add())
        self._add_options(file.options, file.package, target)
        interpret_options(self._options, self._text, file.edition is not None)
        for field, descriptor in self._fields_with_options:
            checks.check_field_options(field, descriptor, self._text)
        self._add_to_pool(target)
        interpret_custom_options(self._options, self._text, self._scope, self._pool, tolerant=missing)
        return target

    def _dependencies(self, target: Any) -> bool:
        """Add the imports that are known. Return whether one is missing."""
        seen: set[str] = set()
        missing = False
        for item in self._file.imports:
            if item.path in seen:
                raise error_at(self._text, item.at, f'"{item.path}" is imported twice')
            seen.add(item.path)
            if item.path == self._own.path or item.path not in self._imported:
                missing = True
                continue
            if item.kind is ImportKind.PUBLIC:
                target.public_dependency.append(len(target.dependency))
            elif item.kind is ImportKind.WEAK:
                target.weak_dependency.append(len(target.dependency))
            target.dependency.append(item.path)
        return missing

    def _add_to_pool(self, target: Any) -> None:
        """Add the file to the pool. Raise InvalidSchema if the pool refuses it."""
        try:
            self._pool.AddSerializedFile(target.SerializeToString())
            self._pool.FindFileByName(target.name)
        except (TypeError, KeyError) as error:
            reason = str(error).strip("'\"").removeprefix("Couldn't build proto file into descriptor pool: ")
            raise InvalidSchema(f"the Protobuf library refuses the schema: {reason}") from None

    def _message(self, message: Message, scope: str, target: Any) -> None:
        self._budget.spend(_STEPS)
        full_name = f"{scope}.{message.name}" if scope else message.name
        target.name = message.name
        synthesized: list[Message] = []
        optional: list[Any] = []
        for member in message.members:
            if isinstance(member, OneOf):
                self._oneof(member, full_name, target, synthesized)
                continue
            field = target.field.add()
            self._field(member, full_name, field, synthesized)
            if self._is_proto3 and member.label == "optional":
                field.proto3_optional = True
                optional.append(field)
        for item in message.nested:
            if isinstance(item, Message):
                self._message(item, full_name, target.nested_type.add())
            else:
                self._enum(item, full_name, target.enum_type.add())
        for extend in message.extends:
            self._extend(extend, full_name, target.extension, target.nested_type, synthesized)
        for entry in synthesized:
            self._message(entry, full_name, target.nested_type.add())
        if message.is_map_entry:
            self._check_map_value(message)
        _add_synthetic_oneofs(target, optional)
        self._reserved_and_extensions(message, full_name, target)
        self._add_options(message.options, scope, target)
        checks.check_message(message, full_name, self._file, self._text)

    def _oneof(self, oneof: OneOf, scope: str, target: Any, synthesized: list[Message]) -> None:
        if not oneof.fields:
            raise error_at(self._text, oneof.at, f'the oneof "{oneof.name}" has no fields')
        index = len(target.oneof_decl)
        declaration = target.oneof_decl.add(name=oneof.name)
        self._add_options(oneof.options, scope, declaration)
        for field in oneof.fields:
            descriptor = target.field.add()
            self._field(field, scope, descriptor, synthesized)
            descriptor.oneof_index = index

    def _field(self, field: Field, scope: str, target: Any, synthesized: list[Message]) -> None:
        self._budget.spend(_STEPS)
        target.name, target.number = field.name, field.number
        target.label = _LABELS[field.label]
        if field.map_types is not None:
            assert field.map_entry is not None
            synthesized.append(field.map_entry)
            target.label, target.type = _FIELD.LABEL_REPEATED, _FIELD.TYPE_MESSAGE
            target.type_name = f".{scope}.{field.map_entry.name}" if scope else f".{field.map_entry.name}"
            field.resolved = target.type_name[1:]
        elif field.group is not None:
            synthesized.append(field.group)
            target.type = _FIELD.TYPE_GROUP
            target.type_name = f".{scope}.{field.group.name}" if scope else f".{field.group.name}"
            field.resolved = target.type_name[1:]
        elif field.type in SCALARS:
            target.type = getattr(_FIELD, f"TYPE_{field.type.upper()}")
        else:
            self._named_type(field, scope, target)
        if field.default is not None:
            target.default_value = default_text(field, self._file, self._scope, self._text)
        if field.json_name is not None:
            target.json_name = checks.valid_text(field.json_name, self._text, field.at)
        if field.options:
            self._add_options(field.options, scope, target)
            self._fields_with_options.append((field, target))
        checks.check_field(field, self._text)

    def _named_type(self, field: Field, scope: str, target: Any) -> None:
        symbol = self._type(field.type, scope, field.type_at)
        field.resolved, field.is_enum = symbol.full_name, symbol.kind is SymbolKind.ENUM
        target.type = _FIELD.TYPE_ENUM if field.is_enum else _FIELD.TYPE_MESSAGE
        target.type_name = f".{symbol.full_name}"
        if isinstance(symbol.element, Message) and symbol.element.is_map_entry:
            field.map_entry = symbol.element
            checks.check_explicit_map(field, scope, self._text)
        if field.is_enum and symbol.is_proto2 and self._is_proto3:
            raise error_at(
                self._text, field.type_at, f'"{symbol.full_name}" is a closed enum of proto2; proto3 cannot use it'
            )

    def _check_map_value(self, entry: Message) -> None:
        value = entry.all_fields[-1] if entry.members else None
        symbol = self._scope.type(value.resolved) if value is not None and value.resolved is not None else None
        values = symbol.element.values if symbol is not None and isinstance(symbol.element, Enum) else []
        if values and values[0].number != 0:
            raise error_at(self._text, entry.at, "an enum that is the value of a map must have 0 as its first value")

    def _type(self, name: str, scope: str, at: int) -> Symbol:
        """Return the message or enum of this name. Raise InvalidSchema if no imported file defines it."""
        symbol = self._scope.resolve(name, scope, types_only=True)
        if symbol is not None and symbol.kind in (SymbolKind.MESSAGE, SymbolKind.ENUM):
            return symbol
        if symbol is not None:
            raise error_at(self._text, at, f'"{name}" is a {symbol.kind}, not a type')
        hidden = self._scope.hidden(name, scope)
        if hidden is not None:
            raise error_at(self._text, at, f'"{name}" is defined in "{hidden.path}", which is not imported')
        raise error_at(self._text, at, f'the type "{name}" is not defined')

    def _message_type(self, name: str, scope: str, at: int) -> Symbol:
        symbol = self._type(name, scope, at)
        if symbol.kind is not SymbolKind.MESSAGE:
            raise error_at(self._text, at, f'"{name}" is not a message')
        return symbol

    def _reserved_and_extensions(self, message: Message, full_name: str, target: Any) -> None:
        self._reserved(message.reserved, target, 1)
        for extensions in message.extensions:
            self._extension_ranges(extensions, full_name, target)

    def _reserved(self, statements: list[Reserved], target: Any, after: int) -> None:
        """Add reserved names and ranges. A range of the descriptor ends `after` numbers behind its last one."""
        for reserved in statements:
            for name in reserved.values:
                if isinstance(name, str):
                    target.reserved_name.append(checks.valid_text(name, self._text, reserved.at))
            for start, end in reserved.spans:
                target.reserved_range.add(start=start, end=end + after)

    def _extension_ranges(self, extensions: Extensions, scope: str, target: Any) -> None:
        if self._is_proto3:
            raise error_at(self._text, extensions.at, "extension ranges are not allowed in proto3")
        for item in extensions.ranges:
            start, end = span(item)
            if not 0 < start <= end <= FIELD_NUMBER_MAX:
                raise error_at(self._text, extensions.at, f"extension numbers are between 1 and {FIELD_NUMBER_MAX}")
            self._add_options(extensions.options, scope, target.extension_range.add(start=start, end=end + 1))

    def _extend(
        self, extend: Extend, scope: str, extensions: Any, nested: Any, synthesized: list[Message] | None = None
    ) -> None:
        symbol = self._message_type(extend.name, scope, extend.at)
        extend.resolved = symbol.full_name
        assert isinstance(symbol.element, Message)
        groups: list[Message] = [] if synthesized is None else synthesized
        for field in extend.fields:
            target = extensions.add(extendee=f".{symbol.full_name}")
            self._field(field, scope, target, groups)
            if self._is_proto3 and field.label == "optional":
                target.proto3_optional = True
            checks.check_extension(field, extend, symbol.element, self._file, self._text)
        if synthesized is None:
            for group in groups:
                self._message(group, scope, nested.add())

    def _enum(self, enum: Enum, scope: str, target: Any) -> None:
        target.name = enum.name
        for value in enum.values:
            self._budget.spend(_STEPS // 2)
            descriptor = target.value.add(name=value.name, number=value.number)
            self._add_options(value.options, scope, descriptor)
        self._reserved(enum.reserved, target, 0)
        self._add_options(enum.options, scope, target)
        checks.check_enum(enum, self._file, self._text)

    def _service(self, service: Service, scope: str, target: Any) -> None:
        target.name = service.name
        full_name = f"{scope}.{service.name}" if scope else service.name
        for rpc in service.rpcs:
            self._rpc(rpc, full_name, target.method.add())
        self._add_options(service.options, scope, target)

    def _rpc(self, rpc: Rpc, scope: str, target: Any) -> None:
        self._budget.spend(_STEPS)
        rpc.request_resolved = self._message_type(rpc.request, scope, rpc.at).full_name
        rpc.response_resolved = self._message_type(rpc.response, scope, rpc.at).full_name
        target.name = rpc.name
        target.input_type, target.output_type = f".{rpc.request_resolved}", f".{rpc.response_resolved}"
        if rpc.request_stream:
            target.client_streaming = True
        if rpc.response_stream:
            target.server_streaming = True
        self._add_options(rpc.options, scope, target)

    def _add_options(self, options: list[Option], scope: str, target: Any) -> None:
        if options:
            self._budget.spend(_STEPS // 2 * len(options))
            self._options.append(OptionTask(options, scope, target.options))


def _add_synthetic_oneofs(target: Any, optional: list[Any]) -> None:
    """Add a oneof for each optional field of proto3, behind all other oneofs, with protoc's names."""
    if not optional:
        return
    taken = {field.name for field in target.field} | {oneof.name for oneof in target.oneof_decl}
    for descriptor in optional:
        name = "_" + descriptor.name
        while name in taken:
            name = "X" + name
        taken.add(name)
        descriptor.oneof_index = len(target.oneof_decl)
        target.oneof_decl.add(name=name)
