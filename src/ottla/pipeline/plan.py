"""A flow as a transformation of DataFrames, the same for streams, for batches and for empty inputs.

`Planner` gets a function that reads inputs and does not know where they come from. It returns `Work`: all rows of one
batch, accepted or not, in one DataFrame. The columns of the result come first; after them there are columns that only
the writer uses (`zones`):

    __cause       why the record could not be decoded; null where it could
    __violated    names of the expectations that the row violates
    __record      key, value and headers of the record, in flows that decode
    __aside       false for rows of the result only, true for rows of the second read, null if there is one read
    __late        in flows with steps: a row that enters an operator which drops late rows (`late`)

Duplicates are dropped among accepted rows only. Rejected and late rows are read a second time, without the operator
that drops duplicates: it would drop late rows silently, and treat two rejected rows without a key as duplicates.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import PREVIOUS, Flow, PythonStep, Source, SqlStep, TopicSink, Watermark
from ottla.pipeline.document import Text
from ottla.pipeline.expectations import Expectation
from ottla.pipeline.graph import Graph
from ottla.pipeline.late import ROW, entering
from ottla.pipeline.lineage import DECODED_COLUMNS, RECORD_COLUMNS, Expanded, expand
from ottla.pipeline.values import source_format, source_key_format
from ottla.spark import formats
from ottla.spark.spark_internals import count_streams
from ottla.spark.table_schema import nullable

CAUSE = "__cause"
VIOLATED = "__violated"
RECORD = "__record"
ASIDE = "__aside"
LATE = "__late"
HIDDEN = (CAUSE, VIOLATED, RECORD, ASIDE, LATE)
#: the beginning of the message of a query that an expectation has stopped
EXPECTATION_FAILED = "an expectation with on_violation: fail does not hold"

Read = Callable[[str], DataFrame]

#: held while the inputs of a query are temporary views of the session
_views = threading.RLock()


class QueryRefused(OttlaError):
    """Spark refuses a query or predicate of a flow."""

    def __init__(self, flow: Flow, written: Text, query: Expanded, error: AnalysisException) -> None:
        super().__init__(f"flow {flow.name}: {str(error).splitlines()[0]}")
        self.flow = flow
        self.written = written
        self.query = query
        self.error = error


class FunctionRefused(OttlaError):
    """A Python step that cannot be found, or does not return a DataFrame."""

    def __init__(self, flow: Flow, step: PythonStep, what: str) -> None:
        super().__init__(f"flow {flow.name}: {step.function}: {what}")
        self.flow = flow
        self.step = step
        self.what = what


class NothingIsLate(OttlaError):
    """A flow has `late_rows`, and none of its operators drops late rows."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(f"flow {flow.name}: has 'late_rows', and none of its steps drops late rows")


class QueryNeverGrows(OttlaError):
    """A table of a flow that reads materialized views only: no stream would ever add a row to it."""

    def __init__(self, flow: Flow) -> None:
        super().__init__(
            f"flow {flow.name} is a table that reads materialized views alone, so no row would ever come: write "
            "kind: materialized_view"
        )


class FunctionFailed(OttlaError):
    """A Python step has raised an exception while it was planned; another attempt may succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The rows that a flow computes from its inputs."""

    rows: DataFrame
    #: the columns of the result
    columns: tuple[str, ...]
    #: the column with the event time, if late rows have an output
    late_time: str | None = None
    #: of the rows in `__late`
    late_columns: tuple[str, ...] = ()
    #: how often an input is read for one batch
    scans: int = 1
    #: an operator keeps state, so that the rows must be computed exactly once per batch
    stateful: bool = False

    @property
    def result(self) -> DataFrame:
        return self.rows.select(*map(quoted, self.columns))

    @property
    def schema(self) -> StructType:
        """The schema of the result as a table stores it: all columns are nullable."""
        return stored_type(self.result.schema)


class Planner:
    """Plans flows. `read` returns an input: raw columns of a source, or result columns of a stored flow."""

    def __init__(self, spark: SparkSession, graph: Graph, read: Read) -> None:
        self._spark = spark
        self._graph = graph
        self._read = read

    def work(self, flow: Flow) -> Work:
        if self._graph.stores_bytes(flow):
            rows = self._read(flow.input_names[0])
            judged = _judge(rows, ()).withColumn(ASIDE, F.lit(None).cast("boolean"))
            return Work(rows=judged, columns=tuple(rows.columns))
        source = self._graph.decodes(flow)
        inputs = {name: self.input(name) for name in flow.input_names}
        if source is not None and not flow.steps:
            (name,) = inputs
            return self._finish(flow, self.decode(inputs[name], source))
        if source is not None:
            return self._work_on_records(flow, inputs)
        rows = self._run_steps(flow, inputs) if flow.steps else inputs[flow.input_names[0]]
        return self._finish(flow, rows)

    def _work_on_records(self, flow: Flow, inputs: Mapping[str, DataFrame]) -> Work:
        """Run the steps on the decoded records of each input; records that cannot be decoded bypass the steps."""
        known, undecoded = dict(inputs), []
        for name in inputs:
            source = self._graph.source_of(name)
            if source is None:
                continue
            decoded = self.decode(inputs[name], source)
            good = decoded.where(F.col(CAUSE).isNull()).drop(CAUSE, RECORD)
            known[name] = _with_watermark(good, source.watermark)
            undecoded.append(decoded.where(F.col(CAUSE).isNotNull()))
        rows = self._run_steps(flow, known)
        types = {field.name: field.dataType for field in rows.schema if field.name in DECODED_COLUMNS}
        # Sources need not agree on what a key is; the bytes of the key are in the record.
        none = {"_key": F.lit(None)}
        work = self._finish(flow, rows)
        united = work.rows
        for bad in undecoded:
            carried = (none.get(name, F.col(name)).cast(kind).alias(name) for name, kind in types.items())
            united = united.unionByName(bad.select(CAUSE, RECORD, *carried), allowMissingColumns=True)
        return replace(work, rows=united, scans=work.scans + 1)

    def input(self, name: str) -> DataFrame:
        """Return the rows of a source, a stored flow, or a view, which is computed here; with their watermark."""
        flow = self._graph.declaration.flows.get(name)
        if flow is None or self._graph.stores_bytes(flow):
            return self._read(name)
        if flow.kind != "view":
            return _with_watermark(self._read(name), self._graph.watermark_of(name))
        work = self.work(flow)
        kept = work.rows.where(accepted(flow)).select(*map(quoted, work.columns))
        return _with_watermark(kept, flow.watermark)

    def _finish(self, flow: Flow, rows: DataFrame) -> Work:
        columns = tuple(name for name in rows.columns if name not in HIDDEN)
        mark = self._graph.watermark_of(flow.name)
        if flow.watermark is not None and (flow.deduplicate or flow.late_rows):
            of_inputs = [self._graph.watermark_of(name) for name in flow.input_names]
            if not any(one is not None and one.column == flow.watermark.column for one in of_inputs):
                rows = _with_watermark(rows, flow.watermark)
        rows = self._expect(flow, rows).withColumn(ASIDE, F.lit(None).cast("boolean"))
        late_time = mark.column if flow.late_rows is not None and mark is not None else None
        scans = 1
        if flow.deduplicate:
            second_read = rows if late_time is not None and not flow.steps else rows.where(~accepted(flow))
            unique = rows.where(accepted(flow))
            if rows.isStreaming:
                unique = unique.dropDuplicatesWithinWatermark(list(flow.deduplicate))
            else:
                unique = unique.dropDuplicates(list(flow.deduplicate))
            if flow.expectations or second_read is rows:
                scans = 2
                unique = unique.withColumn(ASIDE, F.lit(False)).unionByName(second_read.withColumn(ASIDE, F.lit(True)))
            rows = unique
        work = Work(rows=rows, columns=columns, late_time=late_time, scans=scans, stateful=_is_stateful(flow))
        return self._add_late_rows(flow, work) if late_time is not None and flow.steps else work

    def _add_late_rows(self, flow: Flow, work: Work) -> Work:
        if not work.rows.isStreaming:
            # In a batch query no row is late.
            return replace(work, late_time=None)
        late = entering(work.rows)
        if late is None:
            raise NothingIsLate(flow)
        rows = work.rows.unionByName(late.select(F.struct("*").alias(LATE)), allowMissingColumns=True)
        names = tuple(name for name in late.schema[ROW].dataType.names if name not in HIDDEN)  # type: ignore[attr-defined]
        scans = work.scans * count_streams(rows) // count_streams(work.rows)
        return replace(work, rows=rows, late_columns=names, scans=scans)

    def _expect(self, flow: Flow, rows: DataFrame) -> DataFrame:
        deletes = (sink.tombstone_when if isinstance(sink, TopicSink) else sink.delete_when for sink in flow.sinks)
        for predicate in (*(one.predicate for one in flow.expectations), *filter(None, deletes)):
            try:
                rows.where(F.expr(predicate.text))
            except AnalysisException as error:
                raise QueryRefused(flow, predicate, Expanded(predicate.text), error) from None
        return _judge(rows, flow.expectations)

    def _run_steps(self, flow: Flow, inputs: Mapping[str, DataFrame]) -> DataFrame:
        known = dict(inputs)
        for step in flow.steps:
            result = self._query(flow, step, known) if isinstance(step, SqlStep) else self._call(flow, step, known)
            known[PREVIOUS] = result
            if step.name is not None:
                known[step.name] = result
        return known[PREVIOUS]

    def _query(self, flow: Flow, step: SqlStep, known: Mapping[str, DataFrame]) -> DataFrame:
        query = expand(step.sql.text.rstrip().rstrip(";"))
        with _views:
            for name, rows in known.items():
                rows.createOrReplaceTempView(name)
            try:
                # Spark resolves the names in this call, so the views are not needed after it.
                return self._spark.sql(query.text)
            except AnalysisException as error:
                raise QueryRefused(flow, step.sql, query, error) from None
            finally:
                for name in known:
                    self._spark.catalog.dropTempView(name)

    def _call(self, flow: Flow, step: PythonStep, known: Mapping[str, DataFrame]) -> DataFrame:
        function = step.call or find_function(self._graph, flow, step)
        try:
            result: Any = function(*(known[name] for name in step.inputs))
        except AnalysisException:
            raise
        except Exception as error:
            # Code of users may raise any exception, which must not stop other flows.
            raise FunctionFailed(f"flow {flow.name}: {step.function}: {type(error).__name__}: {error}") from error
        if not isinstance(result, DataFrame):
            raise FunctionRefused(flow, step, f"returned {type(result).__name__}; return a DataFrame")
        return result

    def format_of(self, source: Source) -> formats.Format | None:
        """Return the format of the values of a source; None for text and bytes, which are not decoded."""
        return source_format(source, self._graph.declaration)

    def decode(self, raw: DataFrame, source: Source) -> DataFrame:
        """Return the decoded records of a source."""
        return decode(raw, source, self.format_of(source), source_key_format(source, self._graph.declaration))


def find_function(graph: Graph, flow: Flow, step: PythonStep) -> Callable[..., Any]:
    """Return the function `module:function`, also from modules beside the declaration. Raise FunctionRefused."""
    beside = str(Path(graph.declaration.file).resolve().parent)
    if beside not in sys.path:
        sys.path.insert(0, beside)
    module, _, name = step.function.partition(":")
    try:
        found: Any = reduce(getattr, name.split("."), importlib.import_module(module))
    except ImportError as error:
        raise FunctionRefused(flow, step, f"{error}; put the module beside {graph.declaration.file}") from None
    except AttributeError as error:
        raise FunctionRefused(flow, step, f"{error}; define it there") from None
    return found  # type: ignore[no-any-return]


def own_modules(graph: Graph) -> tuple[str, ...]:
    """Return the files beside the declaration with modules of Python steps, which tasks on other machines need."""
    directory = Path(graph.declaration.file).resolve().parent
    modules = {
        step.function.partition(":")[0].partition(".")[0]
        for flow in graph.declaration.flows.values()
        for step in flow.steps
        if isinstance(step, PythonStep)
    }
    paths = (str(directory / f"{module}.py") for module in sorted(modules))
    return tuple(path for path in paths if os.path.isfile(path))


def decode(
    raw: DataFrame, source: Source, format: formats.Format | None, key_format: formats.RegistryFormat | None = None
) -> DataFrame:
    """Return decoded fields and positions; `__cause` and `__record` are for records that cannot be decoded."""
    if format is None:
        value = F.col("value")
        text = source.format == "string"
        fields = {"value": value.cast("string") if text else value}
        why = F.when(value.isNotNull() & ~F.is_valid_utf8(value.cast("string")), "not UTF-8") if text else F.lit(None)
        rows = raw.withColumn(CAUSE, why.cast("string"))
    else:
        rows = formats.decode(raw, format, into="__decoded", cause=CAUSE, headers="headers")
        names = [field.name for field in rows.schema["__decoded"].dataType]  # type: ignore[attr-defined]
        fields = {name: F.col("__decoded")[name] for name in names}
        is_value = F.col("value").isNotNull()
        if source.null_values == "keep":
            rows = rows.withColumn(CAUSE, F.when(is_value, F.col(CAUSE)))
        for column in source.columns:
            if not column.nullable:
                missing = is_value & F.col(CAUSE).isNull() & fields[column.name].isNull()
                rows = rows.withColumn(CAUSE, F.when(missing, f"{column.name} is null").otherwise(F.col(CAUSE)))
    key = F.col("key").cast("string") if source.key_format == "string" else F.col("key")
    if key_format is not None:
        key_names = {"into": "__decoded_key", "cause": "__key_cause"}
        rows = formats.decode(rows, key_format, column="key", headers="headers", **key_names)
        # A record without a key has nothing to decode.
        why = F.when(F.col("key").isNotNull(), F.concat(F.lit("key: "), F.col("__key_cause")))
        rows = rows.withColumn(CAUSE, F.coalesce(F.col(CAUSE), why))
        key = F.col("__decoded_key")
    carried = {"_key": key} | {name: F.col(name) for name in DECODED_COLUMNS if name != "_key"}
    record = F.struct("key", "value", "headers").alias(RECORD)
    return rows.select(*(column.alias(name) for name, column in (fields | carried).items()), CAUSE, record)


def accepted(flow: Flow) -> Column:
    """Return the condition for rows of the result."""
    refused = [F.lit(one.name) for one in flow.expectations if one.on_violation in ("drop", "quarantine")]
    fine = F.col(CAUSE).isNull()
    return fine & ~F.arrays_overlap(F.col(VIOLATED), F.array(*refused)) if refused else fine


def _is_stateful(flow: Flow) -> bool:
    """Return whether an operator may keep state: true for all steps, because their operators are not known here."""
    return bool(flow.deduplicate or flow.steps)


def quoted(name: str) -> str:
    """Return the name of a column in backticks, so that Spark takes dots as part of it."""
    return f"`{name.replace('`', '``')}`"


def stored_type(schema: StructType) -> StructType:
    """Return the schema as a table stores it: all columns are nullable, and none is marked as that of a watermark."""
    fields = [nullable(field) for field in schema.jsonValue()["fields"]]
    return StructType.fromJson({"type": "struct", "fields": fields})


def _judge(rows: DataFrame, expectations: tuple[Expectation, ...]) -> DataFrame:
    if CAUSE not in rows.columns:
        rows = rows.withColumn(CAUSE, F.lit(None).cast("string"))
    none = F.array().cast("array<string>")
    if not expectations:
        return rows.withColumn(VIOLATED, none)
    found = F.array_compact(F.array(*(F.when(F.expr(one.violated_sql), F.lit(one.name)) for one in expectations)))
    fatal = [one for one in expectations if one.on_violation == "fail"]
    for one in reversed(fatal):
        place = [F.lit(f"{EXPECTATION_FAILED}: {one.name}")]
        if all(name in rows.columns for name in RECORD_COLUMNS):
            place += [F.col(name).cast("string") for name in RECORD_COLUMNS]
        stop = F.raise_error(F.concat_ws(" ", *place)).cast("array<string>")
        found = F.when(F.expr(one.violated_sql), stop).otherwise(found)
    return rows.withColumn(VIOLATED, F.when(F.col(CAUSE).isNull(), found).otherwise(none))


def _with_watermark(rows: DataFrame, mark: Watermark | None) -> DataFrame:
    if mark is None or not rows.isStreaming or mark.column not in rows.columns:
        return rows
    return rows.withWatermark(mark.column, f"{mark.delay_ms} milliseconds")
