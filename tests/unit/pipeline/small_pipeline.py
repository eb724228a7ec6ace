"""A small pipeline to break and to add to."""

from __future__ import annotations

HEAD = """\
name: shop
storage: lake
sources:
  orders:
    topic: shop.orders
    format: json
    schema:
      order_id: string
      amount: decimal(10,2)
      ordered_at: timestamp
    watermark: {column: ordered_at, delay: 10m}
flows:
  staged: {zone: staging, from: orders}
"""
#: the line that a flow under HEAD begins in
NEXT_LINE = HEAD.count("\n") + 1
