"""A digest of what a flow computes: its steps, expectations, sinks and everything that it reads by way of views.

The outputs of one batch must all come from the same computation. If a flow is edited while a batch is written in part,
the digest of the batch changes, and the outputs that have the batch refuse it. Places in files, descriptions and
triggers do not change what a flow computes; they are left out, and so is space around a query, which may move from the
declaration into a file of its own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final

from ottla.pipeline.declaration import Flow, PythonStep, Source, SqlStep
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import resolve
from ottla.spark.batch_manifest import batch_digest

#: keys of later releases: a flow without them has the digest that earlier releases gave it
_LEFT_OUT_IF_NONE: Final = ("registry", "key_format", "key_registry", "key_message", "key_type")


def flow_digest(graph: Graph, flow: Flow) -> str:
    """Return a digest that is equal for declarations which compute the same."""
    parts: list[object] = []
    for each in _parts(graph, flow):
        parts.append(canonical(each))
        if isinstance(each, Source):
            framed = each.framing.schema_files.values() if each.framing is not None else ()
            files = filter(None, (each.schema_file, *framed))
            parts += [_content(resolve(graph.declaration, file)) for file in files]
        if isinstance(each, Flow):
            parts += [code_of(graph, step) for step in each.steps if isinstance(step, PythonStep)]
    return batch_digest(parts)


def _parts(graph: Graph, flow: Flow) -> Iterator[Flow | Source]:
    """Yield the flow, the sources that it reads or decodes, and the same for each view that it reads."""
    yield replace(flow, trigger=None, description="")
    for name in flow.input_names:
        source = graph.declaration.sources.get(name) or graph.decoded_input(flow, name)
        if source is not None:
            yield replace(source, description="", max_offsets_per_trigger=None, starting_offsets="earliest")
        elif (above := graph.declaration.flows.get(name)) is not None and above.kind == "view":
            yield from _parts(graph, above)


def canonical(value: object) -> object:
    """Return a value of a declaration as JSON values, without the fields that take no part in comparisons."""
    if isinstance(value, SqlStep):
        return {"is": "SqlStep", "sql": value.sql.text.strip().rstrip(";").rstrip(), "name": value.name}
    if is_dataclass(value) and not isinstance(value, type):
        compared = {
            each.name: canonical(getattr(value, each.name))
            for each in fields(value)
            if each.compare and not (each.name in _LEFT_OUT_IF_NONE and getattr(value, each.name) is None)
        }
        return {"is": type(value).__name__, **compared}
    if isinstance(value, Mapping):
        return {str(key): canonical(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [canonical(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def code_of(graph: Graph, step: PythonStep) -> str:
    """Return the source code of the module of a Python step; empty if it cannot be read."""
    module = step.function.partition(":")[0]
    beside = Path(graph.declaration.file).resolve().parent / f"{module.partition('.')[0]}.py"
    if beside.is_file():
        return _content(str(beside))
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            return _content(spec.origin)
    return ""


def _content(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError:
        return ""
