"""Who has to stop reading when somebody joins: all under an eager protocol, nobody who keeps a partition otherwise."""

from __future__ import annotations

import time
from typing import Any

import pytest
from checker import Place, Stint, longest_pause
from group_campaign import Campaign
from group_run import SETTLE_S_MAX, GroupRun

pytestmark = [pytest.mark.broker, pytest.mark.client]

COOPERATIVE = [
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "cooperative-sticky"),
    ("confluent-848", "uniform"),
]


def unmoved_by_a_join(
    campaign: Campaign, server: Any, client: str, assignor: str
) -> dict[Place, list[Stint]]:  # fmt: skip
    """Two members, then a third: the partitions that stay where they are, with the stints of their owner."""
    run = campaign.new_run(server.bootstrap, assignor=assignor, per_second=400)
    run.start()
    for _ in range(2):
        run.join(client)
    before = settled_owners(run)
    begin = time.monotonic()
    run.join(client)
    after = settled_owners(run)
    history = run.finish()
    stints = run.stints()
    assert campaign.verdict(history) == {}
    unmoved = [place for place in run.places if before[place] == after[place]]
    pauses = [longest_pause(stints, place, begin) or 0.0 for place in unmoved]
    campaign.say(f"{len(unmoved)} of {len(run.places)} partitions stay, longest pause {max(pauses, default=0):.2f} s")
    return {
        place: [stint for stint in stints if stint.place == place and stint.member == before[place][0]]
        for place in unmoved
    }


def settled_owners(run: GroupRun) -> dict[Place, list[str]]:
    """A cooperative group rebalances twice, and may be asked about in between."""
    deadline = time.monotonic() + SETTLE_S_MAX
    while True:
        run.settle()
        owners = run.owners()
        if set(run.places) <= set(owners):
            return owners
        assert time.monotonic() < deadline, owners


@pytest.mark.parametrize(("client", "assignor"), COOPERATIVE)
def test_partitions_that_stay_are_never_revoked(campaign: Campaign, server: Any, client: str, assignor: str) -> None:
    if client == "kafka-python" and not campaign.long:
        pytest.skip(
            "kafka-python is unreliable here on a busy machine: only in a longer campaign: make campaign NAME=groups"
        )
    unmoved = unmoved_by_a_join(campaign, server, client, assignor)
    assert len(unmoved) >= 3
    assert {place: len(stints) for place, stints in unmoved.items()} == dict.fromkeys(unmoved, 1)


def test_an_eager_rebalance_takes_every_partition_away_first(campaign: Campaign, server: Any) -> None:
    unmoved = unmoved_by_a_join(campaign, server, "confluent", "range")
    assert len(unmoved) >= 1
    assert all(len(stints) > 1 for stints in unmoved.values())
