"""Connections of a pipeline to its cluster, apart from those of Spark's tasks."""

from __future__ import annotations

from ottla.client.cluster import Cluster
from ottla.client.security import PROPERTIES
from ottla.pipeline.declaration import Declaration


def open_cluster(declaration: Declaration, *, brokers: str | None = None, timeout_s: float = 30.0) -> Cluster:
    """Return a client of the pipeline's cluster, or of these `brokers`. Raise PropertyRefused for wrong properties.

    Properties of readers and producers, such as `fetch.max.wait.ms`, are left to Spark's tasks.
    """
    properties = {
        name: value
        for name, value in declaration.properties.items()
        if name in PROPERTIES or name.startswith(("security.", "ssl.", "sasl."))
    }
    return Cluster(
        brokers or declaration.brokers, properties, client_id=f"ottla-{declaration.name}", timeout_s=timeout_s
    )
