"""Compaction and vacuum of a pipeline's tables: settings, commands, and which files a vacuum must keep."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable, write_deltalake

from ottla.cli.main import main
from ottla.pipeline.declaration import Compaction, Declaration, Vacuum
from ottla.pipeline.layout import Layout
from ottla.pipeline.load import load
from ottla.pipeline.maintenance import (
    MaintenanceThread,
    RetentionTooShort,
    Table,
    compact_table,
    needs_of,
    retention_needed,
    tables_of,
    vacuum_table,
)
from ottla.spark.table_log import TableLog, snapshot_files

_HOUR_MS = 3_600_000
_SHOP = """\
name: shop
storage: lake
sources:
  orders: {topic: orders, format: json, schema: {id: bigint}}
flows:
  staged:
    zone: staging
    from: orders
    to: {table: typed, compact: {every: 1h, target_file_size: 64MB}, vacuum: {retain: 2d}}
  rates: {zone: trusted, kind: materialized_view, from: staged}
  joined: {zone: trusted, from: [staged, rates], sql: "SELECT staged.* FROM staged JOIN rates ON staged.id = rates.id"}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Declaration:
    file = tmp_path / "shop.yaml"
    file.write_text(_SHOP)
    return load(str(file))


@pytest.fixture
def table(shop: Declaration) -> Table:
    """The table staging/typed, with four versions of one file each."""
    found = next(one for one in tables_of(shop, Layout.of(shop)) if one.name == "staging/typed")
    for number in range(4):
        write_deltalake(found.location.uri, pa.table({"id": [number]}), mode="append")
    return found


def _age(table: Table, *, hours_of: dict[int, int]) -> None:
    """Make commits, and the removals in them, older by some hours."""
    for version, hours in hours_of.items():
        path = Path(table.location.uri) / "_delta_log" / f"{version:020}.json"
        lines = []
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] -= hours * _HOUR_MS
            if "remove" in action:
                action["remove"]["deletionTimestamp"] -= hours * _HOUR_MS
            lines.append(json.dumps(action))
        path.write_text("\n".join(lines) + "\n")
        past = time.time() - hours * 3600
        os.utime(path, (past, past))


def _progress(
    shop: Declaration,
    flow: str,
    table: Table,
    version: int,
    *,
    commits: bool = True,
    snapshot: bool = False,
    layout: Layout | None = None,
) -> Path:
    """Write the files of a checkpoint that say how far a flow has read a table."""
    checkpoint = Path((layout or Layout.of(shop)).checkpoint(shop.flows[flow]))
    offset = {"table": str(table.location.table().metadata().id), "version": version, "index": 0, "snapshot": snapshot}
    for name in ("offsets", "commits"):
        (checkpoint / name).mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / "7").write_text(f"v1\n{{}}\n{json.dumps(offset)}")
    (checkpoint / "offsets" / "8").write_text("v1\n{}\n-")
    if commits:
        (checkpoint / "commits" / "7").write_text("v1\n{}")
    return checkpoint


def test_settings_are_read_and_have_defaults(shop: Declaration, problems: Callable[..., list[str]]) -> None:
    table = shop.flows["staged"].table
    assert table is not None
    assert table.compact == Compaction(every_ms=_HOUR_MS, target_file_size_bytes=64 << 20)
    assert table.vacuum == Vacuum(every_ms=24 * _HOUR_MS, retain_ms=48 * _HOUR_MS)
    for wrong, problem in {
        "compact: {every: 1h, target_file_size: 64MB}": "",
        "compact: {}": "compact has no 'every'",
        "compact: {every: 10s}": "every is shorter than a minute",
        "compact: {every: 1h, target_file_size: big}": "'big' is not a size: write 64MB or 1GB",
        "vacuum: {retain: 30m}": "retain is shorter than an hour",
        "format: parquet, compact: {every: 1h}": "compact belongs to Delta tables",
    }.items():
        text = _SHOP.replace("compact: {every: 1h, target_file_size: 64MB}, vacuum: {retain: 2d}", wrong)
        found = [one for one in problems(text) if "typed" in one or "sink" in one]
        assert (not found) if not problem else any(problem in one for one in found), (wrong, found)


def test_compaction_has_no_new_rows_for_streams_and_keeps_the_files_of_older_versions(table: Table) -> None:
    before = {file.path for file in snapshot_files(table.location.table(3))}
    done = compact_table(table)
    assert (done.files_before, done.files_after) == (4, 1)
    commit = TableLog(table.location).commit(4)
    assert commit is not None and commit.operation == "OPTIMIZE"
    assert (commit.added, commit.removed) == ((), 0)
    assert all((Path(table.location.uri) / path).exists() for path in before)


def test_vacuum_is_refused_while_a_flow_has_not_read_replaced_files(shop: Declaration, table: Table) -> None:
    compact_table(table)
    _age(table, hours_of={0: 90, 1: 80, 2: 70, 3: 60, 4: 50})
    layout = Layout.of(shop)
    _progress(shop, "joined", table, 2)
    with pytest.raises(RetentionTooShort, match="flow joined still needs files of version 2; retain at least 2d13h"):
        vacuum_table(shop, layout, table, retain_ms=49 * _HOUR_MS)
    extended = vacuum_table(shop, layout, table, retain_ms=49 * _HOUR_MS, extend=True)
    assert (extended.files, extended.retained_ms) == (0, 62 * _HOUR_MS)
    _progress(shop, "joined", table, 5)
    deleted = vacuum_table(shop, layout, table, retain_ms=49 * _HOUR_MS)
    assert deleted.files == 4
    assert DeltaTable(table.location.uri).to_pyarrow_table().num_rows == 4


@pytest.mark.parametrize("case", ["no batch is complete", "snapshot", "manifest", "backfill", "other table", "read"])
def test_versions_that_readers_need(shop: Declaration, table: Table, case: str) -> None:
    _age(table, hours_of={0: 40, 1: 30, 2: 20, 3: 10})
    layout, now_ms = Layout.of(shop), int(time.time() * 1000)
    hours: int | None
    if case == "no batch is complete":
        checkpoint, hours = _progress(shop, "joined", table, 4, commits=False), 35
        past = time.time() - 35 * 3600
        os.utime(checkpoint / "offsets" / "7", (past, past))
    elif case == "snapshot":
        _progress(shop, "joined", table, 0, snapshot=True)
        hours = 30
    elif case == "manifest":
        checkpoint, hours = _progress(shop, "joined", table, 4), 20
        (checkpoint / "ottla-manifests").mkdir()
        read = {"table": str(table.location.table().metadata().id), "version": 1}
        for number, reads in ((8, {table.location.uri: read}), (7, {})):
            text = json.dumps({"batch": number, "reads": reads})
            (checkpoint / "ottla-manifests" / f"{number}.json").write_text(text)
    elif case == "backfill":
        _progress(shop, "joined", table, 2, layout=layout.scratch("run"))
        hours = 10
    elif case == "other table":
        checkpoint, hours = _progress(shop, "joined", table, 0), None
        offsets = checkpoint / "offsets" / "7"
        offsets.write_text(offsets.read_text().replace('"table": "', '"table": "x'))
    else:
        _progress(shop, "joined", table, 4)
        hours = 0
    needs = list(needs_of(shop, layout, table, now_ms))
    ages = [round((now_ms - need.since_ms) / _HOUR_MS) for need in needs]
    assert (ages == []) if hours is None else (max(ages) == hours)
    needed_ms, _ = retention_needed(shop, layout, table, now_ms)
    assert round(needed_ms / _HOUR_MS) == (hours or 0) + 1


def test_thread_does_what_is_due_and_survives_failures(
    shop: Declaration, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.time()]
    thread = MaintenanceThread(shop, Layout.of(shop), clock=lambda: now[0])
    assert thread.turn() == [("staging/typed", "compact"), ("staging/typed", "vacuum")]
    assert len(snapshot_files(table.location.table())) == 1
    assert thread.turn() == []
    # Another process knows from the history of the table that it was compacted; a vacuum without a file is not there.
    assert MaintenanceThread(shop, Layout.of(shop), clock=lambda: now[0]).turn() == [("staging/typed", "vacuum")]
    now[0] += 3601
    monkeypatch.setattr("ottla.pipeline.maintenance.compact_table", _fail)
    assert thread.turn() == []
    monkeypatch.undo()
    now[0] += 3601
    assert thread.turn() == [("staging/typed", "compact")]


def _fail(*arguments: Any) -> None:
    raise OSError("the disk is full")


def test_commands_compact_and_vacuum(shop: Declaration, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(shop.file).parent)

    def ottla(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["pipeline", *arguments])

    assert json.loads(ottla("compact", "shop.yaml", "--dry-run", "-o", "json").stdout)[0]["files"] == 4
    shown = ottla("compact", "shop.yaml", "--table", "typed", "--target-file-size", "1MB")
    assert shown.stdout.splitlines() == [
        "TABLE          REPLACED FILES  NEW FILES",
        "staging/typed               4          1",
    ]
    _age(table, hours_of={0: 90, 1: 80, 2: 70, 3: 60, 4: 50})
    _progress(shop, "joined", table, 2)
    refused = ottla("vacuum", "shop.yaml", "--retain", "2d")
    assert refused.exit_code == 1
    assert "flow joined still needs files of version 2; retain at least 2d13h" in refused.stderr
    kept = json.loads(ottla("vacuum", "shop.yaml", "-o", "json").stdout)
    assert kept == [{"table": "staging/typed", "files": 0, "retained": "2d14h"}]
    _progress(shop, "joined", table, 5)
    assert json.loads(ottla("vacuum", "shop.yaml", "--dry-run", "-o", "json").stdout)[0]["files"] == 4
    assert json.loads(ottla("vacuum", "shop.yaml", "--retain", "49h", "-o", "json").stdout)[0]["files"] == 4
    assert ottla("vacuum", "shop.yaml", "--table", "none").exit_code == 3
    assert ottla("vacuum", "shop.yaml", "--retain", "soon").exit_code == 2
    assert "retain at least" in ottla("vacuum", "shop.yaml", "--retain", "10m").stderr
