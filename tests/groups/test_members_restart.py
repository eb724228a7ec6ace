"""The broker ends in the middle of rebalances, cleanly and not: members carry on, and no commit is lost."""

from __future__ import annotations

import random
import threading

import pytest
from group_campaign import Campaign
from group_run import GroupRun
from group_storm import end_and_launch

from ottla.testing import BrokerProcess

pytestmark = [pytest.mark.broker, pytest.mark.client, pytest.mark.crash]

PROTOCOLS = {
    "classic": ("range", ["confluent", "aiokafka", "kafka-python"]),
    "cooperative": ("cooperative-sticky", ["confluent", "confluent", "confluent"]),
    "cooperative with kafka-python": ("cooperative-sticky", ["confluent", "confluent", "kafka-python"]),
    "consumer": ("uniform", ["confluent-848", "confluent-848", "confluent-848"]),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_broker_that_ends_in_a_rebalance_carries_on(campaign: Campaign, broker: BrokerProcess, protocol: str) -> None:
    if "cooperative" in protocol and not campaign.long:
        pytest.skip("only in a longer campaign: make campaign NAME=groups")
    rng = random.Random(campaign.seed)
    assignor, clients = PROTOCOLS[protocol]
    run = campaign.new_run(broker.bootstrap, assignor=assignor)
    run.start()
    for client in clients[1:]:
        run.join(client)
    run.settle()
    for kill in (True, False, True):
        rebalance(run, rng, rng.choice(clients))
        threading.Event().wait(rng.uniform(0.0, 1.2))
        end_and_launch(broker, kill=kill)
    assert campaign.verdict(run.finish()) == {}


def rebalance(run: GroupRun, rng: random.Random, client: str) -> None:
    """Somebody comes, and when there are enough somebody goes."""
    run.join(client)
    staying = [member for member in run.live if member.count("assigned") and not member.record.asked_to_stop]
    if len(staying) > 2:
        rng.choice(staying).ask_to_stop()
