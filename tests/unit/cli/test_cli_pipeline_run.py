"""`ottla pipeline run`, `status`, `stop` and `backfill`, as far as they go without Spark."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.pipeline import load, preflight
from ottla.pipeline.layout import Layout
from ottla.pipeline.ownership import AlreadyRunning, Ownership, RunIdentity
from ottla.pipeline.status import FlowStatus, RunStatus, StatusFiles


@pytest.fixture
def shop(ottla: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatusFiles:
    monkeypatch.chdir(tmp_path)
    assert ottla("pipeline", "init").exit_code == 0
    return StatusFiles(Layout.of(load("shop.yaml")))


@pytest.fixture
def status() -> RunStatus:
    run = RunStatus.begin("shop", "shop.yaml", "local[2]")
    run.flows = [FlowStatus(name="orders_raw", zone="raw", kind="table", trigger="once", state="running", rows=7)]
    return run


def test_status_of_a_pipeline_that_never_ran(ottla: Any, shop: StatusFiles) -> None:
    result = ottla("pipeline", "status", "shop.yaml")
    assert (result.exit_code, result.stderr) == (
        3, "error: shop has never run here; 'ottla pipeline run' starts it\n",
    )  # fmt: skip


def test_status_shows_flows_to_people_and_programs(ottla: Any, shop: StatusFiles, status: RunStatus) -> None:
    shop.write(status)
    text = ottla("pipeline", "status", "shop.yaml").stdout
    assert text.startswith(f"shop: running, process {os.getpid()} on ")
    assert "orders_raw  raw   running     7" in text
    answer = json.loads(ottla("pipeline", "status", "shop.yaml", "-o", "json").stdout)
    assert (answer["alive"], answer["flows"][0]["rows"]) == (True, 7)


def test_status_says_that_a_run_is_silent(ottla: Any, shop: StatusFiles, status: RunStatus) -> None:
    status.updated_ms -= 60_000
    shop.write(status)
    text = ottla("pipeline", "status", "shop.yaml").stdout
    assert re.match(r"shop: not running, it has written no status for 6\d s, process ", text)
    assert ottla("pipeline", "stop", "shop.yaml").stdout == "shop is not running\n"


def test_pipeline_does_not_run_twice(ottla: Any, shop: StatusFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    other = RunIdentity(run="0123456789", host="far", pid=7, started_ms=1)

    def start(self: Ownership, waiting: Callable[[str], None]) -> None:
        waiting("waiting for a run")
        waiting("waiting for a run")
        raise AlreadyRunning(self.pipeline, other)

    monkeypatch.setattr(Ownership, "start", start)
    monkeypatch.setattr(preflight, "check_cluster", lambda declaration: None)
    for verb in ("run", "backfill"):
        result = ottla("pipeline", verb, "shop.yaml")
        assert (result.exit_code, result.stderr) == (
            1,
            "waiting for a run\nerror: the pipeline shop is running (run 01234567, process 7 on far): stop it with "
            "'ottla pipeline stop' first\n",
        )


def test_stop_asks_and_says_when_it_takes_too_long(ottla: Any, shop: StatusFiles, status: RunStatus) -> None:
    shop.write(status)
    result = ottla("pipeline", "stop", "shop.yaml", "--timeout", "0.1")
    assert (result.exit_code, shop.asked_to_stop(status.run)) == (4, True)
    status.state = "ended"
    shop.write(status)
    assert ottla("pipeline", "stop", "shop.yaml").stdout == "shop is not running\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("run", "shop.yaml", "--once", "--trigger", "once"), "cannot be combined"),
        (("run", "shop.yaml", "--trigger", "often"), "'often' is not a trigger"),
        (("run", "shop.yaml", "--conf", "spark.x"), "is not of the form NAME=VALUE"),
        (("run", "shop.yaml", "--metrics", "here"), "--metrics: 'here' is not an address"),
        (("backfill", "shop.yaml", "--since", "monday"), "'--since': 'monday' is not a time"),
    ],
)
def test_wrong_usage_is_told_before_spark_starts(
    ottla: Any, shop: StatusFiles, arguments: tuple[str, ...], complaint: str
) -> None:
    result = ottla("pipeline", *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_session(*arguments: Any) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("ottla.spark.session.build_session", build_session)


@pytest.mark.usefixtures("no_spark")
@pytest.mark.parametrize("verb", ["run", "backfill"])
def test_broker_that_is_away_is_one_sentence_before_spark_starts(ottla: Any, shop: StatusFiles, verb: str) -> None:
    address = f"127.0.0.1:{closed_port()}"
    file = Path("shop.yaml")
    file.write_text(file.read_text().replace("127.0.0.1:9092", address))
    result = ottla("pipeline", verb, "shop.yaml")
    assert (result.exit_code, result.stderr) == (
        4,
        f"error: broker {address} cannot be reached: connection refused; start one with 'ottla broker', or correct "
        "'brokers' in shop.yaml\n",
    )


@pytest.mark.usefixtures("no_spark")
def test_address_of_metrics_that_is_taken_is_named_before_spark_starts(ottla: Any, shop: StatusFiles) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = ottla("pipeline", "run", "shop.yaml", "--metrics", str(port))
    assert (result.exit_code, result.stderr) == (
        1,
        f"error: metrics cannot be served on 127.0.0.1:{port}: address already in use; choose another --metrics\n",
    )


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_bad_file_is_not_started(ottla: Any, shop: StatusFiles) -> None:
    Path("shop.yaml").write_text(Path("shop.yaml").read_text().replace("zone: raw", "zone: row"))
    result = ottla("pipeline", "run", "shop.yaml")
    assert result.exit_code == 1
    assert "write raw" in result.stderr and "the pipeline was not started" in result.stderr
