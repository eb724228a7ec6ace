"""Write the tables of options in docs/reference/spark.md from src/ottla/spark/option_table.py.

python tools/generate_spark_docs.py            write the tables between their marks
python tools/generate_spark_docs.py --check    exit 1 when they are not what the code says
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from generated_page import DOCS, replace_lines, write_page
from ottla.client.security import PROPERTIES as SECURITY_PROPERTIES
from ottla.spark.option_table import KAFKA_PROPERTIES, TABLE_OPTIONS, TOPIC_OPTIONS, Option, Use
from ottla.spark.options import PROPERTIES_WITHOUT_EFFECT, REFUSED_PROPERTIES

PAGE = DOCS / "reference" / "spark.md"
_BEGIN = "<!-- options: written by tools/generate_spark_docs.py; do not edit -->"
_END = "<!-- end of options -->"
_KINDS = {Use.READ_BATCH: "batch", Use.READ_STREAM: "stream", Use.WRITE_BATCH: "batch", Use.WRITE_STREAM: "stream"}


def main(arguments: list[str]) -> int:
    text = replace_lines(PAGE, _BEGIN, _END, _lines())
    return write_page(PAGE, text, arguments, tool="generate_spark_docs", usage=__doc__)


def _lines() -> Iterator[str]:
    yield '### Reading with `format("ottla")`\n'
    yield from _table(TOPIC_OPTIONS, Use.READ)
    yield '\n### Writing with `format("ottla")`\n'
    yield from _table(TOPIC_OPTIONS, Use.WRITE)
    yield '\n### Properties of Kafka clients with `format("ottla")`\n'
    yield from _properties()
    yield '\n### Reading with `format("ottla-table")`\n'
    yield from _table(TABLE_OPTIONS, Use.READ)
    yield '\n### Writing with `format("ottla-table")`\n'
    yield from _table(TABLE_OPTIONS, Use.WRITE)
    yield ""


def _table(options: Iterable[Option], use: Use) -> Iterator[str]:
    """Yield a table of the options for reading or for writing."""
    yield "| option | for | value | default | meaning |"
    yield "|---|---|---|---|---|"
    for option in options:
        if option.use & use:
            kinds = [text for kind, text in _KINDS.items() if kind in use and option.use & kind]
            yield f"| `{option.name}` | {', '.join(kinds)} | {option.value} | {_default(option)} | {option.meaning} |"


def _properties() -> Iterator[str]:
    yield "| option | for | value | default | meaning |"
    yield "|---|---|---|---|---|"
    for option in KAFKA_PROPERTIES:
        sides = [text for use, text in ((Use.READ, "reading"), (Use.WRITE, "writing")) if option.use & use]
        name = f"`kafka.{option.name}`"
        yield f"| {name} | {', '.join(sides)} | {option.value} | {_default(option)} | {option.meaning} |"
    security = ", ".join(f"`{name}`" for name in SECURITY_PROPERTIES)
    yield f"\nSecurity, with the names of Java's clients or of librdkafka, under `kafka.`: {security}."
    refused = ", ".join(f"`kafka.{name}` ({reason})" for name, reason in REFUSED_PROPERTIES.items())
    yield f"\nRefused: {refused}; `kafka.transactional.id`; unknown names."
    ignored = ", ".join(f"`{name}`" for name in PROPERTIES_WITHOUT_EFFECT)
    yield f"\nAccepted and without effect, because they tune Java's clients only, under `kafka.`: {ignored}."


def _default(option: Option) -> str:
    return option.shown_default or (f"`{option.default}`" if option.default else "-")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
