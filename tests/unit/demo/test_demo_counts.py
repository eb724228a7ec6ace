"""The figures of the screen do not begin at 0 again when a driver was killed: what it has written is in the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("deltalake", reason="deltalake is missing: pip install '.[spark]'")

from deltalake import write_deltalake

from ottla.demo.counts import TableCounts, without_driver
from ottla.demo.parts import write_declaration
from ottla.demo.show import Scene, describe_moment
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.load import load
from ottla.pipeline.status import FlowStatus, RunStatus


@pytest.fixture
def declaration(tmp_path: Path) -> Declaration:
    file = tmp_path / "shop.yaml"
    write_declaration(file, brokers="127.0.0.1:9092", storage="./lake", trigger="every 2s", spark={})
    return load(str(file))


def add_rows(directory: Path, table: str, count: int) -> None:
    write_deltalake(directory / "lake" / table, pa.table({"v": list(range(count))}), mode="append")


def status_of(run: str, **counts: int) -> RunStatus:
    status = RunStatus.begin("shop", "shop.yaml", "local[*]", run)
    flow = FlowStatus(name="orders_trusted", zone="trusted", kind="table", trigger="every 2s", **counts)  # type: ignore[arg-type]
    status.flows = [flow]
    return status


def test_rows_and_quarantine_are_those_of_the_tables_whichever_run_has_written_them(
    declaration: Declaration, tmp_path: Path
) -> None:
    now = [0.0]
    counts = TableCounts(declaration, now=lambda: now[0])
    assert counts.add_to(status_of("first")).flows[0].rows == 0
    add_rows(tmp_path, "trusted/orders", 100)
    add_rows(tmp_path, "quarantine/orders_trusted_quarantine", 7)
    now[0] += 1
    # The driver is killed before it has reported the last batch, and the next run begins to count at 0.
    assert counts.add_to(status_of("first", rows=60, quarantined=3)).flows[0].rows == 100
    after = counts.add_to(status_of("second"))
    add_rows(tmp_path, "trusted/orders", 5)
    assert describe_moment(Scene(status=after)).partition(";")[0].endswith("trusted 100, quarantine 7")
    now[0] += 1
    after = counts.add_to(status_of("second", rows=5))
    assert (after.flows[0].rows, after.flows[0].quarantined) == (105, 7)


def test_counts_stay_while_no_driver_runs() -> None:
    status = status_of("first", rows=60, quarantined=3)
    status.flows[0].state, status.flows[0].rows_per_second = "running", 9.0
    after = without_driver(status)
    assert (after.flows[0].state, after.flows[0].rows_per_second) == ("stopped", 0.0)
    assert describe_moment(Scene(status=after)).partition(";")[0].endswith("trusted 60, quarantine 3")


def test_dropped_and_late_rows_are_added_up_over_the_runs(declaration: Declaration) -> None:
    counts = TableCounts(declaration)
    given = [status_of("a", dropped=1, late=2), status_of("a", dropped=3, late=4), status_of("b", dropped=1)]
    given += [replace(status_of("b", dropped=2, late=1)), status_of("c", late_groups=5)]
    shown = [counts.add_to(status).flows[0] for status in given]
    assert [(flow.dropped, flow.late, flow.late_groups) for flow in shown] == [
        (1, 2, 0), (3, 4, 0), (4, 4, 0), (5, 5, 0), (5, 5, 5),
    ]  # fmt: skip
    assert given[2].flows[0].dropped == 1, "the status of the run is not changed"
