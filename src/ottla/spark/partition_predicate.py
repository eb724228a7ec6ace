"""The predicate of ``replaceWhere``: comparisons of partition columns with literals, joined by AND. Pure.

The driver evaluates it for the values in Delta's log, with the same result as in Spark SQL; any other predicate is
refused. Why no SQL library: docs/decisions/0011-parsers.md.

Such as: day >= '2026-01-01' AND day < '2026-02-01' AND country IN ('DE', 'AT') AND hour IS NOT NULL
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from ottla.spark.options import OptionError
from ottla.spark.table_files import PartitionValues

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")|(?P<number>-?\d+(?:\.\d+)?)|(?P<quoted>`[^`]+`)|(?P<word>[A-Za-z_]\w*)"""
    r"|(?P<sign><=>|<=|>=|<>|!=|==|[=<>(),]))",
    re.S,
)
#: in texts: a quote that is doubled, or a backslash with the number of a character or with a character
_ESCAPE = re.compile(r"''|\"\"|\\(u[0-9a-fA-F]{4}|[01][0-7]{2}|.)", re.S)
_ESCAPED: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_HINT = "replaceWhere looks like day >= '2026-01-01' AND country = 'DE'"


@dataclass(frozen=True, slots=True)
class Comparison:
    column: str
    #: of ``_COMPARISONS``, or IN, IS NULL, IS NOT NULL
    operator: str
    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """Return whether the comparison is true; as in SQL, a comparison with null is not."""
        if self.operator == "IS NULL":
            return value is None
        if value is None:
            return False
        if self.operator == "IS NOT NULL":
            return True
        if self.operator == "IN":
            return value in self.values
        return _COMPARISONS[self.operator](value, self.values[0])


@dataclass(frozen=True, slots=True)
class PartitionPredicate:
    comparisons: tuple[Comparison, ...]
    #: the partition columns' types, by Delta's names
    types: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, types: Mapping[str, str]) -> PartitionPredicate:
        """Return the predicate of a text. Raise OptionError if it has another form."""
        return cls(tuple(_Parser(text, types).conjunction()), types)

    def matches(self, partition: PartitionValues) -> bool:
        values = dict(partition)
        return all(
            comparison.holds(_typed(values[comparison.column], self.types[comparison.column]))
            for comparison in self.comparisons
        )


class _Parser:
    def __init__(self, text: str, types: Mapping[str, str]) -> None:
        self._types = types
        self._tokens: list[tuple[str, str]] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise OptionError(f"replaceWhere cannot be understood at {text[position:].strip()!r}; {_HINT}")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def conjunction(self) -> list[Comparison]:
        found = self._comparison()
        while self._tokens:
            self._keyword("AND")
            found += self._comparison()
        return found

    def _comparison(self) -> list[Comparison]:
        column = self._column()
        kind, word = self._next()
        sign = word.upper()
        if kind == "sign" and sign in _COMPARISONS:
            return [Comparison(column, sign, (self._literal(column),))]
        if sign == "IS":
            negated = self._peek() == "NOT"
            if negated:
                self._next()
            self._keyword("NULL")
            return [Comparison(column, "IS NOT NULL" if negated else "IS NULL", ())]
        if sign == "BETWEEN":
            low = self._literal(column)
            self._keyword("AND")
            return [Comparison(column, ">=", (low,)), Comparison(column, "<=", (self._literal(column),))]
        if sign == "IN":
            return [Comparison(column, "IN", tuple(self._list(column)))]
        raise OptionError(f"replaceWhere cannot be understood at {word!r}; {_HINT}")

    def _column(self) -> str:
        kind, word = self._next()
        name = word.strip("`")
        found = {known.lower(): known for known in self._types}.get(name.lower())
        if kind not in ("word", "quoted") or found is None:
            columns = ", ".join(self._types) or "none"
            raise OptionError(f"replaceWhere takes partition columns only ({columns}), not {name}")
        return found

    def _list(self, column: str) -> Sequence[Any]:
        self._keyword("(")
        values = [self._literal(column)]
        while self._peek() == ",":
            self._next()
            values.append(self._literal(column))
        self._keyword(")")
        return values

    def _literal(self, column: str) -> Any:
        kind, word = self._next()
        if kind == "word" and word.upper() in ("DATE", "TIMESTAMP"):
            kind, word = self._next()
        if kind == "text":
            word = unescape(word[1:-1], word[0])
        elif kind == "number" and self._types[column] == "string":
            raise OptionError(f"replaceWhere compares {column}, a string, with a number: write '{word}' in quotes")
        elif kind != "number" and word.lower() not in ("true", "false"):
            raise OptionError(f"replaceWhere needs a value instead of {word!r}; put texts and dates in single quotes")
        try:
            return _typed(word, self._types[column])
        except (ValueError, InvalidOperation):
            raise OptionError(
                f"replaceWhere compares {column} with {word!r}, which is not of type {self._types[column]}"
            ) from None

    def _keyword(self, wanted: str) -> None:
        _, word = self._next()
        if word.upper() != wanted:
            raise OptionError(f"replaceWhere needs {wanted} instead of {word!r}; {_HINT}")

    def _next(self) -> tuple[str, str]:
        if not self._tokens:
            raise OptionError(f"replaceWhere ends too early; {_HINT}")
        return self._tokens.pop(0)

    def _peek(self) -> str:
        return self._tokens[0][1].upper() if self._tokens else ""


def unescape(text: str, quote: str = "'") -> str:
    """Return what Spark reads between the quotes of a text.

    >>> print(unescape(r"it\\'s \\u0041\\%"))
    it's A\\%
    """

    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape is None:
            return quote if match[0][0] == quote else match[0]
        if len(escape) > 1:
            return chr(int(escape[1:], 16) if escape[0] == "u" else int(escape, 8))
        return _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(replaced, text)


def _typed(text: str | None, kind: str) -> Any:
    if text is None:
        return None
    if kind in ("byte", "short", "integer", "long"):
        return int(text)
    if kind.startswith("decimal"):
        return Decimal(text)
    if kind == "date":
        return date.fromisoformat(text)
    if kind in ("timestamp", "timestamp_ntz"):
        moment = datetime.fromisoformat(text.removesuffix("Z"))
        return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
    if kind in ("float", "double"):
        return float(text)
    if kind == "boolean":
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    return text
