"""Transactions as Prometheus sees them: ids by state, endings, markers, and how long the oldest one is open."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client]

confluent_kafka = pytest.importorskip("confluent_kafka")

DEADLINE_S = 90
SETTINGS = {
    "metrics.listener": "HTTP://127.0.0.1:0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
}  # fmt: skip

#: name, and the state or the outcome (or "") -> value
Figures = dict[tuple[str, str], float]


@pytest.fixture
def broker() -> Iterator[BrokerProcess]:
    """A new one for each: counters start at 0."""
    with BrokerProcess.start(settings=SETTINGS) as started:
        yield started


def scrape(broker: BrokerProcess) -> Figures:
    with urllib.request.urlopen(broker.ready_line.split("metrics=")[1], timeout=60) as page:
        text = page.read().decode()
    return {
        (sample.name, sample.labels.get("state") or sample.labels.get("outcome", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def await_figures(broker: BrokerProcess, are_there: Callable[[Figures], bool]) -> Figures:
    deadline = time.monotonic() + DEADLINE_S
    while not are_there(found := scrape(broker)):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


def begin(broker: BrokerProcess, name: str, timeout_ms: int = 60_000) -> Any:
    """A producer with a record in each of two partitions, in a transaction that it has not ended."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": name, "transaction.timeout.ms": timeout_ms}
    )
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    for topic in ("metered", "metered-too"):
        producer.produce(topic, b"record", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    return producer


def endings(found: Figures) -> tuple[float, ...]:
    return tuple(found["ottla_transactions_total", outcome] for outcome in ("committed", "aborted", "timed_out"))


def test_broker_without_transactions_says_so(broker: BrokerProcess) -> None:
    found = scrape(broker)
    assert endings(found) == (0, 0, 0)
    assert found["ottla_transaction_markers_total", ""] == 0
    assert found["ottla_oldest_transaction_seconds", ""] == 0
    assert not [name for name, _ in found if name == "ottla_transactional_ids"]


def test_open_transaction_has_an_age_until_it_is_committed(broker: BrokerProcess) -> None:
    producer = begin(broker, "open")
    found = await_figures(broker, lambda found: found["ottla_oldest_transaction_seconds", ""] > 0)
    assert found["ottla_oldest_transaction_seconds", ""] < DEADLINE_S
    assert found["ottla_transactional_ids", "Ongoing"] == 1
    assert endings(found) == (0, 0, 0)
    producer.commit_transaction(DEADLINE_S)
    found = await_figures(broker, lambda found: ("ottla_transactional_ids", "CompleteCommit") in found)
    assert endings(found) == (1, 0, 0)
    assert found["ottla_oldest_transaction_seconds", ""] == 0
    assert found["ottla_transaction_markers_total", ""] == 2


def test_abort_is_told_from_a_timeout(broker: BrokerProcess) -> None:
    begin(broker, "regrets").abort_transaction(DEADLINE_S)
    begin(broker, "sleeps", timeout_ms=1000)
    found = await_figures(broker, lambda found: found.get(("ottla_transactional_ids", "CompleteAbort")) == 2)
    assert endings(found) == (0, 1, 1)
    assert found["ottla_transaction_markers_total", ""] == 4


def test_counters_do_not_count_what_is_read_from_the_log(broker: BrokerProcess) -> None:
    begin(broker, "done").commit_transaction(DEADLINE_S)
    begin(broker, "going-on")
    await_figures(broker, lambda found: ("ottla_transactional_ids", "CompleteCommit") in found)
    broker.restart()
    found = await_figures(broker, lambda found: ("ottla_transactional_ids", "Ongoing") in found)
    assert endings(found) == (0, 0, 0)
    assert found["ottla_transaction_markers_total", ""] == 0
