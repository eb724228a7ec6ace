"""Which columns of its inputs a query computes its columns from, without Spark. Pure.

Only a single SELECT over named tables is understood. Other queries (subqueries, WITH, UNION) have no lineage here,
because wrong lineage is worse than none. Names are resolved by the columns of the inputs: a name without a table must
belong to exactly one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ottla.pipeline.sql import Token, read_query, tokenize
from ottla.pipeline.sql_shape import calls_unknown, split_clauses, split_commas, without_alias

Kind = Literal["IDENTITY", "TRANSFORMATION", "AGGREGATION"]

#: words after a table that are not its alias
_NO_ALIAS = frozenset(
    {"JOIN", "ON", "LEFT", "RIGHT", "INNER", "FULL", "CROSS", "SEMI", "ANTI", "OUTER", "USING", "NATURAL"}
    | {"TABLESAMPLE"}
)
#: words in an expression that are not columns
_EXPRESSION_WORDS = frozenset(
    {"AND", "OR", "NOT", "NULL", "TRUE", "FALSE", "CASE", "WHEN", "THEN", "ELSE", "END", "IS", "IN", "LIKE", "BETWEEN"}
    | {"AS", "INTERVAL", "DISTINCT", "FROM", "STRING", "INT", "BIGINT", "DOUBLE", "DECIMAL", "DATE", "TIMESTAMP"}
    | {"MINUTE", "MINUTES", "HOUR", "HOURS", "DAY", "DAYS", "SECOND", "SECONDS", "BOOLEAN", "FLOAT", "BINARY"}
)


class InputColumn(NamedTuple):
    """A column of an input, by the name that the query gives the input."""

    table: str
    column: str


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """What a column of the result is computed from, and how."""

    kind: Kind
    columns: tuple[InputColumn, ...]


def column_lineage(sql: str, inputs: Mapping[str, Sequence[str]]) -> dict[str, ColumnSource]:
    """Return the lineage of the columns of a query, as far as it is certain; `inputs` have the columns by table.

    >>> found = column_lineage("SELECT o.id, round(o.amount * 2) AS twice FROM orders o", {"orders": ["id", "amount"]})
    >>> found["twice"]
    ColumnSource(kind='TRANSFORMATION', columns=(InputColumn(table='orders', column='amount'),))
    """
    tokens, flaws = tokenize(sql.strip().rstrip(";"))
    words = [token.word for token in tokens]
    if flaws or not tokens or words[0] != "SELECT" or words.count("SELECT") != 1:
        return {}
    clauses = split_clauses(tokens)
    scope = _Scope(sql.strip().rstrip(";"), clauses.get("FROM", []), inputs)
    listed = clauses["SELECT"]
    if listed and listed[0].word in ("DISTINCT", "ALL"):
        listed = listed[1:]
    found: dict[str, ColumnSource] = {}
    for item in split_commas(listed):
        found |= scope.resolve_item(item)
    return found


class _Scope:
    """The tables of a query and their columns."""

    def __init__(self, sql: str, clause: Sequence[Token], inputs: Mapping[str, Sequence[str]]) -> None:
        #: by lower-case name or alias, the input
        self._tables: dict[str, str] = {}
        known = {name.lower(): name for name in inputs}
        positions = {token.position: token.text.lower() for token in read_query(sql).tables}
        for at, token in enumerate(clause):
            name = known.get(positions.get(token.position, ""))
            if name is not None:
                self._tables[_alias(clause, at) or name.lower()] = name
        self._columns = {table: {one.lower(): one for one in inputs[name]} for table, name in self._tables.items()}

    def resolve_item(self, item: Sequence[Token]) -> dict[str, ColumnSource]:
        """Return the lineage of one item of a SELECT; several columns for a star, none if it is not certain."""
        if item and item[-1].is_sign("*"):
            return self._resolve_star(item)
        plain, alias = without_alias(item)
        references = list(self._references(plain))
        columns = tuple(dict.fromkeys(one for one in references if one is not None))
        is_column = len(references) == 1 and all(one.kind in ("word", "quoted") or one.is_sign(".") for one in plain)
        name = item[-1].text if alias or is_column else ""
        if not name or not columns or None in references:
            return {}
        kind: Kind = "IDENTITY" if is_column else "AGGREGATION" if calls_unknown(plain) else "TRANSFORMATION"
        return {name: ColumnSource(kind, columns)}

    def _resolve_star(self, item: Sequence[Token]) -> dict[str, ColumnSource]:
        tables = list(self._tables) if len(item) == 1 else [item[0].text.lower()] if len(item) == 3 else []
        found: dict[str, ColumnSource] = {}
        for table in tables:
            for column in self._columns.get(table, {}).values():
                found.setdefault(column, ColumnSource("IDENTITY", (InputColumn(self._tables[table], column),)))
        return found

    def _references(self, tokens: Sequence[Token]) -> Iterator[InputColumn | None]:
        """Yield the columns that an expression names; None for a name that may be one and is not known."""
        at = 0
        while at < len(tokens):
            token = tokens[at]
            following = tokens[at + 1] if at + 1 < len(tokens) else None
            at += 1
            if token.kind not in ("word", "quoted") or (following is not None and following.is_sign("(")):
                continue
            if following is not None and following.is_sign(".") and at + 1 < len(tokens):
                owner, member = token.text.lower(), tokens[at + 1].text.lower()
                at += 2
                column = self._columns.get(owner, {}).get(member)
                if column is not None:
                    yield InputColumn(self._tables[owner], column)
                else:
                    # A field of a struct column, or of a window.
                    yield self._unqualified(token)
                continue
            if token.kind == "word" and token.word in _EXPRESSION_WORDS:
                continue
            yield self._unqualified(token)

    def _unqualified(self, token: Token) -> InputColumn | None:
        name = token.text.lower()
        owners = [table for table, columns in self._columns.items() if name in columns]
        if len(owners) != 1:
            return None
        return InputColumn(self._tables[owners[0]], self._columns[owners[0]][name])


def _alias(clause: Sequence[Token], at: int) -> str | None:
    following = list(clause[at + 1 : at + 3])
    if following and following[0].word == "AS":
        following = following[1:]
    if following and following[0].kind in ("word", "quoted") and following[0].word not in _NO_ALIAS:
        return following[0].text.lower()
    return None
