"""Lake tables as Spark knows them: ``format("ottla-table")``, read and written, in batches and as streams.

    stream.writeStream.format("ottla-table").option("partitionBy", "day").option("checkpointLocation", c).start(path)
    spark.readStream.format("ottla-table").load(path)

A table is a Delta table: any reader of Delta reads it. No jar is needed. ``table_options`` lists the options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from ottla.spark.table_options import TableReadOptions, TableWriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.spark.table_sink import TableBatchWriter, TableStreamWriter
    from ottla.spark.table_source import TableReader, TableStreamReader

_STREAM_NAMES = (
    "startingversion", "maxfilespertrigger", "maxrowspertrigger", "ignorechanges", "skipchangecommits",
    "readchangefeed",
)  # fmt: skip


class TableDataSource(DataSource):
    """A table. A schema given by the user names the columns that are read, in this order."""

    @classmethod
    def name(cls) -> str:
        return "ottla-table"

    # Reading and writing need different things; nobody pays for the other side.

    def schema(self) -> StructType:
        from ottla.spark.table_source import read_schema

        # Spark asks before it says whether it is going to stream.
        stream = any(name.lower() in _STREAM_NAMES for name in self.options)
        return read_schema(TableReadOptions.parse(self.options, stream=stream))

    def reader(self, schema: StructType) -> TableReader:
        from ottla.spark.table_source import TableReader

        return TableReader(TableReadOptions.parse(self.options, stream=False), schema)

    def streamReader(self, schema: StructType) -> TableStreamReader:
        from ottla.spark.table_source import TableStreamReader

        return TableStreamReader(TableReadOptions.parse(self.options, stream=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableBatchWriter:
        from ottla.spark.table_sink import TableBatchWriter

        options = TableWriteOptions.parse(self.options, stream=False, overwrite=overwrite)
        return TableBatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        from ottla.spark.table_sink import TableStreamWriter

        options = TableWriteOptions.parse(self.options, stream=True, overwrite=overwrite)
        return TableStreamWriter(options, schema, overwrite=overwrite)
