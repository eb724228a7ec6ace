"""Clients for the tests here: each that can be had is asked, each that cannot says in one line how to get it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from drivers.aio import Aiokafka
from drivers.confluent import Confluent
from drivers.kafka_python import KafkaPython
from drivers.kcat import MISSING as KCAT_MISSING
from drivers.kcat import Kcat, kcat_path

from ottla.testing import BrokerProcess

NewTopic = Callable[..., str]

PYTHON_CLIENTS = [pytest.param(name, marks=pytest.mark.client) for name in ("confluent", "aiokafka", "kafka_python")]
CLIENTS = [*PYTHON_CLIENTS, pytest.param("kcat", marks=pytest.mark.foreign)]

every_python_client = pytest.mark.parametrize("client", PYTHON_CLIENTS, indirect=True)
every_client = pytest.mark.parametrize("client", CLIENTS, indirect=True)

_numbers = itertools.count()


@pytest.fixture(scope="session")
def confluent(ottla_broker: BrokerProcess) -> Confluent:
    return Confluent(ottla_broker.bootstrap)


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
    """Makes a topic under a name of its own: ``new_topic(partitions=3, config={...})``."""

    def create(**options: Any) -> str:
        name = f"compat-{next(_numbers)}"
        confluent.create_topic(name, **options)
        return name

    return create


@pytest.fixture
def unused_name() -> str:
    return f"compat-{next(_numbers)}"
