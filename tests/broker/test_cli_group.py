"""`ottla group` as people run it, against a broker with live consumers."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla.client.cluster import Cluster

confluent_kafka = pytest.importorskip("confluent_kafka")

pytestmark = [pytest.mark.broker, pytest.mark.client]

SCRIPT = [sys.executable, "-c", "from ottla.cli.main import main; main(prog_name='ottla')"]
DEADLINE_S = 90
RECORDS = 12

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
_numbers = itertools.count()


@pytest.fixture
def ottla(ottla_broker: Any) -> Run:
    """Run the command line to its end."""
    environment = {**os.environ, "OTTLA_BOOTSTRAP_SERVER": ottla_broker.bootstrap}

    def run(*words: str, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run([*SCRIPT, *words], input=stdin, capture_output=True, env=environment, timeout=DEADLINE_S)
        assert done.returncode == code, done.stderr.decode()
        return done

    return run


@pytest.fixture
def topic(ottla_broker: Any) -> str:
    """A new topic of three partitions with four records, dated 1000, in each."""
    name = f"cli-group-{os.getpid()}-{next(_numbers)}"
    with Cluster(ottla_broker.bootstrap) as cluster:
        assert cluster.create_topic(name, 3, {})
    producer = confluent_kafka.Producer({"bootstrap.servers": ottla_broker.bootstrap})
    for partition in range(3):
        for value in b"abcd":
            producer.produce(name, bytes([value]), partition=partition, timestamp=1000)
    assert producer.flush(DEADLINE_S) == 0
    return name


@pytest.fixture
def group() -> str:
    return f"group-{os.getpid()}-{next(_numbers)}"


Join = Callable[..., Any]


@pytest.fixture
def join(ottla_broker: Any, topic: str, group: str) -> Iterator[Join]:
    """Start consumers of the group, one after the other; those still running are stopped at the end."""
    running = []

    def start(client_id: str, **properties: Any) -> Any:
        # Members learn of a rebalance from the answer to a heartbeat, with the default after three seconds. The broker
        # tells those of the consumer protocol their interval.
        heartbeats = {} if "group_protocol" in properties else {"heartbeat.interval.ms": 200}
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": ottla_broker.bootstrap,
                "group.id": group,
                "client.id": client_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **heartbeats,
                **{name.replace("_", "."): value for name, value in properties.items()},
            }
        )
        consumer.subscribe([topic])
        running.append(consumer)
        return consumer

    yield start
    for consumer in running:
        consumer.close()


def consume(consumers: list[Any], count: int) -> list[Any]:
    """Poll them in turn until `count` records came."""
    deadline = time.monotonic() + DEADLINE_S
    records: list[Any] = []
    while len(records) < count:
        assert time.monotonic() < deadline, f"only {len(records)} of {count} records"
        for consumer in consumers:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                records.append(message)
    return records


def poll_until_shared(ottla: Run, group: str, consumers: list[Any]) -> dict[str, Any]:
    """Poll the consumers until the group is stable with all of them in it and every partition given out."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        for consumer in consumers:
            consumer.poll(0.2)
        held = sum(len(consumer.assignment()) for consumer in consumers)
        if held == 3:
            described = describe(ottla, group)
            if described["state"] == "Stable" and described["members_count"] == len(consumers):
                return described
        assert time.monotonic() < deadline, f"the group did not settle, {held} of 3 partitions are held"


def describe(ottla: Run, group: str) -> dict[str, Any]:
    (described,) = json.loads(ottla("group", "describe", group, "-o", "json").stdout)
    result: dict[str, Any] = described
    return result


@pytest.fixture
def stopped(ottla: Run, join: Join, group: str, topic: str) -> str:
    """A group that read everything, committed it, and whose consumer has left."""
    consumer = join("app")
    consume([consumer], RECORDS)
    consumer.commit(asynchronous=False)
    consumer.close()
    return group


def test_a_live_group_is_described_with_members_and_lag(ottla: Run, join: Join, group: str, topic: str) -> None:
    consumer = join("app")
    consume([consumer], RECORDS)
    consumer.commit(
        offsets=[confluent_kafka.TopicPartition(topic, number, offset) for number, offset in ((0, 4), (1, 1))],
        asynchronous=False,
    )
    described = describe(ottla, group)
    assert (described["type"], described["state"], described["members_count"]) == ("classic", "Stable", 1)
    assert [(one["current_offset"], one["log_end_offset"], one["lag"]) for one in described["offsets"]] == [
        (4, 4, 0),
        (1, 4, 3),
        (None, 4, None),
    ]
    assert {one["client_id"] for one in described["offsets"]} == {"app"}
    at_end, behind, unknown = (one["time_lag_ms"] for one in described["offsets"])
    now_ms = time.time_ns() // 1_000_000
    assert (at_end, unknown) == (0, None)
    # The record at the committed offset is dated one second behind 1970.
    assert now_ms - 60_000 < behind + 1000 <= now_ms


def test_a_group_of_the_consumer_protocol_is_described(ottla: Run, join: Join, group: str, topic: str) -> None:
    consumer = join("app", group_protocol="consumer")
    consume([consumer], RECORDS)
    consumer.commit(asynchronous=False)
    described = describe(ottla, group)
    assert (described["type"], described["members_count"], described["total_lag"]) == ("consumer", 1, 0)
    assert len(described["members"][0]["assignments"]) == 3
    assert group in ottla("group", "list", "--type", "consumer", "-o", "name").stdout.decode().splitlines()
    consumer.close()


def test_a_member_without_partitions_is_shown(ottla: Run, join: Join, group: str) -> None:
    consumers = [join(f"app-{number}") for number in range(4)]
    described = poll_until_shared(ottla, group, consumers)
    assert sorted(len(member["assignments"]) for member in described["members"]) == [0, 1, 1, 1]


def test_offsets_of_an_active_group_are_not_moved(ottla: Run, join: Join, group: str) -> None:
    consumer = join("app")
    consume([consumer], RECORDS)
    consumer.commit(asynchronous=False)
    assert b"still has active members (1)" in ottla("group", "seek", group, "--to", "start", code=1).stderr
    assert b"still has active members (1)" in ottla("group", "delete", group, "--yes", code=1).stderr
    assert describe(ottla, group)["total_lag"] == 0


def test_a_group_reads_on_from_where_it_was_reset_to(ottla: Run, join: Join, stopped: str, topic: str) -> None:
    plan = ottla("group", "reset", stopped, "--topic", f"{topic}:0,2", "--shift-by", "-2")
    assert plan.stdout.count(topic.encode()) == 2
    assert describe(ottla, stopped)["total_lag"] == 0
    ottla("group", "reset", stopped, "--topic", f"{topic}:0,2", "--shift-by", "-2", "--execute")
    assert describe(ottla, stopped)["total_lag"] == 4
    read = {(message.partition(), message.offset()) for message in consume([join("again")], 4)}
    assert read == {(0, 2), (0, 3), (2, 2), (2, 3)}


def test_seek_finds_places_and_times(ottla: Run, stopped: str) -> None:
    lags = {}
    for where in ("start", "end", "3", "@1000", "@1001"):
        ottla("group", "seek", stopped, "--to", where)
        lags[where] = describe(ottla, stopped)["total_lag"]
    assert lags == {"start": 12, "end": 0, "3": 3, "@1000": 12, "@1001": 0}


def test_exported_offsets_are_put_back(ottla: Run, stopped: str, topic: str, tmp_path: Path) -> None:
    saved = ottla("group", "reset", stopped, "--all-topics", "--to-current", "--export").stdout
    assert saved.decode() == f"{topic},0,4\n{topic},1,4\n{topic},2,4\n"
    ottla("group", "seek", stopped, "--to", "start")
    (tmp_path / "saved.csv").write_bytes(saved)
    ottla("group", "reset", stopped, "--from-file", str(tmp_path / "saved.csv"), "--execute")
    assert describe(ottla, stopped)["total_lag"] == 0


def test_a_new_group_starts_where_it_is_told_to(ottla: Run, group: str, topic: str) -> None:
    ottla("group", "reset", group, "--topic", topic, "--to-latest", "--execute")
    described = describe(ottla, group)
    assert (described["is_simple"], described["total_lag"], described["members_count"]) == (True, 0, 0)


def test_a_deleted_group_is_gone(ottla: Run, stopped: str) -> None:
    ottla("group", "delete", stopped, "--yes")
    assert stopped not in ottla("group", "list", "-o", "name").stdout.decode().splitlines()
    ottla("group", "describe", stopped, code=3)
    ottla("group", "why", f"{stopped}-never-was", code=3)


def test_why_names_those_who_came_and_left(ottla: Run, join: Join, group: str) -> None:
    first = join("app-1")
    consume([first], RECORDS)
    second = join("app-2")
    poll_until_shared(ottla, group, [first, second])
    second.close()
    poll_until_shared(ottla, group, [first])
    told = json.loads(ottla("group", "why", group, "-o", "json").stdout)
    causes = [(cause["kind"], cause["client_id"]) for one in told["rebalances"] for cause in one["causes"]]
    assert ("left", "app-2") in causes and ("joined", "app-2") in causes and ("joined", "app-1") in causes
    assert causes.index(("left", "app-2")) < causes.index(("joined", "app-2"))
    generations = [one["generation"] for one in told["rebalances"]]
    assert generations == sorted(generations, reverse=True)
    assert (told["rebalances"][0]["members_before"], told["rebalances"][0]["members_after"]) == (2, 1)
    assert b"WHAT TO LOOK AT" in ottla("group", "why", group).stdout
