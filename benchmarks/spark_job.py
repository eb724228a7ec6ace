"""A Spark program that is told by lines what to do: JSON in on stdin, JSON out on stdout, until stdin ends.

    python -m benchmarks.spark_job '{"engine": "ottla", "bootstrap": "127.0.0.1:9092", "jars": [], "directory": "/x"}'

It writes what a user of either engine would write; the program that starts it (benchmarks/spark.py) makes topics,
counts records in them, and measures memory.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import DataFrame, SparkSession

from ottla.spark.session import build_session

FORMATS = {"ottla": "ottla", "connector": "kafka"}
TUNED = {"kafka.max.poll.records": "10000"}
#: the first batches of a query compile and connect
WARMUP_BATCHES = 5
_QUERY_SECONDS_MAX = 300
_KEY = "lpad(cast(id as string), 9, '0')"
#: 9 + 91 bytes, unlike each other
_ROW = [f"cast({_KEY} as binary) as key", f"cast(concat({_KEY}, repeat('x', 91)) as binary) as value"]

Answer = dict[str, Any]


def main() -> None:
    settings = json.loads(sys.argv[1])
    answers = _private_stdout()
    job = Job(settings["engine"], settings["bootstrap"], settings["jars"], Path(settings["directory"]))
    _say(answers, {"ready": job.version})
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            _say(answers, job.work(asked))
        except Exception as problem:
            # Whatever Spark throws becomes one failed row; the program that asked decides.
            _say(answers, {"error": f"{type(problem).__name__}: {problem}"})
    job.close()


def _private_stdout() -> TextIO:
    """Java's output goes where errors go, so that answers stand alone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def _say(answers: TextIO, answer: Answer) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


class Job:
    """One engine in one warm session."""

    def __init__(self, engine: str, bootstrap: str, jars: list[str], directory: Path) -> None:
        self._engine = engine
        self._connection = {"kafka.bootstrap.servers": bootstrap}
        self._directory = directory
        self._number = 0
        self._counts: dict[tuple[str, bool], int] = {}
        conf = {
            "spark.driver.memory": "2g",
            "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.streaming.numRecentProgressUpdates": "10000",
            **({"spark.jars": ",".join(jars)} if jars else {}),
        }
        self._spark: SparkSession = build_session(f"bench-{engine}", "local[2]", conf)
        self._spark.sparkContext.setLogLevel("ERROR")
        self.version = self._spark.version

    def close(self) -> None:
        self._spark.stop()

    def work(self, asked: Answer) -> Answer:
        kind: str = asked["kind"]
        return {"read": self._read, "write": self._write, "copy": self._copy, "floor": self._floor}[kind](asked)

    def _read(self, asked: Answer) -> Answer:
        reader = self._spark.read.format(FORMATS[self._engine])
        frame = self._columns(reader, asked).load()
        if self._engine == "connector" and asked["columns"] == "value":
            frame = frame.select("value")
        self._number += 1
        group = f"read-{self._number}"
        self._spark.sparkContext.setJobGroup(group, group)
        began = time.monotonic()
        frame.write.format("noop").mode("overwrite").save()
        took = time.monotonic() - began
        if self._engine == "ottla":
            return {"seconds": took, "records": self._rows_read(group)}
        # The connector's batches report no rows, so that a query of its own counts them, once.
        options = (asked["topic"], asked["tuned"])
        if options not in self._counts:
            self._counts[options] = frame.count()
        return {"seconds": took, "records": self._counts[options]}

    def _write(self, asked: Answer) -> Answer:
        frame = self._spark.range(0, asked["records"], 1, 2).selectExpr(*_ROW)
        began = time.monotonic()
        frame.write.format(FORMATS[self._engine]).options(**self._sink(asked)).mode("append").save()
        return {"seconds": time.monotonic() - began}

    def _copy(self, asked: Answer) -> Answer:
        frame = self._stream(asked).select("key", "value")
        writer = frame.writeStream.format(FORMATS[self._engine]).options(**self._sink(asked))
        writer = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True)
        began = time.monotonic()
        query = writer.start()
        if not query.awaitTermination(_QUERY_SECONDS_MAX):
            query.stop()
            raise TimeoutError(f"the query did not end within {_QUERY_SECONDS_MAX} s")
        took = time.monotonic() - began
        return {"seconds": took, "records": sum(progress.numInputRows for progress in query.recentProgress)}

    def _floor(self, asked: Answer) -> Answer:
        """While somebody else sends a trickle of records."""
        writer = self._stream(asked).writeStream.format("noop").trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", self._checkpoint()).start()
        try:
            query.awaitTermination(asked["seconds"])
            query.processAllAvailable()
        finally:
            query.stop()
        # What is reported when there is nothing to do is no batch.
        batches = [progress for progress in query.recentProgress if "addBatch" in progress.durationMs]
        steady = [progress.durationMs for progress in batches if progress.numInputRows][WARMUP_BATCHES:]
        steps = {name for durations in steady for name in durations}
        return {
            "records": sum(progress.numInputRows for progress in batches),
            "batches": len(steady),
            "p50_ms": statistics.median(durations["triggerExecution"] for durations in steady),
            "steps_ms": {name: statistics.median(each.get(name, 0) for each in steady) for name in sorted(steps)},
        }

    def _stream(self, asked: Answer) -> DataFrame:
        reader = self._spark.readStream.format(FORMATS[self._engine])
        frame: DataFrame = self._columns(reader, asked).option("startingOffsets", "earliest").load()
        return frame

    def _columns(self, reader: Any, asked: Answer) -> Any:
        """Our source reads the columns of a schema; the connector has one schema, and selecting is left to Spark."""
        options = {**self._connection, "subscribe": asked["topic"], **(TUNED if asked["tuned"] else {})}
        if self._engine == "ottla" and asked["columns"] != "all":
            reader = reader.schema("value binary" if asked["columns"] == "value" else "key binary, value binary")
        return reader.options(**options)

    def _sink(self, asked: Answer) -> dict[str, str]:
        options = {**self._connection, "topic": asked["output"]}
        if self._engine == "ottla":
            options["ottla.delivery"] = asked["delivery"]
        return options

    def _checkpoint(self) -> str:
        self._number += 1
        return str(self._directory / f"checkpoint-{self._engine}-{os.getpid()}-{self._number}")

    def _rows_read(self, group: str) -> int:
        """What Spark itself counted in a query's tasks: to count in the query would be measured, too."""
        context: Any = self._spark.sparkContext
        context._jsc.sc().listenerBus().waitUntilEmpty()
        store, tracker = context._jsc.sc().statusStore(), context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
        return sum(store.lastStageAttempt(stage).inputRecords() for job in jobs for stage in job.stageIds)


if __name__ == "__main__":
    main()
