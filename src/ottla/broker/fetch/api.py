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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ottla.broker.access.permissions import Access
from ottla.broker.access.throttling import Throttling
from ottla.broker.cluster.leader_hints import LeaderHints
from ottla.broker.component import Component, ServedApi
from ottla.broker.fetch.fetch import FEW_PARTITIONS, Fetch
from ottla.broker.fetch.follower_fetches import note_fetch
from ottla.broker.fetch.replica_selection import closest_replica
from ottla.broker.fetch.reply import FetchReply
from ottla.broker.fetch.rows import FetchRow
from ottla.broker.fetch.sessions import (
    Begun,
    FetchedPartition,
    FetchSessions,
    partitions_of,
    random_ids,
)
from ottla.broker.metadata.cluster_metadata import ClusterMetadata
from ottla.broker.metadata.view import AccessChanges
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.record_traces import RecordTraces
from ottla.broker.partitions.replication_throttle import ReplicationQuota
from ottla.env.deferred import Deferred
from ottla.env.metrics import Page
from ottla.env.timers import TimerWheel
from ottla.model.errors import ErrorCode, Refused
from ottla.model.settings_broker import RACK_AWARE, RACK_AWARE_CLASS
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection
from ottla.security.acls import Pattern, ResourceType
from ottla.wire.fetch import (
    TOPIC_IDS_FROM,
    FetchRequest,
    parse_fetch,
    reply_shape,
)

_FETCH = 1
#: partitions that fetches without a session wait for, in all; one takes about 400 bytes
PARKED_PARTITIONS_MAX = 100_000
#: sessions of followers, and partitions of all of these sessions
_REPLICA_SESSIONS_MAX = 1_000
_REPLICA_PARTITIONS_MAX = 200_000
#: topics of a fetch of which a client must be able to read one to get a session
_TOPICS_CHECKED_MAX = 100


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
        #: the part of them that went to followers
        self.replica_bytes_out = 0
        #: the other part, by the topic as requests name it: by name or by id
        self._bytes_out_by_topic: Counter[bytes] = Counter()
        #: what throttled replicas are sent, and the fetches that wait until more may be sent
        self.quota = ReplicationQuota()
        self._throttled: dict[Fetch, None] = {}
        self._throttle_timer: asyncio.TimerHandle | None = None
        #: another class while there are quotas, or traces
        self.new_fetch: type[Fetch] = Fetch
        #: what `TracedFetch` reports to
        self.traces: RecordTraces | None = None

    def apis(self) -> Mapping[int, ServedApi]:
        return {_FETCH: ServedApi(4, 18)}

    def on_access(self, changed: AccessChanges) -> None:
        if any(isinstance(about, Pattern) for about in changed):
            self.access_changed()

    def metrics(self, page: Page) -> Iterator[None]:
        page.counter("ottla_bytes_out", "Bytes of batches sent to readers.", self.bytes_out)
        text = "Bytes sent from throttled replicas to their followers."
        page.counter("ottla_throttled_replication_bytes_out", text, self.quota.total_bytes)
        page.gauge("ottla_fetches_parked", "Long polls that wait.", self.parked)
        page.gauge("ottla_fetch_sessions", "Fetch sessions.", len(self.sessions))
        yield

    def count_sent(self, reads: Iterable[FetchRow], sent: int, *, to_follower: bool) -> None:
        """Count the bytes of records in a reply."""
        self.bytes_out += sent
        if to_follower:
            self.replica_bytes_out += sent
            return
        by_topic = self._bytes_out_by_topic
        for read in reads:
            if read.region is not None:
                by_topic[read.wanted.topic] += read.region.size_bytes

    def bytes_out_by_topic(self) -> Counter[str]:
        """Return the bytes that consumers got of each topic that is served. Forget those of other topics."""
        found: Counter[str] = Counter()
        for topic, size in list(self._bytes_out_by_topic.items()):
            partitions = self._replicas.topics.get(topic) or self._replicas.topics_by_id.get(topic)
            if partitions:
                found[next(iter(partitions.values())).name.topic] += size
            else:
                del self._bytes_out_by_topic[topic]
        return found

    def check_invariants(self) -> None:
        served = set(self._replicas.all())
        self.sessions.check_invariants(served)
        self.replica_sessions.check_invariants(served)
        for fetch in self.waiting.values():
            fetch.check_invariants(served)

    async def complete_requests(self) -> None:
        self.answer_all()

    @property
    def parked(self) -> int:
        return len(self.waiting)

    def handle(
        self,
        connection: Connection,
        buffer: FrameBuffer,
        view: memoryview,
        start: int,
        end: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Handle the frame ``buffer[start:end]``."""
        request = parse_fetch(buffer, start, end, version)
        reply = FetchReply(connection.reserve(_FETCH), reply_shape(version), correlation_id)
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
                    self._refuse_replica(reply, request)
                    return
                connection.is_peer = True
                session, wanted, news_only = self._begin_replica(connection, request, by_id)
        except Refused as error:
            reply.fill(reply.shape.reply_start(0, error.code, 0), [], self.hints)
            return
        fetch = self.new_fetch(self, reply, request, (session, wanted, news_only))
        if news_only and len(wanted) > FEW_PARTITIONS and not self.deferred.may_run(len(wanted)):
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

    def _refuse_replica(self, reply: FetchReply, request: FetchRequest) -> None:
        """Answer a client that claims to be a broker and is none: each partition has an error, as in Kafka."""
        reads = [FetchRow(each, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for each in partitions_of(request)]
        # A fetch that names no partition continues a session, from before the right was taken away.
        code = 0 if reads else ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        reply.fill(reply.shape.reply_start(0, code, 0), reads, self.hints)

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
        self._replicas.storage.note_read_error(partition.name, error)
        return FetchRow(wanted, ErrorCode.KAFKA_STORAGE_ERROR)

    @property
    def size_bytes_max(self) -> int:
        return self._metadata.settings.fetch_max_bytes
