"""A driver that copies one topic to another, exactly once, and may be told to die at a step of a commit.

    python kill_driver.py --bootstrap B --input T --output T --checkpoint DIR --batch-rows N [--once]
                          [--die-at STEP --armed FILE]

With ``--once`` it ends when everything that is there now is copied. With ``--die-at`` it takes its whole session of
processes with it, as soon as a commit comes to that step and the file exists.
"""

from __future__ import annotations

import argparse
import os
import signal
from contextlib import suppress
from pathlib import Path

from pyspark.sql.types import StructType

from ottla.spark.session import build_session
from ottla.spark.sink import StreamWriter
from ottla.spark.source import OttlaDataSource
from ottla.spark.write_options import WriteOptions

_SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.python.authenticate.socketTimeout": "120s",
    # Frozen drivers come back while others run: a batch's offsets must be written by one of them only.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"
    ),
}
_OWN_OPTIONS = ("die.at", "armed")


class DyingWriter(StreamWriter):
    """Dies at a step of its commit."""

    def __init__(self, options: WriteOptions, schema: StructType, die_at: str, armed: str) -> None:
        super().__init__(options, schema)
        self.die_at = die_at
        self.armed = armed

    def checkpoint(self, step: str) -> None:
        if step == self.die_at and os.path.exists(self.armed):
            # Worker, daemon, JVM and driver are one session: nobody is left to tidy up.
            mine = os.getsid(0)
            for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
                with suppress(ProcessLookupError):
                    if os.getsid(pid) == mine and pid != os.getpid():
                        os.kill(pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class DyingDataSource(OttlaDataSource):
    """``format("ottla")`` with a writer that dies."""

    @classmethod
    def name(cls) -> str:
        return "ottla_dying"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        options = {name: value for name, value in self.options.items() if name.lower() not in _OWN_OPTIONS}
        return DyingWriter(
            WriteOptions.parse(options, stream=True), schema, self.options["die.at"], self.options["armed"]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bootstrap", "input", "output", "checkpoint", "batch-rows"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--die-at")
    parser.add_argument("--armed", type=Path)
    given = parser.parse_args()

    spark = build_session("kill-driver", "local[2]", _SETTINGS)
    spark.sparkContext.setLogLevel("ERROR")
    rows = (
        spark.readStream.format("ottla")
        .option("kafka.bootstrap.servers", given.bootstrap)
        .option("subscribe", given.input)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", given.batch_rows)
        .load()
    )
    # Dealt out anew in every attempt, so that no attempt has the tasks of another.
    writer = rows.select("key", "value").repartition(3).writeStream
    writer = writer.format("ottla_dying" if given.die_at else "ottla")
    if given.die_at:
        spark.dataSource.register(DyingDataSource)
        writer = writer.option("die.at", given.die_at).option("armed", str(given.armed))
    writer = (
        writer.option("kafka.bootstrap.servers", given.bootstrap)
        .option("topic", given.output)
        .option("checkpointLocation", given.checkpoint)
        # Files, although the batches are small enough for messages.
        .option("ottla.inline.bytes.max", "1000")
    )
    writer = writer.trigger(availableNow=True) if given.once else writer.trigger(processingTime="0 seconds")
    query = writer.start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
