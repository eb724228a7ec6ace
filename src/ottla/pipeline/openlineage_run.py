"""OpenLineage events of one run: the observer of its status and the thread that sends, or neither."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Self

import pyspark
from pyspark.sql.types import StructType

import ottla
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout
from ottla.pipeline.openlineage import EventBuilder, Observer
from ottla.pipeline.openlineage_transport import Sender, Target, target_of
from ottla.pipeline.status import RunStatus


class RunLineage:
    """Sends the events of a run if the pipeline or the environment says where to."""

    def __init__(self, target: Target | None, builder: EventBuilder | None) -> None:
        self._sender = Sender(target) if target is not None else None
        self._observer = None
        if self._sender is not None and builder is not None:
            self._observer = Observer(builder, self._sender.emit)

    @classmethod
    def of(cls, graph: Graph, layout: Layout, schemas: Mapping[str, StructType]) -> Self:
        """Return the lineage of a run that begins. Raise BadConfiguration."""
        target = target_of(graph.declaration, os.environ)
        if target is None:
            return cls(None, None)
        columns = {
            name: [(field.name, field.dataType.simpleString()) for field in schema] for name, schema in schemas.items()
        }
        builder = EventBuilder(
            graph, layout, namespace=target.namespace, schemas=columns, engine_version=pyspark.__version__,
            own_version=ottla.__version__,
        )  # fmt: skip
        return cls(target, builder)

    def observe(self, status: RunStatus) -> None:
        if self._observer is not None:
            self._observer.observe(status)

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
