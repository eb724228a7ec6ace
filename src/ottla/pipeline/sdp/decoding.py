"""Views of decoded records: how they are decoded, what a flow gets of them, and what goes to its quarantine. Pure.

A view has the decoded fields of each record, its key and position, and two columns that a flow does not get:

    __cause     why the record could not be decoded; NULL if it could
    __record    its key, value and headers
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ottla.pipeline.declaration import Source, Watermark
from ottla.pipeline.lineage import DECODED_COLUMNS, RAW_COLUMNS
from ottla.pipeline.sdp.formats import ExportedFormats
from ottla.pipeline.sdp.text import Relation, call_lines, identifier, literal, text_sql

_HIDDEN: Final = ("__cause", "__record")
#: columns with the position and time of the record
_POSITION: Final = tuple(column for column in DECODED_COLUMNS if column != "_key")


def view_body(source: Source, records: Relation, formats: ExportedFormats) -> list[str]:
    """Return the statements that decode the records of a source. Add the formats that they use to `formats`."""
    cause, fields = "__cause", ["__decoded.*"]
    body = [f"records = {records.python}"]
    if source.format in ("bytes", "string"):
        text = "CAST(value AS STRING)"
        fields = [f"{text} AS value" if source.format == "string" else "value"]
        not_text = f"CASE WHEN value IS NOT NULL AND NOT is_valid_utf8({text}) THEN 'not UTF-8' END"
        cause = not_text if source.format == "string" else "CAST(NULL AS STRING)"
        body.append("rows = records")
    else:
        constant = formats.value(source.name, source)
        more = ', headers="headers"' if source.registry is not None else ""
        body.append(f'rows = formats.decode(records, {constant}, into="__decoded", cause="__cause"{more})')
        cause = _cause_of_value(source)
    key = "CAST(key AS STRING) AS _key" if source.key_format == "string" else "key AS _key"
    if source.key_registry is not None:
        constant = formats.key(source.name, source)
        names = 'column="key", into="__decoded_key", cause="__key_cause", headers="headers"'
        body.append(f"rows = formats.decode(rows, {constant}, {names})")
        key = "__decoded_key AS _key"
        cause = f"coalesce({cause}, CASE WHEN key IS NOT NULL THEN concat('key: ', __key_cause) END)"
    named_cause = cause if cause == "__cause" else f"{cause} AS __cause"
    shown = [*fields, key, *_POSITION, named_cause, "struct(key, value, headers) AS __record"]
    body.append("return " + call_lines("rows", ".selectExpr", map(literal, shown)))
    return body


def _cause_of_value(source: Source) -> str:
    """Return the SQL expression of why a value with a schema could not be decoded, or lacks a field."""
    missing = [
        f" WHEN value IS NOT NULL AND __decoded.{identifier(column.name)} IS NULL"
        f" THEN {text_sql(f'{column.name} is null')}"
        for column in source.columns
        if not column.nullable
    ]
    cause = "CASE WHEN value IS NOT NULL THEN __cause END" if source.null_values == "keep" else "__cause"
    return f"CASE WHEN {cause} IS NOT NULL THEN {cause}{''.join(missing)} END" if missing else cause


def decoded_rows(view: Relation, watermark: Watermark | None) -> Relation:
    """Return the rows that a flow gets of a view: the records that could be decoded."""
    return replace(view, condition="__cause IS NULL", hidden=_HIDDEN, watermark=watermark)


def undecoded_body(view: Relation) -> list[str]:
    """Return the statements that compute the rows in quarantine of a view: the records that could not be decoded."""
    columns = ["__cause AS _cause", *_POSITION, "__record.*"]
    return [
        f"rows = {replace(view, condition='__cause IS NOT NULL').python}",
        f"return rows.selectExpr({', '.join(map(literal, columns))})",
    ]


def columns_beside_undecoded(*, have_position: bool) -> tuple[str, ...]:
    """Return the columns of other rows in a quarantine: the same as those of records that could not be decoded."""
    position = [
        column if have_position else f"CAST(NULL AS {DECODED_COLUMNS[column]}) AS {column}" for column in _POSITION
    ]
    record = [f"CAST(NULL AS {RAW_COLUMNS[column]}) AS {column}" for column in ("key", "value", "headers")]
    return (*position, *record)
