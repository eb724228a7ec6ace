"""Tasks of one Python worker share a client: connections and metadata are those of the task before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from fake_cluster import FakeCluster, fetch_answer

pytest.importorskip("pyarrow", reason="pyarrow is missing: pip install '.[spark]'")

from ottla.model.errors import ErrorCode
from ottla.model.records import Record, build_batch
from ottla.spark import clusters
from ottla.spark.clusters import close_kept, lend_cluster
from ottla.spark.offsets import DataLost, OffsetRange
from ottla.spark.options import Connection, ReadOptions
from ottla.spark.reading import Task, read_tasks
from ottla.wire.messages.fetch import FetchRequest

CONNECTION = Connection(bootstrap="fake:9001", properties={}, client_id="c", timeout_s=30.0)


@pytest.fixture(autouse=True)
def fresh_worker(fake: FakeCluster, clock: list[float]) -> Iterator[None]:
    yield
    close_kept()


def options() -> ReadOptions:
    given = {"kafka.bootstrap.servers": "fake:9001", "subscribe": "t", "kafkaConsumer.pollTimeoutMs": "30000"}
    return ReadOptions.parse(given, stream=False)


def read(fake: FakeCluster, start: int, *, topic_id: bytes | None = None) -> list[bytes]:
    """Run a task that reads one record."""
    data = build_batch([Record(timestamp=1, key=None, value=b"%d" % start)], base_offset=start)

    def answer(broker_id: int, request: Any) -> Any:
        return fetch_answer(request, records=data)

    fake.plan("Fetch", answer)
    task = Task(OffsetRange("t", 0, start, start + 1), fake.topic_id if topic_id is None else topic_id)
    return [value for batch in read_tasks(options(), [task], ["value"]) for value in batch.column("value").to_pylist()]


def test_second_task_of_a_worker_reads_no_metadata_and_opens_no_connection(fake: FakeCluster) -> None:
    assert read(fake, 5) == [b"5"]
    asked = len(fake.requests("Metadata")), len(fake.requests("ApiVersions"))
    assert [read(fake, offset) for offset in (6, 7)] == [[b"6"], [b"7"]]
    assert (len(fake.requests("Metadata")), len(fake.requests("ApiVersions"))) == asked


def test_topic_that_was_created_again_since_the_last_task_is_noticed(fake: FakeCluster) -> None:
    planned = fake.topic_id
    assert read(fake, 5) == [b"5"]
    fake.topic_id = b"another topic id"
    fake.plan("Fetch", ErrorCode.UNKNOWN_TOPIC_ID)
    with pytest.raises(DataLost, match="created again"):
        read(fake, 6, topic_id=planned)


def test_topic_is_asked_for_by_each_task_if_the_broker_does_not_fetch_by_topic_id(fake: FakeCluster) -> None:
    fake.versions[FetchRequest.API_KEY] = (4, 12)
    planned = fake.topic_id
    assert read(fake, 5) == [b"5"]
    fake.topic_id = b"another topic id"
    with pytest.raises(DataLost, match="created again"):
        read(fake, 6, topic_id=planned)


def test_client_of_a_task_that_failed_is_not_used_again() -> None:
    with pytest.raises(ZeroDivisionError), lend_cluster(CONNECTION, 30.0) as failed:
        raise ZeroDivisionError
    with lend_cluster(CONNECTION, 30.0) as following:
        assert following is not failed
    with lend_cluster(CONNECTION, 30.0) as third:
        assert third is following


def test_client_is_used_neither_after_a_pause_nor_with_other_options_nor_after_a_fork(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with lend_cluster(CONNECTION, 30.0) as first:
        pass
    with lend_cluster(CONNECTION, 5.0) as other:
        assert other is not first
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        with lend_cluster(CONNECTION, 30.0) as forked:
            assert forked is not first
    clusters._kept.clear()
    with lend_cluster(CONNECTION, 30.0) as first:
        pass
    clock[0] += 61
    with lend_cluster(CONNECTION, 30.0) as later:
        assert later is not first


def test_worker_keeps_few_clients() -> None:
    for timeout_s in range(1, 9):
        with lend_cluster(CONNECTION, float(timeout_s)):
            pass
    assert len(clusters._kept) == 4
