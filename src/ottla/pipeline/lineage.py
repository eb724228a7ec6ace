"""Lineage: every row of every zone can be traced to the records it came from.

A row that comes from one record has the position of that record: `_topic`, `_partition`, `_offset`. All rows in raw,
staging and trusted have these columns, and rows in refined that were only filtered or reshaped.

A row that comes from several records, by a join or an aggregate, has `_lineage` instead: a list with one entry for each
partition that contributed, `{topic, partition, first, last}`. It has bounds instead of a list of offsets, so that the
state of a window grows with partitions and not with rows. In an aggregate, `first` and `last` are the smallest and the
largest offset of the records of that input in the group. Every record that contributed is in one of these partitions
between these offsets. To find it, filter the trusted table by partition, offsets and the keys of the row.

Three functions write that in a query. They are expanded before Spark sees the query:

- `lineage(a, b)`: a join of rows of `a` and `b`; exact, `first` equals `last`
- `lineage_range(a, b)`: an aggregate over rows of `a` and `b`
- `lineage_union(a)`: an aggregate over rows that have `_lineage` themselves

Without names in the parentheses, the columns have no table in front.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.pipeline.replaced_parts import ReplacedPart, written_position
from ottla.pipeline.sql import Flaw, Token, tokenize

TOPIC = "_topic"
PARTITION = "_partition"
OFFSET = "_offset"
TIMESTAMP = "_timestamp"
LINEAGE = "_lineage"
#: columns with the position of the record that a row comes from
RECORD_COLUMNS = (TOPIC, PARTITION, OFFSET)

#: columns of a raw table, in order, with their types
RAW_COLUMNS = {
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    TOPIC: "STRING",
    PARTITION: "INT",
    OFFSET: "BIGINT",
    TIMESTAMP: "TIMESTAMP",
    "_timestamp_type": "INT",
}
#: columns that decoding adds after the fields of the schema
DECODED_COLUMNS = {"_key": "BINARY", TOPIC: "STRING", PARTITION: "INT", OFFSET: "BIGINT", TIMESTAMP: "TIMESTAMP"}

_ROW = "struct({0}_topic AS topic, {0}_partition AS partition, {0}_offset AS first, {0}_offset AS last)"
_RANGE = (
    "transform(collect_set(struct({0}_topic AS topic, {0}_partition AS partition)), lineage_p -> "
    "struct(lineage_p.topic AS topic, lineage_p.partition AS partition, "
    "min({0}_offset) AS first, max({0}_offset) AS last))"
)
_UNION = "array_distinct(flatten(collect_set({0}_lineage)))"
FUNCTIONS = ("lineage", "lineage_range", "lineage_union")


@dataclass(frozen=True, slots=True)
class Expanded:
    """A query in which expressions have replaced the calls of lineage functions."""

    text: str
    calls: tuple[ReplacedPart, ...] = ()

    def written_at(self, position: int) -> int:
        """Return the position in the query as it was written; inside of an expression that of its call."""
        return written_position(position, self.calls)


def expand_lineage(sql: str) -> str:
    """Return the query as Spark reads it: calls of lineage functions are replaced by expressions.

    >>> expand_lineage("SELECT lineage_union(o) AS _lineage FROM o")
    'SELECT array_distinct(flatten(collect_set(o._lineage))) AS _lineage FROM o'
    """
    return expand(sql).text


def expand(sql: str) -> Expanded:
    """Return the query as Spark reads it, together with the parts that were replaced.

    >>> query = expand("SELECT lineage_union(o) AS _lineage, x FROM o")
    >>> query.written_at(query.text.index("x FROM"))
    37
    """
    tokens, flaws = tokenize(sql)
    if flaws:
        return Expanded(sql)
    calls: list[ReplacedPart] = []
    text = sql
    for at in range(len(tokens) - 1, -1, -1):
        call = _call_at(tokens, at)
        if call is not None:
            names, closing = call
            start, end = tokens[at].position, closing.position + 1
            expression = _expand(tokens[at].text.lower(), names)
            text = text[:start] + expression + text[end:]
            calls.append(ReplacedPart(start, end, len(expression)))
    return Expanded(text, tuple(reversed(calls)))


def lineage_flaws(sql: str) -> list[Flaw]:
    """Return the calls of lineage functions that cannot be expanded."""
    tokens, _ = tokenize(sql)
    return [
        Flaw(token.position, f"{token.text} takes names of tables and nothing else", f"write {token.text}(orders)")
        for at, token in enumerate(tokens)
        if _is_function(tokens, at) and _call_at(tokens, at) is None
    ]


def _is_function(tokens: list[Token], at: int) -> bool:
    return (
        tokens[at].kind == "word"
        and tokens[at].text.lower() in FUNCTIONS
        and at + 1 < len(tokens)
        and tokens[at + 1].is_sign("(")
    )


def _call_at(tokens: list[Token], at: int) -> tuple[list[str], Token] | None:
    if not _is_function(tokens, at):
        return None
    names: list[str] = []
    inside = tokens[at + 2 :]
    if inside and inside[0].is_sign(")"):
        return names, inside[0]
    for name, following in zip(inside[::2], inside[1::2], strict=False):
        if name.kind not in ("word", "quoted"):
            return None
        names.append(f"`{name.text}`." if name.kind == "quoted" else f"{name.text}.")
        if following.is_sign(")"):
            return names, following
        if not following.is_sign(","):
            return None
    return None


def _expand(function: str, names: list[str]) -> str:
    if function == "lineage":
        return f"array({', '.join(_ROW.format(name) for name in names or [''])})"
    template = _RANGE if function == "lineage_range" else _UNION
    parts = [template.format(name) for name in names or [""]]
    return parts[0] if len(parts) == 1 else f"concat({', '.join(parts)})"
