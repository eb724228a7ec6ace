"""Compares the results of the pipeline with the events that the shop has sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from ottla.client.cluster import EARLIEST, LATEST, Cluster, Isolation
from ottla.client.fetching import PartitionReader
from ottla.demo.shop import CLICKS, ORDERS, PAYMENTS, Revenue, Totals
from ottla.model.types import TopicPartition
from ottla.spark.decode import AbortedTransactions, decode
from ottla.spark.table_location import TableLocation

LATE_ORDERS = "shop.orders.late"
REVENUE = "shop.revenue-per-minute"
#: by topic, the stem of the names of its flows and tables
STEMS = {ORDERS: "orders", PAYMENTS: "payments", CLICKS: "clicks"}
#: by topic, its table in the trusted zone
TRUSTED = {ORDERS: "orders", PAYMENTS: "payments_trusted", CLICKS: "clicks_trusted"}
UNDECODABLE = ("not JSON", "type mismatch")
#: expectations whose violations are dropped and not put into quarantine
DROPPED = ("click has a time",)


@dataclass(frozen=True, slots=True)
class Check:
    """One figure: the expected value and the actual one."""

    what: str
    expected: str
    found: str
    right: bool

    @classmethod
    def equal(cls, what: str, expected: object, found: object) -> Check:
        return cls(what, f"{expected:,}", f"{found:,}", expected == found)


class Lake:
    """The pipeline's tables."""

    def __init__(self, storage: Path) -> None:
        self._storage = storage

    def rows(self, zone: str, table: str, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return all rows of a table; none if the table does not exist."""
        location = TableLocation.at(str(self._storage / zone / table))
        if not location.exists():
            return []
        found: list[dict[str, Any]] = (
            location.table()
            # With a filesystem in Python, threads of Arrow may still need the interpreter when it ends, and abort.
            .to_pyarrow_table(columns=list(columns) if columns else None, filesystem=location.files())
            .to_pylist()
        )
        return found

    def count(self, zone: str, table: str) -> int:
        """Return the number of rows of a table, from its log; 0 if the table does not exist."""
        location = TableLocation.at(str(self._storage / zone / table))
        return int(location.table().count()) if location.exists() else 0

    def tables(self, zone: str) -> list[str]:
        directory = self._storage / zone
        return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


class CommittedRecords:
    """Reads the values of a topic's committed records, each value once."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._positions: dict[TopicPartition, int] = {}

    def read(self) -> list[bytes]:
        """Return the values of the records that were committed since the last call."""
        info = self._cluster.topics([self._topic]).get(self._topic)
        if info is None:
            return []
        partitions = [TopicPartition(self._topic, number) for number in range(info.partitions)]
        new = {tp: EARLIEST for tp in partitions if tp not in self._positions}
        if new:
            found = self._cluster.list_offsets(new, isolation=Isolation.READ_COMMITTED)
            self._positions |= {tp: at.offset for tp, at in found.items()}
        ends = self._cluster.list_offsets(dict.fromkeys(partitions, LATEST), isolation=Isolation.READ_COMMITTED)
        values: list[bytes] = []
        for tp, at in ends.items():
            if self._positions[tp] < at.offset:
                values += read_values(self._cluster, tp, self._positions[tp], at.offset)
                self._positions[tp] = at.offset
        return values


def read_values(cluster: Cluster, tp: TopicPartition, start: int, end: int) -> list[bytes]:
    """Return the values of the committed records from one offset up to, not including, another one."""
    values: list[bytes] = []
    aborted = AbortedTransactions()
    with PartitionReader(cluster, tp, start, end, isolation=Isolation.READ_COMMITTED) as reader:
        for fetched in reader:
            aborted.feed(fetched.aborted)
            rows, start = decode(fetched.data, start=start, end=end, aborted=aborted, columns=["value"])
            values += rows.column("value").to_pylist()
    return values


def parse_revenue(value: bytes) -> tuple[tuple[datetime, str], Revenue]:
    """Return minute and currency, and the revenue, of a record of the topic with the revenue."""
    fields = json.loads(value, parse_float=Decimal)
    minute = datetime.fromisoformat(fields["minute"]).astimezone(UTC)
    return (minute, fields["currency"]), Revenue(Decimal(fields["revenue"]), fields["payments"])


def check(totals: Totals, lake: Lake, revenue_records: Sequence[bytes], late_records: Sequence[bytes]) -> list[Check]:
    """Return the comparison of every figure."""
    return [
        *_check_rows(totals, lake),
        *_check_quarantine(totals, lake),
        Check.equal("late orders, written to their own topic", totals.held_back, len(late_records)),
        Check.equal(
            "refined: orders that are paid", totals.paid, len(lake.rows("refined", "paid_orders", ["order_id"]))
        ),
        *_check_revenue(totals, lake, revenue_records),
        _check_clicks(totals, lake),
    ]


def _check_rows(totals: Totals, lake: Lake) -> list[Check]:
    checks = []
    for topic, stem in STEMS.items():
        sent = totals.sent[topic]
        checks.append(Check.equal(f"raw: {stem}", sent, len(lake.rows("raw", f"{stem}_raw", ["_offset"]))))
    for topic, stem in STEMS.items():
        readable = totals.sent[topic] - totals.malformed_in(topic, *UNDECODABLE)
        checks.append(
            Check.equal(f"staging: {stem}", readable, len(lake.rows("staging", f"{stem}_staged", ["_offset"])))
        )
    for topic, stem in STEMS.items():
        key = {ORDERS: "order_id", PAYMENTS: "payment_id"}.get(topic, "_offset")
        rows = lake.rows("trusted", TRUSTED[topic], [key, "_partition"])
        checks.append(Check.equal(f"trusted: {stem}, each once", totals.good[topic], len(rows)))
        if topic != CLICKS:
            checks.append(
                Check.equal(f"trusted: {stem}, distinct ids", totals.good[topic], len({row[key] for row in rows}))
            )
    return checks


def _check_quarantine(totals: Totals, lake: Lake) -> list[Check]:
    found: Counter[tuple[str, str]] = Counter()
    for table in lake.tables("quarantine"):
        found.update((row["_topic"], row["_cause"]) for row in lake.rows("quarantine", table, ["_topic", "_cause"]))
    expected = {at: count for at, count in totals.malformed.items() if at[1] not in DROPPED}
    return [
        Check.equal(
            f"quarantine: {STEMS.get(topic, topic)}, {cause}", expected.get((topic, cause), 0), found[topic, cause]
        )
        for topic, cause in sorted({*expected, *found})
    ]


def _check_revenue(totals: Totals, lake: Lake, records: Sequence[bytes]) -> list[Check]:
    rows = lake.rows("refined", "revenue_per_minute", ["minute", "currency", "revenue", "payments"])
    in_table = {(in_utc(row["minute"]), row["currency"]): Revenue(row["revenue"], row["payments"]) for row in rows}
    in_topic = dict(map(parse_revenue, records))
    checks = []
    for place, found, count in (("table", in_table, len(rows)), ("topic", in_topic, len(records))):
        checks.append(
            Check.equal(f"revenue in the {place}: rows, one per minute and currency", len(totals.revenue), count)
        )
        for currency in sorted({currency for _, currency in totals.revenue}):
            expected_part, found_part = _of_currency(totals.revenue, currency), _of_currency(found, currency)
            what = f"revenue in the {place}: {currency}, in {len(expected_part)} minutes"
            sums = [f"{sum(one.amount for one in part.values()):,.2f}" for part in (expected_part, found_part)]
            checks.append(Check(what, sums[0], sums[1], expected_part == found_part))
    return checks


def _check_clicks(totals: Totals, lake: Lake) -> Check:
    rows = lake.rows("refined", "clicks_per_minute", ["minute", "page", "clicks"])
    found = {(in_utc(row["minute"]), row["page"]): row["clicks"] for row in rows}
    right = found == dict(totals.clicks) and len(rows) == len(found)
    what = f"refined: clicks, in {len(totals.clicks)} rows, one per minute and page"
    return Check(what, f"{totals.clicks.total():,}", f"{sum(found.values()):,}", right)


def _of_currency(revenue: Mapping[tuple[datetime, str], Revenue], currency: str) -> dict[datetime, Revenue]:
    return {minute: one for (minute, name), one in revenue.items() if name == currency}


def in_utc(moment: datetime) -> datetime:
    """Return a time of a table in UTC, which a time without a time zone is already."""
    return moment.astimezone(UTC) if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
