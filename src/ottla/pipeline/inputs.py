"""What flows read: topics and tables as DataFrames, streaming or not, in the columns that `plan` expects."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ottla.pipeline.declaration import Declaration, Flow, Source
from ottla.pipeline.layout import Layout
from ottla.pipeline.lineage import OFFSET, PARTITION, TIMESTAMP, TOPIC
from ottla.pipeline.zones import TABLE_FORMAT, TOPIC_FORMAT, broker_options
from ottla.spark.table_location import TableLocation

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
        """Where the rows of a stored flow lie."""
        assert flow.table is not None, "checks refuse to read what has no table"
        return TableLocation.at(self._layout.table(flow.zone, flow.table.name))

    def stream(self, name: str, pins: Pins | None = None) -> DataFrame:
        """Return all rows that there are, then those that are added.

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
        # A backfill replaces rows that were read before, and makes everything behind them anew itself. A table with
        # keys replaces rows all the time, and what it has added since is what its readers want.
        changes = "ignoreChanges" if flow.table.keys else "skipChangeCommits"
        return self._spark.readStream.format(TABLE_FORMAT).schema(schema).option(changes, "true").load(uri)

    def batch(self, name: str, pins: Pins | None = None) -> DataFrame:
        """Return all rows that there are now, or at the version that ``pins`` decide for each batch."""
        source = self._declaration.sources.get(name)
        if source is not None:
            reader = self._spark.read.format(TOPIC_FORMAT).options(**self._source_options(source, stream=False))
            return _raw(reader.load())
        flow = self._declaration.flows[name]
        location, schema = self.location(flow), self._schemas[name]
        if flow.table is not None and flow.table.format == "parquet":
            return self._spark.read.schema(schema).parquet(location.uri)
        if not location.exists():
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.format(TABLE_FORMAT).schema(schema)
        if pins is not None:
            tables = json.dumps([each.uri for each in pins.tables])
            reader = reader.option("pinnedByCheckpoint", pins.checkpoint).option("pinnedTables", tables)
        return reader.load(location.uri)

    def _source_options(self, source: Source, *, stream: bool) -> dict[str, str]:
        options = {
            "kafka.isolation.level": "read_committed",
            **broker_options(self._declaration),
            "subscribe": source.topic,
            "includeHeaders": "true",
            "failOnDataLoss": str(source.on_data_loss == "fail").lower(),
        }
        if not stream:
            return options
        starting = source.starting_offsets
        if isinstance(starting, datetime):
            options["startingTimestamp"] = str(int(starting.timestamp() * 1000))
            options["startingOffsetsByTimestampStrategy"] = "latest"
        elif isinstance(starting, str):
            options["startingOffsets"] = starting
        else:
            each = {str(partition): offset for partition, offset in starting.items()}
            options["startingOffsets"] = json.dumps({source.topic: each})
        if source.max_offsets_per_trigger is not None:
            options["maxOffsetsPerTrigger"] = str(source.max_offsets_per_trigger)
        return options


def _raw(records: DataFrame) -> DataFrame:
    return records.select(*(F.col(name).alias(ours) for name, ours in _RENAMED.items()))
