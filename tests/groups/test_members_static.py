"""Static members: a restart is no rebalance, and one instance id has one owner."""

from __future__ import annotations

from typing import Any

import pytest
from group_campaign import Campaign
from group_run import GroupRun, MemberProcess
from member import FENCED_EXIT_CODE

from campaign.processes import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.client]

#: longer than a member needs to start again on a busy machine
_SESSION_MS = 20_000


def test_static_members_of_every_client_come_back_without_a_rebalance(campaign: Campaign, server: Any) -> None:
    run = campaign.new_run(server.bootstrap)
    run.start()
    members = [
        run.join(client, instance=f"of-{client}", session_ms=_SESSION_MS)
        for client in ("confluent", "aiokafka", "kafka-python")
    ]
    run.settle()
    generation = run.generation()
    for member in members:
        come_back(run, member)
    assert run.generation() == generation
    assert campaign.verdict(run.finish()) == {}


def test_static_members_of_the_consumer_protocol_come_back_without_a_rebalance(campaign: Campaign, server: Any) -> None:
    run = campaign.new_run(server.bootstrap, assignor="uniform")
    run.start()
    members = [run.join("confluent-848", instance=f"number-{number}") for number in range(2)]
    run.settle()
    epoch = run.generation()
    come_back(run, members[0])
    assert run.generation() == epoch
    assert campaign.verdict(run.finish()) == {}


def come_back(run: GroupRun, member: MemberProcess) -> None:
    """Restart a static member: it owns what it owned, and nobody else notices."""
    owned = member.owned()
    others = [other for other in run.live if other is not member]
    changes = [other.count("assigned", "revoked", "lost") for other in others]
    member.ask_to_stop()
    assert member.wait() == 0
    again = run.join(member.client, instance=member.record.instance, session_ms=_SESSION_MS)
    wait_until(lambda: again.owned() == owned, lambda: f"{again.name} owns {again.owned()}, not {owned}", 60)
    run.settle()
    assert [other.count("assigned", "revoked", "lost") for other in others] == changes


@pytest.mark.parametrize("client", ["confluent", "kafka-python"])
def test_the_older_of_two_consumers_with_one_instance_id_is_fenced(
    campaign: Campaign, server: Any, client: str
) -> None:
    """Not with aiokafka, which tells its instance id only when it joins."""
    run = campaign.new_run(server.bootstrap, partitions=2)
    run.start()
    older = run.join(client, instance="one")
    run.settle()
    older.record.may_be_fenced = True
    newer = run.join(client, instance="one")
    assert older.wait() == FENCED_EXIT_CODE
    assert older.count("fenced") == 1
    run.settle()
    assert newer.owned() == set(run.places)
    assert campaign.verdict(run.finish()) == {}


def test_under_the_consumer_protocol_an_instance_id_in_use_is_refused_to_the_newer(
    campaign: Campaign, server: Any
) -> None:
    run = campaign.new_run(server.bootstrap, partitions=2, assignor="uniform")
    run.start()
    older = run.join("confluent-848", instance="one")
    run.settle()
    newer = run.join("confluent-848", instance="one")
    newer.record.may_be_fenced = True
    assert newer.wait() == FENCED_EXIT_CODE
    run.settle()
    assert older.owned() == set(run.places)
    assert older.count("assigned") == 1
    assert campaign.verdict(run.finish()) == {}
