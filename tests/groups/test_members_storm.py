"""Members of every client come, go, die and stand still while records flow: nothing is lost, no commit goes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from checker import Anomalies
from group_campaign import Campaign
from group_storm import CLASSIC_CLIENTS, CONSUMER_CLIENTS, Storm

pytestmark = [pytest.mark.broker, pytest.mark.client]


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_classic_members_of_every_client_weather_a_storm(
    campaign: Campaign, request: pytest.FixtureRequest, assignor: str
) -> None:
    if assignor == "roundrobin" and not campaign.long:
        pytest.skip("only in a longer campaign: make campaign NAME=groups")
    assert weather(campaign, request, CLASSIC_CLIENTS, assignor) == {}


def test_members_of_the_consumer_protocol_weather_a_storm(campaign: Campaign, request: pytest.FixtureRequest) -> None:
    assert weather(campaign, request, CONSUMER_CLIENTS, "uniform") == {}


def weather(
    campaign: Campaign, request: pytest.FixtureRequest, clients: Sequence[str], assignor: str
) -> Anomalies:  # fmt: skip
    """A storm; a long one ends Ottla's broker too, now and then."""
    broker: Any = request.getfixturevalue("broker") if campaign.long and not campaign.spare_broker else None
    server: Any = request.getfixturevalue("server") if broker is None else broker
    run = campaign.new_run(server.bootstrap, assignor=assignor, per_second=100 if campaign.long else 200)
    run.start()
    storm = Storm(run, campaign.seed, clients, broker, calm=campaign.long)
    try:
        storm.play(campaign.changes)
        history = run.finish()
    finally:
        print("\n".join(storm.told))
    campaign.say(
        f"{campaign.changes} changes, {len(run.members)} members, {storm.broker_ends} ends of the broker, "
        f"generation {run.generation()}"
    )
    return campaign.verdict(history)
