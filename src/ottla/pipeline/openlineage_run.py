"""OpenLineage events of one run: the observer of its status and the thread that sends, or neither."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyspark
from pyspark.sql.types import StructType

import ottla
from ottla.pipeline.graph import Graph
from ottla.pipeline.layout import Layout
from ottla.pipeline.openlineage import EventBuilder, Observer
from ottla.pipeline.openlineage_transport import Sender, target_of
from ottla.pipeline.status import RunStatus


class RunLineage:
    """Sends the events of a run if the pipeline or the environment says where to."""

    def __init__(self, graph: Graph, layout: Layout, schemas: Mapping[str, StructType]) -> None:
        """Begin the lineage of a run. Raise BadConfiguration."""
        self._sender: Sender | None = None
        self._observer: Observer | None = None
        target = target_of(graph.declaration, os.environ)
        if target is None:
            return
        builder = EventBuilder(
            graph,
            layout,
            namespace=target.namespace,
            schemas={
                name: [(field.name, field.dataType.simpleString()) for field in schema]
                for name, schema in schemas.items()
            },
            engine_version=pyspark.__version__,
            own_version=ottla.__version__,
        )
        self._sender = Sender(target)
        self._observer = Observer(builder, self._sender.emit)

    def observe(self, status: RunStatus) -> None:
        if self._observer is not None:
            self._observer.observe(status)

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()
