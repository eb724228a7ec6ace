"""A live group moves from the classic to the consumer protocol, member by member, and back."""

from __future__ import annotations

from typing import Any

import pytest
from group_campaign import Campaign
from group_run import GroupRun

pytestmark = [pytest.mark.broker, pytest.mark.client]


def test_a_live_group_changes_its_protocol_and_back(campaign: Campaign, server: Any) -> None:
    if not campaign.long:
        pytest.skip("only in a longer campaign: make campaign NAME=groups")
    run = campaign.new_run(server.bootstrap)
    run.start()
    for client in ("confluent", "kafka-python"):
        run.join(client)
    run.settle()
    types = [kind(run)]
    for client in ("confluent-848", "confluent-848", "confluent", "kafka-python"):
        replace_oldest(run, client)
        types.append(kind(run))
    assert types == ["CLASSIC", "CONSUMER", "CONSUMER", "CONSUMER", "CLASSIC"]
    assert campaign.verdict(run.finish()) == {}
    # On the way up nobody loses what it had. On the way back librdkafka was seen to, without an anomaly.
    assert [member.name for member in run.members[:4] if member.count("lost")] == []


def replace_oldest(run: GroupRun, client: str) -> None:
    """One comes, one goes."""
    oldest = run.live[0]
    run.join(client)
    run.settle()
    oldest.ask_to_stop()
    assert oldest.wait() == 0
    run.settle()


def kind(run: GroupRun) -> str:
    return str(run.describe().type.name)


def test_a_static_member_keeps_its_instance_id_when_it_changes_its_protocol(campaign: Campaign, server: Any) -> None:
    run = campaign.new_run(server.bootstrap)
    run.start()
    types = []
    for client in ("confluent", "confluent-848", "confluent"):
        for member in run.live:
            member.ask_to_stop()
            assert member.wait() == 0
        run.join(client, instance="one")
        run.settle()
        types.append(kind(run))
    assert types == ["CLASSIC", "CONSUMER", "CLASSIC"]
    assert campaign.verdict(run.finish()) == {}
