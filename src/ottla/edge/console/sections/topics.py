"""The list of topics, and the first page of a topic: its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure
from ottla.admin.logs import describe_directories
from ottla.admin.topic_state import PartitionState, TopicState
from ottla.client.cluster import EARLIEST, LATEST
from ottla.edge.console import formats
from ottla.edge.console.cluster_map import ClusterMap, TopicSummary, cluster_map, topic_state
from ottla.edge.console.console import Console
from ottla.edge.console.pages import PAGE_ROWS, PageRequest, Route, View
from ottla.edge.console.rendering import url
from ottla.edge.console.sections.find import Find
from ottla.edge.console.sections.messages import message_routes
from ottla.edge.console.sections.topic_changes import topic_change_routes
from ottla.edge.console.sections.topic_details import topic_detail_routes
from ottla.edge.console.topic_figures import cleanup_policies, figures_or_reason, topic_lags, topic_sizes
from ottla.edge.console.topic_tabs import topic_tabs
from ottla.lag.reading import list_offsets
from ottla.model.types import TopicPartition

_SORTS: Final[Mapping[str, Callable[[TopicSummary], Any]]] = {
    "name": lambda each: each.name,
    "partitions": lambda each: each.partitions,
    "replication_factor": lambda each: each.replication_factor,
}
#: orders that need more than the metadata
_LATE_SORTS: Final = ("size", "rate", "lag")
_POLICIES: Final = ("any", "delete", "compact")
#: partitions on a page of a topic
_PARTITIONS: Final = 100
_AGE_S: Final = 2.0
#: a leader that takes longer leaves its offsets out
_ANSWER_S_MAX: Final = 5.0


class Topics:
    """The section of the topics."""

    key, title, path, letter = "topics", "Topics", "topics", "t"

    def is_available(self, console: Console) -> bool:
        return True

    def routes(self) -> Sequence[Route]:
        return [
            Route("topics", self.list, summary="List the topics."),
            Route("topic-cells", self.cells, summary="Get the sizes, rates, groups, lag and settings of a page."),
            Route("topics/{topic}", self.show_partitions, summary="Show a topic."),
            Route("topics/{topic}/partitions", self.show_partitions, summary="Show the partitions of a topic."),
            Route("topics/{topic}/partition-cells", self.partition_cells, summary="Get offsets and sizes of a page."),
            *Find().routes(),
            *topic_detail_routes(),
            *topic_change_routes(),
            *message_routes(),
        ]

    # -- the list -----------------------------------------------------------------------------------------------------

    async def list(self, page: PageRequest) -> View:
        known = await cluster_map(page)
        found, start = await _selected(page, known)
        shown = found[start : start + PAGE_ROWS]
        data: dict[str, Any] = {
            "topics": [each.row() | {"hanging": hanging} for each, hanging in _with_hanging(page, shown)],
            "start": start, "matched": len(found), "total": len(known.rows),
            "cells": {}, "figures": {}, "problems": [],
        }  # fmt: skip
        if page.choice("full", ["", "yes"]) or "format" in page.query:
            data |= await figures_or_reason(page, known, [each.name for each in shown])
        return View(
            "topics/list.html", "Topics", data,
            extra={"page_rows": PAGE_ROWS, "policies": _POLICIES, "cells_url": _with_query(page, "topic-cells.json"),
                   "full_url": _with_query(page, "topics", full="yes"), "is_full": bool(data["cells"])},
            commands=("ottla topic list", "kafka-topics --list"),
        )  # fmt: skip

    async def cells(self, page: PageRequest) -> View:
        """Return the late figures of the rows that the list shows for the same query."""
        known = await cluster_map(page)
        found, start = await _selected(page, known)
        names = [each.name for each in found[start : start + PAGE_ROWS]]
        return View("topics/cells.html", "Topics", await figures_or_reason(page, known, names))

    # -- partitions ---------------------------------------------------------------------------------------------------

    async def show_partitions(self, page: PageRequest) -> View:
        topic = await topic_state(page)
        found, start = _partitions(page, topic)
        data: dict[str, Any] = {
            "topic": topic.name, "topic_id": topic.topic_id, "is_internal": topic.internal,
            "replication_factor": topic.replication_factor, "partitions_total": len(topic.partitions),
            "partitions": [partition_row(each) for each in found], "start": start,
            "cells": {}, "figures": {}, "problems": [],
        }  # fmt: skip
        if page.choice("full", ["", "yes"]) or "format" in page.query:
            data |= await _partition_figures(page, found)
        base = ("topics", topic.name)
        return View(
            "topics/partitions.html", topic.name, data, tabs=topic_tabs(page, topic.name, "partitions"),
            state=_state_of(topic.partitions),
            extra={"page_rows": _PARTITIONS, "cells_url": _with_query(page, *base, "partition-cells.json"),
                   "full_url": _with_query(page, *base, "partitions", full="yes"), "is_full": bool(data["cells"])},
            commands=(f"ottla topic describe {topic.name}", f"kafka-topics --describe --topic {topic.name}"),
        )  # fmt: skip

    async def partition_cells(self, page: PageRequest) -> View:
        found, _ = _partitions(page, await topic_state(page))
        return View("topics/cells.html", "Partitions", await _partition_figures(page, found))


def _with_query(page: PageRequest, *segments: str, **more: str) -> str:
    """Return a path of this cluster with the query of the page. A dot in the last segment stays a dot."""
    *before, last = segments
    path = url("c", page.cluster.name, *before)
    query = url(**{name: text for name, text in {**page.query, **more}.items() if name != "format"})
    return f"{path}/{last}{query.removeprefix('/')}"


# -- which topics ------------------------------------------------------------------------------------------------------


async def _selected(page: PageRequest, known: ClusterMap) -> tuple[list[TopicSummary], int]:
    """Return the topics that the query asks for, in its order, and the place of the first one that is shown."""
    text = page.query.get("q", "").strip().lower()
    with_internal = page.query.get("internal", "") == "yes"
    only_care = page.choice("state", ["", "care"]) == "care"
    policy = page.choice("cleanup", _POLICIES)
    policies = await cleanup_policies(page, known) if policy != "any" else {}
    hanging = _hanging(page)
    found = [
        each
        for each in known.summaries.values()
        if text in each.name.lower()
        and (with_internal or not each.is_internal)
        and (not only_care or each.severity or each.name in hanging)
        and (policy == "any" or policy in policies.get(each.name, ""))
    ]
    # A link to a page that is not there any more shows the last one.
    start = min(page.number("start", 0), max(len(found) - 1, 0) // PAGE_ROWS * PAGE_ROWS)
    return await _sorted(page, known, found, hanging), start


async def _sorted(
    page: PageRequest, known: ClusterMap, found: Iterable[TopicSummary], hanging: Mapping[str, int]
) -> list[TopicSummary]:
    """Return the topics in the order of the query; without one, what is wrong comes first."""
    sort = page.choice("sort", ["", *_SORTS, *_LATE_SORTS])
    if not sort:
        return sorted(found, key=lambda each: (-each.severity, each.name not in hanging, each.name))
    key = _SORTS[sort] if sort in _SORTS else await _late_key(page, known, sort)
    by_name = sorted(found, key=lambda each: each.name)
    return sorted(by_name, key=key, reverse=page.choice("order", ["asc", "desc"]) == "desc")


async def _late_key(page: PageRequest, known: ClusterMap, sort: str) -> Callable[[TopicSummary], Any]:
    values: Mapping[str, float]
    if sort == "size":
        values, _ = await topic_sizes(page, known, None)
    else:
        lags, values = await topic_lags(page)
        if sort == "lag":
            values = {name: each.time_lag_ms or each.lag or 0 for name, each in (lags or {}).items()}
    return lambda each: values.get(each.name, -1)


def _hanging(page: PageRequest) -> Mapping[str, int]:
    """Return the hanging transactions of each topic, as far as a reading of the first page has found them."""
    picture = page.console.watch(page.cluster).state.picture
    found: dict[str, int] = {}
    for each in picture.hanging if picture else ():
        found[each.name.topic] = found.get(each.name.topic, 0) + 1
    return found


def _with_hanging(page: PageRequest, topics: Iterable[TopicSummary]) -> list[tuple[TopicSummary, int]]:
    hanging = _hanging(page)
    return [(each, hanging.get(each.name, 0)) for each in topics]


# -- which partitions --------------------------------------------------------------------------------------------------


def _partitions(page: PageRequest, topic: TopicState) -> tuple[list[PartitionState], int]:
    """Return the partitions of a page, what is wrong first."""
    start = page.number("start", 0, high=max(len(topic.partitions), 1))
    ordered = sorted(topic.partitions, key=lambda each: (_severity(each), each.name))
    return ordered[start : start + _PARTITIONS], start


def _severity(each: PartitionState) -> int:
    return 0 if each.leader is None else 1 if each.is_under_replicated else 2 if each.is_reassigned else 3


def _state_of(partitions: Iterable[PartitionState]) -> str:
    worst = min((_severity(each) for each in partitions), default=3)
    return ("offline", "behind", "", "")[worst]


def partition_row(each: PartitionState) -> dict[str, Any]:
    """Return a partition as values of JSON."""
    state = ("offline", "behind", "moving", "ok")[_severity(each)]
    return {
        "topic": each.name.topic, "partition": each.name.partition, "state": state, "leader": each.leader,
        "is_preferred": each.leader == each.preferred, "replicas": list(each.replicas), "isr": list(each.isr),
        "behind": [number for number in each.replicas if number not in each.isr],
        "adding": list(each.adding), "removing": list(each.removing),
    }  # fmt: skip


async def _partition_figures(page: PageRequest, partitions: Sequence[PartitionState]) -> dict[str, Any]:
    """Return offsets and sizes of partitions, or why they cannot be read."""
    names = [each.name for each in partitions]
    led = tuple(each.name for each in partitions if each.leader is not None)
    try:
        nodes = (await cluster_map(page)).brokers
        read = partial(_read_figures, names=names, led=led, nodes=list(nodes.values()))
        starts, ends, sizes, problems = await page.read(("partition figures", tuple(names)), read, age_s=_AGE_S)
    except Failure as failure:
        return {"figures": {}, "cells": {}, "problems": [failure.message]}
    figures = {
        str(name.partition): {
            "log_start_offset": starts.get(name), "log_end_offset": ends.get(name),
            "size_bytes": None if (size := sizes.get(name)) is None else size,
        }
        for name in names
    }  # fmt: skip
    cells = {
        number: {
            "start": formats.count(row["log_start_offset"]), "end": formats.count(row["log_end_offset"]),
            "records": formats.count(_difference(row)), "size": formats.size(row["size_bytes"]),
        }
        for number, row in figures.items()
    }  # fmt: skip
    return {"figures": figures, "cells": cells, "problems": problems}


def _difference(row: Mapping[str, int | None]) -> int | None:
    start, end = row["log_start_offset"], row["log_end_offset"]
    return None if start is None or end is None else end - start


def _read_figures(
    client: AdminClient, names: Sequence[TopicPartition], led: Sequence[TopicPartition], nodes: Sequence[Any]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], dict[TopicPartition, int], list[str]]:
    """Return log starts, log ends and the sizes of the leaders' logs."""
    starts, ends = (
        client.call(partial(list_offsets, partitions=led, at=at, timeout_s=min(client.timeout_s / 2, _ANSWER_S_MAX)))
        for at in (EARLIEST, LATEST)
    )
    directories, problems = describe_directories(client, nodes, names)
    sizes: dict[TopicPartition, int] = {}
    for directory in directories:
        for name, log in directory.logs.items():
            if not log.is_future:
                sizes[name] = max(sizes.get(name, 0), log.size_bytes)
    return starts, ends, sizes, problems
