"""The table of a run fits the terminal, whatever its size."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from ottla.pipeline.status import FlowStatus, RunStatus
from ottla.pipeline.view import HEADINGS, RunView, choose_columns, draw

NAMES = {
    "raw": ("orders_raw", "payments_raw", "clicks_raw"),
    "staging": ("orders_staged", "payments_staged", "clicks_staged"),
    "trusted": ("orders_trusted", "payments_trusted", "clicks_trusted"),
    "refined": ("paid_orders", "revenue_per_minute", "clicks_per_minute"),
}


def new_status() -> RunStatus:
    """Return a run of the shop with large figures in every column."""
    status = RunStatus.begin("shop", "shop.yaml", "local[*]")
    status.flows = [
        FlowStatus(
            name=name, zone=zone, kind="table", trigger="every 2s", state="restarting", rows=12_345_678, lag=1_234,
            rows_per_second=5_678.0, watermark="2026-01-01T12:34:56.000Z", quarantined=12_345, dropped=1_234,
            late=123, late_groups=45, restarts=12,
        )
        for zone, names in NAMES.items()
        for name in names
    ]  # fmt: skip
    return status


def lines_of(picture: RenderableType, width: int, height: int = 50) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(picture)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 140, 200])
@pytest.mark.parametrize("height", [10, 24, 50])
def test_table_is_never_wider_than_the_terminal(width: int, height: int) -> None:
    lines = lines_of(draw(new_status(), width, height), width, height)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines) or width < 80


@pytest.mark.parametrize("height", [15, 24, 30, 50])
def test_table_is_never_higher_than_the_terminal(height: int) -> None:
    assert len(lines_of(draw(new_status(), 80, height), 80, height)) <= height


def test_wide_terminal_shows_every_column() -> None:
    assert [column.heading for column in choose_columns(new_status().flows, 140)] == list(HEADINGS)


def test_80_columns_show_what_is_most_important() -> None:
    flows = [replace(flow, state="running") for flow in new_status().flows]
    columns = choose_columns(flows, 80)
    assert [column.heading for column in columns] == ["flow", "state", "rows", "lag", "watermark", "quarantine"]
    assert columns[4].cells[0] == "12:34:56"


def test_columns_without_a_value_are_left_out_first() -> None:
    status = new_status()
    for flow in status.flows:
        flow.quarantined = flow.late = flow.late_groups = flow.restarts = flow.dropped = 0
        flow.state = "running"
    shown = [one.heading for one in choose_columns(status.flows, 80)]
    assert shown == ["flow", "state", "rows", "rows/s", "lag", "watermark"]


def test_low_terminal_shows_one_row_per_zone() -> None:
    lines = lines_of(draw(new_status(), 80, 16), 80, 16)
    assert not any("orders_raw" in line for line in lines)
    (raw,) = [line for line in lines if "raw" in line]
    assert "37,037,034" in raw and "3 " in raw


def test_error_of_a_flow_is_shown_whole_below_the_table() -> None:
    status = new_status()
    status.flows[0].error = (
        "topic shop.orders was deleted while flow orders_raw read it; create it again or change " * 2
    )
    lines = lines_of(draw(status, 80, 60), 80, 60)
    below = " ".join(lines[max(at for at, line in enumerate(lines) if line.startswith("└")) + 1 :])
    assert f"orders_raw: {status.flows[0].error}".split() == below.split()


def test_view_follows_the_size_of_the_terminal() -> None:
    view = RunView()
    assert lines_of(view, 80) == []
    view.show(new_status())
    assert "restarts" not in "".join(lines_of(view, 80))
    assert "restarts" in "".join(lines_of(view, 140))


def test_zone_that_is_not_one_of_the_four_is_shown() -> None:
    status = new_status()
    status.flows[0].zone = "landing"
    assert any("landing" in line for line in lines_of(draw(status, 80, 60), 80, 60))


def test_caption_says_how_to_stop_a_run_and_how_it_has_ended() -> None:
    view = RunView()
    view.show(new_status())
    assert lines_of(view, 140)[-1].strip() == "Ctrl-C stops"
    view.show(replace(new_status(), state="ended"))
    assert lines_of(view, 140)[-1].strip() == "ended"
