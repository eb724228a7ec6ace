"""The pipeline of the campaign, and the records that it reads.

Events are joined with the newest tier of their account. The tiers change all the time, and the expectation is about the
tier: if a repeated batch joined other tiers than its first attempt, rows would be in two outputs or in none.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

PIPELINE = "kills"
EVENTS, TIERS, SCORED = "events", "tiers", "scored"
#: tables under the storage of the pipeline
RESULT, REJECTED, LATE = "trusted/scored", "quarantine/scored_quarantine", "late/scored_late"
STAGED, UNDECODABLE = "staging/events_staged", "quarantine/events_staged_quarantine"
TIER_OF, LATEST = "trusted/tier_of", "refined/latest"

ACCOUNTS = 200
#: the expectation accepts them; rows of the other tiers go to quarantine
ACCEPTED_TIERS = ("gold", "silver")
_REJECTED_TIERS = ("none",)
#: 10 ms after each other: one minute, the delay of the watermark, is 6,000 events
_FIRST = datetime(2026, 1, 1, tzinfo=UTC)
_STEP = timedelta(milliseconds=10)
_AGE = timedelta(hours=2)
#: of a hundred events
_UNDECODABLE, _OLD = 99, 98
#: part of all accounts that get a tier in one change
_CHANGED = 0.5

#: what ships for one machine; on a cluster it would be Spark's 200, and the first run decides for all later ones
_SPARK = {"spark.sql.shuffle.partitions": "2"}

_TEXT = """
name: {name}
brokers: {brokers}
storage: {storage}
checkpoints: {checkpoints}
trigger: as-fast-as-possible
spark: {spark}
sources:
  events:
    topic: {events}
    format: json
    schema: {{id: bigint, account: string, amount: bigint, at: timestamp}}
    watermark: {{column: at, delay: 1m}}
    max_offsets_per_trigger: {batch_rows}
  tiers:
    topic: {tiers}
    format: json
    schema: {{account: string, tier: string, n: bigint}}
flows:
  events_staged: {{zone: staging, from: events}}
  tiers_staged:  {{zone: staging, from: tiers}}
  tier_of:
    zone: trusted
    kind: materialized_view
    from: tiers_staged
    sql: |
      SELECT account, max_by(tier, n) AS tier, lineage_range() AS _lineage
      FROM tiers_staged
      GROUP BY account
  scored:
    zone: trusted
    from: [events_staged, tier_of]
    sql: |
      SELECT e.*, t.tier
      FROM events_staged e LEFT JOIN tier_of t ON t.account = e.account
    expect:
      - name: account has a paid tier
        that: tier IN ('gold', 'silver')
        on_violation: quarantine
    deduplicate: id
    late_rows: {{table: scored_late}}
    to:
      - table: scored
      - topic: {scored}
        key: account
        partitions: 3
  latest:
    zone: refined
    from: scored
    to: {{table: latest, keys: account, sequence_by: id}}
"""


class Row(NamedTuple):
    """An event with the tier of its account."""

    id: int
    account: str
    amount: int
    tier: str | None


def write_pipeline(
    directory: Path, brokers: str, checkpoints: Path, batch_rows: int, spark: Mapping[str, str]
) -> Path:  # fmt: skip
    """Write the pipeline file, with further settings of Spark; return its path."""
    file = directory / "pipeline.yaml"
    file.write_text(
        _TEXT.format(
            name=PIPELINE, brokers=brokers, storage=directory / "lake", checkpoints=checkpoints, events=EVENTS,
            tiers=TIERS, scored=SCORED, batch_rows=batch_rows, spark=json.dumps({**_SPARK, **spark}),
        )
    )  # fmt: skip
    return file


def is_undecodable(number: int) -> bool:
    """Return whether the value of this event is not JSON."""
    return number % 100 == _UNDECODABLE


def row_of(number: int, tier: str | None) -> Row:
    """Return the row of an event."""
    return Row(number, f"account {number % ACCOUNTS}", number % 997, tier)


def event(number: int) -> bytes:
    """Return the value of an event: of a hundred, one is not JSON and one is two hours old."""
    if is_undecodable(number):
        return b'{"id": %d, "account": ' % number
    at = _FIRST + number * _STEP - (_AGE if number % 100 == _OLD else timedelta())
    row = row_of(number, None)
    return b'{"id": %d, "account": "%s", "amount": %d, "at": "%s"}' % (
        number, row.account.encode(), row.amount, at.isoformat().encode(),
    )  # fmt: skip


def tier_changes(seed: int) -> Iterator[list[bytes]]:
    """Yield values of the tiers' topic: first a tier of every account, then new tiers of about half of them."""
    rng = random.Random(f"{seed} tiers")
    number = 0
    is_first = True
    while True:
        values = []
        for account in range(ACCOUNTS):
            if is_first or rng.random() < _CHANGED:
                tier = rng.choice(ACCEPTED_TIERS + _REJECTED_TIERS)
                values.append(b'{"account": "account %d", "tier": "%s", "n": %d}' % (account, tier.encode(), number))
                number += 1
        is_first = False
        yield values
