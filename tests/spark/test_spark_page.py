"""The examples of docs/reference/spark.md and README.md run as they are written, in their order, in one session.

A line that ends with a comment of its result (`# 3` in Python, `-- 3` in SQL) has this result.
"""

from __future__ import annotations

import ast
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
from confluent_kafka import Producer

from ottla.cli.main import main
from ottla.client.cluster import Cluster
from ottla.model.types import TopicPartition
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.broker, pytest.mark.spark]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "spark.md"
_DOCUMENTED_ADDRESS = "127.0.0.1:9092"
_DOCUMENTED_DIRECTORY = "/tmp/ottla-guide"
_DEADLINE_S = 60
_TOPICS = ("clicks", "loud", "copies")


class Block(NamedTuple):
    language: str
    text: str


def blocks() -> list[Block]:
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.M | re.S)]


@pytest.fixture
def clean_catalog(spark: SparkSession) -> Iterator[None]:
    yield
    for name in ("clicks", "copies", "lake_clicks"):
        spark.sql(f"DROP TABLE IF EXISTS {name}")
    for name in ("loud", "to_loud", "seen"):
        spark.catalog.dropTempView(name)


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """A broker of its own: the topics of the page have names that other tests use, too."""
    with BrokerProcess.start() as broker:
        yield broker


@pytest.mark.usefixtures("clean_catalog")
def test_examples_of_the_page_run_in_their_order(
    spark: SparkSession, broker: BrokerProcess, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for topic in _TOPICS:
        assert cluster.create_topic(topic, 2)
    namespace: dict[str, object] = {"spark": spark}
    for block in blocks():
        text = block.text.replace(_DOCUMENTED_ADDRESS, broker.bootstrap).replace(_DOCUMENTED_DIRECTORY, str(tmp_path))
        if block.language == "python":
            run_python(text, namespace)
        elif block.language == "sql":
            run_sql(text, spark)
        elif block.language == "text":
            assert capsys.readouterr().out.strip() == text.strip()
    try:
        wait_for_commit(cluster, "guide-first", [TopicPartition("clicks", 0), TopicPartition("clicks", 1)])
    finally:
        spark.streams.removeListener(namespace["publisher"])  # type: ignore[arg-type]


def test_example_of_the_readme_copies_a_topic_to_a_table(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("hello", value="hello world")
    assert producer.flush(_DEADLINE_S) == 0
    _, _, section = (ROOT / "README.md").read_text().partition("\n## Spark\n")
    (text,) = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    text = text.replace(_DOCUMENTED_ADDRESS, broker.bootstrap).replace('"./lake/', f'"{tmp_path}/')
    assert len(text.splitlines()) == 5
    run_python(text, {"spark": spark})
    assert "|hello world|" in capsys.readouterr().out


def run_python(text: str, namespace: dict[str, object]) -> None:
    lines = text.splitlines()
    for statement in ast.parse(text).body:
        expected = re.search(r"  # (.+)$", lines[(statement.end_lineno or 0) - 1])
        source = ast.get_source_segment(text, statement)
        assert source is not None
        if isinstance(statement, ast.Expr):
            result = eval(source, namespace)  # noqa: S307
            if expected:
                assert repr(result) == expected[1], source
        else:
            exec(source, namespace)  # noqa: S102


def run_sql(text: str, spark: SparkSession) -> None:
    for statement, expected in re.findall(r"(.+?);(?:  -- ([^\n]+))?\n", text, re.S):
        rows = spark.sql(statement.strip()).collect()
        if expected:
            assert [str(value) for row in rows for value in row] == [expected], statement


def wait_for_commit(cluster: Cluster, group: str, partitions: list[TopicPartition]) -> None:
    """Return when the group has an offset for each partition: Spark calls listeners after the end of a query."""
    deadline = time.monotonic() + _DEADLINE_S
    while set(cluster.committed(group, partitions)) != set(partitions):
        assert time.monotonic() < deadline, f"{group} has no offsets"
        time.sleep(0.05)


def test_commands_of_the_page_exist() -> None:
    lines = [line for block in blocks() if block.language == "sh" for line in block.text.splitlines()]
    commands = [found[1] for line in lines if (found := re.search(r"\bottla ([a-z][^#&)]*)", line))]
    assert len(commands) == 3
    for command in commands:
        arguments = shlex.split(command)
        group = main.get_command(main.make_context("ottla", [], resilient_parsing=True), arguments[0])
        assert group is not None
        group.make_context(arguments[0], arguments[1:])
