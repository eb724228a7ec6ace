"""Whether the rows of a flow fit the table that is there. Pure.

Without Spark the columns of some flows are known (`table_problem`), with Spark those of all (`schema_problem`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.pipeline.declaration import TableSink
from ottla.pipeline.layout import partition_name
from ottla.pipeline.schema import SIMPLE_TYPES
from ottla.spark.table_schema import HISTORY_COLUMNS, Schema, SchemaMismatch, merge

_FIELD = re.compile(r"(?:`((?:[^`]|``)*)`|(\w+)): (.+)", re.S)
#: Spark's JSON names of types that have other names in SQL
_JSON_NAMES = {"TINYINT": "byte", "SMALLINT": "short", "INT": "integer", "BIGINT": "long"}


def table_problem(
    sink: TableSink, columns: Mapping[str, str] | None, table: Schema, partitioned_by: Sequence[str]
) -> str | None:
    """Return why a table does not take the rows of a flow, None if it does or if the columns are not known."""
    rows = None if columns is None else {"type": "struct", "fields": _fields(columns.items())}
    return schema_problem(sink, rows, table, partitioned_by)


def schema_problem(sink: TableSink, rows: Schema | None, table: Schema, partitioned_by: Sequence[str]) -> str | None:
    """Return why a table does not take rows with this schema, None if it does or if the schema is not known."""
    wanted = [partition_name(one) for one in sink.partition_by]
    if wanted and wanted != list(partitioned_by):
        before = ", ".join(partitioned_by) or "nothing"
        return f"the table is partitioned by {before}, not by {', '.join(wanted)}"
    has_history = {field["name"] for field in table["fields"]}.issuperset(HISTORY_COLUMNS)
    if sink.keys and sink.history != has_history:
        written = "with" if has_history else "without"
        return f"history is {str(sink.history).lower()}, and the table was written {written} it"
    if rows is None:
        return None
    try:
        merge(table, rows, grow=sink.merge_schema)
    except SchemaMismatch as error:
        return in_pipeline_words(str(error)).replace(": cast it", "")
    return None


def in_pipeline_words(text: str) -> str:
    """Return the message of an error of a table with the keys of a pipeline in place of options of Spark."""
    return text.replace("set mergeSchema to true", "write merge_schema: true")


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
    assert word in SIMPLE_TYPES.values() or word.startswith("DECIMAL("), f"{text} is not a type"
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
