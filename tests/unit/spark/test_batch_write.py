"""Writes of foreachBatch, without Spark: the messages of all tasks are committed together, or aborted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.spark.batch_write import write_batch

_calls: list[tuple[str, Any]] = []


@dataclass
class Numbers(WriterCommitMessage):
    """What a task has written."""

    numbers: list[int]


class Writer(DataSourceArrowWriter):
    """Remembers what it was asked for."""

    def __init__(self, options: Any, overwrite: bool) -> None:
        self.fails = options.get("FAILS") == "true"
        _calls.append(("writer", overwrite))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Numbers:
        return Numbers([number for batch in iterator for number in batch["n"].to_pylist()])

    def commit(self, messages: Any) -> None:
        _calls.append(("commit", [message.numbers for message in messages]))
        if self.fails:
            raise OSError("the disk is full")

    def abort(self, messages: Any) -> None:
        _calls.append(("abort", [message.numbers for message in messages]))


class Source(DataSource):
    """A data source with this writer."""

    def writer(self, schema: Any, overwrite: bool) -> Writer:  # type: ignore[override]
        return Writer(self.options, overwrite)


def rows(*partitions: list[int]) -> Any:
    """Stand for a DataFrame: run a function over each partition, as mapInArrow does."""

    def map_in_arrow(function: Callable[..., Iterator[pa.RecordBatch]], schema: str) -> Any:
        batches = [[pa.RecordBatch.from_pydict({"n": numbers})] if numbers else [] for numbers in partitions]
        results = [batch["message"].to_pylist() for one in batches for batch in function(iter(one))]
        return SimpleNamespace(collect=lambda: [(message,) for messages in results for message in messages])

    return SimpleNamespace(schema=None, mapInArrow=map_in_arrow)


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    _calls.clear()


def test_messages_of_all_tasks_are_committed_once() -> None:
    write_batch(rows([1, 2], [], [3]), Source, {}, overwrite=True)
    assert _calls == [("writer", True), ("commit", [[1, 2], [], [3]])]


def test_failed_commit_is_aborted_and_raised() -> None:
    with pytest.raises(OSError, match="the disk is full"):
        write_batch(rows([1], [2]), Source, {"fails": "true"})
    assert _calls == [("writer", False), ("commit", [[1], [2]]), ("abort", [[1], [2]])]
