"""Numbers of rows for the screen, from the tables.

The status of a run has the counts of that run, which begin at 0 after the driver was killed. The rows of earlier runs
are still in the tables, and without them the screen would seem to show a loss. Rows that are in no table (dropped,
late) are added up over the runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from deltalake import DeltaTable

from ottla.pipeline.declaration import QUARANTINE, Declaration, Flow
from ottla.pipeline.layout import Layout
from ottla.pipeline.status import FlowStatus, RunStatus
from ottla.spark.table_location import TableLocation

_RENEW_S: Final = 1.0


def without_driver(status: RunStatus) -> RunStatus:
    """Return the status of a run whose driver was killed: its flows are stopped, their counts are kept."""
    flows = [replace(flow, state="stopped", rows_per_second=0.0) for flow in status.flows]
    return replace(status, flows=flows)


class TableCounts:
    """The tables of a pipeline, each opened once."""

    def __init__(self, declaration: Declaration, now: Callable[[], float] = time.monotonic) -> None:
        self._flows = declaration.flows
        self._layout = Layout.of(declaration)
        self._now = now
        self._open: dict[str, DeltaTable] = {}
        #: by path, the number of rows when they were last counted
        self._counts: dict[str, int] = {}
        self._counted_at = float("-inf")
        #: the last status of the current run, and by flow what earlier runs have dropped or found late
        self._last: RunStatus | None = None
        self._earlier: dict[str, tuple[int, int, int]] = {}

    def add_to(self, status: RunStatus) -> RunStatus:
        """Return the status with the counts of all runs. The given one is not changed."""
        if self._last is not None and self._last.run != status.run:
            for flow in self._last.flows:
                before = self._earlier.get(flow.name, (0, 0, 0))
                dropped, late, groups = before
                self._earlier[flow.name] = dropped + flow.dropped, late + flow.late, groups + flow.late_groups
        self._last = status
        if self._now() - self._counted_at >= _RENEW_S:
            self._counted_at = self._now()
            self._counts.clear()
        return replace(status, flows=[self._with_counts(flow) for flow in status.flows])

    def _with_counts(self, status: FlowStatus) -> FlowStatus:
        flow = self._flows.get(status.name)
        if flow is None:
            return status
        dropped, late, groups = self._earlier.get(status.name, (0, 0, 0))
        return replace(
            status,
            rows=self._rows(flow, status.rows),
            quarantined=self._quarantined(flow, status.quarantined),
            dropped=status.dropped + dropped,
            late=status.late + late,
            late_groups=status.late_groups + groups,
        )

    def _rows(self, flow: Flow, of_run: int) -> int:
        return self._count(self._layout.table(flow.zone, flow.table.name)) if flow.table is not None else of_run

    def _quarantined(self, flow: Flow, of_run: int) -> int:
        side = flow.quarantine
        return self._count(self._layout.table(QUARANTINE, side.table)) if side is not None and side.table else of_run

    def _count(self, path: str) -> int:
        if path not in self._counts:
            self._counts[path] = self._count_now(path)
        return self._counts[path]

    def _count_now(self, path: str) -> int:
        table = self._open.get(path)
        if table is not None:
            table.update_incremental()
            return int(table.count())
        location = TableLocation.at(path)
        if not location.exists():
            return 0
        self._open[path] = location.table()
        return int(self._open[path].count())
