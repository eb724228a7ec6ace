"""What every clause starts with: a raw client of a running broker, and topics of its own."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.offset_fetch import OffsetFetchRequest

_numbers = itertools.count()


class Topic(NamedTuple):
    name: str
    id: bytes

    def key(self, *, by_id: bool) -> str | bytes:
        """How a request names it: by id from the version on that uses ids."""
        return self.id if by_id else self.name


NewTopic = Callable[..., Topic]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "clauses":
            item.add_marker(pytest.mark.broker)


@pytest.fixture
def client(ottla_broker: BrokerProcess) -> Iterator[RawClient]:
    logged = len(ottla_broker.errors())
    with RawClient(ottla_broker.bootstrap) as raw:
        yield raw
    assert "Traceback" not in ottla_broker.errors()[logged:]


@pytest.fixture
def new_topic(ottla_broker: BrokerProcess) -> NewTopic:
    """Makes a topic under a name that nobody else has: ``new_topic(partitions=3, config={...})``."""

    def make(partitions: int = 1, config: Mapping[str, str | None] | None = None) -> Topic:
        name = f"clause-{next(_numbers)}"
        with RawClient(ottla_broker.bootstrap) as raw:
            return Topic(name, raw.create_topic(name, partitions, config))

    return make


@pytest.fixture
def topic(new_topic: NewTopic) -> Topic:
    return new_topic()


@pytest.fixture
def group(client: RawClient) -> str:
    """The name of a group that nobody else has, and whose coordinator is there."""
    await_coordinator(client)
    return f"clause-group-{next(_numbers)}"


def await_coordinator(client: RawClient) -> None:
    """Its topic is made when somebody asks for it; after a start it is loaded first."""
    deadline = time.monotonic() + 60
    while (
        client.ask(FindCoordinatorRequest(key="any"), 0).error_code
        or client.ask(OffsetFetchRequest(group_id="any", topics=None), 7).error_code
    ):
        assert time.monotonic() < deadline, "there is no coordinator"
        time.sleep(0.02)
