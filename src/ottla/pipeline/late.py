"""Which rows come too late for a query, found in the query's own plan: the same for steps in SQL and in Python.

Spark's operators that keep state by event time (windows, joins of two streams, deduplication) drop rows that are older
than the watermark, and report only their number. `entering` returns the rows that enter these operators, each with the
time that the operator compares with the watermark. That is the row's event time; for windows it is the end of the
window, so that a row whose window is still open is not late however old it is. A row that falls into several windows
enters once for each.

Where one such operator reads the result of another, only the lower one counts: its results come from rows that were in
time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ottla.spark.spark_internals import stateful_inputs

#: of the rows that `entering` gives: the time that counts, and the row itself
AT = "at"
ROW = "row"
_TIME = "__at"
#: what Spark calls aggregations in the progress of a query
_AGGREGATIONS = frozenset({"stateStoreSave", "sessionWindowStateStoreSaveExec"})


def entering(rows: DataFrame) -> DataFrame | None:
    """Return the rows that enter operators which drop late rows, as columns `at` and `row`; None if there are no such.

    The rows of every operator have the columns of all operators, null where the operator has no column of that name.
    """
    inputs = stateful_inputs(rows)
    if not inputs:
        return None
    parts = []
    for one in inputs:
        time = F.col(f"`{one.column}`")
        parts.append(one.rows.withColumn(_TIME, (time["end"] if one.is_window else time).cast("timestamp")))
    every = reduce(lambda one, two: one.unionByName(two, allowMissingColumns=True), parts)
    columns = [f"`{name}`" for name in every.columns if name != _TIME]
    return every.select(F.col(_TIME).alias(AT), F.struct(*columns).alias(ROW))


def count_late(operators: Iterable[Any]) -> tuple[int, int]:
    """Return how many late rows, and how many late groups, the stateful operators of a batch have dropped.

    Joins and operators that drop duplicates compare each row with the watermark. Aggregations compare groups: the rows
    of a task that belong to one group have been added up before.
    """
    rows = groups = 0
    for one in operators:
        if one.operatorName in _AGGREGATIONS:
            groups += one.numRowsDroppedByWatermark
        else:
            rows += one.numRowsDroppedByWatermark
    return rows, groups
