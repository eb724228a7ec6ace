"""`ottla cluster` with three brokers as processes: state, elections, and moves of replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from campaign.processes import wait_until
from ottla.cli.main import main
from ottla.testing import ClusterProcess
from ottla.testing.process import BrokerProcess

pytestmark = pytest.mark.broker

_DEADLINE_S = 60.0


def run(cluster: ClusterProcess, *words: str, code: int = 0) -> Result:
    address = () if "-b" in words else ("-b", cluster.bootstrap)
    result = CliRunner().invoke(main, ["cluster", *words, *address, "--timeout", str(_DEADLINE_S)])
    assert result.exit_code == code, result.output
    return result


def run_json(cluster: ClusterProcess, *words: str, code: int = 0) -> Any:
    return json.loads(run(cluster, *words, "-o", "json", code=code).stdout)


def create(cluster: ClusterProcess, topic: str, assignment: list[list[int]]) -> None:
    """Create a topic with these replicas and ten records in each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = NewTopic(topic, len(assignment), replica_assignment=assignment)
    admin.create_topics([new])[topic].result(_DEADLINE_S)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    for number in range(len(assignment)):
        for _ in range(10):
            producer.produce(topic, b"v", partition=number)
    assert producer.flush(_DEADLINE_S) == 0


def replicas(cluster: ClusterProcess, topic: str) -> list[list[int]]:
    admin = AdminClient({"bootstrap.servers": cluster.brokers[1].bootstrap, "log_level": 0})
    found = admin.list_topics(topic, timeout=_DEADLINE_S).topics[topic].partitions
    return [list(found[number].replicas) for number in sorted(found)]


def wait_for_replicas(cluster: ClusterProcess, topic: str, expected: list[list[int]]) -> None:
    wait_until(lambda: replicas(cluster, topic) == expected)


def test_status_waits_for_brokers_and_elect_brings_leaders_back(ottla_cluster: ClusterProcess) -> None:
    create(ottla_cluster, "elected", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    healthy = run_json(ottla_cluster, "status", "--wait")
    assert healthy["healthy"] and healthy["brokers"] == 3 and healthy["controller_id"] in (1, 2, 3)
    # On a busy machine a broker can lose a leadership by itself.
    wait_until(lambda: "no election is needed" in run(ottla_cluster, "elect", "elected").output)

    ottla_cluster.brokers[1].stop()
    wait_until(lambda: len(run_json(ottla_cluster, "brokers")) == 2)
    ill = run_json(ottla_cluster, "status", code=4)
    assert {row["problem"] for row in ill["problems"]} == {"replicas not in sync"}
    assert "HEALTHY               no" in run(ottla_cluster, "status", code=4).output
    result = run(ottla_cluster, "brokers")
    assert "brokers with replicas that do not run: 1" in result.output
    ottla_cluster.brokers[1].launch()
    wait_until(lambda: len(run_json(ottla_cluster, "brokers")) == 3)
    assert run_json(ottla_cluster, "status", "--wait")["not_preferred_leaders"] >= 1

    planned = run_json(ottla_cluster, "elect", "elected", "--dry-run")
    assert (0, 1) in [(row["partition_id"], row["new_leader"]) for row in planned]
    done = run_json(ottla_cluster, "elect", "elected")
    assert (0, 1) in [(row["partition_id"], row["new_leader"]) for row in done]
    wait_until(lambda: "no election is needed" in run(ottla_cluster, "elect", "elected").output)
    rows = {row["broker_id"]: row for row in run_json(ottla_cluster, "brokers")}
    assert rows.keys() == {1, 2, 3} and all(row["leaders"] for row in rows.values())
    assert "does not exist" in run(ottla_cluster, "elect", "unknown", code=3).output


def test_replicas_move_to_named_brokers(ottla_cluster: ClusterProcess) -> None:
    create(ottla_cluster, "moved", [[1, 2], [1, 2]])
    before = run_json(ottla_cluster, "reassign", "moved:0=3,1", "--dry-run")
    assert [(row["adding"], row["status"]) for row in before] == [([3], "planned")]
    wait_for_replicas(ottla_cluster, "moved", [[1, 2], [1, 2]])
    result = run(ottla_cluster, "reassign", "moved:0=3,1")
    assert "1 partitions change, 1 replicas are copied" in result.output
    assert "1 of 1 partitions moved" in result.output
    wait_for_replicas(ottla_cluster, "moved", [[3, 1], [1, 2]])
    assert "no moves are in progress" in run(ottla_cluster, "reassign").output
    assert "does not exist" in run(ottla_cluster, "reassign", "moved:9=1", code=3).output
    assert "INVALID_REPLICA_ASSIGNMENT" in run(ottla_cluster, "reassign", "moved:0=3,9", code=1).output


def throttles(cluster: ClusterProcess, topic: str) -> dict[str, str]:
    """Return the throttles of a topic and of the first broker that differ from the defaults."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    resources = [ConfigResource("topic", topic), ConfigResource("broker", "1")]
    found = [future.result(_DEADLINE_S) for future in admin.describe_configs(resources).values()]
    return {
        name: entry.value
        for configs in found
        for name, entry in configs.items()
        if "replication.throttled" in name and not entry.is_default
    }


def test_moves_are_throttled_until_they_are_complete(ottla_cluster: ClusterProcess) -> None:
    create(ottla_cluster, "slow", [[1, 2], [2, 1]])
    planned = run_json(ottla_cluster, "reassign", "slow:0=1,3", "slow:1=3,1", "--no-wait", "--throttle", "100000")
    assert [row["adding"] for row in planned] == [[3], [3]]
    expected = {
        "leader.replication.throttled.replicas": "0:1,0:2,1:2,1:1",
        "follower.replication.throttled.replicas": "0:3,1:3",
        "leader.replication.throttled.rate": "100000",
        "follower.replication.throttled.rate": "100000",
    }
    wait_until(lambda: throttles(ottla_cluster, "slow") == expected)
    wait_for_replicas(ottla_cluster, "slow", [[1, 3], [3, 1]])
    assert "throttles are removed" in run(ottla_cluster, "reassign", "--unthrottle").output
    wait_until(lambda: throttles(ottla_cluster, "slow") == {})
    result = run(ottla_cluster, "reassign", "slow:0=2,1", "--throttle", "100000")
    assert "each broker copies at most 100000 bytes per second" in result.output
    wait_until(lambda: throttles(ottla_cluster, "slow") == {})


def test_moves_in_progress_are_listed_and_cancelled(ottla_cluster: ClusterProcess, tmp_path: Path) -> None:
    # A new replica cannot join while its broker is paused. The controller must answer.
    controller = run_json(ottla_cluster, "status", "--wait")["controller_id"]
    paused, other = (number for number in ottla_cluster.brokers if number != controller)
    create(ottla_cluster, "cancelled", [[controller, other]] * 2)
    rows = [{"topic": "cancelled", "partition": number, "replicas": [paused, controller]} for number in (0, 1)]
    (tmp_path / "moves.json").write_text(json.dumps({"partitions": rows}))
    running = ("-b", ottla_cluster.brokers[controller].bootstrap)
    ottla_cluster.brokers[paused].pause()
    try:
        started = run_json(ottla_cluster, "reassign", "--file", str(tmp_path / "moves.json"), "--no-wait", *running)
        assert [row["status"] for row in started] == ["started", "started"]
        ongoing = run_json(ottla_cluster, "reassign", *running)
        assert [(row["adding"], row["removing"]) for row in ongoing] == [([paused], [other])] * 2
        result = run(ottla_cluster, "reassign", "--cancel", "cancelled:0", *running)
        assert "1 moves were cancelled" in result.output
    finally:
        ottla_cluster.brokers[paused].resume()
    run(ottla_cluster, "reassign", f"cancelled:1={paused},{controller}")
    wait_for_replicas(ottla_cluster, "cancelled", [[controller, other], [paused, controller]])


def test_balance_add_and_decommission_move_few_replicas(ottla_cluster: ClusterProcess, tmp_path: Path) -> None:
    create(ottla_cluster, "uneven", [[1, 2]] * 6)
    planned = run_json(ottla_cluster, "balance", "--dry-run")
    assert planned == [row | {"status": "planned"} for row in run_json(ottla_cluster, "balance", "--batch", "2")]
    assert "nothing to move" in run(ottla_cluster, "balance").output
    counts = {row["broker_id"]: row["replicas"] for row in run_json(ottla_cluster, "brokers")}
    assert max(counts.values()) - min(counts.values()) <= 1

    assert "broker 4 is not in the cluster; start it" in run(ottla_cluster, "add", "4", code=3).output
    settings = {"zookeeper.connect": ottla_cluster.connect, "broker.id": "4"}
    with BrokerProcess.start(data=tmp_path / "broker-4", settings=settings):
        wait_until(lambda: len(run_json(ottla_cluster, "brokers")) == 4)
        moves = run_json(ottla_cluster, "add", "4")
        assert moves and all(4 in row["adding"] and row["status"] == "complete" for row in moves)
        counts = {row["broker_id"]: row["replicas"] for row in run_json(ottla_cluster, "brokers")}
        assert len(moves) == counts[4] >= 2
        moves = run_json(ottla_cluster, "decommission", "4")
        assert len(moves) == counts[4]
        counts = {row["broker_id"]: row["replicas"] for row in run_json(ottla_cluster, "brokers")}
        assert counts[4] == 0
    wait_until(lambda: len(run_json(ottla_cluster, "brokers")) == 3)
    assert "is not in the cluster" in run(ottla_cluster, "decommission", "4", code=3).output
    create(ottla_cluster, "everywhere", [[1, 2, 3]])
    assert "only 2 brokers would remain" in run(ottla_cluster, "decommission", "3", code=1).output
