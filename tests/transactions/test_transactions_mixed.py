"""Three libraries, a bad network, one history: nothing that read_committed forbids is ever seen."""

from __future__ import annotations

from collections import Counter

import pytest
from mixed_runs import MixedRuns
from txn_campaign import Campaign

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]


def test_histories_of_mixed_clients_on_a_bad_network_have_no_anomaly(campaign: Campaign) -> None:
    runs = MixedRuns(campaign.directory)
    runs.play(range(campaign.seed, campaign.seed + campaign.runs))
    by_end: Counter[str] = Counter()
    for name, count in runs.outcomes.items():
        by_end[name.split(maxsplit=1)[1]] += count
    campaign.say(
        f"{campaign.runs} runs, {runs.kills} kills of the broker; transactions: {_listed(by_end)}; "
        f"faults: {_listed(runs.faults)}; errors of sends: {_listed(runs.send_errors)}"
    )
    assert runs.found == {}


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
