"""The first page, to be left open: what is wrong with the cluster, and its main figures, renewed every two seconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, Final

from ottla.edge.console import rendering
from ottla.edge.console.changes import read_last
from ottla.edge.console.console import Console
from ottla.edge.console.open_alerts import OpenAlerts, read_alerts
from ottla.edge.console.pages import Events, PageRequest, Route, View
from ottla.edge.console.watch import WatchState
from ottla.health.findings import Finding, Severity
from ottla.model.errors import OttlaError

_ALERTS_AGE_S: Final = 5.0
_ALERTS_SHOWN: Final = 20
_CHANGES_AGE_S: Final = 5.0
_CHANGES_SHOWN: Final = 8
_HOUR_MS: Final = 3_600_000
_FINDINGS_SHOWN: Final = 50
_NAMES_SHOWN: Final = 6
_TOPICS_SHOWN: Final = 8
_WORDS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "info"}


class Weather:
    """The section of the first page."""

    key, title, path, letter = "weather", "Weather", "", "w"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [
            Route("", self.show, summary="Show what is wrong with the cluster."),
            Route("live", self.live, summary="Get the first page again after each reading, as events."),
        ]

    async def show(self, page: PageRequest) -> View:
        state = await page.console.watch(page.cluster).first()
        data = await _data(page, state)
        word = data["worst"] or ("" if data["is_reading"] else "ok")
        commands = ("ottla doctor", "ottla cluster status", "kafka-topics --describe --under-replicated-partitions")
        return View("weather/show.html", page.cluster.name, data, state=word, commands=commands)

    async def live(self, page: PageRequest) -> Events:
        return Events(_live(page))


async def _live(page: PageRequest) -> AsyncIterator[tuple[str, str]]:
    async for state in page.console.watch(page.cluster).changes():
        data = await _data(page, state)
        yield "weather", rendering.part("weather/body.html", cluster=page.cluster.name, **data)


async def _data(page: PageRequest, state: WatchState) -> dict[str, Any]:
    """Return the figures of the page."""
    figures = weather(state)
    try:
        topic = page.console.settings.changes_topic
        rows = await page.read("changes", partial(read_last, topic=topic), age_s=_CHANGES_AGE_S)
    except OttlaError:
        rows = []  # the problem of the cluster is on the page already
    newest = figures["updated_ms"] or 0
    alerts = await _alerts(page)
    recent = [row for row in rows if row["began_ms"] > newest - _HOUR_MS][:_CHANGES_SHOWN]
    return {
        **figures,
        "worst": _worst(figures["worst"], alerts),
        "alerts": alerts.rows[:_ALERTS_SHOWN],
        "alerts_total": len(alerts.rows),
        "alerts_problem": alerts.problem,
        "recent": [{key: row[key] for key in ("began_ms", "user", "title", "outcome")} for row in recent],
    }


def _worst(word: str, alerts: OpenAlerts) -> str:
    """Return the worse of the findings and the alerts; an empty text if all is well."""
    words = {word, *({"critical": "error", "warning": "warning"}.get(row["severity"], "") for row in alerts.rows)}
    return next((each for each in ("error", "warning") if each in words), "")


async def _alerts(page: PageRequest) -> OpenAlerts:
    """Return the open alerts of the monitor; none without a monitor."""
    url = page.console.settings.monitor_url
    if not url:
        return OpenAlerts()
    # The reading of a page is shared by all that look at it, and runs in a thread.
    return await page.read("alerts", lambda _: read_alerts(url, page.cluster.name), age_s=_ALERTS_AGE_S)


def weather(state: WatchState) -> dict[str, Any]:
    """Return what is known of a cluster as values of JSON."""
    picture, history = state.picture, state.history
    rates = sorted(history.topic_rates.items(), key=lambda row: (-row[1], row[0]))[:_TOPICS_SHOWN]
    groups = state.lag_in_time
    return {
        "is_reading": not state.number,
        "problem": state.problem,
        "updated_ms": state.reading.read_at_ms if state.reading else None,
        "worst": _WORDS[max(each.severity for each in state.findings)] if _serious(state.findings) else "",
        "findings": [_finding(each) for each in state.findings[:_FINDINGS_SHOWN]],
        "findings_total": len(state.findings),
        "controller": picture.controller_id if picture else None,
        "brokers": [
            {"id": each.id, "problem": each.problem, "leaders": _count(picture, each.id, leads=True),
             "replicas": _count(picture, each.id, leads=False),
             "bytes": sum(one.size_bytes for one in each.directories) if each.directories else None}
            for each in (picture.brokers.values() if picture else ())
        ],
        "topics_total": len(picture.topics) if picture else None,
        "partitions_total": sum(len(each.partitions) for each in picture.topics.values()) if picture else None,
        "groups_total": len(state.reading.groups) if state.reading else None,
        "hanging_total": len(picture.hanging) if picture else None,
        "records_per_s": history.records_per_s,
        "rates": [each.records_per_s for each in history.totals],
        "lag": history.totals[-1].lag if history.totals else None,
        "lags": [each.lag for each in history.totals],
        "time_lag_ms": max((each.time_lag_ms or 0 for each in groups.values()), default=None),
        "busiest": [{"topic": topic, "records_per_s": rate} for topic, rate in rates if rate > 0],
    }  # fmt: skip


def _serious(findings: Sequence[Finding]) -> bool:
    return any(each.severity > Severity.INFO for each in findings)


def _finding(each: Finding) -> dict[str, Any]:
    return {
        "check": each.check, "severity": _WORDS[each.severity], "text": each.text, "advice": each.advice,
        "kind": each.kind, "names": list(each.names[:_NAMES_SHOWN]), "names_total": len(each.names),
    }  # fmt: skip


def _count(picture: Any, broker: int, *, leads: bool) -> int:
    partitions = (each for topic in picture.topics.values() for each in topic.partitions)
    return sum(each.leader == broker if leads else broker in each.replicas for each in partitions)
