"""The APIs that a broker serves, without a broker that runs."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from ottla.broker.broker import Broker
from ottla.broker.cluster_metadata import ClusterMetadata
from ottla.broker.component import ServedApi
from ottla.broker.dispatch import table_of
from ottla.model.settings import BrokerSettings


@cache
def served_apis() -> dict[int, ServedApi]:
    """Return the table of a broker that is created and not started, by API key."""
    settings = BrokerSettings.parse({"log.dirs": "unused"})
    store: Any = object()
    loop = asyncio.new_event_loop()
    try:
        broker = Broker(settings, loop=loop)
        broker._build(ClusterMetadata(store, settings, cluster_id="cluster", new_id=lambda: bytes(16)))
        return table_of(broker._components)
    finally:
        loop.close()
