"""Rounds of readings of a live broker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from ottla.admin.client import AdminClient
from ottla.edge.monitor.reader import ClusterReader, ReaderOptions
from ottla.edge.monitor.source import GroupFilter
from ottla.lag.burrow import Status
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start() as started:
        yield started


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap, {}, timeout_s=60) as opened:
        yield opened


def produce(client: AdminClient, tp: TopicPartition, count: int, age_s: float = 0) -> None:
    at_ms = int((time.time() - age_s) * 1000)
    client.cluster.produce(tp, build_batch([Record(timestamp=at_ms, key=None, value=b"v") for _ in range(count)]))


def test_a_round_has_groups_brokers_partitions_and_findings(client: AdminClient) -> None:
    client.cluster.create_topic("orders", 2)
    tp = TopicPartition("orders", 0)
    produce(client, tp, 10, age_s=600)
    client.cluster.commit("billing", {tp: 4})
    client.cluster.commit("ignored", {tp: 4})
    reader = ClusterReader("main", client, ReaderOptions(groups=GroupFilter(deny="^ign")))
    assert (reader.last.number, reader.last.is_fresh) == (0, False)
    found = reader.read()
    assert (found.number, found.problem, found.is_fresh) == (1, "", True)
    assert "ignored" not in found.groups
    group = found.groups["billing"]
    assert (group.records, group.members, group.state) == (6, 0, "Empty")
    assert group.seconds is not None and 599 < group.seconds < 700
    assert [each.is_controller for each in found.brokers.values()] == [True]
    assert found.log_ends[tp] == 10
    assert not [*found.offline(), *found.under_replicated(), *found.below_min_insync(), *found.lost_brokers()]
    assert found.picture is not None and "orders" in found.picture.topics
    # The first commit is the whole window, so that the next seconds without a commit are a stop.
    assert reader.histories.evaluate("billing", found.read_at_ms + 60_000).status is Status.ERR
    client.cluster.commit("billing", {tp: 10})
    assert reader.read().groups["billing"].records == 0


def test_rounds_go_on_while_no_broker_answers() -> None:
    with BrokerProcess.start() as broker, AdminClient(broker.bootstrap, {}, timeout_s=2) as client:
        tp = TopicPartition("orders", 0)
        client.cluster.create_topic("orders", 1)
        produce(client, tp, 3)
        client.cluster.commit("billing", {tp: 1})
        reader = ClusterReader("main", client)
        good = reader.read()
        assert good.groups["billing"].records == 2
        broker.kill()
        away = reader.read()
        assert away.problem and not away.is_fresh
        assert (away.number, away.read_at_ms) == (2, good.read_at_ms)
        assert away.groups["billing"].records == 2


def test_without_the_topic_of_offsets_a_changed_offset_is_a_commit(client: AdminClient) -> None:
    client.cluster.create_topic("polled", 1)
    tp = TopicPartition("polled", 0)
    produce(client, tp, 10)
    reader = ClusterReader("main", client)
    reader._feed.forbid()
    lengths = []
    for offset in (1, 2, 2, 5):
        client.cluster.commit("polling", {tp: offset})
        reader.read()
        window = reader.histories.window("polling", tp)
        assert window is not None
        lengths.append(len(window.commits))
    assert lengths == [1, 2, 2, 3]
    assert [(each.offset, each.lag) for each in window.commits] == [(1, 9), (2, 8), (5, 5)]
