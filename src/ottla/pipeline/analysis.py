"""Spark's own analysis of a declaration, on empty inputs: types, functions, columns, and what a stream cannot do.

Flows are planned in order, by the code that runs them, so that the columns of a flow are known when the next one is
planned. A flow whose input could not be analysed is left out: its problems would follow from those of the input.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType, TimestampNTZType, TimestampType

from ottla.model.errors import OttlaError
from ottla.pipeline.checks import check_named_columns
from ottla.pipeline.declaration import Declaration, Flow, PythonStep, TopicSink, Watermark
from ottla.pipeline.graph import Graph
from ottla.pipeline.inputs import stored_schema
from ottla.pipeline.lineage import LINEAGE, RAW_COLUMNS, RECORD_COLUMNS
from ottla.pipeline.pinned_schemas import SchemasUnavailable, pin_schemas
from ottla.pipeline.plan import FunctionRefused, NothingIsLate, Planner, QueryRefused, Work
from ottla.pipeline.problems import BadDeclaration, Place, Problem, Problems, suggestion
from ottla.pipeline.run_log import children_write_to
from ottla.pipeline.values import sink_key_format
from ottla.pipeline.zones import written_key
from ottla.spark.formats import check_encodable
from ottla.spark.session import build_session
from ottla.spark.spark_internals import check_streaming, java_errors, without_error_logs
from ottla.spark.wire_format import SchemaRefused

if TYPE_CHECKING:
    from ottla.pipeline.document import Text

_START_FAILURES: tuple[type[Exception], ...] = (PySparkException, *java_errors())
_RAW_DDL = ", ".join(f"`{name}` {kind}" for name, kind in RAW_COLUMNS.items())
_PARSED_AT = re.compile(r"\(line (\d+), pos (\d+)\)")
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+.*", re.S)
_CONDITION = re.compile(r"^\s*\[[A-Z0-9_.]+\]\s*")


def analyse(declaration: Declaration, spark: SparkSession | None = None) -> Iterable[Problem]:
    """Return everything that Spark finds wrong. Without `spark`, start a session for the analysis."""
    try:
        graph = Graph(pin_schemas(declaration))
    except SchemasUnavailable as error:
        return (Problem(Place(declaration.file), str(error), "start the registry, or correct that"),)
    if spark is not None:
        return _Analysis(spark, graph).run(graph.order)
    session = _quiet_session(f"ottla validate {declaration.name}")
    try:
        return _Analysis(session, graph).run(graph.order)
    finally:
        session.stop()


def _quiet_session(name: str) -> SparkSession:
    """Return a session whose Java prints nothing to the terminal. Its output is shown if Spark does not start."""
    with tempfile.TemporaryDirectory(prefix="ottla-validate-") as directory:
        output = Path(directory) / "java.log"
        try:
            with children_write_to(output):
                session = build_session(name, "local[1]")
        except _START_FAILURES:
            sys.stderr.write(output.read_text(errors="replace"))
            raise
    session.sparkContext.setLogLevel("OFF")
    return session


def schemas_of(spark: SparkSession, graph: Graph, flows: Collection[str] | None = None) -> dict[str, StructType]:
    """Return the columns of every flow, or of some flows and all that they read. Raise BadDeclaration."""
    analysis = _Analysis(spark, graph)
    problems = tuple(analysis.run(graph.order if flows is None else graph.above(*flows)))
    if problems:
        raise BadDeclaration(problems)
    return analysis.schemas


class _Analysis:
    def __init__(self, spark: SparkSession, graph: Graph) -> None:
        self._spark = spark
        self._graph = graph
        self._problems = Problems()
        self.schemas: dict[str, StructType] = {}

    def run(self, flows: Collection[str]) -> tuple[Problem, ...]:
        with without_error_logs():
            for name in self._graph.order:
                flow = self._graph.declaration.flows[name]
                if name in flows and all(
                    one in self.schemas or one in self._graph.declaration.sources for one in flow.input_names
                ):
                    self._check(flow)
        return tuple(self._problems)

    def _check(self, flow: Flow) -> None:
        try:
            read = self._empty_stream if flow.kind == "table" else self._empty
            work = Planner(self._spark, self._graph, read).work(flow)
            self._check_result(flow, work)
            self.schemas[flow.name] = stored_schema(flow, work.schema)
            self._check_stream(flow, work)
        except QueryRefused as refused:
            self._problems.add(*_where_and_why(flow, refused))
        except NothingIsLate:
            assert flow.late_rows is not None
            what = f"flow {flow.name!r} has 'late_rows', and none of its steps drops late rows"
            advice = "put it where a window over the watermark's column, or a join, is"
            self._problems.add(flow.late_rows.place, what, advice)
        except FunctionRefused as refused:
            self._problems.add(refused.step.place, f"flow {flow.name!r}: {refused.step.function}", refused.what)
        except (PySparkException, OttlaError, OSError) as error:
            what = f"flow {flow.name!r}: {_plain(error).removeprefix(f'flow {flow.name}: ')}"
            self._problems.add(_place_of_failure(flow), what, "correct that")

    def _empty(self, name: str) -> DataFrame:
        schema: StructType | str = self.schemas.get(name, _RAW_DDL)
        return self._spark.createDataFrame([], schema)

    def _empty_stream(self, name: str) -> DataFrame:
        reads = self._graph.declaration.flows.get(name)
        if reads is not None and reads.kind == "materialized_view":
            return self._empty(name)
        schema = self._empty(name).schema
        rate = self._spark.readStream.format("rate").load()
        return rate.selectExpr(*(f"CAST(NULL AS {one.dataType.simpleString()}) AS `{one.name}`" for one in schema))

    def _check_stream(self, flow: Flow, work: Work) -> None:
        """Add a problem if the rows need an operation that no stream supports."""
        if not work.rows.isStreaming:
            return
        try:
            check_streaming(work.rows, updates=flow.emit == "changes")
        except AnalysisException as error:
            self._problems.add(_place_of_failure(flow), f"flow {flow.name!r}: {_plain(error)}", "write it otherwise")

    def _check_result(self, flow: Flow, work: Work) -> None:
        columns = work.columns
        traced = LINEAGE in columns or all(name in columns for name in RECORD_COLUMNS)
        if not traced:
            what = f"flow {flow.name!r}: its rows cannot be traced to their records"
            advice = f"pass on {', '.join(RECORD_COLUMNS)}, or add {LINEAGE}"
            self._problems.add(_place_of_failure(flow), what, advice)
        check_named_columns(flow, columns, self._problems)
        for sink in flow.topics:
            self._check_key(flow, sink, work)
        if flow.watermark is not None:
            self._check_watermark(flow.watermark, flow, work)

    def _check_key(self, flow: Flow, sink: TopicSink, work: Work) -> None:
        """Refuse a key that its schema does not fit, and a decoded key without a format: text of a struct."""
        if sink.key_format is not None and all(name in work.columns for name in sink.key_columns):
            kind = written_key(work.result, sink)
            try:
                format = sink_key_format(sink, self._graph.declaration, kind, register=False)
                assert format is not None, "key_format and key_schema are declared together"
                check_encodable(format, kind)
            except SchemaRefused as error:
                what = f"flow {flow.name!r}: the key of topic {sink.topic!r}: {error}"
                self._problems.add(sink.place, what, "correct key or key_schema")
        field = next((one for one in work.schema if one.name == "_key"), None)
        is_struct = field is not None and isinstance(field.dataType, StructType)
        if sink.key == "_key" and sink.key_format is None and is_struct:
            what = f"flow {flow.name!r}: the key of topic {sink.topic!r} is a struct and has no format"
            advice = "add key_format: and key_schema:, or select one of its fields, such as _key.id AS id"
            self._problems.add(sink.place, what, advice)

    def _check_watermark(self, mark: Watermark, flow: Flow, work: Work) -> None:
        """Add a problem if the rows do not have the column of the watermark, or if it has no time."""
        field = next((one for one in work.schema if one.name.lower() == mark.column.lower()), None)
        if field is None:
            what = f"flow {flow.name!r}: watermark names {mark.column!r}, which is not a column of the rows"
            self._problems.add(mark.place, what, suggestion(mark.column, work.columns, none=""))
        elif field.name == mark.column and not isinstance(field.dataType, TimestampType | TimestampNTZType):
            what = f"flow {flow.name!r}: the watermark's column {field.name!r} is {field.dataType.simpleString()}"
            self._problems.add(mark.place, what, "make it a timestamp")


def _where_and_why(flow: Flow, refused: QueryRefused) -> tuple[Place, str, str]:
    place = _place_in(refused.written, refused)
    text = _plain(refused.error)
    what, _, hint = text.partition(" Did you mean one of the following? ")
    instead = f"write one of {hint.strip(' [].')}" if hint else "correct the query"
    return place, f"flow {flow.name!r}: {what.rstrip('.')}", instead.replace("`", "")


def _place_in(written: Text, refused: QueryRefused) -> Place:
    error = refused.error
    parsed = _PARSED_AT.search(str(error))
    if parsed is not None:
        lines = refused.query.text.split("\n")[: int(parsed[1]) - 1]
        position = sum(len(line) + 1 for line in lines) + int(parsed[2])
        return written.place_of(refused.query.written_at(position))
    for context in error.getQueryContext():
        if context.startIndex() >= 0:
            return written.place_of(refused.query.written_at(context.startIndex()))
    return written.place


def _place_of_failure(flow: Flow) -> Place:
    step = next((one for one in flow.steps if isinstance(one, PythonStep)), None) or next(iter(flow.steps), None)
    return step.place if step is not None else flow.place


def _plain(error: BaseException) -> str:
    """Return the first sentence of an error, without codes."""
    if not isinstance(error, PySparkException):
        return str(error)
    text = _SQLSTATE.sub("", _CONDITION.sub("", str(error)))
    return text.strip().splitlines()[0] if text.strip() else str(error)
