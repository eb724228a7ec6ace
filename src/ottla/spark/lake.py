"""``format("ottla-table")``: read and write lake tables, in batches and as streams.

    stream.writeStream.format("ottla-table").option("partitionBy", "day").option("checkpointLocation", c).start(path)
    spark.readStream.format("ottla-table").load(path)

A table is a Delta table: any reader of Delta reads it. No jar is needed. ``option_table`` lists the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.spark.named_tables import NamedTables
from ottla.spark.option_table import TABLE_OPTIONS, Use
from ottla.spark.table_options import STORAGE, STREAM_ONLY, TableReadOptions, TableWriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.spark.table_sink import TableBatchWriter, TableStreamWriter
    from ottla.spark.table_source import TableReader, TableStreamReader

TABLES = NamedTables("ottla-table", TABLE_OPTIONS, identity="path", prefixes=(STORAGE,))
_STREAM_NAMES = tuple(name.lower() for name in STREAM_ONLY)


class TableDataSource(DataSource):
    """A table. A schema given by the user names the columns that are read, in this order."""

    @classmethod
    def name(cls) -> str:
        return "ottla-table"

    # Imported where they are used, because readers do not need the modules of writers and the reverse.

    def schema(self) -> StructType:
        from ottla.spark.table_source import read_schema

        created = TABLES.creation_options(self.options)
        if created is not None:
            reading = {name: value for name, value in created.items() if name == "path" or name.startswith(STORAGE)}
            return TABLES.with_options(read_schema(TableReadOptions.parse(reading, stream=False)), created)
        # Spark asks before it says whether it is going to stream.
        stream = any(name.lower() in _STREAM_NAMES for name in self.options)
        return read_schema(TableReadOptions.parse(self.options, stream=stream))

    def reader(self, schema: StructType) -> TableReader:
        from ottla.spark.table_source import TableReader

        return TableReader(
            TableReadOptions.parse(TABLES.merged(self.options, schema, Use.READ_BATCH), stream=False), schema
        )

    def streamReader(self, schema: StructType) -> TableStreamReader:
        from ottla.spark.table_source import TableStreamReader

        options = TABLES.merged(self.options, schema, Use.READ_STREAM)
        return TableStreamReader(TableReadOptions.parse(options, stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        from ottla.spark.table_sink import TableBatchWriter

        options = TableWriteOptions.parse(
            TABLES.merged(self.options, schema, Use.WRITE_BATCH), stream=False, overwrite=overwrite
        )
        return TableBatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        from ottla.spark.table_sink import TableStreamWriter

        options = TableWriteOptions.parse(
            TABLES.merged(self.options, schema, Use.WRITE_STREAM), stream=True, overwrite=overwrite
        )
        return TableStreamWriter(options, schema, overwrite=overwrite)
