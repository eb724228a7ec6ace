"""The normal form of a file: types by their full names, and elements in a fixed order, as Confluent's registry has it.

The order of messages and of services stays, because the index of a message is part of the records' framing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from ottla.schemas.protobuf.model import (
    SCALARS,
    Enum,
    EnumValue,
    Extend,
    Extensions,
    Field,
    File,
    Kind,
    Literal,
    Message,
    NamePart,
    OneOf,
    Option,
    Range,
    Reserved,
    Rpc,
    Value,
    span,
)
from ottla.schemas.protobuf.printer import Printer
from ottla.schemas.protobuf.symbols import Symbols
from ottla.schemas.protobuf.values import as_float, float_text, normal_number


class NormalPrinter(Printer):
    """Prints a linked file in its normal form."""

    def __init__(self, symbols: Symbols) -> None:
        super().__init__()
        self._symbols = symbols

    def syntax(self, file: File) -> str | None:
        return None if file.edition is None and not file.is_proto3 else super().syntax(file)

    def import_paths(self, paths: list[str]) -> list[str]:
        return sorted(set(paths))

    def types(self, types: list[Message | Enum]) -> list[Message | Enum]:
        return [item for item in types if not (isinstance(item, Message) and item.is_map_entry)]

    def fields(self, fields: list[Field]) -> list[Field]:
        return sorted(fields, key=lambda field: field.number)

    def oneofs(self, oneofs: list[OneOf]) -> list[OneOf]:
        filled = [oneof for oneof in oneofs if oneof.fields]
        return sorted(filled, key=lambda oneof: min(field.number for field in oneof.fields))

    def enum_values(self, enum: Enum) -> list[EnumValue]:
        # A first value of 0 stays first, before negative numbers: open enums and values of maps must begin with 0.
        starts_with_zero = bool(enum.values) and enum.values[0].number == 0

        def rank(value: EnumValue) -> tuple[bool, int, str]:
            return starts_with_zero and value.number != 0, value.number, value.name

        return sorted(enum.values, key=rank)

    def all_reserved(self, reserved: list[Reserved]) -> list[Reserved]:
        def rank(item: Reserved) -> tuple[bool, int, str]:
            value = item.values[0]
            if isinstance(value, str):
                return True, 0, value
            return False, span(value)[0], ""

        return sorted((Reserved([value]) for item in reserved for value in item.values), key=rank)

    def all_extensions(self, extensions: list[Extensions]) -> list[Extensions]:
        single = [Extensions([item], entry.options) for entry in extensions for item in entry.ranges]
        return sorted(single, key=lambda entry: span(entry.ranges[0])[0])

    def all_extends(self, extends: list[Extend]) -> list[Extend]:
        merged: dict[str, Extend] = {}
        for extend in extends:
            name = f".{extend.resolved}"
            merged.setdefault(name, Extend(name)).fields.extend(extend.fields)
        return list(merged.values())

    def extendee(self, extend: Extend) -> str:
        return extend.name

    def label_and_type(self, field: Field) -> tuple[str | None, str]:
        if field.map_entry is not None:
            key, value = field.map_entry.all_fields
            return None, f"map<{key.type}, {_full_type(value)}>"
        return field.label, _full_type(field)

    def default(self, field: Field, default: Literal) -> Literal:
        # Descriptors have the shortest digits of a float, texts may have more.
        value = as_float(default.text) if field.type == "float" and default.kind is Kind.NUMBER else None
        return default if value is None or math.isinf(value) else Literal(Kind.NUMBER, float_text(value))

    def rpc_types(self, rpc: Rpc) -> tuple[str, str]:
        return f".{rpc.request_resolved}", f".{rpc.response_resolved}"

    def range(self, item: int | Range) -> str:
        return str(item[0]) if not isinstance(item, int) and item[0] == item[1] else super().range(item)

    def number(self, text: str) -> str:
        return normal_number(text)

    def message_value(self, value: dict[str, Value]) -> dict[str, Value]:
        return {key: value[key] for key in sorted(value) if value[key] != []}

    def list_value(self, value: list[Value]) -> Value:
        return value[0] if len(value) == 1 else value

    def options(self, options: list[Option]) -> list[Option]:
        """Return the options by name. Values of one extension that is not repeated become one message."""
        by_name: dict[str, list[Option]] = {}
        for option in sorted((_with_full_name(option) for option in options), key=lambda option: option.name):
            by_name.setdefault(option.name, []).append(option)
        result: list[Option] = []
        for name, group in by_name.items():
            field = self._symbols.extension(name) if group[0].parenthesized else None
            if field is None or field.label == "repeated":
                result.extend(group)
            else:
                result.append(merge_options(group, field, self._field_type))
        return result

    def _field_type(self, field: Field, name: str) -> Field | None:
        """Return the field of this name in the message that is the type of `field`."""
        message = self._symbols.message(field.resolved) if field.resolved is not None else None
        if message is None:
            return None
        return next((member for member in message.all_fields if member.name == name), None)


#: a field whose type is a message, and the name of a field of that message
FieldOf = Callable[[Field, str], Field | None]


def merge_options(options: list[Option], field: Field, field_of: FieldOf) -> Option:
    """Return one option that has the values of all; `(a).b = 1` becomes `(a) = {b: 1}`."""
    values = [_as_message(option) for option in options]
    merged = values[0]
    for value in values[1:]:
        merged = _merge(field, merged, value, field_of)
    return Option((options[-1].parts[0],), merged, options[0].at, options[0].resolved)


def _as_message(option: Option) -> Value:
    value = option.value
    for part in reversed(option.path):
        value = {f"[{part.name}]" if part.is_extension else part.name: value}
    return value


def _merge(field: Field | None, first: Value, second: Value, field_of: FieldOf) -> Value:
    if isinstance(first, dict) and isinstance(second, dict):
        merged = dict(first)
        for name, value in second.items():
            if name not in merged:
                merged[name] = value
                continue
            member = field_of(field, name) if field is not None else None
            if member is not None and member.label != "repeated" and member.map_entry is None:
                merged[name] = _merge(member, merged[name], value, field_of)
            else:
                merged[name] = _concatenated(merged[name], value)
        return merged
    return second


def _concatenated(first: Value, second: Value) -> Value:
    values: list[Value] = list(first) if isinstance(first, list) else [first]
    seen = {repr(value) for value in values}
    for value in second if isinstance(second, list) else [second]:
        if repr(value) not in seen:
            values.append(value)
    return values


def _with_full_name(option: Option) -> Option:
    if not option.parenthesized or option.resolved is None:
        return option
    parts = (NamePart(option.resolved, True), *option.parts[1:])
    value = _with_full_keys(option.value, option.resolved_keys) if option.resolved_keys else option.value
    merged = Option(parts, value, option.at, option.resolved)
    return Option(parts[:1], _as_message(merged), option.at, option.resolved) if option.path else merged


def _with_full_keys(value: Value, names: dict[str, str]) -> Value:
    if isinstance(value, dict):
        return {names.get(key, key): _with_full_keys(item, names) for key, item in value.items()}
    return [_with_full_keys(item, names) for item in value] if isinstance(value, list) else value


def _full_type(field: Field) -> str:
    return field.type if field.type in SCALARS or field.resolved is None else f".{field.resolved}"
