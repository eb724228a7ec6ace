"""The screens of a demonstration: one that changes while it runs, tables and figures at the end.

All of them are as wide as the terminal. While a demonstration runs, the screen is drawn four times a second for the
size that the terminal has at that moment, with fewer lines on a low terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ottla.demo.journal import Entry, format_elapsed
from ottla.demo.play import Sent
from ottla.demo.shop import TOPICS, Revenue
from ottla.pipeline.status import RunStatus
from ottla.pipeline.view import draw

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType

    from ottla.demo.check import Check, Lake
    from ottla.demo.trace import Trace

#: lines that stay free above the screen for what was printed before
_LINES_ABOVE = 2
#: minutes and journal entries on a low terminal, and on one with at least `_HIGH_LINES` lines
_MINUTES_SHOWN = (3, 8)
_ENTRIES_SHOWN = (4, 10)
_HIGH_LINES = 40
#: bars are drawn if they can be at least this wide, and at most
_BAR_CELLS = (10, 40)
#: between two columns
_GAP = 3
_CELL_LETTERS_MAX = 60
#: narrower terminals show times of the tables without their date
_DATES_FROM_WIDTH = 100
_ROWS_SHOWN = 3
#: the tables of each zone that are shown, with their most important columns
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


@dataclass(slots=True, kw_only=True)
class Scene:
    """The content of a screen. The demonstration sets the fields; the screen only reads them."""

    heading: str = ""
    broker: str = "starting"
    driver: str = "not started yet"
    #: when the driver that is starting was started, in seconds of the journal; None while none is starting
    starting_since_s: float | None = None
    elapsed_s: Callable[[], float] = lambda: 0.0
    sent: Sent = field(default_factory=Sent)
    status: RunStatus | None = None
    #: by minute and currency, final
    revenue: Mapping[tuple[datetime, str], Revenue] = field(default_factory=dict)
    #: of the final figures of this demonstration: how many equal the shop's, and how many do not
    equal: int = 0
    wrong: int = 0
    entries: Sequence[Entry] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield draw_scene(self, options.max_width, console.height)


def draw_scene(scene: Scene, width: int, height: int) -> RenderableType:
    """Return the shop, its revenue, the journal and the pipeline as they are now, for a terminal of this size."""
    is_high = height >= _HIGH_LINES
    sent = ", ".join(f"{scene.sent.events.get(topic, 0):,} {topic.partition('.')[2]}" for topic in TOPICS)
    odd = (
        f"{scene.sent.malformed:,} malformed, {scene.sent.duplicates:,} duplicates, {scene.sent.late:,} late, "
        f"{scene.sent.held_back:,} too late"
    )
    lines = [
        Text(scene.heading, style="bold"),
        Text(f"broker  {scene.broker}"),
        Text(f"driver  {_driver_text(scene)}"),
        Text(f"shop    {scene.sent.clock:%H:%M:%S}, sent {sent}"),
        Text(f"        {odd}"),
        Text(f"result  {describe_comparison(scene)}", style=_comparison_style(scene)),
    ]
    parts: list[RenderableType] = list(lines)
    used = sum(max(1, -(-len(line) // width)) for line in lines)
    if scene.revenue:
        count = _MINUTES_SHOWN[is_high]
        parts.append(draw_revenue(scene.revenue, count, width))
        used += 2 + min(count, len({minute for minute, _ in scene.revenue}))
    entries = list(scene.entries)[-_ENTRIES_SHOWN[is_high] :]
    for entry in entries:
        parts.append(Text(f"{entry.time}  {entry.text}", style=entry.style, no_wrap=True, overflow="ellipsis"))
    used += len(entries)
    if scene.status is not None:
        parts.append(draw(scene.status, width, height - used - _LINES_ABOVE))
    return Group(*parts)


def _driver_text(scene: Scene) -> str:
    if scene.starting_since_s is None:
        return scene.driver
    return f"{scene.driver}: starting Spark ... {scene.elapsed_s() - scene.starting_since_s:.0f} s"


def describe_comparison(scene: Scene) -> str:
    """Return one sentence about the final figures."""
    if scene.wrong:
        return f"{scene.wrong:,} of {scene.equal + scene.wrong:,} final figures differ from the shop's"
    if scene.equal:
        return f"{scene.equal:,} final figures, all equal to the shop's to the cent"
    return "no final figure yet: the pipeline waits 10 shop minutes for late events"


def _comparison_style(scene: Scene) -> str:
    return "bold red" if scene.wrong else "green" if scene.equal else ""


def draw_revenue(revenue: Mapping[tuple[datetime, str], Revenue], count: int, width: int) -> RenderableType:
    """Return the newest final minutes, with bars if there is space for them."""
    minutes = sorted({minute for minute, _ in revenue})[-count:]
    currencies = sorted({currency for _, currency in revenue})
    payments = {minute: sum(one.payments for (at, _), one in revenue.items() if at == minute) for minute in minutes}
    rows = []
    for minute in minutes:
        amounts = [revenue.get((minute, currency)) for currency in currencies]
        rows.append([
            f"{minute:%H:%M}", *(f"{one.amount:,.2f}" if one is not None else "-" for one in amounts),
            str(payments[minute]),
        ])  # fmt: skip
    headings = ["minute", *currencies, "payments"]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for at, heading in enumerate(headings):
        table.add_column(heading, justify="right" if at else "left", no_wrap=True, overflow="ellipsis")
    taken = sum(max(map(len, column)) + _GAP for column in zip(headings, *rows, strict=True))
    few, many = _BAR_CELLS
    cells = min(width - taken, many)
    for row, minute in zip(rows, minutes, strict=True):
        bar = "█" * max(1, round(cells * payments[minute] / max(payments.values())))
        table.add_row(*row, *([f"[green]{bar}"] if cells >= few else []))
    return table


def describe_moment(scene: Scene) -> str:
    """Return the scene as one line, for logs and pipes."""
    flows = scene.status.flows if scene.status is not None else []
    trusted = sum(flow.rows for flow in flows if flow.zone == "trusted")
    quarantined = sum(flow.quarantined for flow in flows)
    return (
        f"{format_elapsed(scene.elapsed_s())}  sent {scene.sent.total:,}, trusted {trusted:,}, quarantine "
        f"{quarantined:,}; {describe_comparison(scene)}"
    )


# -- at the end -------------------------------------------------------------------------------------------------------


def print_zones(console: Console, lake: Lake) -> None:
    """Print a few rows of each table, zone by zone, and of the quarantine."""
    for zone, tables in _ZONES.items():
        console.print(f"\n[bold cyan]zone {zone}")
        for name, columns in tables.items():
            _print_rows(console, name, columns, lake.rows(zone, name, columns))
    console.print("\n[bold cyan]quarantine")
    for name in lake.tables("quarantine"):
        _print_quarantine(console, name, lake.rows("quarantine", name, _QUARANTINE))


def print_checks(console: Console, checks: Sequence[Check]) -> None:
    """Print the expected and the found figures side by side."""
    table = _new_table("\nexpected and found", ("what", "expected", "found", ""), {"expected", "found"})
    table.columns[0].no_wrap = False
    for one in checks:
        table.add_row(escape(one.what), one.expected, one.found, "[green]ok" if one.right else "[bold red]WRONG")
    console.print(table)


def print_trace(console: Console, trace: Trace) -> None:
    """Print one figure with the records that it was computed from."""
    title = f"\none figure, traced back to its records: {trace.minute:%H:%M} {trace.currency} {trace.revenue:,.2f}"
    headings = ("topic", "partition", "offset", "order", "amount")
    table = _new_table(title, headings, {"partition", "offset", "amount"})
    for one in trace.origins:
        table.add_row(
            one.topic, str(one.partition), str(one.offset), escape(one.order_id), f"{one.amount:,.2f}",
            style="" if one in trace.payments else "dim",
        )  # fmt: skip
    table.add_section()
    table.add_row("sum of the payments", "", "", "", trace.check.expected)
    console.print(table)


def print_journal(console: Console, entries: Sequence[Entry]) -> None:
    """Print everything that has happened."""
    console.print("\nwhat happened", style="italic")
    for entry in entries:
        console.print(Text(f" {entry.time}  {entry.text}", style=entry.style), soft_wrap=True)


def _print_rows(console: Console, name: str, columns: Sequence[str], rows: list[dict[str, Any]]) -> None:
    if not rows:
        console.print(f" {name}: no rows")
        return
    with_date = console.width >= _DATES_FROM_WIDTH
    first = sorted(rows, key=lambda row: _order(row, columns))[:_ROWS_SHOWN]
    cells = [[_cell(row[column], with_date=with_date) for column in columns] for row in first]
    right = {column for column in columns if isinstance(first[0][column], int | Decimal)}
    console.print(_fitting_table(f"{name}: {len(rows):,} rows", columns, cells, right, console.width))


def _order(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    times = [column for column in columns if isinstance(row[column], datetime)]
    places = [column for column in ("_offset", "_partition") if column in columns]
    return tuple(str(row[column]).rjust(12) for column in (*times, *places))


def _print_quarantine(console: Console, name: str, rows: list[dict[str, Any]]) -> None:
    """Print the causes, how many rows each has, and the first row of each."""
    counts = Counter(row["_cause"] for row in rows)
    first = {row["_cause"]: row for row in sorted(rows, key=lambda row: row["_offset"], reverse=True)}
    headings = ("cause", "rows", "partition", "offset", "for example")
    cells = [
        # A record that was decoded is shown as a row, any other as it was received.
        [cause, str(count), *(str(first[cause][place]) for place in ("_partition", "_offset")),
         _cell(first[cause]["row"] or first[cause]["value"])]
        for cause, count in counts.most_common()
    ]  # fmt: skip
    right = {"rows", "partition", "offset"}
    console.print(_fitting_table(f"{name}: {len(rows):,} rows", headings, cells, right, console.width))


def _new_table(title: str, headings: Sequence[str], right: Collection[str]) -> Table:
    """Return a table without rows. The columns in `right` are aligned to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True, overflow="ellipsis")
    return table


def _fitting_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str], width: int
) -> Table:
    """Return a table that is at most `width` wide. Its last column is cut to what the others leave."""
    table = _new_table(title, headings, right)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    last = max(width - sum(widths[:-1]) - _GAP * len(headings), len(headings[-1]))
    for row in rows:
        table.add_row(*map(escape, row[:-1]), escape(_cut(row[-1], last)))
    return table


def _cell(value: Any, *, with_date: bool = True) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        text = value.decode(errors="replace")
    elif isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%S" if with_date else "%H:%M:%S")
    elif isinstance(value, list):
        text = ", ".join(f"{one['topic']}/{one['partition']}@{one['first']}" for one in value)
    else:
        text = str(value)
    return _cut(text, _CELL_LETTERS_MAX)


def _cut(text: str, letters_max: int) -> str:
    return text if len(text) <= letters_max else text[: letters_max - 1] + "…"
