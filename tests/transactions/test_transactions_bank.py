"""Money goes from account to account in transactions while tellers and the broker are killed: none is made or lost."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import closing

import pytest
from bank import ACCOUNTS, OPENING, Auditor, audit
from reading import await_stable, create_topic, record_final
from txn_campaign import Campaign

from campaign.processes import Fleet, check_log
from ottla.testing import BrokerProcess
from ottla.testing.history import History, Place, Recorder, check, read_events
from ottla.testing.raw import Closed

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]

_PARTITIONS = 2
_TELLERS = 2
_ALL_MONEY = ACCOUNTS * OPENING
_STALL_S_MAX = 90.0


def test_every_snapshot_of_the_accounts_has_the_same_sum(campaign: Campaign) -> None:
    broker = campaign.start_broker()
    places = create_topic(broker.bootstrap, "bank", _PARTITIONS)
    fleet = campaign.start_fleet(
        "bank.py",
        lambda number, life: [
            *("--bootstrap", broker.bootstrap, "--topic", "bank", "--partitions", str(_PARTITIONS)),
            *("--transactional-id", f"teller-{number}", "--name", f"teller-{number}.{life}"),
            *("--events", str(campaign.directory / f"teller-{number}.{life}.jsonl")),
            *("--seed", str(campaign.seed + 1000 * number + life)),
        ],
        _TELLERS,
    )
    with closing(Auditor(broker.bootstrap, places)) as auditor:
        _transfer(campaign, broker, fleet, auditor)
    fleet.await_zombies()
    fleet.close()
    campaign.end_transactions(broker.bootstrap, [f"teller-{number}" for number in range(_TELLERS)])
    assert audit(broker.bootstrap, places) == _ALL_MONEY
    history = _history(campaign, broker.bootstrap, places)
    ends = Counter(txn.fate for txn in history.transactions.values())
    campaign.say(
        f"{auditor.transfers} transfers, {auditor.snapshots} snapshots with {auditor.late_halves} late halves, "
        f"{fleet.kills} kills of tellers, {campaign.broker_kills} of the broker, {fleet.freezes} zombies, {fleet.ends} "
        f"tellers ended by themselves; transactions: {', '.join(f'{count} {end}' for end, count in ends.items())}"
    )
    assert check(history) == {}
    check_log(broker)


def _transfer(campaign: Campaign, broker: BrokerProcess, fleet: Fleet, auditor: Auditor) -> None:
    """Take snapshots all the time, and strike after some transfers."""
    rng = random.Random(campaign.seed)
    strike_at = 0
    moved_at = time.monotonic()
    for blow in campaign.blows(_TELLERS):
        strike_at += rng.randint(10, 60)
        while auditor.transfers < strike_at:
            before = auditor.transfers
            try:
                assert auditor.total() == _ALL_MONEY
            except (OSError, Closed):
                pass  # the broker was killed while it was asked
            if auditor.transfers > before:
                moved_at = time.monotonic()
            fleet.tend()
            assert time.monotonic() < moved_at + _STALL_S_MAX, f"no transfer after {before}"
        time.sleep(rng.uniform(0, 0.1))
        blow(broker, fleet)
    strike_at = auditor.transfers + 20
    while auditor.transfers < strike_at:
        fleet.tend()
        assert auditor.total() == _ALL_MONEY


def _history(campaign: Campaign, bootstrap: str, places: list[Place]) -> History:
    """What every teller wrote down, and what is there in the end."""
    recorder = Recorder()
    await_stable(bootstrap, places, recorder)
    record_final(bootstrap, places, recorder)
    diaries = [read_events(path) for path in campaign.directory.glob("teller-*.jsonl")]
    return History.of(recorder.events, *diaries)
