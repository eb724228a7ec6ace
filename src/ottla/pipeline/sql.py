"""SQL without Spark: its tokens, certain errors, and the tables that it reads.

Spark's own analysis comes later (`validate --deep`, or the start of a run). A query that Spark accepts must never be
refused here, so only certain errors are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

TokenKind = Literal["word", "quoted", "string", "number", "sign"]

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
      | (?P<comment>/\*)
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:[lLsSyYdDfF]|[bB][dD])?(?![\w]))
      | (?P<raw>[rR](?=['"]))
      | (?P<word>\w+)
      | (?P<open>['"`])
      | (?P<sign><=>|>>>|\|>|<=|>=|<>|!=|!<|!>|==|\|\||->|=>|::|>>|<<|[-+*/%&|^~!=<>()\[\],.;:?@{}$])
    """,
    re.X,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
_PAIRS = {")": "(", "]": "[", "}": "{"}
#: a parenthesis that begins with one of these holds a query
_QUERY_WORDS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE"})
#: words after which commas no longer separate tables
_FROM_ENDS = frozenset(
    {"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "WINDOW", "UNION", "INTERSECT", "EXCEPT", "MINUS", "QUALIFY"}
    | {"CLUSTER", "DISTRIBUTE", "SORT", "LATERAL", "VALUES", "SELECT", "PIVOT", "UNPIVOT", "OFFSET"}
)
#: words that a query cannot end with
_CONTINUED = frozenset({"WHERE", "AND", "OR", "FROM", "JOIN", "BY"})
#: words that may stand where a table is expected and are none
_NO_TABLE = frozenset({"LATERAL", "VALUES", "TABLE", "STREAM", "SELECT", "WITH", "FROM"})


class Token(NamedTuple):
    """A piece of SQL. `text` of a quoted identifier is without its backticks."""

    kind: TokenKind
    text: str
    position: int

    @property
    def word(self) -> str:
        """The keyword this may be: upper case, or nothing."""
        return self.text.upper() if self.kind == "word" else ""

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs


class Flaw(NamedTuple):
    """Something that is surely wrong, and where in the text."""

    position: int
    what: str
    instead: str


@dataclass(frozen=True, slots=True)
class Query:
    """What is known of a query."""

    flaws: tuple[Flaw, ...]
    #: names of one part that are read as tables, with their positions; not those the query defines itself
    tables: tuple[Token, ...]
    #: every word outside strings and comments, in upper case
    words: frozenset[str]
    #: the result surely has no lineage: neither a star nor the names of lineage columns nor a lineage function
    drops_lineage: bool


def tokenize(text: str) -> tuple[list[Token], list[Flaw]]:
    """Split SQL into tokens; brackets that do not match and quotes that do not end are flaws."""
    tokens: list[Token] = []
    flaws: list[Flaw] = []
    position, raw = 0, False
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            flaws.append(_strange_character(text, position))
            position += 1
            continue
        kind, start, position = match.lastgroup, position, match.end()
        if kind == "comment":
            end = end_of_comment(text, start)
            if end is None:
                flaws.append(Flaw(start, "this comment does not end", "close it with */"))
                break
            position = end
        elif kind == "open":
            end = end_of_quoted(text, start, raw=raw)
            if end is None:
                what = "identifier in backticks" if text[start] == "`" else "text in quotes"
                flaws.append(Flaw(start, f"this {what} does not end", f"close it with {text[start]}"))
                break
            inner = text[start + 1 : end - 1]
            tokens.append(Token("quoted" if text[start] == "`" else "string", inner.replace("``", "`"), start))
            position = end
        elif kind in ("number", "word", "sign"):
            tokens.append(Token(kind, match[0], start))  # type: ignore[arg-type]
        raw = kind == "raw"
    if not flaws:
        flaws.extend(_bracket_flaws(tokens))
    return tokens, flaws


def read_query(text: str) -> Query:
    """Return what is known of one query: SELECT, WITH, FROM or VALUES."""
    tokens, flaws = tokenize(text)
    while tokens and tokens[-1].is_sign(";"):
        tokens.pop()
    if not flaws:
        flaws.extend(_shape_flaws(tokens))
    tables = () if flaws else tuple(_tables_read(tokens))
    words = frozenset(token.word for token in tokens if token.kind == "word")
    names = {token.text.lower() for token in tokens if token.kind in ("word", "quoted")}
    carried = (
        {"_topic", "_partition", "_offset"} <= names
        or bool(names & {"_lineage", "lineage", "lineage_range", "lineage_union"})
        or any(_is_star(tokens, at) for at in range(len(tokens)))
        or bool(words & {"TABLE", "VALUES"})
    )
    # FROM-first and pipe queries need no SELECT: their result has every column of the table.
    starts_from = bool(tokens) and tokens[0].word == "FROM"
    return Query(tuple(flaws), tables, words, drops_lineage=not carried and not starts_from)


def _shape_flaws(tokens: Sequence[Token]) -> Iterator[Flaw]:
    if not tokens:
        yield Flaw(0, "there is no query", "write SELECT ... FROM an input")
        return
    first = next((token for token in tokens if not token.is_sign("(")), tokens[0])
    if first.word not in _QUERY_WORDS and first.word not in ("MAP", "REDUCE"):
        yield Flaw(
            first.position, f"a step is a query, and none begins with {first.text!r}", "begin with SELECT or WITH"
        )
    for token in tokens:
        if token.is_sign(";"):
            yield Flaw(token.position, "a second statement begins after this ;", "make it a step of its own")
            return
    last = tokens[-1]
    if last.is_sign(",", "=", "<", ">", "+", "-", "/", ".") or last.word in _CONTINUED:
        yield Flaw(last.position, f"the query ends after {last.text!r}", "finish it, or remove that")
    for one, two in pairwise(tokens):
        if one.is_sign(",") and (two.is_sign(",", ")") or two.word == "FROM"):
            yield Flaw(one.position, f"nothing stands between ',' and {two.text!r}", "remove the comma or add a column")


@dataclass(slots=True)
class _Frame:
    """One level of parentheses."""

    #: what is inside is a query, or tables in parentheses
    query: bool
    in_from: bool = False
    table_next: bool = False


def _tables_read(tokens: Sequence[Token]) -> Iterator[Token]:
    defined = set(_defined_names(tokens))
    frames = [_Frame(query=True)]
    for at, token in enumerate(tokens):
        frame = frames[-1]
        following = tokens[at + 1] if at + 1 < len(tokens) else None
        before = tokens[at - 1] if at else None
        if token.is_sign("("):
            holds_query = following is not None and following.word in _QUERY_WORDS
            # FROM ( a JOIN b ) holds tables; FROM ( SELECT ... ) a query; everything else expressions.
            tables_inside = frame.query and frame.table_next and not holds_query
            frame.table_next = False
            frames.append(_Frame(query=holds_query or tables_inside, table_next=tables_inside, in_from=tables_inside))
        elif token.is_sign(")"):
            if len(frames) > 1:
                frames.pop()
        elif not frame.query:
            continue
        elif token.is_sign(","):
            frame.table_next = frame.in_from
        elif token.word == "FROM" and not _is_distinct_from(tokens, at):
            frame.in_from = frame.table_next = True
        elif token.word == "JOIN":
            frame.table_next = True
        elif frame.table_next and token.kind in ("word", "quoted") and token.word not in _NO_TABLE:
            frame.table_next = False
            parts = (following is not None and following.is_sign(".", "(")) or (
                before is not None and before.is_sign(".")
            )
            if not parts and token.text.lower() not in defined:
                yield token
        elif token.word in _FROM_ENDS:
            frame.in_from = False
            # `, LATERAL` and `JOIN LATERAL` are followed by a function or a query, not by a table.
            frame.table_next = False
        elif token.word != "STREAM":
            frame.table_next = frame.table_next and token.word in _NO_TABLE


def _defined_names(tokens: Sequence[Token]) -> Iterator[str]:
    """Yield the names that a query defines itself: WITH name AS (, WITH name (columns) AS (."""
    for at, token in enumerate(tokens):
        before = tokens[at - 1] if at else None
        if token.kind not in ("word", "quoted") or before is None:
            continue
        if not (before.word in ("WITH", "RECURSIVE") or before.is_sign(",")):
            continue
        rest = list(tokens[at + 1 : at + 200])
        if rest and rest[0].is_sign("("):
            closing = next((index for index, one in enumerate(rest) if one.is_sign(")")), None)
            rest = rest[closing + 1 :] if closing is not None else []
        if len(rest) > 1 and rest[0].word == "AS" and rest[1].is_sign("("):
            yield token.text.lower()


def _is_distinct_from(tokens: Sequence[Token], at: int) -> bool:
    return at >= 2 and tokens[at - 1].word == "DISTINCT" and tokens[at - 2].word in ("IS", "NOT")


def _is_star(tokens: Sequence[Token], at: int) -> bool:
    if not tokens[at].is_sign("*") or at == 0:
        return False
    before = tokens[at - 1]
    return before.word in ("SELECT", "DISTINCT", "ALL") or before.is_sign(",", ".")


def _bracket_flaws(tokens: Sequence[Token]) -> Iterator[Flaw]:
    opened: list[Token] = []
    for token in tokens:
        if token.is_sign("(", "[", "{"):
            opened.append(token)
        elif token.is_sign(")", "]", "}"):
            if not opened or opened[-1].text != _PAIRS[token.text]:
                yield Flaw(
                    token.position, f"nothing was opened that {token.text!r} closes", "remove it or open it first"
                )
                return
            opened.pop()
    for token in opened:
        closing = next(close for close, open_ in _PAIRS.items() if open_ == token.text)
        yield Flaw(token.position, f"this {token.text!r} is never closed", f"close it with {closing!r}")


def end_of_comment(text: str, start: int) -> int | None:
    """Return the end of a comment that begins with `/*` at `start`; None if it does not end. Comments nest in Spark."""
    depth = 0
    for match in _COMMENT_MARK.finditer(text, start):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return None


def end_of_quoted(text: str, start: int, *, raw: bool) -> int | None:
    """Return the end of the text in quotes, or name in backticks, that begins at `start`; None if it does not end."""
    quote, position = text[start], start + 1
    while position < len(text):
        sign = text[position]
        if sign == "\\" and quote != "`" and not raw:
            position += 2
        elif sign != quote:
            position += 1
        elif text.startswith(quote * 2, position):
            position += 2
        else:
            return position + 1
    return None


def _strange_character(text: str, position: int) -> Flaw:
    sign = text[position]
    plain = {"“": '"', "”": '"', "‘": "'", "’": "'", "–": "-", "≠": "!=", "≤": "<=", "≥": ">="}.get(sign)
    return Flaw(position, f"{sign!r} is not SQL", f"write {plain}" if plain else "remove it, or put it in quotes")
