"""The partitions that a source reads, and their offsets in the cluster: the driver's side of reading, without Spark.

Spark ends a query whose source raises, so temporary errors are retried here: the client retries until its timeout, and
a reply that would mean lost records is requested several times before it is believed.

Spark asks an idle source for its latest offset about a hundred times a second. `TopicWatcher.latest` then waits in a
Fetch, which the broker answers when there are records: an idle source sends a few requests per second, and new records
are noticed at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Self

from ottla.client.cluster import Cluster, Isolation
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.client.protocol.metadata import Node, TopicInfo
from ottla.model.types import TopicPartition
from ottla.spark.clusters import open_cluster
from ottla.spark.offsets import EARLIEST, LATEST, Bound, Observed, PartitionOffsets
from ottla.spark.options import Connection, NoMatch, OptionError, ReadOptions
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

#: new partitions and topics are noticed after this time at the latest
_TOPICS_AGE_S_MAX: Final = 1.0
#: the last version that names topics instead of their ids
_FETCH_VERSION_MAX: Final = 12
#: end offsets that are not older than this are not requested again
_LISTED_AGE_S_MAX: Final = 0.1
#: a broker answers a long poll at most this much later than its end
_ANSWER_SLACK_S: Final = 10.0


class TopicWatcher:
    """Requests partitions and offsets from the cluster. Not thread safe."""

    def __init__(
        self,
        options: ReadOptions,
        *,
        open_cluster: Callable[[Connection], Cluster] = open_cluster,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self.cluster = open_cluster(options.connection)
        self._isolation = Isolation.READ_COMMITTED if options.read_committed else Isolation.READ_UNCOMMITTED
        self._topics: dict[str, TopicInfo] = {}
        self._topics_at: float | None = None
        self._listed, self._listed_at = PartitionOffsets(), -math.inf
        #: ids of the topics whose partitions were read; a topic with another id was created again
        self._former_ids: dict[str, bytes] = {}

    def close(self) -> None:
        self.cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Topics

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions to read. Raise OptionError if a topic that the options name does not exist."""
        topics = self._refresh()
        absent = [name for name in self._options.subscription.names if name not in topics]
        if absent:
            raise OptionError(f"the topic {absent[0]} does not exist: create it, or correct the options of the source")
        return self._wanted()

    def _wanted(self) -> list[TopicPartition]:
        return self._options.subscription.partitions({name: info.partitions for name, info in self._topics.items()})

    def _refresh(self) -> dict[str, TopicInfo]:
        subscription = self._options.subscription
        found = self.cluster.topics(subscription.names or None)
        self._topics = {
            name: info
            for name, info in found.items()
            # As in Spark's connector, a pattern does not match the cluster's own topics.
            if subscription.wants(name) and not (info.internal and subscription.pattern is not None)
        }
        self._topics_at = self._clock()
        for name, info in self._topics.items():
            if any(info.topic_id):
                self._former_ids.setdefault(name, info.topic_id)
        return self._topics

    def _refresh_if_old(self) -> None:
        if self._topics_at is None or self._clock() - self._topics_at >= _TOPICS_AGE_S_MAX:
            self._refresh()

    # Offsets

    def resolve(self, bound: Bound, option: str, *, starting: bool) -> PartitionOffsets:
        """Return the offsets that a bound stands for. Raise OptionError."""
        partitions = self.partitions()
        try:
            wanted = bound.of(partitions, option)
        except ValueError as error:
            raise OptionError(str(error)) from None
        if bound.by_timestamp:
            wanted = self._offsets_at(wanted, strict=starting and self._options.no_match is NoMatch.ERROR)
        edges = self._ask({tp: offset for tp, offset in wanted.items() if offset in (EARLIEST, LATEST)})
        return PartitionOffsets({tp: edges.get(tp, offset) for tp, offset in wanted.items()})

    def _offsets_at(self, timestamps: Mapping[TopicPartition, int], *, strict: bool) -> dict[TopicPartition, int]:
        """Return the first offset with this timestamp or a later one; LATEST where there is none."""
        found = self._ask(timestamps)
        for tp in sorted(found):
            if found[tp] < 0 and strict:
                raise OptionError(
                    f"{tp} has no record as new as {timestamps[tp]}: choose an earlier time, or set "
                    "startingOffsetsByTimestampStrategy to latest"
                )
        return {tp: offset if offset >= 0 else LATEST for tp, offset in found.items()}

    def latest(self, known: Mapping[TopicPartition, int], *, wait_s: float = 0.0) -> PartitionOffsets:
        """Return the ends of all partitions to read; with ``wait_s``, wait so long for records after ``known``.

        An end before ``known``, or a missing partition, may come from a broker that lags: the offsets are requested
        again before such an end is returned.
        """
        # A caller that waits in a loop has a recent answer: request the offsets only after the wait.
        fresh = self._clock() - self._listed_at < _LISTED_AGE_S_MAX
        found = self._listed if wait_s and fresh else self._latest_once()
        if wait_s and found == known:
            found = self._await_records(found, wait_s)
        for _ in range(self._options.attempts - 1):
            if all(tp in found and found[tp] >= offset for tp, offset in known.items()):
                break
            self._sleep(self._options.attempt_interval_s)
            self._topics_at = None
            found = self._latest_once()
        return found

    def _latest_once(self) -> PartitionOffsets:
        self._refresh_if_old()
        try:
            ends = self._ask(dict.fromkeys(self._wanted(), LATEST))
        except ClientError:
            # A topic may have been deleted since it was listed; any other error occurs again in the second request.
            self._refresh()
            ends = self._ask(dict.fromkeys(self._wanted(), LATEST))
        self._listed, self._listed_at = PartitionOffsets(ends), self._clock()
        return self._listed

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._ask(dict.fromkeys(partitions, EARLIEST))

    def observe(self, partitions: Collection[TopicPartition]) -> Observed:
        """Return the state of these partitions. Call it before a batch is planned."""
        names = {tp.topic for tp in partitions}
        topics = self.cluster.topics(names)
        existing = [tp for tp in partitions if tp.topic in topics and tp.partition < topics[tp.topic].partitions]
        return Observed(
            partition_counts={name: info.partitions for name, info in topics.items()},
            topic_ids={name: info.topic_id for name, info in topics.items() if any(info.topic_id)},
            log_starts=self.earliest(existing),
            former_ids=dict(self._former_ids),
        )

    def recreated(self, topics: Iterable[str]) -> bool:
        """Return whether one of these topics has another id than before, from the metadata that is known already."""
        now = {topic: self._topics[topic].topic_id for topic in topics if topic in self._topics}
        return any(self._former_ids.get(topic, topic_id) != topic_id for topic, topic_id in now.items())

    def accept(self, observed: Observed) -> None:
        """Take these topics for the ones that are read. Losses of former topics with these names were reported."""
        self._former_ids.update(observed.topic_ids)

    def _ask(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        found = self.cluster.list_offsets(wanted, isolation=self._isolation)
        return {tp: at.offset for tp, at in found.items()}

    # Waiting

    def _await_records(self, positions: PartitionOffsets, wait_s: float) -> PartitionOffsets:
        """Wait until there are records after these positions, at most ``wait_s``, and return the ends."""
        started = self._clock()
        try:
            self._fetch_and_forget(positions, wait_s)
        except ClientError:
            # The next request retries until its timeout, and raises the error.
            pass
        found = self._latest_once()
        if found == positions:
            # An early reply without records must not lead to a busy loop.
            self._sleep(max(wait_s - (self._clock() - started), 0.0))
        return found

    def _fetch_and_forget(self, positions: PartitionOffsets, wait_s: float) -> None:
        deadline = self._clock() + wait_s + _ANSWER_SLACK_S
        by_node: dict[Node, dict[TopicPartition, int]] = {}
        for tp, offset in positions.items():
            by_node.setdefault(self.cluster.leader(tp, deadline).node, {})[tp] = offset
        waiting: list[BrokerConnection] = []
        try:
            for node, offsets in by_node.items():
                connection = self.cluster.borrow(node, deadline)
                waiting.append(connection)
                request = self._waiting_fetch(offsets, wait_s)
                connection.send(request, deadline=deadline, version_max=_FETCH_VERSION_MAX)
            for connection in waiting:
                connection.receive_frame(deadline, None)
        finally:
            for connection in waiting:
                self.cluster.give_back(connection)

    def _waiting_fetch(self, positions: Mapping[TopicPartition, int], wait_s: float) -> FetchRequest:
        topics: dict[str, list[FetchPartition]] = {}
        for tp, offset in positions.items():
            # Only whether there is a record matters; with a limit of one byte the reply has one batch.
            row = FetchPartition(partition=tp.partition, fetch_offset=offset, partition_max_bytes=1)
            topics.setdefault(tp.topic, []).append(row)
        return FetchRequest(
            replica_id=-1, max_wait=int(wait_s * 1000), min_bytes=1, max_bytes=1, isolation_level=self._isolation,
            session_id=0, session_epoch=-1,
            topics=[FetchTopic(topic=topic, partitions=rows) for topic, rows in topics.items()],
        )  # fmt: skip

    # Groups

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        self.cluster.commit(group, offsets)
