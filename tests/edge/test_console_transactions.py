"""Transactions in the console: open ones, hanging ones, and the end of a hanging one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from console_process import ConsoleClient, console_process, csrf_of
from edge_broker import IS_KAFKA, Broker, edge_broker

from ottla.admin.client import AdminClient
from ottla.admin.transactions import Transactions
from ottla.model.types import TopicPartition
from ottla.testing.raw import RawClient, batch_of, produce_request
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.wire.messages.init_producer_id import InitProducerIdRequest

TRANSACTIONS = "/c/main/transactions"
OPEN = "pay-<b>7</b>"
HOUR_MS = 3_600_000

pytestmark = pytest.mark.skipif(IS_KAFKA, reason="Apache Kafka does not delete the topic of its coordinators")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """Run a broker with a transaction whose coordinator has lost it, and 5 records behind it; and with an open one."""
    with edge_broker() as running, AdminClient(running.bootstrap, {}, timeout_s=60) as client:
        Transactions(client).describe(["lost"])  # makes the topic of the coordinators
        with RawClient(running.bootstrap) as raw:
            raw.create_topic("stuck")
            raw.create_topic("paid")
            owner = raw.ask(InitProducerIdRequest(transactional_id="lost", transaction_timeout=60_000), 4)
            identity = {"producer_id": owner.producer_id, "producer_epoch": owner.producer_epoch}
            raw.ask(
                AddPartitionsToTxnRequest(
                    v3_and_below_transactional_id="lost", v3_and_below_producer_id=owner.producer_id,
                    v3_and_below_producer_epoch=owner.producer_epoch,
                    v3_and_below_topics=[AddPartitionsToTxnTopic(name="stuck", partitions=[0])],
                ),
                3,
            )  # fmt: skip
            written_ms = int(time.time() * 1000) - HOUR_MS
            batch = batch_of(b"lost", timestamp=written_ms, base_sequence=0, transactional=True, **identity)
            answer = raw.ask(produce_request(("stuck", 0, batch), acks=-1, transactional_id="lost"), 11)
            assert answer.responses[0].partition_responses[0].error_code == 0, answer
            client.delete_topics(["__transaction_state"])
            for _ in range(5):
                raw.ask(produce_request(("stuck", 0, batch_of(b"behind")), acks=-1), 11)
        producer = Producer({"bootstrap.servers": running.bootstrap, "transactional.id": OPEN})
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("paid", b"open")
        assert producer.flush(60) == 0
        client.commit_offsets("readers", {TopicPartition("stuck", 0): 0})
        yield running
        producer.abort_transaction(60)


@pytest.fixture(scope="module")
def console(broker: Broker) -> Iterator[ConsoleClient]:
    with console_process(broker.bootstrap) as running:
        running.log_in()
        yield running


def hanging(console: ConsoleClient) -> list[dict[str, Any]]:
    found = console.json("/c/main/hanging-transactions")["hanging"]
    assert isinstance(found, list)
    return found


def test_open_transaction_is_listed_with_its_partitions(console: ConsoleClient) -> None:
    page = console.json(TRANSACTIONS)
    (row,) = page["transactions"]  # type: ignore[misc]
    assert (row["transactional_id"], row["state"], row["partitions"]) == (OPEN, "Ongoing", ["paid-0"])
    assert console.json(f"{TRANSACTIONS}?state=Dead")["transactions"] == []


def test_transactional_id_has_a_page_with_what_it_holds_back(console: ConsoleClient) -> None:
    from ottla.edge.console.rendering import url

    path = url("c", "main", "transactions", OPEN)
    (place,) = console.json(path)["places"]  # type: ignore[misc]
    assert (place["topic"], place["start_offset"], place["held_back"]) == ("paid", 0, 1)
    text = console.http.get(path).text
    assert "<b>7" not in text and "pay-&lt;b&gt;7" in text
    assert console.http.get(f"{TRANSACTIONS}/nobody").status_code == 404


def test_transaction_that_its_coordinator_knows_is_not_ended(console: ConsoleClient) -> None:
    form = {
        "topic": "paid",
        "partition": "0",
        "start_offset": "0",
        "csrf": csrf_of(console.http.get(TRANSACTIONS).text),
    }
    answer = console.http.post("/c/main/hanging-transactions/end", data=form)
    assert answer.status_code == 409 and "does not hang" in answer.text


def test_hanging_transaction_is_shown_with_the_readers_it_holds_back_and_ended(console: ConsoleClient) -> None:
    (row,) = hanging(console)
    assert (row["topic"], row["start_offset"], row["held_back"]) == ("stuck", 0, 6)
    assert row["age_ms"] >= HOUR_MS and row["groups"] == ["readers"]
    assert console.json("/c/main/groups/readers/why")["hanging"] == ["stuck-0"]
    end = {"topic": "stuck", "partition": "0", "start_offset": "0"}
    with console.browser() as visitor:
        assert visitor.post("/c/main/hanging-transactions/end", data=end).status_code == 401
    text = console.http.get(TRANSACTIONS).text
    assert "HANGING" in text and text.index("HANGING") < text.index("Transactional ids")
    preview = console.http.post("/c/main/hanging-transactions/end", data={**end, "csrf": csrf_of(text)})
    assert "6 offsets become readable" in preview.text and "Type <strong>stuck-0</strong>" in preview.text
    assert console.act("/c/main/hanging-transactions/end", **end).status_code == 303
    assert hanging(console) == []


@pytest.mark.parametrize("form", [{"topic": "stuck", "partition": "x"}, {"topic": "stuck", "partition": "-1"}])
def test_wrong_partition_is_refused(console: ConsoleClient, form: dict[str, str]) -> None:
    token = csrf_of(console.http.get(TRANSACTIONS).text)
    answer = console.http.post("/c/main/hanging-transactions/end", data={**form, "csrf": token})
    assert answer.status_code == 400 and "partition" in answer.text


def test_unknown_transaction_is_not_found(console: ConsoleClient) -> None:
    form = {"topic": "paid", "partition": "0", "start_offset": "99"}
    form["csrf"] = csrf_of(console.http.get(TRANSACTIONS).text)
    answer = console.http.post("/c/main/hanging-transactions/end", data=form)
    assert answer.status_code == 404 and "no open transaction" in answer.text
