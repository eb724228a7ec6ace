"""Every use of a part of Spark that PySpark does not make public; tests/test_tidy.py allows none in another file.

Names that begin with an underscore, classes of Spark's JVM, local properties of jobs, names of loggers and the modules
that Spark's Python processes run may change with any minor release. For each use here

* `tests/spark/test_spark_internals.py` or `tests/unit/spark/test_spark_internals_unit.py` has a test,
* a comment "Seen with" names the versions of Spark with which that test has passed (`make test` runs the newest minor,
  `make campaign NAME=spark-previous` the one before),
* a comment "If missing" says what happens with a Spark that has it no more: `SparkInternalMissing` where results would
  be wrong without it, less speed or a later error message where they would be right.

PySpark is imported inside of functions: this module is imported before it is known whether PySpark is installed.
"""

from __future__ import annotations

import hmac
import importlib
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from ottla.model.errors import OttlaError
from ottla.model.extras import SPARK, install_command

if TYPE_CHECKING:
    import socket

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger("ottla.spark")


class SparkInternalMissing(OttlaError):
    """This version of Spark lacks a private part that Ottla needs; the text names both."""


@contextmanager
def _needs(what: str) -> Iterator[None]:
    """Raise SparkInternalMissing if the block uses a class, method or name that Spark does not have."""
    try:
        yield
    except (AttributeError, ImportError, TypeError) as error:
        # Py4J takes an unknown class for a package, and a package cannot be called: a TypeError.
        raise SparkInternalMissing(_missing(what, error)) from error
    except java_errors() as error:
        if "does not exist" not in str(error):
            raise
        raise SparkInternalMissing(_missing(what, error)) from error


def _missing(what: str, error: BaseException) -> str:
    from pyspark import __version__

    cause = str(error).strip().splitlines()[0]
    return (
        f"Spark {__version__} does not offer {what} as expected ({cause}); "
        "install a version of pyspark that this version of Ottla was tested with, in a checkout: "
        f"{install_command(SPARK)}"
    )


def java_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of calls into Spark's JVM that PySpark does not turn into its own, such as a dead JVM."""
    # Seen with 4.2.1 and 4.3.0. If missing: ImportError at the first import of ottla.pipeline.failures.
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    return (Py4JError,)


# -- starting a session -----------------------------------------------------------------------------------------------

#: A checkpoint file manager for local disks: the default one forks some dozens of processes for each micro-batch.
#: Seen with 4.2.1 and 4.3.0. If missing: every streaming query fails at its start with a ClassNotFoundException.
LOCAL_CHECKPOINT_MANAGER: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
#: what Spark puts into the environment of a source's workers when a stream of that source starts
STREAM_VARIABLES: Final = (
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_LOCAL_DIRS",
    "SPARK_PYTHON_RUNTIME",
)
_RUNTIME, _WORKER = "SPARK_PYTHON_RUNTIME", "PYTHON_WORKER"


def is_submitted(environ: Mapping[str, str]) -> bool:
    """Return whether spark-submit has started this process and the JVM, with the master of its command line."""
    # Seen with 4.2.1 and 4.3.0. If missing: the master of spark-submit loses against the default local[*].
    return "PYSPARK_GATEWAY_PORT" in environ


def complete_environments(spark: SparkSession, sources: Iterable[str], more: Mapping[str, str]) -> None:
    """Give the workers of the sources their final environment, with `more` variables, before a stream starts.

    All streams of a source share this environment, a hash map without a lock, and each stream puts the same variables
    into it when it starts. Two that start at the same moment can leave one in it twice, and then no task of that source
    can be sent as long as the session lives ("Illegal size 5 of collection, expected 6"). Putting a variable that is
    there already changes nothing.

    In a local session, functions such as those of mapInArrow get the same environment. Spark has one pool of workers
    for each environment, so that reading and writing share their workers.
    """
    # Seen with 4.2.1 and 4.3.0. If missing: a warning; streams that start at the same moment may fail.
    try:
        with _needs("the environments of Python data sources"):
            context = spark.sparkContext
            if str(context.master).startswith("local"):
                more = {**context.environment, _RUNTIME: _WORKER, **more}
                context.environment.update(more)
            for source in sources:
                environment = worker_environment(spark, source)
                if environment is not None:
                    for variable in STREAM_VARIABLES:
                        # The first stream puts its own values; until then these suffice for workers that plan.
                        environment.putIfAbsent(variable, {_RUNTIME: _WORKER}.get(variable, "0"))
                    for name, value in more.items():
                        environment.put(name, value)
    except SparkInternalMissing as missing:
        log.warning("streams of one source that start at the same moment may fail: %s", missing)


def worker_environment(spark: SparkSession, source: str) -> Any:
    """Return the variables of the workers of a Python source, as a Java map; None if Spark does not find the source."""
    session: Any = spark._jsparkSession
    sources = session.sessionState().dataSourceManager()
    return sources.lookupDataSource(source).dataSourceCls().envVars() if sources.dataSourceExists(source) else None


def is_connect(session: object) -> bool:
    """Return whether a session is one of Spark Connect."""
    # Seen with 4.2.1 and 4.3.0. If missing: an error of PySpark about an attribute that Spark Connect does not have.
    return type(session).__module__.startswith("pyspark.sql.connect.")


class FileSystemMissing(OttlaError):
    """Spark has no file system for the scheme of an address; the text says what to add."""


def check_file_system(spark: SparkSession, uri: str) -> None:
    """Raise FileSystemMissing if Spark cannot open addresses such as this one, before a query fails with a Java trace.

    Local paths pass. The class of the file system is looked for, no connection is made.
    """
    # Seen with 4.2.1 and 4.3.0. If missing: nothing is checked; the query fails when it starts.
    scheme, colon, _ = uri.partition("://")
    if not colon:
        return
    try:
        with _needs("Hadoop's FileSystem"):
            jvm: Any = spark._jvm
            hadoop = spark._jsparkSession.sessionState().newHadoopConf()
            version = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
            jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, hadoop)
    except SparkInternalMissing as missing:
        log.warning("whether Spark can open %s is not checked: %s", uri, missing)
    except java_errors() as error:
        modules = {"s3": "hadoop-aws", "s3a": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
        module = modules.get(scheme)
        package = f"org.apache.hadoop:{module}:{version}" if module else "the package of its file system"
        raise FileSystemMissing(
            f"Spark has no file system for {scheme}:// ({uri}): add {package} to spark.jars.packages, or put the jars "
            "into spark.jars; or keep checkpoints in a directory that is mounted on all machines"
        ) from error


def activate_session(spark: SparkSession) -> None:
    """Make the session that of the calling thread: Spark finds Python data sources only in threads that have one."""
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing.
    with _needs("SparkSession.setActiveSession"):
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(spark._jsparkSession)


# -- the running micro-batch ------------------------------------------------------------------------------------------

#: local properties that Spark sets on the driver's thread of a streaming query and passes on to its tasks
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class StreamTask:
    """The micro-batch to which a task belongs."""

    #: the same in every run from one checkpoint
    query_id: str = ""
    #: another one for each start of the query
    run_id: str = ""
    #: None outside of streams
    batch_id: int | None = None


def stream_task(*, required: bool = False) -> StreamTask:
    """Return the micro-batch of the task that calls; one without values in a batch query and outside of tasks.

    Raise SparkInternalMissing if it is `required` and the task has none.
    """
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing in tasks that write a stream.
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return StreamTask()
    query_id, run_id, batch_id = map(context.getLocalProperty, (_QUERY_ID, _RUN_ID, _BATCH_ID))
    if required and not (query_id and run_id and batch_id):
        raise SparkInternalMissing(_missing("the number of the micro-batch to its tasks", KeyError(_BATCH_ID)))
    return StreamTask(query_id or "", run_id or "", int(batch_id) if batch_id else None)


def query_of_batch(spark: SparkSession) -> str:
    """Return the id of the query whose foreachBatch function calls. It is the same in every run from one checkpoint."""
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing.
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if not query_id:
        raise SparkInternalMissing(_missing("the id of a query to foreachBatch", KeyError(_QUERY_ID)))
    return str(query_id)


def planned_batch(spark: SparkSession, query_id: str) -> list[object]:
    """Return what Spark has planned for the running micro-batch of a query, as JSON values.

    These are the start and end offset of every stream, the watermark and the time of the batch. They are equal in every
    attempt. They come from the plan that is executed, not from the checkpoint, which another driver may have changed
    since. Call it inside of foreachBatch. Streams of files, which use an older interface of Spark, are left out.
    """
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing, and the batch is not written.
    with _needs("the plan of a running micro-batch"):
        session: Any = spark._jsparkSession
        # The rows of foreachBatch belong to a copy of the session, whose `streams` does not know the query.
        jvm: Any = spark._jvm
        queries = session.sharedState().activeStreamingQueries()
        execution = queries.get(jvm.java.util.UUID.fromString(query_id)).lastExecution()
        metadata = execution.offsetSeqMetadata()
        offsets = [[_text(scan.startOffset()), _text(scan.endOffset())] for scan in _stream_scans(execution.logical())]
        return [offsets, metadata.batchWatermarkMs(), metadata.batchTimestampMs()]


def _stream_scans(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a logical plan that read a range of a stream, in the order of the plan."""
    if _kind(plan) == "StreamingDataSourceV2ScanRelation":
        yield plan
    for child in _each(plan.children()):
        yield from _stream_scans(child)


def _text(offset: Any) -> str | None:
    return str(offset.get().json()) if offset.isDefined() else None


# -- logical plans ----------------------------------------------------------------------------------------------------

#: the key in the metadata of a column that has a watermark
_WATERMARK: Final = "spark.watermarkDelayMs"


@dataclass(frozen=True, slots=True)
class StatefulInput:
    """The rows that enter an operator which drops late rows."""

    rows: DataFrame
    #: the column that the operator compares with the watermark
    column: str
    #: whether this column is a window, whose end is compared
    is_window: bool


def stateful_inputs(rows: DataFrame) -> list[StatefulInput]:
    """Return the inputs of the lowest operators of a query that drop late rows, in the order of the plan."""
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing; only flows with `late_rows` need it.
    from pyspark.sql import DataFrame

    with _needs("the logical plan of a query"):
        spark = rows.sparkSession
        jvm: Any = spark._jvm
        session, datasets = spark._jsparkSession, jvm.org.apache.spark.sql.classic.Dataset
        return [
            StatefulInput(
                DataFrame(datasets.ofRows(session, plan), spark),
                str(column.name()),
                bool(column.dataType().typeName() == "struct"),
            )
            for plan, column in _entrances(_analyzed(rows))
        ]


def count_streams(rows: DataFrame) -> int:
    """Return how many streams one batch of these rows reads; a stream that is read twice counts twice."""
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing; only flows with `late_rows` need it.
    with _needs("the logical plan of a query"):
        return _leaves(_analyzed(rows))


def check_streaming(rows: DataFrame, *, updates: bool) -> None:
    """Raise AnalysisException if Spark would refuse to start a streaming query for these rows.

    Spark itself checks that when a query starts. `updates` selects the output mode `update` instead of `append`.
    """
    # Seen with 4.2.1 and 4.3.0. If missing: a warning; what no stream can do is reported when the query starts.
    try:
        with _needs("UnsupportedOperationChecker"):
            jvm: Any = rows.sparkSession._jvm
            modes = jvm.org.apache.spark.sql.streaming.OutputMode
            mode = modes.Update() if updates else modes.Append()
            checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
            checker.checkForStreaming(_analyzed(rows), mode)
    except SparkInternalMissing as missing:
        log.warning("operations that a stream does not support are reported only when it starts: %s", missing)


def _analyzed(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _entrances(plan: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the inputs of the lowest operators that drop late rows, with the column that decides."""
    found = False
    for child in _each(plan.children()):
        for entrance in _entrances(child):
            found = True
            yield entrance
    if found or not plan.isStreaming():
        return
    kind = _kind(plan)
    if kind == "Aggregate":
        columns = [one for one in _each(plan.groupingExpressions()) if _kind(one) == "AttributeReference"]
        yield from ((plan.child(), column) for column in _marked(columns))
    elif kind in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct"):
        yield from ((plan.child(), column) for column in _marked(_each(plan.child().output())))
    elif kind == "Join" and all(side.isStreaming() for side in _each(plan.children())):
        for side in _each(plan.children()):
            yield from ((side, column) for column in _marked(_each(side.output())))


def _marked(columns: Iterable[Any]) -> list[Any]:
    """Return the first column that has a watermark, which is the one that Spark compares."""
    return [one for one in columns if one.metadata().contains(_WATERMARK)][:1]


def _leaves(plan: Any) -> int:
    children = list(_each(plan.children()))
    return sum(map(_leaves, children)) if children else int(plan.isStreaming())


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _each(sequence: Any) -> Iterator[Any]:
    """Yield the members of a Scala sequence."""
    return (sequence.apply(at) for at in range(sequence.size()))


# -- types ------------------------------------------------------------------------------------------------------------


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return the Arrow schema by which Spark exchanges rows of this schema with Python; timestamps are in UTC."""
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing.
    with _needs("to_arrow_schema"):
        from pyspark.sql.pandas.types import to_arrow_schema

        return to_arrow_schema(schema, timezone="UTC")


def spark_type_of(arrow_type: pa.DataType) -> DataType:
    """Return Spark's type for a type of Arrow. Raise PySparkTypeError if there is none."""
    # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing.
    with _needs("from_arrow_type"):
        from pyspark.sql.pandas.types import from_arrow_type

    return from_arrow_type(arrow_type)


# -- progress and log lines -------------------------------------------------------------------------------------------

#: how the progress of a query describes sources in Python, without the name of their format, and Spark's own connector.
#: Seen with 4.2.1 and 4.3.0. If missing: no progress is published.
TOPIC_SOURCES: Final = ("PythonMicroBatchStream", "KafkaV2")
#: PySpark prints each error of an analysis as JSON with these loggers, besides raising it
_ERROR_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_RATES = ("inputRowsPerSecond", "processedRowsPerSecond")
_OFFSETS = ("startOffset", "endOffset", "latestOffset")


@contextmanager
def without_error_logs() -> Iterator[None]:
    """Let PySpark raise the errors of queries without printing them, too."""
    # Seen with 4.2.1 and 4.3.0. If missing: each error is printed once more, as JSON.
    before = {name: logging.getLogger(name).disabled for name in _ERROR_LOGGERS}
    for name in _ERROR_LOGGERS:
        logging.getLogger(name).disabled = True
    try:
        yield
    finally:
        for name, disabled in before.items():
            logging.getLogger(name).disabled = disabled


class JsonProgress:
    """To be put before StreamingQueryListener among the bases of a listener: Java sends a progress as one text."""

    @property
    def _jlistener(self) -> Any:
        # Seen with 4.2.1 and 4.3.0. If missing: SparkInternalMissing at `addListener`.
        # One object for all of this listener's life: Spark knows the listener by it when it is removed.
        if not hasattr(self, "_in_java"):
            with _needs("PythonStreamingQueryListenerWrapper"):
                from pyspark import SparkContext
                from pyspark.sql.streaming.listener import JStreamingQueryListener, QueryProgressEvent

                class Receiver(JStreamingQueryListener):
                    """What Java calls."""

                    def onQueryProgress(self, jevent: Any) -> None:
                        self.pylistener.onQueryProgress(QueryProgressEvent(read_progress(jevent.progress().json())))

                jvm: Any = SparkContext._jvm
                self._in_java = jvm.PythonStreamingQueryListenerWrapper(Receiver(self))  # type: ignore[arg-type]
        return self._in_java


def read_progress(text: str) -> StreamingQueryProgress:
    """Return the progress of a query from Spark's JSON, which leaves out values that are missing or no number."""
    # Seen with 4.2.1 and 4.3.0. If missing: an AttributeError in the listener, and no progress is shown.
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    document = json.loads(text)
    for part in (document, *document["sources"]):
        for name in _RATES:
            part.setdefault(name, 0.0)
    document.setdefault("name", None)
    progress = StreamingQueryProgress.fromJson(document)
    for source in progress.sources:
        for name in _OFFSETS:
            if source[name] == "null":
                source[name] = None
    return progress


# -- the process that runs a stream reader ----------------------------------------------------------------------------

#: the main module of the process in which Spark calls a stream reader
STREAM_RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"


class RowsAhead:
    """A mixin for stream readers that can give Spark the rows of a batch together with its partitions.

    Spark asks for rows only if the reader is the wrapper around its simple readers, and it asks when `partitions` has
    returned. That wrapper can do less (it neither limits batches nor reports the latest offset), so a reader passes for
    one between these two calls and at no other time.
    """

    # Seen with 4.2.1 and 4.3.0. If missing: nothing is offered, and a task reads the partition, as it reads large ones.

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[pa.RecordBatch] | None = None

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self) if self._rows is None else _simple_reader_wrapper() or type(self)

    def offer(self, rows: list[pa.RecordBatch] | None) -> None:
        """Offer the rows of the next batch to Spark; with None, or if Spark cannot take them, a task reads them."""
        self._rows = rows if _simple_reader_wrapper() is not None else None

    def getCache(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        """Called by Spark: return the rows that were offered."""
        rows, self._rows = self._rows, None
        assert rows is not None, "asked for rows that were not offered"
        return iter(rows)


def _simple_reader_wrapper() -> type | None:
    try:
        from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
    except ImportError:
        return None
    return _SimpleStreamReaderWrapper


def write_offsets_with(dump: Callable[[Any], str]) -> None:
    """Let the process that calls a stream reader write offsets with `dump`. Call it in that process.

    Spark compares offsets as text: with other spaces, a checkpoint of Spark's own connector begins with an empty batch.
    """
    # Seen with 4.2.1 and 4.3.0. If missing: that one empty batch.
    for name in ("__main__", STREAM_RUNNER):
        runner = sys.modules.get(name)
        spec = getattr(runner, "__spec__", None)
        if (
            runner is not None
            and spec is not None
            and spec.name == STREAM_RUNNER
            and getattr(runner, "json", None) is json
        ):
            vars(runner)["json"] = SimpleNamespace(dumps=dump, loads=json.loads)


#: The modules of the processes that create a Python data source and plan how it is read and written. Those that commit
#: are left out: Spark kills them when a query is stopped, and a thread would continue.
PLANNERS: Final = (
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
)


#: the module of the workers that run tasks
TASK_WORKER: Final = "pyspark.worker"


def run_worker_daemon() -> None:
    """Do the work of Spark's process that forks Python workers."""
    # Seen with 4.2.1 and 4.3.0. If missing: no Python worker starts; spark.python.daemon.module=pyspark.daemon helps.
    from pyspark.daemon import manager

    manager()


def load_stream_runner() -> None:
    """Import what `run_stream` and `run_planner` need."""
    # Seen with 4.2.1 and 4.3.0. If missing: the server of streams ends, and each stream gets a process of its own.
    import pyspark.serializers
    import pyspark.util  # noqa: F401

    for module in (STREAM_RUNNER, *PLANNERS):
        importlib.import_module(module)


def run_planner(connection: socket.socket, module: str, secret: str) -> None:
    """Do the work of one process that `pyspark.daemon` would have forked for this module, until Spark ends it."""
    # Seen with 4.2.1 and 4.3.0. If missing: the query does not start, with an error of Spark about a Python worker.
    from pyspark.serializers import UTF8Deserializer, write_int, write_with_length

    planner: Any = importlib.import_module(module)
    requests, answers = connection.makefile("rb"), connection.makefile("wb")
    with suppress(SystemExit, OSError, EOFError), connection, requests, answers:
        write_int(os.getpid(), answers)  # type: ignore[no-untyped-call]
        answers.flush()
        is_spark = hmac.compare_digest(str(UTF8Deserializer().loads(requests)), secret)  # type: ignore[no-untyped-call]
        write_with_length(b"ok" if is_spark else b"err", answers)  # type: ignore[no-untyped-call]
        answers.flush()
        # Spark keeps the connection for its next request.
        while is_spark and requests.peek(1):
            try:
                planner.main(requests, answers)
            finally:
                answers.flush()


def run_stream(address: str | int, secret: str | None, connected: Callable[[], None]) -> None:
    """Do the work of the process that Spark starts for a stream of a Python data source, until Spark ends it.

    Spark waits at `address`, a port or the path of a socket. `connected` is called when Spark was reached.
    """
    # Seen with 4.2.1 and 4.3.0. If missing: an exception before `connected` is called; the process works itself.
    from pyspark.serializers import write_int
    from pyspark.sql.streaming import python_streaming_source_runner
    from pyspark.util import local_connect_and_auth

    stream, connection = local_connect_and_auth(address, secret)
    # The runner ends its process when its stream is stopped, and Spark closes the connection then.
    with suppress(SystemExit, OSError), connection, stream:
        connection.settimeout(None)
        write_int(os.getpid(), stream)  # type: ignore[no-untyped-call]
        stream.flush()
        connected()
        python_streaming_source_runner.main(stream, stream)
