"""What a micro-batch is made of is decided once, whatever is lost, changed or repeated afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from shop_pipeline import produce, rows

from ottla.pipeline import Pipeline
from ottla.pipeline.flow_runs import Restarts
from ottla.pipeline.load import read_beside
from ottla.pipeline.run import Supervisor
from ottla.testing import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def forget_batch(checkpoint: Path, number: int, *, offsets: bool) -> None:
    """Remove the batch from Spark's logs: its commit, and its planned offsets too if they are lost."""
    for log in ("commits", "offsets") if offsets else ("commits",):
        (checkpoint / log / str(number)).unlink()
        (checkpoint / log / f".{number}.crc").unlink(missing_ok=True)


def test_every_attempt_of_a_batch_reads_one_version_of_a_joined_table_and_the_next_batch_a_newer_one(
    spark: SparkSession, topic: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    from ottla.spark.spark_internals import planned_batch

    rates, checkpoint = str(tmp_path / "rates"), tmp_path / "checkpoint"
    seen: list[tuple[int, object, list[int]]] = []

    def set_rate(rate: int) -> None:
        write_deltalake(rates, pa.table({"rate": [rate]}), mode="overwrite")

    def note(batch: DataFrame, number: int) -> None:
        for _ in range(2):
            query = str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
            seen.append((number, planned_batch(spark, query), [row.rate for row in batch.select("rate").collect()]))
            set_rate(len(seen) + 1)

    def run() -> None:
        stream = spark.readStream.format("ottla").option("kafka.bootstrap.servers", broker.bootstrap)
        reader = spark.read.format("ottla-table").schema("rate long").option("pinnedByCheckpoint", str(checkpoint))
        joined = (
            stream.option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "1")
            .load()
            .crossJoin(reader.load(rates))
        )
        query = joined.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    set_rate(1)
    produce(broker.bootstrap, topic, b"a")
    run()
    forget_batch(checkpoint, 0, offsets=False)
    run()
    # Two batches of one query: Spark asks a Python source for its partitions only once in the life of a query.
    produce(broker.bootstrap, topic, b"b", b"c")
    run()
    assert [(number, found) for number, _, found in seen] == [(0, [1])] * 4 + [(1, [5])] * 2 + [(2, [7])] * 2
    first, second, third = seen[0][1], seen[4][1], seen[6][1]
    assert [planned for _, planned, _ in seen] == [first] * 4 + [second] * 2 + [third] * 2
    assert first != second != third


def test_batch_that_is_planned_again_with_more_rows_is_refused(
    spark: SparkSession, topic: str, broker: BrokerProcess, tmp_path: Path
) -> None:
    """The batch was committed, and its planned offsets are lost: Spark plans the same number with more rows."""
    words = Pipeline("words", storage=str(tmp_path / "lake"), brokers=broker.bootstrap, trigger="available-now")
    words.source("spoken", topic=topic, format="string")
    words.flow(
        "staged", zone="staging", from_="spoken", to=[{"table": "staged"}, {"topic": f"{topic}-out", "value": "value"}]
    )
    declaration = words.declaration(read_beside(__file__))
    produce(broker.bootstrap, topic, b"one")
    assert not Supervisor(declaration, spark).run().failed
    checkpoint = next((tmp_path / "lake").rglob("offsets")).parent
    forget_batch(checkpoint, 0, offsets=True)
    produce(broker.bootstrap, topic, b"two")
    (flow,) = Supervisor(declaration, spark, restarts=Restarts(first_s=0.1)).run().failed
    assert "is not the one that was committed" in str(flow.error)
    assert flow.restarts == 0, "another attempt cannot succeed"
    assert [row["value"] for row in rows(tmp_path, "staging/staged")] == ["one"]
    shutil.rmtree(checkpoint)
