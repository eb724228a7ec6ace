"""The pytest plugin: fixtures with a broker for a session, a broker or several for one test, and a cluster."""

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
    """A running broker, which all tests of the session share: each test must use other names of topics."""
    from ottla.testing.process import BrokerProcess

    with BrokerProcess.start() as broker:
        yield broker


@pytest.fixture
def fresh_ottla_broker() -> Iterator[BrokerProcess]:
    """A running broker without topics, for one test."""
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
    """A function that starts a broker, which is stopped after the test: ``start(data=None, settings=None)``."""
    from ottla.testing.process import BrokerProcess

    started: list[BrokerProcess] = []

    def start(data: str | os.PathLike[str] | None = None, settings: Mapping[str, str] | None = None) -> BrokerProcess:
        broker = BrokerProcess.start(data, settings)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.close()
