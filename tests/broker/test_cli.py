"""The command line as people run it, against a broker."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.broker

SCRIPT = [sys.executable, "-c", "from ottla.cli.main import main; main(prog_name='ottla')"]
DEADLINE_S = 90

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]
_numbers = itertools.count()


@pytest.fixture
def environment(ottla_broker: Any) -> dict[str, str]:
    return {**os.environ, "OTTLA_BOOTSTRAP_SERVER": ottla_broker.bootstrap}


@pytest.fixture
def ottla(environment: dict[str, str]) -> Run:
    """Run the command line to its end."""

    def run(*words: str, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run([*SCRIPT, *words], input=stdin, capture_output=True, env=environment, timeout=DEADLINE_S)
        assert done.returncode == code, done.stderr.decode()
        return done

    return run


@pytest.fixture
def topic(ottla: Run) -> str:
    """A new topic of three partitions."""
    name = f"cli-{os.getpid()}-{next(_numbers)}"
    ottla("topic", "create", name, "--partitions", "3")
    return name


def in_json(done: subprocess.CompletedProcess[bytes]) -> Any:
    return json.loads(done.stdout)


def own_settings(ottla: Run, topic: str) -> dict[str, str]:
    entries = in_json(ottla("config", "describe", "--topic", topic, "--changed", "-o", "json"))
    return {entry["name"]: entry["value"] for entry in entries if entry["source"] == "DYNAMIC_TOPIC_CONFIG"}


def test_a_topic_lives_from_create_to_delete(ottla: Run, topic: str) -> None:
    assert topic in ottla("topic", "list", "-o", "name").stdout.decode().splitlines()
    ottla("topic", "alter", topic, "--partitions", "4", "--config", "retention.ms=86400000")
    (described,) = in_json(ottla("topic", "describe", topic, "-s", "-c", "-p", "-o", "json"))
    assert [partition["partition_id"] for partition in described["partitions"]] == [0, 1, 2, 3]
    assert {"name": "retention.ms", "value": "86400000", "source": "DYNAMIC_TOPIC_CONFIG", "is_default": False} in (
        described["configs"]
    )
    ottla("topic", "delete", topic, "--yes")
    ottla("topic", "describe", topic, code=3)


def test_creating_twice_fails_unless_that_is_fine(ottla: Run, topic: str) -> None:
    assert b"already exists" in ottla("topic", "create", topic, code=1).stderr
    ottla("topic", "create", topic, "--if-not-exists")


def test_dry_runs_change_nothing(ottla: Run, topic: str) -> None:
    ottla("topic", "create", f"{topic}-more", "--dry-run")
    ottla("topic", "alter", topic, "--partitions", "9", "--config", "retention.ms=1", "--dry-run")
    ottla("topic", "delete", topic, "--dry-run")
    ottla("topic", "describe", f"{topic}-more", code=3)
    (described,) = in_json(ottla("topic", "describe", topic, "-o", "json"))
    assert described["partitions_count"] == 3
    assert own_settings(ottla, topic) == {}


def test_records_come_back_byte_for_byte(ottla: Run, topic: str) -> None:
    values = [b"plain", "naïve ☕".encode(), b"\x00\xff\r", b"", b"x" * 100_000]
    done = ottla("produce", topic, "-p", "1", stdin=b"\n".join(values) + b"\n")
    assert done.stderr.decode() == f"5 records to {topic}, partitions 1 (5), 0 errors\n"
    assert ottla("consume", topic, "-e").stdout.split(b"\n")[:-1] == values


def test_keys_headers_and_nulls_come_back(ottla: Run, topic: str) -> None:
    ottla("produce", topic, "-p", "0", "-K", ":", "-Z", "-H", "a=1", "--timestamp", "5000", stdin=b"k:v\nk:\n")
    shown = ottla("consume", topic, "-e", "-Z", "-f", r"%p %o %k %s %h %T\n").stdout
    assert shown == b"0 0 k v a=1 5000\n0 1 k NULL a=1 5000\n"


def test_equal_keys_share_a_partition(ottla: Run, topic: str) -> None:
    done = ottla("produce", topic, "-K", ":", "-o", "json", stdin=b"a:1\nb:2\na:3\nb:4\n")
    places = {(line["key"], line["partition"]) for line in map(json.loads, done.stdout.splitlines())}
    assert len(places) == 2


def test_compressed_records_are_read_back(ottla: Run, topic: str) -> None:
    for partition, codec in enumerate(("gzip", "lz4", "zstd")):
        ottla("produce", topic, "-p", str(partition), "-z", codec, stdin=b"same\n" * 1000)
    assert ottla("consume", topic, "-e").stdout == b"same\n" * 3000


@pytest.fixture(scope="module")
def dated(ottla_broker: Any) -> str:
    """A topic with offsets 0 and 1 at time 1000, 2 and 3 at time 2000."""
    name = f"cli-dated-{os.getpid()}"
    for words, stdin in (
        (("topic", "create", name), b""),
        (("produce", name, "--timestamp", "1000"), b"a\nb\n"),
        (("produce", name, "--timestamp", "2000"), b"c\nd\n"),
    ):
        subprocess.run([*SCRIPT, *words, "-b", ottla_broker.bootstrap], input=stdin, check=True, timeout=DEADLINE_S)
    return name


@pytest.mark.parametrize(
    ("where", "offsets"),
    [("beginning", "0123"), ("2", "23"), ("-1", "3"), ("end", ""), ("1:3", "12"), ("@2000", "23"), ("e@2000", "01")],
)
def test_reading_starts_and_stops_where_asked(ottla: Run, dated: str, where: str, offsets: str) -> None:
    assert ottla("consume", dated, "-e", "-O", where, "-f", "%o").stdout.decode() == offsets


@pytest.mark.parametrize(
    ("moment", "offset"), [("earliest", 0), ("latest", 4), ("@1500", 2), ("@2001", None), ("max-timestamp", 2)]
)
def test_offsets_tell_start_end_and_time(ottla: Run, dated: str, moment: str, offset: int | None) -> None:
    (row,) = in_json(ottla("offsets", dated, "--time", moment, "-o", "json"))
    assert row["offset"] == offset


def test_a_consumer_that_follows_shows_records_at_once_and_ends_quietly(
    ottla: Run, topic: str, environment: dict[str, str]
) -> None:
    with subprocess.Popen(
        [*SCRIPT, "consume", topic, "-f", r"%s\n"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as consumer:
        assert consumer.stdout is not None
        ottla("produce", topic, stdin=b"first\n")
        assert consumer.stdout.readline() == b"first\n"
        ottla("produce", topic, stdin=b"second\n")
        assert consumer.stdout.readline() == b"second\n"
        consumer.send_signal(signal.SIGINT)
        out, err = consumer.communicate(timeout=DEADLINE_S)
    assert (consumer.returncode, out, err) == (0, b"", b"")


def test_a_reader_that_leaves_early_is_no_error(ottla: Run, topic: str, environment: dict[str, str]) -> None:
    ottla("produce", topic, stdin=b"x\n" * 200_000)
    with subprocess.Popen(
        [*SCRIPT, "consume", topic, "-e"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as consumer:
        assert consumer.stdout is not None and consumer.stderr is not None
        consumer.stdout.readline()
        consumer.stdout.close()
        assert consumer.stderr.read() == b""
        assert consumer.wait(DEADLINE_S) == 0


def test_a_typo_does_not_create_a_topic(ottla: Run, topic: str) -> None:
    ottla("produce", f"{topic}-typo", stdin=b"x\n", code=3)
    ottla("consume", f"{topic}-typo", "-e", code=3)
    ottla("topic", "list", f"{topic}-typo", code=3)


def test_a_record_that_is_too_large_fails_alone(ottla: Run, topic: str) -> None:
    done = ottla("produce", topic, "-p", "0", stdin=b"a\n" + b"x" * 2_000_000 + b"\nb\n", code=1)
    assert done.stderr.decode().startswith(f"2 records to {topic}, partitions 0 (2), 1 error\nerror: ")


def test_settings_are_set_read_and_unset(ottla: Run, topic: str) -> None:
    ottla("config", "set", "retention.ms=1234567", "cleanup.policy=compact", "--topic", topic)
    assert ottla("config", "get", "retention.ms", "cleanup.policy", "--topic", topic).stdout == b"1234567\ncompact\n"
    ottla("config", "unset", "retention.ms", "--topic", topic)
    assert own_settings(ottla, topic) == {"cleanup.policy": "compact"}


def test_a_setting_that_is_refused_says_why(ottla: Run, topic: str) -> None:
    done = ottla("config", "set", "retention.ms=soon", "--topic", topic, code=1)
    assert b"retention.ms" in done.stderr and done.stderr.count(b"\n") == 1


def test_broker_settings_are_described(ottla: Run) -> None:
    (node,) = {str(broker["broker_id"]) for broker in in_json(ottla("cluster", "brokers", "-o", "json"))}
    names = ottla("config", "describe", "--broker", node, "-o", "name").stdout.decode().splitlines()
    assert "num.partitions" in names
    ottla("config", "describe", "--broker", "999999", code=3)


def test_load_is_measured_from_both_sides(ottla: Run, topic: str) -> None:
    produced = in_json(ottla("perf", "produce", topic, "--num-records", "20000", "-q", "-o", "json"))
    consumed = in_json(ottla("perf", "consume", topic, "-q", "-o", "json"))
    assert (produced["records"], produced["errors"], consumed["records"]) == (20000, 0, 20000)
    assert consumed["bytes"] == produced["bytes"] == 2_000_000


def test_an_address_where_nobody_listens_is_said_so(ottla: Run) -> None:
    done = ottla("topic", "list", "-b", "127.0.0.1:1", code=4)
    assert done.stderr.startswith(b"error: no broker reachable at 127.0.0.1:1 (connection refused); ")


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker of the test's own, and its address."""
    words = ["broker", "--data", str(tmp_path / "data"), "--listener", "PLAINTEXT://127.0.0.1:0"]
    with subprocess.Popen([*SCRIPT, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready.startswith("ready ")
        yield process, ready.split()[1].removeprefix("PLAINTEXT://")
        process.kill()


def test_broker_logs_events_as_json(tmp_path: Path) -> None:
    words = ["broker", "--data", str(tmp_path), "--listener", "PLAINTEXT://127.0.0.1:0", "--log-format", "json"]
    ignored = ["-X", "auto.include.jmx.reporter=true"]
    with subprocess.Popen([*SCRIPT, *words, *ignored], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("ready ")
        process.send_signal(signal.SIGTERM)
        events = [json.loads(line) for line in process.stderr]
    assert {"name": "auto.include.jmx.reporter"} in [event["fields"] for event in events]
    assert all(event.keys() >= {"time", "level", "logger", "message", "fields"} for event in events)


def test_the_doctor_finds_a_running_broker_healthy(ottla: Run, own_broker: tuple[subprocess.Popen[str], str]) -> None:
    checks = in_json(ottla("doctor", "-b", own_broker[1], "-o", "json"))
    verdicts = {check["name"]: check["verdict"] for check in checks}
    assert (verdicts["address"], verdicts["protocol"], verdicts["cluster"]) == ("ok", "ok", "ok")
    assert [check for check in checks if check["kind"]] == []


def test_broker_defaults_are_set_and_unset(ottla: Run, own_broker: tuple[subprocess.Popen[str], str]) -> None:
    _, address = own_broker
    ottla("config", "set", "log.retention.ms=604799999", "--broker-defaults", "-b", address)
    assert ottla("config", "get", "log.retention.ms", "--broker-defaults", "-b", address).stdout == b"604799999\n"
    misspelled = ottla("config", "set", "log.retention.mz=5", "--broker-defaults", "-b", address)
    assert misspelled.stderr.startswith(b"warning: log.retention.mz is stored and has no effect: unknown setting")
    assert b"did you mean 'log.retention.ms'?" in misspelled.stderr
    ottla("config", "unset", "log.retention.ms", "log.retention.mz", "--broker-defaults", "-b", address)
    assert ottla("config", "describe", "--broker-defaults", "-o", "name", "-b", address).stdout == b""


def test_what_a_broker_leaves_behind_is_sound(
    ottla: Run, own_broker: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    process, address = own_broker
    data = str(tmp_path / "data")
    ottla("topic", "create", "t", "-b", address)
    ottla("produce", "t", "-b", address, "-z", "zstd", stdin=b"one\ntwo\n")
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE_S) == 0
    entries = [json.loads(line) for line in ottla("log", "dump", data, "--records", "-o", "json").stdout.splitlines()]
    assert [entry["payload"] for entry in entries if entry["kind"] == "record"] == ["one", "two"]
    checks = in_json(ottla("doctor", "--data", data, "-b", "127.0.0.1:1", "-o", "json", code=1))
    assert ("last stop", "ok", "clean") in [(check["name"], check["verdict"], check["detail"]) for check in checks]
