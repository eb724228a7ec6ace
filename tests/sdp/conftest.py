"""A broker, and what runs of Spark Declarative Pipelines need beyond pyspark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing import BrokerProcess

for _module in ("pyspark", "grpc", "grpc_status", "google.rpc", "zstandard"):
    pytest.importorskip(_module, reason=f"{_module} is missing: pip install '.[sdp]'")


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
