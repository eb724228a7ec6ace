"""The progress of queries as that of groups: what is committed, under which name, and what does not matter."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client.errors import Unreachable
from ottla.model.types import TopicPartition
from ottla.spark.progress import ProgressPublisher

PYTHON = "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@1"
BOOTSTRAP = {"kafka.bootstrap.servers": "a:1"}


class FakeCluster:
    """Remembers commits, or cannot be reached."""

    def __init__(self, reachable: bool = True) -> None:
        self.commits: list[tuple[str, dict[TopicPartition, int]]] = []
        self.reachable = reachable

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        if not self.reachable:
            raise Unreachable("a:1", "refused")
        self.commits.append((group, dict(offsets)))

    def close(self) -> None:
        pass


def publish(cluster: FakeCluster, options: dict[str, str], *sources: tuple[str, str | None], name: str | None) -> None:
    rows = [SimpleNamespace(description=description, endOffset=offset) for description, offset in sources]
    event: Any = SimpleNamespace(progress=SimpleNamespace(sources=rows, name=name, id="the-id"))
    open_cluster: Any = lambda connection: cluster  # noqa: E731 - a door, not a function
    ProgressPublisher({**BOOTSTRAP, **options}, open_cluster=open_cluster).onQueryProgress(event)


@pytest.mark.parametrize(
    ("options", "name", "group"),
    [
        ({"kafka.group.id": "mine", "groupIdPrefix": "p"}, "q", "mine"),
        ({"groupIdPrefix": "p"}, "q", "p-q"),
        ({}, None, "spark-the-id"),
    ],
)
def test_group_is_named_by_the_options_and_the_query(options: dict[str, str], name: str | None, group: str) -> None:
    cluster = FakeCluster()
    publish(cluster, options, (PYTHON, '{"t": {"0": 5}}'), name=name)
    assert cluster.commits == [(group, {TopicPartition("t", 0): 5})]


def test_sources_that_read_no_topics_are_left_out() -> None:
    cluster = FakeCluster()
    sources = [
        ("FileStreamSource[file:/x]", '{"logOffset":1}'), (PYTHON, '{"cursor": 7}'), (PYTHON, None),
        ("KafkaV2[Subscribe[u]]", '{"u":{"1":9}}'),
    ]  # fmt: skip
    publish(cluster, {}, *sources, name="q")
    assert cluster.commits == [("spark-q", {TopicPartition("u", 1): 9})]


def test_cluster_that_is_away_costs_a_warning_and_not_the_query(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ottla.spark"):
        publish(FakeCluster(reachable=False), {}, (PYTHON, '{"t": {"0": 5}}'), name="q")
    assert "the progress of group spark-q was not published" in caplog.text


def test_options_of_the_source_may_be_given_as_they_are() -> None:
    cluster = FakeCluster()
    publish(cluster, {"subscribe": "t", "maxOffsetsPerTrigger": "5"}, (PYTHON, '{"t": {"0": 5}}'), name="q")
    assert cluster.commits
