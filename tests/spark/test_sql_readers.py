"""The readers of SQL that work without Spark, compared with Spark's parser: they refuse nothing that Spark takes.

`tests/unit/pipeline/*.sql.txt` have a text in each line; some are wrong on purpose. Random changes of them are tried as
well: two words swapped, one removed, one repeated.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from ottla.pipeline.predicate import read_predicate
from ottla.pipeline.sql import read_query
from ottla.spark.partition_predicate import PartitionPredicate
from ottla.spark.spark_internals import without_error_logs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_TEXTS = Path(__file__).resolve().parents[1] / "unit" / "pipeline"
_CHANGED = 150
#: refused although Spark takes them: it would read a keyword as the name of a column, or the text queries tables
_ON_PURPOSE = (
    "cannot query tables",
    "not a query",
    "a step is a query",
    "the query ends after",
    "nothing stands between",
)
#: in the tree of an expression: a keyword that Spark has read as a name, or a star as a value
_STRANGE = re.compile(r"'`?(and|as|between|from|in|int|like|not|or|select|table)\b|(^|[(,] ?)\*|\* \*")


@pytest.fixture(scope="module")
def parser(spark: SparkSession) -> Iterator[Any]:
    session: Any = spark._jsparkSession  # type: ignore[attr-defined]
    with without_error_logs():
        yield session.sessionState().sqlParser()


def texts(name: str, seed: int) -> list[str]:
    lines = (_TEXTS / name).read_text().splitlines()
    chance = random.Random(seed)
    return list(dict.fromkeys([*lines, *(changed(chance.choice(lines), chance) for _ in range(_CHANGED))]))


def changed(text: str, chance: random.Random) -> str:
    words = re.findall(r"\w+|\s+|'[^']*'|.", text)
    places = [at for at, word in enumerate(words) if not word.isspace()]
    one, two = chance.choice(places), chance.choice(places)
    match chance.randrange(3):
        case 0:
            words[one] = ""
        case 1:
            words.insert(one, f"{words[two]} ")
        case _:
            words[one], words[two] = words[two], words[one]
    return "".join(words)


def parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except PySparkException:
        return None


def test_predicate_that_spark_takes_is_not_refused_and_has_the_columns_that_are_found(parser: Any) -> None:
    refused, strange, taken = [], [], 0
    for text in texts("predicates.sql.txt", 11):
        # In parentheses, as expectations are evaluated: without them, Spark would read a second word as a name.
        if parsed(parser.parseExpression, text) is None:
            continue
        expression = parsed(parser.parseExpression, f"({text}\n)")
        if expression is None:
            continue
        tree = expression.toString().lower()
        if _STRANGE.search(tree):
            continue
        taken += 1
        read = read_predicate(text)
        if read.flaws and not any(reason in read.flaws[0].what for reason in _ON_PURPOSE):
            refused.append((text, read.flaws[0].what))
        names = [one.text.lower() for one in read.columns]
        strange += [(text, name) for name in names if not re.search(rf"['`.]{re.escape(name)}", tree)]
    assert taken > 250
    assert (refused, strange) == ([], [])


def test_query_that_spark_takes_is_not_refused(parser: Any) -> None:
    refused, taken = [], 0
    for text in texts("queries.sql.txt", 13):
        if parsed(parser.parsePlan, text) is not None:
            taken += 1
            flaws = read_query(text).flaws
            if flaws and not any(reason in flaws[0].what for reason in _ON_PURPOSE):
                refused.append((text, flaws[0].what))
    assert taken > 100
    assert refused == []


def test_texts_of_replace_where_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    written = [
        "'it''s'", r"'it\'s'", r"'a\\b'", r"'\n\t\r\b\0\Z\'\"\x\%\_'", r"'\u0041\101\\u0041'", '"it\'s"', '"a""b"',
        r"'\''''", "'a\"\"b'", "'\u017e'", "''",
    ]  # fmt: skip
    row = spark.sql(f"SELECT {', '.join(f'{one} AS c{at}' for at, one in enumerate(written))}").first()
    assert row is not None
    for text, value in zip(written, row, strict=True):
        (comparison,) = PartitionPredicate.parse(f"p = {text}", {"p": "string"}).comparisons
        assert comparison.values == (value,), text
