"""JSON text to values and back, as Confluent's registry reads and prints it (the Java library Jackson).

Members keep their order, and a repeated member keeps its first place and its last value. Integers are `int`; all other
numbers are `Decimal`, so that `1.50` stays `1.50`. Jackson prints `1e2` as `1E+2`, and so does this module. `NaN` and
`Infinity`, which Jackson can be configured to accept, are rejected: they are not JSON.

The work is linear in the length of the text. No function here needs Python's stack for the depth of a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final, NoReturn, TypeAlias

from ottla.schemas.schema import DEPTH_MAX, TEXT_BYTES_MAX, InvalidSchema, SchemaTooComplex

#: None, bool, int, Decimal, str, list of values, or dict from str to values
JsonValue: TypeAlias = Any

#: brackets inside of each other: an object property takes two, one for "properties" and one for its schema
NESTING_MAX: Final = 2 * DEPTH_MAX
#: characters of one number; Jackson has the same limit
_NUMBER_LENGTH_MAX: Final = 1000
#: of a number with an exponent; the arithmetic with larger ones is expensive
_EXPONENT_MAX: Final = 10_000

_BRACKETS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)
_ESCAPED: Final = re.compile('[\x00-\x1f"\\\\\ud800-\udfff]')
#: Python's encoder, which is written in C, prints most values as Jackson does, and is about 20 times as fast
_PRINTER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), check_circular=False)
_SORTING_PRINTER: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), check_circular=False, sort_keys=True
)
_PRINTED_DIFFERENTLY: Final = re.compile("\\\\u00|[\ud800-\udfff]")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}


def parse_json(text: str) -> JsonValue:
    """Return the value of a JSON text. Raise InvalidSchema if it is not JSON, SchemaTooComplex if it is too large."""
    if len(text) > TEXT_BYTES_MAX or (
        not text.isascii() and len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES_MAX
    ):
        raise SchemaTooComplex(f"the schema has more than {TEXT_BYTES_MAX >> 20} MB; split it into smaller ones")
    _check_nesting(text)
    try:
        return json.loads(
            text.lstrip("\ufeff"), parse_int=_integer, parse_float=_decimal, parse_constant=_reject_constant
        )
    except json.JSONDecodeError as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from None


def print_json(value: JsonValue, length_max: int | None = None) -> str:
    """Return the compact text of a value; cut it after `length_max` characters and add "…" if it is longer."""
    if length_max is None:
        text = _encode(value, _PRINTER)
        if text is not None:
            return text
    parts: list[str] = []
    length = 0
    for part in _tokens(value, _print_scalar, sort=False):
        parts.append(part)
        length += len(part)
        if length_max is not None and length > length_max:
            return "".join(parts)[:length_max] + "…"
    return "".join(parts)


def value_key(value: JsonValue) -> str:
    """Return a text that two values share exactly if JSON Schema calls them equal: 1 equals 1.0, order is ignored."""
    text = _encode(value, _SORTING_PRINTER)
    return "".join(_tokens(value, _scalar_key, sort=True)) if text is None else text


def sort_members(value: JsonValue) -> JsonValue:
    """Return a copy in which the members of each object are in the order of their UTF-16 code units, as Java sorts."""
    root: list[JsonValue] = [None]
    pending: list[tuple[JsonValue, Any, Any]] = [(value, root, 0)]
    while pending:
        source, target, place = pending.pop()
        if isinstance(source, dict):
            copy: JsonValue = dict.fromkeys(sorted(source, key=_utf16))
            pending.extend((member, copy, name) for name, member in source.items())
        elif isinstance(source, list):
            copy = [None] * len(source)
            pending.extend((item, copy, index) for index, item in enumerate(source))
        else:
            copy = source
        target[place] = copy
    return root[0]


def _check_nesting(text: str) -> None:
    nesting = 0
    for match in _BRACKETS.finditer(text):
        sign = match.group()
        if sign in ("{", "["):
            nesting += 1
            if nesting > NESTING_MAX:
                raise SchemaTooComplex(f"the schema has more than {NESTING_MAX} nested brackets; use references")
        elif sign in ("}", "]"):
            nesting -= 1


def _integer(digits: str) -> int:
    if len(digits) > _NUMBER_LENGTH_MAX:
        raise SchemaTooComplex(f"a number of the schema has more than {_NUMBER_LENGTH_MAX} characters")
    return int(digits)


def _decimal(digits: str) -> Decimal:
    if len(digits) > _NUMBER_LENGTH_MAX:
        raise SchemaTooComplex(f"a number of the schema has more than {_NUMBER_LENGTH_MAX} characters")
    exponent = digits.lower().partition("e")[2]
    if exponent and abs(int(exponent)) > _EXPONENT_MAX:
        raise SchemaTooComplex(f"the exponent of the number {digits} is beyond ±{_EXPONENT_MAX}")
    return Decimal(digits)


def _reject_constant(name: str) -> NoReturn:
    raise InvalidSchema(f"the schema is not JSON: {name} is not a number of JSON")


def _encode(value: JsonValue, printer: json.JSONEncoder) -> str | None:
    """Return the text that Python's encoder prints; None if Jackson prints it differently (fractions, escapes)."""
    try:
        text = printer.encode(value)
    except (TypeError, RecursionError):
        return None
    return None if _PRINTED_DIFFERENTLY.search(text) else text


def _tokens(value: JsonValue, scalar: Callable[[JsonValue], str], *, sort: bool) -> Iterator[str]:
    """Yield the parts of the text of a value, in order."""
    stack: list[Iterator[str | tuple[JsonValue]]] = [iter([(value,)])]
    while stack:
        for part in stack[-1]:
            if isinstance(part, str):
                yield part
                continue
            item = part[0]
            if isinstance(item, dict):
                stack.append(_object_parts(item, sort=sort))
                break
            if isinstance(item, list):
                stack.append(_array_parts(item))
                break
            yield scalar(item)
        else:
            stack.pop()


def _object_parts(value: dict[str, JsonValue], *, sort: bool) -> Iterator[str | tuple[JsonValue]]:
    separator = "{"
    for name in sorted(value) if sort else value:
        yield f"{separator}{_quote(name)}:"
        yield (value[name],)
        separator = ","
    yield "}" if value else "{}"


def _array_parts(value: list[JsonValue]) -> Iterator[str | tuple[JsonValue]]:
    separator = "["
    for item in value:
        yield separator
        yield (item,)
        separator = ","
    yield "]" if value else "[]"


def _print_scalar(value: JsonValue) -> str:
    if isinstance(value, str):
        return _quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal) and not value:
        return str(abs(value))  # Java's decimals have no negative zero
    return str(value)


def _scalar_key(value: JsonValue) -> str:
    if not isinstance(value, Decimal):
        return _print_scalar(value)
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number = int("".join(map(str, digits)))
    if number == 0:
        return "0"
    while number % 10 == 0:
        number //= 10
        exponent += 1
    if 0 <= exponent <= _NUMBER_LENGTH_MAX:
        number, exponent = number * 10**exponent, 0
    return f"{'-' if sign else ''}{number}{f'e{exponent}' if exponent else ''}"


def _quote(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    sign = match.group()
    return _ESCAPES.get(sign) or f"\\u{ord(sign):04X}"


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
