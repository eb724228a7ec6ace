"""The pytest plugin: ``ottla_broker`` for a session, ``fresh_ottla_broker`` for one test, a factory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.testing.cluster import ClusterProcess
    from ottla.testing.process import BrokerProcess

StartBroker = Callable[..., "BrokerProcess"]


@pytest.fixture(scope="session")
def ottla_broker() -> Iterator[BrokerProcess]:
    """A running broker, shared by the whole session. Use topic names of your own."""
    from ottla.testing.process import BrokerProcess

    with BrokerProcess.start() as broker:
        yield broker


@pytest.fixture
def fresh_ottla_broker() -> Iterator[BrokerProcess]:
    """A running broker with nothing in it, for this test alone."""
    from ottla.testing.process import BrokerProcess

    with BrokerProcess.start() as broker:
        yield broker


@pytest.fixture(scope="module")
def ottla_cluster() -> Iterator[ClusterProcess]:
    """Three running brokers and ZooKeeper, shared by the tests of a module. Skips without Java or pyspark."""
    from ottla.cli.zookeeper_server import ZooKeeperFailed
    from ottla.testing.cluster import ClusterProcess

    try:
        cluster = ClusterProcess.start()
    except ZooKeeperFailed as missing:
        pytest.skip(str(missing))
    with cluster:
        yield cluster


@pytest.fixture
def start_ottla_broker() -> Iterator[StartBroker]:
    """Starts as many brokers as the test asks for: ``start_ottla_broker(data=None, settings=None)``."""
    from ottla.testing.process import BrokerProcess

    started: list[BrokerProcess] = []

    def start(data: str | os.PathLike[str] | None = None, settings: Mapping[str, str] | None = None) -> BrokerProcess:
        broker = BrokerProcess.start(data, settings)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.close()
