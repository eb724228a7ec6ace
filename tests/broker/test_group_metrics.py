"""Lag and group states as Prometheus sees them, under Kafka Lag Exporter's names."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

pytestmark = [pytest.mark.broker, pytest.mark.client]

confluent_kafka = pytest.importorskip("confluent_kafka")

Labels = tuple[tuple[str, str], ...]
AGO_MS = 60_000


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings={"metrics.listener": "HTTP://127.0.0.1:0"}) as started:
        yield started


def scrape(broker: BrokerProcess) -> dict[tuple[str, str, str], float]:
    """name, group (or ""), topic (or "") -> value."""
    with urllib.request.urlopen(broker.ready_line.split("metrics=")[1], timeout=60) as page:
        text = page.read().decode()
    return {
        (sample.name, sample.labels.get("group", ""), sample.labels.get("topic", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def commit(broker: BrokerProcess, group: str, topic: str, offset: int) -> None:
    with RawClient(broker.bootstrap) as client:
        client.ask(FindCoordinatorRequest(key=group), 1)
        row = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(
            group_id=group, topics=[OffsetCommitRequestTopic(name=topic, partitions=[row])]
        )  # fmt: skip
        (answered,) = client.ask(request, 8).topics
        assert answered.partitions[0].error_code == 0


def produce(broker: BrokerProcess, topic: str, count: int) -> None:
    """Records of which each is a second younger than the one before; the last is a minute old."""
    newest_ms = int(time.time() * 1000) - AGO_MS
    producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    for number in range(count):
        producer.produce(topic, b"record", timestamp=newest_ms - 1000 * (count - 1 - number))
    assert producer.flush(10) == 0


def test_lag_is_counted_in_records_and_in_the_age_of_the_next_one(broker: BrokerProcess) -> None:
    produce(broker, "aged", 10)
    commit(broker, "behind", "aged", 4)
    found = scrape(broker)
    prefix = "kafka_consumergroup_group"
    assert found[f"{prefix}_offset", "behind", "aged"] == 4
    assert found[f"{prefix}_lag", "behind", "aged"] == 6
    # The record at offset 4 is five seconds older than the last one, which is a minute old.
    assert 65 <= found[f"{prefix}_lag_seconds", "behind", "aged"] < 125
    assert found[f"{prefix}_max_lag", "behind", ""] == found[f"{prefix}_sum_lag", "behind", ""] == 6
    assert found[f"{prefix}_topic_sum_lag", "behind", "aged"] == 6
    assert found["kafka_partition_latest_offset", "", "aged"] == 10
    assert found["kafka_partition_earliest_offset", "", "aged"] == 0
    assert found["ottla_groups", "", ""] >= 1
    assert found["ottla_group_replay_mismatches_total", "", ""] == 0


def test_age_follows_the_commits(broker: BrokerProcess) -> None:
    produce(broker, "followed", 100)
    commit(broker, "follower", "followed", 0)
    first = scrape(broker)["kafka_consumergroup_group_lag_seconds", "follower", "followed"]
    commit(broker, "follower", "followed", 90)
    second = scrape(broker)["kafka_consumergroup_group_lag_seconds", "follower", "followed"]
    assert 159 <= first < 220
    assert first - 95 <= second <= first - 80


def test_group_that_has_read_everything_has_no_lag(broker: BrokerProcess) -> None:
    produce(broker, "read", 3)
    commit(broker, "done", "read", 3)
    found = scrape(broker)
    assert found["kafka_consumergroup_group_lag", "done", "read"] == 0
    assert found["kafka_consumergroup_group_lag_seconds", "done", "read"] == 0


def test_commit_beyond_the_end_is_no_negative_lag(broker: BrokerProcess) -> None:
    produce(broker, "short", 3)
    commit(broker, "ahead", "short", 30)
    found = scrape(broker)
    assert found["kafka_consumergroup_group_lag", "ahead", "short"] == 0
    assert found["kafka_consumergroup_group_lag_seconds", "ahead", "short"] == 0


@pytest.mark.parametrize(
    ("granularity", "shown"),
    [
        ("none", set()),
        ("group", {"max_lag", "max_lag_seconds", "sum_lag"}),
        ("topic", {"max_lag", "max_lag_seconds", "sum_lag", "topic_sum_lag"}),
        ("partition", {"max_lag", "max_lag_seconds", "sum_lag", "topic_sum_lag", "offset", "lag", "lag_seconds"}),
    ],
)
def test_operator_chooses_what_is_shown_of_each_group(
    broker: BrokerProcess, granularity: str, shown: set[str]
) -> None:  # fmt: skip
    produce(broker, "chosen", 1)
    commit(broker, "granular", "chosen", 0)
    set_broker_config(broker, "metrics.group.granularity", granularity)
    try:
        found = scrape(broker)
    finally:
        set_broker_config(broker, "metrics.group.granularity", None)
    prefix = "kafka_consumergroup_group_"
    names = {name.removeprefix(prefix) for name, group, _ in found if group == "granular"}
    assert names == shown
    assert found["ottla_groups", "", ""] >= 1


def set_broker_config(broker: BrokerProcess, name: str, value: str | None) -> None:
    setting = AlterableConfig(name=name, config_operation=0 if value is not None else 1, value=value)
    resource = AlterConfigsResource(resource_type=4, resource_name="", configs=[setting])
    with RawClient(broker.bootstrap) as client:
        (answer,) = client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert answer.error_code == 0, answer
