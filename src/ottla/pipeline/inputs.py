"""Inputs of flows: topics and tables as DataFrames, streaming or not, in the columns that `plan` expects."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StringType, StructField, StructType

from ottla.pipeline.declaration import Declaration, Flow, Source
from ottla.pipeline.graph import sequence_of, stored_columns
from ottla.pipeline.layout import Layout
from ottla.pipeline.lineage import OFFSET, PARTITION, TIMESTAMP, TOPIC
from ottla.pipeline.merging import MergeRefused
from ottla.pipeline.source_options import cluster_options, source_options
from ottla.pipeline.zones import TABLE_FORMAT, TOPIC_FORMAT
from ottla.spark.options import ReadOptions
from ottla.spark.table_location import TableLocation
from ottla.spark.table_log import INSERT
from ottla.spark.table_schema import CHANGE_TYPE, IS_CURRENT, VALID_FROM, VALID_TO
from ottla.spark.watching import TopicWatcher

_RENAMED = {
    "key": "key", "value": "value", "headers": "headers", "topic": TOPIC, "partition": PARTITION, "offset": OFFSET,
    "timestamp": TIMESTAMP, "timestampType": "_timestamp_type",
}  # fmt: skip


class Pins(NamedTuple):
    """The checkpoint of a flow's query, and the tables whose version it decides for each batch."""

    checkpoint: str
    tables: tuple[TableLocation, ...]


class Inputs:
    """Reads sources and stored flows of a declaration."""

    def __init__(
        self, spark: SparkSession, declaration: Declaration, layout: Layout, schemas: Mapping[str, StructType]
    ) -> None:
        self._spark = spark
        self._declaration = declaration
        self._layout = layout
        self._schemas = schemas

    def location(self, flow: Flow) -> TableLocation:
        """Return the location of the table of a stored flow."""
        assert flow.table is not None, "checks refuse to read what has no table"
        return TableLocation.at(self._layout.table(flow.zone, flow.table.name))

    def stream(self, name: str, pins: Pins | None = None) -> DataFrame:
        """Return the existing rows, then those that are added.

        A materialized view is read as it is when a batch is planned for the first time; ``pins`` fix this version.
        """
        source = self._declaration.sources.get(name)
        if source is not None:
            reader = self._spark.readStream.format(TOPIC_FORMAT).options(**self._source_options(source, stream=True))
            return _raw(reader.load())
        flow = self._declaration.flows[name]
        if flow.kind == "materialized_view":
            return self.batch(name, pins)
        assert flow.table is not None
        uri, schema = self.location(flow).uri, self._schemas[name]
        if flow.table.format == "parquet":
            if self.location(flow).local:
                os.makedirs(uri, exist_ok=True)
            return self._spark.readStream.schema(schema).parquet(uri)
        # A backfill replaces rows that were read before, and recomputes all flows that read them.
        reader = self._spark.readStream.format(TABLE_FORMAT).schema(schema).option("skipChangeCommits", "true")
        if flow.table.keys:
            reader = reader.option("readChangeFeed", "true")
        return reader.load(uri)

    def batch(self, name: str, pins: Pins | None = None) -> DataFrame:
        """Return the rows that exist now, or those of the version that ``pins`` decide for each batch."""
        source = self._declaration.sources.get(name)
        if source is not None:
            return self._topic(self._source_options(source, stream=False))
        flow = self._declaration.flows[name]
        if flow.table is not None and flow.table.format == "parquet":
            return self._spark.read.schema(self._schemas[name]).parquet(self.location(flow).uri)
        if not self.location(flow).exists():
            return self._spark.createDataFrame([], self._schemas[name])
        options = {}
        if pins is not None:
            tables = json.dumps([each.uri for each in pins.tables])
            options = {"pinnedByCheckpoint": pins.checkpoint, "pinnedTables": tables}
        return self._table(flow, options)

    def pinned(self, names: Iterable[str]) -> Callable[[str], DataFrame]:
        """Return a function that reads these inputs as they are now, however late and however often it is called.

        Spark asks a source what there is when it plans a read. A query that reads several inputs, or one input twice,
        would otherwise get some of them with rows that were added after others were read.
        """
        reads = {name: self._pin(name) for name in names}
        return lambda name: reads[name]()

    def _pin(self, name: str) -> Callable[[], DataFrame]:
        source = self._declaration.sources.get(name)
        if source is not None:
            options = self._source_options(source, stream=False)
            parsed = ReadOptions.parse(options, stream=False)
            with TopicWatcher(parsed) as watcher:
                ends = watcher.resolve(parsed.ending, "the ending offsets", starting=False)
            return partial(self._topic, {**options, "endingOffsets": str(ends)})
        flow = self._declaration.flows[name]
        if (flow.table is not None and flow.table.format == "parquet") or not self.location(flow).exists():
            # Spark lists the files of a Parquet directory here.
            rows = self.batch(name)
            return lambda: rows
        return partial(self._table, flow, {"versionAsOf": str(self.location(flow).table().version())})

    def _topic(self, options: Mapping[str, str]) -> DataFrame:
        return _raw(self._spark.read.format(TOPIC_FORMAT).options(**options).load())

    def _table(self, flow: Flow, options: Mapping[str, str]) -> DataFrame:
        location, schema = self.location(flow), self._schemas[flow.name]
        feeds_deletes = flow.table is not None and flow.table.feeds_deletes
        columns = StructType([field for field in schema if not feeds_deletes or field.name != CHANGE_TYPE])
        rows = self._spark.read.format(TABLE_FORMAT).schema(columns).options(**options).load(location.uri)
        return rows.withColumn(CHANGE_TYPE, F.lit(INSERT)) if feeds_deletes else rows

    def _source_options(self, source: Source, *, stream: bool) -> dict[str, str]:
        return cluster_options(self._declaration) | source_options(self._declaration, source, stream=stream)


def stored_schema(flow: Flow, result: StructType) -> StructType:
    """Return the columns that readers of a flow get, from those of its result.

    Raise MergeRefused if the table keeps history and its rows have no sequence.
    """
    if flow.table is None or not flow.table.keys:
        return result
    types = {field.name: field.dataType for field in result}
    if flow.table.history:
        sequence = sequence_of(flow.table, result.names, emits_changes=flow.emit == "changes")
        if not sequence:
            raise MergeRefused(f"flow {flow.name}: versions of a key need an order: add sequence_by to the table")
        time = types[next(name for name in result.names if name.lower() == sequence[0].lower())]
        types |= {VALID_FROM: time, VALID_TO: time, IS_CURRENT: BooleanType()}
    types[CHANGE_TYPE] = StringType()
    return StructType([StructField(name, types[name]) for name in stored_columns(flow, tuple(result.names))])


def _raw(records: DataFrame) -> DataFrame:
    return records.select(*(F.col(name).alias(ours) for name, ours in _RENAMED.items()))
