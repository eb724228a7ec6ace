"""One broker and one REST proxy for all tests of the proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from edge_broker import Broker, edge_broker
from rest_process import RestClient, rest_process


@pytest.fixture(scope="session")
def rest_broker() -> Iterator[Broker]:
    """A broker with ACLs whose clients are all super users."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS", "auto.create.topics.enable": "false",
    }  # fmt: skip
    with edge_broker(settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def rest(rest_broker: Broker) -> Iterator[RestClient]:
    """A REST proxy for that broker. Use topic names of your own."""
    with rest_process(rest_broker.bootstrap) as client:
        client.find_cluster()
        yield client
