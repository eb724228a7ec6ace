"""Spark imports modules whose name begins with ``pyspark_``, so ``format("ottla-table")`` needs no registration."""

from ottla.spark.lake import TableDataSource as DefaultSource

__all__ = ["DefaultSource"]
