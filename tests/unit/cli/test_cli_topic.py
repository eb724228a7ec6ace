"""`ottla topic`."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml


def test_create_asks_for_the_brokers_defaults_when_no_counts_are_given(cluster: Any, ottla: Any) -> None:
    result = ottla("topic", "create", "a", "b", "--config", "cleanup.policy=compact")
    assert result.output == "created topic a\ncreated topic b\n"
    assert cluster.changes == [("create", ["a", "b"], -1, -1, {"cleanup.policy": "compact"}, False)]


def test_create_waits_until_clients_can_see_what_was_created(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    ottla("topic", "create", "a", "b", "c")
    assert cluster.awaited == ["b", "c"]


def test_create_passes_counts_on(cluster: Any, ottla: Any) -> None:
    ottla("topic", "create", "a", "--partitions", "6", "--replication-factor", "3")
    assert cluster.changes[0][2:4] == (6, 3)


def test_a_dry_run_says_would(cluster: Any, ottla: Any) -> None:
    result = ottla("topic", "create", "a", "--dry-run", "-o", "json")
    assert json.loads(result.output) == [{"topic_name": "a", "result": "would create"}]
    assert cluster.changes[0][-1] is True


def test_a_topic_that_exists_fails_and_the_others_are_still_created(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "create", "a", "b")
    assert (result.exit_code, result.stdout) == (1, "created topic b\n")
    assert result.stderr == "error: topic a already exists; pass --if-not-exists if that is fine\n"


def test_if_not_exists_accepts_a_topic_that_is_there(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "create", "a", "b", "--if-not-exists")
    assert (result.exit_code, result.stdout) == (0, "created topic b\n")
    assert cluster.changes[0][1] == ["b"]


@pytest.mark.parametrize("words", [("a", "--config", "novalue"), ("a", "--partitions", "0"), ()])
def test_create_refuses_wrong_usage_with_code_2(cluster: Any, ottla: Any, words: tuple[str, ...]) -> None:
    result = ottla("topic", "create", *words)
    assert (result.exit_code, cluster.changes) == (2, [])


def test_list_is_a_table_of_names_and_counts(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders", 3)
    cluster.add_topic("__internal")
    assert ottla("topic", "list").output.split("\n") == [
        "NAME        PARTITIONS  REPLICAS",
        "__internal           1         1",
        "orders               3         1",
        "",
    ]


def test_list_leaves_internal_topics_out_when_asked(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders")
    cluster.add_topic("__internal")
    assert ottla("topic", "list", "--exclude-internal", "-o", "name").output == "orders\n"


def test_list_takes_names_as_patterns_with_r(cluster: Any, ottla: Any) -> None:
    for name in ("orders-eu", "orders-us", "clicks"):
        cluster.add_topic(name)
    assert ottla("topic", "list", "-r", "^orders", "-o", "name").output == "orders-eu\norders-us\n"


def test_list_of_a_name_that_does_not_exist_is_not_found(cluster: Any, ottla: Any) -> None:
    assert ottla("topic", "list", "nope").exit_code == 3


def test_a_broken_pattern_is_wrong_usage(cluster: Any, ottla: Any) -> None:
    result = ottla("topic", "list", "-r", "(")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_list_speaks_yaml(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders", 2)
    assert yaml.safe_load(ottla("topic", "list", "-o", "yaml").output) == [
        {"topic_name": "orders", "is_internal": False, "partitions_count": 2, "replication_factor": 1}
    ]


def test_describe_shows_summary_and_partitions_with_offsets(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders", 2)
    cluster.store("orders", b"x", partition=1)
    lines = ottla("topic", "describe", "orders").output.split("\n")
    assert lines[0].split() == ["NAME", "orders"]
    assert [line.split() for line in lines[-4:-1]] == [
        ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"],
        ["0", "1", "3", "1", "1", "0", "0"],
        ["1", "1", "3", "1", "1", "0", "1"],
    ]


def test_describe_shows_only_what_is_asked_for(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders")
    output = ottla("topic", "describe", "orders", "-c").output
    assert "cleanup.policy" in output and "PARTITION" not in output and "REPLICAS" not in output


def test_describe_as_json_carries_partitions_and_configs(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("orders")
    (described,) = json.loads(ottla("topic", "describe", "orders", "-s", "-c", "-p", "-o", "json").output)
    assert described["partitions"][0]["log_end_offset"] == 0
    assert [entry["name"] for entry in described["configs"]] == ["cleanup.policy", "retention.ms"]


def test_describe_of_an_unknown_topic_is_not_found(cluster: Any, ottla: Any) -> None:
    result = ottla("topic", "describe", "nope")
    assert result.exit_code == 3
    assert result.stderr.startswith("error: topic nope does not exist; ")


def test_alter_changes_settings_and_partitions(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "alter", "a", "-p", "4", "--config", "retention.ms=1", "--delete-config", "segment.ms")
    assert result.output == "altered topic a\n"
    assert cluster.changes == [
        ("config", "topic", "a", {"retention.ms": "1"}, ["segment.ms"], False),
        ("partitions", "a", 4, False),
    ]


def test_alter_of_nothing_is_wrong_usage(cluster: Any, ottla: Any) -> None:
    assert ottla("topic", "alter", "a").exit_code == 2


def test_delete_needs_yes_when_nobody_can_be_asked(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "delete", "a")
    assert (result.exit_code, cluster.changes) == (2, [])


def test_delete_with_yes_deletes(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "delete", "a", "--yes")
    assert (result.output, cluster.changes) == ("deleted topic a\n", [("delete", ["a"])])


def test_delete_touches_nothing_when_one_name_is_unknown(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "delete", "a", "nope", "--yes")
    assert (result.exit_code, cluster.changes) == (3, [])


def test_delete_if_exists_deletes_those_that_do(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "delete", "a", "nope", "--yes", "--if-exists")
    assert (result.exit_code, cluster.changes) == (0, [("delete", ["a"])])


def test_delete_dry_run_deletes_nothing(cluster: Any, ottla: Any) -> None:
    cluster.add_topic("a")
    result = ottla("topic", "delete", "a", "--dry-run")
    assert (result.output, cluster.changes) == ("would delete topic a\n", [])
