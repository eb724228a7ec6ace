"""Alerts of `ottla monitor` as a process, with a receiver of the test."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alert_receivers import WebReceiver, web_receiver
from edge_broker import Broker, edge_broker
from monitor_process import monitor_process

from ottla.admin.client import AdminClient
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition

pytestmark = pytest.mark.broker

ORDERS = TopicPartition("orders", 0)
WAIT_S = 120
RULES = """
[grouping]
wait = "0"
interval = "1s"
[[rule]]
name = "late"
value = "group_lag"
above = 5
keep = "0"
text = "{{group}} is {{value}} behind"
[[receiver]]
name = "hook"
url = "{url}"
"""


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker() as started:
        yield started


@pytest.fixture
def client(broker: Broker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap, {}, timeout_s=60) as opened:
        yield opened


def news(hook: WebReceiver, number: int) -> dict[str, Any]:
    """Return what the receiver got as its message of this number, from 0 on."""
    assert hook.arrived.acquire(timeout=WAIT_S)
    document: dict[str, Any] = json.loads(hook.requests[number][2])
    return document


def test_alert_opens_survives_a_restart_and_closes(broker: Broker, client: AdminClient, tmp_path: Path) -> None:
    client.cluster.create_topic("orders", 1)
    now_ms = int(time.time() * 1000)
    client.cluster.produce(ORDERS, build_batch([Record(timestamp=now_ms, key=None, value=b"v") for _ in range(10)]))
    client.cluster.commit("billing", {ORDERS: 3})
    rules = tmp_path / "alerts.toml"
    settings = {"alerts.file": str(rules), "data.dir": str(tmp_path), "interval.seconds": "1"}
    with web_receiver() as hook:
        rules.write_text(RULES.format(url=hook.url))
        with monitor_process(broker.bootstrap, settings) as monitor:
            opened = news(hook, 0)
            assert (opened["status"], opened["alerts"][0]["annotations"]["summary"]) == (
                "firing", "billing is 7 records behind",
            )  # fmt: skip
            (cluster,) = monitor.get("/alerts").json()["clusters"]
            assert [(row["rule"], row["state"]) for row in cluster["alerts"]] == [("late", "open")]
            assert 'ottla_alerts{cluster="main",rule="late",state="open"} 1' in monitor.get("/metrics").text
            _wait_until_stored(tmp_path)
        with monitor_process(broker.bootstrap, settings) as monitor:
            (cluster,) = monitor.get("/alerts").json()["clusters"]
            assert [row["state"] for row in cluster["alerts"]] == ["open"]
            client.cluster.commit("billing", {ORDERS: 10})
            closed = news(hook, 1)
            assert (closed["status"], closed["alerts"][0]["fingerprint"]) == (
                "resolved", opened["alerts"][0]["fingerprint"],
            )  # fmt: skip
    assert len(hook.requests) == 2


def _wait_until_stored(folder: Path) -> None:
    """Wait until the file says that the receiver has accepted the message."""
    deadline = time.monotonic() + WAIT_S
    while not any(json.loads(path.read_text())["reported"] for path in folder.glob("alerts-*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_monitor_without_rules_says_how_to_get_alerts(broker: Broker) -> None:
    with monitor_process(broker.bootstrap) as monitor:
        answer = monitor.get("/alerts")
        assert answer.status_code == 404 and "--alerts default" in answer.json()["message"]
