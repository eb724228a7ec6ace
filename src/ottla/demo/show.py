"""What a demonstration looks like: a picture that moves while it runs, tables and figures at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from ottla.demo.shop import TOPICS, Revenue, ShopEvents
from ottla.pipeline.status import RunStatus
from ottla.pipeline.view import draw

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ottla.demo.check import Check, Lake

_MINUTES_SHOWN = 10
#: on terminals that have no room for more
_MINUTES_SHOWN_MIN = 5
_HIGH_ENOUGH_LINES = 45
_BAR_CELLS = 40
_CELL_LETTERS_MAX = 38
_ROWS_SHOWN = 3
#: what is shown of each zone: tables, and their columns that say most
_ZONES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "raw": {
        "orders_raw": ("_topic", "_partition", "_offset", "key", "value"),
        "payments_raw": ("_topic", "_partition", "_offset", "key", "value"),
        "clicks_raw": ("_topic", "_partition", "_offset", "key", "value"),
    },
    "staging": {
        "orders_staged": ("order_id", "customer_id", "amount", "currency", "ordered_at", "_offset"),
        "payments_staged": ("payment_id", "order_id", "amount", "paid_at", "_offset"),
        "clicks_staged": ("session_id", "page", "clicked_at", "_offset"),
    },
    "trusted": {
        "orders": ("order_id", "customer_id", "amount", "currency", "ordered_at", "_offset"),
        "payments_trusted": ("payment_id", "order_id", "amount", "paid_at", "_offset"),
        "clicks_trusted": ("session_id", "page", "clicked_at", "_offset"),
    },
    "refined": {
        "paid_orders": ("order_id", "currency", "amount", "paid_at", "_lineage"),
        "revenue_per_minute": ("minute", "currency", "revenue", "payments"),
        "clicks_per_minute": ("minute", "page", "clicks"),
    },
}
_QUARANTINE = ("_cause", "_partition", "_offset", "value", "row")


# -- while it runs ----------------------------------------------------------------------------------------------------


def draw_moment(
    shop: ShopEvents,
    status: RunStatus | None,
    revenue: Mapping[tuple[datetime, str], Revenue],
    heading: str,
    lines: int = _HIGH_ENOUGH_LINES,
) -> RenderableType:
    """The shop, its revenue and its pipeline as they are now; the end is what a small terminal does not show."""
    totals = shop.totals
    sent = ", ".join(f"{totals.sent[topic]:,} {topic.partition('.')[2]}" for topic in TOPICS)
    odd = (
        f"{totals.malformed.total():,} malformed, {totals.duplicates.total():,} twice, "
        f"{totals.late.total():,} late, {totals.held_back:,} far too late"
    )
    texts = [f"[bold]{escape(heading)}", f"sent by {shop.clock:%H:%M:%S} of the shop's clock: {sent}; {odd}"]
    pipeline: RenderableType = "Spark is starting ..." if status is None else draw(status)
    minutes = _MINUTES_SHOWN if lines >= _HIGH_ENOUGH_LINES else _MINUTES_SHOWN_MIN
    return Group(*texts, draw_revenue(revenue, minutes), pipeline)


def draw_revenue(revenue: Mapping[tuple[datetime, str], Revenue], count: int) -> RenderableType:
    """The last minutes that are final, with bars."""
    minutes = sorted({minute for minute, _ in revenue})[-count:]
    if not minutes:
        return (
            "revenue per minute: none is final yet (the pipeline waits ten minutes of the shop's time for late events)"
        )
    table = Table(title="revenue per minute, final", title_justify="left", box=box.SIMPLE_HEAD)
    currencies = sorted({currency for _, currency in revenue})
    table.add_column("minute")
    for currency in currencies:
        table.add_column(currency, justify="right")
    table.add_column("payments", justify="right")
    table.add_column("", min_width=_BAR_CELLS)
    payments = {minute: sum(one.payments for (at, _), one in revenue.items() if at == minute) for minute in minutes}
    for minute in minutes:
        amounts = [revenue.get((minute, currency), Revenue(Decimal(0), 0)).amount for currency in currencies]
        bar = "█" * max(1, round(_BAR_CELLS * payments[minute] / max(payments.values())))
        table.add_row(f"{minute:%H:%M}", *(f"{one:,.2f}" for one in amounts), str(payments[minute]), f"[green]{bar}")
    return table


def tell_moment(shop: ShopEvents, status: RunStatus | None, revenue: Mapping[tuple[datetime, str], Revenue]) -> str:
    """The same in one line, for logs and pipes."""
    rows = {flow.name: flow.rows for flow in status.flows} if status is not None else {}
    quarantined = sum(flow.quarantined for flow in status.flows) if status is not None else 0
    last = max((minute for minute, _ in revenue), default=None)
    amounts = [f"{one.amount:,.2f} {currency}" for (minute, currency), one in sorted(revenue.items()) if minute == last]
    earned = f"revenue at {last:%H:%M}: {', '.join(amounts)}" if last is not None else "no minute is final yet"
    trusted = sum(rows.get(name, 0) for name in ("orders_trusted", "payments_trusted", "clicks_trusted"))
    return (
        f"{shop.clock:%H:%M:%S} sent {shop.totals.events:,}, trusted {trusted:,}, quarantine {quarantined:,}; {earned}"
    )


# -- at the end -------------------------------------------------------------------------------------------------------


def print_zones(console: Console, lake: Lake) -> None:
    """A few rows of each table, zone by zone, and of what was put aside."""
    for zone, tables in _ZONES.items():
        console.print(f"\n[bold cyan]zone {zone}")
        for name, columns in tables.items():
            _print_rows(console, name, columns, lake.rows(zone, name, columns))
    console.print("\n[bold cyan]quarantine")
    for name in lake.tables("quarantine"):
        _print_quarantine(console, name, lake.rows("quarantine", name, _QUARANTINE))


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Sent and found, side by side."""
    table = Table(title="\nsent and found", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("what")
    table.add_column("sent", justify="right")
    table.add_column("found", justify="right")
    table.add_column("")
    for one in checks:
        table.add_row(escape(one.what), one.expected, one.found, "[green]ok" if one.right else "[bold red]WRONG")
    console.print(table)


def _print_rows(console: Console, name: str, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    table = Table(title=f"{name}: {len(rows):,} rows", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in columns:
        numbers = any(isinstance(row[column], int | Decimal) for row in rows)
        table.add_column(column, justify="right" if numbers else "left", no_wrap=True)
    for row in sorted(rows, key=lambda row: _order(row, columns))[:_ROWS_SHOWN]:
        table.add_row(*(escape(_cell(row[column])) for column in columns))
    if rows:
        console.print(table)
    else:
        console.print(f" {name}: no rows")


def _order(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    times = [column for column in columns if isinstance(row[column], datetime)]
    places = [column for column in ("_offset", "_partition") if column in columns]
    return tuple(str(row[column]).rjust(12) for column in (*times, *places))


def _print_quarantine(console: Console, name: str, rows: list[dict[str, Any]]) -> None:
    """Causes, how often each, and the first row of each."""
    counts = Counter(row["_cause"] for row in rows)
    first = {row["_cause"]: row for row in sorted(rows, key=lambda row: row["_offset"], reverse=True)}
    table = Table(title=f"{name}: {len(rows):,} rows", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("cause", "rows", "for example", "with the value"):
        table.add_column(heading, justify="right" if heading == "rows" else "left", no_wrap=True)
    for cause, count in counts.most_common():
        row = first[cause]
        place = f"partition {row['_partition']} offset {row['_offset']}"
        # What was decoded is shown as it was understood, the rest as it was received.
        table.add_row(escape(cause), str(count), place, escape(_cell(row["row"] or row["value"])))
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
    elif isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S")
    elif isinstance(value, list):
        text = ", ".join(f"{one['topic']}/{one['partition']}@{one['first']}" for one in value)
    else:
        text = str(value)
    return text if len(text) <= _CELL_LETTERS_MAX else text[: _CELL_LETTERS_MAX - 1] + "…"
