"""Apache Kafka's tools and groups: members of both protocols, what the tools say of them, and Kafka's own decoders."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from drivers import DEADLINE_S, Place, Record
from drivers.confluent import Confluent
from drivers.confluent_groups import ConfluentGroups
from drivers.java import (
    CONSUMER,
    CONSUMER_GROUPS,
    DUMP_LOG,
    GROUPS,
    GROUPS_FORMATTER,
    LATENCY,
    OFFSETS_FORMATTER,
    VERIFIABLE_CONSUMER,
    JavaTools,
)

from ottla.testing import BrokerProcess

pytestmark = pytest.mark.foreign

PROTOCOLS = ("classic", "consumer")


@pytest.fixture
def tools(java_tools: JavaTools, quick_broker: BrokerProcess) -> JavaTools:
    return java_tools.at(quick_broker.bootstrap)


@pytest.fixture
def writer(quick_broker: BrokerProcess) -> Confluent:
    return Confluent(quick_broker.bootstrap)


@pytest.fixture
def groups(quick_broker: BrokerProcess) -> dict[str, ConfluentGroups]:
    return {protocol: ConfluentGroups(quick_broker.bootstrap, protocol) for protocol in PROTOCOLS}


@pytest.fixture
def topic(writer: Confluent, unused_name: str) -> str:
    """Two partitions with three records each."""
    writer.create_topic(unused_name, partitions=2)
    for partition in range(2):
        writer.produce(unused_name, [Record(value=b"%d" % n) for n in range(3)], partition=partition)
    return unused_name


@pytest.fixture
def shared(groups: dict[str, ConfluentGroups], group: str, topic: str) -> Iterator[dict[str, list[set[Place]]]]:
    """A group of two members for each protocol; what each member holds. One record of each partition is committed."""
    members = []
    held = {}
    for protocol, client in groups.items():
        name = f"{group}-{protocol}"
        pair = [client.member(name, client_id=f"{name}-{number}") for number in range(2)]
        members += pair
        for member in pair:
            member.subscribe(topic)
        deadline = time.monotonic() + DEADLINE_S
        while [len(member.assignment()) for member in pair] != [1, 1]:
            assert time.monotonic() < deadline
            for member in pair:
                member.poll()
        held[protocol] = [member.assignment() for member in pair]
        for member in pair:
            member.commit(dict.fromkeys(member.assignment(), 1))
    yield held
    for member in members:
        member.close()


def test_console_consumers_of_both_protocols_commit_what_they_read(
    tools: JavaTools, groups: dict[str, ConfluentGroups], group: str, topic: str
) -> None:
    options = "--topic", topic, "--from-beginning", "--max-messages", "6", "--timeout-ms", "20000"
    found = tools.run_all(
        *(
            (CONSUMER, *options, "--group", f"{group}-{name}", "--command-property", f"group.protocol={name}")
            for name in PROTOCOLS
        )
    )
    assert [sorted(said.split()) for said in found] == [list("001122")] * 2
    for name in PROTOCOLS:
        assert groups[name].group_offsets(f"{group}-{name}") == {Place(topic, 0): 3, Place(topic, 1): 3}


def test_groups_are_listed_and_described(
    tools: JavaTools, shared: dict[str, list[set[Place]]], group: str, topic: str
) -> None:
    names = [f"{group}-{protocol}" for protocol in PROTOCOLS]
    both = "--group", names[0], "--group", names[1]
    listed, kinds, offsets, members, state = tools.run_all(
        (CONSUMER_GROUPS, "--list", "--state", "stable", "--type"),
        (GROUPS, "--list"),
        (CONSUMER_GROUPS, "--describe", *both, "--offsets"),
        (CONSUMER_GROUPS, "--describe", *both, "--members", "--verbose"),
        (CONSUMER_GROUPS, "--describe", *both, "--state"),
    )
    for name, kind in zip(names, ("Classic", "Consumer"), strict=True):
        assert [name, kind, "Stable"] in _rows(listed)
        assert [name, kind, "consumer"] in _rows(kinds)
    for name, protocol, assignor in zip(names, PROTOCOLS, ("range", "uniform"), strict=True):
        told = [row for row in _rows(offsets) if row[:2] == [name, topic]]
        holders = {row[2]: row[-1] for row in told}
        # Committed, end, lag; both members are found behind their partitions.
        assert [row[3:6] for row in told] == [["1", "3", "2"]] * 2
        assert holders == {str(place.partition): f"{name}-{number}" for number, (place,) in enumerate(shared[protocol])}
        assert [(row[3], row[4]) for row in sorted(_rows(members), key=lambda row: row[3:4]) if row[0] == name] == [
            (f"{name}-0", "1"), (f"{name}-1", "1"),
        ]  # fmt: skip
        (row,) = (row for row in _rows(state) if row[0] == name)
        assert row[-3:] == [assignor, "Stable", "2"]


def test_offsets_are_reset_and_deleted_and_groups_too(
    tools: JavaTools, groups: dict[str, ConfluentGroups], group: str, topic: str
) -> None:
    first, second = f"{group}-a", f"{group}-b"
    for name in (first, second):
        groups["classic"].set_group_offsets(name, {Place(topic, 0): 2, Place(topic, 1): 2})
    reset = CONSUMER_GROUPS, "--reset-offsets", "--group"
    tried, shifted, deleted = tools.run_all(
        (*reset, first, "--topic", topic, "--to-earliest", "--dry-run"),
        (*reset, second, "--topic", f"{topic}:1", "--shift-by", "-1", "--execute"),
        (CONSUMER_GROUPS, "--delete-offsets", "--group", first, "--topic", f"{topic}:0"),
    )
    assert sorted(row for row in _rows(tried) if row[0] == first) == [[first, topic, str(n), "0"] for n in range(2)]
    assert [second, topic, "1", "1"] in _rows(shifted)
    assert [topic, "0", "Successful"] in _rows(deleted)
    assert groups["classic"].group_offsets(first) == {Place(topic, 1): 2}
    assert groups["classic"].group_offsets(second) == {Place(topic, 0): 2, Place(topic, 1): 1}
    said = tools.run(CONSUMER_GROUPS, "--delete", "--group", first, "--group", "nobody")
    assert f"deleted successfully: '{first}'" in said
    assert "GroupIdNotFoundException" in said
    assert groups["classic"].list_groups() & {first, second} == {second}


def test_reset_and_deletion_are_refused_while_members_are_there(
    tools: JavaTools, shared: dict[str, list[set[Place]]], group: str, topic: str
) -> None:
    names = [f"{group}-{protocol}" for protocol in PROTOCOLS]
    reset, deleted = tools.run_all(
        (CONSUMER_GROUPS, "--reset-offsets", "--group", names[1], "--topic", topic, "--to-latest", "--execute"),
        (CONSUMER_GROUPS, "--delete", "--group", names[0], "--group", names[1]),
    )
    # The tool ends well all the same.
    assert f"only be reset if the group '{names[1]}' is inactive, but the current state is Stable" in reset
    assert deleted.count("GroupNotEmptyException") == 2


def test_kafka_reads_our_records_of_groups(
    tools: JavaTools, shared: dict[str, list[set[Place]]], quick_broker: BrokerProcess, group: str, topic: str
) -> None:
    """Both formatters over __consumer_offsets, and the decoder of kafka-dump-log over its files."""
    files = sorted(str(path) for path in Path(quick_broker.data).glob("__consumer_offsets-*/*.log"))
    with ThreadPoolExecutor(2) as pool:
        reads = (f"{group}-consumer", OFFSETS_FORMATTER), (f"{group}-classic", GROUPS_FORMATTER)
        read = [pool.submit(tools.read_state, "__consumer_offsets", *each) for each in reads]
    offsets, metadata = (each.result() for each in read)
    dumped = tools.run_tool(DUMP_LOG, ["--files", ",".join(files), "--offsets-decoder"])
    committed = [each for each in _objects(offsets) if each["key"]["data"]["group"] == f"{group}-consumer"]
    assert {each["key"]["data"]["partition"]: each["value"]["data"]["offset"] for each in committed} == {0: 1, 1: 1}
    generations = [each for each in _objects(metadata) if each["key"]["data"]["group"] == f"{group}-classic"]
    assert {each["clientId"] for each in generations[-1]["value"]["data"]["members"]} == {
        f"{group}-classic-{number}" for number in range(2)
    }
    assert dumped.returncode == 0, dumped.stderr
    # Keys 3 to 8 and 16 are the newer protocol's, 1 and 2 are offsets and classic groups.
    kinds = {line.partition('key: {"type":"')[2].partition('"')[0] for line in dumped.stdout.splitlines()}
    assert {"1", "2", "3", "5", "6", "7", "8"} <= kinds
    assert "isvalid: false" not in dumped.stdout


def test_latency_is_measured_end_to_end(tools: JavaTools, topic: str, unused_name: str) -> None:
    options = "--topic", f"{unused_name}-latency", "--num-records", "100", "--producer-acks", "all"
    said = tools.run(LATENCY, *options, "--record-size", "100")
    assert "Avg latency: " in said


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_verifiable_consumers_share_and_static_ones_keep_their_place(
    tools: JavaTools, writer: Confluent, groups: dict[str, ConfluentGroups], group: str, topic: str, protocol: str
) -> None:
    """Two that end after ten records each, of at least seventeen for each; then one comes back for one more."""

    def run(instance: str, count: int) -> list[dict[str, object]]:
        said = tools.run(
            VERIFIABLE_CONSUMER, "--topic", topic, "--group-id", group, "--group-instance-id", instance,
            "--group-protocol", protocol, "--reset-policy", "earliest", "--max-messages", str(count), "--verbose",
        )  # fmt: skip
        return [json.loads(line) for line in said.splitlines() if line.startswith("{")]

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(run, name, 10) for name in ("one", "two")]
        _until_shared(groups[protocol], group)
        for partition in range(2):
            writer.produce(topic, [Record(value=b"x")] * 17, partition=partition)
        events = [each.result() for each in running]
    for diary in events:
        names = [each["name"] for each in diary]
        assert {"partitions_assigned", "records_consumed", "offsets_committed", "shutdown_complete"} <= set(names)
    # Static members that end are still members; the Java client makes the instance's name part of its client id.
    held = dict(groups[protocol].describe_group(group).members)
    assert set(held.values()) == {frozenset({Place(topic, 0)}), frozenset({Place(topic, 1)})}
    (assigned,) = (each["partitions"] for each in run("one", 1) if each["name"] == "partitions_assigned")
    (place,) = held[f"consumer-{group}-one"]
    assert assigned == [place._asdict()]


def _until_shared(groups: ConfluentGroups, group: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if group in groups.list_groups():
            found = groups.describe_group(group)
            if found.state == "Stable" and [len(partitions) for _, partitions in found.members] == [1, 1]:
                return
        assert time.monotonic() < deadline, "the members do not share the partitions"
        time.sleep(0.1)


def _rows(said: str) -> list[list[str]]:
    return [line.split() for line in said.splitlines() if line.strip()]


def _objects(said: str) -> list[dict[str, dict[str, dict[str, object]]]]:
    """JSON objects that stand side by side; the formatters write no line ends."""
    decoder, found, position = json.JSONDecoder(), [], said.find("{")
    while position != -1:
        each, position = decoder.raw_decode(said, position)
        found.append(each)
        position = said.find("{", position)
    return found
