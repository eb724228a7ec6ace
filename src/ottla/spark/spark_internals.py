"""Access to parts of Spark that PySpark does not make public. Each function has a test that runs it.

PySpark's own classes reach Spark's JVM objects through `_jdf`, `_jsparkSession` and `_jvm`. These names and the classes
behind them may change with any minor release.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession


def planned_batch(spark: SparkSession, query_id: str) -> list[object]:
    """Return what Spark has planned for the running micro-batch of a query, as JSON values.

    These are the start and end offset of every stream, the watermark and the time of the batch. They are equal in every
    attempt. They come from the plan that is executed, not from the checkpoint, which another driver may have changed
    since. Call it inside of foreachBatch. Streams of files, which use an older interface of Spark, are left out.
    """
    session: Any = spark._jsparkSession
    execution = session.streams().get(query_id).streamingQuery().lastExecution()
    metadata = execution.offsetSeqMetadata()
    offsets = [[_text(scan.startOffset()), _text(scan.endOffset())] for scan in _stream_scans(execution.logical())]
    return [offsets, metadata.batchWatermarkMs(), metadata.batchTimestampMs()]


def _stream_scans(plan: Any) -> Iterator[Any]:
    """Yield the nodes of a logical plan that read a range of a stream, in the order of the plan."""
    if plan.getClass().getSimpleName() == "StreamingDataSourceV2ScanRelation":
        yield plan
    children = plan.children()
    for number in range(children.size()):
        yield from _stream_scans(children.apply(number))


def _text(offset: Any) -> str | None:
    return str(offset.get().json()) if offset.isDefined() else None
