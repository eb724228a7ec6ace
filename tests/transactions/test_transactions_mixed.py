"""Three libraries, a bad network, one history: nothing that read_committed forbids is ever seen."""

from __future__ import annotations

import pytest
from mixed import MixedRun
from txn_campaign import Campaign, free_port

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]


def test_histories_of_mixed_clients_on_a_bad_network_have_no_anomaly(campaign: Campaign) -> None:
    found = {}
    outcomes: dict[str, int] = {}
    faults = kills = 0
    # One run a seed: a run that failed is repeated alone with --txn-seed and --txn-runs 1.
    for seed in range(campaign.seed, campaign.seed + campaign.runs):
        run = MixedRun(seed, campaign.directory / f"data-{seed}", f"127.0.0.1:{free_port()}")
        anomalies = run.play()
        if anomalies:
            found[seed] = {name: [f"{len(lines)} in all", *lines[:3]] for name, lines in anomalies.items()}
            print(f"--txn-seed {seed} --txn-runs 1: {found[seed]}")
        faults += sum(run.faults.values())
        kills += run.kills
        for name, count in run.outcomes.items():
            what = name.split(maxsplit=1)[1]
            outcomes[what] = outcomes.get(what, 0) + count
    counted = ", ".join(f"{count} {what}" for what, count in sorted(outcomes.items()))
    campaign.say(f"{campaign.runs} runs, {faults} faults, {kills} kills of the broker: {counted}")
    assert found == {}
