"""Which parts of a query the state of its operators depends on. Pure, and without Spark.

Spark keeps state for aggregations, DISTINCT and joins of streams. It checks the types in a checkpoint when a query
starts, not their meaning: after a change of the window's length, or of a grouping key to another column of the same
type, it continues with the old state and writes wrong results. `shape_of` therefore separates the parts of a query:

    group, aggregates, tables    the state was computed by them; a change needs a new state
    filters                      decide which rows enter or leave; a change applies from the next batch on
    items                        columns that are computed after the aggregation

A query that is not a single SELECT (WITH, UNION, FROM ... SELECT) has everything in `tables`: a part whose effect is
not certain counts as state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from ottla.pipeline.lineage import expand_lineage
from ottla.pipeline.sql import Token, read_query, tokenize

#: functions that are certainly no aggregates
_SCALAR = frozenset(
    {
        "abs", "array", "bigint", "bround", "cast", "ceil", "ceiling", "coalesce", "concat", "concat_ws",
        "date_format", "date_trunc", "day", "decimal", "double", "element_at", "floor", "from_unixtime",
        "get_json_object", "greatest", "hour", "if", "ifnull", "int", "isnotnull", "isnull", "least", "length",
        "lower", "ltrim", "minute", "month", "named_struct", "nullif", "nvl", "regexp_extract", "regexp_replace",
        "replace", "round", "rtrim", "second", "sign", "size", "split", "string", "struct", "substr", "substring",
        "to_date", "to_json", "to_timestamp", "trim", "try_cast", "unix_timestamp", "upper", "year",
    }
)  # fmt: skip
_CLAUSES = ("FROM", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "QUALIFY")
_SET_OPERATIONS = frozenset({"UNION", "INTERSECT", "EXCEPT", "MINUS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The parts of a query as normalised text."""

    #: tables in the order of the text, each as often as it is read
    reads: tuple[str, ...]
    tables: str
    group: str = ""
    aggregates: tuple[str, ...] = ()
    filters: str = ""
    items: tuple[str, ...] = ()
    #: the words GROUP, DISTINCT or JOIN, as far as the query has them
    words: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def shape_of(sql: str) -> Shape:
    """Return the parts of a query.

    >>> shape = shape_of("SELECT page AS p, count(*) AS n FROM clicks WHERE page > '' GROUP BY page")
    >>> shape.group, shape.aggregates, shape.filters, shape.items
    ('page', ('count ( * )',), "page > ''", ('page as p',))
    """
    text = expand_lineage(sql.strip().rstrip(";"))
    tokens, _ = tokenize(text)
    query = read_query(text)
    reads = tuple(token.text.lower() for token in query.tables)
    words = tuple(sorted(query.words & {"GROUP", "DISTINCT", "JOIN"}))
    top = {token.word for token in at_depth_0(tokens)}
    if not tokens or tokens[0].word != "SELECT" or top & _SET_OPERATIONS:
        return Shape(reads=reads, tables=_text(tokens), words=words)
    clauses = split_clauses(tokens)
    listed = clauses.pop("SELECT")
    distinct = [token for token in listed[:1] if token.word == "DISTINCT"]
    group = clauses.pop("GROUP", [])[1:]
    filters, rest = [], [*distinct]
    for name, clause in clauses.items():
        is_filter = name in ("WHERE", "HAVING") and not any(token.word == "SELECT" for token in clause)
        if is_filter and (name == "WHERE" or not calls_unknown(clause)):
            filters.append(_text(clause))
        else:
            rest += clause
    by_position = any(token.kind == "number" or token.word == "ALL" for token in at_depth_0(group))
    grouped = {token.text.lower() for token in group if token.kind in ("word", "quoted")}
    aggregates, items = [], []
    for item in split_commas(listed[len(distinct) :]):
        plain, alias = without_alias(item)
        if by_position or distinct or alias in grouped:
            aggregates.append(_text(item))
        elif calls_unknown(plain):
            aggregates.append(_text(plain))
        else:
            items.append(_text(item))
    return Shape(
        reads=reads,
        tables=_text(rest),
        group=_text(group),
        aggregates=tuple(aggregates),
        filters=" and ".join(filters),
        items=tuple(items),
        words=words,
    )


def at_depth_0(tokens: Sequence[Token]) -> Iterator[Token]:
    """Yield the tokens that are outside of all brackets."""
    depth = 0
    for token in tokens:
        depth -= token.is_sign(")", "]", "}")
        if depth == 0:
            yield token
        depth += token.is_sign("(", "[", "{")


def split_clauses(tokens: Sequence[Token]) -> dict[str, list[Token]]:
    """Return the clauses of a SELECT, each without its first word."""
    clauses: dict[str, list[Token]] = {"SELECT": []}
    current, depth = "SELECT", 0
    for at, token in enumerate(tokens[1:], 1):
        depth -= token.is_sign(")", "]", "}")
        # IS DISTINCT FROM is no clause, and before FROM the other words are columns.
        starts = depth == 0 and token.word in _CLAUSES and tokens[at - 1].word != "DISTINCT"
        starts = starts and (token.word == "FROM" or "FROM" in clauses)
        depth += token.is_sign("(", "[", "{")
        if starts and token.word not in clauses:
            current = token.word
            clauses[current] = []
        else:
            clauses[current].append(token)
    return clauses


def split_commas(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the parts between commas that are outside of brackets."""
    item: list[Token] = []
    outer = {token.position for token in at_depth_0(tokens) if token.is_sign(",")}
    for token in tokens:
        if token.position in outer:
            yield item
            item = []
        else:
            item.append(token)
    if item:
        yield item


def without_alias(item: Sequence[Token]) -> tuple[list[Token], str]:
    """Return an item of a SELECT without `AS name`, and the name in lower case; empty if it has none."""
    if len(item) > 2 and item[-2].word == "AS":
        return list(item[:-2]), item[-1].text.lower()
    return list(item), ""


def calls_unknown(tokens: Sequence[Token]) -> bool:
    """Return whether a function is called that may be an aggregate."""
    for token, following in pairwise(tokens):
        is_name = token.kind == "quoted" or (token.kind == "word" and token.word not in ("AND", "OR", "NOT", "IN"))
        if is_name and following.is_sign("(") and token.text.lower() not in _SCALAR:
            return True
    return False


def _text(tokens: Sequence[Token]) -> str:
    parts = []
    for token in tokens:
        if token.kind == "string":
            parts.append(f"'{token.text}'")
        else:
            parts.append(token.text.lower())
    return " ".join(parts)
