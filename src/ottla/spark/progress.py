"""The progress of streaming queries as offsets of consumer groups, so that tools for consumer lag show it.

Spark keeps its offsets in checkpoints. After each batch the listener commits the batch's end as the offsets of a
group, named by the option ``kafka.group.id`` or, with ``groupIdPrefix``, prefix and query name together. The group has
no members, and no reader uses these commits: they are for tools that show lag.

    publish_progress(spark, {"kafka.bootstrap.servers": "localhost:9092", "groupIdPrefix": "spark"})
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.spark.clusters import open_cluster
from ottla.spark.listening import QueryListener
from ottla.spark.offsets import PartitionOffsets
from ottla.spark.options import Connection, Options
from ottla.spark.spark_internals import TOPIC_SOURCES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

log = logging.getLogger("ottla.spark")

_GROUP_PREFIX_DEFAULT = "spark"
#: Spark calls listeners one after another: a cluster that does not answer must not delay the others
_COMMIT_S_MAX = 5.0
_OPEN_CLUSTER = partial(open_cluster, timeout_s=_COMMIT_S_MAX)


def publish_progress(spark: SparkSession, options: Mapping[str, str]) -> ProgressPublisher:
    """Publish the progress of all queries of this session. ``options`` are those of the source, or a part of them."""
    publisher = ProgressPublisher(options)
    spark.streams.addListener(publisher)
    return publisher


class ProgressPublisher(QueryListener):
    """Commits the end of each batch. Spark calls it from one thread."""

    def __init__(
        self, options: Mapping[str, str], *, open_cluster: Callable[[Connection], Cluster] = _OPEN_CLUSTER
    ) -> None:
        wanted = ("kafka.", "groupidprefix")
        given = Options({n: v for n, v in options.items() if n.lower().startswith(wanted)}, ("groupIdPrefix",))
        self._connection = given.connection()
        self._group = given.properties.get("group.id")
        self._prefix = given.text("groupIdPrefix") or _GROUP_PREFIX_DEFAULT
        self._open_cluster = open_cluster
        self._cluster: Cluster | None = None

    def group_of(self, progress: StreamingQueryProgress) -> str:
        """Return the group of a query. A query without a name has its id, which its checkpoint keeps."""
        return self._group or f"{self._prefix}-{progress.name or progress.id}"

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        offsets = PartitionOffsets()
        for source in progress.sources:
            offsets.update(offsets_of(source.description, source.endOffset))
        if not offsets:
            return
        try:
            if self._cluster is None:
                self._cluster = self._open_cluster(self._connection)
            self._cluster.commit(self.group_of(progress), offsets)
        except ClientError as error:
            # Only the checkpoint decides where a query continues; the commit of the next batch replaces this one.
            log.warning("the progress of group %s was not published: %s", self.group_of(progress), error)
            self.close()

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: nothing has been read since the last progress."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self.close()

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


def offsets_of(description: str, end_offset: str | None) -> PartitionOffsets:
    """Return the offsets of a source that reads topics; none for other sources, such as files and tables."""
    if end_offset is None or not any(kind in description for kind in TOPIC_SOURCES):
        return PartitionOffsets()
    try:
        return PartitionOffsets.from_json(end_offset)
    except ValueError:
        # Another source in Python, whose offsets have another form.
        return PartitionOffsets()
