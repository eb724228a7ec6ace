"""Several instances of the registry: forwarding, takeover, and a slice of `make registry-kills`."""

from __future__ import annotations

import json

from edge_broker import edge_broker
from registry_kills import run
from registry_process import RegistryProcess


def test_follower_forwards_changes_and_finds_what_the_leader_acknowledged() -> None:
    with (
        edge_broker() as broker,
        RegistryProcess(broker.bootstrap) as leader,
        RegistryProcess(broker.bootstrap) as follower,
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


def test_instance_that_may_not_lead_forwards_everything_and_reads_its_changes() -> None:
    """The leader says how far it has read the topic, and the other answers when it has read as far."""
    with edge_broker() as broker, RegistryProcess(broker.bootstrap, {"leader.eligibility": "false"}) as other:
        assert other.ask("GET", "/master_available")[0] == 503
        with RegistryProcess(broker.bootstrap) as leader:
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


def test_acknowledged_schemas_survive_kills_of_the_leader() -> None:
    outcome = run(kills=1, seed=7)
    assert outcome.violations == []
    assert outcome.kills == 1
    assert len(outcome.acknowledged) >= 15
