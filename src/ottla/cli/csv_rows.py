"""Rows as CSV (RFC 4180): a line of column names, then a line for each row, each ended by CR and LF.

Columns are the fields of the JSON output, in its order. A nested object has a column for each of its fields, such as
`coordinator.host`. The items of a list of plain values are joined by semicolons, with a backslash before a semicolon or
backslash in an item; a list of objects is JSON text.
Nothing stands for null, and `""` for an empty text. Numbers, times and true or false are written as in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

#: spreadsheets take a text that starts with one of these for a formula, also after a line end
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
_QUOTED = frozenset('",\r\n')
_LIST_SEPARATOR = ";"


def format_csv(rows: Iterable[Mapping[str, Any]], fields: Sequence[str] = (), *, safe: bool = False) -> Iterator[str]:
    """Yield the lines of a table. `fields` are the first columns, which it also has without rows.

    With `safe`, a text that a spreadsheet would compute gets an apostrophe in front.
    """
    flat = [_flatten(row) for row in rows]
    names = dict.fromkeys((*fields, *(name for row in flat for name in row)))
    # A nested object that is null in one row has columns in another one.
    null = {name for name in names if all(row.get(name) is None for row in flat)}
    nested = {name for name in null if any(other.startswith(f"{name}.") for other in names)}
    columns = [name for name in names if name not in nested]
    yield csv_line(columns, safe=safe)
    for row in flat:
        yield csv_line([row.get(name) for name in columns], safe=safe)


def csv_line(values: Iterable[Any], *, safe: bool = False) -> str:
    """Return the values as one line with its end.

    >>> csv_line(["a,b", None, "", [1, 2], True, -1])
    '"a,b",,"",1;2,true,-1\\r\\n'
    >>> csv_line(["=1+2", "-1", -1], safe=True)
    "'=1+2,'-1,-1\\r\\n"
    """
    return ",".join([_quote(_text(value, safe=safe)) for value in values]) + "\r\n"


def _text(value: Any, *, safe: bool) -> str | None:
    if value is None:
        return None
    if isinstance(value, list | tuple):
        if any(isinstance(item, list | tuple | Mapping) for item in value):
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        else:
            items = [_text(item, safe=False) or "" for item in value]
            text = _LIST_SEPARATOR.join(item.replace("\\", r"\\").replace(_LIST_SEPARATOR, r"\;") for item in items)
    elif isinstance(value, bool | int | float | Mapping):
        return json.dumps(value, ensure_ascii=False)
    else:
        text = str(value)
    return f"'{text}" if safe and text.startswith(_FORMULA_STARTS) else text


def _quote(text: str | None) -> str:
    if text is None:
        return ""
    if not text or not _QUOTED.isdisjoint(text) or text[0] == " " or text[-1] == " ":
        return '"' + text.replace('"', '""') + '"'
    return text


def _flatten(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping) and value:
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = None if isinstance(value, Mapping) else value
    return flat
