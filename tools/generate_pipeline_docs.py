"""Write the tables of keys in docs/reference/pipelines.md from the table in src/ottla/pipeline/keys.py.

python tools/generate_pipeline_docs.py            write the tables between their marks
python tools/generate_pipeline_docs.py --check    exit 1 when they are not what the code says
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from generated_page import DOCS, replace_lines, write_page
from ottla.pipeline import flow_tests
from ottla.pipeline.keys import SECTIONS, Section

PAGE = DOCS / "reference" / "pipelines.md"
_BEGIN = "<!-- keys: written by tools/generate_pipeline_docs.py; do not edit -->"
_END = "<!-- end of keys -->"


def main(arguments: list[str]) -> int:
    text = replace_lines(PAGE, _BEGIN, _END, _lines())
    return write_page(PAGE, text, arguments, tool="generate_pipeline_docs", usage=__doc__)


def _lines() -> Iterator[str]:
    for section in (*SECTIONS, *flow_tests.SECTIONS):
        yield f"### {section.title[0].upper()}{section.title[1:]}\n\n{section.meaning}\n"
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
