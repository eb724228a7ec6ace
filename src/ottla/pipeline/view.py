"""The view of a run: a table that changes in place on a terminal, plain lines elsewhere.

The table is drawn for the width and the height that the terminal has at each refresh. If it is too wide, columns are
left out (`choose_columns`). If it is too high, the zones have no headings, then each zone has one row (`draw`).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ottla.pipeline.keys import ZONES
from ottla.pipeline.status import FlowStatus, RunStatus

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.table import Table

Show = Callable[[RunStatus], None]
Echo = Callable[[str], None]

_STYLES = {
    "waiting": "dim", "running": "green", "restarting": "yellow", "done": "cyan", "failed": "bold red",
    "stopped": "dim",
}  # fmt: skip
HEADINGS = ("flow", "state", "rows", "rows/s", "lag", "watermark", "quarantine", "dropped", "late", "restarts")
_AT_RIGHT = frozenset({"flows", *HEADINGS}) - {"flow", "state", "watermark"}
#: columns that a narrow terminal does not show, the first to be left out first
_LEFT_OUT = ("dropped", "rows/s", "restarts", "late", "quarantine", "watermark", "lag")
_EMPTY = frozenset({"0", "-"})
#: of a date and a time, the date with the space
_DATE_LETTERS = 11
#: padding and one line, on each side of a column; and the line at the end
_COLUMN_EXTRA, _TABLE_EXTRA = 3, 1
#: title, heading with three lines, last line, caption
_FRAME_LINES = 6
#: a heading and a line
_ZONE_LINES = 2


class Column(NamedTuple):
    """A column of the table, with the cell of each row."""

    heading: str
    cells: list[str]

    @property
    def width(self) -> int:
        return max(map(len, (self.heading, *self.cells))) + _COLUMN_EXTRA


class RunView:
    """Draws the newest status whenever rich asks for it, with the size that the terminal has then."""

    def __init__(self) -> None:
        self.status: RunStatus | None = None

    def show(self, status: RunStatus) -> None:
        self.status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.status is not None:
            caption = "Ctrl-C stops" if self.status.state == "running" else self.status.state
            yield draw(self.status, options.max_width, console.height, caption)


@contextmanager
def live_view(echo: Echo) -> Iterator[Show]:
    """Yield a function that shows a status; `echo` prints a line where there is no terminal."""
    if not sys.stdout.isatty():
        yield PlainView(echo).show
        return
    from rich.live import Live

    view = RunView()
    with Live(view, refresh_per_second=4, transient=False, vertical_overflow="crop"):
        yield view.show


def print_status(status: RunStatus) -> None:
    """Print the flows by zone, as wide as the terminal."""
    from rich.console import Console

    console = Console()
    console.print(draw(status, console.width))


def draw(status: RunStatus, width: int = 140, height: int = 100, caption: str = "") -> RenderableType:
    """Return the flows by zone, at most `width` columns wide. One row per zone if the flows need more than `height`."""
    from rich.console import Group
    from rich.text import Text

    errors = [
        Text(f"{flow.name}: {flow.error}", style="red")
        for flow in status.flows
        if flow.error and flow.state in ("failed", "restarting")
    ]
    zones = dict.fromkeys((*ZONES, *(flow.zone for flow in status.flows)))
    shown = [zone for zone in zones if any(flow.zone == zone for flow in status.flows)]
    available = height - _FRAME_LINES - sum(-(-len(text) // width) for text in errors)
    flows = [flow for zone in shown for flow in status.flows if flow.zone == zone]
    if len(flows) > available:
        return Group(_draw_zones(status, shown), *errors)
    with_headings = len(flows) + _ZONE_LINES * len(shown) <= available
    table = _draw_flows(status, flows, width, with_headings=with_headings)
    table.caption = caption or None
    return Group(table, *errors)


def _draw_flows(status: RunStatus, flows: Sequence[FlowStatus], width: int, *, with_headings: bool) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{status.pipeline} on {status.master}", title_justify="left")
    columns = choose_columns(flows, width)
    for column in columns:
        justify = "right" if column.heading in _AT_RIGHT else "left"
        table.add_column(column.heading, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    zone = ""
    for number, flow in enumerate(flows):
        if with_headings and flow.zone != zone:
            table.add_section()
            table.add_row(f"[bold cyan]{flow.zone}")
        zone = flow.zone
        cells = [escape(column.cells[number]) for column in columns]
        cells[1] = f"[{_STYLES[flow.state]}]{cells[1]}"
        table.add_row(*cells)
    return table


def choose_columns(flows: Sequence[FlowStatus], width: int) -> list[Column]:
    """Return the columns that fit, with their cells: flow, state and rows always, then as many others as possible.

    A narrow terminal gets the watermark without its date. Then columns are left out, the ones that are empty first.
    """
    columns = [Column(heading, []) for heading in HEADINGS]
    for flow in flows:
        for column, cell in zip(columns, cells_of(flow), strict=True):
            column.cells.append(cell)
    if _width_of(columns) > width:
        at = HEADINGS.index("watermark")
        columns[at] = Column("watermark", [cell[_DATE_LETTERS:] or cell for cell in columns[at].cells])
    empty = {column.heading for column in columns if _EMPTY.issuperset(column.cells)}
    for heading in (*(one for one in _LEFT_OUT if one in empty), *_LEFT_OUT):
        if _width_of(columns) <= width:
            break
        columns = [column for column in columns if column.heading != heading]
    return columns


def _width_of(columns: Sequence[Column]) -> int:
    return sum(column.width for column in columns) + _TABLE_EXTRA


def _draw_zones(status: RunStatus, zones: Sequence[str]) -> RenderableType:
    """Return a table with one row per zone: the states of its flows and the sums of their figures."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    title = f"{status.pipeline} on {status.master}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("zone", "flows", "state", "rows", "rows/s", "lag", "quarantine"):
        justify = "right" if heading in _AT_RIGHT else "left"
        table.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    for zone in zones:
        flows = [flow for flow in status.flows if flow.zone == zone]
        states = Counter(flow.state for flow in flows)
        text = ", ".join(state if len(states) == 1 else f"{count} {state}" for state, count in states.items())
        lags = [flow.lag for flow in flows if flow.lag is not None]
        table.add_row(
            f"[bold cyan]{escape(zone)}", str(len(flows)), text, f"{sum(flow.rows for flow in flows):,}",
            f"{sum(flow.rows_per_second for flow in flows):,.0f}", f"{sum(lags):,}" if lags else "-",
            f"{sum(flow.quarantined for flow in flows):,}",
        )  # fmt: skip
    return table


def cells_of(flow: FlowStatus) -> tuple[str, ...]:
    """Return the texts of one flow's row, in the order of HEADINGS."""
    watermark = (flow.watermark or "").partition(".")[0].replace("T", " ")
    return (
        flow.name, flow.state, f"{flow.rows:,}", f"{flow.rows_per_second:,.0f}",
        "-" if flow.lag is None else f"{flow.lag:,}", "-" if watermark[:4] in ("", "1970") else watermark,
        f"{flow.quarantined:,}", f"{flow.dropped:,}", flow.late_text, str(flow.restarts),
    )  # fmt: skip


class PlainView:
    """Prints a line for each change of state and of counts, for logs and pipes."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._shown: dict[str, tuple[object, ...]] = {}

    def show(self, status: RunStatus) -> None:
        for flow in status.flows:
            now = (flow.state, flow.rows, flow.quarantined, flow.late_text, flow.restarts, flow.error)
            if self._shown.get(flow.name, ("waiting", 0, 0, "0", 0, None)) != now:
                self._shown[flow.name] = now
                self._echo(line_of(flow))


def line_of(flow: FlowStatus) -> str:
    """Return one flow as one line."""
    counts = {
        "quarantine": flow.quarantined, "dropped": flow.dropped, "late": flow.late, "late_groups": flow.late_groups,
        "restarts": flow.restarts, "lag": flow.lag,
    }  # fmt: skip
    figures = "".join(f" {name}={count}" for name, count in counts.items() if count)
    trouble = f" error: {flow.error}" if flow.error and flow.state in ("failed", "restarting") else ""
    return f"{flow.zone}/{flow.name}: {flow.state} rows={flow.rows}{figures}{trouble}"
