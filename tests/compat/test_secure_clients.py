"""Clients that were written elsewhere, over each listener and mechanism that they support."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from drivers import java_process, secure
from drivers.java import LATENCY

from ottla.testing.raw import RawClient
from secure_broker import WAYS as PASSWORD_WAYS
from secure_broker import SecureBroker

#: two of the listeners are enough for tokens
WAYS = [*PASSWORD_WAYS, ("SASL_PLAINTEXT", "OAUTHBEARER"), ("SASL_SSL", "OAUTHBEARER")]
NewTopic = Callable[[str], str]
every_way = pytest.mark.parametrize(("listener", "mechanism"), WAYS)


@pytest.fixture(scope="module")
def broker(secure_broker: SecureBroker) -> SecureBroker:
    return secure_broker


@pytest.fixture(scope="module")
def topic(broker: SecureBroker) -> Callable[[str], str]:
    """Returns the topic of a client, which has a partition for each way."""

    @cache
    def create(name: str) -> str:
        with RawClient(broker.addresses["PLAINTEXT"]) as client:
            client.create_topic(name, len(WAYS))
        return name

    return create


# -- clients in Python -------------------------------------------------------------------------------------------------


@pytest.mark.client
@every_way
def test_confluent_kafka(broker: SecureBroker, topic: NewTopic, listener: str, mechanism: str) -> None:
    partition = WAYS.index((listener, mechanism))
    assert secure.confluent(broker.librdkafka(listener, mechanism), topic("confluent"), partition) == b"record"


@pytest.mark.client
@every_way
def test_aiokafka(broker: SecureBroker, topic: NewTopic, listener: str, mechanism: str) -> None:
    partition = WAYS.index((listener, mechanism))
    assert secure.aiokafka(broker.way(listener, mechanism), topic("aiokafka"), partition) == b"record"


@pytest.mark.client
@every_way
def test_kafka_python(broker: SecureBroker, topic: NewTopic, listener: str, mechanism: str) -> None:
    partition = WAYS.index((listener, mechanism))
    assert secure.kafka_python(broker.way(listener, mechanism), topic("kafka-python"), partition) == b"record"


# -- clients in other languages: one process for all ways --------------------------------------------------------------


@pytest.mark.foreign
def test_java(broker: SecureBroker, tmp_path: Path) -> None:
    problem = java_process.missing()
    if problem is not None:
        pytest.skip(problem)
    # Kafka's client reads a token only from a place that a property of the JVM allows.
    prefix = "org.apache.kafka.sasl.oauthbearer.allowed."
    allowed = {f"{prefix}urls": f"file://{broker.token_file}", f"{prefix}files": str(broker.token_file)}
    java = java_process.JavaProcess("", allowed)
    try:
        for listener, mechanism in WAYS:
            file = tmp_path / "client.properties"
            file.write_text(broker.java(listener, mechanism))
            # It produces each record and consumes it before the next one.
            arguments = ["--topic", "java", "--num-records", "2", "--producer-acks", "all", "--record-size", "10"]
            at = java.at(broker.addresses[listener])
            assert "Percentiles" in at.run(LATENCY, *arguments, "--command-config", str(file))
    finally:
        java.close()


@pytest.mark.foreign
def test_franz_go(broker: SecureBroker, topic: NewTopic, franz_program: Path) -> None:
    ways = [broker.way(*way) for way in WAYS]
    assert secure.golang(franz_program, topic("franz-go"), ways) == _records(len(ways))


@pytest.mark.foreign
def test_sarama(broker: SecureBroker, topic: NewTopic, sarama_program: Path) -> None:
    ways = [broker.way(*way) for way in WAYS if way[1] in ("", "PLAIN")]
    assert secure.golang(sarama_program, topic("sarama"), ways) == _records(len(ways))


@pytest.mark.foreign
def test_kafkajs(broker: SecureBroker, topic: NewTopic, kafkajs_directory: Path) -> None:
    ways = [broker.way(*way) for way in WAYS]
    assert secure.kafkajs(kafkajs_directory / "node_modules", topic("kafkajs"), ways) == _records(len(ways))


def _records(count: int) -> list[str]:
    return [f"record {number}" for number in range(count)]
