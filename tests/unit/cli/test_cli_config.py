"""`ottla config` and `ottla offsets`."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _orders(cluster: Any) -> None:
    cluster.add_topic("orders", 2)


def test_get_prints_bare_values_in_the_order_asked(ottla: Any) -> None:
    result = ottla("config", "get", "retention.ms", "cleanup.policy", "--topic", "orders")
    assert result.output == "5\ndelete\n"


def test_get_of_an_unknown_setting_is_not_found(ottla: Any) -> None:
    assert ottla("config", "get", "nope", "--topic", "orders").exit_code == 3


def test_describe_marks_defaults_and_sources(ottla: Any) -> None:
    lines = ottla("config", "describe", "--topic", "orders").output.splitlines()
    assert [line.split() for line in lines] == [
        ["KEY", "VALUE", "SOURCE", "DEFAULT"],
        ["cleanup.policy", "delete", "DEFAULT_CONFIG", "yes"],
        ["retention.ms", "5", "DYNAMIC_TOPIC_CONFIG", "no"],
    ]


def test_describe_changed_leaves_defaults_out(ottla: Any) -> None:
    assert ottla("config", "describe", "--topic", "orders", "--changed", "-o", "name").output == "retention.ms\n"


def test_describe_shows_synonyms_when_asked(ottla: Any) -> None:
    rows = json.loads(ottla("config", "describe", "--broker", "1", "--synonyms", "-o", "json").output)
    assert rows[1]["synonyms"] == [{"name": "log.retention.ms", "value": "9", "source": "DEFAULT_CONFIG"}]


def test_set_changes_a_topic(cluster: Any, ottla: Any) -> None:
    result = ottla("config", "set", "retention.ms=7", "cleanup.policy=compact", "--topic", "orders")
    assert result.output == "set retention.ms=7 for topic orders\nset cleanup.policy=compact for topic orders\n"
    assert cluster.changes == [
        ("config", "topic", "orders", {"retention.ms": "7", "cleanup.policy": "compact"}, [], False)
    ]


def test_unset_with_a_dry_run_only_asks(cluster: Any, ottla: Any) -> None:
    result = ottla("config", "unset", "retention.ms", "--broker", "1", "--dry-run")
    assert result.output == "would unset retention.ms for broker 1\n"
    assert cluster.changes == [("config", "broker", "1", {}, ["retention.ms"], True)]


def test_broker_defaults_are_set_for_all_brokers(cluster: Any, ottla: Any) -> None:
    ottla("config", "set", "log.retention.ms=1", "--broker-defaults")
    assert cluster.changes == [("config", "broker", "", {"log.retention.ms": "1"}, [], False)]


@pytest.mark.parametrize("words", [(), ("--topic", "orders", "--broker", "1")])
def test_exactly_one_owner_must_be_named(ottla: Any, words: tuple[str, ...]) -> None:
    assert ottla("config", "describe", *words).exit_code == 2


@pytest.mark.parametrize("words", [("--topic", "nope"), ("--broker", "9")])
def test_an_owner_that_does_not_exist_is_not_found(ottla: Any, words: tuple[str, ...]) -> None:
    assert ottla("config", "describe", *words).exit_code == 3


@pytest.mark.parametrize("verb", [("set", "background.threads=4"), ("unset", "background.threads"), ("describe",)])
def test_broker_that_is_not_in_the_cluster_is_not_asked(cluster: Any, ottla: Any, verb: tuple[str, ...]) -> None:
    result = ottla("config", *verb, "--broker", "7")
    assert result.exit_code == 3 and cluster.changes == []
    assert result.stderr == "error: broker 7 is not in the cluster (brokers: 1); see 'ottla cluster brokers'\n"


def test_a_pair_without_a_value_is_wrong_usage(ottla: Any) -> None:
    assert ottla("config", "set", "retention.ms", "--topic", "orders").exit_code == 2


def test_offsets_show_the_end_of_each_partition(cluster: Any, ottla: Any) -> None:
    cluster.store("orders", b"x", partition=1)
    lines = ottla("offsets", "orders").output.splitlines()
    assert [line.split() for line in lines] == [
        ["TOPIC", "PARTITION", "OFFSET", "TIMESTAMP", "EPOCH"],
        ["orders", "0", "0", "-", "3"],
        ["orders", "1", "1", "-", "3"],
    ]


@pytest.mark.parametrize("moment", ["@2000", "2000", "@1970-01-01T00:00:02Z"])
def test_offsets_at_a_time_are_those_of_the_first_record_as_new(cluster: Any, ottla: Any, moment: str) -> None:
    cluster.store("orders", b"old", time_ms=1999)
    cluster.store("orders", b"new", time_ms=2000)
    rows = json.loads(ottla("offsets", "orders", "--time", moment, "-o", "json").output)
    assert [row["offset"] for row in rows] == [1, None]


@pytest.mark.parametrize("moment", ["earliest", "-2"])
def test_offsets_take_words_and_kafkas_numbers(cluster: Any, ottla: Any, moment: str) -> None:
    cluster.store("orders", b"x")
    rows = json.loads(ottla("offsets", "orders", "--time", moment, "-o", "json").output)
    assert [row["offset"] for row in rows] == [0, 0]


def test_offsets_at_nonsense_is_wrong_usage(ottla: Any) -> None:
    assert ottla("offsets", "orders", "--time", "soon").exit_code == 2


def test_offsets_of_an_unknown_topic_is_not_found(ottla: Any) -> None:
    assert ottla("offsets", "nope").exit_code == 3
