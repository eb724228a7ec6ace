"""Dashboards and rules of deploy/ name metrics and labels that brokers, the monitor and pipelines serve."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from monitor_process import monitor_process
from promql import Expression, parse

import generate_dashboards
from ottla.admin.client import AdminClient
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.pipeline.status import FlowStatus, RunStatus, format_metrics
from ottla.testing.process import BrokerProcess

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
WAIT_S = 120
#: Prometheus adds them to every series
TARGET = {"job", "instance"}
#: series that appear when the monitor has read the cluster more than once
LATE = ("ottla_monitor_group_caught_up_seconds", "burrow_kafka_consumer_status", "ottla_monitor_findings")

Series = dict[str, set[str]]


def series_of(page: str) -> Series:
    """Return the labels of each name of a metrics page."""
    found: Series = {}
    for line in page.splitlines():
        match = re.match(r"(\w+)(?:\{(.*)\})? \S+$", line)
        if match is not None:
            labels = re.findall(r'(\w+)="(?:[^"\\]|\\.)*"', match[2] or "")
            found.setdefault(match[1], set()).update(labels)
    return found


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """Return all series of a broker with a group, of its monitor, and of a pipeline."""
    folder = tmp_path_factory.mktemp("monitor")
    orders = TopicPartition("orders", 0)
    settings = {
        "alerts.file": "default", "data.dir": str(folder), "interval.seconds": "1", "reading.age.ms.max": "100",
        "health.interval.seconds": "1",
    }  # fmt: skip
    with (
        BrokerProcess.start(settings={"metrics.listener": "HTTP://127.0.0.1:0"}) as broker,
        AdminClient(broker.bootstrap, {}, timeout_s=60) as client,
    ):
        # Without a limit of its size it is a finding of `ottla doctor`.
        client.cluster.create_topic("orders", 1, {"retention.ms": "-1"})
        at_ms = int(time.time() * 1000)
        client.cluster.produce(orders, build_batch([Record(timestamp=at_ms, key=None, value=b"v")] * 2))
        client.cluster.commit("billing", {orders: 1})
        with monitor_process(broker.bootstrap, settings) as monitor:
            found = _until_complete(monitor)
        found |= series_of(httpx.get(broker.ready_line.split("metrics=")[1]).text)
    found |= series_of(format_metrics(_status())) | {"up": set()}
    return found


def _until_complete(monitor: httpx.Client) -> Series:
    deadline = time.monotonic() + WAIT_S
    while True:
        found = series_of(monitor.get("/metrics").text)
        missing = [name for name in LATE if name not in found]
        if not missing:
            return found
        assert time.monotonic() < deadline, missing


def _status() -> RunStatus:
    status = RunStatus.begin("shop", "shop.yaml", "local[2]")
    status.flows.append(
        FlowStatus(name="orders", zone="raw", kind="stream", trigger="1s", lag=0, violations={"positive": 1})
    )
    return status


def check(text: str, series: Series, shown: set[str], *, where: str) -> None:
    """Compare an expression, and the labels that are shown of its result, with the series that exist."""
    expression = parse(text)
    assert expression.metrics, f"{where}: {text} names no metric"
    labels = set(TARGET)
    for name, selected in expression.metrics.items():
        assert name in series, f"{where}: there is no metric {name}"
        assert selected <= series[name] | TARGET, f"{where}: {name} has the labels {sorted(series[name])}"
        labels |= series[name]
    assert expression.grouped_by <= labels, f"{where}: {text} groups by a label that no metric has"
    assert shown <= result_labels(expression, labels), f"{where}: {text} has no labels {sorted(shown)}"


def result_labels(expression: Expression, labels: set[str]) -> set[str]:
    return expression.grouped_by if expression.is_aggregated else labels


def panels(dashboard: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"], target["legendFormat"]


@pytest.mark.broker
def test_dashboards_name_metrics_and_labels_that_exist(series: Series) -> None:
    for file in DASHBOARDS:
        dashboard = json.loads(file.read_text())
        for title, text, legend in panels(dashboard):
            check(text, series, set(re.findall(r"\{\{(\w+)\}\}", legend)), where=f"{file.name}, {title}")
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                assert match is not None and match[2] in series[match[1]] | TARGET, variable["name"]


@pytest.mark.broker
def test_rules_of_prometheus_name_metrics_and_labels_that_exist(series: Series) -> None:
    document = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    names = []
    for group in document["groups"]:
        for rule in group["rules"]:
            names.append(rule["alert"])
            text = json.dumps(rule["annotations"])
            check(rule["expr"], series, set(re.findall(r"\$labels\.(\w+)", text)), where=rule["alert"])
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert set(rule["annotations"]) == {"summary", "description"}
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rate(ottla_nothing_total[5m])", set()),
        ('ottla_known{topic="x"}', set()),
        ("sum by (topic) (ottla_known)", set()),
        ("sum by (api) (ottla_known)", {"instance"}),
        ("ottla_known", {"topic"}),
    ],
)
def test_name_or_label_that_does_not_exist_is_found(text: str, shown: set[str]) -> None:
    with pytest.raises(AssertionError):
        check(text, {"ottla_known": {"api"}}, shown, where="test")


def test_jobs_of_the_rules_and_dashboards_are_those_of_the_configuration() -> None:
    jobs = {
        each["job_name"]
        for each in yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    }
    texts = [file.read_text() for file in (*DASHBOARDS, DEPLOY / "prometheus" / "alerts.yml")]
    named = {job for text in texts for found in re.findall(r'job=~?\\?"([^"\\]+)', text) for job in found.split("|")}
    assert named <= jobs and named


def test_dashboards_are_those_of_the_definitions() -> None:
    assert generate_dashboards.main(["--check"]) == 0
    assert [file.name for file in DASHBOARDS] == [
        "broker.json",
        "cluster.json",
        "lag.json",
        "pipelines.json",
        "topic.json",
    ]


def test_panels_do_not_overlap_and_fit_into_the_width() -> None:
    for file in DASHBOARDS:
        taken = set()
        for panel in json.loads(file.read_text())["panels"]:
            place = panel["gridPos"]
            cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
            assert place["x"] + place["w"] <= 24 and not cells & taken, (file.name, panel["title"])
            taken |= cells


@pytest.mark.parametrize(
    ("text", "metrics", "grouped_by", "is_aggregated"),
    [
        ("rate(a_total{x=\"1\", y=~'2|}'}[5m])", {"a_total": {"x", "y"}}, set(), False),
        ("sum by (x, y) (a) / sum(b{z!=\"\"}) > 0", {"a": set(), "b": {"z"}}, {"x", "y"}, True),
        ("topk(20, a) < Inf or vector(0)", {"a": set()}, set(), False),
        ("a - 2 * a offset 5m", {"a": set()}, set(), False),
    ],
)  # fmt: skip
def test_names_of_an_expression_are_found(
    text: str, metrics: Series, grouped_by: set[str], is_aggregated: bool
) -> None:
    assert parse(text) == Expression(metrics, grouped_by, is_aggregated)
