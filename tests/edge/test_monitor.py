"""`ottla monitor` as a process: Burrow's and Remora's routes, and the names of metrics that dashboards use."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer
from edge_broker import Broker, edge_broker
from monitor_process import monitor_process

from ottla.admin.client import AdminClient
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

pytestmark = pytest.mark.broker

ORDERS = TopicPartition("orders", 0)
WAIT_S = 120
#: each request waits for a new reading
SETTINGS = {"reading.age.ms.max": "0", "expire.cache": "0", "reading.wait.ms.max": "60000"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker() as started:
        yield started


@pytest.fixture(scope="module")
def client(broker: Broker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap, {}, timeout_s=60) as opened:
        opened.cluster.create_topic("orders", 2)
        produce(opened, 10, age_s=60)
        yield opened


@pytest.fixture(scope="module")
def monitor(broker: Broker, client: AdminClient) -> Iterator[httpx.Client]:
    client.cluster.commit("billing", {ORDERS: 4})
    with monitor_process(broker.bootstrap, SETTINGS) as started:
        yield started


def produce(client: AdminClient, count: int, age_s: float = 0) -> None:
    at_ms = int((time.time() - age_s) * 1000)
    client.cluster.produce(ORDERS, build_batch([Record(timestamp=at_ms, key=None, value=b"v") for _ in range(count)]))


def get(monitor: httpx.Client, path: str, status: int = 200) -> Any:
    found = monitor.get(path)
    assert found.status_code == status, found.text
    return found.json()


def series(page: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the labels and values of each name of a metrics page."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            assert match is not None, line
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or ""))
            found.setdefault(match[1], []).append((labels, float(match[3])))
    return found


def test_burrows_routes_about_the_process(monitor: httpx.Client) -> None:
    assert monitor.get("/burrow/admin").text == "GOOD"
    get(monitor, "/v3/kafka/main/topic")
    assert monitor.get("/burrow/admin/ready").text == "READY"
    missing = monitor.get("/v3/nothing")
    assert (missing.status_code, missing.json()) == (
        404, {"error": True, "message": "invalid request type", "result": {}},
    )  # fmt: skip
    assert get(monitor, "/v3/admin/loglevel")["level"] == "info"
    assert monitor.post("/v3/admin/loglevel", json={"level": "warn"}).json()["message"] == "set log level"
    assert get(monitor, "/v3/admin/loglevel")["level"] == "warn"
    assert monitor.post("/v3/admin/loglevel", json={"level": "loud"}).status_code == 404
    assert monitor.post("/v3/admin/loglevel", content=b"loud").status_code == 400
    assert monitor.post("/v3/admin/loglevel", json={"level": "info"}).status_code == 200


def test_burrows_routes_about_clusters_and_topics(monitor: httpx.Client) -> None:
    found = get(monitor, "/v3/kafka")
    assert {**found, "request": None} == {
        "error": False, "message": "cluster list returned", "clusters": ["main"], "request": None,
    }  # fmt: skip
    assert found["request"]["url"] == "/v3/kafka"
    assert get(monitor, "/v3/kafka/main")["module"]["class-name"] == "kafka"
    assert "orders" in get(monitor, "/v3/kafka/main/topic")["topics"]
    assert get(monitor, "/v3/kafka/main/topic/orders")["offsets"] == [10, 0]
    assert get(monitor, "/v3/kafka/main/topic/orders/consumers")["consumers"] == ["billing"]
    for path, message in (
        ("other", "cluster module not found"),
        ("other/topic", "cluster not found"),
        ("main/topic/none", "cluster or topic not found"),
        ("other/topic/orders", "cluster or topic not found"),
        ("other/topic/orders/consumers", "cluster not found"),
        ("other/consumer", "cluster not found"),
        ("other/consumer/billing", "cluster or consumer not found"),
        ("main/consumer/none", "cluster or consumer not found"),
    ):
        refused = get(monitor, f"/v3/kafka/{path}", 404)
        assert (refused["error"], refused["message"]) == (True, message)
        assert refused["request"]["url"] == f"/v3/kafka/{path}"


def test_burrows_routes_about_the_settings(monitor: httpx.Client) -> None:
    assert get(monitor, "/v3/config")["message"] == "main config returned"
    for kind, names in (
        ("storage", ["default"]), ("evaluator", ["default"]), ("cluster", ["main"]), ("consumer", ["main"]),
    ):  # fmt: skip
        assert get(monitor, f"/v3/config/{kind}")["modules"] == names
        assert get(monitor, f"/v3/config/{kind}/{names[0]}")["message"] == f"{kind} module detail returned"
        assert get(monitor, f"/v3/config/{kind}/none", 404)["message"] == f"{kind} module not found"
    assert get(monitor, "/v3/config/notifier")["modules"] == []
    assert get(monitor, "/v3/config/storage/default")["module"]["intervals"] == 10


def test_a_group_has_its_commits_with_the_times_of_the_topic(client: AdminClient, monitor: httpx.Client) -> None:
    before_ms = int(time.time() * 1000) - 1
    for _ in range(3):
        client.cluster.commit("billing", {ORDERS: 4})
    found = get(monitor, "/v3/kafka/main/consumer/billing")["topics"]["orders"]
    assert (len(found), found[1]["offsets"], found[0]["current-lag"]) == (2, [], 6)
    window = found[0]["offsets"]
    assert len(window) == 10 and window[0] is None
    assert all(each["offset"] == 4 and each["timestamp"] >= before_ms for each in window[-3:])
    assert window[-1]["lag"] == 6


def test_the_verdict_about_a_group_that_repeats_its_commit(client: AdminClient, monitor: httpx.Client) -> None:
    for _ in range(10):
        client.cluster.commit("billing", {ORDERS: 4})
    produce(client, 1)
    status = get(monitor, "/v3/kafka/main/consumer/billing/lag")["status"]
    assert (status["status"], status["partition_count"], status["totallag"], status["complete"]) == ("ERR", 2, 7, 0.5)
    assert [each["topic"] for each in status["partitions"]] == ["orders", "orders"]
    worst = status["maxlag"]
    # The verdict is STOP once the last commit is longer ago than the window of these ten is long.
    assert (worst["partition"], worst["complete"]) == (0, 1) and worst["status"] in ("STALL", "STOP")
    bad = get(monitor, "/v3/kafka/main/consumer/billing/status")["status"]
    assert [each["partition"] for each in bad["partitions"]] == [0]
    assert bad["partition_count"] == 2


def test_a_group_that_does_not_exist_is_not_found(monitor: httpx.Client) -> None:
    for path in ("main/consumer/none", "other/consumer/billing"):
        for kind in ("status", "lag"):
            found = get(monitor, f"/v3/kafka/{path}/{kind}", 404)
            assert (found["error"], found["message"]) == (False, "consumer status returned")
            assert found["status"] == {
                "cluster": path.split("/")[0], "group": path.split("/")[2], "status": "NOTFOUND", "complete": 1,
                "partitions": [], "partition_count": 0, "maxlag": None, "totallag": 0,
            }  # fmt: skip


def test_delete_forgets_a_group_until_its_next_commit(client: AdminClient, monitor: httpx.Client) -> None:
    client.cluster.commit("leaving", {ORDERS: 1})
    assert "leaving" in get(monitor, "/v3/kafka/main/consumer")["consumers"]
    assert monitor.delete("/v3/kafka/main/consumer/leaving").json()["message"] == "consumer group removed"
    assert "leaving" not in get(monitor, "/v3/kafka/main/consumer")["consumers"]
    assert client.committed_offsets("leaving") == {ORDERS: 1}
    client.cluster.commit("leaving", {ORDERS: 2})
    assert "leaving" in get(monitor, "/v3/kafka/main/consumer")["consumers"]
    assert monitor.delete("/v3/kafka/main/consumer/leaving/topic/orders").status_code == 200
    assert "leaving" not in get(monitor, "/v3/kafka/main/consumer")["consumers"]


def test_remoras_routes(client: AdminClient, monitor: httpx.Client) -> None:
    client.cluster.commit("remora", {ORDERS: 1})
    assert "remora" in get(monitor, "/consumers")
    end = client.log_ranges([ORDERS])[ORDERS][1]
    found = get(monitor, "/consumers/remora")
    assert (found["state"], found["lag_per_topic"]) == ("Empty", {"orders": end - 1})
    row = found["partition_assignment"][0]
    assert row.pop("coordinator").keys() == {"id", "id_string", "host", "port"}
    assert row == {
        "group": "remora", "topic": "orders", "partition": 0, "offset": 1, "lag": end - 1, "consumer_id": "-",
        "host": "-", "client_id": "-", "log_end_offset": end,
    }  # fmt: skip
    get(monitor, "/consumers/none", 404)


_OF_PARTITION = {"cluster_name", "group", "topic", "partition", "member_host", "consumer_id", "client_id"}
_OF_BURROW = {"cluster", "consumer_group", "topic", "partition"}
_OF_KMINION = {"group_id", "topic_name"}
_OF_TOPIC = {"topic", "partition"}
#: rows 33 to 44 of the names that dashboards use, with the labels that they must have
NAMES = {
    "kafka_consumergroup_group_lag": _OF_PARTITION,
    "kafka_consumergroup_group_lag_seconds": _OF_PARTITION,
    "kafka_consumergroup_group_offset": _OF_PARTITION,
    "kafka_consumergroup_group_max_lag": {"cluster_name", "group", "is_simple_consumer"},
    "kafka_consumergroup_group_max_lag_seconds": {"cluster_name", "group", "is_simple_consumer"},
    "kafka_consumergroup_group_sum_lag": {"cluster_name", "group"},
    "kafka_consumergroup_group_topic_sum_lag": {"cluster_name", "group", "topic"},
    "kafka_partition_latest_offset": {"cluster_name", *_OF_TOPIC},
    "kafka_partition_earliest_offset": {"cluster_name", *_OF_TOPIC},
    "kafka_consumergroup_poll_time_ms": {"cluster_name"},
    "kminion_kafka_consumer_group_topic_lag": _OF_KMINION,
    "kminion_kafka_consumer_group_topic_partition_lag": {*_OF_KMINION, "partition_id"},
    "kminion_kafka_consumer_group_topic_offset_sum": _OF_KMINION,
    "kminion_kafka_consumer_group_info": {"group_id", "coordinator_id", "protocol", "protocol_type", "state"},
    "kminion_kafka_consumer_group_members": {"group_id"},
    "kminion_kafka_consumer_group_empty_members": {"group_id"},
    "kminion_kafka_consumer_group_topic_members": _OF_KMINION,
    "kminion_kafka_consumer_group_topic_assigned_partitions": _OF_KMINION,
    "kminion_kafka_consumer_group_offset_commits_total": {"group_id"},
    "kminion_kafka_topic_partition_high_water_mark": {"topic_name", "partition_id"},
    "kminion_kafka_topic_partition_low_water_mark": {"topic_name", "partition_id"},
    "kminion_kafka_topic_high_water_mark_sum": {"topic_name"},
    "kminion_kafka_topic_low_water_mark_sum": {"topic_name"},
    "kminion_kafka_topic_info": {"topic_name", "cleanup_policy", "partition_count", "replication_factor"},
    "kminion_kafka_topic_log_dir_size_total_bytes": {"topic_name"},
    "kminion_kafka_broker_info": {"address", "broker_id", "is_controller", "port", "rack_id"},
    "kminion_kafka_cluster_info": {"broker_count", "cluster_id", "cluster_version", "controller_id"},
    "kminion_kafka_broker_log_dir_size_total_bytes": {"address", "broker_id", "port", "rack_id"},
    "kminion_exporter_up": {"version"},
    "burrow_kafka_consumer_lag_total": {"cluster", "consumer_group"},
    "burrow_kafka_consumer_status": {"cluster", "consumer_group"},
    "burrow_kafka_consumer_current_offset": _OF_BURROW,
    "burrow_kafka_consumer_partition_lag": _OF_BURROW,
    "burrow_kafka_topic_partition_status": _OF_BURROW,
    "burrow_kafka_topic_partition_offset": {"cluster", *_OF_TOPIC},
    "kafka_brokers": set(),
    "kafka_topic_partitions": {"topic"},
    "kafka_topic_partition_current_offset": _OF_TOPIC,
    "kafka_topic_partition_oldest_offset": _OF_TOPIC,
    "kafka_topic_partition_leader": _OF_TOPIC,
    "kafka_topic_partition_in_sync_replica": _OF_TOPIC,
    "kafka_topic_partition_under_replicated_partition": _OF_TOPIC,
    "kafka_consumergroup_lag": {"consumergroup", *_OF_TOPIC},
    "kafka_consumergroup_lag_sum": {"consumergroup", "topic"},
    "kafka_consumergroup_current_offset": {"consumergroup", *_OF_TOPIC},
    "kafka_consumergroup_members": {"consumergroup"},
}  # fmt: skip


def test_metrics_have_the_names_and_labels_of_the_exporters(
    broker: Broker, client: AdminClient, monitor: httpx.Client
) -> None:
    for offset in range(10):
        client.cluster.commit("full-window", {ORDERS: offset})
    member = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "with-member", "client.id": "app"})
    member.subscribe(["orders"])
    until = time.monotonic() + WAIT_S
    while not member.assignment():
        assert time.monotonic() < until
        member.poll(0.05)
    found = series(monitor.get("/metrics").text)
    member.close()
    assert NAMES.keys() - found.keys() == set()
    for name, labels in NAMES.items():
        for own, value in found[name]:
            assert labels <= own.keys(), name
            # A leader that is missing is -1; all other values are counts, offsets, times or sizes.
            assert value >= (-1 if name.endswith("_leader") else 0), name
    # As in Burrow, offsets and verdicts of partitions need a full window.
    with_status = {labels["consumer_group"] for labels, _ in found["burrow_kafka_topic_partition_status"]}
    assert "full-window" in with_status and "remora" not in with_status


def test_series_of_topics_are_limited_and_those_of_read_topics_come_first(broker: Broker, client: AdminClient) -> None:
    for name in ("a-topic", "z-topic"):
        client.cluster.create_topic(name, 1)
    client.cluster.commit("reader", {TopicPartition("z-topic", 0): 0})
    settings = {"metrics.topics.max": "2", "metrics.granularity": "topic", "cluster.name": "eu"}
    with monitor_process(broker.bootstrap, {**SETTINGS, **settings, "expire.cache": "100000"}) as limited:
        found = series(limited.get("/metrics/eu").text)
        # A verdict is used again until it expires; the commits themselves are new.
        path = "/v3/kafka/eu/consumer/reader"
        before = get(limited, f"{path}/lag")["status"]
        client.cluster.commit("reader", {TopicPartition("z-topic", 0): 0})
        assert len(list(filter(None, get(limited, path)["topics"]["z-topic"][0]["offsets"]))) == 2
        assert get(limited, f"{path}/lag")["status"] == before
    assert {labels["topic"] for labels, _ in found["kafka_topic_partitions"]} == {"orders", "z-topic"}
    assert "kafka_consumergroup_lag" not in found and "kafka_consumergroup_lag_sum" in found
    left_out = found["ottla_monitor_topics_left_out"]
    assert left_out[0][0] == {"cluster": "eu"} and left_out[0][1] >= 1


def test_a_cluster_that_does_not_answer_has_no_lags(monitor: httpx.Client, broker: Broker) -> None:
    settings = {"cluster.away.bootstrap.servers": "127.0.0.1:1", "client.timeout.ms": "500"}
    with monitor_process(broker.bootstrap, settings) as started:
        assert get(started, "/v3/kafka")["clusters"] == ["main", "away"]
        found = series(started.get("/metrics").text)
        assert {labels["cluster"]: value for labels, value in found["ottla_monitor_cluster_up"]} == {
            "main": 1, "away": 0,
        }  # fmt: skip
        assert {labels["cluster_name"] for labels, _ in found["kafka_consumergroup_group_sum_lag"]} == {"main"}
        assert started.get("/metrics/none").status_code == 404
        assert started.get("/health").json() == {"status": "ok"}
