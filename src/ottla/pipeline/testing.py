"""Unit tests of flows: rows in, rows out, on batch Spark without a broker.

    from ottla.pipeline.testing import run_flow

    def test_orders_without_an_amount_go_to_quarantine():
        result = run_flow("shop", "orders_trusted", {"orders_staged": [{"order_id": "a", "amount": None}]})
        result.assert_rows([])
        result.assert_quarantine([{"order_id": "a", "_cause": "amount is positive"}])

A flow is planned by the code that plans it as a stream (`plan`), its rows are divided into result and quarantine by the
code that writes them (`zones`), and keyed tables are merged in a temporary directory. The given rows are one batch, and
all that there will be: windows are complete, and no row is late.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, VariantType

from ottla.model.errors import OttlaError
from ottla.pipeline.analysis import schemas_of
from ottla.pipeline.declaration import Declaration, Flow, TableSink, TopicSink
from ottla.pipeline.decorators import Pipeline
from ottla.pipeline.environments import Arguments
from ottla.pipeline.failures import describe_failure
from ottla.pipeline.flow_tests import FlowTest
from ottla.pipeline.given_rows import RAW_SCHEMA, Rows, accept_given_rows, given_records, given_rows, key_encoder
from ottla.pipeline.graph import Graph
from ottla.pipeline.inputs import stored_schema
from ottla.pipeline.layout import Layout, resolve
from ottla.pipeline.lineage import DECODED_COLUMNS
from ottla.pipeline.load import find_beside, load, read_beside
from ottla.pipeline.pinned_schemas import SchemasUnavailable, pin_schemas
from ottla.pipeline.plan import CAUSE, RECORD, Planner, own_modules
from ottla.pipeline.problems import BadDeclaration, suggestion
from ottla.pipeline.row_comparison import Comparison, compare_rows, describe_comparison
from ottla.pipeline.row_values import BadValue, convert_row
from ottla.pipeline.values import sink_format, sink_key_format, source_key_format
from ottla.pipeline.zones import QUARANTINE_COLUMNS, Batch, FlowWriter, topic_rows, written_columns, written_key
from ottla.spark import formats
from ottla.spark.session import build_session
from ottla.spark.spark_internals import java_errors
from ottla.spark.table_location import TableLocation
from ottla.spark.table_schema import CHANGE_TYPE
from ottla.spark.wire_format import OneSchema, read_schema_file

_DECODED = "__decoded"
_DECODED_KEY = "__decoded_key"
_SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, *java_errors())
#: for few rows compilation costs more than it saves
_SETTINGS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


class FlowFailed(OttlaError):
    """The flow has failed, as it would fail when the pipeline runs."""


class GivenRefused(OttlaError):
    """The rows of a test do not fit the flow; the text says what to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The rows of one output of a flow."""

    name: str
    schema: StructType
    rows: list[dict[str, Any]]

    def compare(self, expected: Rows, *, ordered: bool = False) -> Comparison:
        """Compare with expected rows. Raise GivenRefused if one of them has a column or value that cannot be."""
        converted = []
        for at, row in enumerate(expected, 1):
            try:
                converted.append(convert_row(row, self.schema))
            except BadValue as bad:
                raise GivenRefused(f"{self.name}: expected row {at}: {bad}") from None
        return compare_rows(converted, self.rows, ordered=ordered)


@dataclass(frozen=True, slots=True)
class FlowResult:
    """What a flow has made of the given rows."""

    output: Output
    rejected: Output
    #: records of topic sinks, by topic
    records: Mapping[str, Output] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the result; those of its table if the table has keys."""
        return self.output.rows

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        """The rejected rows: their cause, the record, and the columns of the row if it could be decoded."""
        return self.rejected.rows

    @property
    def topics(self) -> dict[str, list[dict[str, Any]]]:
        """The records of each topic that the flow writes: `_key`, `value`, and the fields of the value."""
        return {topic: output.rows for topic, output in self.records.items()}

    def find_output(self, name: str) -> Output:
        """Return an output: `rows`, `quarantine` or `topic <name>`. Raise GivenRefused if the flow does not have it."""
        outputs = {each.name: each for each in (self.output, self.rejected, *self.records.values())}
        if name not in outputs:
            raise GivenRefused(f"the flow has no output {name!r}; {suggestion(name, outputs, none='')}")
        return outputs[name]

    def assert_rows(self, expected: Rows, *, ordered: bool = False) -> None:
        """Raise AssertionError with the differences if the result has other rows, in the columns that are named."""
        _assert_equal(self.output, expected, ordered)

    def assert_quarantine(self, expected: Rows, *, ordered: bool = False) -> None:
        """Raise AssertionError with the differences if other rows were rejected."""
        _assert_equal(self.rejected, expected, ordered)

    def assert_topic(self, topic: str, expected: Rows, *, ordered: bool = False) -> None:
        """Raise AssertionError with the differences if the flow writes other records to a topic."""
        _assert_equal(self.find_output(f"topic {topic}"), expected, ordered)


def run_flow(
    pipeline: str | Declaration | Pipeline,
    flow: str,
    given: Mapping[str, Rows],
    *,
    spark: SparkSession | None = None,
    environment: str | None = None,
    parameters: Mapping[str, object] | None = None,
) -> FlowResult:
    """Run one flow of a pipeline on the given rows of its inputs.

    `pipeline` is the path of a file or project, or a pipeline that was declared in Python. Without `spark` a session is
    started, which later calls use again. Raise FlowFailed if the flow fails, GivenRefused if the rows do not fit it.
    """
    arguments = Arguments(
        environment=environment,
        parameters={name: _argument(value) for name, value in (parameters or {}).items()},
    )
    if isinstance(pipeline, str):
        pipeline = load(pipeline, arguments)
    elif isinstance(pipeline, Pipeline):
        pipeline = pipeline.declaration(read_beside(pipeline.file), find_beside(pipeline.file), arguments)
    elif environment is not None or parameters:
        raise TypeError("a Declaration has its environment and parameters already; give the path of the pipeline")
    session = spark if spark is not None else start_session(pipeline.spark)
    return FlowTester(pipeline, session).run(flow, given)


def start_session(settings: Mapping[str, str]) -> SparkSession:
    """Return the session for tests, with the settings of the pipeline that concern queries."""
    own = {name: value for name, value in settings.items() if name.startswith("spark.sql.") and name not in _SETTINGS}
    session = build_session("ottla pipeline test", "local[2]", {**_SETTINGS, **own})
    session.sparkContext.setLogLevel("OFF")
    return session


class FlowTester:
    """Runs flows of one pipeline on given rows."""

    def __init__(self, declaration: Declaration, spark: SparkSession) -> None:
        """Raise SchemasUnavailable if schemas of the pipeline cannot be fetched from its registry."""
        declaration = pin_schemas(declaration)
        sources = {name: accept_given_rows(source) for name, source in declaration.sources.items()}
        self._declaration = replace(declaration, sources=sources)
        self._spark = spark
        self._graph = Graph(self._declaration)
        #: of flows that have been inputs
        self._schemas: dict[str, StructType] = {}
        for path in own_modules(self._graph):
            spark.sparkContext.addPyFile(path)

    def run(self, name: str, given: Mapping[str, Rows]) -> FlowResult:
        """Run a flow. Raise FlowFailed, or GivenRefused if the rows do not fit it."""
        flow = self._declaration.flows.get(name)
        if flow is None:
            instead = suggestion(name, self._declaration.flows, none="the pipeline has none")
            raise GivenRefused(f"there is no flow {name!r}; {instead}")
        readable = list(dict.fromkeys(self._readable(flow)))
        for each in given:
            if each not in readable:
                raise GivenRefused(f"flow {name!r} does not read {each!r}; {suggestion(each, readable, none='')}")
        graph = self._graph_with(given)
        try:
            self._find_schemas([each for each in self._stored(graph, flow) if each not in self._schemas])
            planner = Planner(self._spark, graph, lambda each: self._read(graph, each, given.get(each, ())))
            return self._result(graph, flow, planner)
        except BadDeclaration as bad:
            raise FlowFailed(str(bad)) from None
        except _SPARK_ERRORS as error:
            raise FlowFailed(describe_failure(error)) from None
        except GivenRefused:
            raise
        except OttlaError as error:
            raise FlowFailed(str(error)) from None

    # -- inputs -------------------------------------------------------------------------------------------------------

    def _readable(self, flow: Flow) -> Iterator[str]:
        """Yield the inputs of a flow, and those of views that it reads."""
        for name in flow.input_names:
            yield name
            above = self._declaration.flows.get(name)
            if above is not None and above.kind == "view":
                yield from self._readable(above)

    def _graph_with(self, given: Mapping[str, Rows]) -> Graph:
        """Return the graph in which views that have given rows are tables, which are read and not computed."""
        views = [name for name in given if (flow := self._declaration.flows.get(name)) and flow.kind == "view"]
        if not views:
            return self._graph
        flows = dict(self._declaration.flows)
        for name in views:
            sink = TableSink(name=name, place=flows[name].place)
            flows[name] = replace(flows[name], kind="table", sinks=(sink,))
        return Graph(replace(self._declaration, flows=flows))

    def _stored(self, graph: Graph, flow: Flow) -> Iterator[str]:
        """Yield the flows that are read as tables with typed columns."""
        return (name for name in graph.stored_inputs(flow) if graph.source_of(name) is None)

    def _find_schemas(self, names: Sequence[str]) -> None:
        if names:
            self._schemas |= schemas_of(self._spark, self._graph, names)

    def _read(self, graph: Graph, name: str, rows: Rows) -> DataFrame:
        source = graph.source_of(name)
        try:
            if source is None:
                topics = [self._declaration.sources[each].topic for each in self._graph.sources_of(name)]
                return given_rows(self._spark, self._schemas[name], rows, topics[0] if topics else name)
            planner = Planner(self._spark, graph, self._no_rows)
            decoded = planner.decode(self._spark.createDataFrame([], RAW_SCHEMA), source).schema
            hidden = (*DECODED_COLUMNS, CAUSE, RECORD)
            fields = StructType([each for each in decoded if each.name not in hidden])
            encode_key = key_encoder(source_key_format(source, graph.declaration), decoded["_key"].dataType)
            return given_records(self._spark, source, planner.format_of(source), fields, rows, encode_key=encode_key)
        except BadValue as bad:
            raise GivenRefused(f"given {name}: {bad}") from None

    def _no_rows(self, name: str) -> DataFrame:
        raise AssertionError("formats are read without inputs")

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _result(self, graph: Graph, flow: Flow, planner: Planner) -> FlowResult:
        work = planner.work(flow)
        with tempfile.TemporaryDirectory(prefix="ottla-test-") as directory:
            layout = Layout(pipeline=graph.declaration.name, storage=directory, checkpoints=f"{directory}/_checkpoints")
            writer = FlowWriter(graph.declaration, layout, flow, work, with_topics=False)
            batch = Batch(f"test.{flow.name}", 0)
            rows = work.rows.persist()
            try:
                result, rejected = writer.outputs(rows, batch)
                table = self._declaration.flows[flow.target].table
                if table is not None and table.keys:
                    writer.write(rows, batch)
                    output = _stored_output(flow, work.schema, layout.table(flow.zone, table.name))
                else:
                    output = _collected("rows", result)
                records = {sink.topic: self._records(sink, result) for sink in flow.topics}
                return FlowResult(output, self._rejected(rejected, work.schema), records)
            finally:
                rows.unpersist()

    def _rejected(self, rows: DataFrame, result: StructType) -> Output:
        """Return the rejected rows, with the columns of the result beside those of the quarantine."""
        own = [each for each in result if not each.name.startswith("_") and each.name not in QUARANTINE_COLUMNS]
        if own:
            parsed = F.from_json("row", StructType(own))
            rows = rows.withColumns({each.name: parsed[each.name] for each in own})
        return _collected("quarantine", rows)

    def _records(self, sink: TopicSink, result: DataFrame) -> Output:
        """Return the records that a sink writes: key and value as bytes, and the fields that a reader would decode."""
        written = written_columns(result, sink)
        encoding = sink_format(sink, self._declaration, written, register=False)
        key_encoding = sink_key_format(sink, self._declaration, written_key(result, sink), register=False)
        rows = topic_rows(result, sink, encoding, key_encoding)
        columns = {"_key": F.col("key").cast("binary"), "value": F.col("value")}
        if key_encoding is not None:
            rows = formats.decode(rows, key_encoding, column="key", into=_DECODED_KEY, cause=f"{_DECODED_KEY}_cause")
            columns["_key"] = F.col(_DECODED_KEY)
        framed = sink.schema_id is not None
        format: formats.Format | None = None
        if sink.registry is not None:
            format = encoding
        elif sink.format == "json":
            format = formats.Json(written, framed=framed, any_id=framed)
        elif sink.format in ("avro", "protobuf"):
            schemas = OneSchema(read_schema_file(resolve(self._declaration, sink.schema_file or "")), any_id=framed)
            avro = sink.format == "avro"
            format = formats.Avro(schemas, framed) if avro else formats.Protobuf(schemas, sink.message, framed)
        if format is not None:
            rows = formats.decode(rows, format, into=_DECODED)
            columns |= {name: F.col(_DECODED)[name] for name in rows.schema[_DECODED].dataType.names}  # type: ignore[attr-defined]
        return _collected(f"topic {sink.topic}", rows.select(*(each.alias(name) for name, each in columns.items())))


def _collected(name: str, rows: DataFrame) -> Output:
    variants = [each.name for each in rows.schema if isinstance(each.dataType, VariantType)]
    for column in variants:
        rows = rows.withColumn(column, F.to_json(F.col(f"`{column}`")))
    table: pa.Table = rows.toArrow()
    return Output(name=name, schema=rows.schema, rows=table.to_pylist())


def _stored_output(flow: Flow, result: StructType, path: str) -> Output:
    schema = StructType([each for each in stored_schema(flow, result) if each.name != CHANGE_TYPE])
    location = TableLocation.at(path)
    rows = location.table().to_pyarrow_table().to_pylist() if location.exists() else []
    return Output(name="rows", schema=schema, rows=rows)


def _assert_equal(output: Output, expected: Rows, ordered: bool) -> None:
    lines = describe_comparison(output.name, output.compare(expected, ordered=ordered))
    if lines:
        raise AssertionError("\n".join(lines))


def _argument(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- declared tests ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """The outcome of one declared test."""

    __test__ = False

    test: FlowTest
    seconds: float
    #: by output; empty if the flow failed
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    #: why the test failed apart from its rows
    error: str | None = None

    @property
    def passed(self) -> bool:
        return self.error is None and all(each.is_equal for each in self.comparisons.values())

    @property
    def lines(self) -> list[str]:
        """What is wrong, for people; empty if the test has passed."""
        if self.error is not None:
            return self.error.splitlines()
        return [line for name, each in self.comparisons.items() for line in describe_comparison(name, each)]


def run_tests(
    tests: Sequence[FlowTest],
    declare: Callable[[Mapping[str, str]], Declaration],
    spark: SparkSession,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[TestResult]:
    """Run tests and yield their results as they come. `declare` loads the pipeline with values of parameters."""
    testers: dict[frozenset[tuple[str, str]], FlowTester] = {}
    for test in tests:
        began = clock()
        try:
            key = frozenset(test.parameters.items())
            if key not in testers:
                testers[key] = FlowTester(declare(test.parameters), spark)
            comparisons, error = _run_test(testers[key], test)
        except (BadDeclaration, SchemasUnavailable) as bad:
            comparisons, error = {}, str(bad)
        yield TestResult(test=test, seconds=clock() - began, comparisons=comparisons, error=error)


def _run_test(tester: FlowTester, test: FlowTest) -> tuple[dict[str, Comparison], str | None]:
    try:
        result = tester.run(test.flow, test.given)
        if test.failure is not None:
            return {}, f"the flow did not fail; expected was a failure with {test.failure!r}"
        expected = [(result.find_output(each.name), each.rows) for each in test.expected]
        return {output.name: output.compare(rows, ordered=test.ordered) for output, rows in expected}, None
    except FlowFailed as error:
        if test.failure is not None and test.failure in str(error):
            return {}, None
        wanted = f"; expected was a failure with {test.failure!r}" if test.failure is not None else ""
        return {}, f"the flow failed: {error}{wanted}"
    except GivenRefused as error:
        return {}, str(error)
