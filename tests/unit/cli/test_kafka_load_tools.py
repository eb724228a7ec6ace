"""Kafka's load tests: what they send, measure and print, with clients that answer at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.kafka import clients, consumer_perf, producer_perf, verifiable_consumer, verifiable_producer
from ottla.cli.kafka.clients import librdkafka_properties
from ottla.cli.kafka.errors import IllegalArgument, ToolError
from ottla.cli.kafka.tool import main as run_tool

_SERVER = ("--bootstrap-server", "127.0.0.1:9092")


class Message:
    def __init__(self, topic: str, offset: int, key: bytes | None, value: bytes) -> None:
        self._fields = {"topic": topic, "partition": 0, "offset": offset, "key": key, "value": value, "error": None}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        return lambda: self._fields[name]


class FakeProducer:
    """Acknowledges each record at the next poll."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.calls: list[str] = []
        self._pending: list[Any] = []

    def produce(self, topic: str, value: Any, key: Any = None, *, on_delivery: Any, timestamp: int = 0) -> None:
        self.values.append(value)
        self._pending.append((on_delivery, Message(topic, len(self.values) - 1, key, value)))

    def poll(self, timeout_s: float) -> int:
        pending, self._pending = self._pending, []
        for acknowledge, message in pending:
            acknowledge(None, message)
        return len(pending)

    def flush(self, timeout_s: float) -> int:
        self.poll(0)
        return 0

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.calls.append(name)


class FakeConsumer:
    """Has records 0 to 9 of one partition."""

    def __init__(self) -> None:
        self._messages = [Message("t", number, None, b"v") for number in range(10)]
        self.committed: list[Any] = []
        self._revoked: Any = None

    def subscribe(self, topics: list[str], *, on_assign: Any, on_revoke: Any) -> None:
        self._revoked = on_revoke
        on_assign(self, [])

    def consume(self, count: int, timeout_s: float) -> list[Message]:
        found, self._messages = self._messages[:count], self._messages[count:]
        return found

    def commit(self, *, offsets: Any, asynchronous: bool) -> None:
        self.committed = [(each.topic, each.partition, each.offset) for each in offsets]

    def close(self) -> None:
        self._revoked(self, [])


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> FakeProducer:
    fake = FakeProducer()
    for module in (producer_perf, verifiable_producer):
        monkeypatch.setattr(module, "make_producer", lambda *_: fake)
    return fake


@pytest.fixture
def consumer(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    fake = FakeConsumer()
    for module in (consumer_perf, verifiable_consumer):
        monkeypatch.setattr(module, "make_consumer", lambda *_: fake)
    return fake


@pytest.fixture(autouse=True)
def keep_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)


# -- properties -------------------------------------------------------------------------------------------------------


def test_properties_of_java_get_librdkafkas_names() -> None:
    given = {
        "buffer.memory": "33554432",
        "max.request.size": "9",
        "max.block.ms": "1",
        "partition.assignment.strategy": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor,range",
        "auto.offset.reset": "none",
        "acks": "all",
    }
    assert librdkafka_properties(given) == {
        "queue.buffering.max.kbytes": "32768",
        "message.max.bytes": "9",
        "partition.assignment.strategy": "cooperative-sticky,range",
        "auto.offset.reset": "error",
        "acks": "all",
    }


def test_unknown_properties_are_ignored_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    clients.make_producer("127.0.0.1:9", {"foo.bar": "1", "linger.ms": "1"})
    assert "WARN These configurations '[foo.bar]' were supplied" in capsys.readouterr().err
    with pytest.raises(ToolError, match="Invalid value"):
        clients.make_producer("127.0.0.1:9", {"linger.ms": "x"})
    with pytest.raises(ToolError, match="No resolvable bootstrap urls"):
        clients.make_producer(None, {})
    with pytest.raises(IllegalArgument, match="Invalid property: acks"):
        clients.parse_pairs(["acks"])


# -- kafka-producer-perf-test -----------------------------------------------------------------------------------------


def perf(*words: str) -> int:
    return producer_perf.main(["--topic", "t", *_SERVER, "--throughput", "-1", *words])


def test_totals_are_printed(producer: FakeProducer, capsys: pytest.CaptureFixture[str]) -> None:
    assert perf("--num-records", "30", "--record-size", "10", "--warmup-records", "20") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Warmup first 20 records. Steady state results will print after the complete test summary."
    assert lines[1].startswith("30 records sent, ")
    assert lines[1].endswith("ms 99.9th.")
    assert lines[2].startswith("10 steady state records sent, ")
    assert {len(value) for value in producer.values} == {10}
    assert all(value.isalpha() and value.isupper() for value in producer.values)


def test_values_are_counted_or_come_from_a_file(
    producer: FakeProducer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert perf("--num-records", "3", "--payload-monotonic") == 0
    assert producer.values == [b"0", b"1", b"2"]
    path = tmp_path / "payloads"
    path.write_text("one\ntwo\n")
    capsys.readouterr()
    assert perf("--num-records", "20", "--payload-file", str(path)) == 0
    assert set(producer.values[3:]) == {b"one", b"two"}
    assert capsys.readouterr().out.startswith(f"Reading payloads from: {path}\nNumber of records read: 2\n")


def test_transactions_last_as_long_as_asked(producer: FakeProducer) -> None:
    assert perf("--num-records", "3", "--record-size", "1", "--transactional-id", "x") == 0
    assert producer.calls == ["init_transactions", "begin_transaction", "commit_transaction"]


def test_deprecated_flags_are_reported(producer: FakeProducer, capsys: pytest.CaptureFixture[str]) -> None:
    assert perf("--num-records", "1", "--record-size", "1", "--producer-props", "acks=1", "linger.ms=0") == 0
    assert capsys.readouterr().out.startswith(
        "Option --producer-props has been deprecated and will be removed in a future version. Use --command-property "
        "instead.\n"
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--num-records", "0", "--record-size", "1"),
        ("--num-records", "1", "--record-size", "0"),
        ("--num-records", "1", "--record-size", "1", "--warmup-records", "1"),
        ("--num-records", "1", "--record-size", "1", "--transaction-duration-ms", "0"),
        ("--num-records", "1", "--record-size", "1", "--reporting-interval", "0"),
        ("--num-records", "1", "--payload-file", "/nonexistent"),
        ("--num-records", "1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(producer: FakeProducer, words: tuple[str, ...]) -> None:
    assert perf(*words) == 1
    assert not producer.values


def test_percentiles_are_latencies_of_records(capsys: pytest.CaptureFixture[str]) -> None:
    stats = producer_perf.Stats(1 << 30)
    for number in range(1000):
        stats.note(number, 1)
    stats.print_total("")
    assert "999.00 ms max latency, 500 ms 50th, 950 ms 95th, 990 ms 99th, 999 ms 99.9th." in capsys.readouterr().out


def test_the_first_interval_of_the_steady_state_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    stats = producer_perf.Stats(0, is_steady=True)
    stats.note(1, 1)
    stats.note(1, 1)
    first, *windows = capsys.readouterr().out.splitlines()
    assert first == "In steady state."
    assert [line.partition(",")[0] for line in windows] == ["1 records sent", "1 records sent"]


# -- kafka-consumer-perf-test -----------------------------------------------------------------------------------------


def test_throughput_is_printed(consumer: FakeConsumer, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(consumer_perf.TOOL, [*_SERVER, "--topic", "t", "--messages", "10", "--date-format", "yyyy"]) == 0
    warning, titles, figures = capsys.readouterr().out.splitlines()
    assert warning == "Warning: --messages is deprecated. Use --num-records instead."
    assert titles.startswith("start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, ")
    fields = figures.split(", ")
    assert (len(fields), fields[2], fields[4]) == (10, "0.0000", "10")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--topic", "t"), "Exactly one of the following arguments is required: [messages], [num-records]"),
        (("--num-records", "1"), "Exactly one of the following arguments is required: [topic], [include]"),
    ],
)
def test_one_of_two_flags_is_needed(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tool(consumer_perf.TOOL, [*_SERVER, *words]) == 1
    assert capsys.readouterr().err.startswith(text)


def test_dates_have_javas_patterns() -> None:
    moment_s = consumer_perf.datetime(2026, 3, 5, 7, 8, 9, 45_000).timestamp()
    patterns = {
        "yyyy-MM-dd HH:mm:ss:SSS": "2026-03-05 07:08:09:045",
        "d.M.yy H 'at' m": "5.3.26 7 at 8",
    }
    assert {pattern: consumer_perf.format_date(pattern, moment_s) for pattern in patterns} == patterns
    with pytest.raises(ToolError, match="Illegal pattern character 'b'"):
        consumer_perf.format_date("b", moment_s)


# -- kafka-verifiable-* -----------------------------------------------------------------------------------------------


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all(list(each)[:2] == ["timestamp", "name"] for each in found)
    return [{key: value for key, value in each.items() if key != "timestamp"} for each in found]


def test_events_of_a_producer(producer: FakeProducer, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--topic", "t", "--max-messages", "2", "--value-prefix", "7", "--repeating-keys", "1")
    assert verifiable_producer.main([*_SERVER, *flags]) == 0
    *found, total = events(capsys)
    sent = {"name": "producer_send_success", "key": "0", "topic": "t", "partition": 0}
    assert found == [
        {"name": "startup_complete"},
        {**sent, "value": "7.0", "offset": 0},
        {**sent, "value": "7.1", "offset": 1},
        {"name": "shutdown_complete"},
    ]
    assert (total["name"], total["sent"], total["acked"], total["target_throughput"]) == ("tool_data", 2, 2, -1)


def test_events_of_a_consumer(consumer: FakeConsumer, capsys: pytest.CaptureFixture[str]) -> None:
    assert verifiable_consumer.main([*_SERVER, "--topic", "t", "--group-id", "g", "--max-messages", "6"]) == 0
    rows = [{"topic": "t", "partition": 0, "count": 6, "minOffset": 0, "maxOffset": 5}]
    assert events(capsys) == [
        {"name": "startup_complete"},
        {"name": "partitions_assigned", "partitions": []},
        {"name": "records_consumed", "count": 10, "partitions": rows},
        {"name": "offsets_committed", "offsets": [{"topic": "t", "partition": 0, "offset": 6}], "success": True},
        {"name": "partitions_revoked", "partitions": []},
        {"name": "shutdown_complete"},
        {"name": "shutdown_requested"},
    ]
    assert consumer.committed == [("t", 0, 6)]


def test_wrong_protocol_is_refused(consumer: FakeConsumer) -> None:
    assert verifiable_consumer.main([*_SERVER, "--topic", "t", "--group-id", "g", "--group-protocol", "x"]) == 1
