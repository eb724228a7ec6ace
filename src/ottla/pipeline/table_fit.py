"""Whether the rows of a flow fit the table that is there, as far as their columns are known without Spark. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.pipeline.declaration import TableSink
from ottla.pipeline.layout import partition_name
from ottla.pipeline.schema import SIMPLE_TYPES
from ottla.spark.table_schema import HISTORY_COLUMNS, Schema, SchemaMismatch, merge

_FIELD = re.compile(r"(?:`((?:[^`]|``)*)`|(\w+)): (.+)", re.S)
#: Spark's JSON names of types that are spelt otherwise in SQL
_JSON_NAMES = {"TINYINT": "byte", "SMALLINT": "short", "INT": "integer", "BIGINT": "long"}


def table_problem(
    sink: TableSink, columns: Mapping[str, str] | None, table: Schema, partitioned_by: Sequence[str]
) -> str | None:
    """Return why a table does not take the rows of a flow, None if it does or if the columns are not known."""
    wanted = [partition_name(one) for one in sink.partition_by]
    if wanted and wanted != list(partitioned_by):
        before = ", ".join(partitioned_by) or "nothing"
        return f"the table is partitioned by {before}, not by {', '.join(wanted)}"
    has_history = {field["name"] for field in table["fields"]}.issuperset(HISTORY_COLUMNS)
    if sink.keys and sink.history != has_history:
        written = "with" if has_history else "without"
        return f"history is {str(sink.history).lower()}, and the table was written {written} it"
    if columns is None:
        return None
    try:
        merge(table, {"type": "struct", "fields": _fields(columns.items())}, grow=sink.merge_schema)
    except SchemaMismatch as error:
        return str(error).replace("set mergeSchema to true", "write merge_schema: true").replace(": cast it", "")
    return None


def json_type(text: str) -> Any:
    """Return a type of Spark SQL as Spark's JSON has it.

    >>> json_type("ARRAY<STRUCT<`id`: BIGINT, `price`: DECIMAL(10,2)>>")["elementType"]["fields"][1]["type"]
    'decimal(10,2)'
    """
    text = text.strip().removesuffix(" NOT NULL")
    word, _, inner = text.partition("<")
    inner = inner.removesuffix(">")
    if word == "ARRAY":
        return {"type": "array", "elementType": json_type(inner), "containsNull": True}
    if word == "MAP":
        key, value = _split(inner)
        return {"type": "map", "keyType": json_type(key), "valueType": json_type(value), "valueContainsNull": True}
    if word == "STRUCT":
        fields = [_FIELD.fullmatch(one.strip()) for one in _split(inner)]
        return {"type": "struct", "fields": _fields((one[1] or one[2], one[3]) for one in fields if one is not None)}
    if word.startswith(("CHAR(", "VARCHAR(")):
        return "string"
    assert word in SIMPLE_TYPES.values() or word.startswith("DECIMAL("), f"{text} is no type"
    return _JSON_NAMES.get(word, word.lower())


def _fields(columns: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"name": name, "type": json_type(kind), "nullable": True, "metadata": {}} for name, kind in columns]


def _split(text: str) -> list[str]:
    """Split at commas that are outside of brackets and backticks."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, sign in enumerate(text):
        quoted ^= sign == "`"
        depth += not quoted and sign in "<("
        depth -= not quoted and sign in ">)"
        if sign == "," and depth == 0 and not quoted:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]
