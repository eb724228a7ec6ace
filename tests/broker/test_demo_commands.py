"""The commands that a demonstration prints work as they are printed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from ottla.client.cluster import Cluster
from ottla.demo.check import REVENUE, CommittedRecords, Lake
from ottla.demo.commands import commands_to_try, own_command
from ottla.demo.parts import write_declaration
from ottla.demo.shop import ORDERS, PAYMENTS
from ottla.demo.trace import trace_figure
from ottla.model.records import Record, build_batch
from ottla.model.types import TopicPartition
from ottla.testing import BrokerProcess

pytestmark = pytest.mark.broker

MINUTE = datetime(2026, 1, 5, 8, 1, tzinfo=UTC)


def produce(cluster: Cluster, topic: str, *values: object) -> None:
    cluster.create_topic(topic, 1)
    records = [Record(timestamp=0, key=None, value=json.dumps(value).encode()) for value in values]
    cluster.produce(TopicPartition(topic, 0), build_batch(records))


def test_printed_commands_work_and_a_figure_is_traced_to_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paid = [{"order_id": f"o-{number}", "amount": amount} for number, amount in ((1, 10.10), (2, 20.20))]
    positions = [
        {"topic": topic, "partition": 0, "first": at, "last": at} for topic in (ORDERS, PAYMENTS) for at in (1, 2)
    ]
    row = {"minute": MINUTE, "currency": "EUR", "revenue": Decimal("30.30"), "payments": 2, "_lineage": positions}
    old = {**row, "minute": MINUTE - timedelta(days=30), "revenue": Decimal("0.00")}
    write_deltalake(
        tmp_path / "demo data" / "lake" / "refined" / "revenue_per_minute", pa.Table.from_pylist([row, old])
    )
    file = tmp_path / "demo data" / "shop.yaml"
    with BrokerProcess.start() as broker, Cluster(broker.bootstrap) as cluster:
        write_declaration(file, brokers=broker.bootstrap, storage="./lake", trigger="every 2s")
        produce(cluster, REVENUE, {"minute": "2026-01-05T08:01:00.000Z", "currency": "EUR", "revenue": 30.3})
        for topic in (ORDERS, PAYMENTS):
            produce(cluster, topic, "another record", *paid)
        kcat, sql, explain = commands_to_try(broker.bootstrap, file)
        if shutil.which("kcat"):
            assert json.loads(run(kcat.text))["revenue"] == 30.3
        assert run(sql.text).split() == ["CURRENCY", "TOTAL", "EUR", "30.30"]
        assert "revenue_per_minute" in run(explain.text)

        trace = trace_figure(cluster, Lake(tmp_path / "demo data" / "lake"))
        assert trace is not None
        assert trace.check.right and trace.check.what == "traced: 08:01 EUR, 2 payments in the topic"
        assert [(one.topic, one.offset, one.amount) for one in trace.origins] == [
            (ORDERS, 1, Decimal("10.1")), (ORDERS, 2, Decimal("20.2")),
            (PAYMENTS, 1, Decimal("10.1")), (PAYMENTS, 2, Decimal("20.2")),
        ]  # fmt: skip
        assert len(CommittedRecords(cluster, PAYMENTS).read()) == 3


def run(command: str) -> str:
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=True, timeout=120).stdout


def test_commands_name_the_program_as_it_was_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.devnull)
    monkeypatch.setattr(sys, "argv", [".venv/bin/ottla", "demo"])
    assert own_command() == ".venv/bin/ottla"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ottla").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "ottla"), "demo"])
    assert own_command() == "ottla"
    monkeypatch.setattr(sys, "argv", ["/a path/__main__.py", "demo"])
    assert own_command() == f"{sys.executable} -m ottla"
