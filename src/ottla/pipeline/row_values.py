"""Values that people write in tests, as values of Spark's types: text as times, numbers as decimals and the like.

The result is what Arrow gives for a value of that type, so that expected values and received ones can be compared.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ottla.pipeline.problems import suggestion

_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


class BadValue(ValueError):
    """A value that is none of its column's type; the text says what to write."""


def convert_row(row: Mapping[str, Any], schema: StructType) -> dict[str, Any]:
    """Return the columns of a row that it names, by their names in the schema. Raise BadValue."""
    names = {name.lower(): name for name in schema.names}
    converted = {}
    for given, value in row.items():
        name = names.get(given.lower())
        if name is None:
            raise BadValue(f"there is no column {given!r}; {suggestion(given, schema.names, none='')}")
        try:
            converted[name] = convert_value(value, schema[name].dataType)
        except BadValue as bad:
            raise BadValue(f"column {name}: {bad}") from None
    return converted


def convert_value(value: Any, type: DataType) -> Any:
    """Return a value in the form that Arrow gives for this type. Raise BadValue.

    Text is read as a time, number, nested value or whatever the type asks for, as in a CSV file.
    """
    if value is None:
        return None
    for kinds, convert in _CONVERSIONS:
        if isinstance(type, kinds):
            return convert(value, type)
    raise BadValue(f"values of type {type.simpleString()} cannot be given in tests")


def _text(value: Any, type: DataType) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | Decimal | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    raise _wrong(value, "text")


def _integer(value: Any, type: DataType) -> int:
    number = value
    if isinstance(value, str):
        try:
            number = int(value)
        except ValueError:
            raise _wrong(value, "a whole number") from None
    if isinstance(number, Decimal) and number == number.to_integral_value():
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool):
        raise _wrong(value, "a whole number")
    bits = next(bits for kind, bits in _BITS.items() if isinstance(type, kind))
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise _wrong(value, f"a whole number of {bits} bits")
    return number


def _decimal(value: Any, type: DataType) -> Decimal:
    assert isinstance(type, DecimalType)
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal | float):
        raise _wrong(value, "a decimal number")
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise _wrong(value, "a decimal number") from None
    if (
        not number.is_finite()
        or number != round(number, type.scale)
        or abs(number) >= Decimal(10) ** (type.precision - type.scale)
    ):
        raise _wrong(value, f"a number that fits {type.simpleString()}")
    return round(number, type.scale)


def _floating(value: Any, type: DataType) -> float:
    if isinstance(value, bool):
        raise _wrong(value, "a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _wrong(value, "a number") from None
    if isinstance(type, FloatType):
        try:
            number = struct.unpack("f", struct.pack("f", number))[0]
        except OverflowError:
            raise _wrong(value, "a number of 32 bits") from None
    return number


def _boolean(value: Any, type: DataType) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise _wrong(value, "true or false")


def _date(value: Any, type: DataType) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise _wrong(value, "a date such as 2026-01-31") from None
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise _wrong(value, "a date such as 2026-01-31")


def _timestamp(value: Any, type: DataType) -> datetime:
    moment = value
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise _wrong(value, "a time such as 2026-01-31T12:00:00Z") from None
    if not isinstance(moment, datetime):
        raise _wrong(value, "a time such as 2026-01-31T12:00:00Z")
    if isinstance(type, TimestampNTZType):
        if moment.tzinfo is not None:
            raise _wrong(value, "a time without a time zone")
        return moment
    # Spark's session has the time zone UTC.
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _bytes(value: Any, type: DataType) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, Mapping) and list(value) == ["base64"]:
        try:
            return base64.b64decode(str(value["base64"]), validate=True)
        except binascii.Error:
            raise _wrong(value["base64"], "base64") from None
    raise _wrong(value, "text, or {base64: ...}")


def _array(value: Any, type: DataType) -> list[Any]:
    assert isinstance(type, ArrayType)
    value = _parsed(value)
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _wrong(value, "a list")
    return [convert_value(each, type.elementType) for each in value]


def _map(value: Any, type: DataType) -> list[tuple[Any, Any]]:
    assert isinstance(type, MapType)
    value = _parsed(value)
    if isinstance(value, Mapping):
        value = list(value.items())
    if not isinstance(value, Sequence) or not all(isinstance(each, list | tuple) and len(each) == 2 for each in value):
        raise _wrong(value, "a mapping")
    return [(convert_value(key, type.keyType), convert_value(each, type.valueType)) for key, each in value]


def _struct(value: Any, type: DataType) -> dict[str, Any]:
    assert isinstance(type, StructType)
    value = _parsed(value)
    if not isinstance(value, Mapping):
        raise _wrong(value, "a mapping")
    return dict.fromkeys(type.names) | convert_row(value, type)


def _parsed(value: Any) -> Any:
    """Return a nested value that is given as JSON, as in a CSV file."""
    if isinstance(value, str):
        try:
            return json.loads(value, parse_float=Decimal)
        except ValueError:
            raise _wrong(value, "JSON") from None
    return value


def _wrong(value: Any, wanted: str) -> BadValue:
    return BadValue(f"{value!r} does not fit; write {wanted}")


_CONVERSIONS: Final[tuple[tuple[Any, Callable[[Any, DataType], Any]], ...]] = (
    (StringType, _text),
    (tuple(_BITS), _integer),
    (DecimalType, _decimal),
    ((FloatType, DoubleType), _floating),
    (BooleanType, _boolean),
    (DateType, _date),
    ((TimestampType, TimestampNTZType), _timestamp),
    (BinaryType, _bytes),
    (ArrayType, _array),
    (MapType, _map),
    (StructType, _struct),
)
