"""ReplicaFetchers: copies the logs of leaders into the logs of the partitions that this broker follows.

There is one connection per leader broker, with one fetch session for all partitions that it leads. A fetch waits at the
leader until records are written there. Its reply is handled in these steps:

1 append the batches of all partitions, byte for byte  2 write them  3 take over high watermark and log start
4 send the next fetch, which tells the leader the new end offsets  5 sync, if a writer waits for it at the leader, or
if this broker is not in the ISR. Other records are synced when no further ones arrive for a while.

When a sync completes, another fetch reports it at once, although one may already wait at the leader; the leader answers
that one then. So at most two fetches are in flight. Only the one with a new fetch offset asks for records.

    a partition is followed ──► named in the next fetch, with its end offset, its last epoch and the leader epoch
    reply: records          ──► appended if they continue the log; named again with the new end offset
    reply: diverging epoch  ──► truncated to the end of the common history; named again when that is synced
    reply: out of range     ──► the log restarts at the leader's log start, if the leader's log starts after its end
    reply: another error    ──► forgotten, and named again after a back-off; meanwhile new metadata may arrive
    the connection is lost  ──► opened again after a back-off; everything is named again

A new leader epoch starts a partition again even if the leader is the same broker, because the leader may have truncated
its log in between (KAFKA-7164). Replies to fetches from before are ignored. A log is truncated only to an offset that
the leader derived from epochs, never to the high watermark (KIP-101, KIP-279).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Set
from functools import partial
from itertools import count

from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.manager import ReplicaManager
from ottla.broker.partitions.partition import Partition, Role
from ottla.broker.partitions.replication_throttle import ReplicationQuota
from ottla.broker.partitions.truncations import LogTruncations
from ottla.client.async_connections import AsyncBrokerConnection, BrokerClients, PeerUnreachable
from ottla.env.clock import Clock
from ottla.env.tasks import Tasks
from ottla.model.errors import CorruptMessage, ErrorCode, StorageError, UnexpectedAppendOffset
from ottla.model.settings import BrokerSettings
from ottla.model.types import Endpoint
from ottla.wire import WireError
from ottla.wire.replica_fetch import FetchedRow, FollowerRow, follower_fetch, parse_reply

log = logging.getLogger(__name__)

#: before a partition with an error is fetched again, and before a lost connection is opened again
RETRY_S = 0.2
#: how long clients get no leader for partitions of a broker whose connection was closed: an election takes less
_JUST_LOST_S = 1.0
#: the leader has not applied the new epoch yet, which takes it a moment
_RETRY_SOON_S = 0.05
#: the disk is full, or batches are damaged
_RETRY_LATE_S = 1.0
_IN_FLIGHT_MAX = 2
#: a fetch without a reply for this time, beyond the time that it may wait, closes the connection
_REPLY_TIMEOUT_S = 10.0
_CHECK_TIMEOUT_S = 2.0
_SESSION_EPOCH_MAX = (1 << 31) - 1
_SESSION_ERRORS = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}

Key = tuple[bytes, int]


#: after this time without records a follower syncs what it has fetched
_SYNC_WHEN_IDLE_S = 0.2


class ReplicaFetchers:
    """The fetchers of this broker, one per leader broker."""

    def __init__(
        self, *, loop: asyncio.AbstractEventLoop, clients: BrokerClients, replicas: ReplicaManager, clock: Clock,
        broker_id: int, broker_epoch: Callable[[], int], settings: Callable[[], BrokerSettings],
    ) -> None:  # fmt: skip
        """``broker_epoch`` returns the epoch of this broker's registration, ``settings`` the current settings."""
        self.loop = loop
        self.clients = clients
        self.replicas = replicas
        self.wall_ms = clock.wall_ms
        self.broker_id = broker_id
        self.client_id = f"broker-{broker_id}-fetcher".encode()
        self.broker_epoch = broker_epoch
        self.settings = settings
        self._fetchers: dict[Endpoint, LeaderFetcher] = {}
        self._by_partition: dict[Partition, LeaderFetcher] = {}
        self.log_truncations = LogTruncations(loop, replicas)
        replicas.commits.on_follower_changed = self._report
        replicas.discards.append(self.discard)

        #: partitions with records that the leader has not asked to sync, and when the last ones were appended
        self._unsynced: dict[Partition, float] = {}
        self._idle_timer: asyncio.TimerHandle | None = None
        #: open connections to leaders
        self.tasks = Tasks()
        # Counters
        self.requests = 0
        self.truncations = 0
        #: what throttled replicas of this broker have fetched
        self.quota = ReplicationQuota()

    @property
    def is_following(self) -> bool:
        return bool(self._by_partition)

    def just_lost(self) -> list[Endpoint]:
        """Return the leaders whose connection was closed within the last second and is not open again.

        Their processes have probably ended. The metadata store says so a moment later.
        """
        return [endpoint for endpoint, fetcher in self._fetchers.items() if fetcher.is_just_lost]

    def follow(self, partition: Partition, endpoint: Endpoint) -> None:
        """Copy the log of the leader at ``endpoint``, in the leader epoch of the partition. Do nothing if it is done.

        Call this again when the leader, its endpoint or the leader epoch has changed.
        """
        current = self._by_partition.get(partition)
        if current is not None:
            if current.endpoint == endpoint and current.follows(partition):
                return
            if current.endpoint != endpoint:
                self.unfollow(partition)
        fetcher = self._fetchers.get(endpoint)
        if fetcher is None:
            fetcher = self._fetchers[endpoint] = LeaderFetcher(self, endpoint)
        self._by_partition[partition] = fetcher
        fetcher.add(partition)

    def unfollow(self, partition: Partition) -> None:
        """Stop to copy: this broker leads the partition, no broker does, or the partition is deleted."""
        fetcher = self._by_partition.pop(partition, None)
        if fetcher is not None:
            fetcher.remove(partition)
            if fetcher.is_empty:
                fetcher.close()
                del self._fetchers[fetcher.endpoint]

    def discard(self, partition: Partition) -> None:
        """Forget a partition that is no longer served."""
        self.unfollow(partition)
        self._unsynced.pop(partition, None)
        self.log_truncations.discard(partition)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a partition is known that is not served, or a fetcher has nothing to fetch."""
        assert self._by_partition.keys() <= served, "_by_partition"
        assert self._unsynced.keys() <= served, "_unsynced"
        for endpoint, fetcher in self._fetchers.items():
            followed = {partition for partition, its in self._by_partition.items() if its is fetcher}
            assert fetcher.partitions() == followed, f"the fetcher of {endpoint}"
            assert followed, f"the fetcher of {endpoint} has nothing to fetch"
        self.log_truncations.check_invariants(served)

    def stop(self) -> None:
        """Stop to copy all partitions, and close the connections."""
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._by_partition.clear()

    def sync_when_idle(self, partition: Partition) -> None:
        """Sync a log that the leader has not asked to sync when no records have arrived for a while.

        A producer that repeats a batch waits for a sync of records that this broker has fetched already, and a replica
        joins the ISR only when its records are synced.
        """
        self._unsynced[partition] = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(_SYNC_WHEN_IDLE_S, self._sync_idle)

    def _sync_idle(self) -> None:
        due = self.loop.time() - _SYNC_WHEN_IDLE_S
        self._idle_timer = None
        try:
            for partition, appended_at in list(self._unsynced.items()):
                if appended_at <= due:
                    del self._unsynced[partition]
                    if partition in self._by_partition:
                        self.replicas.followers.sync(partition)
        finally:
            if self._unsynced:
                self._idle_timer = self.loop.call_later(_SYNC_WHEN_IDLE_S, self._sync_idle)

    def _report(self, partition: Partition) -> None:
        fetcher = self._by_partition.get(partition)
        if fetcher is not None:
            fetcher.report(partition)


class _Followed:
    """A partition that is copied from one leader in one leader epoch."""

    __slots__ = ("failure", "first_request", "is_truncating", "key", "leader_epoch", "partition", "retry", "sent")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.key: Key = partition.topic_id, partition.name.partition
        self.leader_epoch = partition.leader_epoch
        #: the row that the leader has of it; None if it must be named again
        self.sent: FollowerRow | None = None
        #: replies to earlier requests are ignored; None until it is named
        self.first_request: int | None = None
        #: set during a back-off
        self.retry: asyncio.TimerHandle | None = None
        #: until the log is truncated and that is synced
        self.is_truncating = False
        #: what was last logged of it; empty after a reply that was taken
        self.failure = ""

    @property
    def is_waiting(self) -> bool:
        """Return whether the partition is not fetched for a while."""
        return self.retry is not None or self.is_truncating

    @property
    def is_current(self) -> bool:
        """Return whether the partition still follows in this epoch. The metadata may have changed a moment ago."""
        return self.partition.role is Role.FOLLOWER and self.partition.leader_epoch == self.leader_epoch

    def name_again(self) -> None:
        self.sent = self.first_request = None

    def row(self, size_bytes_max: int) -> FollowerRow:
        """Return what the leader must know. Ask for no records if a fetch with the same offset may be in flight."""
        its_log = self.partition.log
        offset, epoch = its_log.written_end_offset, its_log.epochs.latest
        sent = self.sent
        if sent is not None and sent.fetch_offset == offset and sent.last_fetched_epoch == epoch:
            size_bytes_max = 0
        return FollowerRow(
            self.key[1], self.leader_epoch, offset, epoch, its_log.synced_start_offset, size_bytes_max,
            its_log.synced_end_offset,
        )  # fmt: skip


class LeaderFetcher:
    """Copies all partitions that one broker leads and this broker follows."""

    def __init__(self, owner: ReplicaFetchers, endpoint: Endpoint) -> None:
        self._owner = owner
        self._loop = owner.loop
        self._replicas = owner.replicas
        self.endpoint = endpoint
        self._followed: dict[Key, _Followed] = {}
        #: partitions to name in the next fetch
        self._changed: dict[_Followed, None] = {}
        #: partitions of the session that the next fetch removes from it
        self._forgotten: dict[Key, None] = {}

        # Connection
        self._connection: AsyncBrokerConnection | None = None
        #: when the last connection was lost
        self._lost_at = -math.inf
        self._opening: asyncio.Task[None] | None = None
        self._reopen: asyncio.TimerHandle | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._is_reachable = True
        #: what was last logged of replies that could not be used; empty after one that could
        self._refusal = ""
        self._is_closed = False
        self._is_armed = False
        #: no fetch was sent on this connection, or the session is lost
        self._is_new = True
        #: number and time of each request without a reply
        self._in_flight: deque[tuple[int, float]] = deque()
        self._numbers = count(1)

        # Session
        self._session_id = 0
        #: 0: the next fetch names all partitions and begins a session
        self._session_epoch = 0

    @property
    def is_empty(self) -> bool:
        return not self._followed

    def partitions(self) -> set[Partition]:
        """Return the partitions that are copied."""
        return {followed.partition for followed in self._followed.values()}

    @property
    def is_just_lost(self) -> bool:
        if self._connection is not None:
            return self._connection.is_lost
        return self._loop.time() - self._lost_at < _JUST_LOST_S

    def follows(self, partition: Partition) -> bool:
        """Return whether the partition is copied in its current leader epoch."""
        followed = self._followed.get((partition.topic_id, partition.name.partition))
        return followed is not None and followed.partition is partition and followed.is_current

    def add(self, partition: Partition) -> None:
        """Begin to copy, or begin again in a new leader epoch."""
        followed = _Followed(partition)
        previous = self._followed.get(followed.key)
        if previous is not None:
            self._stop_waiting(previous)
        self._followed[followed.key] = followed
        try:
            # Batches that were appended as the leader, in this turn.
            self._replicas.followers.write(partition)
            self._owner.sync_when_idle(partition)
        except StorageError:
            self._back_off(followed, _RETRY_LATE_S)
            return
        followed.is_truncating = self._owner.log_truncations.wait(partition, partial(self._truncated, followed))
        if not followed.is_truncating:
            self._name(followed)

    def remove(self, partition: Partition) -> None:
        followed = self._followed.pop((partition.topic_id, partition.name.partition), None)
        if followed is not None:
            self._stop_waiting(followed)
            self._forget(followed)

    def report(self, partition: Partition) -> None:
        """Tell the leader that the log is synced further, or starts at another offset."""
        followed = self._followed.get((partition.topic_id, partition.name.partition))
        if followed is not None and followed.sent is not None:
            self._changed[followed] = None
            self._send_soon()

    def close(self) -> None:
        self._is_closed = True
        for followed in self._followed.values():
            self._stop_waiting(followed)
        self._followed.clear()
        for timer in (self._reopen, self._timeout):
            if timer is not None:
                timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

    # -- partitions -----------------------------------------------------------------------------------------------

    def _name(self, followed: _Followed) -> None:
        """Name the partition in the next fetch, as if it were new."""
        followed.name_again()
        self._forgotten.pop(followed.key, None)
        self._changed[followed] = None
        self._send_soon()

    def _back_off(self, followed: _Followed, delay_s: float) -> None:
        """Do not fetch the partition for a while."""
        self._forget(followed)
        followed.name_again()
        followed.retry = self._loop.call_later(delay_s, self._retry, followed)

    def _retry(self, followed: _Followed) -> None:
        followed.retry = None
        if not followed.partition.offline:
            self._name(followed)

    def _forget(self, followed: _Followed) -> None:
        self._changed.pop(followed, None)
        if followed.sent is not None:
            self._forgotten[followed.key] = None
            self._send_soon()

    def _stop_waiting(self, followed: _Followed) -> None:
        self._changed.pop(followed, None)
        if followed.retry is not None:
            followed.retry.cancel()
            followed.retry = None
        if followed.is_truncating:
            self._owner.log_truncations.cancel(followed.partition)

    # -- connection -----------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        connection: AsyncBrokerConnection | None = None
        try:
            connection = await self._owner.clients.open(self.endpoint)
        except PeerUnreachable as error:
            if self._is_reachable:
                log.warning("leader cannot be reached, followers retry endpoint=%s error=%s", self.endpoint, error)
            self._is_reachable = False
        finally:
            # After any exception, because nothing else opens a connection to this leader.
            self._opening = None
            if connection is None:
                self._reopen_later()
        if connection is None:
            return
        if not self._is_reachable:
            log.info("leader can be reached again endpoint=%s", self.endpoint)
        self._is_reachable = True
        self._connection = connection
        self._is_new = True
        connection.lost.add_done_callback(partial(self._lost, connection))
        self._timeout = self._loop.call_later(_CHECK_TIMEOUT_S, self._check_timeout, connection)
        self._send()

    def _lost(self, connection: AsyncBrokerConnection, _: asyncio.Future[None]) -> None:
        if connection is not self._connection:
            return
        self._connection = None
        self._lost_at = self._loop.time()
        self._in_flight.clear()
        self._end_session()
        self._reopen_later()

    def _reopen_later(self) -> None:
        if not self._is_closed:
            self._reopen = self._loop.call_later(RETRY_S, self._reopen_now)

    def _reopen_now(self) -> None:
        self._reopen = None
        self._send()

    def _check_timeout(self, connection: AsyncBrokerConnection) -> None:
        """Close a connection that is open but carries no replies: a cut network does not close it."""
        if connection is not self._connection:
            return
        limit_s = _REPLY_TIMEOUT_S + self._owner.settings().replica_fetch_wait_max_ms / 1000
        if self._in_flight and self._loop.time() - self._in_flight[0][1] > limit_s:
            connection.close()
        else:
            self._timeout = self._loop.call_later(_CHECK_TIMEOUT_S, self._check_timeout, connection)

    def _end_session(self) -> None:
        """Begin a new session with the next fetch, which names all partitions."""
        self._session_epoch = 0
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.name_again()

    # -- requests -------------------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Send a fetch in this iteration of the loop, after all partitions that change in it."""
        if not self._is_armed and not self._is_closed:
            self._is_armed = True
            self._loop.call_soon(self._send_armed)

    def _send_armed(self) -> None:
        self._is_armed = False
        self._send()

    def _send(self) -> None:
        """Send a fetch if none is in flight, or if there is something to tell the leader meanwhile."""
        try:
            self._send_next()
        except BaseException:  # a bug: begin again, because nothing else sends the next fetch
            if self._connection is not None:
                self._connection.close()
            raise

    def _send_next(self) -> None:
        connection = self._connection
        if self._is_closed or self._reopen is not None or self._opening is not None:
            return
        if connection is None:
            if self._followed:
                self._opening = self._owner.tasks.start(self._open(), f"connect to leader {self.endpoint}")
            return
        is_full = self._session_epoch == 0
        if self._in_flight:
            if is_full or len(self._in_flight) >= _IN_FLIGHT_MAX or not (self._changed or self._forgotten):
                return
        elif all(followed.is_waiting for followed in self._followed.values()):
            # A session without partitions ends.
            self._end_session()
            self._is_new = True
            return
        number = next(self._numbers)
        topics = self._rows(list(self._followed.values()) if is_full else list(self._changed), number)
        forgotten: dict[bytes, list[int]] = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        self._changed.clear()
        self._forgotten.clear()
        if topics or forgotten or not self._in_flight:
            self._send_fetch(connection, number, topics, forgotten)

    def _rows(self, partitions: list[_Followed], number: int) -> dict[bytes, list[FollowerRow]]:
        """Return the rows of these partitions that tell the leader anything new, by topic."""
        size_bytes_max = self._owner.settings().replica_fetch_max_bytes
        topics: dict[bytes, list[FollowerRow]] = {}
        for followed in partitions:
            if followed.is_waiting or not followed.is_current:
                continue
            row = followed.row(size_bytes_max)
            sent = followed.sent
            if sent is not None and row[:5] == sent[:5] and row.synced_end_offset == sent.synced_end_offset:
                continue
            followed.sent = row
            if followed.first_request is None:
                followed.first_request = number
            topics.setdefault(followed.key[0], []).append(row)
        return topics

    def _send_fetch(
        self, connection: AsyncBrokerConnection, number: int, topics: dict[bytes, list[FollowerRow]],
        forgotten: dict[bytes, list[int]],
    ) -> None:  # fmt: skip
        owner = self._owner
        settings = owner.settings()
        is_full = self._session_epoch == 0
        # The first reply tells the id of the session, without which no second fetch can be sent: do not wait for it.
        wait_ms = 0 if self._is_new else settings.replica_fetch_wait_max_ms
        self._is_new = False
        frame = follower_fetch(
            number & 0x7FFFFFFF, owner.client_id, replica_id=owner.broker_id, replica_epoch=owner.broker_epoch(),
            max_wait_ms=wait_ms, min_bytes=settings.replica_fetch_min_bytes,
            size_bytes_max=settings.replica_fetch_response_max_bytes, session_id=self._session_id,
            session_epoch=self._session_epoch, topics=topics, forgotten=forgotten,
        )  # fmt: skip
        if not is_full:
            self._session_epoch = self._session_epoch + 1 if self._session_epoch < _SESSION_EPOCH_MAX else 1
        owner.requests += 1
        self._in_flight.append((number, self._loop.time()))
        connection.send([frame]).add_done_callback(partial(self._replied, connection, number, is_full))

    # -- replies --------------------------------------------------------------------------------------------------

    def _replied(
        self, connection: AsyncBrokerConnection, number: int, is_full: bool, reply: asyncio.Future[memoryview]
    ) -> None:
        if connection is not self._connection or reply.cancelled() or reply.exception() is not None:
            return  # the connection is lost: ``_lost`` begins again
        self._in_flight.popleft()
        try:
            parsed = parse_reply(reply.result())
        except WireError as error:
            self._log_refusal(f"the reply is malformed: {error}")
            connection.close()
            return
        if parsed.error_code:
            if is_full or parsed.error_code not in _SESSION_ERRORS:
                self._log_refusal(f"error code {parsed.error_code}")
                connection.close()
                return
            self._end_session()
            self._is_new = True
        else:
            self._refusal = ""
            is_taken = False
            try:
                self._take(parsed.rows, number)
                is_taken = True
            finally:
                if not is_taken:  # a bug: begin again, because some partitions would never be named again
                    connection.close()
            if is_full:
                self._session_id = parsed.session_id
                self._session_epoch = 1
            if not parsed.session_id:
                self._end_session()  # the leader has no room for a session, or all its partitions were forgotten
        self._send()

    def _log_refusal(self, reason: str) -> None:
        """Log why fetches fail, once for a reason: they are sent again several times a second."""
        if reason != self._refusal:
            self._refusal = reason
            log.error("fetches from a leader fail and are repeated endpoint=%s error=%s", self.endpoint, reason)

    def _take(self, rows: list[FetchedRow], number: int) -> None:
        """Handle the rows of a reply to request ``number``."""
        taken: list[tuple[_Followed, FetchedRow]] = []
        for row in rows:
            followed = self._followed.get((row.topic_id, row.partition))
            if followed is None or followed.first_request is None or number < followed.first_request:
                continue
            if followed.is_current and self._append(followed, row):
                followed.failure = ""
                taken.append((followed, row))
        for followed, row in taken:
            self._complete(followed, row)

    def _append(self, followed: _Followed, row: FetchedRow) -> bool:
        """Append the records of a row, or handle its error. Return whether the row was taken."""
        partition = followed.partition
        try:
            if row.error_code:
                self._handle_error(followed, row)
                return False
            if row.diverging is not None:
                self._truncate(followed, *row.diverging)
                return False
            if row.records:
                assert followed.sent is not None
                if partition.log.log_end_offset != followed.sent.fetch_offset:
                    self._name(followed)  # a reply to an earlier fetch has moved the log
                    return False
                self._replicas.followers.append(partition, row.records, self._owner.wall_ms())
        except StorageError as error:
            self._fail(followed, error, _RETRY_LATE_S)
            return False
        except (CorruptMessage, UnexpectedAppendOffset) as error:
            self._fail(followed, error, _RETRY_LATE_S)
            return False
        return True

    def _complete(self, followed: _Followed, row: FetchedRow) -> None:
        """Write the records of a row, and take over the leader's high watermark and log start."""
        partition, replicas = followed.partition, self._replicas
        if partition.offline:
            return
        if row.records:
            try:
                replicas.followers.write(partition)
            except StorageError as error:
                self._fail(followed, error, _RETRY_LATE_S)
                return
            self._changed[followed] = None
            if partition.is_follower_throttled:
                self._throttle(followed, len(row.records))
            if row.wants_sync or partition.broker_id not in partition.isr:
                replicas.followers.sync(partition)
            else:
                self._owner.sync_when_idle(partition)
        partition.follow_high_watermark(row.high_watermark)
        replicas.followers.follow_log_start(partition, row.log_start_offset)

    def _throttle(self, followed: _Followed, size_bytes: int) -> None:
        """Count the bytes of a throttled replica. Let it wait if there were too many and it is not in sync.

        The leader sends no further records of a partition until it is named with its new fetch offset.
        """
        partition, quota = followed.partition, self._owner.quota
        rate, now = self._owner.settings().follower_replication_throttled_rate, self._replicas.monotonic()
        quota.record(size_bytes, rate, now)
        wait_s = quota.wait_s(rate, now)
        if wait_s and partition.broker_id not in partition.isr:
            followed.retry = self._loop.call_later(wait_s, self._continue, followed)

    def _continue(self, followed: _Followed) -> None:
        """Fetch a throttled partition again, or let it wait further."""
        owner = self._owner
        rate = owner.settings().follower_replication_throttled_rate
        wait_s = owner.quota.wait_s(rate, self._replicas.monotonic())
        if wait_s and followed.partition.is_follower_throttled:
            followed.retry = self._loop.call_later(wait_s, self._continue, followed)
            return
        followed.retry = None
        if not followed.partition.offline:
            self._changed[followed] = None
            self._send_soon()

    def _truncate(self, followed: _Followed, epoch: int, end_offset: int) -> None:
        """Truncate to the end of the common history: ``epoch`` and where it ends in the leader's log.

        Our log may have a smaller epoch than ``epoch`` as its largest one up to it, which may end earlier. The leader
        compares again with what remains, until nothing diverges.
        """
        its_log = followed.partition.log
        _, own_end = its_log.epochs.end_offset_for(epoch, its_log.log_end_offset)
        offset = min(end_offset, own_end) if own_end >= 0 else end_offset
        self._request_truncation(followed, TruncationRequest(followed.partition, offset))
        self._owner.truncations += 1

    def _request_truncation(self, followed: _Followed, request: TruncationRequest) -> None:
        """Truncate the log together with others. It is not fetched until that is synced."""
        self._forget(followed)
        followed.name_again()
        followed.is_truncating = True
        self._owner.log_truncations.add(request, partial(self._truncated, followed))

    def _truncated(self, followed: _Followed, error: Exception | None) -> None:
        followed.is_truncating = False
        if error is not None:
            self._fail(followed, error, _RETRY_LATE_S)
        elif not followed.partition.offline:
            self._name(followed)

    def _handle_error(self, followed: _Followed, row: FetchedRow) -> None:
        partition, code = followed.partition, row.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            its_log = partition.log
            is_behind = its_log.log_end_offset < row.log_start_offset
            if is_behind or (row.log_start_offset >= 0 and its_log.log_start_offset == its_log.log_end_offset):
                request = TruncationRequest(partition, row.log_start_offset, restarts=True)
                self._request_truncation(followed, request)
                return
            # The leader does not know our last epoch. It may have lost its data: ours must not be deleted.
            self._log_failure(followed, "the log is not within that of its leader")
        soon = code == ErrorCode.UNKNOWN_LEADER_EPOCH
        self._back_off(followed, _RETRY_SOON_S if soon else RETRY_S)

    def _fail(self, followed: _Followed, error: Exception, delay_s: float) -> None:
        self._log_failure(followed, str(error))
        self._back_off(followed, delay_s)

    @staticmethod
    def _log_failure(followed: _Followed, reason: str) -> None:
        """Log why nothing is copied, once for a reason: it is tried again several times a second."""
        if reason != followed.failure:
            followed.failure = reason
            log.error("records of the leader are not copied partition=%s error=%s", followed.partition.name, reason)
