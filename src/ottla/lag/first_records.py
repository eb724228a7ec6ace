"""Reads the timestamp of the first record at or after an offset, for many partitions with one Fetch per leader.

The search goes in rounds. In each round every leader gets one request for all of its partitions that are not known yet
(at most PARTITIONS_MAX). A broker leaves out a batch that is larger than the limit of its partition, apart from the
first one of a reply, so the partitions without an answer are asked for first, and for more bytes, in the next round.

Committed records are asked for, so that the broker names the aborted transactions. The offsets from the last stable
offset on belong to open transactions, or come after them: where the search arrives there, it goes on with all records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.cluster import Cluster, Isolation
from ottla.client.errors import BrokerError, ClientError
from ottla.client.fetching import Aborted
from ottla.client.many import ask_many
from ottla.client.protocol.metadata import Leader, Node, by_topic
from ottla.lag.scan import first_record
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire import ZERO_UUID
from ottla.wire.fetch import TOPIC_IDS_FROM
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

#: partitions in one request
PARTITIONS_MAX: Final = 500
#: bytes of a partition in the first round, and in later ones
_BYTES_FIRST: Final = 16 << 10
_BYTES_LATER: Final = 1 << 20
#: bytes of a reply, apart from a first batch that is larger
_REPLY_BYTES_MAX: Final = 4 << 20
#: the newest version whose requests the client can send
_VERSION_MAX: Final = 17
#: failures of one partition until it is given up
_FAILURES_MAX: Final = 3
_PAUSE_S: Final = 0.05
_ROUND_S_MAX: Final = 5.0
_FORBIDDEN: Final = frozenset({ErrorCode.TOPIC_AUTHORIZATION_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """What one search may cost."""

    time_s: float = 5.0
    bytes_max: int = 64 << 20


@dataclass(slots=True, kw_only=True)
class Search:
    """The search in one partition."""

    name: TopicPartition
    #: the next offset to look at
    position: int
    #: the high watermark; the search ends here
    end: int
    isolation: Isolation = Isolation.READ_COMMITTED
    #: the last round brought nothing, so that the partition is asked for first, and for more bytes
    is_hungry: bool = False
    failures: int = 0
    is_done: bool = False
    #: when it is done: the timestamp of the record; None if there is no such record, or `is_unknown`
    timestamp_ms: int | None = None
    is_unknown: bool = False

    def found(self, timestamp_ms: int | None) -> None:
        """End the search at a record; None stands for a record without a known timestamp."""
        self.is_done, self.timestamp_ms, self.is_unknown = True, timestamp_ms, timestamp_ms is None

    def failed(self) -> None:
        self.failures += 1
        if self.failures >= _FAILURES_MAX:
            self.is_done = self.is_unknown = True

    def advance(self, data: bytes, aborted: Iterable[Aborted], *, ends: tuple[int, int], is_first: bool) -> None:
        """Apply a reply.

        ``ends`` are the high watermark and the last stable offset. ``is_first`` says that no batches were before these,
        so that the broker sends a batch of any size.
        """
        watermark, stable = ends
        scanned = first_record(data, self.position, aborted)
        if scanned.is_found and scanned.position < self.end:
            self.found(scanned.timestamp_ms)
            return
        has_moved = scanned.position > self.position
        self.position = scanned.position
        if self.position >= self.end:
            self.is_done = True
        elif self.isolation is Isolation.READ_COMMITTED and 0 <= stable <= self.position:
            self.isolation, self.is_hungry = Isolation.READ_UNCOMMITTED, False
        elif watermark <= self.position:
            # A new leader does not know the high watermark yet.
            self.failed()
        elif is_first and not data:
            self._end_of_batches(stable)
        else:
            self.is_hungry = not has_moved

    def _end_of_batches(self, stable: int) -> None:
        """The broker has no batch at the position, though it may send one of any size: compaction has removed them."""
        if self.isolation is Isolation.READ_COMMITTED and 0 <= stable < self.end:
            self.position, self.isolation, self.is_hungry = stable, Isolation.READ_UNCOMMITTED, False
        else:
            self.is_done = True


def first_timestamps(
    cluster: Cluster, ranges: Mapping[TopicPartition, tuple[int, int]], limits: ReadLimits
) -> tuple[dict[TopicPartition, int | None], list[str]]:
    """Return the timestamp of the first record of each range of offsets, and why some are missing.

    None stands for a range without a record. A partition whose answer is not known within the limits is absent.
    """
    searches = {name: Search(name=name, position=start, end=end) for name, (start, end) in ranges.items()}
    reader = _Rounds(cluster, limits)
    reader.run(searches)
    left = [each for each in searches.values() if not each.is_done or each.is_unknown]
    problems = list(reader.problems)
    if unread := sum(not each.is_done for each in left):
        problems.append(f"no time lag for {unread} of {len(searches)} partitions within {reader.reached}")
    known = {
        name: each.timestamp_ms for name, each in searches.items() if each.is_done and not each.is_unknown
    }  # fmt: skip
    return known, problems


class _Rounds:
    """Sends the requests of the rounds until every search is done, or a limit is reached."""

    def __init__(self, cluster: Cluster, limits: ReadLimits) -> None:
        self._cluster = cluster
        self._limits = limits
        self._bytes = 0
        #: the limit that ended the search
        self.reached = ""
        self.problems: dict[str, None] = {}

    def run(self, searches: Mapping[TopicPartition, Search]) -> None:
        until = time.monotonic() + self._limits.time_s
        while open_ones := [each for each in searches.values() if not each.is_done]:
            if time.monotonic() >= until:
                self.reached = f"{self._limits.time_s:g} s"
                return
            if self._bytes >= self._limits.bytes_max:
                self.reached = f"{self._limits.bytes_max >> 20} MiB"
                return
            before = [(each.position, each.isolation, each.is_hungry) for each in open_ones]
            try:
                self._round(searches, open_ones, min(until, time.monotonic() + _ROUND_S_MAX))
            except ClientError as error:
                self._fail(open_ones, error)
            if before == [(each.position, each.isolation, each.is_hungry) for each in open_ones]:
                time.sleep(_PAUSE_S)

    def _round(self, searches: Mapping[TopicPartition, Search], waiting: list[Search], deadline: float) -> None:
        leaders = self._cluster.leaders([each.name for each in waiting], deadline)
        for search in waiting:
            if search.name not in leaders:
                self._fail([search], BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"records of {search.name}"))
        requests = list(_requests(waiting, leaders))
        topics = {leader.topic_id: name.topic for name, leader in leaders.items()}
        has_ids = all(leader.topic_id != ZERO_UUID for leader in leaders.values())
        highest = _VERSION_MAX if has_ids else TOPIC_IDS_FROM - 1
        for _, request, reply in ask_many(self._cluster, requests, deadline, version_max=highest):
            names = [TopicPartition(each.topic, row.partition) for each in request.topics for row in each.partitions]
            asked = [searches[name] for name in names]
            if isinstance(reply, ClientError) or reply.error_code:
                error = reply if isinstance(reply, ClientError) else BrokerError(reply.error_code, "records")
                self._fail(asked, error)
                continue
            self._apply(searches, asked, topics, reply)

    def _apply(
        self,
        searches: Mapping[TopicPartition, Search],
        asked: list[Search],
        topics: Mapping[bytes, str],
        reply: Any,
    ) -> None:
        rows = {
            TopicPartition(topic.topic or topics.get(bytes(topic.topic_id), ""), row.partition_index): row
            for topic in reply.responses
            for row in topic.partitions
        }
        is_first = True
        for search in asked:
            row = rows.get(search.name)
            if row is None or row.error_code:
                code = row.error_code if row is not None else ErrorCode.UNKNOWN_SERVER_ERROR
                self._fail([search], BrokerError(code, f"records of {search.name}"))
                continue
            data = row.records or b""
            self._bytes += len(data)
            aborted = [Aborted(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
            search.advance(data, aborted, ends=(row.high_watermark, row.last_stable_offset), is_first=is_first)
            is_first = is_first and not data

    def _fail(self, searches: Iterable[Search], error: ClientError) -> None:
        for search in searches:
            if isinstance(error, BrokerError) and error.code in _FORBIDDEN:
                search.failures = _FAILURES_MAX
            search.failed()
            self._cluster.forget(search.name.topic)
            if search.is_done:
                self.problems[f"time lag not read: {error}"] = None


def _requests(
    waiting: Iterable[Search], leaders: Mapping[TopicPartition, Leader]
) -> Iterator[tuple[Node, FetchRequest]]:
    """Yield one request per leader for committed records, and one for all records where no committed ones are left."""
    groups: dict[Node, dict[Isolation, list[Search]]] = {}
    for search in waiting:
        if search.name in leaders:
            of_node = groups.setdefault(leaders[search.name].node, {})
            of_node.setdefault(search.isolation, []).append(search)
    for node, by_isolation in groups.items():
        for isolation, found in by_isolation.items():
            chosen = sorted(found, key=lambda each: not each.is_hungry)[:PARTITIONS_MAX]
            yield node, _request(chosen, leaders, isolation)


def _request(chosen: list[Search], leaders: Mapping[TopicPartition, Leader], isolation: Isolation) -> FetchRequest:
    searches = {each.name: each for each in chosen}
    topics = [
        FetchTopic(
            topic=topic,
            topic_id=leaders[names[0]].topic_id,
            partitions=[
                FetchPartition(
                    partition=name.partition,
                    current_leader_epoch=leaders[name].epoch,
                    fetch_offset=searches[name].position,
                    partition_max_bytes=_BYTES_LATER if searches[name].is_hungry else _BYTES_FIRST,
                )
                for name in names
            ],
        )
        for topic, names in by_topic(searches).items()
    ]
    return FetchRequest(max_wait=0, min_bytes=0, max_bytes=_REPLY_BYTES_MAX, isolation_level=isolation, topics=topics)
