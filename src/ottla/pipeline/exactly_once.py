"""The exactly-once order of a micro-batch: every output of a flow gets the rows of each batch once.

Spark repeats the last batch after a crash, with the offsets that it has planned. For each batch, `FlowBatches.write`
takes these steps, in this order:

    1  read the watermark that the batch began with, which decides which rows are late
    2  fix the versions of the tables that the batch joins, in a manifest that every repetition of the batch reads
    3  compute the digest of everything that the batch is made of: planned offsets, versions of tables, the flow itself
    4  sync the planned offsets of the batch to the disk
    5  record in the checkpoint how the flow is declared, once in a run
    6  write all outputs; each output commits its rows together with the number and the digest of the batch
    7  sync everything else in the checkpoint, such as the state of operators

When `write` has returned, Spark records that the batch is complete.

A crash before 6 has no effect on outputs: the batch is repeated. After a crash within or after 6, the repetition has
the same rows, because of 2, and the same digest. Outputs that have the batch skip it, and the others take it. If the
digest differs (another checkpoint, an edited flow, a table that was created again), outputs that have the batch refuse
it, and the flow fails: its outputs would have rows of two computations. Step 4 comes before 6 because a power failure
must not take away the offsets of a batch that an output has. Step 7 comes before Spark's record because the next batch
reads the state that this one wrote.
"""

from __future__ import annotations

import json
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession

from ottla.model.errors import OttlaError
from ottla.pipeline.declaration import Flow
from ottla.pipeline.flow_digest import flow_digest
from ottla.pipeline.flow_record import FlowRecorder, describe
from ottla.pipeline.graph import Graph
from ottla.pipeline.inputs import Pins
from ottla.pipeline.layout import Layout
from ottla.pipeline.plan import Work
from ottla.pipeline.zones import Batch, Counts, FlowWriter, watermark_of_batch
from ottla.spark.batch_manifest import Manifest, ManifestFiles, batch_digest
from ottla.spark.checkpoint_files import CheckpointFiles
from ottla.spark.source_offsets import read_offset_lines, read_source_offsets
from ottla.spark.spark_internals import planned_batch, query_of_batch


class WatermarkMissing(OttlaError):
    """The offset log of a checkpoint lacks a batch whose watermark decides which rows are late."""

    def __init__(self, checkpoint: str, number: int) -> None:
        super().__init__(
            f"{checkpoint}/offsets/{number} is missing, which has the watermark by which rows are late. Without it, "
            "late rows would reach no output, so nothing was written. Restore the checkpoint from a copy that has the "
            "file, or raise `version` of the flow, which begins with a new checkpoint"
        )


class FlowBatches:
    """The micro-batches of one flow. Create it before the query starts: it repairs the checkpoint."""

    def __init__(
        self, spark: SparkSession, graph: Graph, flow: Flow, *, layout: Layout, work: Work, pins: Pins
    ) -> None:
        self._spark = spark
        self._flow = flow
        self._joined_tables = pins.tables
        self._checkpoint = layout.checkpoint(flow)
        self._files = CheckpointFiles(self._checkpoint)
        self._manifests = ManifestFiles(self._checkpoint)
        self._recorder = FlowRecorder(self._checkpoint, describe(graph, flow))
        self._writer = FlowWriter(graph.declaration, layout, flow, work)
        self._flow_digest = flow_digest(graph, flow)
        stored = (graph.declaration.flows[name].table for name in graph.stored_inputs(flow))
        #: Spark does not tell the offsets of files in its plan, so they are read from the checkpoint
        self._reads_parquet = any(table is not None and table.format == "parquet" for table in stored)
        # A power failure can leave files incomplete that steps 4 and 7 of the last batch have not synced.
        self._files.repair()

    def write(self, rows: DataFrame, number: int) -> Counts:
        """Write a batch, in the order that the module describes. Spark calls it in foreachBatch."""
        query = query_of_batch(self._spark)
        # 1.
        watermark = self._read_watermark(number)
        # 2.
        manifest = self._manifests.decide(number, self._joined_tables) if self._joined_tables else None
        # 3.
        digest = self._digest(query, number, manifest)
        # 4.
        self._files.sync_plan(number)
        # 5.
        self._recorder.write_once()
        # 6.
        counts = self._writer.write(rows, Batch(f"{query}.{self._flow.name}", number, watermark, digest))
        # 7.
        self._files.sync()
        return counts

    def _read_watermark(self, number: int) -> datetime | None:
        if not self._flow.late_rows:
            return None
        # Operators inside of steps compare rows with the watermark of the batch before.
        return read_watermark(self._checkpoint, number - 1 if self._flow.steps else number)

    def _digest(self, query: str, number: int, manifest: Manifest | None) -> str:
        planned = planned_batch(self._spark, query)
        if self._reads_parquet:
            planned.append(read_source_offsets(self._checkpoint, number))
        return batch_digest(planned, manifest, self._flow_digest)


def read_watermark(checkpoint: str, number: int) -> datetime | None:
    """Return the watermark that a batch began with, from Spark's offset log; None before the first batch.

    Raise WatermarkMissing if the log does not have the batch.
    """
    if number < 0:
        return None
    lines = read_offset_lines(checkpoint, number)
    if lines is None:
        raise WatermarkMissing(checkpoint, number)
    return watermark_of_batch(json.loads(lines[1]))
