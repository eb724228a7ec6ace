"""The figures of the first page."""

from __future__ import annotations

import json

from ottla.edge.console import rendering
from ottla.edge.console.sections.weather import weather
from ottla.edge.console.watch import WatchState
from ottla.health.findings import Finding, Severity

HOSTILE = "<script>alert(1)</script>"


def finding(severity: Severity, name: str = "orders-3") -> Finding:
    return Finding(
        check="under-replicated", severity=severity, text=f"1 partition {HOSTILE}", advice="see it", kind="partition",
        names=(name,) * 9,
    )  # fmt: skip


def test_page_before_the_first_reading_says_that_the_cluster_is_read() -> None:
    text = rendering.part("weather/body.html", cluster="main", recent=[], **weather(WatchState()))
    assert "Reading the cluster" in text and "All is well" not in text


def test_findings_are_shown_with_their_advice_and_escaped() -> None:
    state = WatchState(findings=[finding(Severity.ERROR, HOSTILE + "-3"), finding(Severity.INFO)], number=1)
    figures = weather(state)
    assert figures["worst"] == "error" and figures["findings"][0]["names_total"] == 9
    json.dumps(figures)
    text = rendering.part(
        "weather/body.html", cluster="main", recent=[], alerts=(), alerts_total=0, alerts_problem="", **figures
    )
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "→ see it" in text and "and 3 more" in text and "All else is well" in text


def test_notes_alone_are_no_problem() -> None:
    assert weather(WatchState(findings=[finding(Severity.INFO)], number=1))["worst"] == ""
