"""Makes an observation, as rules see it, of a reading of the monitor. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.edge.monitor.alerts.values import NOT_READ, Observation, Sample
from ottla.edge.monitor.reading import ClusterReading, GroupReading
from ottla.health.checks import CHECKS
from ottla.health.findings import Finding, Severity
from ottla.lag.burrow import Status
from ottla.lag.types import PartitionLag

_CHECKS: Final = frozenset(each.name for each in CHECKS)


def observe(reading: ClusterReading, now_ms: int) -> Observation:
    """Return the observation of a round. Of a round that failed, only that it failed is known."""
    if not reading.is_fresh:
        finding = Finding(
            check=NOT_READ,
            severity=Severity.ERROR,
            text=f"the cluster cannot be read: {reading.problem}",
            advice="check that the brokers run, that the monitor reaches them, and its login ('ottla doctor')",
            kind="cluster",
            names=(reading.cluster,),
        )
        return Observation(at_ms=now_ms, findings=(finding,), unchecked=_CHECKS)
    return Observation(
        at_ms=now_ms, findings=reading.findings, unchecked=_unchecked(reading), samples=_samples(reading)
    )


def _unchecked(reading: ClusterReading) -> frozenset[str]:
    """Return the checks that could not run on the last picture."""
    picture = reading.picture
    if picture is None or reading.picture_problem:
        return _CHECKS
    return frozenset(each.name for each in CHECKS if not each.can_run(picture))


def _samples(reading: ClusterReading) -> Mapping[str, Sequence[Sample]]:
    groups = {name: ({"group": name}, group) for name, group in reading.groups.items()}
    found: dict[str, Sequence[Sample]] = {
        "group_seconds": [Sample(labels, group.seconds) for labels, group in groups.values()],
        "group_lag": [Sample(labels, group.records) for labels, group in groups.values()],
        "group_status": [Sample(labels, group.status.name) for labels, group in groups.values()],
        "group_partition_status": [Sample(labels, _worst(group)) for labels, group in groups.values()],
        "group_trend": [Sample(labels, group.forecast.trend.value) for labels, group in groups.values()],
        "group_catch_up_seconds": [Sample(labels, _catch_up(group)) for labels, group in groups.values()],
        "group_state": [Sample(labels, group.state) for labels, group in groups.values()],
        "brokers": [Sample({}, sum(each.is_registered for each in reading.brokers.values()))],
        "read_seconds": [Sample({}, reading.seconds)],
    }
    topics = [
        ({"group": name, "topic": topic}, lags)
        for name, group in reading.groups.items()
        for topic, lags in _by_topic(group).items()
    ]
    found["topic_seconds"] = [Sample(labels, _longest(lags)) for labels, lags in topics]
    found["topic_lag"] = [Sample(labels, _sum(lags)) for labels, lags in topics]
    picture = reading.picture
    if picture is not None and not reading.picture_problem:
        directories = [
            ({"broker": str(each.broker_id), "directory": each.path}, each) for each in picture.directories()
        ]
        found["directory_bytes"] = [Sample(labels, each.size_bytes) for labels, each in directories]
        found["directory_free_percent"] = [
            Sample(labels, _percent(each.usable_bytes, each.total_bytes)) for labels, each in directories
        ]
    return found


def _catch_up(group: GroupReading) -> float | None:
    return math.inf if group.forecast.is_never else group.forecast.caught_up_in_s


def _worst(group: GroupReading) -> str:
    return max((each.status for each in group.verdict.partitions), default=Status.OK).name


def _by_topic(group: GroupReading) -> dict[str, list[PartitionLag]]:
    found: dict[str, list[PartitionLag]] = {}
    for name, lag in group.lag.partitions.items():
        found.setdefault(name.topic, []).append(lag)
    return found


def _longest(lags: Sequence[PartitionLag]) -> float | None:
    known = [each.time_lag_ms for each in lags if each.time_lag_ms is not None]
    return max(known) / 1000 if known else None


def _sum(lags: Sequence[PartitionLag]) -> float | None:
    known = [each.lag for each in lags if each.lag is not None]
    return sum(known) if known else None


def _percent(part: int | None, whole: int | None) -> float | None:
    return part / whole * 100 if part is not None and whole else None
