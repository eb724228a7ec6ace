"""The same transactions, odd ones above all, at Ottla and at Apache Kafka: the same answers, offsets and markers.

Kafka does without transaction.version 2 while clients before it are compared, and has it for those of KIP-890. Where
Ottla answers otherwise on purpose the case is not here but in test_transaction_clauses, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.kafka_server import ApacheKafka, available, fetch
from tests.clauses.conftest import await_coordinator
from tests.clauses.transaction_requests import await_transactions
from tests.clauses.transaction_scripts import NEWER_SCRIPTS, TRANSACTION_SCRIPTS, Script, TransactionWire

from ottla.testing import BrokerProcess
from ottla.testing.raw import RawClient
from ottla.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

pytestmark = pytest.mark.foreign

SETTINGS = {
    "offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}  # fmt: skip
_UPGRADE, _UNSAFE_DOWNGRADE = 1, 3

Sides = tuple[str, str]


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    """The addresses of Ottla and of Kafka."""
    if (reason := fetch() or available()) is not None:
        pytest.skip(reason)
    kafka = ApacheKafka(settings=SETTINGS)
    try:
        kafka.start()
        with BrokerProcess.start(settings=SETTINGS) as broker:
            set_version(kafka.bootstrap, 0)
            for address in (broker.bootstrap, kafka.bootstrap):
                with RawClient(address) as client:
                    await_transactions(client)
                    await_coordinator(client)
            yield broker.bootstrap, kafka.bootstrap
            assert "Traceback" not in broker.errors()
    finally:
        kafka.stop()


def set_version(address: str, level: int) -> None:
    kind = _UPGRADE if level else _UNSAFE_DOWNGRADE
    change = FeatureUpdateKey(feature="transaction.version", max_version_level=level, upgrade_type=kind)
    with RawClient(address) as client:
        answer = client.ask(UpdateFeaturesRequest(feature_updates=[change]), 1)
        assert answer.error_code == 0, answer
        assert [each.error_code for each in answer.results] == [0], answer


def play(address: str, script: Script) -> list[tuple[str, Any]]:
    wire = TransactionWire(address, script.__name__)
    try:
        script(wire)
    finally:
        wire.close()
    return wire.transcript


@pytest.mark.parametrize("script", TRANSACTION_SCRIPTS, ids=lambda script: script.__name__)
def test_transactions_are_answered_like_kafka_answers_them(sides: Sides, script: Script) -> None:
    compare(sides, script)


@pytest.fixture(scope="module")
def newer_sides(sides: Sides) -> Sides:
    """From here on Kafka has version 2; those above must be over by now."""
    set_version(sides[1], 2)
    return sides


@pytest.mark.parametrize("script", NEWER_SCRIPTS, ids=lambda script: script.__name__)
def test_newer_clients_are_answered_like_kafka_answers_them(newer_sides: Sides, script: Script) -> None:
    """Some use the newer versions without a look at transaction.version."""
    compare(newer_sides, script)


def compare(sides: Sides, script: Script) -> None:
    mine, kafkas = (play(address, script) for address in sides)
    differing = [
        f"{label}\n    Ottla {answer}\n    Kafka {other}"
        for (label, answer), (_, other) in zip(mine, kafkas, strict=False)
        if answer != other
    ]
    assert not differing, "\n".join(differing)
    assert len(mine) == len(kafkas)
