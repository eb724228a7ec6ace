"""A driver that copies a topic to another topic and to a table, each exactly once, and obeys orders in its commits.

    python kill_driver.py --bootstrap B --input TOPIC --directory DIR [--output TOPIC] [--table PATH]
                          [--batch-rows N] [--master M] [--once]

Two queries of one session, with checkpoints of their own in the directory. With ``--once`` it ends when everything that
is there now is copied, else when a query fails. Orders are files in the directory, named by sink and step
(``table committed``): a commit that comes to the step of an order

    die    takes its whole session of processes with it
    wait   renames the order to ``reached``, and goes on when that is gone
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from ottla.spark.lake import TableDataSource
from ottla.spark.session import build_session
from ottla.spark.sink import StreamWriter
from ottla.spark.source import OttlaDataSource
from ottla.spark.table_options import TableWriteOptions
from ottla.spark.table_sink import TableStreamWriter
from ottla.spark.write_options import WriteOptions

#: the group under which the progress of the queries is published
GROUP = "kill-driver"
#: the two sinks: their names in orders and checkpoints
TOPIC, TABLE = "topic", "table"
DIE, WAIT, REACHED = "die", "wait", "reached"

_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": _JVM,
    "spark.executor.extraJavaOptions": _JVM,
    "spark.ui.enabled": "false",
    # An executor that does not answer is given up soon.
    "spark.network.timeout": "15s",
    "spark.network.timeoutInterval": "3s",
    "spark.executor.heartbeatInterval": "3s",
    "spark.sql.shuffle.partitions": "2",
    # Frozen drivers come back while others run: a batch's offsets must be written by one of them only.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
}
_ORDERS = "orders"
#: a row of the topic with the place that it comes from
_PLACED = "concat_ws(' ', cast(value as string), partition, offset)"
#: of a commit that was told to wait; who gave the order may have failed
_WAIT_S_MAX = 60.0


def checkpoint_of(directory: Path, sink: str) -> Path:
    return directory / f"checkpoint-{sink}"


class ObeyingWriter(StreamWriter):
    """Into the topic."""

    orders = ""

    def checkpoint(self, step: str) -> None:
        obey(self.orders, f"{TOPIC} {step}")


class ObeyingTableWriter(TableStreamWriter):
    """Into the table."""

    orders = ""

    def checkpoint(self, step: str) -> None:
        obey(self.orders, f"{TABLE} {step}")


class ObeyingTopics(OttlaDataSource):
    """``format("ottla")`` with a writer that obeys."""

    @classmethod
    def name(cls) -> str:
        return "ottla_obeying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        writer = ObeyingWriter(WriteOptions.parse(_without_orders(self.options), stream=True), schema)
        writer.orders = self.options[_ORDERS]
        return writer


class ObeyingTables(TableDataSource):
    """``format("ottla-table")`` with a writer that obeys."""

    @classmethod
    def name(cls) -> str:
        return "ottla_table_obeying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TableStreamWriter:
        options = TableWriteOptions.parse(_without_orders(self.options), stream=True)
        writer = ObeyingTableWriter(options, schema, overwrite=overwrite)
        writer.orders = self.options[_ORDERS]
        return writer


def _without_orders(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name.lower() != _ORDERS}


def obey(orders: str, place: str) -> None:
    """What was ordered for this place, if anything."""
    order = Path(orders, place)
    if not orders or not order.exists():
        return
    if order.read_text() == DIE:
        _kill_own_session()
    reached = Path(orders, REACHED)
    order.rename(reached)
    deadline = time.monotonic() + _WAIT_S_MAX
    while reached.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def _kill_own_session() -> None:
    """Worker, daemon, JVM, executors and driver are one session: nobody is left to tidy up."""
    mine = os.getsid(0)
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        with suppress(ProcessLookupError):
            if os.getsid(pid) == mine and pid != os.getpid():
                os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What is copied where."""

    bootstrap: str
    input: str
    directory: Path
    output: str | None = None
    table: Path | None = None
    batch_rows: int = 1000
    #: end when everything that is there now is copied
    once: bool = False

    def start(self, spark: SparkSession) -> list[StreamingQuery]:
        """The queries of both sinks, or of the one that there is."""
        reader = (
            spark.readStream.format("ottla")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.input)
            .option("startingOffsets", "earliest")
            .option("kafka.group.id", GROUP)
            .option("maxOffsetsPerTrigger", self.batch_rows)
        )
        queries = []
        # Dealt out anew in every attempt, so that no attempt has the tasks of another.
        if self.output is not None:
            placed = reader.load().repartition(3).selectExpr("key", f"cast({_PLACED} as binary) as value")
            # Files, although the batches are small enough for messages.
            options = {"kafka.bootstrap.servers": self.bootstrap, "topic": self.output, "ottla.inline.bytes.max": "999"}
            queries.append(self._start(placed, TOPIC, ObeyingTopics.name(), options))
        if self.table is not None:
            options = {"path": str(self.table), "compactEvery": "25"}
            # Read by tasks; the small batches of the other one are read by the driver.
            rows = reader.option("minPartitions", 3).load().repartition(3)
            whole = rows.select("key", "value", "partition", "offset")
            queries.append(self._start(whole, TABLE, ObeyingTables.name(), options))
        return queries

    def _start(self, rows: DataFrame, sink: str, form: str, options: Mapping[str, str]) -> StreamingQuery:
        writer: DataStreamWriter = rows.writeStream.format(form).options(**options)
        writer = writer.option("checkpointLocation", str(checkpoint_of(self.directory, sink)))
        writer = writer.option(_ORDERS, str(self.directory))
        return (writer.trigger(availableNow=True) if self.once else writer.trigger(processingTime="0 seconds")).start()


def main() -> None:
    given = vars(_arguments())
    spark = build_session("kill-driver", given.pop("master"), _SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ObeyingTopics)
    spark.dataSource.register(ObeyingTables)
    queries = Copy(**given).start(spark)
    while any(query.isActive for query in queries):
        # Raises what a query has failed of. The driver ends with it, in the middle of whatever the other one does.
        spark.streams.awaitAnyTermination()
        spark.streams.resetTerminated()
    for query in queries:
        query.awaitTermination()
    spark.stop()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Copies a topic to a topic and to a table.")
    for name in ("bootstrap", "input"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--output")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--batch-rows", type=int, default=1000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--once", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
