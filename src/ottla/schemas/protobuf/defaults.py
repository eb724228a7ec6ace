"""Defaults of fields in proto2: which literal fits which type, and how a descriptor spells it."""

from __future__ import annotations

from typing import Final

from ottla.schemas.protobuf.model import Field, File, Kind, Literal
from ottla.schemas.protobuf.symbols import Symbols
from ottla.schemas.protobuf.tokens import error_at
from ottla.schemas.protobuf.values import as_float, as_integer, double_text, escaped_bytes, float_text
from ottla.schemas.schema import InvalidSchema

_SIGNED: Final = {"int32": 31, "sint32": 31, "sfixed32": 31, "int64": 63, "sint64": 63, "sfixed64": 63}
_UNSIGNED: Final = {"uint32": 32, "fixed32": 32, "uint64": 64, "fixed64": 64}
#: smallest and largest value of each integer type
_INTEGERS: Final = {name: (-(1 << bits), (1 << bits) - 1) for name, bits in _SIGNED.items()} | {
    name: (0, (1 << bits) - 1) for name, bits in _UNSIGNED.items()
}


def default_text(field: Field, file: File, scope: Symbols, text: str) -> str:
    """Return the default of a field as its descriptor has it. Raise InvalidSchema if it does not fit the field."""
    default = field.default
    assert default is not None

    def wrong(reason: str) -> InvalidSchema:
        return error_at(text, field.at, f'the default of the field "{field.name}" {reason}')

    if file.is_proto3:
        raise wrong("is not allowed in proto3")
    if field.label == "repeated" or field.map_types is not None:
        raise wrong("is not allowed: the field is repeated")
    if field.type in _INTEGERS:
        smallest, largest = _INTEGERS[field.type]
        value = as_integer(default.text) if default.kind is Kind.NUMBER else None
        if value is None or not smallest <= value <= largest:
            raise wrong(f"must be a number between {smallest} and {largest}")
        return str(value)
    if field.type in ("float", "double"):
        return _float(default, field, wrong("must be a number"))
    if field.type == "bool":
        if default.kind is not Kind.BOOLEAN:
            raise wrong("must be true or false")
        return default.text
    if field.type in ("string", "bytes"):
        return _string(default, field, wrong("must be a string"))
    if not field.is_enum or field.resolved is None:
        raise wrong("is not allowed: the field is a message")
    if default.kind not in (Kind.ENUM, Kind.BOOLEAN) or not scope.has_value(field.resolved, default.text):
        raise wrong(f'must be a value of the enum "{field.resolved}"')
    return default.text


def _float(default: Literal, field: Field, wrong: InvalidSchema) -> str:
    if default.kind is Kind.ENUM and default.text not in ("inf", "nan"):
        raise wrong
    value = as_float(default.text) if default.kind in (Kind.NUMBER, Kind.ENUM) else None
    if value is None:
        raise wrong
    return double_text(value) if field.type == "double" else float_text(value)


def _string(default: Literal, field: Field, wrong: InvalidSchema) -> str:
    if default.kind is not Kind.STRING:
        raise wrong
    if field.type == "bytes":
        return escaped_bytes(default.text)
    try:
        default.text.encode()
    except UnicodeEncodeError:
        raise wrong from None
    return default.text
