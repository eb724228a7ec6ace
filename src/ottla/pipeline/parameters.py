"""Values of parameters, and how `${name}` is replaced by them.

In SQL a value becomes one literal of its type: a text with a quote in it, or a negative number after a minus, cannot
change the query around it. For the same reason `${name}` must be a token of its own there: inside of quotes, or as part
of a name, it is a problem. Elsewhere in a document the text of the value is inserted; a scalar that is nothing but
`${name}` also gets the type of the value. `$${` stands for the characters `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from ottla.pipeline.document import Kind, Node, Written
from ottla.pipeline.problems import Place, Problems, suggestion
from ottla.pipeline.replaced_parts import ReplacedPart
from ottla.pipeline.sql import end_of_comment, end_of_quoted

#: the text of a secret in output, and of a secret that a command does not use and did not get
HIDDEN_VALUE = "***"

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(?P<name>[^{}\n]*)\}?")
#: what matters in SQL: comments, quotes, placeholders
_IN_SQL = re.compile(r"--[^\n]*|/\*|(?P<raw>(?<!\w)[rR])?(?P<quote>['\"`])|\$\$\{|\$\{(?P<name>[^{}\n]*)\}?")
#: characters that must not stand next to a literal, because the literal would become a part of them
_JOINED = re.compile(r"[\w'\"`.$]")
_INTEGERS = {"int": 31, "bigint": 63}
_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_KINDS: dict[str, Kind] = {
    "int": "number",
    "bigint": "number",
    "decimal": "number",
    "double": "number",
    "boolean": "flag",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a parameter: its type and its text in one spelling."""

    type: str
    text: str
    is_secret: bool = False

    @classmethod
    def parse(cls, type: str, text: str, *, is_secret: bool = False) -> Value:
        """Return the value that a text stands for. Raise ValueError with what to write instead.

        >>> Value.parse("decimal", "1.50").sql, Value.parse("string", "it's").sql
        ('1.50BD', "'it\\\\'s'")
        """
        return cls(type, _normalised(type, text), is_secret)

    @property
    def sql(self) -> str:
        """The value as one literal of Spark SQL."""
        if self.type == "string":
            # Spark replaces ${...} in queries as well, by settings and environment variables.
            quoted = re.sub(r"[\\'\n\r\0]", lambda match: _ESCAPES[match[0]], self.text)
            return "'" + quoted.replace("${", "\\u0024{") + "'"
        if self.type == "boolean":
            return self.text.upper()
        if self.type in ("date", "timestamp"):
            return f"{self.type.upper()} '{self.text}'"
        number = self.text + {"int": "", "bigint": "L", "decimal": "BD", "double": "D"}[self.type]
        # After a minus, a second one would begin a comment.
        return f"({number})" if number.startswith("-") else number

    @property
    def python(self) -> str | int | Decimal | float | bool | date | datetime:
        """The value as an object of Python."""
        if self.type in _INTEGERS:
            return int(self.text)
        if self.type == "boolean":
            return self.text == "true"
        if self.type == "timestamp":
            return datetime.fromisoformat(self.text)
        parse: dict[str, Callable[[str], Any]] = {"decimal": Decimal, "double": float, "date": date.fromisoformat}
        return parse.get(self.type, str)(self.text)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Substitution:
    """Replaces parameters in a document."""

    values: Mapping[str, Value]
    problems: Problems
    #: paths from the root to scalars that are SQL, `*` for any name; lists are no part of a path
    sql_paths: frozenset[tuple[str, ...]]
    #: keys of the root whose content is never shown
    secret_keys: frozenset[str]
    #: keys of the root whose content stays as it is
    fixed_keys: frozenset[str]
    #: names of the parameters that were replaced
    used: set[str] = field(default_factory=set)

    def apply(self, root: Node) -> Node:
        """Return the document with all parameters replaced. Unknown names are problems, and stay."""
        if root.kind != "mapping":
            return root
        entries = (
            (key, value if key.text in self.fixed_keys else self._replace(value, (key.text,)))
            for key, value in root.entries
        )
        return replace(root, entries=tuple(entries))

    def _replace(self, node: Node, path: tuple[str, ...]) -> Node:
        if node.kind == "mapping":
            entries = ((key, self._replace(value, (*path, key.text))) for key, value in node.entries)
            return replace(node, entries=tuple(entries))
        if node.kind == "list":
            return replace(node, items=tuple(self._replace(item, path) for item in node.items))
        if node.kind != "text" or "${" not in node.text or path[-1] == "description":
            return node
        general = (path[0], "*", *path[2:]) if len(path) > 1 else path
        if general in self.sql_paths:
            return self.in_sql(node)
        return self._in_text(node, may_be_secret=path[0] in self.secret_keys)

    def in_sql(self, node: Node) -> Node:
        """Return a scalar of SQL with literals in place of parameters."""
        text, replaced = "", []
        end = 0
        for start, stop, literal in self._literals(node):
            text += node.text[end:start] + literal
            replaced.append(ReplacedPart(start, stop, len(literal)))
            end = stop
        if not replaced:
            return node
        return replace(node, text=text + node.text[end:], written=Written(node.text, tuple(replaced)))

    def _literals(self, node: Node) -> Iterator[tuple[int, int, str]]:
        text, position = node.text, 0
        while (match := _IN_SQL.search(text, position)) is not None:
            position = match.end()
            if match[0] == "/*":
                position = end_of_comment(text, match.start()) or len(text)
            elif match["quote"]:
                opening = match.start("quote")
                position = end_of_quoted(text, opening, raw=match["raw"] is not None) or len(text)
                yield from self._in_quotes(node, opening, position)
            elif match[0] == "$${":
                yield match.start(), match.end(), "${"
            elif match["name"] is not None:
                place = node.as_text().place_of(match.start())
                value = self._value(match["name"], match[0], place, may_be_secret=False)
                around = text[match.start() - 1 : match.start()], text[match.end() : match.end() + 1]
                if value is not None and any(map(_JOINED.match, around)):
                    what = f"{match[0]} is a literal in SQL and cannot be a part of a name or text"
                    self.problems.add(place, what, f"put space around it; for a column write IDENTIFIER({match[0]})")
                elif value is not None:
                    yield match.start(), match.end(), value.sql

    def _in_quotes(self, node: Node, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        for match in _PLACEHOLDER.finditer(node.text, start, end):
            if match[0] == "$${":
                yield match.start(), match.end(), "${"
                continue
            what = f"{match[0]} is inside of quotes, where it is not replaced"
            advice = f"remove the quotes: it becomes a literal; for the characters write $${match[0][1:]}"
            self.problems.add(node.as_text().place_of(match.start()), what, advice)

    def _in_text(self, node: Node, *, may_be_secret: bool) -> Node:
        found: list[Value] = []

        def text_of(match: re.Match[str]) -> str:
            if match["name"] is None:
                return "${"
            value = self._value(match["name"], match[0], node.place, may_be_secret=may_be_secret)
            if value is None:
                return match[0]
            found.append(value)
            return value.text

        text = _PLACEHOLDER.sub(text_of, node.text)
        is_whole = _PLACEHOLDER.fullmatch(node.text) is not None and bool(found)
        kind = _KINDS.get(found[0].type, "text") if is_whole else "text"
        return replace(node, text=text, kind=kind, indent=None)

    def _value(self, name: str, written: str, place: Place, *, may_be_secret: bool) -> Value | None:
        value = self.values.get(name)
        if value is None or not written.endswith("}"):
            none = "declare it under 'parameters'; for the characters themselves write $${"
            self.problems.add(place, f"{written} is not a parameter", suggestion(name, self.values, none=none))
            return None
        if value.is_secret and not may_be_secret:
            where = " and ".join(f"'{key}'" for key in sorted(self.secret_keys))
            self.problems.add(place, f"the secret {written} would become visible here", f"use secrets in {where} only")
            return None
        self.used.add(name)
        return value


def _normalised(type: str, text: str) -> str:
    """Return the one spelling of a value. Raise ValueError with what to write instead."""
    if type == "string":
        return text
    text = text.strip()
    if type in _INTEGERS:
        bound = 1 << _INTEGERS[type]
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text) or not -bound <= int(text) < bound:
            raise ValueError(f"a whole number of {_INTEGERS[type] + 1} bits")
        return str(int(text))
    if type == "decimal":
        return _normalised_decimal(text)
    if type == "double":
        return _normalised_double(text)
    if type == "boolean":
        if text.lower() not in ("true", "false"):
            raise ValueError("true or false")
        return text.lower()
    try:
        if type == "date":
            return date.fromisoformat(text).isoformat()
        moment = datetime.fromisoformat(text)
    except ValueError:
        example = "a date such as 2026-01-31" if type == "date" else "a time such as 2026-01-31T12:00:00Z"
        raise ValueError(example) from None
    if moment.tzinfo is None:
        raise ValueError("a time with a time zone, such as 2026-01-31T12:00:00Z")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _normalised_decimal(text: str) -> str:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise ValueError("a decimal number such as 19.90") from None
    plain = f"{number:f}" if number.is_finite() and abs(number.adjusted()) < 38 else ""
    if not plain or len(re.sub(r"\D", "", plain).lstrip("0")) > 38:
        raise ValueError("a decimal number of at most 38 digits")
    return plain


def _normalised_double(text: str) -> str:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("a number such as 0.5") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("a finite number such as 0.5")
    return repr(number)
