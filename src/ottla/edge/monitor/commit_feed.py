"""Reads commits from `__consumer_offsets`, as Burrow does: with their times, and also those that repeat an offset.

The offsets that a coordinator returns have no times, so that a consumer that commits the same offset again and again
(a stall) looks like one that commits nothing (a stop). Each round reads what was appended since the last one, with one
Fetch per leader and a limit of bytes. The first round begins `_LOOK_BACK_MS` before now.

Commits of aborted transactions do not count, those of open ones count when the transaction is committed. A client that
may not read the topic, or a cluster without it, has no feed: then each change of an offset counts as a commit at the
time of the round (`is_usable`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError
from typing import Any, Final

from ottla.admin.client import AdminClient
from ottla.admin.outages import GROUPS_TOPIC
from ottla.client.cluster import LATEST, Cluster, Isolation
from ottla.client.errors import ClientError
from ottla.client.fetching import Aborted, whole_batches
from ottla.client.many import ask_many
from ottla.client.protocol.metadata import Leader
from ottla.edge.monitor.histories import SeenCommit
from ottla.lag.reading import list_offsets
from ottla.model.batch import CONTROL, TRANSACTIONAL, read_header
from ottla.model.errors import ErrorCode, InvalidRecord, OttlaError, RecordsTooLarge
from ottla.model.printable import shown
from ottla.model.records import iterate_records
from ottla.model.types import TopicPartition
from ottla.wire import ZERO_UUID, WireError, decode
from ottla.wire.fetch import TOPIC_IDS_FROM
from ottla.wire.group_records import OffsetCommitValue
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

#: commits that are older than this are not read at the start
_LOOK_BACK_MS: Final = 3_600_000
#: bytes of a partition and of a reply; a batch that is larger comes alone
_PARTITION_BYTES: Final = 512 << 10
_REPLY_BYTES: Final = 4 << 20
#: bytes that one round reads, and what a batch may decompress to
_ROUND_BYTES_MAX: Final = 16 << 20
_DECOMPRESSED_BYTES_MAX: Final = 16 << 20
#: the newest version of Fetch whose requests the client can send
_VERSION_MAX: Final = 17
_FORBIDDEN: Final = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
#: the types of keys with an offset
_OFFSET_KEYS: Final = (0, 1)
_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")


@dataclass(slots=True)
class Position:
    """Where a partition is read."""

    offset: int
    #: producers with an aborted transaction that has no marker yet at this position
    aborted: set[int] = field(default_factory=set)


class CommitFeed:
    """The commits of one cluster, read round by round. Not thread safe."""

    def __init__(self, client: AdminClient, limit_s: float) -> None:
        self._client = client
        self._limit_s = limit_s
        self._positions: dict[TopicPartition, Position] = {}
        #: why the topic cannot be read; empty if it can
        self.problem = ""
        self._is_forbidden = False
        #: the last round has read all that there was
        self.is_complete = False

    @property
    def is_usable(self) -> bool:
        """Return whether commits come from the topic."""
        return bool(self._positions) and not self._is_forbidden

    def forbid(self) -> None:
        """Read no more: this client may not."""
        self._is_forbidden = True

    def read(self, partitions: Sequence[TopicPartition]) -> list[SeenCommit]:
        """Return the commits since the last round, in the order of each partition of the topic."""
        if self._is_forbidden or not partitions:
            return []
        self.problem = ""
        try:
            return self._client.call(lambda cluster: self._read(cluster, partitions))
        except OttlaError as error:
            self.problem = shown(str(error))
            return []

    def _read(self, cluster: Cluster, partitions: Sequence[TopicPartition]) -> list[SeenCommit]:
        self._find_starts(cluster, [name for name in partitions if name not in self._positions])
        found: list[SeenCommit] = []
        until = time.monotonic() + self._limit_s
        left = _ROUND_BYTES_MAX
        wanted = {name for name in partitions if name in self._positions}
        while wanted and left > 0 and time.monotonic() < until:
            size, wanted = self._fetch(cluster, wanted, until, found)
            left -= size
        self.is_complete = not wanted
        return found

    def _find_starts(self, cluster: Cluster, names: Sequence[TopicPartition]) -> None:
        """Set the positions of partitions that were not read yet."""
        if not names:
            return
        since = time.time_ns() // 1_000_000 - _LOOK_BACK_MS
        found = list_offsets(cluster, names, since, self._limit_s)
        # A partition without a record of that time, or from that time on, begins at its end.
        missing = [name for name in names if name not in found]
        ends = list_offsets(cluster, missing, LATEST, self._limit_s) if missing else {}
        for name, offset in {**ends, **found}.items():
            self._positions[name] = Position(offset)

    def _fetch(
        self, cluster: Cluster, names: Iterable[TopicPartition], until: float, found: list[SeenCommit]
    ) -> tuple[int, set[TopicPartition]]:
        """Send a request to each leader. Return the bytes of the replies, and the partitions with more to read."""
        leaders = cluster.leaders(list(names), until)
        by_node: dict[Any, list[TopicPartition]] = {}
        for name, leader in leaders.items():
            by_node.setdefault(leader.node, []).append(name)
        requests = [(node, self._request(each, leaders)) for node, each in by_node.items()]
        has_ids = all(leader.topic_id != ZERO_UUID for leader in leaders.values())
        size, more = 0, set()
        version_max = _VERSION_MAX if has_ids else TOPIC_IDS_FROM - 1
        for _, _, reply in ask_many(cluster, requests, until, version_max=version_max):
            if isinstance(reply, ClientError) or reply.error_code:
                self.problem = f"{GROUPS_TOPIC}: {reply if isinstance(reply, ClientError) else reply.error_code}"
                cluster.forget(GROUPS_TOPIC)
                continue
            is_first = True
            for row in (row for topic in reply.responses for row in topic.partitions):
                name = TopicPartition(GROUPS_TOPIC, row.partition_index)
                if row.error_code:
                    self._fail(cluster, name, row.error_code)
                    continue
                data = row.records or b""
                size += len(data)
                if self._advance(name, row, found, is_first=is_first):
                    more.add(name)
                is_first = is_first and not data
        return size, more

    def _fail(self, cluster: Cluster, name: TopicPartition, code: int) -> None:
        self.problem = f"{name}: {ErrorCode(code).name if code in ErrorCode.__members__.values() else code}"
        if code in _FORBIDDEN:
            self.forbid()
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            del self._positions[name]  # its place is found again in the next round
        cluster.forget(GROUPS_TOPIC)

    def _advance(self, name: TopicPartition, row: Any, found: list[SeenCommit], *, is_first: bool) -> bool:
        """Apply the batches of a partition. Return whether there is more to read.

        ``is_first`` says that no batches were before these, so that the broker sends a batch of any size.
        """
        position = self._positions[name]
        data = row.records or b""
        aborted = [Aborted(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()]
        found += commits_of(data, position, aborted)
        stable: int = row.last_stable_offset if row.last_stable_offset >= 0 else row.high_watermark
        if not data and is_first and position.offset < stable:
            position.offset = stable  # compaction has removed the rest
        return position.offset < stable

    def _request(self, names: Sequence[TopicPartition], leaders: Mapping[TopicPartition, Leader]) -> FetchRequest:
        partitions = [
            FetchPartition(
                partition=name.partition,
                current_leader_epoch=leaders[name].epoch,
                fetch_offset=self._positions[name].offset,
                partition_max_bytes=_PARTITION_BYTES,
            )
            for name in names
        ]
        topic = FetchTopic(topic=GROUPS_TOPIC, topic_id=leaders[names[0]].topic_id, partitions=partitions)
        return FetchRequest(
            max_wait=0, min_bytes=0, max_bytes=_REPLY_BYTES, isolation_level=Isolation.READ_COMMITTED, topics=[topic]
        )  # fmt: skip


def commits_of(data: bytes | memoryview, position: Position, aborted: Iterable[Aborted]) -> Iterator[SeenCommit]:
    """Yield the commits of batches. Move the position behind each batch that was read."""
    waiting = sorted(aborted, key=lambda row: row.first_offset, reverse=True)
    view = memoryview(data)
    size, _ = whole_batches(view)
    at, start = 0, position.offset
    while at < size:
        header = read_header(view, at)
        batch = view[at : at + header.size_bytes]
        at += header.size_bytes
        while waiting and waiting[-1].first_offset <= header.base_offset:
            position.aborted.add(waiting.pop().producer_id)
        if header.attributes & CONTROL:
            position.aborted.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in position.aborted):
            yield from _in_batch(batch, start)
        position.offset = max(position.offset, header.next_offset)


def _in_batch(batch: memoryview, start: int) -> Iterator[SeenCommit]:
    try:
        for record in iterate_records(batch, max_bytes=_DECOMPRESSED_BYTES_MAX):
            if record.offset >= start and record.key is not None:
                found = decode_commit(bytes(record.key), None if record.value is None else bytes(record.value))
                if found is not None:
                    yield found
    except (InvalidRecord, RecordsTooLarge, StructError, IndexError):
        return


def decode_commit(key: bytes, value: bytes | None) -> SeenCommit | None:
    """Return the commit of a record of `__consumer_offsets`; None for a record of another kind, or a damaged one."""
    try:
        if _INT16.unpack_from(key)[0] not in _OFFSET_KEYS:
            return None
        group, at = _text(key, 2)
        topic, at = _text(key, at)
        name = TopicPartition(topic, _INT32.unpack_from(key, at)[0])
        if value is None:
            return SeenCommit(group, name, None, 0)
        (version,) = _INT16.unpack_from(value)
        message, _ = decode(OffsetCommitValue, version, value, 2)
    except (StructError, WireError, UnicodeDecodeError, IndexError):
        return None
    return SeenCommit(group, name, message.offset, message.commit_timestamp)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + max(_INT16.unpack_from(data, at)[0], 0)
    if end > len(data):
        raise IndexError("the text is cut short")
    return data[at + 2 : end].decode(), end
