"""A broker, and Java for runs of Spark Declarative Pipelines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing import BrokerProcess


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """A broker for one test: the topics of the example have the same names in each."""
    with BrokerProcess.start(settings={"log.retention.ms": "-1"}) as broker:
        yield broker


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    from ottla.spark.java import JavaMissing, find_java

    try:
        find_java()
    except JavaMissing as missing:
        pytest.skip(str(missing))
