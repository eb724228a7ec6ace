"""Records as rows of a page, and as lines of a file."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any, Final

from ottla.edge.console.records import showing
from ottla.edge.console.records.decoding import Decoded, LazyPart, compact
from ottla.edge.console.records.view import RecordView

_KEY_CHARACTERS: Final = 120
_HEADERS_MAX: Final = 8
_HEADER_CHARACTERS: Final = 60
CSV_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
#: a spreadsheet takes a cell that begins with one of these for a formula
_FORMULA_SIGNS: Final = ("=", "+", "-", "@", "\t", "\r")


def row_of(view: RecordView) -> dict[str, Any]:
    """Return a record as a row of a list: values of JSON, cut to a line each."""
    return {
        "partition": view.partition, "offset": view.offset, "timestamp_ms": view.timestamp,
        "has_append_time": view.has_append_time, "transaction": view.state, "size": view.size,
        "key": _cell(view.key, _KEY_CHARACTERS), "value": _cell(view.value, showing.LINE_CHARACTERS),
        "headers": [
            {
                "name": showing.visible(name[:_HEADER_CHARACTERS]),
                "value": None if value is None else showing.visible(value[:_HEADER_CHARACTERS]),
            }
            for name, value in view.headers[:_HEADERS_MAX]
        ],
        "header_count": len(view.headers),
    }  # fmt: skip


def _cell(part: LazyPart, limit: int) -> dict[str, Any]:
    decoded = part.decoded
    text, is_cut = showing.line(decoded, limit)
    return {
        "text": text, "is_cut": is_cut, "kind": decoded.kind, "size": len(part.bytes or b""),
        "schema_id": decoded.schema_id, "problem": decoded.problem,
    }  # fmt: skip


def json_line(topic: str, view: RecordView) -> str:
    """Return a whole record as one line of JSON."""
    row = {
        "topic": topic, "partition": view.partition, "offset": view.offset, "timestamp_ms": view.timestamp,
        "key": content(view.key.decoded, view.key.bytes), "value": content(view.value.decoded, view.value.bytes),
        "headers": [list(each) for each in view.headers],
    }  # fmt: skip
    if view.state:
        row["transaction"] = view.state
    return json.dumps(row) + "\n"


def content(decoded: Decoded, data: bytes | None) -> Any:
    """Return a key or a value for a file: the JSON value, a text, or {"hex": …} for other bytes."""
    if decoded.kind == "binary":
        return {"hex": (data or b"").hex()}
    return decoded.data if decoded.has_structure else decoded.text


def csv_line(topic: str, view: RecordView) -> str:
    """Return a record as a line of CSV. Cells that a spreadsheet would run get a quote in front."""
    when = _iso(view.timestamp)
    parts = [_csv_text(part) for part in (view.key, view.value)]
    headers = json.dumps([list(each) for each in view.headers])
    return csv_row([topic, view.partition, view.offset, when, *parts, headers])


def csv_row(cells: list[Any]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(
        [f"'{each}" if isinstance(each, str) and each.startswith(_FORMULA_SIGNS) else each for each in cells]
    )
    return out.getvalue()


def _csv_text(part: LazyPart) -> str:
    found = content(part.decoded, part.bytes)
    text = "" if found is None else found if isinstance(found, str) else compact(found)
    return text.replace("\0", "\\x00")


def _iso(ms: int) -> str:
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return str(ms)
