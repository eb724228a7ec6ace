"""Listeners that keep up with many queries: a progress comes from Java as one text.

PySpark fetches each figure of a progress from Java by a call of its own, and RocksDB alone has some fifty for each
operator. With a dozen queries on a busy machine these calls take longer than the batches, and listeners get events that
are minutes old.
"""

from __future__ import annotations

from pyspark.sql.streaming import StreamingQueryListener

from ottla.spark.spark_internals import JsonProgress


class QueryListener(JsonProgress, StreamingQueryListener):
    """A StreamingQueryListener that gets the same events, each with one call."""
