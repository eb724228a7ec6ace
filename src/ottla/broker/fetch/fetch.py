"""One fetch, from its arrival to its reply: read the partitions, wait for more bytes, build the rows. A hot module.

A fetch that waits is one object that is registered in each partition, in a bucket of the timer wheel and on its
connection. It completes when enough bytes were committed, when ``max_wait_ms`` has passed, or when its connection
closes. `api.py` says what bounds it and how fetches of followers and of consumers with a rack differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING

from ottla.broker.fetch.follower_fetches import diverging
from ottla.broker.fetch.replica_selection import NO_REPLICA
from ottla.broker.fetch.reply import FetchReply
from ottla.broker.fetch.rows import FetchRow, read_partition
from ottla.broker.fetch.sessions import Begun, FetchedPartition, FetchSession, SessionPartition, partitions_of
from ottla.broker.partitions.partition import Partition
from ottla.env.timers import Expiring
from ottla.model.errors import ErrorCode, KafkaError, NotLeaderOrFollower, OffsetOutOfRange
from ottla.net.connection import Connection
from ottla.wire.fetch import LEADERS_FROM, FetchRequest, parse_fetch

if TYPE_CHECKING:
    from ottla.broker.fetch.api import FetchApi

#: errors after which a client looks for the leader
_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
#: a fetch of so few partitions is never deferred
FEW_PARTITIONS = 10
#: an incremental fetch that has something to report stops after this many partitions; the next one continues
_PARTITIONS_READ_MAX = 1_000
#: the replica id of kafka-replica-verification, which reads the same offsets from all replicas
_DEBUGGING_CONSUMER = -2
#: about the size of one partition in a request
_PARTITION_BYTES = 32


class Fetch:
    """One fetch, from its arrival to its reply."""

    __slots__ = (
        "_api", "_bytes", "_connection", "_frame", "_is_completing", "_is_looking", "_min_bytes", "_news_only",
        "_partitions", "_reply", "_request", "_session", "_wanted", "on_done", "timer_bucket",
    )  # fmt: skip

    def __init__(self, api: FetchApi, reply: FetchReply, request: FetchRequest, begun: Begun) -> None:
        self._api = api
        self._reply = reply
        self._request = request
        #: ``_wanted``: the partitions to look at; an incremental fetch takes those of its session that may have news
        self._session, self._wanted, self._news_only = begun
        self._min_bytes = min(request.min_bytes, request.size_bytes_max)
        #: bytes of records found by the last read, plus the bytes committed since
        self._bytes = 0
        #: None unless the fetch is parked or deferred; ``_wait_on`` sets the attributes that are needed then
        self._connection: Connection | None = None
        self._frame: bytes | None = None

    @property
    def is_replica(self) -> bool:
        return self._request.replica_id >= 0

    @property
    def _may_read_from_follower(self) -> bool:
        """Return whether the reader may be served by a follower: it sent its rack, or it compares replicas."""
        return self._request.rack != "" or self._request.replica_id == _DEBUGGING_CONSUMER

    # -- waiting --------------------------------------------------------------------------------------------------

    def read_or_wait(self) -> list[FetchRow] | None:
        """Return the rows of the answer, or None to wait: no error, fewer bytes than ``min_bytes``, and time left."""
        wait_ms = self._request.max_wait_ms
        reads, self._bytes, is_urgent = self._read(is_last=wait_ms <= 0)
        if wait_ms > 0 and (self._wanted or self._news_only) and not is_urgent and self._bytes < self._min_bytes:
            return None
        return reads

    def park(self, connection: Connection) -> None:
        """Wait for more bytes, at most ``max_wait_ms``."""
        self._wait_on(connection)
        self._register()

    def start_later(self, connection: Connection) -> None:
        """Read in one of the next iterations of the loop, because the allowance of this one is used up."""
        self._wait_on(connection)
        self._api.deferred.add(self._start)

    def keep_frame_only(self, frame: bytes) -> None:
        """Wait for ``max_wait_ms`` without registering in partitions, to save memory: see PARKED_PARTITIONS_MAX."""
        self._frame = frame
        self._wanted = []
        self._request = self._request._replace(topics=[], forgotten=[])

    def _wait_on(self, connection: Connection) -> None:
        #: called once, when the fetch is completed or cancelled
        self.on_done: Callable[[], None] | None = None
        self.timer_bucket: dict[Expiring, None] | None = None
        self._partitions: list[Partition] = []
        self._is_completing = self._is_looking = False
        self._connection = connection
        connection.on_close[self.cancel] = None
        self._api.waiting[connection] = self
        if self._session is not None:
            self._session.waiting = self

    def _start(self) -> None:
        if self._connection is not None:
            reads = self.read_or_wait()
            if reads is None:
                self._register()
            else:
                self._leave()
                self.answer(reads)

    def _find(self, wanted: FetchedPartition) -> Partition:
        """Return the partition. Raise the KafkaError for the reply if this client, or this broker, may not read it."""
        by_id = self._reply.shape.topic_ids
        if self._api.access.authorizer is not None and not self.is_replica:
            self._api.check_access(self._reply.slot.connection, wanted, by_id)
        return self._api.find(wanted, by_id, self._may_read_from_follower)

    def _register(self) -> None:
        api = self._api
        if self._session is not None:
            for changed in self._session.changed:
                changed.register(self._find(changed))
        elif self._wanted:
            self._partitions = [self._find(wanted) for wanted in self._wanted]
            for partition in self._partitions:
                partition.park(self, read_committed=self._request.read_committed, replica=self.is_replica)
            api.parked_partitions += len(self._partitions)
        api.wheel.add(self, self._request.max_wait_ms / 1000)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if the fetch waits for a partition that is not served."""
        assert set(self._partitions) <= served, "_partitions"

    def on_high_watermark(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        if self._bytes >= self._min_bytes:
            self._complete()

    def on_stable(self) -> None:
        if self._connection is not None and not self._is_looking:
            if self._may_run():
                self._look_again()
            else:
                self._is_looking = True
                self._api.deferred.add(self._look_again)

    def on_changed(self) -> None:
        if self._api.is_rack_aware and self.is_replica:
            self.on_stable()

    def on_log_start(self) -> None:
        if self.is_replica:
            self._complete()  # DeleteRecords waits for the followers

    def on_partition_deleted(self) -> None:
        self._complete()

    def on_access_changed(self) -> None:
        authorizer = self._api.access.authorizer
        if self._session is not None and authorizer is not None:
            self._session.follow_access(authorizer.generation)
        if not self._is_looking:
            self._is_looking = True
            self._api.deferred.add(self._look_again)

    def expire(self) -> None:
        self._complete()

    def cancel(self) -> None:
        """The client closed the connection: drop the fetch. If it closed only its sending side, complete the fetch."""
        if self._connection is not None and self._connection.closing:
            self._leave()
        else:
            self._complete()

    def answer_now(self) -> None:
        if self._connection is not None:
            self._leave()
            self.answer(self._read(is_last=True)[0])

    def _complete(self) -> None:
        """Answer now, or in a later iteration if there are many partitions to read."""
        if self._connection is not None and not self._is_completing:
            if self._may_run():
                self.answer_now()
            else:
                self._is_completing = True
                self._api.deferred.add(self.answer_now)

    def _look_again(self) -> None:
        self._is_looking = False
        if self._connection is not None:
            reads, self._bytes, is_urgent = self._read(is_last=False)
            if is_urgent or self._bytes >= self._min_bytes:
                self._leave()
                self.answer(reads)

    def _may_run(self) -> bool:
        if self._news_only:
            assert self._session is not None
            count = len(self._session.changed)
        else:
            count = len(self._wanted) if self._frame is None else len(self._frame) // _PARTITION_BYTES
        return count <= FEW_PARTITIONS or self._api.deferred.may_run(count)

    def _leave(self) -> None:
        """Remove this fetch from its partitions, its session, the timer wheel and its connection."""
        connection = self._connection
        assert connection is not None
        self._connection = None
        connection.on_close.pop(self.cancel, None)
        del self._api.waiting[connection]
        self._api.wheel.remove(self)
        if self._session is not None:
            self._session.waiting = None
        for partition in self._partitions:
            partition.unpark(self)
        self._api.parked_partitions -= len(self._partitions)
        self._partitions = []
        if self.on_done is not None:
            self.on_done()

    # -- reading --------------------------------------------------------------------------------------------------

    def _read(self, *, is_last: bool) -> tuple[list[FetchRow], int, bool]:
        """Read every partition once; return a row for each, the bytes of records, and whether one must be sent now.

        An incremental fetch of very many partitions stops early if it can be answered: after an error, with at least
        ``min_bytes``, or with any bytes if ``is_last`` forbids it to wait. The next fetch continues from there.
        """
        reads: list[FetchRow] = []
        total, is_urgent = 0, False
        left = min(self._request.size_bytes_max, self._api.size_bytes_max)
        by_id, read_committed = self._reply.shape.topic_ids, self._request.read_committed
        or_follows = self._may_read_from_follower
        is_checked = self._api.access.authorizer is not None and not self.is_replica
        read_one = read_partition
        if self._request.replica_id >= 0:
            read_one = self._read_for_replica
        elif self._request.rack and self._api.is_rack_aware:
            read_one = self._read_or_redirect
        for wanted in self._partitions_to_look_at():
            if len(reads) >= _PARTITIONS_READ_MAX and self._news_only:  # noqa: SIM102
                if is_urgent or (total and (is_last or total >= self._min_bytes)):
                    break
            try:
                if is_checked:
                    self._api.check_access(self._reply.slot.connection, wanted, by_id)
                partition = self._api.find(wanted, by_id, or_follows)
                read = read_one(partition, wanted, left, at_least_one=not total, read_committed=read_committed)
            except KafkaError as error:
                read = self._read_failed(wanted, error.code)
                if isinstance(error, OffsetOutOfRange):
                    read.log_start_offset = partition.log.log_start_offset
            except OSError as error:
                read = self._api.unreadable(partition, wanted, error)
            if read.error_code or read.is_urgent:
                is_urgent = True
            if read.region is not None:
                total += read.region.size_bytes
                left = max(left - read.region.size_bytes, 0)
            reads.append(read)
        return reads, total, is_urgent

    def _read_failed(self, wanted: FetchedPartition, code: ErrorCode) -> FetchRow:
        """Return the row of a partition with an error, and with its leader if a client looks for that (KIP-951)."""
        read = FetchRow(wanted, int(code))
        if code in _LEADER_ERRORS and self._reply.shape.version >= LEADERS_FROM and not self.is_replica:
            read.leader = self._api.hints.leader_of(wanted.topic, wanted.number, by_id=self._reply.shape.topic_ids)
            read.has_tags = True
        return read

    def _read_or_redirect(
        self, partition: Partition, wanted: FetchedPartition, left: int, *, at_least_one: bool, read_committed: bool
    ) -> FetchRow:
        """Read for a consumer with a rack, or name the replica that it should read from."""
        offset, closest = wanted.request.fetch_offset, NO_REPLICA
        if partition.has_committed_in_epoch:
            closest = self._api.closest_replica(
                partition, self._request.rack, self._reply.slot.connection.listener, offset
            )
        if closest == NO_REPLICA:
            return read_partition(partition, wanted, left, at_least_one=at_least_one, read_committed=read_committed)
        read = FetchRow(wanted)
        read.high_watermark, read.last_stable_offset = partition.high_watermark, partition.last_stable_offset
        read.log_start_offset = partition.log.log_start_offset
        read.preferred_replica = closest
        read.is_urgent = True
        return read

    def _read_for_replica(
        self, partition: Partition, wanted: FetchedPartition, left: int, *, at_least_one: bool, read_committed: bool
    ) -> FetchRow:
        """Read up to the written end of the log, for a follower."""
        follower = partition.followers.get(self._request.replica_id)
        if follower is None:
            raise NotLeaderOrFollower(f"broker {self._request.replica_id} has no replica of the partition")
        request, log = wanted.request, partition.log
        read = FetchRow(wanted)
        read.high_watermark, read.log_start_offset = partition.high_watermark, log.log_start_offset
        read.note_diverging(diverging(partition, request))
        read.is_urgent = read.is_urgent or (
            self._api.is_rack_aware
            and isinstance(wanted, SessionPartition)
            and wanted.follower is follower  # else an earlier process of the follower, which would never stop to ask
            and follower.sent_high_watermark < read.high_watermark
        )
        # DeleteRecords waits for the followers.
        read.is_urgent = read.is_urgent or (wanted.was_sent_start and wanted.log_start_offset != read.log_start_offset)
        size_bytes_max = min(request.size_bytes_max, left)
        if read.diverging is not None or (size_bytes_max <= 0 and not at_least_one):
            return read
        if partition.is_leader_throttled:
            read.is_throttled = True
            if self._request.replica_id not in partition.isr and self._api.must_wait(self):
                return read
        end_offset = log.written_end_offset
        read.region = log.read(request.fetch_offset, size_bytes_max, end_offset, at_least_one=at_least_one)
        if read.region is not None:
            read.wants_sync = read.has_tags = partition.writers.waits_for_syncs
        elif request.fetch_offset >= end_offset:
            if isinstance(wanted, SessionPartition) and wanted.follower not in (None, follower):
                # What the follower has was forgotten with the leadership. It names the partition again after an error.
                raise NotLeaderOrFollower("the leader stopped and leads again since the follower named the partition")
            read.at_end_of = partition
        return read

    def _partitions_to_look_at(self) -> Sequence[FetchedPartition]:
        if self._news_only:
            assert self._session is not None
            return list(self._session.changed)
        if self._frame is not None:
            return partitions_of(parse_fetch(self._frame, 0, len(self._frame), self._reply.shape.version))
        return self._wanted

    def answer(self, reads: list[FetchRow]) -> None:
        session, reply, api = self._session, self._reply, self._api
        session_id = 0
        if session is not None:
            reads, session_id = self._within_session(session, reads), session.session_id
        start = reply.shape.reply_start(0, 0, session_id)
        try:
            sent = reply.fill(start, reads, api.hints)
        except OSError as error:
            reads = [self._without_records(read, error) if read.region is not None else read for read in reads]
            sent = reply.fill(start, reads, api.hints)
        if sent:
            api.count_sent(reads, sent, to_follower=self.is_replica)

    def _without_records(self, read: FetchRow, error: OSError) -> FetchRow:
        partition = self._find(read.wanted)
        return self._api.unreadable(partition, read.wanted, error)

    def _within_session(self, session: FetchSession, reads: list[FetchRow]) -> list[FetchRow]:
        """Return the rows that differ from what the client was last sent, and note them as sent."""
        kept = []
        for read in reads:
            wanted = read.wanted
            assert isinstance(wanted, SessionPartition)
            size_bytes = read.region.size_bytes if read.region is not None else 0
            news = wanted.must_be_sent(read.error_code, read.high_watermark, read.log_start_offset, size_bytes)
            if news or not self._news_only or read.is_urgent:
                kept.append(read)
                if wanted.follower is not None:
                    wanted.follower.sent_high_watermark = read.high_watermark
            if session.replica_id >= 0 and (size_bytes or read.error_code or read.diverging is not None):
                session.pause(wanted)
                if read.is_throttled:
                    self._api.note_throttled(size_bytes)
            elif read.at_end_of is not None:
                session.note_caught_up(wanted, read.at_end_of)
            elif size_bytes or read.error_code:
                session.move_to_end(wanted)
        return kept
