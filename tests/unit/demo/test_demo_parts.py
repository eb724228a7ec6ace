"""What surrounds the shop: the file its pipeline is run from, the figures at the end, refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.console import Console

from ottla.demo.check import Check, Lake, check, parse_revenue
from ottla.demo.parts import Part, PartFailed, session_members, write_declaration
from ottla.demo.run import DemoRefused, Options, opening_after, run
from ottla.demo.shop import Revenue, ShopEvents, Totals
from ottla.demo.show import print_checks
from ottla.pipeline import load

MINUTE = datetime(2026, 1, 5, 8, 1, tzinfo=UTC)
REVENUE = {(MINUTE, "EUR"): Revenue(Decimal("12.50"), 2)}


def test_the_template_becomes_a_file_that_runs_here(tmp_path: Path) -> None:
    file = tmp_path / "shop.yaml"
    write_declaration(file, brokers="127.0.0.1:1234", storage="./lake", trigger="every 2s", spark={"spark.a": "-b -c"})
    declaration = load(str(file))
    assert (declaration.brokers, declaration.storage, str(declaration.trigger)) == (
        "127.0.0.1:1234",
        "./lake",
        "every 2s",
    )
    assert declaration.spark == {"spark.a": "-b -c"}


def test_a_record_of_revenue_is_read_to_the_cent() -> None:
    value = b'{"minute":"2026-01-05T08:01:00.000Z","currency":"EUR","revenue":12.50,"payments":2}'
    assert dict([parse_revenue(value)]) == REVENUE


def test_a_wrong_figure_stands_out() -> None:
    console = Console(width=100)
    with console.capture() as capture:
        print_checks(console, [Check.equal("raw: orders", 3, 3), Check.equal("trusted: orders", 1_200, 1_199)])
    right, wrong = [line for line in capture.get().splitlines() if "orders" in line]
    assert right.split()[-3:] == ["3", "3", "ok"]
    assert wrong.split()[-3:] == ["1,200", "1,199", "WRONG"]


def test_a_pipeline_that_has_lost_everything_is_found_out(tmp_path: Path) -> None:
    shop = ShopEvents(limit=300)
    assert len(list(shop)) == 300
    checks = check(shop.totals, Lake(tmp_path), [], [])
    assert not any(one.right for one in checks if one.expected != "0")


def test_revenue_that_is_there_twice_is_found_out(tmp_path: Path) -> None:
    row = {"minute": MINUTE, "currency": "EUR", "revenue": Decimal("12.50"), "payments": 2}
    for _ in range(2):
        write_deltalake(tmp_path / "refined" / "revenue_per_minute", pa.Table.from_pylist([row]), mode="append")
    record = b'{"minute":"2026-01-05T08:01:00.000Z","currency":"EUR","revenue":12.50,"payments":2}'
    checks = check(Totals(revenue=dict(REVENUE)), Lake(tmp_path), [record], [])
    assert [one.what for one in checks if not one.right] == ["revenue in the table: rows, one per minute and currency"]


def test_part_that_ends_by_itself_is_reported_with_its_last_line_and_its_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("output of an earlier process\n")
    part = Part("thing", ["this.is.no.module"], tmp_path / "log")
    part._process.wait(30)
    with pytest.raises(PartFailed, match=rf"the thing has ended with code 1: .*this.*; {tmp_path}/log has its output"):
        part.check()
    assert "earlier" not in part.written()
    assert part.stop() == 1


def test_kill_ends_all_processes_of_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = """
        import subprocess, time
        subprocess.Popen(["sleep", "3600"])
        subprocess.Popen(["sleep", "3600"], process_group=0)
        print("started", flush=True)
        time.sleep(3600)
    """
    (tmp_path / "part_with_children.py").write_text(textwrap.dedent(script))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    part = Part("thing", ["part_with_children"], tmp_path / "log")
    deadline = time.monotonic() + 60
    while "started" not in part.written():
        part.check()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(session_members(part.pid)) == 3
    assert part.kill() == -signal.SIGKILL
    assert session_members(part.pid) == set()


def test_a_directory_with_something_in_it_is_refused_where_all_is_counted(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(DemoRefused, match="choose a new directory"):
        run(Options(events=100, data=tmp_path))


def test_two_shops_with_one_directory_have_no_minute_in_common() -> None:
    now = datetime(2026, 1, 5, 8, 1, 30, tzinfo=UTC)
    assert opening_after(None, now) == MINUTE
    assert opening_after(now - timedelta(hours=1), now) == MINUTE
    assert opening_after(now + timedelta(seconds=29), now) == datetime(2026, 1, 5, 8, 11, tzinfo=UTC)


def test_a_broker_is_shown_without_spark_in_its_process() -> None:
    script = "import ottla.cli.broker, ottla.broker.main, ottla.demo.run, sys; print('pyspark' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
