"""Listeners that keep up with many queries: a progress comes from Java as one text.

PySpark asks Java for each figure of a progress by itself, and RocksDB alone has some fifty for each operator. With a
dozen queries on a busy machine that is slower than progress is made, and what listeners are told is minutes old.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

_RATES = ("inputRowsPerSecond", "processedRowsPerSecond")
_OFFSETS = ("startOffset", "endOffset", "latestOffset")


class QueryListener(StreamingQueryListener):
    """To be used in place of PySpark's; what it is told is the same."""

    @property
    def _jlistener(self) -> Any:
        # One object for all of this listener's life: Spark knows it by that when it is removed.
        if not hasattr(self, "_in_java"):
            jvm: Any = SparkContext._jvm
            self._in_java = jvm.PythonStreamingQueryListenerWrapper(_Receiver(self))
        return self._in_java


class _Receiver(JStreamingQueryListener):
    """What Java calls."""

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.onQueryProgress(QueryProgressEvent(read_progress(jevent.progress().json())))


def read_progress(text: str) -> StreamingQueryProgress:
    """A progress from Spark's JSON, which leaves out what is no number, or not there."""
    document = json.loads(text)
    for part in (document, *document["sources"]):
        for name in _RATES:
            part.setdefault(name, 0.0)
    document.setdefault("name", None)
    progress = StreamingQueryProgress.fromJson(document)
    for source in progress.sources:
        for name in _OFFSETS:
            if source[name] == "null":
                source[name] = None
    return progress
