"""What every clause starts with: a raw client of a running broker, and topics of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import pytest

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient

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
    with RawClient(ottla_broker.bootstrap) as raw:
        yield raw
    assert "Traceback" not in ottla_broker.errors()


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
