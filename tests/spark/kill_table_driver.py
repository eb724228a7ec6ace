"""A driver that copies one table to another and dies as soon as the table has its first batch.

    python kill_table_driver.py INPUT OUTPUT CHECKPOINT

Spark has not heard of the commit then: it will run the batch again.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from pyspark.sql.types import StructType

from ottla.spark.lake import TableDataSource
from ottla.spark.session import build_session
from ottla.spark.table_options import TableWriteOptions
from ottla.spark.table_sink import TableStreamWriter

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.python.authenticate.socketTimeout": "120s",
}


class DyingWriter(TableStreamWriter):
    """Dies when its commit is decided."""

    def checkpoint(self, step: str) -> None:
        # Worker, daemon, JVM and driver are one session: nobody is left to tidy up.
        mine = os.getsid(0)
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            with suppress(ProcessLookupError):
                if os.getsid(pid) == mine and pid != os.getpid():
                    os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


class DyingTableSource(TableDataSource):
    """``format("ottla-table")`` with a writer that dies."""

    @classmethod
    def name(cls) -> str:
        return "ottla_table_dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        return DyingWriter(TableWriteOptions.parse(self.options, stream=True), schema, overwrite=overwrite)


def main() -> None:
    source, target, checkpoint = sys.argv[1:]
    spark = build_session("kill-table-driver", "local[2]", _SETTINGS)
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(DyingTableSource)
    rows = spark.readStream.format("ottla-table").option("maxFilesPerTrigger", 1).load(source)
    query = (
        rows.writeStream.format("ottla_table_dying")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
