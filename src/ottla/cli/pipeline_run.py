"""`ottla pipeline run`, `status`, `stop` and `backfill`: commands that start Spark, or control a run of a pipeline."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.cli import interrupts
from ottla.cli.options import Parsed
from ottla.cli.output import JSON, TABLE, YAML, Column, format_table, output_option, print_data, print_rows
from ottla.cli.pipeline_plan import check_start, keep_option, report_refused
from ottla.cli.pipeline_project import Choice, check_extra, environment_options, report
from ottla.cli.stages import in_place, stages
from ottla.cli.watch import WatchCommand
from ottla.model.printable import escape_controls

if TYPE_CHECKING:
    from ottla.env.tracing import Spans
    from ottla.pipeline import Declaration
    from ottla.pipeline.declaration import Trigger
    from ottla.pipeline.ownership import Ownership
    from ottla.pipeline.status import MetricsServer, RunStatus
    from ottla.pipeline.view import Show

_PATH = click.Path()
_COLUMNS = (
    Column("FLOW", "name"), Column("ZONE", "zone"), Column("STATE", "state"), Column("ROWS", "rows"),
    Column("ROWS/S", "rows_per_second"), Column("LAG", "lag"), Column("WATERMARK", "watermark"),
    Column("QUARANTINE", "quarantined"), Column("DROPPED", "dropped"), Column("LATE", "late"),
    Column("RESTARTS", "restarts"), Column("ERROR", "error"),
)  # fmt: skip


def _parse_trigger(text: str) -> Trigger:
    from ottla.pipeline.declaration import Trigger

    return Trigger.parse(text)


def _parse_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_MOMENT = Parsed("time", _parse_moment)
_master = click.option("--master", help="Where Spark runs: local[*], spark://..., yarn, k8s://...  [default: local[*]]")
_conf = click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; takes precedence over the file."
)


@click.command("run")
@click.argument("file", metavar="PATH", type=_PATH)
@environment_options
@_master
@_conf
@click.option("--once", is_flag=True, help="Read all existing records, then end; overrides the trigger of the file.")
@click.option(
    "--trigger",
    type=Parsed("text", _parse_trigger),
    help="For all flows: once, available-now, as-fast-as-possible, 'every 10s'.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Serve Prometheus metrics on this address; the default host is 127.0.0.1, 0.0.0.0 stands for all.",
)
@click.option(
    "--traces",
    metavar="URL",
    help="Send a span of each batch to this OTLP endpoint, such as http://127.0.0.1:4318; needs the extra otel.",
)
@keep_option
def run(
    *,
    file: str,
    choice: Choice,
    keep: tuple[str, ...],
    master: str | None,
    conf: tuple[str, ...],
    once: bool,
    trigger: Trigger | None,
    metrics: str | None,
    traces: str | None,
) -> None:
    """Run a pipeline until it ends, or until Ctrl-C, SIGTERM or 'ottla pipeline stop'.

    Shows the progress of its flows: a table on a terminal, lines elsewhere. A flow that fails is restarted, and the
    other flows continue. The exit code is 1 if a flow has failed at the end.

    Does not start if a flow was edited so that it cannot continue with its checkpoint: see 'ottla pipeline plan'.
    """
    if once and trigger is not None:
        raise click.UsageError("--once and --trigger cannot be combined")
    declaration = choice.load_pinned(file)
    if once:
        trigger = _parse_trigger("available-now")
    interrupts.end_with_stdin()
    with ExitStack() as stack:
        spans = stack.enter_context(_spans(traces, declaration.name)) if traces is not None else None
        served = stack.enter_context(_metrics_server(metrics)) if metrics is not None else None
        stack.enter_context(interrupts.not_logged())
        check = partial(check_start, declaration, choice.command("backfill", file), keep)
        spark, ownership = stack.enter_context(_session(declaration, master, conf, check))
        from ottla.pipeline.run import Supervisor, stopped_by_signals
        from ottla.pipeline.view import live_view

        views: list[Show] = []

        def show(status: RunStatus) -> None:
            views[0](status)

        with stages() as shown, shown.stage("Planning the flows"):
            supervisor = Supervisor(declaration, spark, trigger=trigger, show=show, ownership=ownership, spans=spans)
        views.append(stack.enter_context(live_view(_echo)))
        if served is not None:
            served.status = supervisor.status
        with stopped_by_signals(supervisor):
            status = supervisor.run()
    if status.failed:
        names = ", ".join(flow.name for flow in status.failed)
        raise Failure(f"failed: {names}; '{choice.command('status', file)}' has the errors")


@click.command("status", cls=WatchCommand)
@click.argument("file", metavar="PATH", type=_PATH)
@environment_options
@output_option(TABLE, JSON, YAML)
def status(file: str, choice: Choice, output: str) -> None:
    """Show the state of a running pipeline, or the result of its last run."""
    found = _status(choice.load_or_report(file))
    now_ms = int(time.time() * 1000)
    alive = found.alive(now_ms)
    if output != TABLE:
        print_data({**found.as_json(), "alive": alive}, output)
        return
    silence = f"not running, it has written no status for {(now_ms - found.updated_ms) / 1000:.0f} s"
    word = found.state if alive or found.state == "ended" else silence
    began = datetime.fromtimestamp(found.started_ms / 1000, UTC).isoformat(timespec="seconds")
    click.echo(f"{found.pipeline}: {word}, process {found.pid} on {found.host}, on {found.master}, since {began}")
    if sys.stdout.isatty():
        from ottla.pipeline.view import print_status

        print_status(found)
        return
    rows = [{**row, "late": flow.late_text} for row, flow in zip(found.as_json()["flows"], found.flows, strict=True)]
    click.echo(format_table(_COLUMNS, rows))


@click.command("stop")
@click.argument("file", metavar="PATH", type=_PATH)
@environment_options
@click.option(
    "--timeout", "timeout_s", type=float, default=90.0, show_default=True, help="Seconds to wait for the end."
)
def stop(file: str, choice: Choice, timeout_s: float) -> None:
    """Stop a running pipeline and wait for its end. The next run continues from there."""
    from ottla.pipeline.layout import Layout
    from ottla.pipeline.status import StatusFiles

    declaration = choice.load_or_report(file)
    found = _status(declaration)
    if not found.alive(int(time.time() * 1000)):
        click.echo(f"{found.pipeline} is not running")
        return
    files = StatusFiles(Layout.of(declaration))
    files.ask_to_stop(found.run)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        now = files.read()
        if now is None or now.run != found.run or not now.alive(int(time.time() * 1000)):
            click.echo(f"{found.pipeline} has ended")
            return
        time.sleep(0.2)
    raise NotHealthy(
        f"{found.pipeline} has not ended within {timeout_s:.0f} s; it is process {found.pid} on {found.host}"
    )


@click.command("backfill")
@click.argument("file", metavar="PATH", type=_PATH)
@environment_options
@click.argument("flows", metavar="[FLOW]...", nargs=-1)
@click.option("--since", type=_MOMENT, help="Only rows at or after this time: 2026-01-31, or 2026-01-31T12:00:00Z.")
@click.option("--until", type=_MOMENT, help="Only rows before this time.")
@click.option("--from", "origin", type=click.Choice(["raw", "log"]), default="raw", show_default=True,
              help="Read the raw zone, or the topics.")  # fmt: skip
@_master
@_conf
@output_option(TABLE, JSON, YAML)
def backfill(
    *,
    file: str,
    choice: Choice,
    flows: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    origin: str,
    master: str | None,
    conf: tuple[str, ...],
    output: str,
) -> None:
    """Recompute rows and replace the existing ones: all, or those of a time range.

    Recomputes the given FLOWs and all flows that depend on them, with the plan of the stream; without names, all flows
    after the raw zone. The pipeline must not run. Topics are not written again.
    """
    from dataclasses import asdict

    declaration = choice.load_pinned(file)
    check = partial(check_start, declaration, choice.command("backfill", file))
    with interrupts.not_logged(), _session(declaration, master, conf, check) as (spark, ownership):
        from ottla.pipeline.backfill import Backfill, Range
        from ottla.pipeline.view import live_view

        with live_view(lambda line: click.echo(escape_controls(line), err=True)) as show:
            job = Backfill(
                declaration, spark, range=Range(since, until), flows=flows, origin=origin, show=show,  # type: ignore[arg-type]
                ownership=ownership,
            )  # fmt: skip
            rows = [asdict(one) for one in job.run()]
    columns = (
        Column("FLOW", "flow"), Column("TABLE", "table"), Column("ROWS", "rows"), Column("PARTITIONS", "partitions")
    )  # fmt: skip
    print_rows(rows, columns, output)
    if job.left_out:
        names = ", ".join(sorted(job.left_out))
        raise Failure(f"not recomputed: {names}; they or their inputs failed, see '{choice.command('status', file)}'")


@contextmanager
def _session(
    declaration: Declaration, master: str | None, conf: tuple[str, ...], check: Callable[[], None]
) -> Iterator[tuple[Any, Ownership]]:
    """Claim the pipeline, call `check`, then start Spark; yield both."""
    from ottla.model.errors import OttlaError
    from ottla.pipeline import BadDeclaration
    from ottla.pipeline.problems import StartRefused

    settings = dict(declaration.spark)
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals:
            raise click.UsageError(f"--conf {one!r} is not of the form NAME=VALUE")
        settings[name] = value
    try:
        from ottla.pipeline.ownership import Ownership
        from ottla.pipeline.preflight import check_cluster, check_directories, check_functions, claim_checkpoints

        check_extra("pyarrow", "pyspark", "deltalake")
        check_directories(declaration)
        check_cluster(declaration)
        check_functions(declaration)
        with Ownership.of(declaration, uuid.uuid4().hex) as ownership:
            with _waiting_line() as show:
                ownership.start(show)
            claim_checkpoints(declaration)
            check()
            with _logged_session(declaration, master, settings) as spark:
                yield spark, ownership
    except BadDeclaration as bad:
        raise report(bad) from None
    except StartRefused as refused:
        raise report_refused(refused) from None
    except OttlaError as error:
        raise _failure_of(error) from None


@contextmanager
def _logged_session(declaration: Declaration, master: str | None, settings: dict[str, str]) -> Iterator[Any]:
    """Start Spark and yield its session. What Java and Python's loggers print goes to the log file of the run."""
    from ottla.pipeline.layout import Layout
    from ottla.pipeline.run_log import log_path, run_log
    from ottla.spark.session import build_session

    log = log_path(Layout.of(declaration))
    with run_log(log):
        with starting_spark(log, advice=f"; its output is in {log}"):
            spark = build_session(f"ottla {declaration.name}", master, settings)
            spark.sparkContext.setLogLevel(settings.get("spark.log.level", "ERROR"))
        click.echo(f"Log: {log}", err=True)
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def starting_spark(log: Path, advice: str = "") -> Iterator[None]:
    """Show that Spark starts in this block, and write the output of its processes to a file.

    Raise Failure if it does not start.
    """
    from ottla.pipeline.run_log import children_write_to

    try:
        with stages() as shown, shown.stage("Starting Spark"), children_write_to(log):
            yield
    except _spark_errors() as error:
        if interrupts.caused(error):
            raise
        reason = str(error).partition("\n")[0].strip(" .")
        raise Failure(f"Spark did not start: {reason}{advice}") from None


def _spark_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of Spark's start; none if it is not installed, which `build_session` reports."""
    try:
        from pyspark.errors import PySparkException
    except ImportError:
        return ()
    from ottla.spark.spark_internals import java_errors

    return PySparkException, *java_errors()


def _failure_of(error: Exception) -> Failure:
    from ottla.pipeline.preflight import BrokersUnreachable, TopicsMissing

    if isinstance(error, BrokersUnreachable):
        return NotHealthy(str(error))
    return NotFound(str(error)) if isinstance(error, TopicsMissing) else Failure(str(error))


@contextmanager
def _spans(endpoint: str, pipeline: str) -> Iterator[Spans]:
    """Yield what exports the spans of a run. Raise UsageError for a bad address, Failure without the packages."""
    from ottla.model import extras
    from ottla.model.settings_traces import is_endpoint_url

    if not is_endpoint_url(endpoint):
        raise click.UsageError(
            f"--traces {endpoint!r} is not http://HOST:PORT or https://HOST:PORT without a user name"
        )
    try:
        from ottla.env.otel import OtelSpans
    except ModuleNotFoundError as error:
        raise Failure(extras.missing(error.name or "opentelemetry", extras.OTEL)) from None
    spans = OtelSpans(endpoint, service="ottla-pipeline", instance=pipeline)
    try:
        yield spans
    finally:
        spans.close()


def _metrics_server(address: str) -> MetricsServer:
    from ottla.pipeline.status import MetricsServer, parse_address

    try:
        host, port = parse_address(address)
    except ValueError as error:
        raise click.UsageError(f"--metrics: {error}") from None
    try:
        return MetricsServer(host, port)
    except OSError as error:
        reason = str(error.strerror or error).lower()
        raise Failure(f"metrics cannot be served on {host}:{port}: {reason}; choose another --metrics") from None


@contextmanager
def _waiting_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line on standard error: in place on a terminal, else only the first one."""
    shown = 0

    def show(line: str) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            click.echo(in_place(line), nl=False, err=True)
        elif not shown:
            click.echo(escape_controls(line, keep=""), err=True)
        shown += 1

    try:
        yield show
    finally:
        if shown and sys.stderr.isatty():
            click.echo(err=True)


def _status(declaration: Declaration) -> RunStatus:
    from ottla.pipeline.layout import Layout
    from ottla.pipeline.status import StatusFiles

    found = StatusFiles(Layout.of(declaration)).read()
    if found is None:
        raise NotFound(f"{declaration.name} has never run here; 'ottla pipeline run' starts it")
    return found


def _echo(line: str) -> None:
    click.echo(escape_controls(line, keep=""))
