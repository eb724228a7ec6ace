"""Limits of connections of one listener, changed while the broker runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

API_VERSIONS = ApiVersionsRequest()
BROKER, SET, DELETE = 4, 0, 1


class Listeners:
    """A broker with two listeners; the first one is that of other brokers."""

    def __init__(self, broker: BrokerProcess) -> None:
        addresses = broker.ready_line.split()[1].split(",")
        self.brokers, self.external = (each.partition("://")[2] for each in addresses)
        self._admin = RawClient(self.brokers)
        self._id = broker.ready_line.partition("id=")[2].split()[0]

    def alter(self, name: str, text: str | None) -> int:
        config = AlterableConfig(name=name, config_operation=DELETE if text is None else SET, value=text)
        resource = AlterConfigsResource(resource_type=BROKER, resource_name=self._id, configs=[config])
        return int(self._admin.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code)

    def close(self) -> None:
        self._admin.close()


@pytest.fixture(scope="module")
def listeners() -> Iterator[Listeners]:
    settings = {
        "listeners": "BROKERS://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,EXTERNAL:PLAINTEXT",
    }
    with BrokerProcess.start(settings=settings) as broker:
        found = Listeners(broker)
        yield found
        found.close()
        assert "Traceback" not in broker.errors()


def connect(stack: ExitStack, address: str) -> RawClient:
    client = stack.enter_context(RawClient(address))
    client.ask(API_VERSIONS, 0)
    return client


def test_limit_of_a_listener_changes_at_run_time(listeners: Listeners) -> None:
    with ExitStack() as stack:
        clients = [connect(stack, listeners.external) for _ in range(3)]
        assert listeners.alter("listener.name.external.max.connections", "2") == 0
        with RawClient(listeners.external) as another:
            assert another.receive_until_closed() == b""
        for client in clients:
            client.ask(API_VERSIONS, 0)
        assert listeners.alter("listener.name.external.max.connections", None) == 0
        connect(stack, listeners.external)


def test_connection_of_a_broker_closes_the_one_that_was_used_least_recently(listeners: Listeners) -> None:
    with ExitStack() as stack:
        first, second = (connect(stack, listeners.external) for _ in range(2))
        first.ask(API_VERSIONS, 0)
        assert listeners.alter("max.connections", "3") == 0
        connect(stack, listeners.brokers)
        assert second.receive_until_closed() == b""
        first.ask(API_VERSIONS, 0)
        assert listeners.alter("max.connections", None) == 0
