"""Clients over listeners with TLS and SASL: each produces one record and reads it, over each way to connect.

A way is what ``SecureBroker.way`` returns. The record of a way goes to the partition with the number of the way.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AiokafkaPlace
from aiokafka import abc as aiokafka_abc
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPlace
from kafka.net.sasl.oauth import AbstractTokenProvider

from drivers import DEADLINE_S, Refused
from drivers.kafka_python import KafkaConsumer, KafkaProducer, TopicPartition

Way = Mapping[str, str]


def confluent(settings: Mapping[str, Any], topic: str, partition: int) -> bytes | None:
    """Take the settings of librdkafka instead of a way."""
    producer = Producer(dict(settings))
    failures: list[Any] = []
    producer.produce(
        topic, b"record", partition=partition, on_delivery=lambda error, _: failures.append(error) if error else None
    )
    unsent = producer.flush(DEADLINE_S)
    if failures:
        raise Refused(failures[0].code(), failures[0].str())
    assert not unsent
    with closing(Consumer({**settings, "group.id": "never-joined", "enable.auto.commit": False})) as consumer:
        consumer.assign([ConfluentPlace(topic, partition, 0)])
        (message,) = consumer.consume(1, DEADLINE_S)
        assert message.error() is None, message.error()
        value: bytes | None = message.value()
        return value


def _tls(way: Way) -> ssl.SSLContext | None:
    if "ca" not in way:
        return None
    context = ssl.create_default_context(cafile=way["ca"])
    if "certificate" in way:
        context.load_cert_chain(way["certificate"])
    return context


def _sasl(way: Way) -> dict[str, str]:
    """Return the names that aiokafka and kafka-python share."""
    names = {"mechanism": "sasl_mechanism", "user": "sasl_plain_username", "password": "sasl_plain_password"}
    return {names[key]: text for key, text in way.items() if key in names}


class _AiokafkaToken(aiokafka_abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, way: Way) -> None:
        self._token = way["token"]

    async def token(self) -> str:
        return self._token


class _KafkaPythonToken(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, way: Way) -> None:
        self._token = way["token"]

    def token(self) -> str:
        return self._token


def aiokafka(way: Way, topic: str, partition: int) -> bytes | None:
    settings: dict[str, Any] = {
        "bootstrap_servers": way["bootstrap"], "security_protocol": way["protocol"], "ssl_context": _tls(way),
        **_sasl(way), **({"sasl_oauth_token_provider": _AiokafkaToken(way)} if "token" in way else {}),
    }  # fmt: skip

    async def run() -> bytes | None:
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(topic, b"record", partition=partition)
        async with AIOKafkaConsumer(**settings, group_id=None, auto_offset_reset="earliest") as consumer:
            consumer.assign([AiokafkaPlace(topic, partition)])
            value: bytes | None = (await consumer.getone()).value
            return value

    return asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def kafka_python(way: Way, topic: str, partition: int) -> bytes | None:
    settings: dict[str, Any] = {
        "bootstrap_servers": way["bootstrap"], "security_protocol": way["protocol"], "ssl_context": _tls(way),
        **_sasl(way), **({"sasl_oauth_token_provider": _KafkaPythonToken(way)} if "token" in way else {}),
    }  # fmt: skip
    with closing(KafkaProducer(**settings)) as producer:
        producer.send(topic, b"record", partition=partition).get(DEADLINE_S)
    with closing(KafkaConsumer(**settings, group_id=None, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, partition)])
        value: bytes | None = next(consumer).value
        return value


def golang(command: Path, topic: str, ways: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the values that a program in Go has read, one for each way."""
    lines = "".join(json.dumps(way) + "\n" for way in ways)
    done = subprocess.run(
        [str(command), "secure", topic], input=lines, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def kafkajs(modules: Path, topic: str, ways: Sequence[Way]) -> list[str]:
    node = shutil.which("node")
    assert node is not None
    task = {"do": "secure", "topic": topic, "clients": [_kafkajs_client(way) for way in ways]}
    script = Path(__file__).resolve().parent.parent / "node" / "client.js"
    done = subprocess.run(
        [node, str(script)], input=json.dumps(task), capture_output=True, text=True, timeout=DEADLINE_S,
        env={**os.environ, "NODE_PATH": str(modules)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "result" in answer, answer
    values: list[str] = answer["result"]
    return values


def _kafkajs_client(way: Way) -> dict[str, Any]:
    settings: dict[str, Any] = {"brokers": [way["bootstrap"]]}
    if "ca" in way:
        settings["ssl"] = {"ca": [Path(way["ca"]).read_text()]}
        if "certificate" in way:
            pem = Path(way["certificate"]).read_text()
            settings["ssl"] |= {"key": pem, "cert": pem}
    if "token" in way:
        settings["sasl"] = {"mechanism": "oauthbearer", "token": way["token"]}
    elif "mechanism" in way:
        mechanism = way["mechanism"].lower()
        settings["sasl"] = {"mechanism": mechanism, "username": way["user"], "password": way["password"]}
    return settings
