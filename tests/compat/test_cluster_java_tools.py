"""Apache Kafka's command-line tools against a cluster of three brokers, unchanged and in one JVM."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import Place, Record, java_process
from drivers.cluster import ClusterState
from drivers.confluent import Confluent
from drivers.confluent_groups import ConfluentGroups
from drivers.confluent_transactions import ConfluentTransactions
from drivers.java import CONFIGS, CONSUMER_GROUPS, DELETE_RECORDS, FEATURES, LOG_DIRS, OFFSETS, TOPICS
from drivers.java_process import (
    CLUSTER,
    ELECTION,
    QUORUM,
    REASSIGN,
    REPLICA_VERIFICATION,
    TRANSACTIONS,
    JavaProcess,
)

from campaign.processes import wait_until
from ottla.testing import ClusterProcess

pytestmark = pytest.mark.foreign

_DEFAULT = "DYNAMIC_DEFAULT_BROKER_CONFIG:background.threads=9"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def tools(ottla_cluster: ClusterProcess) -> Iterator[JavaProcess]:
    problem = java_process.missing()
    if problem is not None:
        pytest.skip(problem)
    process = JavaProcess(ottla_cluster.bootstrap)
    yield process
    process.close()


@pytest.fixture(scope="module")
def state(ottla_cluster: ClusterProcess) -> ClusterState:
    return ClusterState(ottla_cluster)


@pytest.fixture(scope="module")
def client(ottla_cluster: ClusterProcess) -> Confluent:
    return Confluent(ottla_cluster.bootstrap)


@pytest.fixture
def topic() -> str:
    return f"tools-{next(_numbers)}"


def create(tools: JavaProcess, state: ClusterState, topic: str, assignment: str) -> None:
    tools.run(TOPICS, "--create", "--topic", topic, "--replica-assignment", assignment)
    state.wait_in_sync(topic, assignment.count(",") + 1)


def plan_file(path: Path, topic: str, replicas: dict[int, list[int]]) -> str:
    rows = [{"topic": topic, "partition": number, "replicas": ids} for number, ids in replicas.items()]
    file = path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": rows}))
    return str(file)


def wait_for(tools: JavaProcess, condition: Callable[[str], bool], *call: str) -> str:
    """Return what a tool printed when the condition holds. It asks any broker; brokers learn changes by watching."""
    printed = ""

    def is_shown() -> bool:
        nonlocal printed
        printed = tools.run(*call)
        return condition(printed)

    wait_until(is_shown, lambda: printed)
    return printed


def lines(text: str, start: str) -> list[list[str]]:
    """Return the words of the lines that begin with a word."""
    return [words for line in text.splitlines() if (words := line.split())[:1] == [start]]


def test_topics_are_created_with_replicas_and_assignments(tools: JavaProcess, state: ClusterState, topic: str) -> None:
    named = "--topic", topic
    tools.run(TOPICS, "--create", *named, "--partitions", "3", "--replication-factor", "3")
    found = state.wait_in_sync(topic, 3)
    assert sorted(each.replicas[0] for each in found) == [1, 2, 3]
    assert all(sorted(each.replicas) == [1, 2, 3] for each in found)
    described = tools.run(TOPICS, "--describe", *named)
    assert "PartitionCount: 3\tReplicationFactor: 3" in described
    assert "TopicExistsException" in tools.run(TOPICS, "--create", *named, fails=True)

    assigned = f"{topic}-assigned"
    create(tools, state, assigned, "1:2,2:3,3:1")
    tools.run(TOPICS, "--alter", "--topic", assigned, "--partitions", "4", "--replica-assignment", "1:2,2:3,3:1,2:1")
    found = state.wait_in_sync(assigned, 4)
    assert [each.replicas for each in found] == [(1, 2), (2, 3), (3, 1), (2, 1)]
    row = re.compile(f"Topic: {assigned}\tPartition: 3\tLeader: [12]\tReplicas: 2,1\tIsr: (2,1|1,2)")
    wait_for(tools, lambda said: row.search(said) is not None, TOPICS, "--describe", "--topic", assigned)
    wait_for(tools, lambda said: topic not in said, TOPICS, "--describe", "--under-replicated-partitions")
    tools.run(TOPICS, "--delete", "--topic", assigned)
    state.wait(assigned, lambda found: not found)


def test_replicas_are_moved_with_a_throttle_and_verified(
    tools: JavaProcess, state: ClusterState, client: Confluent, topic: str, tmp_path: Path
) -> None:
    create(tools, state, topic, "1:2,1:2")
    client.produce(topic, [Record(value=b"x" * 1000)] * 20)
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"topics": [{"topic": topic}], "version": 1}))
    proposed = tools.run(REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "3,1")
    proposed_plan = json.loads(proposed.splitlines()[-1])
    assert {number for row in proposed_plan["partitions"] for number in row["replicas"]} == {1, 3}

    file = plan_file(tmp_path, topic, {0: [3, 1], 1: [2, 3]})
    started = tools.run(REASSIGN, "--execute", "--reassignment-json-file", file, "--throttle", "10000000")
    assert "The inter-broker throttle limit was set to 10000000 B/s" in started
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in started
    state.wait(topic, lambda found: [each.replicas for each in found] == [(3, 1), (2, 3)])
    entity = "--entity-type", "topics", "--entity-name", topic
    describe = CONFIGS, "--describe", *entity
    wait_for(tools, lambda said: "follower.replication.throttled.replicas=" in said, *describe)
    verify = REASSIGN, "--verify", "--reassignment-json-file", file
    wait_for(tools, lambda said: said.count("is completed") == 2, *verify)
    wait_for(tools, lambda said: "throttled" not in said, *describe)
    assert tools.run(REASSIGN, "--list").strip() == "No partition reassignments found."

    # The leader stays where it is until the preferred replica is elected.
    tools.run(ELECTION, "--election-type", "preferred", "--all-topic-partitions")
    found = state.wait(topic, lambda found: [each.leader for each in found] == [3, 2])
    assert all(each.is_in_sync for each in found)
    election = "--topic", topic, "--partition", "0", "--election-type"
    assert "Valid replica already elected" in tools.run(ELECTION, *election, "preferred")


def test_log_dirs_of_each_broker_are_described_with_sizes(
    tools: JavaProcess, state: ClusterState, client: Confluent, topic: str
) -> None:
    create(tools, state, topic, "1:2,2:3,3:1")
    client.produce(topic, [Record(value=b"x" * 1000)], partition=1)
    described = json.loads(tools.run(LOG_DIRS, "--describe", "--topic-list", topic).splitlines()[-1])
    directories = {row["broker"]: row["logDirs"][0] for row in described["brokers"]}
    assert {number: each["logDir"] for number, each in directories.items()} == {
        number: broker.data for number, broker in state.cluster.brokers.items()
    }
    sizes = {
        number: {row["partition"]: row["size"] for row in each["partitions"]} for number, each in directories.items()
    }
    placed = {number: [int(name.rpartition("-")[2]) for name in sorted(logs)] for number, logs in sizes.items()}
    assert placed == {1: [0, 2], 2: [0, 1], 3: [1, 2]}
    assert sizes[2][f"{topic}-1"] == sizes[3][f"{topic}-1"] > 1000


def test_cluster_features_and_quorum_are_described(tools: JavaProcess) -> None:
    assert tools.run(CLUSTER, "cluster-id").startswith("Cluster ID: ")
    endpoints = tools.run(CLUSTER, "list-endpoints").splitlines()[1:]
    assert [line.split()[0] for line in endpoints] == ["1", "2", "3"]
    tools.run(FEATURES, "downgrade", "--feature", "transaction.version=1")
    tools.run(FEATURES, "upgrade", "--feature", "transaction.version=2")
    assert "Could not upgrade" in tools.run(FEATURES, "upgrade", "--feature", "transaction.version=3", fails=True)
    described = tools.run(FEATURES, "describe")
    assert [words[1] for words in lines(described, "Feature:")] == [
        "group.version", "metadata.version", "transaction.version",
    ]  # fmt: skip
    status = tools.run(QUORUM, "describe", "--status")
    # ZooKeeper's ensemble is the quorum: here one server, which has the id 0.
    assert lines(status, "LeaderId:") == [["LeaderId:", "0"]]
    replication = tools.run(QUORUM, "describe", "--replication", "--human-readable").splitlines()[1:]
    assert {line.split()[0]: line.split()[-1] for line in replication} == {"0": "Leader"}


def test_each_broker_has_its_own_settings(tools: JavaProcess) -> None:
    for number in ("1", "2", "3"):
        entity = "--entity-type", "brokers", "--entity-name", number
        tools.run(CONFIGS, "--alter", *entity, "--add-config", f"background.threads={number}1")
    described = tools.run(CONFIGS, "--describe", "--entity-type", "brokers")
    found = [words[0] for words in map(str.split, described.splitlines()) if words[0].startswith("background.threads")]
    assert found == [f"background.threads={number}1" for number in (1, 2, 3)]
    default = "--entity-type", "brokers", "--entity-default"
    tools.run(CONFIGS, "--alter", *default, "--add-config", "background.threads=9")
    for number in ("1", "2", "3"):
        entity = "--entity-type", "brokers", "--entity-name", number
        tools.run(CONFIGS, "--alter", *entity, "--delete-config", "background.threads")
        wait_for(tools, lambda said: _DEFAULT in said, CONFIGS, "--describe", *entity, "--all")
    tools.run(CONFIGS, "--alter", *default, "--delete-config", "background.threads")


def test_groups_of_all_coordinators_are_described_reset_and_deleted(
    tools: JavaProcess, state: ClusterState, client: Confluent, topic: str
) -> None:
    create(tools, state, topic, "1:2,2:3")
    client.produce(topic, [Record(value=b"x")] * 5)
    groups = [f"{topic}-{letter}" for letter in "abcdef"]
    committer = ConfluentGroups(state.cluster.bootstrap)
    for group in groups:
        committer.set_group_offsets(group, {Place(topic, 0): 3})
    assert set(groups) <= set(tools.run(CONSUMER_GROUPS, "--list").split())
    states = tools.run(CONSUMER_GROUPS, "--describe", "--all-groups", "--state")
    coordinators = {words[2] for group in groups for words in lines(states, group)}
    assert len(coordinators) > 1
    options = [option for group in groups for option in ("--group", group)]
    described = tools.run(CONSUMER_GROUPS, "--describe", "--offsets", *options)
    assert [words[1:6] for group in groups for words in lines(described, group)] == [[topic, "0", "3", "5", "2"]] * 6
    reset = "--reset-offsets", "--all-topics", "--to-earliest", "--execute"
    assert len(tools.run(CONSUMER_GROUPS, *reset, *options).split(topic)) > len(groups)
    assert "Successful" in tools.run(CONSUMER_GROUPS, "--delete-offsets", *options[:2], "--topic", topic)
    assert "was successful" in tools.run(CONSUMER_GROUPS, "--delete", *options[2:])
    assert not set(groups[1:]) & set(tools.run(CONSUMER_GROUPS, "--list").split())


def test_transactions_of_all_coordinators_are_listed_described_and_aborted(
    tools: JavaProcess, state: ClusterState, topic: str
) -> None:
    create(tools, state, topic, "1:2,2:3,3:1")
    names = [f"{topic}-{letter}" for letter in "abcd"]
    transactions = ConfluentTransactions(state.cluster.bootstrap)
    producers = [transactions.transactional(name) for name in names]
    for number, producer in enumerate(producers):
        producer.begin()
        producer.send(Place(topic, number % 3), b"x")
    listed = tools.run(TRANSACTIONS, "list")
    assert [words[3] for name in names for words in lines(listed, name)] == ["Ongoing"] * 4
    assert len({words[1] for name in names for words in lines(listed, name)}) > 1, "one coordinator has all of them"
    described = [tools.run(TRANSACTIONS, "describe", "--transactional-id", name).split("\t")[-2] for name in names]
    assert [each.strip() for each in described] == [f"{topic}-{number % 3}" for number in range(4)]
    for number in range(3):
        shown = tools.run(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", str(number))
        assert len(shown.splitlines()) == (3 if number == 0 else 2)
    for number in ("1", "2", "3"):
        found = tools.run(TRANSACTIONS, "find-hanging", "--broker-id", number, "--max-transaction-timeout", "0")
        assert topic not in found
    start = "--partition", "1", "--start-offset", "0"
    tools.run(TRANSACTIONS, "abort", "--topic", topic, *start)
    producers[0].commit()
    tools.run(TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", names[2])
    # The markers are written after the producer has its answer.
    wait_for(tools, lambda said: lines(said, names[0])[0][3] == "CompleteCommit", TRANSACTIONS, "list")
    for producer in producers:
        producer.close()


def test_offsets_are_listed_and_records_deleted_at_their_leaders(
    tools: JavaProcess, state: ClusterState, client: Confluent, topic: str, tmp_path: Path
) -> None:
    create(tools, state, topic, "1:2,2:3,3:1")
    for number in range(3):
        client.produce(topic, [Record(value=b"x")] * 5, partition=number)
    rows = [{"topic": topic, "partition": number, "offset": number} for number in range(3)]
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"partitions": rows, "version": 1}))
    assert tools.run(DELETE_RECORDS, "--offset-json-file", str(plan)).count("low_watermark") == 3
    named = "--topic", topic
    assert tools.run(OFFSETS, *named).split() == [f"{topic}:{number}:5" for number in range(3)]
    earliest = tools.run(OFFSETS, *named, "--time", "earliest")
    assert earliest.split() == [f"{topic}:{number}:{number}" for number in range(3)]


def test_replicas_are_compared_with_each_other(
    tools: JavaProcess, state: ClusterState, client: Confluent, topic: str
) -> None:
    """The tool reads the same offsets from the leader and from the followers, and compares checksums."""
    create(tools, state, topic, "1:2:3")
    options = "--broker-list", state.cluster.bootstrap, "--topics-include", topic, "--report-interval-ms", "200"
    process = tools.start(REPLICA_VERIFICATION, *options)
    try:
        assert process.stdout is not None
        printed = [process.stdout.readline(), process.stdout.readline()]
        assert "verification process is started" in printed[0]
        client.produce(topic, [Record(value=b"x")] * 20)

        def is_compared() -> bool:
            assert process.stdout is not None
            printed.append(process.stdout.readline())
            return f"max lag is 0 for partition {topic}-0 at offset 20 " in printed[-1]

        wait_until(is_compared, lambda: "".join(printed))
    finally:
        process.kill()
        process.communicate()


def test_tools_show_and_handle_a_broker_that_is_down(
    tools: JavaProcess, state: ClusterState, topic: str, tmp_path: Path
) -> None:
    create(tools, state, topic, "3:2,1:2,3:1")
    state.cluster.brokers[3].kill()
    state.wait(topic, lambda found: all(3 not in each.isr and each.leader > 0 for each in found))
    try:
        described = tools.run(TOPICS, "--describe", "--topic", topic)
        assert "Partition: 0\tLeader: 2\tReplicas: 3,2\tIsr: 2" in described
        assert topic in tools.run(TOPICS, "--describe", "--under-replicated-partitions")
        election = "--topic", topic, "--partition", "0", "--election-type"
        assert "PreferredLeaderNotAvailable" in tools.run(ELECTION, *election, "preferred", fails=True)
        assert "Valid replica already elected" in tools.run(ELECTION, *election, "unclean")
        # The tool itself refuses brokers that are down. Kafka does not: the move waits for the broker.
        file = plan_file(tmp_path, topic, {1: [1, 3]})
        refused = tools.run(REASSIGN, "--execute", "--reassignment-json-file", file, fails=True)
        assert "Unknown broker id 3" in refused
        state.reassign(topic, 1, [1, 3])
        state.wait(topic, lambda found: found[1].replicas == (1, 3, 2))
        assert f"{topic}-1: replicas: 1,3,2. adding: 3. removing: 2." in tools.run(REASSIGN, "--list")
        # Without --preserve-throttles the tool asks the broker that is down to clear its throttle, for a minute.
        cancel = "--cancel", "--preserve-throttles", "--reassignment-json-file", file
        assert "Successfully cancelled" in tools.run(REASSIGN, *cancel)
        state.wait(topic, lambda found: found[1].replicas == (1, 2))
        later = f"{topic}-later"
        tools.run(TOPICS, "--create", "--topic", later, "--partitions", "1", "--replication-factor", "3")
        running = tools.run(CLUSTER, "unregister", "--id", "2", fails=True)
        assert "broker 2 is running" in running
        include = CLUSTER, "list-endpoints", "--include-fenced-brokers"
        wait_for(tools, lambda said: [words[4] for words in lines(said, "3")] == ["fenced"], *include)
        tools.run(CLUSTER, "unregister", "--id", "3")
        wait_for(
            tools,
            lambda said: [line.split()[0] for line in said.splitlines()[1:]] == ["1", "2"],
            CLUSTER,
            "list-endpoints",
        )
    finally:
        state.cluster.brokers[3].launch()
    state.wait_in_sync(topic, 3)
    state.wait_in_sync(later, 1)
