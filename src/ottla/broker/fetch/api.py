"""Fetch: return file regions of the log, at once or when there are at least ``min_bytes``.

This is a hot module. A fetch that finds at least ``min_bytes`` is answered at once. Otherwise it is parked: one object
that is registered in each partition, in a bucket of the timer wheel and on its connection; no task, no thread, no
polling. It completes when enough bytes were committed, when ``max_wait_ms`` has passed, or when its connection closes.

Records are sent as they are stored. A small region is read into the reply; a large one stays a region of the file,
which the connection sends with ``sendfile``.

What a client can make the broker do is bounded:

* One fetch is parked per connection. Those behind it are handled after it is answered (`broker/dispatch.py`), as in
  Kafka.
* One fetch is parked per session, and it reads only partitions that may have news (`broker/fetch/sessions.py`).
* Completing a fetch of many partitions takes long, so it is deferred when the allowance of this iteration of the loop
  is used up (`env/deferred.py`).
* The fetches of followers have their own sessions, one per broker.
* When fetches without a session are parked on PARKED_PARTITIONS_MAX partitions in all, further ones keep only the bytes
  of their request, and are answered after ``max_wait_ms``.

A fetch with a replica id comes from a follower. It differs in these ways:

* Its fetch offset and synced offset are noted before anything is read, because the high watermark depends on them. A
  log that diverges from ours is not noted: the follower may have other records at the same offsets.
* It reads up to the written end of the log and wakes when records are written, not when they are committed.
* It is answered as soon as the next one of its connection arrives: the follower sends that one to report a sync, and
  waits for no reply before (docs/decisions/0016).
* With ``replica.selector.class`` it is also answered when the high watermark has moved, because consumers that read
  from the follower wait for that.

A consumer that sends its rack may read from the closest replica (KIP-392). The leader answers with the id of that
replica (`replica_selection.py`), and a follower serves such a consumer up to its own high watermark, as long as
it is in sync. Consumers without a rack are sent to the leader, except kafka-replica-verification (replica id -2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ottla.broker.access.permissions import Access
from ottla.broker.access.throttling import Throttling
from ottla.broker.cluster.leader_hints import LeaderHints
from ottla.broker.component import Component, ServedApi
from ottla.broker.fetch.follower_fetches import diverging, note_fetch
from ottla.broker.fetch.replica_selection import NO_REPLICA, closest_replica
from ottla.broker.fetch.rows import FetchRow, fill_reply, read_partition
from ottla.broker.fetch.sessions import (
    Begun,
    FetchedPartition,
    FetchSession,
    FetchSessions,
    SessionPartition,
    partitions_of,
    random_ids,
)
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import ViewChanges
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replication_throttle import ReplicationQuota
from ottla.env.deferred import Deferred
from ottla.env.timers import Expiring, TimerWheel
from ottla.model.errors import ErrorCode, KafkaError, NotLeaderOrFollower, OffsetOutOfRange, Refused
from ottla.model.settings_broker import RACK_AWARE, RACK_AWARE_CLASS
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection, Slot
from ottla.security.acls import Pattern, ResourceType
from ottla.wire.fetch import (
    LEADERS_FROM,
    TOPIC_IDS_FROM,
    FetchRequest,
    ReplyShape,
    parse_fetch,
    reply_shape,
)

_FETCH = 1
#: errors after which a client looks for the leader
_LEADER_ERRORS = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
#: a fetch of so few partitions is never deferred
_FEW_PARTITIONS = 10
#: an incremental fetch that has something to report stops after this many partitions; the next one continues
_PARTITIONS_READ_MAX = 1_000
#: partitions that fetches without a session wait for, in all; one takes about 400 bytes
PARKED_PARTITIONS_MAX = 100_000
#: sessions of followers, and partitions of all of these sessions
_REPLICA_SESSIONS_MAX = 1_000
_REPLICA_PARTITIONS_MAX = 200_000
#: the replica id of kafka-replica-verification, which reads the same offsets from all replicas
_DEBUGGING_CONSUMER = -2
#: topics of a fetch of which a client must be able to read one to get a session
_TOPICS_CHECKED_MAX = 100
#: about the size of one partition in a request
_PARTITION_BYTES = 32


class FetchApi(Component):
    """Fetch (1) v4-v18."""

    def __init__(
        self,
        *,
        metadata: ClusterMetadata,
        replicas: ReplicaManager,
        loop: asyncio.AbstractEventLoop,
        wheel: TimerWheel,
        deferred: Deferred,
        access: Access,
        throttling: Throttling,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._loop = loop
        self._leader_of = replicas.leader_of
        self.access = access
        self.throttling = throttling
        self._time = loop.time
        settings = metadata.settings
        #: whether consumers are sent to the closest replica (KIP-392); the setting does not change while it runs
        self.is_rack_aware = settings.replica_selector_class in (RACK_AWARE, RACK_AWARE_CLASS)
        self.hints = LeaderHints(metadata, replicas)
        self.wheel = wheel
        self.deferred = deferred
        self.sessions = FetchSessions(settings.max_incremental_fetch_session_cache_slots, random_ids(metadata.new_id))
        self.replica_sessions = FetchSessions(
            _REPLICA_SESSIONS_MAX, random_ids(metadata.new_id),
            partitions_max=_REPLICA_PARTITIONS_MAX, partitions_total_max=_REPLICA_PARTITIONS_MAX,
        )  # fmt: skip
        #: the fetch that waits on each connection; the next one of that connection is handled after it
        self.waiting: dict[Connection, Fetch] = {}
        self.parked_partitions = 0
        self.bytes_out = 0
        #: what throttled replicas are sent, and the fetches that wait until more may be sent
        self.quota = ReplicationQuota()
        self._throttled: dict[Fetch, None] = {}
        self._throttle_timer: asyncio.TimerHandle | None = None
        #: another class while there are quotas
        self.new_fetch: type[Fetch] = Fetch

    def apis(self) -> Mapping[int, ServedApi]:
        return {_FETCH: ServedApi(4, 18)}

    def on_view(self, changes: ViewChanges) -> None:
        if any(isinstance(about, Pattern) for about in changes.access):
            self.access_changed()

    async def complete_requests(self) -> None:
        self.answer_all()

    @property
    def parked(self) -> int:
        return len(self.waiting)

    def handle(
        self, connection: Connection, buffer: FrameBuffer, view: memoryview, start: int, end: int, version: int,
        correlation_id: int,
    ) -> None:  # fmt: skip
        """Handle the frame ``buffer[start:end]``."""
        request = parse_fetch(buffer, start, end, version)
        slot = connection.reserve(_FETCH)
        shape = reply_shape(version)
        by_id = version >= TOPIC_IDS_FROM
        try:
            if request.replica_id < 0:
                may_create = self._may_begin_session(connection, request, by_id)
                session, wanted, news_only = self.sessions.begin(
                    request, by_id, self._time(), connection, may_create=may_create
                )
                if session is not None and self.access.authorizer is not None:
                    session.follow_access(self.access.authorizer.generation)
                    wanted = list(session.changed) if news_only else wanted
            else:
                if not self.access.may_cluster(connection, _FETCH, "as a replica"):
                    self._refuse_replica(slot, correlation_id, shape, request)
                    return
                connection.is_peer = True
                session, wanted, news_only = self._begin_replica(connection, request, by_id)
        except Refused as error:
            fill_reply(slot, correlation_id, shape.reply_start(0, error.code, 0), [], shape, self.hints)
            return
        fetch = self.new_fetch(self, slot, shape, correlation_id, request, session, wanted, news_only)
        if news_only and len(wanted) > _FEW_PARTITIONS and not self.deferred.may_run(len(wanted)):
            fetch.start_later(connection)
            return
        reads = fetch.read_or_wait()
        if reads is not None:
            fetch.answer(reads)
            return
        if session is None and self.parked_partitions + len(wanted) > PARKED_PARTITIONS_MAX:
            fetch.keep_frame_only(bytes(view[start:end]))
        fetch.park(connection)

    def _may_begin_session(self, connection: Connection, request: FetchRequest, by_id: bool) -> bool:
        """Return whether a client may read one of the topics that it names; sessions are for clients that can read."""
        if self.access.authorizer is None or request.session_epoch:
            return True
        topics = self._metadata.view.topics_by_id
        for name_or_id, _ in request.topics[:_TOPICS_CHECKED_MAX]:
            topic = topics.get(name_or_id) if by_id else None
            if by_id and topic is None:
                continue
            name = name_or_id.decode(errors="replace") if topic is None else topic.name
            if self.access.may(connection, _FETCH, ResourceType.TOPIC, name, quiet=True):
                return True
        return False

    def _refuse_replica(self, slot: Slot, correlation_id: int, shape: ReplyShape, request: FetchRequest) -> None:
        """Answer a client that claims to be a broker and is none: each partition has an error, as in Kafka."""
        reads = [FetchRow(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in partitions_of(request)]
        # A fetch that names no partition continues a session, from before the right was taken away.
        code = 0 if reads else ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        fill_reply(slot, correlation_id, shape.reply_start(0, code, 0), reads, shape, self.hints)

    def _begin_replica(self, connection: Connection, request: FetchRequest, by_id: bool) -> Begun:
        """Begin a follower's fetch: note its offsets. Return what ``FetchSessions.begin`` returns; raise as it does."""
        replicas, now = self._replicas, self._replicas.monotonic()
        # The sender knows the id of its session from a reply. So this request was sent after the session began.
        is_recent = self.replica_sessions.end_before(request.session_id, replicas.sessions_count_from)
        session, wanted, news_only = self.replica_sessions.begin(request, by_id, now, connection)
        if session is not None and not news_only:
            self.replica_sessions.end_others(request.replica_id, session)
        note_fetch(replicas, request, session, by_id=by_id, now=now, is_recent=is_recent)
        return session, wanted, news_only

    def must_wait(self, fetch: Fetch) -> bool:
        """Return whether throttled replicas may be sent nothing now. The fetch will then look again."""
        replicas, settings = self._replicas, self._metadata.settings
        wait_s = self.quota.wait_s(settings.leader_replication_throttled_rate, replicas.monotonic())
        if not wait_s:
            return False
        self._throttled[fetch] = None
        if self._throttle_timer is None:
            self._throttle_timer = self._loop.call_later(wait_s, self._wake_throttled)
        return True

    def _wake_throttled(self) -> None:
        self._throttle_timer = None
        throttled, self._throttled = self._throttled, {}
        for fetch in throttled:
            fetch.on_stable()

    def note_throttled(self, size_bytes: int) -> None:
        """Count bytes that were sent to throttled replicas."""
        rate = self._metadata.settings.leader_replication_throttled_rate
        self.quota.record(size_bytes, rate, self._replicas.monotonic())

    def access_changed(self) -> None:
        """Let the fetches that wait look at their partitions again: ACLs have changed.

        One that may no longer read a partition is answered with the error at once. A client that is no longer allowed
        to be a replica is disconnected.
        """
        for connection, fetch in list(self.waiting.items()):
            if not fetch.is_replica:
                fetch.on_access_changed()
            elif not self.access.may_cluster(connection, _FETCH, "as a replica"):
                connection.abort()

    def answer_all(self) -> None:
        """Complete every parked fetch: the broker stops."""
        if self._throttle_timer is not None:
            self._throttle_timer.cancel()
        for fetch in list(self.waiting.values()):
            fetch.on_partition_deleted()

    def find(self, wanted: FetchedPartition, by_id: bool, or_follows: bool) -> Partition:
        """Return the partition. Raise the KafkaError for the reply if this broker does not serve it.

        With ``or_follows`` an in-sync follower serves it too.
        """
        request = wanted.request
        return self._leader_of(
            wanted.topic, wanted.number, request.current_leader_epoch, by_id=by_id, or_follows=or_follows
        )

    def check_access(self, connection: Connection, wanted: FetchedPartition, by_id: bool) -> None:
        """Raise the KafkaError for a topic that this client may not read."""
        topic = self._metadata.view.topics_by_id.get(wanted.topic) if by_id else None
        if topic is not None or not by_id:
            name = topic.name if topic is not None else wanted.topic.decode(errors="replace")
            self.access.check_topic(connection, _FETCH, name)

    def closest_replica(self, partition: Partition, rack: str, listener: str, fetch_offset: int) -> int:
        """Return the replica that a consumer in ``rack`` should read from; NO_REPLICA if that is the leader."""
        return closest_replica(partition, self._metadata.view.brokers, rack, listener, fetch_offset)

    def unreadable(self, partition: Partition, wanted: FetchedPartition, error: OSError) -> FetchRow:
        """Return the answer for a partition of which a file could not be read."""
        self._replicas.note_read_error(partition.name, error)
        return FetchRow(wanted, ErrorCode.KAFKA_STORAGE_ERROR)

    @property
    def size_bytes_max(self) -> int:
        return self._metadata.settings.fetch_max_bytes


class Fetch:
    """One fetch, from its arrival to its reply."""

    __slots__ = (
        "_api", "_bytes", "_connection", "_correlation_id", "_frame", "_is_completing", "_is_looking", "_min_bytes",
        "_news_only", "_partitions", "_request", "_session", "_shape", "_slot", "_wanted", "on_done", "timer_bucket",
    )  # fmt: skip

    def __init__(
        self, api: FetchApi, slot: Slot, shape: ReplyShape, correlation_id: int, request: FetchRequest,
        session: FetchSession | None, wanted: list[FetchedPartition], news_only: bool,
    ) -> None:  # fmt: skip
        self._api = api
        self._slot = slot
        self._shape = shape
        self._correlation_id = correlation_id
        self._request = request
        self._session = session
        #: the partitions to look at; an incremental fetch takes those of its session that may have news
        self._wanted = wanted
        self._news_only = news_only
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
        by_id = self._shape.topic_ids
        if self._api.access.authorizer is not None and not self.is_replica:
            self._api.check_access(self._slot.connection, wanted, by_id)
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
        return count <= _FEW_PARTITIONS or self._api.deferred.may_run(count)

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
        by_id, read_committed = self._shape.topic_ids, self._request.read_committed
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
                    self._api.check_access(self._slot.connection, wanted, by_id)
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
        if code in _LEADER_ERRORS and self._shape.version >= LEADERS_FROM and not self.is_replica:
            read.leader = self._api.hints.leader_of(wanted.topic, wanted.number, by_id=self._shape.topic_ids)
            read.has_tags = True
        return read

    def _read_or_redirect(
        self, partition: Partition, wanted: FetchedPartition, left: int, *, at_least_one: bool, read_committed: bool
    ) -> FetchRow:
        """Read for a consumer with a rack, or name the replica that it should read from."""
        offset, closest = wanted.request.fetch_offset, NO_REPLICA
        if partition.has_committed_in_epoch:
            closest = self._api.closest_replica(partition, self._request.rack, self._slot.connection.listener, offset)
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
            read.wants_sync = read.has_tags = partition.waits_for_syncs
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
            return partitions_of(parse_fetch(self._frame, 0, len(self._frame), self._shape.version))
        return self._wanted

    def answer(self, reads: list[FetchRow]) -> None:
        if self._session is not None:
            reads = self._within_session(self._session, reads)
        shape = self._shape
        session_id = self._session.session_id if self._session is not None else 0
        start = shape.reply_start(0, 0, session_id)
        try:
            self._api.bytes_out += fill_reply(self._slot, self._correlation_id, start, reads, shape, self._api.hints)
        except OSError as error:
            reads = [self._without_records(read, error) if read.region is not None else read for read in reads]
            fill_reply(self._slot, self._correlation_id, start, reads, shape, self._api.hints)

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
