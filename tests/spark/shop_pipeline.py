"""A shop in small: one topic through all zones, a flow that an expectation stops, and records as bad as real ones."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from deltalake import DeltaTable

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

SHOP = """
name: shop
brokers: {brokers}
storage: ./lake
trigger: available-now
sources:
  orders:
    topic: {topic}
    format: json
    key_format: string
    schema:
      order_id: string
      amount: decimal(10,2)
      currency: string
      ordered_at: timestamp
    watermark: {{column: ordered_at, delay: 10m}}
flows:
  orders_raw:    {{zone: raw, from: orders}}
  orders_staged: {{zone: staging, from: orders_raw}}
  orders_trusted:
    zone: trusted
    from: orders_staged
    expect:
      - name: order has an id
        that: order_id IS NOT NULL
        on_violation: quarantine
      - name: amount is positive
        that: amount > 0
        on_violation: quarantine
      - name: order is not free
        that: amount <> 99
        on_violation: drop
      - name: currency is known
        that: currency IN ('EUR', 'CZK')
    deduplicate: order_id
    late_rows: {{topic: {topic}.late}}
    to:
      table: orders
      partition_by: day(ordered_at)
  revenue:
    zone: refined
    from: orders_trusted
    sql: |
      SELECT window.start AS minute, currency, sum(amount) AS revenue,
             lineage_range() AS _lineage
      FROM orders_trusted
      GROUP BY window(ordered_at, '1 minute'), currency
    to:
      - table: revenue
        partition_by: day(minute)
      - topic: {topic}.revenue
        key: currency
  strict:
    zone: trusted
    from: orders_staged
    expect:
      - name: nothing is dear
        that: amount < 1000
        on_violation: fail
"""


def write_shop(directory: Path, brokers: str, topic: str) -> Path:
    file = directory / "shop.yaml"
    file.write_text(SHOP.format(brokers=brokers, topic=topic))
    return file


def order(order_id: str | None, minutes: float, amount: Any = 10, currency: str = "EUR") -> bytes:
    time = NOON + timedelta(minutes=minutes)
    return json.dumps(
        {"order_id": order_id, "amount": amount, "currency": currency, "ordered_at": time.isoformat()}
    ).encode()


def produce(brokers: str, topic: str, *values: bytes | None) -> None:
    """Records of one partition, one second after the other."""
    produce_records(brokers, topic, *((b"k", value) for value in values))


def produce_records(
    brokers: str,
    topic: str,
    *records: tuple[bytes | None, bytes | None],
    headers: list[tuple[str, bytes]] | None = None,
) -> None:
    """Write keys and values to one partition, all with the same headers."""
    producer = Producer({"bootstrap.servers": brokers})
    for key, value in records:
        producer.produce(topic, value=value, key=key, headers=headers, partition=0)
    assert producer.flush(30) == 0


def rows(directory: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table under storage, in an order that is the same every time."""
    path = directory / "lake" / table
    if not path.exists():
        return []
    found = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row.get("_offset") or 0, str(row)))
