"""The rules that protoc enforces beyond syntax and names: numbers, reserved ranges, enums, maps, extensions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

from google.protobuf import descriptor_pb2

from ottla.schemas.protobuf.model import (
    FIELD_NUMBER_MAX,
    SCALARS,
    Enum,
    Extend,
    Field,
    File,
    Message,
    Reserved,
    option_is_true,
    span,
)
from ottla.schemas.protobuf.symbols import map_entry_name
from ottla.schemas.protobuf.tokens import error_at

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
#: numbers that Protobuf keeps for itself
_INTERNAL: Final = (19000, 19999)
_NO_MAP_KEYS: Final = ("double", "float", "bytes")
_NOT_PACKABLE: Final = (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES, _FIELD.TYPE_MESSAGE, _FIELD.TYPE_GROUP)
_INT64: Final = (
    _FIELD.TYPE_INT64,
    _FIELD.TYPE_UINT64,
    _FIELD.TYPE_SINT64,
    _FIELD.TYPE_FIXED64,
    _FIELD.TYPE_SFIXED64,
)


def valid_text(value: str, text: str, at: int) -> str:
    """Return the text. Raise InvalidSchema if it has bytes that are not UTF-8."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise error_at(text, at, "the string is not valid UTF-8") from None
    return value


def check_field(field: Field, text: str) -> None:
    """Check a field by itself."""
    number = field.number
    if not 0 < number <= FIELD_NUMBER_MAX:
        raise error_at(text, field.number_at, f"the number of a field must be between 1 and {FIELD_NUMBER_MAX}")
    if _INTERNAL[0] <= number <= _INTERNAL[1]:
        raise error_at(text, field.number_at, "the numbers 19000 to 19999 belong to Protobuf itself")
    if field.map_entry is not None:
        key, value = field.map_entry.all_fields
        if key.type in _NO_MAP_KEYS or key.type not in SCALARS:
            raise error_at(text, field.type_at, "the key of a map must be an integer, a bool or a string")
        if value.map_types is not None:
            raise error_at(text, field.type_at, "the value of a map cannot be a map")


def check_explicit_map(field: Field, scope: str, text: str) -> None:
    """Check a message that has the option map_entry, which descriptors of maps have."""
    entry = field.map_entry
    assert entry is not None
    fields = [(member.name, member.number, member.label) for member in entry.all_fields]
    shape = [(name, number) for name, number, _ in fields]
    if (
        shape != [("key", 1), ("value", 2)]
        or any(label not in (None, "optional") for _, _, label in fields)
        or entry.name != map_entry_name(field.name)
        or field.resolved != f"{scope}.{entry.name}"
        or field.label != "repeated"
        or entry.nested
        or entry.extensions
        or entry.extends
    ):
        raise error_at(text, field.at, 'the option map_entry is not for use in a schema; write "map<Key, Value>"')


def check_message(message: Message, full_name: str, file: File, text: str) -> None:
    """Check the numbers of a message's fields, its reserved numbers and names, and the names in JSON."""
    numbers: dict[int, str] = {}
    for field in message.all_fields:
        if field.number in numbers:
            other = numbers[field.number]
            raise error_at(
                text,
                field.number_at,
                f'"{field.name}" and "{other}" of "{full_name}" have the same number {field.number}',
            )
        numbers[field.number] = field.name
    _check_ranges(message, text)
    _check_reserved_names(message.reserved, {field.name for field in message.all_fields}, "field", text)
    if not option_is_true(message.options, "deprecated_legacy_json_field_conflicts"):
        _check_json_names(message, file, text)


def check_extension(field: Field, extend: Extend, extended: Message, file: File, text: str) -> None:
    if file.is_proto3 and not _is_option_message(extend.resolved or ""):
        raise error_at(text, extend.at, "extensions are allowed in proto3 for options only")
    if field.label == "required":
        raise error_at(text, field.at, "an extension cannot be required")
    if field.json_name is not None:
        raise error_at(text, field.at, "json_name is not allowed for an extension")
    if field.map_types is not None:
        raise error_at(text, field.at, "an extension cannot be a map")
    for extensions in extended.extensions:
        for item in extensions.ranges:
            start, end = span(item)
            if start <= field.number <= end:
                return
    raise error_at(text, field.number_at, f'"{extend.resolved}" does not declare {field.number} as an extension number')


def check_enum(enum: Enum, file: File, text: str) -> None:
    """Check the values of an enum and its reserved numbers and names."""
    if not enum.values:
        raise error_at(text, enum.at, f'the enum "{enum.name}" has no values')
    if file.is_proto3 and enum.values[0].number != 0:
        raise error_at(text, enum.values[0].at, "the first value of an enum must be 0 in proto3")
    by_number: dict[int, str] = {}
    aliases = 0
    allow_alias = option_is_true(enum.options, "allow_alias")
    for value in enum.values:
        other = by_number.setdefault(value.number, value.name)
        if other != value.name:
            aliases += 1
            if not allow_alias:
                raise error_at(
                    text,
                    value.at,
                    f'"{value.name}" has the number of "{other}"; set the option allow_alias to allow this',
                )
    if allow_alias and not aliases:
        raise error_at(text, enum.at, f'the enum "{enum.name}" has the option allow_alias but no aliases')
    ranges = sorted((numbers, reserved.at) for reserved in enum.reserved for numbers in reserved.spans)
    _check_disjoint(ranges, text)
    _check_numbers_free([(value.number, value.name, value.at) for value in enum.values], ranges, "reserved", text)
    _check_reserved_names(enum.reserved, {value.name for value in enum.values}, "value", text)
    if file.is_proto3:
        _check_value_names(enum, text)


def check_field_options(field: Field, target: Any, text: str) -> None:
    """Check the options of Protobuf itself, after these have been set in the descriptor."""
    options = target.options
    repeated = target.label == _FIELD.LABEL_REPEATED
    if options.HasField("packed") and options.packed and (not repeated or target.type in _NOT_PACKABLE):
        raise error_at(text, field.at, f'"{field.name}": packed is allowed for repeated numbers only')
    if options.jstype and target.type not in _INT64:
        raise error_at(text, field.at, f'"{field.name}": jstype is allowed for 64-bit integers only')


def _check_ranges(message: Message, text: str) -> None:
    reserved = sorted((numbers, item.at) for item in message.reserved for numbers in item.spans)
    if reserved and reserved[0][0][0] < 1:
        raise error_at(text, reserved[0][1], "reserved numbers must be positive")
    extensions = sorted((span(numbers), item.at) for item in message.extensions for numbers in item.ranges)
    _check_disjoint(reserved, text)
    _check_disjoint(extensions, text)
    _check_disjoint(sorted(reserved + extensions), text)
    fields = [(field.number, field.name, field.number_at) for field in message.all_fields]
    _check_numbers_free(fields, reserved, "reserved", text)
    _check_numbers_free(fields, extensions, "for extensions", text)


def _check_disjoint(ranges: list[tuple[tuple[int, int], int]], text: str) -> None:
    for (first, _), (second, at) in pairwise(ranges):
        if second[0] <= first[1]:
            raise error_at(text, at, f"the range {second[0]} to {second[1]} overlaps {first[0]} to {first[1]}")


def _check_numbers_free(
    numbers: list[tuple[int, str, int]], ranges: list[tuple[tuple[int, int], int]], what: str, text: str
) -> None:
    """Raise InvalidSchema if a number is in one of the ranges, which are sorted and disjoint."""
    if not ranges:
        return
    index = 0
    for number, name, at in sorted(numbers):
        while index < len(ranges) and ranges[index][0][1] < number:
            index += 1
        if index < len(ranges) and ranges[index][0][0] <= number:
            raise error_at(text, at, f'"{name}" has the number {number}, which is {what}')


def _check_reserved_names(reserved: list[Reserved], used: set[str], what: str, text: str) -> None:
    seen: set[str] = set()
    for item in reserved:
        for value in item.values:
            if not isinstance(value, str):
                continue
            if value in seen:
                raise error_at(text, item.at, f'the name "{value}" is reserved twice')
            seen.add(value)
            if value in used:
                raise error_at(text, item.at, f'the {what} "{value}" has a name that is reserved')


def _check_json_names(message: Message, file: File, text: str) -> None:
    """Two fields must not have the same name in JSON. In proto2 that is an error only if a name is set explicitly."""
    names: dict[str, Field] = {}
    for field in message.all_fields:
        name = field.json_name if field.json_name is not None else json_name(field.name)
        other = names.setdefault(name, field)
        if other is field:
            continue
        explicit = field.json_name is not None and other.json_name is not None
        if explicit or file.is_proto3 or file.edition is not None:
            raise error_at(text, field.at, f'"{field.name}" and "{other.name}" have the same name "{name}" in JSON')


def json_name(name: str) -> str:
    """Return the name in JSON of a field that does not set one: lower camel case."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _check_value_names(enum: Enum, text: str) -> None:
    """Names of values must differ in proto3 also without the enum's name as a prefix, and in camel case."""
    prefix = enum.name.lower().replace("_", "")
    names: dict[str, tuple[str, int]] = {}
    for value in enum.values:
        short = _short_name(value.name, prefix)
        other = names.setdefault(short, (value.name, value.number))
        if other[0] != value.name and other[1] != value.number:
            raise error_at(
                text,
                value.at,
                f'"{value.name}" and "{other[0]}" are equal without case and the prefix of the enum\'s name',
            )


def _short_name(name: str, prefix: str) -> str:
    """Return the name without the prefix, which may have underscores anywhere, in camel case."""
    index = matched = 0
    while matched < len(prefix) and index < len(name):
        if name[index] != "_":
            if name[index].lower() != prefix[matched]:
                break
            matched += 1
        index += 1
    rest = name[index:].lstrip("_") if matched == len(prefix) else name
    if not rest:
        rest = name
    return "".join(part[:1].upper() + part[1:].lower() for part in rest.split("_"))


def _is_option_message(full_name: str) -> bool:
    return full_name.startswith("google.protobuf.") and full_name.endswith("Options")
