"""Clients for the tests here: each that can be had is asked, each that cannot says in one line how to get it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import kafka_server
from drivers import golang
from drivers import kafkajs as kafkajs_driver
from drivers.aio import Aiokafka
from drivers.confluent import Confluent
from drivers.franz_go import FranzGo
from drivers.java import LATENCY, JavaTools, ToolRunner
from drivers.kafka_python import KafkaPython
from drivers.kafkajs import KafkaJs
from drivers.kcat import MISSING as KCAT_MISSING
from drivers.kcat import Kcat, kcat_path
from drivers.parameters import NewTopic

from ottla.testing import BrokerProcess
from secure_broker import SecureBroker

#: tools that are built or brought here once, not in version control
BENCH = Path(__file__).resolve().parents[2] / ".bench"

_numbers = itertools.count()


@pytest.fixture(scope="session")
def confluent(ottla_broker: BrokerProcess) -> Iterator[Confluent]:
    yield Confluent(ottla_broker.bootstrap)
    # Every test here asks for it, so this is said of all of them: no client met a bug of the broker's.
    assert " ERROR " not in ottla_broker.errors()


@pytest.fixture(scope="session")
def aiokafka(ottla_broker: BrokerProcess) -> Aiokafka:
    return Aiokafka(ottla_broker.bootstrap)


@pytest.fixture(scope="session")
def kafka_python(ottla_broker: BrokerProcess) -> KafkaPython:
    return KafkaPython(ottla_broker.bootstrap)


@pytest.fixture(scope="session")
def kcat(ottla_broker: BrokerProcess) -> Kcat:
    if kcat_path() is None:
        pytest.skip(KCAT_MISSING)
    return Kcat(ottla_broker.bootstrap)


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Any:
    """The client that the test is parametrised with, by name."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def new_topic(confluent: Confluent) -> NewTopic:

    def create(**options: Any) -> str:
        name = f"compat-{next(_numbers)}"
        confluent.create_topic(name, **options)
        return name

    return create


@pytest.fixture
def unused_name() -> str:
    return f"compat-{next(_numbers)}"


@pytest.fixture
def group(unused_name: str) -> str:
    """A group that nobody is in."""
    return f"group-{unused_name}"


@pytest.fixture(scope="session")
def quick_broker() -> Iterator[BrokerProcess]:
    """A broker with which members of the consumer protocol share partitions sooner than with its default of 5 s.

    The broker tells them the interval of heartbeats. librdkafka gives up one that is not answered within it.
    """
    interval = {f"group.consumer.{name}heartbeat.interval.ms": "1000" for name in ("", "min.")}
    with BrokerProcess.start(settings=interval) as broker:
        yield broker
        assert " ERROR " not in broker.errors()


@pytest.fixture(scope="session")
def secure_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    """A broker with TLS, logins and ACLs. Use topic names of your own."""
    with SecureBroker(tmp_path_factory.mktemp("secure")) as broker:
        yield broker
        errors = broker.process.errors()
        assert " ERROR " not in errors, errors


# -- clients that are not Python's -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def franz_program() -> Path:
    return _built("go", "franz")


@pytest.fixture(scope="session")
def franz_go(ottla_broker: BrokerProcess, franz_program: Path) -> FranzGo:
    return FranzGo(ottla_broker.bootstrap, franz_program)


@pytest.fixture(scope="session")
def sarama_program() -> Path:
    return _built("sarama", "sarama")


@pytest.fixture(scope="session")
def sarama(ottla_broker: BrokerProcess, sarama_program: Path) -> golang.Member:
    return golang.Member(ottla_broker.bootstrap, sarama_program)


@pytest.fixture(scope="session")
def segmentio(ottla_broker: BrokerProcess) -> golang.Member:
    return golang.Member(ottla_broker.bootstrap, _built("segmentio", "segmentio"))


def _built(source: str, command: str) -> Path:
    path = BENCH / "go" / command
    problem = golang.build(source, path)
    if problem is not None:
        pytest.skip(problem)
    return path


@pytest.fixture(scope="session")
def kafkajs_directory() -> Path:
    problem = kafkajs_driver.install(BENCH / "node")
    if problem is not None:
        pytest.skip(problem)
    return BENCH / "node"


@pytest.fixture(scope="session")
def kafkajs(ottla_broker: BrokerProcess, kafkajs_directory: Path) -> KafkaJs:
    return KafkaJs(ottla_broker.bootstrap, kafkajs_directory)


@pytest.fixture(scope="session")
def java_tools(ottla_broker: BrokerProcess) -> Iterator[JavaTools]:
    problem = kafka_server.fetch() or kafka_server.available()
    if problem is not None:
        pytest.skip(problem)
    kafka = kafka_server.ApacheKafka()
    # One record there and back, by the producer and the consumer that most tools use.
    options = ["--topic", "java-tools-start", "--num-records", "1", "--producer-acks", "all", "--record-size", "10"]
    kafka.archive_classes(LATENCY, ["--bootstrap-server", ottla_broker.bootstrap, *options])
    runner = ToolRunner(kafka.run_tool)
    yield JavaTools(ottla_broker.bootstrap, runner.run)
    runner.close()
    kafka.stop()
