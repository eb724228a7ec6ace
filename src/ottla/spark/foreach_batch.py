"""Options for writers inside of ``foreachBatch``, with which each of them writes a micro-batch once.

    def write(rows, number):
        options = batch_options(rows, number, "copy-of-clicks")
        rows.write.format("ottla").mode("append").options(**kafka, **options, topic="copies").save()

The digest comes from the plan that Spark runs, so that it does not matter where the checkpoint is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.spark.batch_manifest import batch_digest
from ottla.spark.spark_internals import SparkInternalMissing, is_connect, planned_batch, query_of_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def batch_options(rows: DataFrame, batch_id: int, sink_name: str) -> dict[str, str]:
    """Return the options by which a sink knows a batch that it has already. Call it inside of foreachBatch.

    ``sink_name`` is unique in the cluster and stays the same after a restart. Raise SparkInternalMissing outside of
    foreachBatch and in a session of Spark Connect, which do not know the plan of the batch.
    """
    spark = rows.sparkSession
    if is_connect(spark):
        raise SparkInternalMissing(
            "batch_options needs a classic session, because Spark Connect does not give access to the plan of a batch: "
            "set ottla.sink.name, ottla.batch.id and a digest of the input of the batch, ottla.batch.digest, yourself"
        )
    digest = batch_digest(planned_batch(spark, query_of_batch(spark)))
    return {"ottla.sink.name": sink_name, "ottla.batch.id": str(batch_id), "ottla.batch.digest": digest}
