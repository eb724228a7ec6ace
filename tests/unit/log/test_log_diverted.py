"""Batches without the records that were diverted: any such batch is appended, recovered and copied by followers."""

from __future__ import annotations

import random

import pytest
from tests.unit.log.log_fixtures import (
    NOW,
    append,
    append_on_loop,
    contents,
    new_disk,
    new_log,
    open_at,
    producer_state,
    sync,
    topic,
)

from ottla.model.errors import InvalidRecord
from ottla.model.records import Record, build_batch, iterate_records
from ottla.model.schema_ids import SchemaRules, Source, divert

RULES = SchemaRules(keys=False, values=True)
GOOD = b"\0\0\0\0\1"


def random_batch(source: random.Random, sequence: int) -> tuple[bytes, int]:
    """Return a batch of an idempotent producer with valid and invalid records, and their number."""
    records = [
        Record(
            timestamp=NOW - source.randrange(1000),
            key=source.choice((None, b"", b"key")),
            value=source.choice((None, b"bad", GOOD, GOOD + bytes(source.randrange(300)))),
            headers=[("h", None)] * source.randrange(2),
        )
        for _ in range(source.randrange(1, 6))
    ]
    codec = source.randrange(5)
    return build_batch(records, codec=codec, producer_id=7, producer_epoch=0, base_sequence=sequence), len(records)


@pytest.mark.parametrize("seed", range(20))
def test_diverted_batches_are_appended_recovered_and_copied(seed: int) -> None:
    source = random.Random(seed)
    disk, settings = new_disk(), topic(schema_validation="dlq", segment_bytes=2000)
    log = open_at(disk, settings)
    expected: list[tuple[int, bytes | None]] = []
    sequence = 0
    for _ in range(30):
        data, count = random_batch(source, sequence)
        target = Source("orders", 0, log.log_end_offset, 1 << 20)
        base, end = append_on_loop(log, divert(data, RULES, target).kept, opened=settings)
        assert end - base == count
        expected += [(base + each.offset_delta, each.value) for each in iterate_records(data) if each.value != b"bad"]
        sequence += count
    log.write_pending()
    assert records_of(contents(log)) == expected
    sync(log)
    recovered = open_at(disk, settings)
    assert contents(recovered) == contents(log)
    assert producer_state(recovered) == producer_state(log)
    follower = new_log(segment_bytes=2000)
    for data in contents(log):
        follower.append_as_follower(memoryview(data), leader_epoch=0, now_ms=NOW)
    follower.write_pending()
    assert contents(follower) == contents(log)
    assert producer_state(follower) == producer_state(log)


def records_of(batches: list[bytes]) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for data in batches for record in iterate_records(data)]


def test_client_cannot_send_a_batch_with_gaps() -> None:
    data = build_batch([Record(timestamp=NOW, value=GOOD), Record(timestamp=NOW, value=b"bad")])
    kept = divert(data, RULES, Source("orders", 0, 0, 1 << 20)).kept
    for log in (new_log(), new_log(schema_validation="dlq"), new_log(cleanup_policy="compact")):
        with pytest.raises(InvalidRecord, match="record count 1 does not match last offset delta 1"):
            append(log, kept)
