"""Which clients a test is asked of. A client that is not Python's may be absent, so its tests are marked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

#: makes a topic under a name of its own: ``new_topic(partitions=3, config={...})``
NewTopic = Callable[..., str]

PYTHON_CLIENTS = [pytest.param(name, marks=pytest.mark.client) for name in ("confluent", "aiokafka", "kafka_python")]
#: those that produce and consume; names of fixtures
CLIENTS = [*PYTHON_CLIENTS, *(pytest.param(name, marks=pytest.mark.foreign) for name in ("kcat", "franz_go"))]
#: kafkajs has no consumer without a group, and its producer cannot say everything
WRITERS = READERS = [*CLIENTS, pytest.param("kafkajs", marks=pytest.mark.foreign)]

every_python_client = pytest.mark.parametrize("client", PYTHON_CLIENTS, indirect=True)
every_client = pytest.mark.parametrize("client", CLIENTS, indirect=True)
