"""What a run tells of itself: files, metrics, lines."""

from __future__ import annotations

import http.client
import io
import json
import os
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from ottla.pipeline.layout import Layout
from ottla.pipeline.status import FlowStatus, MetricsServer, RunStatus, StatusFiles, format_metrics, parse_address
from ottla.pipeline.view import HEADINGS, PlainView, cells_of, draw


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(pipeline="shop", storage=str(tmp_path / "lake"), checkpoints=str(tmp_path / "lake/_checkpoints"))


@pytest.fixture
def status() -> RunStatus:
    run = RunStatus.begin("shop", "shop.yaml", "local[2]")
    run.flows = [
        FlowStatus(name="orders_raw", zone="raw", kind="table", trigger="every 10s", state="running", rows=12, lag=3),
        FlowStatus(
            name="orders", zone="trusted", kind="table", trigger="every 10s", state="failed", error="no\nluck",
            quarantined=2, late=1, restarts=4, violations={'a "name"': 2}, watermark="2026-01-01T12:00:00.000Z",
        ),
    ]  # fmt: skip
    return run


def test_status_is_read_as_it_was_written(layout: Layout, status: RunStatus) -> None:
    files = StatusFiles(layout)
    assert files.read() is None
    files.write(status)
    assert files.read() == status
    assert os.listdir(layout.status) == ["shop.json"]
    assert json.loads((Path(layout.status) / "shop.json").read_text())["flows"][0]["rows"] == 12


def test_stop_is_meant_for_one_run(layout: Layout, status: RunStatus) -> None:
    files = StatusFiles(layout)
    assert not files.asked_to_stop(status.run)
    files.ask_to_stop("another")
    assert not files.asked_to_stop(status.run)
    files.ask_to_stop(status.run)
    assert files.asked_to_stop(status.run)


def test_run_is_alive_while_its_status_is_fresh_whatever_its_host_and_process_id(status: RunStatus) -> None:
    assert status.alive(status.updated_ms + 29_000)
    assert not replace(status, state="ended").alive(status.updated_ms)
    # This process exists: the crashed run of a container had the host name and the process id of the next one.
    assert not status.alive(status.updated_ms + 31_000)


def test_status_file_of_another_run_is_noticed(layout: Layout, status: RunStatus) -> None:
    files = StatusFiles(layout)
    assert not files.belongs_to_another(status.run)
    files.write(status)
    assert not files.belongs_to_another(status.run)
    assert files.belongs_to_another("another")
    (Path(layout.status) / "shop.json").write_text("{")
    assert not files.belongs_to_another("another")


def test_metrics_have_every_flow(status: RunStatus) -> None:
    lines = format_metrics(status).splitlines()
    assert 'ottla_pipeline_rows_total{pipeline="shop",flow="orders_raw",zone="raw"} 12' in lines
    assert 'ottla_pipeline_up{pipeline="shop",flow="orders",zone="trusted"} 0' in lines
    assert [line for line in lines if line.startswith("ottla_pipeline_lag")] == [
        'ottla_pipeline_lag{pipeline="shop",flow="orders_raw",zone="raw"} 3'
    ]
    named = 'flow="orders",zone="trusted",expectation="a \\"name\\""'
    assert f'ottla_pipeline_violations_total{{pipeline="shop",{named}}} 2' in lines


def test_metrics_show_large_counts_exactly(status: RunStatus) -> None:
    status.flows[0].rows = 12_345_678
    rows = [line for line in format_metrics(status).splitlines() if line.startswith("ottla_pipeline_rows_total")]
    assert rows[0].endswith(" 12345678")


def test_metrics_are_served_on_loopback_from_the_start_of_the_run_on(status: RunStatus) -> None:
    host, _ = parse_address("9404")
    with MetricsServer(host, 0) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(url, timeout=60)
        server.status = status
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert answer.read().decode() == format_metrics(status)
        with pytest.raises(OSError, match="in use"):
            MetricsServer(host, server.port)
    with MetricsServer("::1", 0) as server:
        assert server.port


@pytest.mark.parametrize(
    ("host", "code"),
    [("localhost:9404", 200), ("[::1]", 200), ("10.0.0.1", 200), ("", 200), ("evil.example", 403)],
)
def test_metrics_on_loopback_are_not_for_web_pages_of_another_host(status: RunStatus, host: str, code: int) -> None:
    with MetricsServer("127.0.0.1", 0) as server:
        server.status = status
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("GET", "/metrics", headers={"Host": host})
        answer = connection.getresponse()
        assert answer.status == code and (b"orders_raw" in answer.read()) == (code == 200)
        connection.close()


@pytest.mark.parametrize("text", ["", "host", "host:", "1:2:3", "::1:2", "70000", "-1"])
def test_wrong_address_of_metrics_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write PORT or HOST:PORT"):
        parse_address(text)


def test_lines_tell_changes_and_nothing_twice(status: RunStatus) -> None:
    lines: list[str] = []
    view = PlainView(lines.append)
    view.show(status)
    view.show(status)
    assert lines == [
        "raw/orders_raw: running rows=12 lag=3",
        "trusted/orders: failed rows=0 quarantine=2 late=1 restarts=4 error: no\nluck",
    ]
    status.flows[0].rows = 13
    view.show(status)
    assert lines[2:] == ["raw/orders_raw: running rows=13 lag=3"]


def test_late_groups_are_not_called_rows(status: RunStatus) -> None:
    flow = status.flows[0]
    assert flow.late_text == "0"
    texts = []
    for flow.late, flow.late_groups in ((12, 0), (0, 98), (12, 1), (1000, 9999)):
        texts.append(flow.late_text)
    assert texts == ["12", "98 groups", "12 + 1 group", "1,000 + 9,999 groups"]
    lines = format_metrics(status).splitlines()
    assert 'ottla_pipeline_rows_late_total{pipeline="shop",flow="orders_raw",zone="raw"} 1000' in lines
    assert 'ottla_pipeline_groups_late_total{pipeline="shop",flow="orders_raw",zone="raw"} 9999' in lines
    assert "9,999 groups" in cells_of(flow)[8]


def test_table_has_flows_by_zone_and_their_errors(status: RunStatus) -> None:
    from rich.console import Console

    console = Console(width=160, file=io.StringIO())
    console.print(draw(status))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.index("raw") < text.index("orders_raw") < text.index("trusted")
    assert "2026-01-01 12:00:00" in text and "luck" in text
    assert len(cells_of(status.flows[0])) == len(HEADINGS)
