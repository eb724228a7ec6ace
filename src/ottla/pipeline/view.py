"""A run as people see it: a table that changes in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ottla.pipeline.keys import ZONES
from ottla.pipeline.status import FlowStatus, RunStatus

if TYPE_CHECKING:
    from rich.table import Table

Show = Callable[[RunStatus], None]
Echo = Callable[[str], None]

_STYLES = {
    "waiting": "dim", "running": "green", "restarting": "yellow", "done": "cyan", "failed": "bold red",
    "stopped": "dim",
}  # fmt: skip
HEADINGS = ("flow", "state", "rows", "rows/s", "lag", "watermark", "quarantine", "dropped", "late", "restarts")


@contextmanager
def live_view(echo: Echo) -> Iterator[Show]:
    """Shows each status it is given; `echo` prints a line where there is no terminal."""
    if not sys.stdout.isatty():
        yield PlainView(echo).show
        return
    from rich.live import Live

    with Live(refresh_per_second=4, transient=False) as live:
        yield lambda status: live.update(draw(status))


def draw(status: RunStatus) -> Table:
    """Flows by zone."""
    from rich.markup import escape
    from rich.table import Table

    caption = "Ctrl-C stops" if status.state == "running" else status.state
    table = Table(title=f"{status.pipeline} on {status.master}", caption=caption, title_justify="left")
    for at, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if at < 2 or heading == "watermark" else "right")
    for zone in dict.fromkeys((*ZONES, *(flow.zone for flow in status.flows))):
        flows = [flow for flow in status.flows if flow.zone == zone]
        if flows:
            table.add_section()
            table.add_row(f"[bold cyan]{zone}")
        for flow in flows:
            cells = [escape(cell) for cell in cells_of(flow)]
            cells[1] = f"[{_STYLES[flow.state]}]{cells[1]}"
            table.add_row(*cells)
            if flow.error and flow.state in ("failed", "restarting"):
                table.add_row("", f"[red]{escape(flow.error[:100])}")
    return table


def cells_of(flow: FlowStatus) -> tuple[str, ...]:
    """The texts of one flow's row, in the order of HEADINGS."""
    watermark = (flow.watermark or "").partition(".")[0].replace("T", " ")
    return (
        flow.name, flow.state, f"{flow.rows:,}", f"{flow.rows_per_second:,.0f}",
        "-" if flow.lag is None else f"{flow.lag:,}", "-" if watermark[:4] in ("", "1970") else watermark,
        f"{flow.quarantined:,}", f"{flow.dropped:,}", flow.late_text, str(flow.restarts),
    )  # fmt: skip


class PlainView:
    """A line for each change of state and of counts, for logs and pipes."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._told: dict[str, tuple[object, ...]] = {}

    def show(self, status: RunStatus) -> None:
        for flow in status.flows:
            now = (flow.state, flow.rows, flow.quarantined, flow.late_text, flow.restarts, flow.error)
            if self._told.get(flow.name, ("waiting", 0, 0, "0", 0, None)) != now:
                self._told[flow.name] = now
                self._echo(line_of(flow))


def line_of(flow: FlowStatus) -> str:
    """One flow in one line."""
    counts = {
        "quarantine": flow.quarantined, "dropped": flow.dropped, "late": flow.late, "late_groups": flow.late_groups,
        "restarts": flow.restarts, "lag": flow.lag,
    }  # fmt: skip
    told = "".join(f" {name}={count}" for name, count in counts.items() if count)
    trouble = f" error: {flow.error}" if flow.error and flow.state in ("failed", "restarting") else ""
    return f"{flow.zone}/{flow.name}: {flow.state} rows={flow.rows}{told}{trouble}"
