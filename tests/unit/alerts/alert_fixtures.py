"""Rules, observations and a model receiver for tests of alerts."""

from __future__ import annotations

from typing import Any

from ottla.edge.monitor.alerts.engine import AlertEngine
from ottla.edge.monitor.alerts.grouping import Message
from ottla.edge.monitor.alerts.rules_file import parse_rules
from ottla.edge.monitor.alerts.values import Observation, Sample
from ottla.health.findings import Finding, Severity

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
START = 1_700_000_000_000

LATE = """
[[rule]]
name = "late"
value = "group_seconds"
above = 100
for = "1m"
keep = "2m"
text = "group {group} is {value} behind"

[[receiver]]
name = "hook"
url = "http://127.0.0.1:1/"
"""


def engine(text: str = LATE) -> AlertEngine:
    return AlertEngine(parse_rules(text))


def seconds(at_ms: int, **groups: float | None) -> Observation:
    """Return an observation of the time lag of groups."""
    samples = [Sample({"group": name}, value) for name, value in groups.items()]
    return Observation(at_ms=START + at_ms, samples={"group_seconds": samples})


def finding(check: str, *names: str, severity: Severity = Severity.ERROR, kind: str = "partition") -> Finding:
    return Finding(check=check, severity=severity, text=f"{check} found", advice="do it", kind=kind, names=names)


def found(at_ms: int, *findings: Finding, unchecked: frozenset[str] = frozenset()) -> Observation:
    return Observation(at_ms=START + at_ms, findings=findings, unchecked=unchecked)


def states(of: AlertEngine) -> dict[str, str]:
    """Return the states of all alerts by their first label."""
    return {each.labels[0][1] if each.labels else "": each.state.value for each in of.alerts.by_key.values()}


def deliver(of: AlertEngine, at_ms: int) -> list[dict[str, Any]]:
    """Accept all messages that are due; return what they say."""
    return [_accept(of, message, START + at_ms) for message in of.due(START + at_ms)]


def _accept(of: AlertEngine, message: Message, now_ms: int) -> dict[str, Any]:
    of.accepted(message, now_ms)
    said: dict[str, Any] = {"to": message.receiver.name}
    if message.opened:
        said["open"] = [each.labels[0][1] for each in message.opened]
    if message.closed:
        said["closed"] = [each.labels[0][1] for each in message.closed]
    if message.is_reminder:
        said["reminder"] = True
    return said
