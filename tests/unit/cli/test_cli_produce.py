"""`ottla produce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from ottla.admin.failure import NotHealthy
from ottla.cli.produce import split_records
from ottla.cli.produce_waiting import Waiting
from ottla.model.types import TopicPartition


@pytest.fixture(autouse=True)
def _orders(cluster: Any) -> None:
    cluster.add_topic("orders", 3)


def pairs(cluster: Any) -> list[tuple[bytes | None, bytes | None]]:
    return [(sent["key"], sent["value"]) for sent in cluster.writers[0].sent]


def test_each_line_is_a_record(cluster: Any, ottla: Any) -> None:
    result = ottla("produce", "orders", stdin="a\n\nb")
    assert pairs(cluster) == [(None, b"a"), (None, b""), (None, b"b")]
    assert result.stderr == "3 records to orders, partitions 0 (3), 0 errors\n"


def test_bytes_that_are_no_text_are_sent_as_they_are(cluster: Any, ottla: Any) -> None:
    ottla("produce", "orders", stdin=b"\xff\x00\r\n")
    assert pairs(cluster) == [(None, b"\xff\x00\r")]


def test_a_key_delimiter_splits_at_its_first_place(cluster: Any, ottla: Any) -> None:
    ottla("produce", "orders", "-K", ":", stdin="k:v:w\nplain\n:v\n")
    assert pairs(cluster) == [(b"k", b"v:w"), (None, b"plain"), (b"", b"v")]


def test_empty_becomes_null_when_asked(cluster: Any, ottla: Any) -> None:
    ottla("produce", "orders", "-K", ":", "-Z", stdin="k:\n:v\n")
    assert pairs(cluster) == [(b"k", None), (None, b"v")]


def test_a_fixed_key_goes_with_every_record(cluster: Any, ottla: Any) -> None:
    ottla("produce", "orders", "-k", "me", stdin="a\nb\n")
    assert pairs(cluster) == [(b"me", b"a"), (b"me", b"b")]


def test_headers_partition_and_timestamp_go_with_every_record(cluster: Any, ottla: Any) -> None:
    ottla("produce", "orders", "-H", "a=1=2", "-H", "n", "-p", "2", "--timestamp", "1970-01-01T00:00:05Z", stdin="x")
    (sent,) = cluster.writers[0].sent
    assert sent["headers"] == [("a", b"1=2"), ("n", None)]
    assert (sent["partition"], sent["timestamp"]) == (2, 5000)


def test_another_delimiter_may_be_written_with_escapes(cluster: Any, ottla: Any) -> None:
    ottla("produce", "orders", "-D", r"\x00", stdin="a\nb\0c\0")
    assert pairs(cluster) == [(None, b"a\nb"), (None, b"c")]


def test_a_file_is_one_record_and_with_l_its_lines_are(cluster: Any, ottla: Any, tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("a\nb\n")
    ottla("produce", "orders", str(path))
    ottla("produce", "orders", "-l", str(path))
    assert [[sent["value"] for sent in writer.sent] for writer in cluster.writers] == [[b"a\nb\n"], [b"a", b"b"]]


def test_json_output_has_a_line_per_stored_record(ottla: Any) -> None:
    result = ottla("produce", "orders", "-k", "k", "-o", "json", stdin="abc\n")
    assert json.loads(result.stdout) == {
        "topic": "orders", "partition": 0, "offset": 0, "ts": 1000, "key": "k", "size": 3,
    }  # fmt: skip


def test_records_that_are_not_stored_make_the_exit_code_1(cluster: Any, ottla: Any) -> None:
    cluster.refuses = True
    result = ottla("produce", "orders", stdin="a\nb\n")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "0 records to orders, partitions -, 2 errors",
        "error: 2 records were not stored; the first: not enough",
    ]


def test_a_record_that_the_client_refuses_does_not_stop_the_others(cluster: Any, ottla: Any) -> None:
    cluster.record_bytes_max = 3
    result = ottla("produce", "orders", stdin="a\nlonger\nb\n")
    assert (result.exit_code, len(pairs(cluster))) == (1, 2)


def test_retries_cannot_store_twice_unless_fewer_acks_are_asked_for(cluster: Any, ottla: Any) -> None:
    ottla("produce", "orders", stdin="a")
    ottla("produce", "orders", "--acks", "1", stdin="a")
    assert [writer.properties["enable.idempotence"] for writer in cluster.writers] == [True, False]


def test_a_topic_that_does_not_exist_is_not_created_by_a_typo(cluster: Any, ottla: Any) -> None:
    assert ottla("produce", "oders", stdin="a").exit_code == 3
    assert ottla("produce", "oders", "--allow-auto-topic-creation", stdin="a").exit_code == 0


@pytest.mark.parametrize("words", [("-k", "a", "-K", ":"), ("-D", ""), ("-K", ""), ("--timestamp", "soon")])
def test_options_that_make_no_sense_are_wrong_usage(ottla: Any, words: tuple[str, ...]) -> None:
    assert ottla("produce", "orders", *words, stdin="a").exit_code == 2


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_delimiter_may_be_torn_apart_between_chunks(size: int) -> None:
    data = b"one||two|||three||"
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    assert list(split_records(chunks, b"||")) == [b"one", b"two", b"|three"]


# records that the cluster does not acknowledge


class Watched:
    """A `Waiting` with a clock that is set by hand."""

    def __init__(self, cluster: Any, partition: int | None = None, properties: dict[str, str] | None = None) -> None:
        self.now = 0.0
        self.waiting = Waiting(cluster, "orders", partition, properties or {}, clock=lambda: self.now)

    def look(self, now: float, in_flight: int = 1, completed: int = 0) -> None:
        self.now = now
        self.waiting.look(in_flight, completed)


def test_partition_without_a_leader_is_named_after_3_s_without_an_acknowledgement(cluster: Any, capsys: Any) -> None:
    cluster.add_topic("orders", 4)
    cluster.offline = {TopicPartition("orders", 1), TopicPartition("orders", 3)}
    watched = Watched(cluster)
    for now in (0.0, 2.9):
        watched.look(now)
    assert capsys.readouterr().err == ""
    watched.look(3.0)
    assert capsys.readouterr().err == (
        "waiting: 1 record is not acknowledged: partitions 1, 3 of topic orders have no leader (their replicas are on "
        "broker 1); giving up 120 s after each was read\n"
    )
    watched.look(13.0)
    assert capsys.readouterr().err == "", "the same reason is printed once"
    cluster.offline = {TopicPartition("orders", 3)}
    watched.look(23.0, in_flight=2)
    assert capsys.readouterr().err.startswith(
        "waiting: 2 records are not acknowledged: partition 3 of topic orders has"
    )


def test_nothing_is_said_while_records_are_acknowledged_or_none_is_in_flight(cluster: Any, capsys: Any) -> None:
    watched = Watched(cluster)
    for now in range(100):
        watched.look(now, in_flight=5, completed=now)
        watched.look(now + 0.5, in_flight=0, completed=now)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("partition", "reason"),
    [(3, "partition 3 of topic orders has no leader"), (0, "partition 0 of topic orders has 0 of 1 replicas in sync")],
)
def test_reason_is_that_of_the_only_partition(cluster: Any, partition: int, reason: str) -> None:
    cluster.add_topic("orders", 4)
    cluster.offline, cluster.out_of_sync = {TopicPartition("orders", 3)}, {TopicPartition("orders", 0)}
    watched = Watched(cluster, partition, {"delivery.timeout.ms": "7000"})
    assert watched.waiting.find_reason().startswith(reason)
    assert watched.waiting.describe_timeout().startswith(f"not acknowledged within 7 s: {reason}")


def test_cluster_that_does_not_answer_is_the_reason(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(timeout_s: float) -> None:
        raise NotHealthy("no broker reachable at here:1")

    monkeypatch.setattr(cluster, "topics", fail)
    assert Watched(cluster).waiting.find_reason() == "no broker reachable at here:1"


def test_records_that_time_out_make_the_cluster_not_healthy_with_advice(cluster: Any, ottla: Any) -> None:
    cluster.refuses, cluster.refusal_code = True, KafkaError._MSG_TIMED_OUT
    cluster.offline = {TopicPartition("orders", 0)}
    result = ottla("produce", "orders", stdin="a\nb\n")
    assert result.exit_code == 4
    assert (
        "2 records were not stored: not acknowledged within 120 s: partition 0 of topic orders has no" in result.stderr
    )
    assert "send these records again" in result.stderr
