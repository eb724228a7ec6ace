"""Which rows come too late for a query: found in the query's own plan, whoever wrote it, in SQL or in Python.

Spark's operators that keep state by event time (windows, joins of two streams, dropping of duplicates) drop rows behind
the watermark and say nothing but how many. Here a second look is taken at the rows that enter them: `entering` gives
exactly those, each with the time that the operator holds against the watermark. That is the row's event time, and for
windows the end of the window, so that a row whose window is still open is not late however old it is. A row that falls
into several windows enters once for each.

Of operators that stand on one another only the lowest count: what reaches the others was made from rows that came in
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

#: where Spark notes that a column has a watermark
_DELAY = "spark.watermarkDelayMs"
#: of the rows that `entering` gives: the time that counts, and the row itself
AT = "at"
ROW = "row"
_TIME = "__at"
#: what Spark calls aggregations in the progress of a query
_AGGREGATIONS = frozenset({"stateStoreSave", "sessionWindowStateStoreSaveExec"})


def entering(rows: DataFrame) -> DataFrame | None:
    """The rows that enter operators which drop late ones, as columns `at` and `row`; None if there is no such operator.

    Rows of different operators have all columns of any of them, null where they have none of that name.
    """
    entrances = list(_entrances(rows._jdf.queryExecution().analyzed()))
    if not entrances:
        return None
    spark = rows.sparkSession
    jvm: Any = spark._jvm
    parts = []
    for plan, column in entrances:
        part = DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, plan), spark)
        time = F.col(f"`{column.name()}`")
        is_window = column.dataType().typeName() == "struct"
        parts.append(part.withColumn(_TIME, (time["end"] if is_window else time).cast("timestamp")))
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


def inputs_read(rows: DataFrame) -> int:
    """How many streams one batch of these rows reads, each as often as it does."""
    return _leaves(rows._jdf.queryExecution().analyzed())


def _entrances(plan: Any) -> Iterator[tuple[Any, Any]]:
    """What the lowest operators that drop late rows read, with the column that decides."""
    found = False
    for child in _children(plan):
        for entrance in _entrances(child):
            found = True
            yield entrance
    if found or not plan.isStreaming():
        return
    kind = plan.getClass().getSimpleName()
    if kind == "Aggregate":
        columns = [one for one in _each(plan.groupingExpressions()) if _is_column(one)]
        yield from ((plan.child(), column) for column in _marked(columns))
    elif kind in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct"):
        yield from ((plan.child(), column) for column in _marked(_each(plan.child().output())))
    elif kind == "Join" and all(side.isStreaming() for side in _children(plan)):
        for side in _children(plan):
            yield from ((side, column) for column in _marked(_each(side.output())))


def _marked(columns: Any) -> list[Any]:
    """The first column that has a watermark, which is the one that Spark goes by."""
    return [one for one in columns if one.metadata().contains(_DELAY)][:1]


def _is_column(expression: Any) -> bool:
    return bool(expression.getClass().getSimpleName() == "AttributeReference")


def _leaves(plan: Any) -> int:
    children = list(_children(plan))
    return sum(map(_leaves, children)) if children else int(plan.isStreaming())


def _children(plan: Any) -> Iterator[Any]:
    return _each(plan.children())


def _each(sequence: Any) -> Iterator[Any]:
    """The members of a Scala sequence."""
    return (sequence.apply(at) for at in range(sequence.size()))
