"""Makes the tree of a file from a FileDescriptorProto, which serialisers of other languages register in base64.

Options are in the order in which Confluent's registry prints them, so that a schema has the same text whichever client
registers it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from ottla.schemas.protobuf.model import (
    INT32_MAX,
    NESTING_MAX,
    Enum,
    EnumValue,
    Extend,
    Extensions,
    Field,
    File,
    Import,
    ImportKind,
    Kind,
    Literal,
    Message,
    OneOf,
    Option,
    Range,
    Reserved,
    Rpc,
    Service,
    Value,
    extension_option,
    simple_option,
)
from ottla.schemas.protobuf.options import is_map, is_repeated
from ottla.schemas.protobuf.tokens import string_bytes
from ottla.schemas.schema import Budget, InvalidSchema

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FULL_NAME: Final = re.compile(r"\.?[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*\Z")
_LABELS: Final = {
    _FIELD.LABEL_REQUIRED: "required",
    _FIELD.LABEL_REPEATED: "repeated",
    _FIELD.LABEL_OPTIONAL: "optional",
}
_TYPES: Final = {number: name.removeprefix("TYPE_").lower() for name, number in _FIELD.Type.items()}
_EDITIONS: Final = {1000: "2023", 1001: "2024"}
_META: Final = "confluent."
#: parameters whose value is printed before their key
_VALUE_FIRST: Final = ("precision", "scale")
#: the order of options where it is not the order of their numbers
_ORDER: Final = {
    "google.protobuf.FileOptions": (
        "java_package", "java_outer_classname", "java_multiple_files", "java_generate_equals_and_hash",
        "java_string_check_utf8", "optimize_for", "go_package",
    ),
    "google.protobuf.FieldOptions": ("ctype", "packed", "jstype", "deprecated"),
    "google.protobuf.EnumValueOptions": ("deprecated", "debug_redact", "features"),
    "google.protobuf.ExtensionRangeOptions": ("declaration", "features", "verification"),
}  # fmt: skip

#: returns a pool that knows the extensions that the options of a file may use
PoolFactory = Callable[[], DescriptorPool]


def file_from_descriptor(descriptor: Any, pool: PoolFactory, budget: Budget) -> File:
    """Return the tree of a file. Raise InvalidSchema if the descriptor has a name that no text can have."""
    return _Reader(descriptor, pool, budget).file()


class _Reader:
    def __init__(self, descriptor: Any, pool: PoolFactory, budget: Budget) -> None:
        self._descriptor = descriptor
        self._is_proto3 = descriptor.syntax == "proto3"
        self._is_edition = descriptor.syntax == "editions"
        self._make_pool = pool
        self._pool: DescriptorPool | None = None
        self._budget = budget

    def file(self) -> File:
        source = self._descriptor
        file = File(syntax="proto3" if self._is_proto3 else None)
        if source.syntax not in ("", "proto2", "proto3", "editions"):
            raise InvalidSchema(f'unknown syntax "{source.syntax[:60]}"')
        if source.syntax == "proto2":
            file.syntax = "proto2"
        if self._is_edition:
            if source.edition not in _EDITIONS:
                raise InvalidSchema(f"unknown edition {source.edition}")
            file.edition = _EDITIONS[source.edition]
        if source.package:
            file.package = _full_name(source.package)
        public, weak = set(source.public_dependency), set(source.weak_dependency)
        for index, path in enumerate(source.dependency):
            kind = ImportKind.PUBLIC if index in public else ImportKind.WEAK if index in weak else ImportKind.PLAIN
            file.imports.append(Import(path, kind))
        file.options = self._options(source.options)
        groups = _Groups(source.message_type, source.package)
        file.extends = self._extends(source.extension, groups)
        for message in source.message_type:
            if not groups.is_used(message.name):
                file.types.append(self._message(message, source.package, 1))
        file.types.extend(self._enum(enum) for enum in source.enum_type)
        file.services = [self._service(service) for service in source.service]
        return file

    def _message(self, source: Any, scope: str, depth: int) -> Message:
        self._budget.spend()
        if depth > NESTING_MAX:
            raise InvalidSchema(f"messages are nested more than {NESTING_MAX} deep")
        full_name = f"{scope}.{source.name}" if scope else source.name
        message = Message(_name(source.name))
        groups = _Groups(source.nested_type, full_name)
        oneofs: dict[int, OneOf] = {}
        for item in source.field:
            in_oneof = item.HasField("oneof_index") and not item.proto3_optional
            field = self._field(item, groups, depth, in_oneof=in_oneof)
            if not in_oneof:
                message.members.append(field)
                continue
            index = item.oneof_index
            if index not in oneofs:
                if not 0 <= index < len(source.oneof_decl):
                    raise InvalidSchema(f'the field "{field.name}" is in a oneof that does not exist')
                declaration = source.oneof_decl[index]
                oneofs[index] = OneOf(_name(declaration.name), options=self._options(declaration.options))
                message.members.append(oneofs[index])
            oneofs[index].fields.append(field)
        message.extends = self._extends(source.extension, groups, depth)
        for nested in source.nested_type:
            if not groups.is_used(nested.name):
                message.nested.append(self._message(nested, full_name, depth + 1))
        message.nested.extend(self._enum(enum) for enum in source.enum_type)
        ranges: list[str | int | Range] = [_range(item.start, item.end - 1) for item in source.reserved_range]
        message.reserved = [Reserved([value]) for value in (*ranges, *source.reserved_name)]
        message.extensions = [
            Extensions([_range(item.start, item.end - 1)], self._options(item.options))
            for item in source.extension_range
        ]
        message.options = self._options(source.options)
        return message

    def _field(self, source: Any, groups: _Groups, depth: int, *, in_oneof: bool = False) -> Field:
        self._budget.spend()
        field = Field(_name(source.name), "", source.number)
        if source.proto3_optional:
            field.label = "optional"
        elif source.label == _FIELD.LABEL_REPEATED or not (in_oneof or self._is_proto3 or self._is_edition):
            field.label = _LABELS.get(source.label)
        group = groups.take(source) if source.type == _FIELD.TYPE_GROUP else None
        if group is not None:
            field.type = "group"
            field.group = self._message(group, groups.scope, depth + 1)
        else:
            field.type = _full_name(source.type_name) if source.type_name else _TYPES.get(source.type, "")
        if source.HasField("default_value") and not self._is_proto3:
            field.default = _default(source)
        if source.HasField("json_name"):
            field.json_name = source.json_name
        field.options = self._options(source.options)
        return field

    def _extends(self, fields: Iterable[Any], groups: _Groups, depth: int = 0) -> list[Extend]:
        extends: dict[str, Extend] = {}
        for source in fields:
            name = _full_name(source.extendee)
            extends.setdefault(name, Extend(name)).fields.append(self._field(source, groups, depth))
        return list(extends.values())

    def _enum(self, source: Any) -> Enum:
        self._budget.spend(1 + len(source.value))
        ranges: list[str | int | Range] = [_range(item.start, item.end) for item in source.reserved_range]
        return Enum(
            _name(source.name),
            [EnumValue(_name(value.name), value.number, self._options(value.options)) for value in source.value],
            self._options(source.options),
            [Reserved([value]) for value in (*ranges, *source.reserved_name)],
        )

    def _service(self, source: Any) -> Service:
        self._budget.spend(1 + len(source.method))
        rpcs = [
            Rpc(
                _name(method.name),
                _full_name(method.input_type),
                _full_name(method.output_type),
                method.client_streaming,
                method.server_streaming,
                self._options(method.options),
            )
            for method in source.method
        ]
        return Service(_name(source.name), rpcs, self._options(source.options))

    def _options(self, source: Any) -> list[Option]:
        """Return the options that are set, also those that are extensions if their definitions are known."""
        if not source.ByteSize():
            return []
        full_name = source.DESCRIPTOR.full_name
        fields = source.ListFields()
        if _has_extensions(source, fields):
            if self._pool is None:
                self._pool = self._make_pool()
            message_class = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(full_name))
            fields = message_class.FromString(source.SerializeToString()).ListFields()
        order = {name: index for index, name in enumerate(_ORDER.get(full_name, ()))}

        def rank(item: tuple[FieldDescriptor, Any]) -> tuple[bool, bool, int, int]:
            descriptor = item[0]
            is_custom = descriptor.is_extension
            is_meta = descriptor.full_name.startswith(_META)
            return is_custom, not is_meta, order.get(descriptor.name, len(order)), descriptor.number

        options: list[Option] = []
        for descriptor, value in sorted(fields, key=rank):
            make = extension_option if descriptor.is_extension else simple_option
            name = descriptor.full_name if descriptor.is_extension else descriptor.name
            for item in self._values(descriptor, value):
                if not (item == {} and name.startswith(_META)):
                    options.append(make(name, item))
        return options

    def _values(self, descriptor: FieldDescriptor, value: Any) -> list[Value]:
        """Return the values of a field: several if it is repeated."""
        if is_map(descriptor):
            return [self._entry(descriptor, key, value[key]) for key in sorted(value)]
        if is_repeated(descriptor):
            return [self._value(descriptor, item) for item in value]
        return [self._value(descriptor, value)]

    def _entry(self, descriptor: FieldDescriptor, key: Any, value: Any) -> Value:
        fields = descriptor.message_type.fields_by_name
        entry: dict[str, Value] = {
            "key": self._value(fields["key"], key),
            "value": self._value(fields["value"], value),
        }
        return dict(reversed(entry.items())) if key in _VALUE_FIRST else entry

    def _value(self, descriptor: FieldDescriptor, value: Any) -> Value:
        self._budget.spend()
        if descriptor.message_type is not None:
            return self._message_value(value)
        if descriptor.enum_type is not None:
            found = descriptor.enum_type.values_by_number.get(value)
            return Literal(Kind.NUMBER, str(value)) if found is None else Literal(Kind.ENUM, found.name)
        if isinstance(value, bool):
            return Literal(Kind.BOOLEAN, "true" if value else "false")
        if isinstance(value, str):
            return Literal(Kind.STRING, value)
        if isinstance(value, bytes):
            return Literal(Kind.STRING, value.decode("utf-8", "surrogateescape"))
        text = repr(value)
        return Literal(Kind.ENUM if text in ("inf", "nan") else Kind.NUMBER, text)

    def _message_value(self, message: Any) -> Value:
        fields: dict[str, Value] = {}
        for descriptor, value in message.ListFields():
            name = f"[{descriptor.full_name}]" if descriptor.is_extension else descriptor.name
            values = self._values(descriptor, value)
            fields[name] = values if is_repeated(descriptor) else values[0]
        return fields


class _Groups:
    """The messages among which groups of a scope are found; a group is printed with its field, not as a message."""

    def __init__(self, messages: Iterable[Any], scope: str) -> None:
        self.scope = scope
        self._messages = {message.name: message for message in messages}
        self._used: set[str] = set()

    def take(self, field: Any) -> Any | None:
        """Return the message of a group. None if it is defined elsewhere, or if its name is not that of the field."""
        scope, _, name = field.type_name.removeprefix(".").rpartition(".")
        message = self._messages.get(name)
        if message is None or scope != self.scope or name.lower() != field.name:
            return None
        self._used.add(name)
        return message

    def is_used(self, name: str) -> bool:
        return name in self._used


def _has_extensions(message: Any, fields: list[tuple[FieldDescriptor, Any]]) -> bool:
    if any(descriptor.is_extension for descriptor, _ in fields):
        return True
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    return bool(known.ByteSize() != message.ByteSize())


def _default(source: Any) -> Literal:
    text = source.default_value
    if source.type == _FIELD.TYPE_STRING:
        return Literal(Kind.STRING, text)
    if source.type == _FIELD.TYPE_BYTES:
        content = string_bytes(f'"{text}"')
        if content is None:
            raise InvalidSchema(f'the default of the field "{source.name}" has an invalid escape sequence')
        return Literal(Kind.STRING, content.decode("utf-8", "surrogateescape"))
    if source.type == _FIELD.TYPE_BOOL:
        return Literal(Kind.BOOLEAN, text)
    is_name = _NAME.match(text) is not None
    if not is_name and re.fullmatch(r"-?(?:[0-9.]+(?:[eE][+-]?[0-9]+)?|inf|nan)", text) is None:
        raise InvalidSchema(f'the default of the field "{source.name}" is neither a number nor a name')
    return Literal(Kind.ENUM if is_name else Kind.NUMBER, text)


def _range(start: int, end: int) -> int | Range:
    if end < start or end > INT32_MAX:
        raise InvalidSchema(f"the range {start} to {end} is invalid")
    return start if start == end else (start, end)


def _full_name(name: str) -> str:
    return _name(name, _FULL_NAME)


def _name(name: str, form: re.Pattern[str] = _NAME) -> str:
    if form.match(name) is None:
        raise InvalidSchema(f'"{name[:60]}" is not a valid name')
    return name
