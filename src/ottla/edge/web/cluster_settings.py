"""Settings of a service that has several clusters: `cluster.NAME.PROPERTY` is a property of the client of one more.

The first cluster is that of `bootstrap.servers`; the setting `cluster.name` is its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_CLUSTER: Final = "cluster."
#: `cluster.name` is the name of the cluster of `bootstrap.servers`
CLUSTER_NAME: Final = "cluster.name"


def split_clusters(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the other settings, and the properties of the client of each further cluster by its name."""
    own: dict[str, str] = {}
    clusters: dict[str, dict[str, str]] = {}
    for name, text in texts.items():
        if name.startswith(_CLUSTER) and name != CLUSTER_NAME:
            cluster, _, key = name.removeprefix(_CLUSTER).partition(".")
            clusters.setdefault(cluster, {})[key] = text
        else:
            own[name] = text
    return own, clusters


def cluster_problems(clusters: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return why these clusters cannot be used: one without an address."""
    return [
        f"cluster.{name}.bootstrap.servers is missing"
        for name, properties in clusters.items()
        if not properties.get("bootstrap.servers")
    ]
