"""``format("ottla")``: which methods Spark calls, in which process, and in which order.

Batch: ``partitions`` once in a planning process, ``read`` in the tasks.

Stream: Spark calls one process of the driver, which lives as long as the query, one call at a time: ``initialOffset``
(twice), ``latestOffset`` and ``reportLatestOffset`` (repeatedly), ``partitions`` for each batch, ``commit`` when the
next batch begins. ``read`` runs in the tasks, on a pickled copy. Spark may call neither ``stop`` nor ``commit`` for the
last batch, so nothing depends on them. The rows of a small batch are passed to Spark together with its only partition,
so that no task needs a Python worker, which is most of the time of a small batch (see ``RowsAhead``).

``offsets`` decides which offsets a batch has and which are lost, ``watching`` requests offsets from the cluster,
``reading`` reads ranges.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructField, StructType

from ottla.client.errors import ClientError
from ottla.model.types import TopicPartition
from ottla.spark.columns import TYPES
from ottla.spark.named_tables import NamedTables
from ottla.spark.offsets import (
    Cause,
    DataLoss,
    DataLost,
    JsonOffsets,
    PartitionOffsets,
    Plan,
    admit,
    compact_json,
    plan_ranges,
    split_ranges,
    vanished,
)
from ottla.spark.option_table import TOPIC_OPTIONS, Use
from ottla.spark.options import OptionError, ReadOptions
from ottla.spark.reading import ColumnsRefused, Task, check_columns, read_ahead, read_tasks
from ottla.spark.schema_options import schema_options_of_reader
from ottla.spark.spark_internals import RowsAhead, arrow_schema_of, spark_type_of, write_offsets_with
from ottla.spark.watching import TopicWatcher

if TYPE_CHECKING:
    from ottla.spark.schema_columns import DecodedColumns
    from ottla.spark.sink import BatchWriter, StreamWriter

log = logging.getLogger("ottla.spark")

#: how long an idle source delays its reply to Spark
_IDLE_WAIT_S: Final = 0.2
#: a call so soon after the last one means that Spark is idle
_IDLE_GAP_S: Final = 0.06

TABLES: Final = NamedTables("ottla", TOPIC_OPTIONS, identity="kafka.bootstrap.servers", prefixes=("kafka.",))


class OttlaDataSource(DataSource):
    """Topics of Ottla, or of any cluster that speaks Kafka's protocol, as rows.

    A schema given by the user names the columns that are read, in this order: ``schema("value binary")`` costs less
    than reading all and selecting one.
    """

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> StructType:
        created = TABLES.creation_options(self.options)
        options = {name.lower(): str(value) for name, value in (created or self.options).items()}
        include_headers = options.get("includeheaders", "false").lower() == "true"
        names = [name for name in TYPES if include_headers or name != "headers"]
        fields = [StructField(name, spark_type_of(TYPES[name])) for name in names]
        schemas = schema_options_of_reader(options)
        if schemas:
            from ottla.spark.schema_columns import added_fields

            fields = [*fields, *added_fields(schemas)]
        schema = StructType(fields)
        return schema if created is None else TABLES.with_options(schema, created)

    def reader(self, schema: StructType) -> OttlaReader:
        options = TABLES.merged(self.options, schema, Use.READ_BATCH)
        return OttlaReader(ReadOptions.parse(options, stream=False), schema)

    def streamReader(self, schema: StructType) -> OttlaStreamReader:
        options = TABLES.merged(self.options, schema, Use.READ_STREAM)
        return OttlaStreamReader(ReadOptions.parse(options, stream=True), schema)

    # Imported here, because a reader does not need the modules of writers.

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from ottla.spark.sink import BatchWriter
        from ottla.spark.write_options import WriteOptions

        options = TABLES.merged(self.options, schema, Use.WRITE_BATCH)
        return BatchWriter(WriteOptions.parse(options, stream=False), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from ottla.spark.sink import StreamWriter
        from ottla.spark.write_options import WriteOptions

        options = TABLES.merged(self.options, schema, Use.WRITE_STREAM)
        return StreamWriter(WriteOptions.parse(options, stream=True), schema)


class TaskPartition(InputPartition):
    """The tasks of one partition. Spark pickles it."""

    def __init__(self, *tasks: Task) -> None:
        super().__init__(tasks)


class OttlaReader(DataSourceReader):
    """One batch read. Its offsets are decided once, when it is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._decoded = decoded_columns(options, schema)
        self._columns = columns_of(schema) if self._decoded is None else self._decoded.read_columns

    def partitions(self) -> list[InputPartition]:
        options = self._options
        for name in options.ignored:
            log.warning("the option %s has no effect in a batch read", name)
        with TopicWatcher(options) as watcher:
            start = watcher.resolve(options.starting, "the starting offsets", starting=True)
            end = watcher.resolve(options.ending, "the ending offsets", starting=False)
            _check_order(options, start, end)
            latest = watcher.latest({})
            early = {tp: offset for tp, offset in end.items() if offset > latest.get(tp, 0)}
            losses = [DataLoss(tp, Cause.ENDS_EARLY, early[tp], None, latest.get(tp, 0)) for tp in sorted(early)]
            observed = watcher.observe(end)
            plan = plan_ranges(start, {tp: min(offset, latest.get(tp, 0)) for tp, offset in end.items()}, observed)
        report(Plan(plan.ranges, losses + plan.losses), fail=options.fail_on_data_loss)
        return _input_partitions(options, plan, observed.topic_ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition, self._columns, self._decoded)


class OttlaStreamReader(RowsAhead, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__()
        # Config
        self._options = options
        self._decoded = decoded_columns(options, schema)
        self._columns = columns_of(schema) if self._decoded is None else self._decoded.read_columns
        #: the columns as Spark expects them in rows that are read ahead; None if it compares types only
        self._declared = declared_columns(schema)
        # In the driver's process, created at the first call; never in a pickled copy
        self._watcher: TopicWatcher | None = None
        self._initial: JsonOffsets | None = None
        #: the ends of the partitions when they were last requested
        self._latest: PartitionOffsets | None = None
        #: with Trigger.AvailableNow: the offsets at which the query ends
        self._available_now = False
        self._target: PartitionOffsets | None = None
        self._triggered_at: float | None = None
        #: when Spark last received the answer that there is nothing to read
        self._idle_since: float | None = None
        self._warned: set[DataLoss] = set()

    def initialOffset(self) -> JsonOffsets:
        """Return the first offset. Spark calls it twice and expects the same, so "latest" is resolved once."""
        write_offsets_with(compact_json)
        if self._initial is None:
            starting = self._watch().resolve(self._options.starting, "the starting offsets", starting=True)
            self._initial = starting.as_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; ``start`` itself if there is nothing to read.

        Spark compares offsets as text, and a checkpoint of Spark's own connector has another order of partitions:
        therefore the same document is returned.
        """
        write_offsets_with(compact_json)
        before = PartitionOffsets.from_json(start)
        latest = self._find_latest(before)
        self._check_topics(before, latest)
        end = self._admitted(before, latest, limit)
        if end == before:
            self._idle_since = time.monotonic()
            return start
        self._idle_since = None
        return dict(end.as_json())

    def _find_latest(self, before: PartitionOffsets) -> PartitionOffsets:
        if self._target is not None:
            return self._target
        idle = self._idle_since is not None and time.monotonic() - self._idle_since < _IDLE_GAP_S
        wait_s = _IDLE_WAIT_S if idle and not self._available_now else 0.0
        known = before
        if wait_s and self._latest is not None and all(self._latest.get(tp, -1) >= before[tp] for tp in before):
            # Records that minOffsetsPerTrigger holds back are no reason to return at once.
            known = self._latest
        self._latest = self._watch().latest(known, wait_s=wait_s)
        if self._available_now:
            self._target = self._latest
        return self._latest

    def _check_topics(self, before: PartitionOffsets, latest: PartitionOffsets) -> None:
        """Raise DataLost before Spark writes the end of the next batch to its offset log.

        A range in that log is final: after a failure Spark plans the same range again. Without failOnDataLoss the
        losses are reported when the batch is planned.
        """
        watcher = self._watch()
        absent = [tp for tp in before if tp not in latest]
        if absent:
            self._report(vanished(before, latest, watcher.observe(absent)))
        went_back = any(latest.get(tp, offset) < offset for tp, offset in before.items())
        if self._options.fail_on_data_loss and (went_back or watcher.recreated({tp.topic for tp in before})):
            self._report(plan_ranges(before, latest, watcher.observe({*before, *latest})).losses)

    def _admitted(self, before: PartitionOffsets, latest: PartitionOffsets, limit: ReadLimit) -> PartitionOffsets:
        rows_min, rows_max = self._options.min_offsets_per_trigger, self._options.max_offsets_per_trigger
        if isinstance(limit, ReadMaxRows):
            rows_max = limit.max_rows
        if isinstance(limit, ReadAllAvailable) or (rows_min is None and rows_max is None):
            return latest
        begin = before | self._watch().earliest(tp for tp in latest if tp not in before)
        if rows_min is not None and not self._available_now and self._held_back(begin, latest, rows_min):
            return before
        return admit(begin, latest, rows_max) if rows_max is not None else latest

    def _held_back(self, begin: Mapping[TopicPartition, int], latest: PartitionOffsets, rows_min: int) -> bool:
        now = time.monotonic()
        waiting = sum(max(offset - begin[tp], 0) for tp, offset in latest.items())
        overdue = self._triggered_at is None or now - self._triggered_at >= self._options.max_trigger_delay_s
        if waiting < rows_min and not overdue:
            return True
        self._triggered_at = now
        return False

    def reportLatestOffset(self) -> JsonOffsets | None:
        return None if self._latest is None else self._latest.as_json()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        before, until = PartitionOffsets.from_json(start), PartitionOffsets.from_json(end)
        watcher = self._watch()
        observed = watcher.observe({*before, *until})
        plan = plan_ranges(before, until, observed)
        self._report(plan.losses)
        watcher.accept(observed)
        each = _input_partitions(self._options, plan, observed.topic_ids)
        tasks = [task for partition in each for task in partition.value]
        # A query that asks for many partitions wants many tasks for the work after reading.
        alone = self._options.min_partitions is None and self._options.max_records_per_partition is None
        convert = self._decoded.converter() if self._decoded is not None else None
        rows = read_ahead(watcher.cluster, self._options, tasks, self._columns, convert) if tasks and alone else None
        if rows is not None and self._declared is not None:
            rows = [pa.RecordBatch.from_arrays(batch.columns, schema=self._declared) for batch in rows]
        self.offer(rows)
        return each if rows is None else [TaskPartition(*tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition, self._columns, self._decoded)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Commit the end of a batch to a consumer group, so that tools show its lag."""
        if self._options.group is None:
            return
        try:
            self._watch().commit(self._options.group, PartitionOffsets.from_json(end))
        except ClientError as error:
            # The checkpoint is what counts; the next commit covers this one.
            log.warning("the progress of group %s was not published: %s", self._options.group, error)

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.close()

    def _watch(self) -> TopicWatcher:
        if self._watcher is None:
            self._watcher = TopicWatcher(self._options)
        return self._watcher

    def _report(self, losses: Collection[DataLoss]) -> None:
        fresh = [loss for loss in losses if loss not in self._warned]
        report(Plan([], fresh), fail=self._options.fail_on_data_loss)
        self._warned.update(fresh)


def report(plan: Plan, *, fail: bool) -> None:
    """Raise DataLost if records are lost and ``fail`` is true; otherwise log a warning."""
    if plan.losses and fail:
        raise DataLost(plan.losses)
    for loss in plan.losses:
        log.warning("failOnDataLoss is false, so reading continues without lost records: %s", loss)


def columns_of(schema: StructType) -> list[str]:
    """Return the columns of a schema. Raise ColumnsRefused if it has other columns or types than a topic."""
    check_columns(schema.fieldNames())
    if not schema.fields:
        raise ColumnsRefused(f"the schema names no column; a topic has {', '.join(TYPES)}")
    for field in arrow_schema_of(schema):
        if field.type != TYPES[field.name]:
            raise ColumnsRefused(f"the column {field.name} is of type {TYPES[field.name]}, not {field.type}")
        if not field.nullable:
            raise ColumnsRefused(f"the column {field.name} is declared NOT NULL; leave that out")
    return list(schema.fieldNames())


def decoded_columns(options: ReadOptions, schema: StructType) -> DecodedColumns | None:
    """Return what adds the decoded keys and values to rows; None if they are not wanted. Raise ColumnsRefused."""
    if not options.schemas:
        return None
    from ottla.spark.schema_columns import ADDED, DecodedColumns

    added = {name for each in options.schemas for name in ADDED[each.part]}
    of_topic = [each for each in schema.fields if each.name not in added]
    if of_topic:
        columns_of(StructType(of_topic))
    return DecodedColumns.of(options.schemas, schema)


def declared_columns(schema: StructType) -> pa.Schema | None:
    """Return the columns with their metadata, None if they have none.

    Spark compares the metadata of rows that are read ahead with that of the schema, and only of those.
    """
    return arrow_schema_of(schema) if any(field.metadata for field in schema.fields) else None


def _input_partitions(options: ReadOptions, plan: Plan, topic_ids: Mapping[str, bytes]) -> list[InputPartition]:
    ranges = split_ranges(
        plan.ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition
    )
    return [TaskPartition(Task(range_, topic_ids.get(range_.topic, bytes(16)))) for range_ in ranges]


def _read(
    options: ReadOptions, partition: InputPartition, columns: list[str], decoded: DecodedColumns | None
) -> Iterator[pa.RecordBatch]:
    # Spark passes a partition without content if `partitions` has returned none.
    if not isinstance(partition, TaskPartition):
        return iter(())
    return read_tasks(options, partition.value, columns, decoded.converter() if decoded is not None else None)


def _check_order(options: ReadOptions, start: PartitionOffsets, end: PartitionOffsets) -> None:
    """Raise OptionError if the options name a start after the end."""
    chosen: Iterable[TopicPartition] = end if options.ending.by_timestamp or options.ending.each else ()
    for tp in chosen:
        if end[tp] < start[tp]:
            raise OptionError(f"of {tp} the starting offset {start[tp]} is after the ending offset {end[tp]}")
