"""Write one batch of a flow: accepted rows to its table and topics, rejected rows to quarantine, late rows aside.

Each output is written once per batch, however often the batch is repeated: its name, the number of the batch and its
digest are part of the commit. The name begins with the id of the query, which belongs to the checkpoint, so that
batches of a flow with a new checkpoint have other names. The digest covers everything that the batch was made of: the
planned offsets, the versions of the tables that it joins, and the flow itself. All outputs of a batch therefore come
from the same input and the same computation: an output that has the batch with another digest refuses it. Before the
first batch of a run is written, all outputs are checked.

The order of the outputs (the table, topics, rejected rows) matters only to readers. The first write also counts the
rows, so that a batch without rejected rows needs one job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, StructType

from ottla.pipeline.connecting import open_cluster
from ottla.pipeline.declaration import LATE as LATE_ROWS
from ottla.pipeline.declaration import QUARANTINE, Declaration, Flow, PartitionColumn, Sink, TableSink, TopicSink
from ottla.pipeline.graph import sequence_of
from ottla.pipeline.late import AT, ROW
from ottla.pipeline.layout import Layout, partition_name
from ottla.pipeline.lineage import LINEAGE, OFFSET, PARTITION, RECORD_COLUMNS, TIMESTAMP, TOPIC
from ottla.pipeline.merging import KeyedTable, merge_rows
from ottla.pipeline.plan import ASIDE, CAUSE, LATE, RECORD, VIOLATED, Work, accepted, quoted
from ottla.pipeline.source_options import cluster_options
from ottla.pipeline.values import sink_format, sink_key_format
from ottla.spark import formats
from ottla.spark.batch_write import write_batch
from ottla.spark.commit import CommitProtocol
from ottla.spark.lake import TableDataSource
from ottla.spark.sink import forget_protocol
from ottla.spark.source import OttlaDataSource
from ottla.spark.table_commit import TableBatch, has_batch
from ottla.spark.table_location import TableLocation

TABLE_FORMAT = "ottla-table"
TOPIC_FORMAT = "ottla"
#: of every quarantine table, in order; `row` is JSON, so that no change of a flow's columns touches it
QUARANTINE_COLUMNS = {
    "_cause": "STRING",
    TOPIC: "STRING",
    PARTITION: "INT",
    OFFSET: "BIGINT",
    TIMESTAMP: "TIMESTAMP",
    LINEAGE: "ARRAY<STRUCT<topic: STRING, partition: INT, first: BIGINT, last: BIGINT>>",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "row": "STRING",
}
_HEADER = "struct<key:string,value:binary>"


@dataclass(slots=True)
class Counts:
    """Counts of the rows of a batch, by their output."""

    rows: int = 0
    quarantined: int = 0
    dropped: int = 0
    late: int = 0
    #: by the names of expectations
    violations: dict[str, int] = field(default_factory=dict)

    def add(self, other: Counts) -> None:
        self.rows += other.rows
        self.quarantined += other.quarantined
        self.dropped += other.dropped
        self.late += other.late
        for name, count in other.violations.items():
            self.violations[name] = self.violations.get(name, 0) + count


@dataclass(frozen=True, slots=True)
class Batch:
    """The writer's name, the number of the batch, the watermark that it began with, and a digest of its input."""

    writer: str
    number: int
    watermark: datetime | None = None
    #: None in a backfill, which is not continued after a crash
    digest: str | None = None


class FlowWriter:
    """Writes the batches of one flow.

    Without topics only tables are written, because records of a topic cannot be replaced. With `replace`, a batch
    replaces the whole table.
    """

    def __init__(
        self,
        declaration: Declaration,
        layout: Layout,
        flow: Flow,
        work: Work,
        *,
        with_topics: bool = True,
        replace: bool = False,
    ) -> None:
        self._declaration = declaration
        self._layout = layout
        self._flow = flow
        self._columns = work.columns
        self._late_columns = work.late_columns
        self._late_time = work.late_time or ""
        self._with_topics = with_topics
        self._replace = replace
        self._sinks = self._find_sinks()
        #: whether no output can have the next batch from an earlier run
        self._outputs_checked = replace
        #: rows are needed more than once, or must not be computed twice
        keyed = any(isinstance(sink, TableSink) and sink.keys for sink in self._sinks)
        several = len(self._sinks) > 1 or flow.quarantine is not None or bool(work.late_time)
        self._keep = work.stateful or keyed or several

    def write(self, rows: DataFrame, batch: Batch) -> Counts:
        """Write a batch to all outputs. Raise BatchMismatch or CheckpointMismatch if one has it from other input."""
        if not self._outputs_checked:
            self.check_outputs(batch)
            self._outputs_checked = True
        if self._keep:
            rows = rows.persist()
        try:
            return self._write(rows, batch)
        finally:
            if self._keep:
                rows.unpersist()

    def check_outputs(self, batch: Batch) -> None:
        """Raise BatchMismatch or CheckpointMismatch if an output has this batch from other input, or a later batch.

        An output without rows has no commit, so it would not notice. Without this check a row could be in quarantine,
        written before a crash, and in the table, written after an edit of the flow.
        """
        for table, name in self._tables(batch):
            location = TableLocation.at(table)
            if location.exists():
                has_batch(location.table(), TableBatch(name, batch.number, batch.digest))
        for name in self._topic_writers(batch) if self._with_topics else ():
            # The check fences all producers of the name. An earlier run of the flow in this process may have left one.
            forget_protocol(name)
            protocol = CommitProtocol(partial(open_cluster, self._declaration), name)
            protocol.check(batch.number, batch.digest)

    def _tables(self, batch: Batch) -> Iterator[tuple[str, str]]:
        """Yield the path of every output that is a Delta table, and the name of its writer."""
        for sink in self._sinks:
            if isinstance(sink, TableSink) and sink.format == "delta":
                yield self._layout.table(self._flow.zone, sink.name), f"{batch.writer}.table"
        for directory, side in self._flow.side_outputs:
            if side.table:
                yield self._layout.table(directory, side.table), f"{batch.writer}.{directory}"

    def _topic_writers(self, batch: Batch) -> Iterator[str]:
        """Yield the name of the writer of every output that is a topic written exactly once."""
        for sink in self._sinks:
            if isinstance(sink, TopicSink) and sink.delivery == "exactly-once":
                yield f"{batch.writer}.topic-{sink.topic}"
        for directory, side in self._flow.side_outputs:
            if not side.table:
                yield f"{batch.writer}.{directory}"

    def _find_sinks(self) -> tuple[Sink, ...]:
        """Return the table, if there is one, then the topics."""
        flow = self._flow
        if flow.append_to is None:
            return tuple(sorted(flow.sinks, key=lambda sink: isinstance(sink, TopicSink)))
        table = self._declaration.flows[flow.target].table
        assert table is not None, "checks refuse to append to what has no table"
        return (table,)

    def outputs(self, rows: DataFrame, batch: Batch) -> tuple[DataFrame, DataFrame]:
        """Return the rows of the result and those for quarantine, without writing them."""
        is_good, is_refused, _ = self._conditions(batch)
        return rows.where(is_good).select(*map(quoted, self._columns)), self._rejected(rows.where(is_refused))

    def _write(self, rows: DataFrame, batch: Batch) -> Counts:
        seen = Observation()
        is_good, is_refused, is_late = self._conditions(batch)
        watched = rows.observe(seen, *self._measures(is_good, is_refused, is_late))
        result = watched.where(is_good).select(*map(quoted, self._columns))
        for at, sink in enumerate(self._sinks):
            if isinstance(sink, TableSink):
                self._write_table(result, sink, batch)
            elif self._with_topics:
                self._write_topic(result, sink, batch)
            elif at == 0:
                # The counts come with the first write, also when nothing is to be written.
                result.write.format("noop").mode("append").save()
            result = rows.where(is_good).select(*map(quoted, self._columns))
        counts = self._counts(seen)
        if counts.quarantined or (self._replace and self._flow.quarantine is not None):
            self._write_side(QUARANTINE, self._rejected(rows.where(is_refused)), batch)
        if counts.late:
            self._write_side(LATE_ROWS, self._late(rows.where(is_late)), batch)
        return counts

    def _conditions(self, batch: Batch) -> tuple[Column, Column, Column]:
        """Return the conditions for rows of the result, refused rows and late rows. No row meets two of them."""
        fine, nothing = accepted(self._flow), F.lit(False)
        aside = F.col(ASIDE)
        is_good, is_refused = fine & ~F.coalesce(aside, nothing), ~fine & F.coalesce(aside, F.lit(True))
        if self._late_columns:
            is_row = F.col(LATE).isNull()
            is_good, is_refused = is_good & is_row, is_refused & is_row
        if not self._late_time or batch.watermark is None:
            return is_good, is_refused, nothing
        if self._late_columns:
            return is_good, is_refused, _is_behind(F.col(LATE)[AT], batch)
        # The operator that drops duplicates knows a watermark that is one batch older than this.
        behind = _is_behind(F.col(quoted(self._late_time)), batch)
        return is_good & ~behind, is_refused, fine & behind & F.coalesce(aside, F.lit(True))

    # -- counting -----------------------------------------------------------------------------------------------------

    def _measures(self, is_good: Column, is_refused: Column, is_late: Column) -> list[Column]:
        measures = [
            F.count_if(is_good).alias("rows"),
            F.count_if(is_refused & self._is_rejected()).alias("quarantined"),
            F.count_if(is_refused & ~self._is_rejected()).alias("dropped"),
            F.count_if(is_late).alias("late"),
        ]
        for number, one in enumerate(self._flow.expectations):
            counted = (is_good | is_refused) & F.array_contains(VIOLATED, one.name)
            measures.append(F.count_if(counted).alias(f"violated_{number}"))
        return measures

    def _counts(self, seen: Observation) -> Counts:
        found = seen.get
        names = [one.name for one in self._flow.expectations]
        violations = {name: int(found[f"violated_{number}"]) for number, name in enumerate(names)}
        return Counts(
            rows=int(found["rows"]),
            quarantined=int(found["quarantined"]),
            dropped=int(found["dropped"]),
            late=int(found["late"]),
            violations={name: count for name, count in violations.items() if count},
        )

    # -- late and rejected --------------------------------------------------------------------------------------------

    def _late(self, rows: DataFrame) -> DataFrame:
        if not self._late_columns:
            return rows.select(*map(quoted, self._columns))
        return rows.select(*(F.col(LATE)[ROW][name].alias(name) for name in self._late_columns))

    def _is_rejected(self) -> Column:
        names = [F.lit(one.name) for one in self._flow.expectations if one.on_violation == "quarantine"]
        undecoded = F.col(CAUSE).isNotNull()
        return undecoded | F.arrays_overlap(F.col(VIOLATED), F.array(*names)) if names else undecoded

    def _rejected(self, rows: DataFrame) -> DataFrame:
        """Return rejected rows in the columns of every quarantine; columns that a row does not have are null."""
        names = [F.lit(one.name) for one in self._flow.expectations if one.on_violation == "quarantine"]
        violated = F.array_intersect(F.col(VIOLATED), F.array(*names)) if names else F.col(VIOLATED)
        own = [name for name in self._columns if not name.startswith("_")]
        given = {
            "_cause": F.coalesce(F.col(CAUSE), F.array_join(violated, "; ")),
            "row": F.when(F.col(CAUSE).isNull(), F.to_json(F.struct(*map(quoted, own)))),
        }
        if RECORD in rows.columns:
            given |= {name: F.col(RECORD)[name] for name in ("key", "value", "headers")}
        elif "_key" in self._columns:
            given["key"] = _bytes_of_key("_key", rows)
        given |= {name: F.col(name) for name in (*RECORD_COLUMNS, TIMESTAMP, LINEAGE) if name in self._columns}
        return rows.where(self._is_rejected()).select(
            *(given.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in QUARANTINE_COLUMNS.items())
        )

    # -- outputs ------------------------------------------------------------------------------------------------------

    def _write_table(self, rows: DataFrame, sink: TableSink, batch: Batch) -> None:
        path = self._layout.table(self._flow.zone, sink.name)
        partitioned = with_partitions(rows, sink.partition_by)
        partition_by = [partition_name(one) for one in sink.partition_by]
        if sink.keys:
            sequence = sequence_of(sink, partitioned.columns, emits_changes=self._flow.emit == "changes")
            table = KeyedTable(location=TableLocation.at(path), sink=sink, sequence=sequence)
            merge_rows(partitioned, table, TableBatch(f"{batch.writer}.table", batch.number, batch.digest))
            return
        options = {"partitionBy": ",".join(partition_by), "tableFormat": sink.format}
        name = f"{batch.writer}.table" if sink.format == "delta" else None
        self._save(partitioned, path, name, batch, options, merge_schema=sink.merge_schema)

    def _write_topic(self, rows: DataFrame, sink: TopicSink, batch: Batch) -> None:
        name = f"{batch.writer}.topic-{sink.topic}"
        format = sink_format(sink, self._declaration, written_columns(rows, sink))
        key_format = None
        if sink.key_registry is not None:
            key_format = sink_key_format(sink, self._declaration, written_key(rows, sink))
        self._to_topic(topic_rows(rows, sink, format, key_format), sink.topic, name, batch, delivery=sink.delivery)

    def _write_side(self, directory: str, rows: DataFrame, batch: Batch) -> None:
        side = dict(self._flow.side_outputs)[directory]
        name = f"{batch.writer}.{directory}"
        if side.table:
            self._save(rows, self._layout.table(directory, side.table), name, batch, {}, merge_schema=True)
        elif self._with_topics:
            self._to_topic(side_rows(rows), side.topic or "", name, batch)

    def _save(
        self, rows: DataFrame, path: str, name: str | None, batch: Batch, more: Mapping[str, str], *, merge_schema: bool
    ) -> None:
        """Write to a table: once per batch if there is a name; in place of all its rows if the flow replaces them."""
        options = {"path": path, **more}
        if self._replace:
            options["overwriteSchema"] = "true"
        else:
            options["mergeSchema"] = str(merge_schema).lower()
            options |= _identity(name, batch) if name is not None else {}
        write_batch(rows, TableDataSource, options, overwrite=self._replace)

    def _to_topic(self, rows: DataFrame, topic: str, name: str, batch: Batch, delivery: str = "exactly-once") -> None:
        options = {
            **cluster_options(self._declaration),
            **_identity(name, batch),
            "topic": topic,
            "ottla.delivery": delivery,
            "stagingDir": f"{self._layout.checkpoint(self._flow)}/ottla-staging",
        }
        write_batch(rows, OttlaDataSource, options)


def _is_behind(time: Column, batch: Batch) -> Column:
    """Return whether a row is late: as in Spark, a row at the watermark is late, and one without a time is not."""
    return F.coalesce(time <= F.lit(batch.watermark), F.lit(False))


def _identity(name: str, batch: Batch) -> dict[str, str]:
    """Return the options by which an output knows a batch that it has already."""
    digest = {} if batch.digest is None else {"ottla.batch.digest": batch.digest}
    return {"ottla.sink.name": name, "ottla.batch.id": str(batch.number), **digest}


def with_partitions(rows: DataFrame, partition_by: tuple[PartitionColumn, ...]) -> DataFrame:
    """Return rows with the columns by which their table is partitioned."""
    for one in partition_by:
        if one.part is not None:
            rows = rows.withColumn(partition_name(one), partition_value(one))
    return rows


def partition_value(partition: PartitionColumn) -> Column:
    """Return the value of a partition column. Parts of a time are in an order that is that of time."""
    time = F.col(quoted(partition.column))
    if partition.part is None:
        return time
    if partition.part == "year":
        return F.year(time)
    if partition.part == "day":
        return F.to_date(time)
    return F.date_format(time, {"month": "yyyy-MM", "hour": "yyyy-MM-dd-HH"}[partition.part])


def written_columns(rows: DataFrame, sink: TopicSink) -> StructType:
    """Return the columns that make up the values of a topic sink."""
    names = list(sink.value) or [name for name in rows.columns if not name.startswith("_")]
    return rows.select(*map(quoted, names)).schema


def written_key(rows: DataFrame, sink: TopicSink) -> DataType:
    """Return the type of the keys of a topic sink."""
    return rows.select(_key_column(sink)).schema[0].dataType


def _key_column(sink: TopicSink) -> Column:
    """Return the key of a topic sink: null, a column, or a struct of several."""
    if sink.key is None:
        return F.lit(None).cast("binary")
    return F.col(quoted(sink.key)) if isinstance(sink.key, str) else F.struct(*map(quoted, sink.key))


def topic_rows(
    rows: DataFrame,
    sink: TopicSink,
    format: formats.Format | None,
    key_format: formats.RegistryFormat | None = None,
) -> DataFrame:
    """Return rows as records: key and value in these formats, and the lineage in the headers."""
    names = written_columns(rows, sink).names
    headers = lineage_headers(rows.columns)
    if key_format is not None:
        rows = formats.encode_column(
            rows, key_format, _key_column(sink), into="__encoded_key", kind=written_key(rows, sink)
        )
        key = F.col("__encoded_key")
    else:
        # Bytes are written as they are, because they need not be text.
        is_bytes = sink.key is None or isinstance(written_key(rows, sink), BinaryType)
        key = _key_column(sink) if is_bytes else _key_column(sink).cast("string")
    deleted = F.lit(False)
    if sink.tombstone_when is not None:
        deleted = F.coalesce(F.expr(sink.tombstone_when.text), F.lit(False))
    if format is None:
        value = F.when(~deleted, F.col(quoted(names[0])).cast("binary"))
        return rows.select(key.alias("key"), value.alias("value"), headers.alias("headers"))
    with_key = rows.select("*", key.alias("__key"), headers.alias("__headers"), deleted.alias("__deleted"))
    encoded = formats.encode(with_key, format, columns=names, into="__value")
    value = F.when(~F.col("__deleted"), F.col("__value"))
    return encoded.select(F.col("__key").alias("key"), value.alias("value"), F.col("__headers").alias("headers"))


def side_rows(rows: DataFrame) -> DataFrame:
    """Return rejected or late rows as records: the row as JSON, lineage and cause in the headers."""
    value = F.to_json(F.struct(*map(quoted, rows.columns)))
    name = next((name for name in ("_key", "key") if name in rows.columns), None)
    key = F.lit(None).cast("binary") if name is None else _bytes_of_key(name, rows)
    return rows.select(key.alias("key"), value.alias("value"), lineage_headers(rows.columns).alias("headers"))


def _bytes_of_key(name: str, rows: DataFrame) -> Column:
    """Return the key of rows in quarantine or of late rows: bytes and text as they are, a decoded key as JSON."""
    key, kind = F.col(name), rows.schema[name].dataType
    if isinstance(kind, StructType):
        key = F.to_json(key)
    elif not isinstance(kind, BinaryType):
        key = key.cast("string")
    return key.cast("binary")


def lineage_headers(columns: list[str]) -> Column:
    carried: Mapping[str, Column] = {
        name: (F.to_json(F.col(name)) if name == LINEAGE else F.col(name).cast("string")).cast("binary")
        for name in (*RECORD_COLUMNS, LINEAGE, "_cause")
        if name in columns
    }
    headers = [F.struct(F.lit(name).alias("key"), text.alias("value")).cast(_HEADER) for name, text in carried.items()]
    present = F.filter(F.array(*headers), lambda header: header["value"].isNotNull()) if headers else F.array()
    return present.cast(f"array<{_HEADER}>")


def watermark_of_batch(offsets_metadata: Mapping[str, object]) -> datetime | None:
    """Return the watermark that a batch began with, from its metadata in Spark's checkpoint; None if it had none."""
    watermark_ms = offsets_metadata.get("batchWatermarkMs")
    return datetime.fromtimestamp(watermark_ms / 1000, UTC) if isinstance(watermark_ms, int) and watermark_ms else None
