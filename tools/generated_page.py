"""Pages of docs/ that tools write from the code, as a whole or between two marks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def write_page(page: Path, text: str, arguments: list[str], *, tool: str, usage: str | None) -> int:
    """Write the text of a page and return the exit code of the tool. With ``--check``, only compare the two."""
    if arguments not in ([], ["--check"]):
        print(usage, file=sys.stderr)
        return 2
    if page.exists() and page.read_text(encoding="utf-8") == text:
        return 0
    if arguments:
        print(f"{page.name} is out of date; run python tools/{tool}.py", file=sys.stderr)
        return 1
    page.write_text(text, encoding="utf-8")
    return 0


def replace_lines(page: Path, begin: str, end: str, lines: Iterable[str]) -> str:
    """Return the text of a page with these lines between its two marks."""
    head, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, tail = rest.partition(end)
    assert found_begin and found_end, f"{page.name} has lost its marks"
    return "".join([head, begin, "\n\n", "\n".join(lines), "\n", end, tail])
