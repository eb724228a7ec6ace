"""`ottla txn` and `ottla group delete --offsets` as people run them, against a broker with live producers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from ottla.testing.raw import RawClient, batch_of, produce_request
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from ottla.wire.messages.init_producer_id import InitProducerIdRequest

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.broker, pytest.mark.client]

SCRIPT = [sys.executable, "-c", "from ottla.cli.main import main; main(prog_name='ottla')"]
DEADLINE_S = 90
HOUR_MS = 3_600_000

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
_numbers = itertools.count()


def runner(bootstrap: str) -> Run:
    environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVER": bootstrap}

    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run([*SCRIPT, *words], input=b"", capture_output=True, env=environment, timeout=DEADLINE_S)
        assert done.returncode == code, done.stderr.decode()
        return done

    return run


@pytest.fixture
def ottla(ottla_broker: Any) -> Run:
    """Run the command line to its end."""
    return runner(ottla_broker.bootstrap)


@pytest.fixture
def topic(ottla: Run) -> str:
    name = f"cli-txn-{os.getpid()}-{next(_numbers)}"
    ottla("topic", "create", name, "--partitions", "2")
    return name


def rows(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads(done.stdout)
    return result


def begin(bootstrap: str, topic: str) -> Any:
    """A producer with one record in a transaction that it has not ended."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": f"app-{topic}"})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=1)
    assert producer.flush(DEADLINE_S) == 0
    return producer


def test_a_live_transaction_is_listed_and_described(ottla: Run, ottla_broker: Any, topic: str) -> None:
    producer = begin(ottla_broker.bootstrap, topic)
    (listed,) = rows(ottla("txn", "list", "--state", "ongoing", "--pattern", f"app-{topic}", "-o", "json"))
    (described,) = rows(ottla("txn", "describe", f"app-{topic}", "-o", "json"))
    assert listed["transactional_id"] == described["transactional_id"] == f"app-{topic}"
    assert listed["producer_id"] == described["producer_id"]
    assert (described["state"], described["timeout_ms"]) == ("Ongoing", 60_000)
    assert described["partitions"] == [{"topic_name": topic, "partition_id": 1}]
    assert described["age_ms"] + described["time_left_ms"] == 60_000
    assert ottla("txn", "list", "--longer-than", "1h", "--pattern", f"app-{topic}", "-o", "name").stdout == b""
    producer.commit_transaction(DEADLINE_S)
    (done,) = rows(ottla("txn", "describe", f"app-{topic}", "-o", "json"))
    assert (done["state"], done["age_ms"], done["partitions"]) == ("CompleteCommit", None, [])


def test_a_live_transaction_neither_hangs_nor_is_aborted(ottla: Run, ottla_broker: Any, topic: str) -> None:
    producer = begin(ottla_broker.bootstrap, topic)
    assert ottla("txn", "hanging", "--older-than", "0ms", "--topic", topic, "-o", "name").stdout == b""
    words = ("txn", "abort", "--topic", topic, "--partition", "1", "--start-offset", "0", "--yes")
    assert f"knows it as app-{topic}, Ongoing".encode() in ottla(*words, code=1).stderr
    producer.commit_transaction(DEADLINE_S)
    assert ottla("consume", topic, "-p", "1", "--exit").stdout == b"open\n"


def test_names_that_do_not_exist_are_told_apart(ottla: Run, topic: str) -> None:
    assert b"transactional id nobody does not exist" in ottla("txn", "describe", "nobody", code=3).stderr
    assert b"topic gone does not exist" in ottla("txn", "hanging", "--topic", "gone", code=3).stderr
    words = ("txn", "abort", "--topic", topic, "--start-offset", "0", "--yes", "--partition")
    assert b"-9 does not exist" in ottla(*words, "9", code=3).stderr
    assert b"open there: none" in ottla(*words, "0", code=3).stderr


def leave_hanging(bootstrap: str, topic: str) -> int:
    """An hour ago a producer wrote to partition 0, and now its coordinator has lost all memory; the producer's id."""
    # Whoever asks for a coordinator makes the topic in which it keeps its memory.
    runner(bootstrap)("txn", "describe", "lost", code=3)
    with RawClient(bootstrap) as client:
        client.create_topic(topic)
        owner = client.ask(InitProducerIdRequest(transactional_id="lost", transaction_timeout=60_000), 4)
        identity = {"producer_id": owner.producer_id, "producer_epoch": owner.producer_epoch}
        where = AddPartitionsToTxnTopic(name=topic, partitions=[0])
        client.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="lost", v3_and_below_producer_id=owner.producer_id,
                v3_and_below_producer_epoch=owner.producer_epoch, v3_and_below_topics=[where],
            ),
            3,
        )  # fmt: skip
        written_ms = int(time.time() * 1000) - HOUR_MS
        batch = batch_of(b"lost", timestamp=written_ms, base_sequence=0, transactional=True, **identity)
        answer = client.ask(produce_request((topic, 0, batch), acks=-1, transactional_id="lost"), 11)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer
    runner(bootstrap)("topic", "delete", "__transaction_state", "--yes")
    return int(owner.producer_id)


def test_a_hanging_transaction_is_found_and_ended(fresh_ottla_broker: Any) -> None:
    ottla = runner(fresh_ottla_broker.bootstrap)
    producer_id = leave_hanging(fresh_ottla_broker.bootstrap, "stuck")
    with RawClient(fresh_ottla_broker.bootstrap) as client:
        client.ask(produce_request(("stuck", 0, batch_of(b"behind")), acks=-1), 11)
    read = ("consume", "stuck", "--exit", "-X", "isolation.level=read_committed")
    assert ottla(*read).stdout == b""
    (found,) = rows(ottla("txn", "hanging", "-o", "json"))
    assert (found["topic_name"], found["partition_id"], found["producer_id"]) == ("stuck", 0, producer_id)
    assert (found["start_offset"], found["coordinator_epoch"]) == (0, None)
    assert found["age_ms"] >= HOUR_MS
    assert ottla("txn", "hanging", "--older-than", "2h", "-o", "name").stdout == b""
    words = ("txn", "abort", "--topic", "stuck", "--partition", "0", "--start-offset", "0")
    assert ottla(*words, "--dry-run").stdout.startswith(b"would abort")
    assert b"needs --yes" in ottla(*words, code=2).stderr
    assert ottla(*words, "--yes").stdout.startswith(b"aborted")
    assert ottla("txn", "hanging", "-o", "name").stdout == b""
    assert ottla(*read).stdout == b"behind\n"
    assert b"open there: none" in ottla(*words, "--yes", code=3).stderr


def test_commits_of_one_partition_are_deleted(ottla: Run, topic: str) -> None:
    group = f"group-of-{topic}"
    ottla("group", "reset", group, "--topic", topic, "--to-latest", "--execute")
    words = ("group", "delete", group, "--offsets", "--topic", f"{topic}:1", "--yes")
    assert ottla(*words).stdout.decode() == f"deleted offset 0 of group {group} in {topic}-1\n"
    (described,) = rows(ottla("group", "describe", group, "-o", "json"))
    assert [one["partition_id"] for one in described["offsets"] if one["current_offset"] is not None] == [0]
    assert b"has no committed offset" in ottla(*words, code=3).stderr


def test_commits_that_a_consumer_needs_are_kept(ottla: Run, ottla_broker: Any, topic: str) -> None:
    group = f"group-of-{topic}"
    consumer = confluent_kafka.Consumer({"bootstrap.servers": ottla_broker.bootstrap, "group.id": group})
    consumer.subscribe([topic])
    deadline = time.monotonic() + DEADLINE_S
    while not consumer.assignment():
        assert time.monotonic() < deadline, "nothing was assigned"
        consumer.poll(0.1)
    consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 0)], asynchronous=False)
    told = ottla("group", "delete", group, "--offsets", "--topic", topic, "--yes", code=1).stderr
    assert b"are subscribed to the topic" in told
    consumer.close()
