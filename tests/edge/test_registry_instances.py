"""Several instances of the registry: forwarding, takeover, restarts, and a slice of the campaign `registry-kills`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from edge_broker import Broker, edge_broker
from registry_kills import RETRIED, run
from registry_process import RegistryProcess

from campaign.report import Report
from ottla.client.cluster import Cluster
from ottla.client.membership import Membership, members_of, remove_members
from ottla.edge.registry.election import Instance, assign, client_id_of
from ottla.edge.registry.records import SchemaVersion
from ottla.edge.registry.store import LeadershipLost, StoreSettings, Writer, prepare_topic, read_up_to

#: longer than an instance waits for a leader
SESSION_S = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with edge_broker() as broker:
        yield broker


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    """A registry of its own for each test."""
    name = request.node.name
    return {"kafkastore.topic": f"_schemas.{name}", "schema.registry.group.id": name}


def test_follower_forwards_changes_and_finds_what_the_leader_acknowledged(
    broker: Broker, settings: dict[str, str]
) -> None:
    with (
        RegistryProcess(broker.bootstrap, settings) as leader,
        RegistryProcess(broker.bootstrap, settings) as follower,
    ):
        for number in range(20):
            text = json.dumps({"type": "fixed", "name": "F", "size": number + 1}, separators=(",", ":"))
            writer, reader = (leader, follower) if number % 2 else (follower, leader)
            schema_id = writer.register(f"s{number}", text)
            assert reader.get(f"/schemas/ids/{schema_id}")["schema"] == text
        assert follower.ask("DELETE", "/subjects/s0") == (200, [1])
        assert follower.ask("POST", "/subjects/s1/versions", {"schema": '"int"'})[1]["error_code"] == 40901
        leader.kill()
        assert follower.register("after", '"string"') == 21
        assert follower.get("/_health")["status"]["is_leader"] is True


def test_instance_that_may_not_lead_forwards_everything_and_reads_its_changes(
    broker: Broker, settings: dict[str, str]
) -> None:
    """The leader says how far it has read the topic, and the other answers when it has read as far."""
    with RegistryProcess(broker.bootstrap, {**settings, "leader.eligibility": "false"}) as other:
        assert other.ask("GET", "/master_available")[0] == 503
        with RegistryProcess(broker.bootstrap, settings) as leader:
            assert other.register("a", '"int"') == leader.register("b", '"int"') == 1
            for number in range(20):
                subject = f"s{number}"
                other.register(subject, '"int"')
                assert other.get(f"/subjects/{subject}/versions") == [1]
                assert other.ask("DELETE", f"/subjects/{subject}") == (200, [1])
                assert other.ask("GET", f"/subjects/{subject}/versions")[1]["error_code"] == 40401
            url, body = f"{leader.url}/subjects/last/versions", {"schema": '"int"'}
            assert "ottla-position" not in leader.client.post(url, json=body).headers
            position = int(leader.client.post(url, json=body, headers={"x-forward": "true"}).headers["ottla-position"])
            assert 0 < position <= leader.get("/_health")["status"]["position"]


def leave_a_killed_leader(broker: Broker, settings: dict[str, str]) -> int:
    """Join the group as the leader at a port where no process listens, and send no heartbeats. Return the port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        own = Instance("http", "127.0.0.1", listener.getsockname()[1])
    with Cluster(broker.bootstrap, client_id=client_id_of(own.url)) as cluster:
        group = settings["schema.registry.group.id"]
        member = Membership(cluster, group, protocol_type="sr", protocol="v0", session_timeout_s=SESSION_S)
        assert member.join(json.dumps(own.as_json(is_leader=True)).encode(), assign)
    return own.port


def test_restarted_instance_does_not_wait_for_the_session_of_the_killed_one(
    broker: Broker, settings: dict[str, str]
) -> None:
    """The other instance has started a rebalance, so that brokers hide the addresses of the members."""
    port = leave_a_killed_leader(broker, settings)
    with (
        RegistryProcess(broker.bootstrap, settings) as other,
        RegistryProcess(broker.bootstrap, settings, port=port) as restarted,
    ):
        assert restarted.register("a", '"int"') == other.register("b", '"int"') == 1


def test_successor_removes_the_killed_leader_from_the_group(broker: Broker, settings: dict[str, str]) -> None:
    leave_a_killed_leader(broker, settings)
    with (
        RegistryProcess(broker.bootstrap, settings) as successor,
        RegistryProcess(broker.bootstrap, settings, port=0) as third,
    ):
        assert third.register("a", '"int"') == successor.register("b", '"int"') == 1
        with Cluster(broker.bootstrap) as cluster:
            members = members_of(cluster, settings["schema.registry.group.id"])
        assert {each.client_id for each in members.values()} <= {client_id_of(each.url) for each in (successor, third)}


def wait_until_it_leads(instance: RegistryProcess) -> None:
    deadline = time.monotonic() + 60
    while not instance.get("/_health")["status"]["is_leader"]:
        assert time.monotonic() < deadline, "the instance does not become the leader"
        time.sleep(0.02)


def test_paused_leader_that_wakes_up_appends_nothing_to_what_its_successor_wrote(
    broker: Broker, settings: dict[str, str]
) -> None:
    with (
        RegistryProcess(broker.bootstrap, settings) as leader,
        RegistryProcess(broker.bootstrap, settings) as successor,
    ):
        assert leader.register("s", '"int"') == 1
        os.kill(leader.pid, signal.SIGSTOP)
        try:
            group = settings["schema.registry.group.id"]
            with Cluster(broker.bootstrap) as cluster:
                paused = [
                    name for name, each in members_of(cluster, group).items()
                    if each.client_id == client_id_of(leader.url)
                ]  # fmt: skip
                remove_members(cluster, group, paused, "its session would expire")
            wait_until_it_leads(successor)
            assert successor.register("s2", '"string"') == 2
            connection = HTTPConnection("127.0.0.1", int(leader.url.rpartition(":")[2]), timeout=60)
            body = json.dumps({"schema": '"bytes"'})
            connection.request("POST", "/subjects/s3/versions", body, {"content-type": "application/json"})
        finally:
            os.kill(leader.pid, signal.SIGCONT)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        assert answer.get("id") == 3 or answer["error_code"] in RETRIED
        assert successor.register("s3", '"bytes"') == leader.register("s3", '"bytes"') == 3
        for instance in (leader, successor):
            texts = [instance.get(f"/schemas/ids/{number}")["schema"] for number in (1, 2, 3)]
            assert texts == ['"int"', '"string"', '"bytes"']


def test_append_of_an_earlier_leader_is_refused(broker: Broker, settings: dict[str, str]) -> None:
    store = StoreSettings(broker.bootstrap, {}, settings["kafkastore.topic"])
    prepare_topic(store)
    row = SchemaVersion(subject="s", version=1, id=1, text='"int"').record()

    async def append() -> None:
        first, second = Writer(store, "writers"), Writer(store, "writers")
        await first.become_leader()
        await second.become_leader()
        with pytest.raises(LeadershipLost):
            await first.append({store.topic: [row]})
        await second.append({store.topic: [row]})
        first.close()
        second.close()

    asyncio.run(append())
    records, _ = read_up_to(store, 0)
    assert [each.key for each in records] == [row.key]


def test_acknowledged_schemas_survive_kills_of_the_leader() -> None:
    report = Report()
    run(report, kills=1, seed=7, exporter=False)
    assert report.problems == []
    kills, acknowledged, _ = map(int, re.findall(r"(\d+) (?:kills|registrations|ids)", report.figures[0]))
    assert kills == 1
    assert acknowledged >= 15
