"""Transactions of clients that are not Python's: Java's tools, franz-go and kafkajs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from drivers import DEADLINE_S, Place, Record, await_group_offsets
from drivers.confluent import Confluent
from drivers.confluent_transactions import ConfluentTransactions
from drivers.franz_go import FranzGo
from drivers.java import CONSUMER, DUMP_LOG, PERFORMANCE, JavaTools
from drivers.java_process import TRANSACTIONS
from drivers.kafkajs import KafkaJs
from drivers.parameters import NewTopic

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

MESSAGE_COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
TRANSACTION_FORMATTER = "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"
_END = b"end"
#: PRODUCER_FENCED, and as older versions say it
_FENCED = (90, 47)


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with BrokerProcess.start(settings={"transaction.state.log.num.partitions": "4"}) as broker:
        yield broker
        assert " ERROR " not in broker.errors()


@pytest.fixture
def writer(broker: BrokerProcess) -> Confluent:
    return Confluent(broker.bootstrap)


@pytest.fixture
def tools(java_tools: JavaTools, broker: BrokerProcess) -> JavaTools:
    return java_tools.at(broker.bootstrap)


def _committed(bootstrap: str, topic: str) -> list[bytes | None]:
    """What a reader of committed records finds in the first partition."""
    Confluent(bootstrap).produce(topic, [Record(value=_END)])
    member = ConfluentTransactions(bootstrap).member(f"reader-{topic}", read_committed=True)
    member.assign(Place(topic, 0))
    found: list[bytes | None] = []
    try:
        while _END not in found:
            found += [read.value for read in member.poll()]
    finally:
        member.close()
    return found[:-1]


# -- Java -------------------------------------------------------------------------------------------------------------


def test_copier_of_apache_kafka_copies_each_record_once(
    tools: JavaTools, broker: BrokerProcess, writer: Confluent, unused_name: str
) -> None:
    """Consume, transform, produce with Java's clients, with random aborts; both ways to name the group."""
    source = f"{unused_name}-in"
    writer.create_topic(source)
    writer.produce(source, [Record(value=b"%d" % number) for number in range(200)])

    def copy(name: str, *options: str) -> list[bytes | None]:
        target = f"{unused_name}-{name}"
        writer.create_topic(target)
        arguments = [
            "--broker-list", broker.bootstrap, "--input-topic", source, "--input-partition", "0",
            "--output-topic", target, "--max-messages", "200", "--consumer-group", target, "--transaction-size", "30",
            "--transactional-id", target, "--enable-random-aborts", *options,
        ]  # fmt: skip
        done = tools.run_tool(MESSAGE_COPIER, arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return _committed(broker.bootstrap, target)

    with ThreadPoolExecutor(2) as pool:
        plain, with_member = pool.submit(copy, "plain"), pool.submit(copy, "member", "--use-group-metadata")
    wanted = [b"%d" % number for number in range(200)]
    assert plain.result() == wanted
    assert with_member.result() == wanted


def test_performance_tool_writes_in_transactions_that_the_console_consumer_reads(
    tools: JavaTools, writer: Confluent, unused_name: str
) -> None:
    writer.create_topic(unused_name)
    aborter = ConfluentTransactions(tools._bootstrap).transactional(f"{unused_name}-aborted")
    aborter.begin()
    aborter.send(Place(unused_name, 0), b"aborted")
    aborter.abort()
    done = tools.run_tool(
        PERFORMANCE,
        ["--topic", unused_name, "--num-records", "500", "--record-size", "50", "--throughput", "-1",
         "--transactional-id", unused_name, "--transaction-duration-ms", "50", "--producer-props",
         f"bootstrap.servers={tools._bootstrap}"],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    # Without a group of its own a consumer takes a random number as its name, and two of them had the same one.
    read = CONSUMER, "--topic", unused_name, "--from-beginning", "--timeout-ms", "60000"
    committed, everything = tools.run_all(
        (*read, "--max-messages", "500", "--group", f"{unused_name}-c", "--isolation-level", "read_committed"),
        (*read, "--max-messages", "501", "--group", f"{unused_name}-u", "--isolation-level", "read_uncommitted"),
    )
    # The aborted record is the first, so a reader that shows it has it among the first 500.
    assert (len(committed.splitlines()), len(everything.splitlines())) == (500, 501)
    assert "aborted" not in committed.splitlines()
    assert "aborted" in everything.splitlines()


def test_transactions_are_listed_described_and_aborted_by_the_tool(
    tools: JavaTools, broker: BrokerProcess, writer: Confluent, unused_name: str
) -> None:
    writer.create_topic(unused_name)
    producer = ConfluentTransactions(broker.bootstrap).transactional(unused_name)
    producer.begin()
    producer.send(Place(unused_name, 0), b"hangs")
    place = "--topic", unused_name, "--partition", "0"
    listed, described, producers, hanging = tools_run(
        tools,
        ("list",), ("describe", "--transactional-id", unused_name), ("describe-producers", *place),
        ("find-hanging", "--topic", unused_name),
    )  # fmt: skip
    (row,) = (line.split() for line in listed.splitlines() if line.startswith(unused_name))
    assert row[3] == "Ongoing"
    assert f"{unused_name}-0" in described
    assert "Ongoing" in described
    (told,) = (line.split() for line in producers.splitlines() if line.startswith(row[2]))
    assert told[-1] == "0", "the offset where its transaction starts"
    assert unused_name not in hanging, "its coordinator knows it"
    # A marker from the administrator, as for a transaction that nobody owns any more.
    tools_run(tools, ("abort", *place, "--start-offset", "0"))
    assert _committed(broker.bootstrap, unused_name) == []


def test_kafka_reads_our_records_of_transactions(
    tools: JavaTools, broker: BrokerProcess, writer: Confluent, unused_name: str
) -> None:
    writer.create_topic(unused_name)
    producer = ConfluentTransactions(broker.bootstrap).transactional(unused_name)
    for result in ("commit", "abort"):
        producer.begin()
        producer.send(Place(unused_name, 0), b"x")
        getattr(producer, result)()
    # The last record is written when the markers are.
    deadline = time.monotonic() + DEADLINE_S
    while "CompleteAbort" not in tools_run(tools, ("describe", "--transactional-id", unused_name))[0]:
        assert time.monotonic() < deadline, "the last transaction is not complete"
        time.sleep(0.1)
    files = sorted(str(path) for path in Path(broker.data).rglob("__transaction_state-*/*.log"))
    data = sorted(str(path) for path in Path(broker.data).rglob(f"{unused_name}-0/*.log"))
    indexes = sorted(str(path) for path in Path(broker.data).rglob(f"{unused_name}-0/*.txnindex"))
    dumped = tools.run_tool(DUMP_LOG, ["--files", ",".join(files), "--transaction-log-decoder"])
    formatted = tools.read_state("__transaction_state", unused_name, TRANSACTION_FORMATTER)
    assert dumped.returncode == 0, dumped.stderr
    assert "isvalid: false" not in dumped.stdout
    assert f"transactional_id={unused_name}" in dumped.stdout or unused_name in dumped.stdout
    states = [
        each["value"]["data"]["transactionStatus"]
        for each in _objects(formatted)
        if each["key"]["data"]["transactionalId"] == unused_name
    ]
    # Empty; Ongoing, PrepareCommit, CompleteCommit; Ongoing, PrepareAbort, CompleteAbort
    assert states == [0, 1, 2, 4, 1, 3, 5]
    dumped_data = tools.run_tool(DUMP_LOG, ["--print-data-log", "--files", ",".join([*data, *indexes])])
    assert "endTxnMarker: COMMIT" in dumped_data.stdout
    assert "endTxnMarker: ABORT" in dumped_data.stdout
    assert "isvalid: false" not in dumped_data.stdout
    if indexes:
        assert "firstOffset: 2 lastOffset: 3" in dumped_data.stdout


def _objects(text: str) -> list[Any]:
    """The formatter puts nothing between them."""
    decoder, position, found = json.JSONDecoder(), 0, []
    while position < len(text.rstrip()):
        each, position = decoder.raw_decode(text, position)
        found.append(each)
    return found


def tools_run(tools: JavaTools, *calls: tuple[str, ...]) -> list[str]:
    """The transactions tool wants the broker before its verb."""

    def run(call: tuple[str, ...]) -> str:
        done = tools.run_tool(TRANSACTIONS, ["--bootstrap-server", tools._bootstrap, *call])
        assert done.returncode == 0, done.stdout + done.stderr
        return str(done.stdout)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, calls))


# -- Go and JavaScript ------------------------------------------------------------------------------------------------


def test_franz_go_copies_in_a_session_and_fences(
    franz_go: FranzGo, broker: BrokerProcess, writer: Confluent, unused_name: str
) -> None:
    source, target = f"{unused_name}-in", f"{unused_name}-out"
    for topic in (source, target):
        writer.create_topic(topic)
    writer.produce(source, [Record(value=b"%d" % number) for number in range(20)])
    found = franz_go.at(broker.bootstrap).copy_in_transactions(source, target, unused_name)
    assert found.pop("zombie") in _FENCED
    assert found == {"copied": [20, 20], "described": ["Ongoing", True], "listed": "Ongoing"}
    copied = [b"%d" % number for number in range(20)]
    assert _committed(broker.bootstrap, target) == [*copied, b"of %s-fenced" % unused_name.encode()]
    await_group_offsets(ConfluentTransactions(broker.bootstrap), unused_name, {Place(source, 0): 20})


def test_franz_go_aborts_an_empty_transaction_right_after_a_commit(
    franz_go: FranzGo, broker: BrokerProcess, writer: Confluent, unused_name: str
) -> None:
    """The abort arrives while the markers of the commit are being written; it must not fence its producer."""
    writer.create_topic(unused_name)
    assert franz_go.at(broker.bootstrap).abort_empty(unused_name, unused_name, times=100) == {}
    assert _committed(broker.bootstrap, unused_name) == [b"%d" % number for number in range(100)]


def test_kafkajs_commits_and_aborts_with_offsets(
    kafkajs: KafkaJs, confluent: Confluent, new_topic: NewTopic, group: str
) -> None:
    source, target = new_topic(), new_topic()
    bootstrap = kafkajs._bootstrap
    confluent.produce(source, [Record(value=b"x")] * 5)

    def step(end: str, offset: int) -> dict[str, object]:
        place = {"partition": 0, "offset": str(offset)}
        return {
            "sends": [{"topic": target, "messages": [{"value": f"{end} {offset}", "partition": 0}]}],
            "offsets": {"consumerGroupId": group, "topics": [{"topic": source, "partitions": [place]}]},
            "end": end,
        }

    kafkajs.transact(group, step("commit", 1), step("abort", 2), step("commit", 3), step("abort", 4))
    assert _committed(bootstrap, target) == [b"commit 1", b"commit 3"]
    await_group_offsets(ConfluentTransactions(bootstrap), group, {Place(source, 0): 3})
