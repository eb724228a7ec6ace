"""Checks of topics, transactions and what could not be read."""

from __future__ import annotations

from typing import Any

import pytest
from pictures import NOW_MS, found, healthy, later, only, partition, topic, topics

from ottla.admin.transactions import OpenTransaction, Transaction
from ottla.client.protocol.metadata import Node
from ottla.health.evaluation import evaluate
from ottla.health.findings import Severity
from ottla.health.types import Offsets, Part
from ottla.model.types import TopicPartition


def with_ends(**ends: int) -> dict[str, Any]:
    """Return topics with these numbers of records in partition 0."""
    offsets = {TopicPartition(name, 0): Offsets(0, end, end) for name, end in ends.items()}
    return {"topics": topics(*map(topic, ends)), "offsets": offsets}


def test_unclean_elections_are_reported() -> None:
    unclean = topic("orders", unclean_leader_election_enable="true")
    assert only("unclean-elections", healthy(topics=topics(unclean))).names == ("orders",)


def test_names_that_collide_in_metrics_are_reported() -> None:
    finding = only("colliding-names", healthy(topics=topics(topic("a.b"), topic("a_b"))))
    assert finding.names == ("a.b", "a_b")


def test_empty_topic_with_nearly_the_name_of_another_is_reported() -> None:
    finding = only("misspelt-topics", healthy(**with_ends(shipments=9, shipmets=0)))
    assert finding.text == "1 empty topic with nearly the name of another (shipmets, like shipments)"


@pytest.mark.parametrize("name", ["shipments2", "shipment.s", "shipping", "x"])
def test_names_that_are_near_on_purpose_are_no_problem(name: str) -> None:
    numbered = with_ends(**{"shipments": 9, "shipments1": 9, name: 0})
    assert "misspelt-topics" not in found(healthy(**numbered))


@pytest.mark.parametrize(("setting", "value"), [("segment_bytes", "1000"), ("segment_ms", "1000")])
def test_small_segments_are_reported(setting: str, value: str) -> None:
    assert only("small-segments", healthy(topics=topics(topic("orders", **{setting: value})))).names == ("orders",)


def test_segments_that_outlast_the_retention_are_reported() -> None:
    finding = only("late-retention", healthy(topics=topics(topic("orders", retention_ms="3600000"))))
    assert "orders: retention.ms 1h00m, segment.ms 7d00h" in finding.text
    compacted = topic("orders", retention_ms="3600000", cleanup_policy="compact")
    assert "late-retention" not in found(healthy(topics=topics(compacted)))


def test_topic_without_any_limit_is_information() -> None:
    endless = topic("orders", retention_ms="-1")
    assert only("unlimited-topics", healthy(topics=topics(endless))).severity is Severity.INFO
    limited = topic("orders", retention_ms="-1", retention_bytes="1000000000")
    assert "unlimited-topics" not in found(healthy(topics=topics(limited)))


def test_many_replicas_on_a_broker_are_information() -> None:
    many = topic("orders", *(partition("orders", number) for number in range(4001)))
    assert only("many-partitions", healthy(topics=topics(many))).names[:3] == ("1", "2", "3")


def test_timestamps_in_the_future_are_named_with_the_distance() -> None:
    name = TopicPartition("orders", 1)
    finding = only("future-timestamps", healthy(timestamps={name: NOW_MS + 7_200_000}))
    assert finding.text == "1 partition with timestamps in the future (orders-1: by 2h00m)"


@pytest.mark.parametrize("name", ["orders.dlq", "orders-dead-letter", "orders_quarantine", "DLT.orders"])
def test_dead_letters_are_information_until_they_grow(name: str) -> None:
    few, more = healthy(**with_ends(**{name: 3})), healthy(**with_ends(**{name: 5}))
    finding = only("dead-letters", few)
    assert (finding.severity, finding.text) == (Severity.INFO, f"{name} has 3 records")
    finding = only("dead-letters", later(few, more))
    assert (finding.severity, finding.text) == (Severity.WARNING, f"{name} got 2 records in 1m00s")
    assert "dead-letters" not in found(healthy(**with_ends(**{name: 0})))


def transaction(state: str = "Ongoing", open_ms: int = 1000, **fields: Any) -> Transaction:
    given: dict[str, Any] = {
        "transactional_id": "pay-7", "producer_id": 4001, "producer_epoch": 3, "timeout_ms": 60_000,
        "coordinator": Node(1, "kafka-1.example", 9093), "state": state, "started_ms": NOW_MS - open_ms,
        "partitions": (TopicPartition("orders", 0),), **fields,
    }  # fmt: skip
    return Transaction(**given)


def test_hanging_transaction_is_an_error_with_its_age() -> None:
    one = OpenTransaction(
        name=TopicPartition("orders", 2), leader=Node(1, "a", 1), producer_id=1, producer_epoch=0,
        coordinator_epoch=None, start_offset=5, last_timestamp=NOW_MS - 7_200_000,
    )  # fmt: skip
    finding = only("hanging-transactions", healthy(hanging=(one,)))
    assert (finding.severity, finding.names) == (Severity.ERROR, ("orders-2",))
    assert finding.text == "1 hanging transaction, the oldest for 2h00m (orders-2)"


def test_transaction_past_its_timeout_is_an_error() -> None:
    assert only("transactions-past-timeout", healthy(transactions=(transaction(open_ms=130_000),))).names == ("pay-7",)
    assert found(healthy(transactions=(transaction(open_ms=110_000),))) == {}


def test_long_transaction_within_its_timeout_is_a_warning() -> None:
    long = transaction(open_ms=400_000, timeout_ms=900_000)
    finding = only("long-transactions", healthy(transactions=(long,)))
    assert finding.text == "1 transaction open for long (pay-7: 6m40s)"


def test_transaction_that_ends_at_both_readings_is_stuck() -> None:
    ending = healthy(transactions=(transaction("PrepareCommit"),))
    assert only("stuck-transactions", later(ending, ending)).names == ("pay-7",)
    next_one = healthy(transactions=(transaction("PrepareCommit", open_ms=5),))
    assert "stuck-transactions" not in found(later(ending, next_one))


def test_part_that_could_not_be_read_is_information_with_the_checks_it_would_have() -> None:
    (finding,) = evaluate(healthy(acls=frozenset(), unknown={Part.ACLS: "not allowed"}))
    assert (finding.check, finding.severity) == ("not-checked", Severity.INFO)
    assert finding.text == "ACLs are not known: not allowed"
    assert finding.advice == "2 checks did not run: acls-for-everyone, acls-without-topic"


def test_findings_are_sorted_by_severity_and_names_are_escaped() -> None:
    evil = topic("a\x1b[2J", partition("a\x1b[2J", 0, leader=None), retention_ms="-1")
    findings = evaluate(healthy(topics=topics(evil)))
    assert [each.check for each in findings] == ["offline-partitions", "unlimited-topics"]
    assert findings[0].names == ("a\\x1b[2J-0",) and "\x1b" not in findings[0].text
