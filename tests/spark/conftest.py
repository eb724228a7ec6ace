"""What all tests with Spark share: one session and one broker, for starting them is what costs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.client.cluster import Cluster
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

Topics = Callable[..., str]

_BROKER = {
    # Records of the tests have any timestamp, and the broker lives long enough for retention to run.
    "log.retention.ms": "-1",
    "log.cleaner.backoff.ms": "100",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
#: two tasks at a time, and each may fail once, as on a cluster
_MASTER = "local[2,2]"
_SESSION = {
    "spark.driver.memory": "1g",
    # Tests run little and start often: compiling less is faster.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    # For so few rows, what Spark does to be fast is what makes it slow.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Spark's own Kafka connector, brought here once by the pom beside this file; not in version control
CONNECTOR_JARS = sorted((Path(__file__).resolve().parents[2] / ".bench" / "spark-kafka").glob("*.jar"))

_numbers = itertools.count()


@pytest.fixture(scope="session")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings=_BROKER) as broker:
        yield broker
        assert " ERROR " not in broker.errors()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session of all tests. They give their queries checkpoints of their own and stop what they start."""
    from ottla.spark.java import JavaMissing
    from ottla.spark.session import build_session

    jars = {"spark.jars": ",".join(map(str, CONNECTOR_JARS))} if CONNECTOR_JARS else {}
    try:
        # Spark makes a directory for every table of its catalog.
        warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
        session = build_session("ottla-tests", _MASTER, {**_SESSION, **warehouse, **jars})
    except JavaMissing as missing:
        pytest.skip(str(missing))
    # A query that is stopped in the middle of a batch would otherwise fill the report with Java's traces.
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def cluster(broker: BrokerProcess) -> Iterator[Cluster]:
    with Cluster(broker.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def topics(cluster: Cluster) -> Topics:
    """Makes topics that nobody else uses: ``topics(partitions=3, config={})`` is the name of one."""

    def make(partitions: int = 2, config: Mapping[str, str] | None = None) -> str:
        name = f"spark-{next(_numbers)}"
        assert cluster.create_topic(name, partitions, config or {})
        return name

    return make


@pytest.fixture
def topic(topics: Topics) -> str:
    """The name of an empty topic with two partitions."""
    return topics(2)


@pytest.fixture
def kafka_connector() -> str:
    """The name of the format of Spark's own connector, for tests that compare with it."""
    if not CONNECTOR_JARS:
        pytest.skip("Spark's Kafka connector is missing; the command in tests/spark/pom.xml brings it")
    return "kafka"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for one query's checkpoint."""
    return str(tmp_path / "checkpoint")
