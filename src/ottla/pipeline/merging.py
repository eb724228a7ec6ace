"""Rows that replace each other: those of a batch take the place of rows of a table that have the same keys.

Spark hands the batch over as one Arrow table, so this is for what changes between two batches, not for a whole history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from ottla.spark.table_commit import TableBatch, has_batch, properties_of, to_delta
from ottla.spark.table_location import TableLocation
from ottla.spark.table_schema import prepare_new

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def merge_rows(
    location: TableLocation,
    rows: DataFrame,
    keys: Sequence[str],
    partition_by: Sequence[str],
    batch: TableBatch,
) -> None:
    """Merge a batch once."""
    if not location.exists():
        schema = to_delta(prepare_new(rows.schema.jsonValue(), tuple(partition_by)))
        storage = dict(location.storage) or None
        DeltaTable.create(location.uri, schema, mode="ignore", partition_by=list(partition_by), storage_options=storage)
    table = location.table()
    arrow = rows.toArrow()
    if has_batch(table, batch) or not arrow.num_rows:
        return
    same = " AND ".join(f"old.`{key}` IS NOT DISTINCT FROM new.`{key}`" for key in keys)
    merge = table.merge(arrow, same, source_alias="new", target_alias="old", commit_properties=properties_of(batch))
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
