"""The broker behind the services in these tests: Ottla's, or Apache Kafka's for `make campaign NAME=edge-kafka`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import pytest

from ottla.testing.process import TEST_SETTINGS, BrokerProcess

IS_KAFKA = bool(os.environ.get("OTTLA_EDGE_KAFKA"))


class Broker(Protocol):
    """What the services use: they see the protocol only."""

    @property
    def bootstrap(self) -> str: ...


@contextmanager
def edge_broker(settings: Mapping[str, str] | None = None) -> Iterator[Broker]:
    """Return a new broker. Skip the test if Apache Kafka is asked for and cannot run."""
    if not IS_KAFKA:
        with BrokerProcess.start(settings=settings) as broker:
            yield broker
        return
    from benchmarks import kafka_server

    problem = kafka_server.fetch() or kafka_server.available()
    if problem is not None:
        pytest.skip(problem)
    # The id of a single broker of Ottla, which answers contain.
    kafka = kafka_server.ApacheKafka(node_id=0, settings={**TEST_SETTINGS, **(settings or {})})
    try:
        kafka.start()
        yield kafka
    finally:
        kafka.stop()
