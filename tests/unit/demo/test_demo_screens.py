"""The screens of a demonstration fit terminals of 80 and 140 columns, and say what happens."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.console import Console, RenderableType

from ottla.demo.check import Check, Lake
from ottla.demo.journal import Entry
from ottla.demo.play import Sent
from ottla.demo.shop import CLICKS, ORDERS, PAYMENTS, Revenue
from ottla.demo.show import Scene, describe_moment, print_checks, print_journal, print_trace, print_zones
from ottla.demo.trace import Origin, Trace
from ottla.pipeline.status import FlowStatus, RunStatus

MINUTE = datetime(2026, 1, 5, 8, 1, tzinfo=UTC)
ZONES = ("raw", "staging", "trusted", "refined")
WIDTHS = pytest.mark.parametrize("width", [80, 140])


def new_scene() -> Scene:
    """Return a scene after an hour, with everything in it."""
    status = RunStatus.begin("shop", "shop.yaml", "local[*]")
    status.flows = [
        FlowStatus(
            name=f"{stem}_{zone}", zone=zone, kind="table", trigger="every 2s", state="running", rows=1_234_567, lag=98,
            rows_per_second=123.0, watermark="2026-01-05T08:01:00.000Z", quarantined=123,
        )
        for zone in ZONES
        for stem in ("orders", "payments", "clicks")
    ]  # fmt: skip
    minutes = [MINUTE + timedelta(minutes=number) for number in range(20)]
    return Scene(
        heading="100 events per second; a minute of the shop takes a second. Ctrl-C stops all",
        broker="process 12345, serves 127.0.0.1:9092",
        driver="process 12346, runs 12 flows on Spark",
        elapsed_s=lambda: 3_725.0,
        sent=Sent(MINUTE, {ORDERS: 123_456, PAYMENTS: 123_456, CLICKS: 1_234_567}, 12_345, 12_345, 12_345, 1_234),
        status=status,
        revenue={
            (minute, currency): Revenue(Decimal("123456.78"), 12 + at)
            for at, minute in enumerate(minutes)
            for currency in ("CZK", "EUR", "GBP", "USD")
        },
        equal=1_234,
        entries=[
            Entry(float(number), f"kill -9 {number}: the driver and its Java process are dead") for number in range(30)
        ],
    )


def lines_of(picture: RenderableType, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, file=io.StringIO())
    console.print(picture)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@WIDTHS
@pytest.mark.parametrize("height", [24, 30, 40, 50])
def test_screen_fits_the_terminal_and_cuts_nothing(width: int, height: int) -> None:
    lines = lines_of(new_scene(), width, height)
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert not any("…" in line for line in lines)


@WIDTHS
def test_screen_shows_result_revenue_journal_and_pipeline(width: int) -> None:
    text = "\n".join(lines_of(new_scene(), width, 50))
    for words in (
        "process 12345, serves 127.0.0.1:9092", "1,234 final figures, all equal to the shop's to the cent", "08:20",
        "123,456.78", "00:29  kill -9 29: the driver and its Java process are dead", "orders_raw", "12,345 malformed",
    ):  # fmt: skip
        assert words in text


def test_wide_terminal_has_bars() -> None:
    assert not any("█" in line for line in lines_of(new_scene(), 60, 50))
    assert any("█" in line for line in lines_of(new_scene(), 140, 50))


def test_start_of_spark_is_shown_with_its_time() -> None:
    scene = new_scene()
    scene.driver, scene.status, scene.starting_since_s = "process 7", None, 3_700.0
    assert "driver  process 7: starting Spark ... 25 s" in lines_of(scene, 80, 24)


def test_figure_that_differs_from_the_shop_is_shown() -> None:
    scene = new_scene()
    scene.wrong = 2
    assert "result  2 of 1,236 final figures differ from the shop's" in lines_of(scene, 80, 24)
    assert describe_moment(scene).endswith("2 of 1,236 final figures differ from the shop's")


def test_line_for_logs_has_the_same_figures() -> None:
    assert describe_moment(new_scene()) == (
        "62:05  sent 1,481,479, trusted 3,703,701, quarantine 1,476; 1,234 final figures, all equal to the shop's to "
        "the cent"
    )


@WIDTHS
def test_tables_at_the_end_fit_the_terminal(width: int, tmp_path: Path) -> None:
    row = {
        "_topic": ORDERS, "_partition": 1, "_offset": 123_456, "key": b"c-0001", "value": b'{"order_id": "o-1"}' * 5,
        "_cause": "payment belongs to an order", "row": '{"order_id": "o-1"}' * 5,
    }  # fmt: skip
    for zone, table in (("raw", "orders_raw"), ("quarantine", "payments_trusted_quarantine")):
        write_deltalake(tmp_path / zone / table, pa.Table.from_pylist([row] * 4))
    console = Console(width=width, file=io.StringIO())
    print_zones(console, Lake(tmp_path))
    print_checks(
        console, [Check.equal("revenue in the topic: rows, one per minute and currency", 1_234_567, 1_234_567)]
    )
    print_journal(console, [Entry(1.0, "kill -9 1: the broker is dead")])
    print_trace(console, new_trace())
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(len(line.rstrip()) for line in lines) <= width
    assert any(line.split()[-3:] == ["1,234,567", "1,234,567", "ok"] for line in lines)


def new_trace() -> Trace:
    origins = [
        Origin(ORDERS, 0, 11, "o-1", Decimal("10.10")), Origin(ORDERS, 1, 12, "o-2", Decimal("20.20")),
        Origin(PAYMENTS, 0, 13, "o-1", Decimal("10.10")), Origin(PAYMENTS, 1, 14, "o-2", Decimal("20.20")),
    ]  # fmt: skip
    return Trace(minute=MINUTE, currency="EUR", revenue=Decimal("30.30"), origins=origins)


def test_trace_compares_the_figure_with_its_records() -> None:
    trace = new_trace()
    assert trace.check == Check("traced: 08:01 EUR, 2 payments in the topic", "30.30", "30.30", True)
    without_order = Trace(minute=MINUTE, currency="EUR", revenue=Decimal("30.30"), origins=trace.origins[1:])
    without_payment = Trace(minute=MINUTE, currency="EUR", revenue=Decimal("30.30"), origins=trace.origins[:-1])
    assert not without_order.check.right and not without_payment.check.right
