"""JSON as Java Avro reads and writes it, with the library Jackson.

Jackson allows comments between tokens, keeps the order of members, and prints numbers as Java does: `1.0E10`, not
`10000000000.0`. Two schemas get the same id only if their texts are equal, so each character counts.
"""

from __future__ import annotations

import re
import struct
from itertools import accumulate
from json import JSONDecodeError, JSONDecoder
from json.encoder import encode_basestring
from typing import Final, NoReturn, TypeAlias

from ottla.schemas.schema import DEPTH_MAX, Budget, InvalidSchema, SchemaTooComplex

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

INT_MIN: Final = -(1 << 31)
INT_MAX: Final = (1 << 31) - 1
LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1

#: a record in a record adds three levels of JSON: the record, the list of its fields, and the field
_NESTING_MAX: Final = 3 * DEPTH_MAX
#: Jackson's limits
_NUMBER_DIGITS_MAX: Final = 1_000
_KEY_CHARS_MAX: Final = 50_000

# Each pattern also matches a token without its end, so that a missing end does not cost a search of the whole text.
_STRING: Final = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_STRING_OR_COMMENT: Final = re.compile(_STRING.pattern + r"|//[^\r\n]*+|/\*(?:[^*]++|\*(?!/))*+(?:\*/)?", re.DOTALL)
_NO_BRACKET: Final = re.compile(r"[^\[\]{}]+")
_NO_LINE_END: Final = re.compile(r"[^\n]")
_ESCAPE: Final = re.compile(r"\\(u[0-9a-f]{4}|.)")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
#: what Java's String.trim removes
TRIMMED: Final = "".join(map(chr, range(33)))


def read(text: str) -> Json:
    """Return the JSON value that `text` holds. Raise InvalidSchema with line and column if it is not valid JSON."""
    _check_nesting(text)
    try:
        value, end = _decode(text)
    except JSONDecodeError as error:
        without_comments = _STRING_OR_COMMENT.sub(_blank_comment, text) if "/" in text else text
        if without_comments == text:
            raise _invalid_json(error)
        try:
            value, end = _decode(without_comments)
        except JSONDecodeError as error:
            raise _invalid_json(error)
    rest = text[end:].strip(TRIMMED)
    if rest:
        raise InvalidSchema(f"after the end of the schema there is more text: {rest[:40]!r}")
    return value


def write(value: Json) -> str:
    """Return the JSON text of `value` without white space. Its nesting must have been checked (`check_value`)."""
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, list):
        return f"[{','.join(map(write, value))}]"
    return "{" + ",".join([f"{quote(key)}:{write(member)}" for key, member in value.items()]) + "}"


def quote(text: str) -> str:
    """Return `text` as a JSON string, with the escape sequences that Jackson writes."""
    quoted = encode_basestring(text)
    return _ESCAPE.sub(_upper_case_hex, quoted) if "\\u" in quoted else quoted


def double_text(value: float) -> str:
    """Return a double as Java's Double.toString does (JDK 19 and later: the shortest digits); not finite: a string."""
    if value != value or value in (float("inf"), float("-inf")):
        return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
    digits, exponent = _digits(repr(abs(value)))
    if len(digits) == 1 and value:
        # Java chooses among numbers of two digits: 4.9E-324, although 5E-324 is shorter and denotes the same double.
        two_digits = f"{abs(value):.1e}"
        if float(two_digits) == abs(value):
            digits, exponent = _digits(two_digits)
    return _java_number(value, digits, exponent)


def float_text(value: float) -> str:
    """Return a double, rounded to a float of 32 bits, as Java's Float.toString does."""
    try:
        single = as_float(value)
    except OverflowError:
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if single != single or single in (float("inf"), float("-inf")):
        return double_text(single)
    for precision in range(1, 9):
        text = f"{abs(single):.{precision}e}"
        if as_float(float(text)) == abs(single):
            break
    return _java_number(single, *_digits(text))


def as_float(value: float) -> float:
    """Return the float of 32 bits that is nearest to `value`. Raise OverflowError if there is none."""
    single: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return single


def check_value(value: Json, budget: Budget, depth: int = 0) -> bool:
    """Return whether all integers of a value fit into 64 bits. Raise SchemaTooComplex if it is nested too deeply."""
    if isinstance(value, dict | list):
        if depth > DEPTH_MAX:
            raise SchemaTooComplex(f"a value in the schema is nested more than {DEPTH_MAX} levels deep")
        budget.spend(len(value))
        if isinstance(value, dict) and max(map(len, value), default=0) > _KEY_CHARS_MAX:
            raise SchemaTooComplex(f"a member of an object has a name of more than {_KEY_CHARS_MAX:,} characters")
        fits = True
        for member in value.values() if isinstance(value, dict) else value:
            fits &= check_value(member, budget, depth + 1)
        return fits
    return not isinstance(value, int) or LONG_MIN <= value <= LONG_MAX


def equal(left: Json, right: Json) -> bool:
    """Return whether two values are equal as Jackson compares them: 1, 1.0 and true differ; members have no order."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)  # NaN equals NaN, and 0.0 differs from -0.0
    return left == right


def _decode(text: str) -> tuple[Json, int]:
    start = _SPACE.match(text)
    assert start is not None
    try:
        value: Json
        value, end = _DECODER.raw_decode(text, start.end())
    except RecursionError:
        raise SchemaTooComplex("the schema is nested too deeply") from None
    return value, end


def _check_nesting(text: str) -> None:
    if text.count("{") + text.count("[") <= _NESTING_MAX:
        return
    brackets = _NO_BRACKET.sub("", _STRING.sub("", text))
    if max(accumulate([1 if bracket in "[{" else -1 for bracket in brackets]), default=0) > _NESTING_MAX:
        raise SchemaTooComplex(f"the JSON text is nested more than {_NESTING_MAX} levels deep")


def _blank_comment(found: re.Match[str]) -> str:
    token = found[0]
    return token if token[0] == '"' else _NO_LINE_END.sub(" ", token)


def _invalid_json(error: JSONDecodeError) -> InvalidSchema:
    return InvalidSchema(f"not valid JSON, line {error.lineno}, column {error.colno}: {error.msg}")


def _upper_case_hex(found: re.Match[str]) -> str:
    return "\\u" + found[1][1:].upper() if found[1][0] == "u" and len(found[1]) == 5 else found[0]


def _digits(text: str) -> tuple[str, int]:
    """Return the significant digits of a decimal number, and the power of ten of the first one."""
    mantissa, _, power = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    exponent = len(whole) - 1 - (len(whole + fraction) - len(digits)) + int(power or 0)
    return digits.rstrip("0") or "0", exponent if digits else 0


def _java_number(value: float, digits: str, exponent: int) -> str:
    sign = "-" if str(value)[0] == "-" else ""
    if -3 <= exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    if 0 <= exponent < 7:
        return f"{sign}{digits[: exponent + 1].ljust(exponent + 1, '0')}.{digits[exponent + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _integer(text: str) -> int:
    _check_number(text)
    return int(text)


def _float(text: str) -> float:
    _check_number(text)
    return float(text)


def _check_number(text: str) -> None:
    if len(text) > _NUMBER_DIGITS_MAX and sum(map(str.isdigit, text)) > _NUMBER_DIGITS_MAX:
        raise SchemaTooComplex(f"a number has more than {_NUMBER_DIGITS_MAX} digits")


def _reject_constant(text: str) -> NoReturn:
    raise InvalidSchema(f"not valid JSON: {text} is no number in JSON")


_DECODER: Final = JSONDecoder(parse_int=_integer, parse_float=_float, parse_constant=_reject_constant)
