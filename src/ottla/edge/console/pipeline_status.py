"""Reads what pipelines say about themselves: the files in their storage, or the status that a run serves over HTTP.

    DIR/_status/PIPELINE.json          written by `ottla pipeline run` every few seconds
    http://HOST:PORT/status            with `ottla pipeline run --metrics HOST:PORT`

Both are the same document. Everything in it is checked here, because other programs may write such files.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_STATUS_DIRECTORY: Final = "_status"
_DOCUMENT_BYTES_MAX: Final = 8 << 20
_PIPELINES_MAX: Final = 200
_TIMEOUT_S: Final = 3.0
#: a run that has not written its status for this long does not run, as for `ottla pipeline status`
_SILENCE_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRow:
    """One source or flow of a pipeline."""

    name: str
    kind: str
    zone: str
    inputs: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    #: waiting, running, restarting, done, failed or stopped; empty for sources and views
    state: str = ""
    rows: int = 0
    rows_per_second: float = 0.0
    quarantined: int = 0
    dropped: int = 0
    late: int = 0
    lag: int | None = None
    restarts: int = 0
    error: str = ""
    violations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """One run of a pipeline."""

    name: str
    #: running, stopping, ended or silent
    state: str
    host: str
    master: str
    started_ms: int
    updated_ms: int
    nodes: tuple[FlowRow, ...]

    @property
    def failed(self) -> list[FlowRow]:
        return [node for node in self.nodes if node.state == "failed"]


def read_pipelines(places: Sequence[str]) -> tuple[list[PipelineRow], list[str]]:
    """Return the pipelines of these directories and URLs, and why some of the places could not be read. Blocks."""
    found: list[PipelineRow] = []
    problems: list[str] = []
    for place in places:
        try:
            documents = [_fetch(place)] if "://" in place else _files(Path(place))
            found += [parse(document, now_ms=int(time.time() * 1000)) for document in documents]
        except (OSError, ValueError) as error:
            problems.append(f"{place}: {error}")
    return sorted(found, key=lambda each: (each.state == "running", each.name))[:_PIPELINES_MAX], problems


def _files(directory: Path) -> list[Any]:
    if not directory.is_dir():
        raise ValueError("there is no such directory; it appears when a pipeline is started")
    paths = sorted((directory / _STATUS_DIRECTORY).glob("*.json"))[:_PIPELINES_MAX]
    return [json.loads(_read(path)) for path in paths]


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_DOCUMENT_BYTES_MAX + 1)
    if len(data) > _DOCUMENT_BYTES_MAX:
        raise ValueError(f"{path.name} is larger than {_DOCUMENT_BYTES_MAX:,} bytes")
    return data


def _fetch(url: str) -> Any:
    if not url.startswith(("http://", "https://")):
        raise ValueError("only http and https URLs and directories are read")
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:
            data = answer.read(_DOCUMENT_BYTES_MAX + 1)
    except urllib.error.URLError as error:
        raise ValueError(f"no answer: {error.reason}") from None
    if len(data) > _DOCUMENT_BYTES_MAX:
        raise ValueError(f"the answer is larger than {_DOCUMENT_BYTES_MAX:,} bytes")
    return json.loads(data)


def parse(document: Any, *, now_ms: int) -> PipelineRow:
    """Return the run that a document describes. Raise ValueError if it is not the status of a pipeline."""
    try:
        flows = {flow["name"]: flow for flow in document["flows"]}
        nodes = document.get("nodes") or [
            {"name": flow["name"], "kind": flow["kind"], "zone": flow["zone"]} for flow in document["flows"]
        ]
        state = str(document["state"])
        if state != "ended" and now_ms - int(document["updated_ms"]) > _SILENCE_S_MAX * 1000:
            state = "silent"
        return PipelineRow(
            name=str(document["pipeline"]), state=state, host=str(document["host"]), master=str(document["master"]),
            started_ms=int(document["started_ms"]), updated_ms=int(document["updated_ms"]),
            nodes=tuple(_node(node, flows.get(node["name"], {})) for node in nodes),
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the document is not the status of a pipeline ({error!r})") from None


def _node(node: Mapping[str, Any], flow: Mapping[str, Any]) -> FlowRow:
    violations = {str(name): int(count) for name, count in dict(flow.get("violations", {})).items()}
    lag = flow.get("lag")
    return FlowRow(
        name=str(node["name"]), kind=str(node["kind"]), zone=str(node["zone"]),
        inputs=tuple(map(str, node.get("inputs", ()))), topics=tuple(map(str, node.get("topics", ()))),
        state=str(flow.get("state", "")), rows=int(flow.get("rows", 0)),
        rows_per_second=float(flow.get("rows_per_second", 0.0)), quarantined=int(flow.get("quarantined", 0)),
        dropped=int(flow.get("dropped", 0)), late=int(flow.get("late", 0)), lag=None if lag is None else int(lag),
        restarts=int(flow.get("restarts", 0)), error=str(flow.get("error") or ""), violations=violations,
    )  # fmt: skip
