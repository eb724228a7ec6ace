"""The lag of groups, read from a live broker: records with known timestamps, and a clock that the test sets."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ottla.admin.client import AdminClient
from ottla.client.cluster import Cluster
from ottla.client.transactions import TransactionalProducer
from ottla.lag.first_records import ReadLimits
from ottla.lag.reading import LagReader
from ottla.lag.types import GroupLag
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

#: when the lag is read; records are older, or younger
NOW_MS = int(time.time() * 1000)
LIMITS = ReadLimits(time_s=120)
WAIT_S = 120


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings={"log.cleaner.backoff.ms": "50"}) as started:
        yield started


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap, {}, timeout_s=60) as opened:
        yield opened


def batch(ages_s: Sequence[float], *, size: int = 1, keys: Sequence[bytes] | None = None, **fields: Any) -> bytes:
    """A batch with a record for each age."""
    records = [
        Record(timestamp=NOW_MS - int(age * 1000), key=keys[number] if keys else None, value=b"v" * size)
        for number, age in enumerate(ages_s)
    ]
    return build_batch(records, **fields)


def make(cluster: Cluster, topic: str, partitions: int = 1, **config: str) -> TopicPartition:
    cluster.create_topic(topic, partitions, {name.replace("_", "."): value for name, value in config.items()})
    return TopicPartition(topic, 0)


def read(client: AdminClient, group: str, limits: ReadLimits = LIMITS) -> GroupLag:
    return LagReader(client, limits=limits, clock_ms=lambda: NOW_MS).read([group]).groups[group]


def time_lag_s(client: AdminClient, group: str) -> float | None:
    lag_ms = read(client, group).time_lag_ms
    return None if lag_ms is None else lag_ms / 1000


def test_an_idle_topic_is_as_late_as_its_oldest_unread_record(client: AdminClient) -> None:
    tp = make(client.cluster, "idle")
    client.cluster.produce(tp, batch([90_000, 86_400]))
    client.cluster.commit("idle-g", {tp: 1})
    assert time_lag_s(client, "idle-g") == 86_400
    client.cluster.commit("idle-g", {tp: 2})
    lag = read(client, "idle-g")
    assert (lag.total, lag.time_lag_ms) == (0, 0)


def test_a_steady_topic_is_as_late_as_the_next_record(client: AdminClient) -> None:
    tp = make(client.cluster, "steady")
    for first in range(100, 0, -10):
        client.cluster.produce(tp, batch([first - number for number in range(10)], codec=4))
    client.cluster.commit("steady-g", {tp: 57})
    lag = read(client, "steady-g")
    assert (lag.total, lag.time_lag_ms) == (43, 43_000)


def test_a_burst_does_not_distort_the_time(client: AdminClient) -> None:
    tp = make(client.cluster, "burst")
    client.cluster.produce(tp, batch([3600]))
    client.cluster.produce(tp, batch([5.0] * 20_000, codec=3))
    client.cluster.commit("burst-g", {tp: 1})
    lag = read(client, "burst-g")
    assert (lag.total, lag.time_lag_ms) == (20_000, 5_000)


def test_a_compacted_topic_is_as_late_as_the_next_record_that_exists(client: AdminClient) -> None:
    tp = make(
        client.cluster, "compacted", cleanup_policy="compact", min_cleanable_dirty_ratio="0.01", segment_ms="1000"
    )
    # The second record replaces the first, and the third one starts a new segment.
    client.cluster.produce(tp, batch([7200, 3600, 1800], keys=[b"a", b"a", b"b"]))
    client.cluster.produce(tp, batch([600], keys=[b"c"]))
    client.cluster.commit("compacted-g", {tp: 0})
    deadline = time.monotonic() + WAIT_S
    while time_lag_s(client, "compacted-g") == 7200 and time.monotonic() < deadline:
        time.sleep(0.05)
    lag = read(client, "compacted-g")
    assert (lag.total, lag.time_lag_ms) == (4, 3_600_000)


def test_markers_and_aborted_transactions_are_nothing_to_consume(client: AdminClient) -> None:
    tp = make(client.cluster, "transactional")
    with TransactionalProducer(client.cluster, "lag-txn") as producer:
        producer.init()
        for ages, is_committed in (([900.0], True), ([800.0, 790.0], False), ([700.0], True)):
            producer.begin()
            producer.send(tp, bytearray(batch(ages)))
            if is_committed:
                producer.commit()
            else:
                producer.abort()
        client.cluster.commit("txn-g", {tp: 1})
        assert time_lag_s(client, "txn-g") == 700
        client.cluster.commit("txn-g", {tp: 6})
        lag = read(client, "txn-g")
        # The last offset is that of a marker.
        assert (lag.total, lag.time_lag_ms) == (1, 0)
        producer.begin()
        producer.send(tp, bytearray(batch([60])))
        producer.flush()
        assert time_lag_s(client, "txn-g") == 60
        producer.abort()
        assert time_lag_s(client, "txn-g") == 0


def test_batches_of_any_size_are_read(client: AdminClient) -> None:
    partitions = 12
    make(client.cluster, "large", partitions)
    names = [TopicPartition("large", number) for number in range(partitions)]
    for number, tp in enumerate(names):
        client.cluster.produce(tp, batch([100 + number], size=900_000))
    client.cluster.commit("large-g", dict.fromkeys(names, 0))
    lag = read(client, "large-g")
    assert [lag.partitions[tp].time_lag_ms for tp in names] == [(100 + number) * 1000 for number in range(partitions)]
    assert lag.problems == ()


def test_what_the_limits_do_not_allow_to_read_is_unknown_and_said(client: AdminClient) -> None:
    tp = make(client.cluster, "limited")
    client.cluster.produce(tp, batch([50]))
    client.cluster.commit("limited-g", {tp: 0})
    lag = read(client, "limited-g", ReadLimits(time_s=60, bytes_max=0))
    assert (lag.total, lag.time_lag_ms) == (1, None)
    assert lag.problems == ("no time lag for 1 of 1 partitions within 0 MiB",)


def test_a_record_of_the_future_is_not_late(client: AdminClient) -> None:
    tp = make(client.cluster, "future")
    client.cluster.produce(tp, batch([-3600]))
    client.cluster.commit("future-g", {tp: 0})
    assert time_lag_s(client, "future-g") == 0


def test_a_commit_before_the_log_start_counts_from_the_first_record_that_exists(client: AdminClient) -> None:
    from ottla.wire.messages.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    tp = make(client.cluster, "deleted-from")
    client.cluster.produce(tp, batch([500, 400, 300]))
    client.cluster.commit("deleted-g", {tp: 0})
    row = DeleteRecordsPartition(partition_index=0, offset=2)
    request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="deleted-from", partitions=[row])], timeout=10_000)
    client.ask_any(request)
    lag = read(client, "deleted-g").partitions[tp]
    assert (lag.log_start, lag.time_lag_ms) == (2, 300_000)


def test_groups_at_different_offsets_of_a_partition_are_read_together(client: AdminClient) -> None:
    tp = make(client.cluster, "shared")
    client.cluster.produce(tp, batch([30, 20, 10]))
    for number in range(3):
        client.cluster.commit(f"shared-{number}", {tp: number})
    found = LagReader(client, limits=LIMITS, clock_ms=lambda: NOW_MS).read([f"shared-{n}" for n in range(3)])
    assert [each.time_lag_ms for each in found.groups.values()] == [30_000, 20_000, 10_000]


def test_partitions_without_a_commit_and_deleted_topics_are_shown_without_a_lag(client: AdminClient) -> None:
    make(client.cluster, "partly", 2)
    client.cluster.commit("partly-g", {TopicPartition("partly", 1): 0})
    make(client.cluster, "gone")
    client.cluster.commit("partly-g", {TopicPartition("gone", 0): 7})
    client.delete_topics(["gone"])
    rows = read(client, "partly-g").partitions.values()
    shown = {str(each.name): (each.committed, each.log_end, each.lag) for each in rows}
    assert shown["partly-0"] == (None, 0, None) and shown["partly-1"] == (0, 0, 0)
    assert shown.get("gone-0", (7, None, None)) == (7, None, None)


def test_a_group_that_does_not_exist_is_absent(client: AdminClient) -> None:
    assert LagReader(client).read(["nobody"]).groups == {}


def test_all_groups_are_found_and_the_number_of_requests_does_not_depend_on_them(
    client: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    tp = make(client.cluster, "many", 4)
    client.cluster.produce(tp, batch([40]))
    for number in range(30):
        client.cluster.commit(f"many-{number:02}", {tp: 0})
    asked: list[str] = []
    original = client.cluster.borrow

    def counting(node: Any, deadline: float) -> Any:
        asked.append(str(node))
        return original(node, deadline)

    monkeypatch.setattr(client.cluster, "borrow", counting)
    snapshot = LagReader(client, limits=LIMITS, clock_ms=lambda: NOW_MS).read()
    assert {f"many-{number:02}" for number in range(30)} <= snapshot.groups.keys()
    assert snapshot.groups["many-29"].time_lag_ms == 40_000
    # Metadata, list, coordinators, descriptions, commits, starts, ends, timestamps: far fewer than the groups.
    assert len(asked) < 30
