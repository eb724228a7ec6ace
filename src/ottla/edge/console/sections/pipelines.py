"""The pipelines: their flows as a graph with rates, what each has written and rejected, and what has failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

from ottla.admin.failure import NotFound
from ottla.edge.console import rendering
from ottla.edge.console.console import Console
from ottla.edge.console.flow_drawing import NODE_HEIGHT, NODE_WIDTH, draw
from ottla.edge.console.pages import Events, PageRequest, Route, View
from ottla.edge.console.pipeline_status import FlowRow, PipelineRow, read_pipelines
from ottla.edge.console.sections.quarantine import pipeline_tabs, quarantine_routes

_EVERY_S: Final = 2.0
_NAME_CHARACTERS: Final = 22


class Pipelines:
    """The section of the pipelines."""

    key, title, path, letter = "pipelines", "Pipelines", "pipelines", "p"

    def is_available(self, console: Console) -> bool:
        return bool(console.settings.pipeline_status_urls)

    def routes(self) -> Sequence[Route]:
        return [
            Route("pipelines", self.list, summary="List the pipelines."),
            Route("pipelines/{pipeline}", self.show, summary="Show the flows of a pipeline."),
            Route("pipelines/{pipeline}/live", self.live, summary="Get the flows again and again, as events."),
            *quarantine_routes(),
        ]

    async def list(self, page: PageRequest) -> View:
        rows, problems = await _read(page)
        data = {"pipelines": [_summary(row) for row in rows], "problems": problems}
        return View(
            "pipelines/list.html", "Pipelines", data, tabs=pipeline_tabs(page, "pipelines"),
            commands=("ottla pipeline status FILE",),
        )  # fmt: skip

    async def show(self, page: PageRequest) -> View:
        row = await _find(page)
        data = pipeline(row)
        state = "error" if row.failed or row.state == "silent" else "ok" if row.state == "running" else ""
        return View(
            "pipelines/show.html", row.name, data, state=state, extra={"drawing": drawing(row)},
            commands=("ottla pipeline status FILE", "ottla pipeline explain FILE"),
        )  # fmt: skip

    async def live(self, page: PageRequest) -> Events:
        await _find(page)
        return Events(_live(page))


async def _live(page: PageRequest) -> AsyncIterator[tuple[str, str]]:
    while True:
        await asyncio.sleep(_EVERY_S)
        row = await _find(page)
        text = rendering.part("pipelines/body.html", cluster=page.cluster.name, drawing=drawing(row), **pipeline(row))
        yield "pipeline", text


async def _read(page: PageRequest) -> tuple[list[PipelineRow], list[str]]:
    return await asyncio.to_thread(read_pipelines, page.console.settings.pipeline_status_urls)


async def _find(page: PageRequest) -> PipelineRow:
    rows, problems = await _read(page)
    name = page.params["pipeline"]
    found = next((row for row in rows if row.name == name), None)
    if found is None:
        reason = f" ({'; '.join(problems)})" if problems else ""
        raise NotFound(f"there is no pipeline {name!r}{reason}; start it with 'ottla pipeline run FILE'")
    return found


def _summary(row: PipelineRow) -> dict[str, Any]:
    flows = [node for node in row.nodes if node.state]
    return {
        "name": row.name, "state": row.state, "host": row.host, "master": row.master, "started_ms": row.started_ms,
        "updated_ms": row.updated_ms, "flows": len(flows), "failed": len(row.failed),
        "rows_per_second": sum(flow.rows_per_second for flow in flows),
        "quarantined": sum(flow.quarantined for flow in flows),
        "lag": sum(flow.lag or 0 for flow in flows),
    }  # fmt: skip


def pipeline(row: PipelineRow) -> dict[str, Any]:
    """Return a pipeline as values of JSON; flows that failed come first."""
    order = {"failed": 0, "restarting": 1}
    nodes = sorted(row.nodes, key=lambda node: order.get(node.state, 2))
    return {**_summary(row), "nodes": [_node(node) for node in nodes]}


def _node(node: FlowRow) -> dict[str, Any]:
    return {
        "name": node.name, "kind": node.kind, "zone": node.zone, "inputs": list(node.inputs),
        "topics": list(node.topics), "state": node.state, "rows": node.rows, "rows_per_second": node.rows_per_second,
        "quarantined": node.quarantined, "dropped": node.dropped, "late": node.late, "lag": node.lag,
        "restarts": node.restarts, "error": node.error, "violations": dict(node.violations),
    }  # fmt: skip


def drawing(row: PipelineRow) -> dict[str, Any]:
    """Return the graph of a pipeline for the template."""
    made = draw({node.name: node.inputs for node in row.nodes})
    by_name = {node.name: node for node in row.nodes}
    return {
        "width": made.width, "height": made.height, "node_width": NODE_WIDTH, "node_height": NODE_HEIGHT,
        "edges": [{"path": edge.path, "source": edge.source, "target": edge.target} for edge in made.edges],
        "nodes": [
            {"x": placed.x, "y": placed.y, "label": _short(placed.name), **_node(by_name[placed.name])}
            for placed in made.nodes
        ],
    }  # fmt: skip


def _short(name: str) -> str:
    """Return a name that fits into a node; names differ at their ends."""
    if len(name) <= _NAME_CHARACTERS:
        return name
    half = (_NAME_CHARACTERS - 1) // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"
