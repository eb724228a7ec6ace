"""`ottla consume`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.model.types import TopicPartition


@pytest.fixture(autouse=True)
def _orders(cluster: Any) -> None:
    cluster.add_topic("orders", 2)
    for number in range(5):
        cluster.store("orders", b"a%d" % number, b"k", partition=0, time_ms=1000 + number)
    cluster.store("orders", b"b0", None, partition=1, time_ms=1000)


def test_values_come_one_per_line(ottla: Any) -> None:
    result = ottla("consume", "orders", "-e")
    assert (result.exit_code, result.stdout) == (0, "a0\na1\na2\na3\na4\nb0\n")


def test_num_stops_after_so_many_records(ottla: Any) -> None:
    assert ottla("consume", "orders", "-n", "2").stdout == "a0\na1\n"


def test_a_partition_may_be_chosen(ottla: Any) -> None:
    assert ottla("consume", "orders", "-e", "-p", "1").stdout == "b0\n"


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("3", "a3\na4\n"),
        ("-1", "a4\nb0\n"),
        ("end", ""),
        ("@1003", "a3\na4\n"),
        ("1:3", "a1\na2\n"),
        ("e@1002", "a0\na1\nb0\n"),
        (":end", "a0\na1\na2\na3\na4\nb0\n"),
        (":0", ""),
    ],
)
def test_reading_starts_and_stops_where_asked(ottla: Any, where: str, text: str) -> None:
    assert ottla("consume", "orders", "-e", "-O", where).stdout == text


def test_an_end_needs_no_exit_flag(ottla: Any) -> None:
    assert ottla("consume", "orders", "-O", "s@1001", "-O", "e@1003").stdout == "a1\na2\n"


def test_a_partition_that_is_read_is_fetched_no_more(cluster: Any, ottla: Any) -> None:
    ottla("consume", "orders", "-O", "0:2", "-p", "0")
    assert cluster.readers[0].paused == [TopicPartition("orders", 0)]


def test_an_offset_that_does_not_exist_yet_is_waited_for_at_the_end(cluster: Any, ottla: Any) -> None:
    ottla("consume", "orders", "-e", "-O", "99")
    assert cluster.readers[0].starts == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 1}


def test_a_format_replaces_the_delimiter(ottla: Any) -> None:
    result = ottla("consume", "orders", "-e", "-p", "0", "-n", "2", "-f", r"%p:%o %k=%s;")
    assert result.stdout == "0:0 k=a0;0:1 k=a1;"


def test_a_delimiter_may_be_chosen(ottla: Any) -> None:
    assert ottla("consume", "orders", "-n", "2", "-D", r"\t").stdout == "a0\ta1\t"


def test_null_is_shown_when_asked(cluster: Any, ottla: Any) -> None:
    cluster.store("orders", None, partition=1)
    assert ottla("consume", "orders", "-e", "-p", "1", "-Z").stdout == "b0\nNULL\n"


@pytest.mark.parametrize("words", [("-J",), ("-o", "json")])
def test_json_is_kcats_envelope(ottla: Any, words: tuple[str, ...]) -> None:
    envelope = json.loads(ottla("consume", "orders", "-n", "1", *words).stdout)
    assert (envelope["topic"], envelope["offset"], envelope["payload"]) == ("orders", 0, "a0")


def test_only_committed_records_are_shown_unless_asked(cluster: Any, ottla: Any) -> None:
    ottla("consume", "orders", "-e")
    ottla("consume", "orders", "-e", "--isolation-level", "read_uncommitted")
    assert [reader.properties["isolation.level"] for reader in cluster.readers] == [
        "read_committed",
        "read_uncommitted",
    ]


def test_ctrl_c_is_how_following_ends(cluster: Any, ottla: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ottla.cli.consume.copy_records", interrupted)
    result = ottla("consume", "orders")
    assert (result.exit_code, result.output, cluster.readers[0].closed) == (0, "", True)


@pytest.mark.parametrize("words", [("-O", "soon"), ("-f", "%q"), ("-J", "-f", "%s"), ("-n", "0")])
def test_nonsense_is_wrong_usage_in_one_line(ottla: Any, words: tuple[str, ...]) -> None:
    result = ottla("consume", "orders", *words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("words", [("nope",), ("orders", "-p", "7")])
def test_an_unknown_topic_or_partition_is_not_found(ottla: Any, words: tuple[str, ...]) -> None:
    assert ottla("consume", *words).exit_code == 3
