"""Spark looks for ``format("ottla")`` in a module of this name: nothing has to be registered."""

from ottla.spark.source import OttlaDataSource as DefaultSource

__all__ = ["DefaultSource"]
