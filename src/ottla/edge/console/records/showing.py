"""Parts of a page of a record: one line, a tree, a table of bytes. All are limited, whatever the record has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from ottla.edge.console.records.decoding import KINDS, Decoded

#: characters of a key or value in a row of a list
LINE_CHARACTERS: Final = 240
#: characters of a value on its own page; the rest can be downloaded
RAW_CHARACTERS: Final = 256 << 10
HEX_BYTES: Final = 16 << 10
TREE_NODES: Final = 2000
TREE_DEPTH: Final = 40
_LEAF_CHARACTERS: Final = 2000
_NAME_CHARACTERS: Final = 200
_HEX_WIDTH: Final = 16
#: control characters, the signs that change the direction of text, and halves of surrogate pairs
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return a text with invisible signs as escapes, so that it cannot hide or turn round what follows it.

    >>> visible("a\\x00b\\u202ec")
    'a\\\\x00b\\\\u202ec'
    """
    return _INVISIBLE.sub(lambda found: _escape(ord(found[0])), text)


def _escape(number: int) -> str:
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def line(decoded: Decoded, limit: int = LINE_CHARACTERS) -> tuple[str, bool]:
    """Return a key or a value on one line, and whether it was cut."""
    if decoded.kind == "null":
        return "", False
    if decoded.kind in KINDS.values():
        text, is_cut = _json_start(decoded.data, limit)
    else:
        start = (decoded.text or "")[: 4 * limit]
        text = " ".join(start.split())
        is_cut = len(text) > limit or len(start) < len(decoded.text or "")
    return visible(text[:limit]), is_cut or len(text) > limit


def _json_start(value: Any, limit: int) -> tuple[str, bool]:
    """Return the first characters of a value as JSON, and whether there are more. The rest is not encoded."""
    parts, size = [], 0
    encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=str)
    try:
        for part in encoder.iterencode(value):
            parts.append(part[: limit + 1])
            size += len(part)
            if size > limit:
                return "".join(parts)[: limit + 1], True
    except (RecursionError, ValueError):
        return "".join(parts), True
    return "".join(parts), False


def pretty(decoded: Decoded) -> tuple[str, bool]:
    """Return a value as indented JSON, or as text, and whether it was cut."""
    text = decoded.text or ""
    if decoded.has_structure:
        try:
            text = json.dumps(decoded.data, ensure_ascii=False, indent=2, default=str)
        except (RecursionError, ValueError):
            pass
    return visible(text[:RAW_CHARACTERS]), len(text) > RAW_CHARACTERS


def raw(decoded: Decoded) -> tuple[str, bool]:
    """Return the bytes as text, and whether it was cut."""
    text = decoded.text or ""
    return visible(text[:RAW_CHARACTERS]), len(text) > RAW_CHARACTERS


def hex_rows(data: bytes | None) -> list[dict[str, str]]:
    """Return the first bytes in rows of 16: position, the bytes in hexadecimal, the bytes as ASCII."""
    shown = (data or b"")[:HEX_BYTES]
    return [
        {
            "position": f"{start:08x}",
            "bytes": shown[start : start + _HEX_WIDTH].hex(" "),
            "text": "".join(chr(each) if 32 <= each < 127 else "." for each in shown[start : start + _HEX_WIDTH]),
        }
        for start in range(0, len(shown), _HEX_WIDTH)
    ]


def tree(value: Any) -> tuple[list[dict[str, Any]], bool]:
    """Return a JSON value as a flat list of nodes in the order of a page, and whether nodes are missing.

    A node has `step`: open (an object or array), leaf or close.
    """
    nodes: list[dict[str, Any]] = []
    is_cut = False
    open_ones: list[Iterator[tuple[str, Any]]] = [iter([("", value)])]
    while open_ones:
        name, each = next(open_ones[-1], (None, None))
        if name is None:
            open_ones.pop()
            if open_ones:
                nodes.append({"step": "close"})
            continue
        if len(nodes) >= TREE_NODES:
            is_cut = True
            open_ones[-1] = iter(())
            continue
        children = _children(each)
        if not isinstance(each, (dict, list)) or children is None or len(open_ones) > TREE_DEPTH:
            is_cut = is_cut or children is not None
            nodes.append({"step": "leaf", "name": name, **_leaf(each)})
            continue
        kind = "object" if isinstance(each, dict) else "array"
        nodes.append({"step": "open", "name": name, "type": kind, "count": len(each)})
        open_ones.append(children)
    return nodes, is_cut


def _children(value: Any) -> Iterator[tuple[str, Any]] | None:
    """Return the members of an object or array; None if it has none."""
    if isinstance(value, dict) and value:
        return ((visible(str(name)[:_NAME_CHARACTERS]), each) for name, each in value.items())
    if isinstance(value, list) and value:
        return ((str(place), each) for place, each in enumerate(value))
    return None


def _leaf(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"type": "text", "text": visible(value[:_LEAF_CHARACTERS]), "is_cut": len(value) > _LEAF_CHARACTERS}
    if isinstance(value, dict):
        return {"type": "object", "text": "{…}" if value else "{}", "is_cut": bool(value)}
    if isinstance(value, list):
        return {"type": "array", "text": "[…]" if value else "[]", "is_cut": bool(value)}
    kind = "null" if value is None else "flag" if isinstance(value, bool) else "number"
    text = (
        json.dumps(value, default=str) if not isinstance(value, int) or value.bit_length() < 8000 else "a large integer"
    )
    return {"type": kind, "text": text[:_LEAF_CHARACTERS], "is_cut": len(text) > _LEAF_CHARACTERS}
