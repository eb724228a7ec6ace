"""A topic is copied in transactions while copiers and the broker are killed: each record is there exactly once."""

from __future__ import annotations

import random
import time
from contextlib import closing

import pytest
from clients import LOG_LEVEL
from confluent_kafka import Producer
from reading import Poller, await_stable, committed_offsets, create_topic, read_to_end
from tally import count_transactions
from txn_campaign import Campaign

from campaign.processes import check_log
from ottla.testing import BrokerProcess
from ottla.testing.history import Place

pytestmark = [pytest.mark.crash, pytest.mark.broker, pytest.mark.client]

_PARTITIONS = 4
_COPIERS = 2
_GROUP = "copiers"
_STALL_S_MAX = 90.0


def test_every_record_is_copied_exactly_once_and_in_order(campaign: Campaign) -> None:
    broker = campaign.start_broker()
    sources = create_topic(broker.bootstrap, "in", _PARTITIONS)
    places = create_topic(broker.bootstrap, "out", _PARTITIONS)
    counts = _fill(broker.bootstrap, campaign.records)
    # Small transactions when there are few records, so that every kill meets some.
    records_max = max(min(campaign.records // 50, 800), 10)
    fleet = campaign.start_fleet(
        "copier.py",
        lambda number, life: [
            *("--bootstrap", broker.bootstrap, "--source", "in", "--target", "out", "--group", _GROUP),
            *("--instance", f"copier-{number}", "--seed", str(campaign.seed + 1000 * number + life)),
            *("--records-max", str(records_max), "--tally", str(campaign.directory / f"copier-{number}.{life}.tally")),
        ],
        _COPIERS,
    )
    started = time.monotonic()
    with closing(Poller(broker.bootstrap, places)) as poller:
        _copy(campaign, broker, poller, counts)
    took = time.monotonic() - started
    fleet.await_zombies()
    fleet.close()
    campaign.end_transactions(broker.bootstrap, [f"{_GROUP}-copier-{number}" for number in range(_COPIERS)])
    campaign.say(
        f"{campaign.records} records in {took:.0f} s, {fleet.kills} kills of copiers, {campaign.broker_kills} of the "
        f"broker, {fleet.freezes} zombies, {fleet.ends} copiers ended by themselves; transactions: "
        f"{count_transactions(campaign.directory.glob('*.tally'))}"
    )
    assert await_stable(broker.bootstrap, places, None)
    for place, records in read_to_end(broker.bootstrap, places).items():
        expected = [_value(place.partition, number) for number in range(counts[place.partition])]
        assert [value for _, value in records] == expected, f"{place} is not a copy"
    committed = committed_offsets(broker.bootstrap, _GROUP, sources)
    assert {place.partition: offset for place, offset in committed.items()} == counts
    check_log(broker)


def _value(partition: int, number: int) -> bytes:
    return b"%d/%d" % (partition, number)


def _fill(bootstrap: str, records: int) -> dict[int, int]:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": LOG_LEVEL})
    counts = dict.fromkeys(range(_PARTITIONS), 0)
    for number in range(records):
        partition = number % _PARTITIONS
        while True:
            try:
                producer.produce("in", _value(partition, counts[partition]), partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
        counts[partition] += 1
        if not number % 1000:
            producer.poll(0)
    assert producer.flush(60) == 0
    return counts


def _copy(campaign: Campaign, broker: BrokerProcess, poller: Poller, counts: dict[int, int]) -> None:
    """Read along until all is there, and strike when a part of it is."""
    rng = random.Random(campaign.seed)
    (fleet,) = campaign.fleets
    blows = campaign.blows(_COPIERS)
    at = sorted(rng.randrange(1, campaign.records * 9 // 10) for _ in blows)
    seen = dict.fromkeys(counts, 0)
    copied = 0
    moved_at = time.monotonic()
    while copied < campaign.records:
        for place, offset, value in poller.poll():
            _expect(place, offset, value, seen)
            copied += 1
            moved_at = time.monotonic()
        fleet.tend()
        if blows and copied >= at[0]:
            at.pop(0)
            # Not at the moment when a transaction was just seen, but some way into the next.
            time.sleep(rng.uniform(0, 0.15))
            blows.pop()(broker, fleet)
        assert time.monotonic() < moved_at + _STALL_S_MAX, f"nothing was copied after {seen}"
    assert not blows


def _expect(place: Place, offset: int, value: bytes, seen: dict[int, int]) -> None:
    expected = _value(place.partition, seen[place.partition])
    assert value == expected, f"{place} offset {offset} has {value!r} where {expected!r} is due"
    seen[place.partition] += 1
