"""Batches that each come from another, forged producer id: memory stays bounded, and a new segment stops nobody."""

from __future__ import annotations

import urllib.request

import pytest
from crc32c import crc32c
from tests.hostile.harness import Attacked, scaled

from ottla.testing.raw import RawClient, batch_of, produce_request

pytestmark = pytest.mark.broker

TOPIC = "forged"
IDS = scaled(3_000, 300_000)
#: fewer than are forged
IDS_MAX = scaled(1_000, 150_000)
#: several segments are finished during the attack, and each writes a snapshot of the producers
SEGMENT_BYTES = scaled(64 << 10, 4 << 20)
SETTINGS = {"producer.id.max.count": str(IDS_MAX), "metrics.listener": "HTTP://127.0.0.1:0"}
IN_FLIGHT = 100
PRODUCER_ID_AT = 43
CRC_AT, CHECKED_FROM = 17, 21


def batch_from(producer_id: int, template: bytes) -> bytes:
    batch = bytearray(template)
    batch[PRODUCER_ID_AT : PRODUCER_ID_AT + 8] = producer_id.to_bytes(8, "big")
    batch[CRC_AT:CHECKED_FROM] = crc32c(batch[CHECKED_FROM:]).to_bytes(4, "big")
    return bytes(batch)


def forge(client: RawClient, producer_ids: range) -> None:
    """Send one batch for each producer id."""
    template = batch_of(b"v", producer_id=1, producer_epoch=0, base_sequence=0)
    for first in range(producer_ids.start, producer_ids.stop, IN_FLIGHT):
        some = producer_ids[first - producer_ids.start :][:IN_FLIGHT]
        sent = [client.send(produce_request((TOPIC, 0, batch_from(each, template))), 9) for each in some]
        for number in sent:
            (topic,) = client.receive(0, 9, number).responses
            assert topic.partition_responses[0].error_code == 0


def producers_of(target: Attacked) -> int:
    with urllib.request.urlopen(target.process.ready_line.rpartition("metrics=")[2].strip(), timeout=30) as page:
        lines = page.read().decode().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("ottla_producers ")))


def test_forged_producer_ids_cost_little_and_are_bounded() -> None:
    with Attacked(SETTINGS) as target, RawClient(target.bootstrap, timeout_s=60) as client:
        client.create_topic(TOPIC, config={"segment.bytes": str(SEGMENT_BYTES)})
        target.measure()
        forge(client, range(1_000_000, 1_000_000 + IDS))
        target.report().check()
        while producers_of(target) > IDS_MAX:
            forge(client, range(1, 2))  # the broker looks once a second, after a write
