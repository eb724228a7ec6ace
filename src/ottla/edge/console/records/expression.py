"""The language of searches: conditions on the key, the value, the headers, the partition, offset and time of a record.

    customer.id = 42 AND header.type = "refund"
    key starts "c-4" AND NOT (items[*].sku in ("a", "b") OR amount >= 100)
    timestamp > "2026-11-18 14:00" partition = 3
    "out of stock"                                  this text anywhere: in key, value or a header

    search     = or           or = and ("OR" and)*        and = not (["AND"] not)*        not = "NOT" not | term
    term       = "(" or ")" | field comparison | field "exists" | text
    comparison = ("=" "!=" "<" "<=" ">" ">=") literal | ("contains" "~" "!~" "starts" "ends") literal
               | ["not"] "in" "(" literal, ... ")"
    field      = "key" | "value" | "header" | "partition" | "offset" | "timestamp" | "size", then .name, [0], [*];
                 any other name is a field of the value

A comparison with a field that a record has not is false. A number without quotes equals the number and its text; a
text in quotes equals texts only. There are no functions, no variables and no patterns, so that the cost of a search is
at most its number of terms times the size of a record.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from ottla.edge.console.records.tokens import BadExpression, Kind, Token, tokens_of

_DEPTH_MAX: Final = 32
_PATH_PARTS_MAX: Final = 32
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,38})(?:\.\d{1,38})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_DURATION: Final = re.compile(r"-(\d{1,9})(ms|s|m|h|d)", re.ASCII)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_EQUAL: Final = ("=", "==")
_NOT_EQUAL: Final = ("!=", "<>")
#: words that stand between a field and a literal
_TEXT_TESTS: Final = ("contains", "starts", "ends")
_JOINS: Final = ("and", "or", "&&", "||")
_PLACES: Final = ("partition", "offset", "timestamp", "size")
#: a field of the value begins with another name than these
ROOTS: Final = ("key", "value", "header", "headers", *_PLACES)


class Part(Protocol):
    """The key or the value of a record."""

    @property
    def data(self) -> Any:
        """The decoded JSON value; a text if it is none."""

    @property
    def text(self) -> str | None:
        """The bytes as text; None if there are none."""

    def contains(self, lowered: str) -> bool:
        """Return whether a text without capital letters occurs in the bytes or in the decoded value."""


class Subject(Protocol):
    """The record to which a search is applied. The parts are decoded when they are first used."""

    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def key(self) -> Part: ...
    @property
    def value(self) -> Part: ...
    @property
    def headers(self) -> Sequence[tuple[str, str | None]]: ...


Test = Callable[[Subject], bool]
Values = Callable[[Subject], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Expression:
    """A search that has been read."""

    text: str
    matches: Test


@dataclass(frozen=True, slots=True)
class _Literal:
    """What a field is compared with: its JSON value, and the text as it was written."""

    value: Any
    text: str
    is_quoted: bool


def parse_search(text: str, now_ms: int) -> Expression | None:
    """Return the search; None for an empty text, which finds all records. Raise BadExpression."""
    parser = _Parser(tokens_of(text), now_ms)
    if parser.is_at_end():
        return None
    test = parser.alternatives(0)
    if not parser.is_at_end():
        raise BadExpression(f"{parser.token.text!r} was not expected here", parser.token.position)
    return Expression(text, test)


def parse_time_ms(text: str, now_ms: int) -> int:
    """Return a time: milliseconds, ISO 8601 (UTC without a zone), or a duration before now such as -90m.

    Raise ValueError.

    >>> parse_time_ms("1970-01-01 00:00:01", 0), parse_time_ms("-2s", 5000), parse_time_ms("17", 0)
    (1000, 3000, 17)
    """
    stripped = text.strip()
    before = _DURATION.fullmatch(stripped)
    if before is not None:
        return now_ms - int(before[1]) * _UNITS_MS[before[2]]
    if stripped.isascii() and stripped.isdigit() and len(stripped) < 17:
        return int(stripped)
    try:
        when = datetime.fromisoformat(stripped)
    except ValueError:
        raise ValueError(
            f"{text[:60]!r} is not a time: write milliseconds, 2026-11-18 14:00 (UTC), 2026-11-18T14:00+01:00 or -90m"
        ) from None
    return round((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


class _Parser:
    """Reads tokens from the left to the right; each method reads one rule of the grammar and returns its test."""

    def __init__(self, tokens: list[Token], now_ms: int) -> None:
        self._tokens = tokens
        self._place = 0
        self._now_ms = now_ms

    @property
    def token(self) -> Token:
        return self._tokens[self._place]

    def is_at_end(self) -> bool:
        return self.token.kind is Kind.END

    def _take(self) -> Token:
        token = self.token
        self._place += 1
        return token

    def _is_word(self, *words: str) -> bool:
        return self.token.kind is Kind.WORD and self.token.text.lower() in words

    def alternatives(self, depth: int) -> Test:
        tests = [self._conditions(depth)]
        while self._is_word("or", "||"):
            self._take()
            tests.append(self._conditions(depth))
        return tests[0] if len(tests) == 1 else lambda record: any(test(record) for test in tests)

    def _conditions(self, depth: int) -> Test:
        tests = [self._negation(depth)]
        while True:
            if self._is_word("and", "&&"):
                self._take()
            elif self.token.kind in (Kind.END, Kind.CLOSE) or self._is_word("or", "||"):
                return tests[0] if len(tests) == 1 else lambda record: all(test(record) for test in tests)
            tests.append(self._negation(depth))

    def _negation(self, depth: int) -> Test:
        if depth > _DEPTH_MAX:
            raise BadExpression(f"more than {_DEPTH_MAX} levels of brackets and NOT", self.token.position)
        if self._is_word("not"):
            self._take()
            test = self._negation(depth + 1)
            return lambda record: not test(record)
        return self._term(depth)

    def _term(self, depth: int) -> Test:
        first = self._take()
        if first.kind is Kind.OPEN:
            test = self.alternatives(depth + 1)
            self._expect(Kind.CLOSE, "a closing bracket )")
            return test
        if first.kind is Kind.STRING:
            if self.token.kind is Kind.OPERATOR:
                raise BadExpression("write the field on the left and the text on the right", first.position)
            return _anywhere(first.text)
        if first.kind is not Kind.WORD or first.text.lower() in _JOINS:
            found = f"not {first.text!r}" if first.text else "but the search ends"
            raise BadExpression(f"a field, a text or ( was expected here, {found}", first.position)
        path = self._path(first)
        if self._is_word("not") and self._is_in(1):
            self._take()
            test = self._membership(path)
            return lambda record: not test(record)
        if self._is_word("in") and self._is_list(1):
            return self._membership(path)
        if self._is_word("exists"):
            self._take()
            return _exists(path.values)
        if self._is_word(*_TEXT_TESTS):
            return self._text_test(path, self._take().text.lower())
        if self.token.kind is Kind.OPERATOR:
            return self._comparison(path)
        if path.has_index:
            raise BadExpression("a comparison is missing after the field", self.token.position)
        return _anywhere(first.text)

    def _is_in(self, ahead: int) -> bool:
        token = self._tokens[min(self._place + ahead, len(self._tokens) - 1)]
        return token.kind is Kind.WORD and token.text.lower() == "in" and self._is_list(ahead + 1)

    def _is_list(self, ahead: int) -> bool:
        return self._tokens[min(self._place + ahead, len(self._tokens) - 1)].kind is Kind.OPEN

    def _path(self, first: Token) -> _Path:
        """Read the indexes that follow a word."""
        names = first.text.split(".")
        parts: list[str | int | None] = list(names)
        has_index = False
        while self.token.is_joined and (self.token.kind is Kind.INDEX or (has_index and self._continues())):
            token = self._take()
            if token.kind is Kind.INDEX:
                has_index = True
                quoted = token.text.startswith('"')
                parts.append(token.text[1:] if quoted else None if token.text == "*" else int(token.text))
            else:
                names += token.text[1:].split(".")
                parts.extend(token.text[1:].split("."))
        if len(parts) > _PATH_PARTS_MAX:
            raise BadExpression(f"the field has more than {_PATH_PARTS_MAX} parts", first.position)
        if has_index and "" in names:
            raise BadExpression('a part of the field has no name; write [""] for an empty name', first.position)
        return _Path(parts, first.position, has_index)

    def _continues(self) -> bool:
        return self.token.kind is Kind.WORD and self.token.text.startswith(".")

    def _comparison(self, path: _Path) -> Test:
        sign = self._take()
        if sign.text in ("~", "!~"):
            return self._text_test(path, sign.text)
        literal = self._literal(path)
        if sign.text in _EQUAL or sign.text in _NOT_EQUAL:
            equal = _equality(literal)
            is_equal = _any_value(path.values, equal, texts=path.texts)
            if sign.text in _EQUAL:
                return is_equal
            if path.part is not None:
                return lambda record: not is_equal(record)
            return _any_value(path.values, lambda value: not equal(value))
        return _any_value(path.values, _ordering(literal, _ORDER[sign.text], sign.text, path.position))

    def _membership(self, path: _Path) -> Test:
        self._take()
        self._expect(Kind.OPEN, "( and a list of values after in")
        equals = [_equality(self._literal(path))]
        while self.token.kind is Kind.COMMA:
            self._take()
            equals.append(_equality(self._literal(path)))
        self._expect(Kind.CLOSE, "a comma or )")
        return _any_value(path.values, lambda value: any(each(value) for each in equals), texts=path.texts)

    def _text_test(self, path: _Path, name: str) -> Test:
        if self._is_word("with"):
            self._take()
        text = self._literal(path, is_text=True).text.lower()
        if name in ("contains", "~", "!~"):
            wanted = name != "!~"
            if path.part is not None:
                part = path.part
                return lambda record: part(record).contains(text) is wanted
            return _any_value(path.values, lambda value: (text in _text(value).lower()) is wanted)
        test = str.startswith if name == "starts" else str.endswith
        return _any_value(path.values, lambda value: test(_text(value).lower(), text), texts=path.texts)

    def _literal(self, path: _Path, *, is_text: bool = False) -> _Literal:
        token = self._take()
        if token.kind not in (Kind.WORD, Kind.STRING):
            found = repr(token.text) if token.text else "the end"
            raise BadExpression(f"a value was expected here, not {found}", token.position)
        if path.is_time and not is_text:
            try:
                return _Literal(parse_time_ms(token.text, self._now_ms), token.text, is_quoted=False)
            except (ValueError, OverflowError) as error:
                raise BadExpression(str(error), token.position) from None
        if token.kind is Kind.STRING:
            return _Literal(token.text, token.text, is_quoted=True)
        return _Literal(_unquoted(token.text), token.text, is_quoted=False)

    def _expect(self, kind: Kind, what: str) -> None:
        token = self._take()
        if token.kind is not kind:
            found = repr(token.text) if token.text else "the end"
            raise BadExpression(f"{what} was expected here, not {found}", token.position)


class _Path:
    """A field of a record: where its values are found."""

    def __init__(self, parts: list[str | int | None], position: int, has_index: bool) -> None:
        self.position = position
        self.has_index = has_index
        root = parts[0]
        #: the key or the value as a whole
        self.part: Callable[[Subject], Part] | None = None
        self.is_time = parts == ["timestamp"]
        if root in ("key", "value"):
            of = _part_of(str(root))
            if len(parts) == 1:
                self.part = of
            self.values = _inside(of, parts[1:])
        elif root in ("header", "headers"):
            name = ".".join(map(str, parts[1:])) if len(parts) > 1 else None
            self.values = _header_values(name)
        elif root in _PLACES and len(parts) == 1:
            self.values = _place_of(str(root))
        else:
            self.values = _inside(_part_of("value"), parts)

    @property
    def texts(self) -> Callable[[Subject], str | None] | None:
        """The bytes of a whole key or value as text, which also count."""
        part = self.part
        return None if part is None else lambda record: part(record).text


def _part_of(name: str) -> Callable[[Subject], Part]:
    return operator.attrgetter(name)


def _place_of(name: str) -> Values:
    read = operator.attrgetter(name)

    def values(record: Subject) -> Iterator[Any]:
        yield read(record)

    return values


def _header_values(name: str | None) -> Values:
    def values(record: Subject) -> Iterator[Any]:
        for key, value in record.headers:
            if name is None or key == name:
                yield value

    return values


def _inside(of: Callable[[Subject], Part], parts: list[str | int | None]) -> Values:
    def values(record: Subject) -> Iterator[Any]:
        return _walk(of(record).data, parts, 0)

    return values


def _walk(value: Any, parts: list[str | int | None], place: int) -> Iterator[Any]:
    """Yield the values at a path; None in the path stands for each item or member."""
    while place < len(parts):
        part = parts[place]
        place += 1
        if part is None:
            for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
                yield from _walk(each, parts, place)
            return
        if isinstance(part, str) and isinstance(value, dict):
            if part not in value:
                return
            value = value[part]
        elif isinstance(part, int) and isinstance(value, list):
            if not -len(value) <= part < len(value):
                return
            value = value[part]
        else:
            return
    yield value


# -- tests ------------------------------------------------------------------------------------------------------------


def _any_value(
    values: Values, test: Callable[[Any], bool], *, texts: Callable[[Subject], str | None] | None = None
) -> Test:
    if texts is None:
        return lambda record: any(test(value) for value in values(record))
    return lambda record: test(texts(record)) or any(test(value) for value in values(record))


def _exists(values: Values) -> Test:
    return lambda record: next((True for _ in values(record)), False)


def _anywhere(text: str) -> Test:
    lowered = text.lower()

    def test(record: Subject) -> bool:
        return (
            record.key.contains(lowered)
            or record.value.contains(lowered)
            or any(lowered in key.lower() or lowered in (value or "").lower() for key, value in record.headers)
        )

    return test


def _equality(literal: _Literal) -> Callable[[Any], bool]:
    wanted, text = literal.value, literal.text
    is_number = _is_number(wanted)

    def equal(value: Any) -> bool:
        if isinstance(value, str):
            return value == text
        if literal.is_quoted:
            return False
        if is_number:
            return _is_number(value) and bool(value == wanted)
        return value is wanted if wanted is None or isinstance(wanted, bool) else False

    return equal


def _ordering(
    literal: _Literal, compare: Callable[[Any, Any], bool], sign: str, position: int
) -> Callable[[Any], bool]:
    wanted = literal.value
    if _is_number(wanted):

        def by_number(value: Any) -> bool:
            number = _unquoted(value) if isinstance(value, str) else value
            return _is_number(number) and compare(number, wanted)

        return by_number
    if not isinstance(wanted, str):
        raise BadExpression(f"{sign} compares numbers and texts, not {literal.text}", position)
    return lambda value: isinstance(value, str) and compare(value, wanted)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unquoted(text: str) -> Any:
    """Return the value of a word without quotes: a number, true, false, null, or the text itself."""
    if len(text) <= 90 and _NUMBER.fullmatch(text):
        return float(text) if any(sign in text for sign in ".eE") else int(text)
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def _text(value: Any) -> str:
    """Return a field as text. Objects and arrays have none: their members are searched by name."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 256):
        return repr(value)
    return ""
