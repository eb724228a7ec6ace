"""The supervisor without Spark: a run that another one has replaced stops in order and leaves the status file alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from small_pipeline import HEAD

from ottla.model.types import TopicPartition
from ottla.pipeline.declaration import Declaration
from ottla.pipeline.layout import Layout
from ottla.pipeline.ownership import Ownership, RunIdentity, TakenOver
from ottla.pipeline.status import RunStatus, StatusFiles

pytest.importorskip("pyspark", reason="pyspark is missing: pip install '.[spark]'")

from pyspark.sql.types import DoubleType, StringType, StructField, StructType

from ottla.pipeline import flow_runs
from ottla.pipeline import run as module
from ottla.pipeline.failures import describe_failure, is_final
from ottla.pipeline.problems import StartRefused
from ottla.spark.table_location import TableLocation
from ottla.spark.table_schema import SchemaMismatch

_WAIT_S_MAX = 60.0


class Query:
    """Stands for the query of a flow: it runs until it is stopped."""

    def __init__(self, session: Any, supervised: Any) -> None:
        self._supervised = supervised

    def ended(self) -> bool:
        return False

    def settled(self) -> bool:
        return True

    def failure(self) -> None:
        return None

    def stop(self) -> None:
        self._supervised.has_ended.set()


class Claim(Ownership):
    """An ownership without a cluster."""

    is_closed = False

    def __init__(self, run: str = "mine") -> None:
        super().__init__("shop", run, lambda: pytest.fail("no cluster is needed"))
        self.is_lost = threading.Event()
        self.successor: RunIdentity | None = None

    def claim(self, waiting: Callable[[str], None]) -> None:
        pass

    @property
    def was_replaced(self) -> bool:
        return self.is_lost.is_set()

    @property
    def other(self) -> RunIdentity | None:
        return self.successor


@pytest.fixture
def declaration(read: Callable[..., Declaration], tmp_path: Path) -> Declaration:
    text = "trigger: every 10s\n" + HEAD
    return replace(read(text), file=str(tmp_path / "p.yaml"))


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    listeners: list[Any] = []
    streams = SimpleNamespace(addListener=listeners.append, removeListener=listeners.remove)
    monkeypatch.setattr(module, "schemas_of", lambda *arguments: {})
    monkeypatch.setattr(module, "ship_code", lambda session: None)
    monkeypatch.setattr(module, "make_topics", lambda declaration: None)
    monkeypatch.setattr(flow_runs, "StreamRun", Query)
    monkeypatch.setattr(module, "_STATUS_EVERY_S", 0.01)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    yield SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]"), streams=streams)
    assert listeners == []


def supervise(
    declaration: Declaration, spark: Any, claim: Claim, when_running: Callable[[RunStatus], None]
) -> module.Supervisor:
    """Return a supervisor that calls `when_running` once, when the flow runs and its status is written."""
    is_called = False

    def show(status: RunStatus) -> None:
        nonlocal is_called
        if not is_called and status.flows[0].state == "running":
            is_called = True
            when_running(status)

    return module.Supervisor(declaration, spark, ownership=claim, show=show)


def test_run_that_ends_says_so_in_its_status_file(declaration: Declaration, spark: Any) -> None:
    files, claim = StatusFiles(Layout.of(declaration)), Claim()
    supervisor = supervise(declaration, spark, claim, lambda status: files.ask_to_stop(status.run))
    assert supervisor.run().state == "ended"
    written = files.read()
    assert written is not None
    assert (written.run, written.state, written.flows[0].state) == ("mine", "ended", "stopped")


def test_replaced_run_stops_its_flows_and_names_its_successor(declaration: Declaration, spark: Any) -> None:
    files, claim = StatusFiles(Layout.of(declaration)), Claim()
    successor = RunStatus.begin("shop", "p.yaml", "local[1]", "next")

    def replaced(status: RunStatus) -> None:
        claim.successor = RunIdentity(run="next", host="far", pid=7, started_ms=1)
        files.write(successor)
        claim.is_lost.set()

    supervisor = supervise(declaration, spark, claim, replaced)
    with pytest.raises(TakenOver, match=r"taken over the pipeline shop \(run next, process 7 on far\)"):
        supervisor.run()
    assert supervisor.status.flows[0].state == "stopped"
    assert files.read() == successor, "the status file belongs to the successor"


def test_run_stops_if_another_one_has_written_the_status_file(declaration: Declaration, spark: Any) -> None:
    # It has come and has ended while this run was frozen, so that the group has nothing to say.
    files = StatusFiles(Layout.of(declaration))
    successor = RunStatus.begin("shop", "p.yaml", "local[1]", "next")
    supervisor = supervise(declaration, spark, Claim(), lambda status: files.write(successor))
    with pytest.raises(TakenOver):
        supervisor.run()
    assert files.read() == successor


def test_flow_that_reads_tables_alone_starts_when_one_of_them_exists(
    read: Callable[..., Declaration], spark: Any, tmp_path: Path
) -> None:
    text = "trigger: every 10s\n" + HEAD + "  trusted: {zone: trusted, from: staged}\n"
    declaration = replace(read(text), file=str(tmp_path / "p.yaml"))
    claim, files = Claim(), StatusFiles(Layout.of(declaration))
    table = Layout.of(declaration).table("staging", "staged")
    seen: list[tuple[str, bool]] = []

    def show(status: RunStatus) -> None:
        staged, trusted = status.flows
        seen.append((trusted.state, TableLocation.at(table).exists()))
        if trusted.state == "running":
            files.ask_to_stop(status.run)
        elif staged.state == "running" and not seen[-1][1] and len(seen) > 5:
            write_deltalake(table, pa.table({"order_id": ["a"]}))

    module.Supervisor(declaration, spark, ownership=claim, show=show).run()
    assert ("running", True) in seen and ("waiting", False) in seen
    assert ("running", False) not in seen


@pytest.mark.parametrize(
    ("error", "shown"),
    [(DeltaError("the log is damaged"), "the log is damaged"), (KeyError("amount"), "KeyError: 'amount'")],
)
def test_materialized_view_fails_with_any_exception(
    read: Callable[..., Declaration],
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    shown: str,
) -> None:
    text = "trigger: once\n" + HEAD + "  all: {zone: trusted, kind: materialized_view, from: staged}\n"
    declaration = replace(read(text), file=str(tmp_path / "p.yaml"))
    attempts: list[str] = []

    def refresh(session: Any, flow: Any) -> None:
        attempts.append(flow.name)
        raise error

    monkeypatch.setattr(flow_runs, "activate_session", lambda spark: None)
    monkeypatch.setattr(flow_runs, "refresh_view", refresh)
    restarts = flow_runs.Restarts(first_s=0.0, attempts_max=2)
    supervisor = module.Supervisor(declaration, spark, ownership=Claim(), flows={"all"}, restarts=restarts)
    (status,) = supervisor.run().flows
    assert (status.state, status.error, attempts) == ("failed", shown, ["all", "all"])


@pytest.mark.parametrize(
    ("kind", "head", "problem"),
    [
        ("double", "", "the column amount of the table is string, that of the rows is double"),
        ("string", "", "the table has no column new: write merge_schema: true to add it, or drop it from the rows"),
        ("string", "merge_schema: true\n", None),
    ],
)
def test_run_with_rows_that_a_table_does_not_take_is_refused_before_a_flow_starts(
    read: Callable[..., Declaration],
    spark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    head: str,
    problem: str | None,
) -> None:
    text = HEAD + "  all: {zone: trusted, from: staged, sql: 'SELECT *, amount AS new FROM staged'}\n"
    declaration = replace(read(head + text), file=str(tmp_path / "p.yaml"))
    types = {"string": StringType(), "double": DoubleType()}
    rows = StructType([StructField("amount", types[kind]), StructField("new", StringType())])
    rows = rows.add("_change_type", StringType())
    monkeypatch.setattr(module, "schemas_of", lambda *arguments: {"all": rows})
    write_deltalake(Layout.of(declaration).table("trusted", "all"), pa.table({"amount": ["1"]}))
    if problem is None:
        module.Supervisor(declaration, spark, ownership=Claim())
        return
    with pytest.raises(StartRefused, match=f"flow all table refuses: trusted/all: {problem}.*undo the change"):
        module.Supervisor(declaration, spark, ownership=Claim())


def test_rows_that_do_not_fit_end_a_flow_with_the_key_of_the_pipeline_in_the_message() -> None:
    mismatch = SchemaMismatch("the table has no column new: set mergeSchema to true to add it, or drop it")
    error = RuntimeError(f"ottla.spark.table_schema.SchemaMismatch: {mismatch}")
    assert is_final(error)
    assert describe_failure(error) == ("the table has no column new: write merge_schema: true to add it, or drop it")


def operator(name: str, dropped: int) -> Any:
    return SimpleNamespace(operatorName=name, numRowsDroppedByWatermark=dropped)


def source(latest: int, end: int, kind: str = "PythonMicroBatchStream") -> Any:
    offsets = [f'{{"t":{{"0":{one}}}}}' for one in (latest, end)]
    return SimpleNamespace(description=f"{kind}", latestOffset=offsets[0], endOffset=offsets[1])


def progress(operators: tuple[Any, ...], sources: tuple[Any, ...]) -> Any:
    return SimpleNamespace(
        numInputRows=0, processedRowsPerSecond=0.0, eventTime={}, stateOperators=operators, sources=sources
    )


def test_progress_counts_late_rows_and_late_groups_apart_and_lag_grows_without_it(
    declaration: Declaration, spark: Any
) -> None:
    supervisor = module.Supervisor(declaration, spark, ownership=Claim())
    (flow,) = supervisor._flows
    flow.status.state = "running"
    operators = (
        operator("stateStoreSave", 98), operator("sessionWindowStateStoreSaveExec", 2), operator("dedupe", 3),
        operator("dedupeWithinWatermark", 4), operator("symmetricHashJoin", 5),
    )  # fmt: skip
    # The same topic twice, as in a query that reads its input again for rejected rows.
    flow.progress(progress(operators, (source(150, 100), source(150, 100))))
    assert (flow.status.late, flow.status.late_groups) == (12, 100)
    assert flow.status.lag == 50
    flow.progress(progress((), (source(150, 150),)))
    flow.refresh()
    assert flow.status.lag == 0
    supervisor._session.ends.note({TopicPartition("t", 0): 295})
    flow.refresh()
    assert flow.status.lag == 145
