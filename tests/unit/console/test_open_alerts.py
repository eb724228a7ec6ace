"""Open alerts of a monitor on the first page."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from alert_receivers import answer, running

from ottla.edge.console import rendering
from ottla.edge.console.open_alerts import OpenAlerts, parse, read_alerts
from ottla.edge.console.sections.weather import _worst, weather
from ottla.edge.console.watch import WatchState

HOSTILE = "<script>alert(1)</script>"


def row(**changes: Any) -> dict[str, Any]:
    usual = {
        "rule": "late", "state": "open", "severity": "warning", "since_ms": 1, "text": HOSTILE, "advice": "do it",
        "is_silenced": False,
    }  # fmt: skip
    return {**usual, **changes}


def document(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"clusters": [{"cluster": "main", "alerts": list(rows)}]}


def test_open_alerts_of_the_cluster_are_returned_the_worst_first() -> None:
    found = parse(document(row(), row(severity="critical"), row(state="pending"), row(is_silenced=True)), "main")
    assert [each["severity"] for each in found.rows] == ["critical", "warning"]
    assert "no cluster with this name" in parse(document(), "other").problem


@pytest.mark.parametrize(
    "value",
    [[], {}, None, {"clusters": 5}, document({"rule": 1}), document(row(severity="bad")), document(row(since_ms=None))],
)
def test_other_documents_are_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        parse(value, "main")


@contextlib.contextmanager
def monitor(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/alerts"
            answer(status, body)(self)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with running(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/"


def test_alerts_are_read_from_a_monitor_and_its_failures_are_named() -> None:
    with monitor(200, json.dumps(document(row())).encode()) as url:
        assert len(read_alerts(url, "main").rows) == 1
    for status, body, problem in (
        (404, b"", "start it with --alerts default"),
        (500, b"", "status 500"),
        (200, b"[" * 100, "no alerts"),
    ):
        with monitor(status, body) as url:
            assert problem in read_alerts(url, "main").problem
    assert "refused" in read_alerts("http://127.0.0.1:1", "main").problem
    assert "http://HOST" in read_alerts("file:///etc/passwd", "main").problem


def test_alerts_are_shown_and_escaped() -> None:
    found = parse(document(row(), row(severity="critical")), "main")
    text = page(found)
    assert "2 open alerts" in text and "→ do it" in text and "All else is well" in text
    assert "<script>" not in text and "&lt;script&gt;" in text


def test_state_of_the_page_is_the_worse_of_findings_and_alerts() -> None:
    critical, info = parse(document(row(severity="critical")), "main"), parse(document(row(severity="info")), "main")
    assert [_worst("", critical), _worst("warning", critical), _worst("warning", info), _worst("", info)] == [
        "error", "error", "warning", "",
    ]  # fmt: skip


def test_monitor_that_does_not_answer_is_a_note() -> None:
    text = page(OpenAlerts(problem=f"refused {HOSTILE}"))
    assert "Alerts of the monitor are not known: refused &lt;script&gt;" in text


def page(found: OpenAlerts) -> str:
    values = {"alerts": found.rows, "alerts_total": len(found.rows), "alerts_problem": found.problem}
    return rendering.part("weather/body.html", cluster="main", recent=[], **values, **weather(WatchState(number=1)))
