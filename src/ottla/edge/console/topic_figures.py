"""The figures of topics that need more requests than the metadata: sizes, settings, rates, groups and lag.

A list shows them after its rows. Each is read for the shown topics only:

    settings      one request to any broker
    sizes         one request to each broker
    rates, lag    no request: the readings that the first page shows, which all pages share
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure
from ottla.admin.logs import describe_directories
from ottla.edge.console import formats
from ottla.edge.console.cluster_map import ClusterMap
from ottla.edge.console.pages import PageRequest
from ottla.lag.types import GroupLag

#: the settings that the list shows
SETTINGS: Final = ("cleanup.policy", "min.insync.replicas", "retention.bytes", "retention.ms")
#: settings and sizes may be this old
_AGE_S: Final = 10.0
#: the settings of all topics, for a filter
_ALL_AGE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLag:
    """How far groups are behind in one topic."""

    groups: int
    #: of the group with the largest one; None if no group has committed
    lag: int | None
    time_lag_ms: int | None


def lags_by_topic(groups: Mapping[str, GroupLag], in_time: Mapping[str, GroupLag]) -> dict[str, TopicLag]:
    """Return the lag in each topic that a group reads. ``in_time`` is the last reading with time lags."""
    counts: dict[str, int] = {}
    most: dict[str, int] = {}
    longest: dict[str, int] = {}
    for group in groups.values():
        own: dict[str, int | None] = {}
        for name, each in group.partitions.items():
            before = own.get(name.topic)
            own[name.topic] = before if each.lag is None else (before or 0) + each.lag
        for topic, lag in own.items():
            counts[topic] = counts.get(topic, 0) + 1
            if lag is not None:
                most[topic] = max(most.get(topic, 0), lag)
    for group in in_time.values():
        for name, each in group.partitions.items():
            if each.time_lag_ms is not None:
                longest[name.topic] = max(longest.get(name.topic, 0), each.time_lag_ms)
    return {
        topic: TopicLag(groups=count, lag=most.get(topic), time_lag_ms=longest.get(topic))
        for topic, count in counts.items()
    }


async def topic_lags(page: PageRequest) -> tuple[dict[str, TopicLag] | None, Mapping[str, float]]:
    """Return the lag and the records per second of topics; None and nothing before the first reading."""
    state = await page.console.watch(page.cluster).first()
    if state.reading is None:
        return None, {}
    found = await asyncio.to_thread(lags_by_topic, state.reading.groups, state.lag_in_time)
    return found, state.history.topic_rates


async def topic_sizes(
    page: PageRequest, known: ClusterMap, names: Sequence[str] | None
) -> tuple[dict[str, int], list[str]]:
    """Return the bytes of all replicas of these topics, or of all, and why they may not be complete."""

    def read(client: AdminClient) -> tuple[dict[str, int], list[str]]:
        wanted = None
        if names is not None:
            wanted = [each.name for name in names for each in known.topic(name).partitions]
        directories, problems = describe_directories(client, known.brokers.values(), wanted)
        sizes: dict[str, int] = {}
        for directory in directories:
            for place, log in directory.logs.items():
                sizes[place.topic] = sizes.get(place.topic, 0) + log.size_bytes
        return sizes, problems

    key = ("sizes", None if names is None else tuple(names))
    return await page.read(key, read, age_s=_AGE_S)


async def topic_settings(page: PageRequest, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of these topics that the list shows."""
    read = partial(_values, names=names, keys=SETTINGS)
    return await page.read(("settings", tuple(names)), read, age_s=_AGE_S)


async def cleanup_policies(page: PageRequest, known: ClusterMap) -> dict[str, str]:
    """Return the cleanup policy of each topic."""
    read = partial(_values, names=list(known.rows), keys=("cleanup.policy",))
    found = await page.read("cleanup policies", read, age_s=_ALL_AGE_S)
    return {name: values.get("cleanup.policy", "") for name, values in found.items()}


def _values(client: AdminClient, names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str]]:
    return client.topic_values(names, keys)


async def figures_of(page: PageRequest, known: ClusterMap, names: Sequence[str]) -> dict[str, Any]:
    """Return the late figures of these topics, and the reasons why some are missing."""
    existing = [name for name in names if name in known.rows]
    sizes, settings, (lags, rates) = await asyncio.gather(
        topic_sizes(page, known, existing), topic_settings(page, existing), topic_lags(page), return_exceptions=False
    )
    by_size, problems = sizes
    rows = {name: _row(name, by_size, settings, lags, rates) for name in existing}
    return {"figures": rows, "problems": problems, "cells": {name: _cells(row) for name, row in rows.items()}}


async def figures_or_reason(page: PageRequest, known: ClusterMap, names: Sequence[str]) -> dict[str, Any]:
    """Return the late figures, or only the reason why they cannot be read: the list stays."""
    try:
        return await figures_of(page, known, names)
    except Failure as failure:
        return {"figures": {}, "problems": [failure.message], "cells": {}}


def _row(
    name: str,
    sizes: Mapping[str, int],
    settings: Mapping[str, Mapping[str, str]],
    lags: Mapping[str, TopicLag] | None,
    rates: Mapping[str, float],
) -> dict[str, Any]:
    own = None if lags is None else lags.get(name, TopicLag(groups=0, lag=None, time_lag_ms=None))
    return {
        "size_bytes": sizes.get(name),
        "records_per_s": rates.get(name),
        "groups": own.groups if own else None,
        "lag": own.lag if own else None,
        "time_lag_ms": own.time_lag_ms if own else None,
        "settings": dict(settings.get(name, {})),
    }


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts of a row's cells."""
    lag = ""
    if row["lag"]:
        time = f" / {formats.duration(row['time_lag_ms'])}" if row["time_lag_ms"] else ""
        lag = f"{formats.short(row['lag'])}{time}"
    elif row["lag"] == 0:
        lag = "0"
    return {
        "size": formats.size(row["size_bytes"]),
        "rate": formats.short(row["records_per_s"]),
        "groups": formats.count(row["groups"]),
        "lag": formats.UNKNOWN if row["groups"] is None else lag or "–",
        "settings": settings_text(row["settings"]),
    }


def settings_text(settings: Mapping[str, str]) -> str:
    """Return cleanup and retention in words.

    >>> settings_text({"cleanup.policy": "delete", "retention.ms": "604800000", "min.insync.replicas": "2"})
    'delete 7 d, min ISR 2'
    >>> settings_text({"cleanup.policy": "compact", "retention.ms": "604800000"})
    'compact'
    """
    policy = settings.get("cleanup.policy", "")
    limits = []
    if "delete" in policy:
        for key, show in (("retention.ms", formats.duration), ("retention.bytes", formats.size)):
            text = settings.get(key, "-1")
            if text.lstrip("-").isdigit() and int(text) >= 0:
                limits.append(show(int(text)))
    words = [" ".join(_nonempty([policy.replace(",", "+"), " / ".join(limits)]))]
    if settings.get("min.insync.replicas"):
        words.append(f"min ISR {settings['min.insync.replicas']}")
    return ", ".join(_nonempty(words))


def _nonempty(words: Iterable[str]) -> list[str]:
    return [word for word in words if word]
