"""Write the tables of keys in docs/pipelines.md from the table in src/ottla/pipeline/keys.py.

python tools/generate_pipeline_docs.py            write the tables between their marks
python tools/generate_pipeline_docs.py --check    exit 1 when they are not what the code says
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from ottla.pipeline.keys import SECTIONS, Section

PAGE = Path(__file__).resolve().parent.parent / "docs" / "pipelines.md"
_BEGIN = "<!-- keys: written by tools/generate_pipeline_docs.py; do not edit -->"
_END = "<!-- end of keys -->"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    page = PAGE.read_text(encoding="utf-8")
    head, begin, rest = page.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    assert begin and end, f"{PAGE.name} has lost its marks"
    current = "".join([head, begin, "\n\n", "\n".join(_lines()), "\n", end, tail])
    if current == page:
        return 0
    if arguments:
        print(f"{PAGE.name} is out of date; run python tools/generate_pipeline_docs.py", file=sys.stderr)
        return 1
    PAGE.write_text(current, encoding="utf-8")
    return 0


def _lines() -> Iterator[str]:
    for section in SECTIONS:
        yield f"### {section.title.capitalize()}\n\n{section.meaning}\n"
        yield from _table(section)
        yield ""


def _table(section: Section) -> Iterator[str]:
    yield "| key | value | default | meaning |"
    yield "|---|---|---|---|"
    for key in section.keys.values():
        without = "**required**" if key.required else key.default or "-"
        yield f"| `{key.name}` | {key.value} | {without} | {key.meaning} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
