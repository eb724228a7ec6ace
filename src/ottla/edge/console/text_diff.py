"""Two texts side by side, line by line, with what differs. Pure."""

from __future__ import annotations

import difflib
import json
from typing import Final

#: lines of a text that are compared; a longer one is cut
_LINES_MAX: Final = 5000


def pretty(text: str) -> str:
    """Return JSON with one field a line, and other texts as they are.

    >>> print(pretty('{"type":"record","fields":[]}'))
    {
      "type": "record",
      "fields": []
    }
    >>> pretty('syntax = "proto3";')
    'syntax = "proto3";'
    """
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def side_by_side(before: str, after: str) -> list[tuple[str, str | None, str | None]]:
    """Return rows of (kind, line before, line after); kind is equal, changed, added or removed.

    >>> side_by_side("a\\nb", "a\\nc\\nd")
    [('equal', 'a', 'a'), ('changed', 'b', 'c'), ('added', None, 'd')]
    """
    old, new = before.splitlines()[:_LINES_MAX], after.splitlines()[:_LINES_MAX]
    rows: list[tuple[str, str | None, str | None]] = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            rows += [("equal", a, b) for a, b in zip(old[i1:i2], new[j1:j2], strict=True)]
            continue
        shared = min(i2 - i1, j2 - j1)
        rows += [("changed", old[i1 + n], new[j1 + n]) for n in range(shared)]
        rows += [("removed", line, None) for line in old[i1 + shared : i2]]
        rows += [("added", None, line) for line in new[j1 + shared : j2]]
    return rows
