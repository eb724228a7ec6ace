"""What is certain about the columns of a query without Spark: which it selects, and which have the origin of a row."""

from __future__ import annotations

from ottla.pipeline.lineage import LINEAGE, RECORD_COLUMNS
from ottla.pipeline.sdp.text import identifier
from ottla.pipeline.sql import Token, tokenize
from ottla.pipeline.sql_shape import at_depth_0, split_clauses, split_commas

#: EXCEPT is not here, because it also follows a star
_SET_OPERATIONS = frozenset({"UNION", "INTERSECT", "MINUS"})


def key_sql(column: str) -> str:
    """Return the key of a record, as text unless it is the key of the record that a row comes from."""
    # Keys of records are passed on as they are; they need not be text.
    return column if column == "_key" else f"CAST({identifier(column)} AS STRING)"


def headers_sql(lineage: str) -> str:
    """Return the headers of a record with the origin of its row: its position, or `_lineage`."""
    values = {LINEAGE: f"to_json({LINEAGE})"} if lineage == "lineage" else {
        name: f"CAST({name} AS STRING)" for name in RECORD_COLUMNS
    }  # fmt: skip
    each = ", ".join(f"named_struct('key', '{name}', 'value', CAST({text} AS BINARY))" for name, text in values.items())
    return f"array({each})"


def lineage_of_query(sql: str, known: str) -> str:
    """Return which lineage columns the result of a query surely has, if its inputs have `known`."""
    items = _selected(sql)
    names = {name.lower() for name in items if name}
    if LINEAGE in names:
        return "lineage"
    if set(RECORD_COLUMNS) <= names:
        return "record"
    return known if "*" in names else ""


def selects(sql: str, column: str) -> bool:
    """Return whether the result of a query surely has this column."""
    names = {name.lower() for name in _selected(sql)}
    return column.lower() in names or "*" in names


def _selected(sql: str) -> list[str]:
    """Return the names of the columns that a query selects, `*` for all of a table; empty if that is not certain."""
    tokens, flaws = tokenize(sql)
    outer = {token.position for token in at_depth_0(tokens)}
    start = next((at for at, one in enumerate(tokens) if one.position in outer and one.word == "SELECT"), None)
    if flaws or start is None:
        return []
    # The first of several queries names the columns.
    ends = (at for at, one in enumerate(tokens) if one.position in outer and one.word in _SET_OPERATIONS)
    end = next((at for at in ends if at > start), len(tokens))
    return [item[-1].text for item in split_commas(split_clauses(tokens[start:end])["SELECT"]) if _has_name(item)]


def _has_name(item: list[Token]) -> bool:
    """Return whether the last token of a selected expression is the name of its column, or a star."""
    if not item or not (item[-1].kind in ("word", "quoted") or item[-1].is_sign("*")):
        return False
    if len(item) == 1 or item[-2].is_sign("."):
        return True
    return not item[-1].is_sign("*") and (item[-2].kind != "sign" or item[-2].is_sign(")", "]"))
