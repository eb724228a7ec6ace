"""Transactions whose coordinator, leaders and group coordinator are three brokers get the answers of one broker.

The scripts are those that compare Ottla with Apache Kafka. The campaign `transactions-divided` runs the other tests of
transactions on such a cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.clauses.conftest import await_coordinator
from tests.clauses.test_transactions_same_as_kafka import SETTINGS, play
from tests.clauses.transaction_requests import await_transactions
from tests.clauses.transaction_scripts import NEWER_SCRIPTS, TRANSACTION_SCRIPTS, Script

from divided_cluster import DividedCluster, routed_raw_clients
from ottla.cli.zookeeper_server import ZooKeeperFailed
from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    """Return the addresses of one broker and of a cluster, whose raw clients send requests to the right broker."""
    try:
        cluster = DividedCluster(SETTINGS)
    except ZooKeeperFailed as missing:
        pytest.skip(str(missing))
    with cluster, BrokerProcess.start(settings=SETTINGS) as broker, routed_raw_clients():
        for address in (broker.bootstrap, cluster.bootstrap):
            with RawClient(address) as client:
                await_transactions(client)
                await_coordinator(client)
        yield broker.bootstrap, cluster.bootstrap
        assert "Traceback" not in cluster.errors()


@pytest.mark.parametrize("script", [*TRANSACTION_SCRIPTS, *NEWER_SCRIPTS], ids=lambda script: script.__name__)
def test_three_brokers_answer_like_one(addresses: tuple[str, str], script: Script) -> None:
    one, three = (play(address, script) for address in addresses)
    differing = [
        f"{label}\n    three {answer}\n    one   {other}"
        for (label, answer), (_, other) in zip(three, one, strict=True)
        if _comparable(answer) != _comparable(other)
    ]
    assert not differing, "\n".join(differing)


def _comparable(answer: Any) -> Any:
    """Return an answer without the epoch of the coordinator, which a restart raises."""
    if isinstance(answer, dict):
        return {name: _comparable(value) for name, value in answer.items() if name != "coordinator_epoch"}
    return [_comparable(each) for each in answer] if isinstance(answer, list) else answer
