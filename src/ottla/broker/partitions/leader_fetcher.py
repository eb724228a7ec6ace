"""LeaderFetcher: copies the logs of the partitions that one broker leads and this broker follows.

A fetch waits at the leader until records are written there. Its reply is handled in these steps:

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

A new leader epoch starts a partition again even if the leader is the same broker, because the leader may have truncated
its log in between (KAFKA-7164). Replies to fetches from before are ignored. A log is truncated only to an offset that
the leader derived from epochs, never to the high watermark (KIP-101, KIP-279).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.partitions.follower_logs import TruncationRequest
from ottla.broker.partitions.leader_session import Forgotten, LeaderSession, Rows
from ottla.broker.partitions.partition import Partition, Role
from ottla.model.errors import CorruptMessage, ErrorCode, StorageError, UnexpectedAppendOffset
from ottla.model.types import Endpoint
from ottla.wire.replica_fetch import FetchedRow, FollowerRow

if TYPE_CHECKING:
    from ottla.broker.partitions.follower_fetchers import ReplicaFetchers

log = logging.getLogger(__name__)

#: before a partition with an error is fetched again
_RETRY_S = 0.2
#: the leader has not applied the new epoch yet, which takes it a moment
_RETRY_SOON_S = 0.05
#: the disk is full, or batches are damaged
_RETRY_LATE_S = 1.0

Key = tuple[bytes, int]


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
        self._session = LeaderSession(owner, endpoint, self)
        self.endpoint = endpoint
        self._followed: dict[Key, _Followed] = {}
        #: partitions to name in the next fetch
        self._changed: dict[_Followed, None] = {}
        #: partitions of the session that the next fetch removes from it
        self._forgotten: dict[Key, None] = {}

    @property
    def is_empty(self) -> bool:
        return not self._followed

    def partitions(self) -> set[Partition]:
        """Return the partitions that are copied."""
        return {followed.partition for followed in self._followed.values()}

    @property
    def is_just_lost(self) -> bool:
        return self._session.is_just_lost

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
            self._session.send_soon()

    def close(self) -> None:
        for followed in self._followed.values():
            self._stop_waiting(followed)
        self._followed.clear()
        self._session.close()

    # -- partitions -----------------------------------------------------------------------------------------------

    def _name(self, followed: _Followed) -> None:
        """Name the partition in the next fetch, as if it were new."""
        followed.name_again()
        self._forgotten.pop(followed.key, None)
        self._changed[followed] = None
        self._session.send_soon()

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
            self._session.send_soon()

    def _stop_waiting(self, followed: _Followed) -> None:
        self._changed.pop(followed, None)
        if followed.retry is not None:
            followed.retry.cancel()
            followed.retry = None
        if followed.is_truncating:
            self._owner.log_truncations.cancel(followed.partition)

    # -- requests (LeaderSession) -----------------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """Return whether no partition is fetched for a while."""
        return all(followed.is_waiting for followed in self._followed.values())

    @property
    def has_news(self) -> bool:
        """Return whether the next fetch has something to tell the leader."""
        return bool(self._changed or self._forgotten)

    def take_news(self, number: int, *, is_full: bool) -> tuple[Rows, Forgotten]:
        """Return the partitions that request ``number`` names and forgets. ``is_full``: it names all."""
        rows = self._rows(list(self._followed.values()) if is_full else list(self._changed), number)
        forgotten: Forgotten = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        self._changed.clear()
        self._forgotten.clear()
        return rows, forgotten

    def name_all_again(self) -> None:
        """The leader knows no partition any more, because the session has ended."""
        self._forgotten.clear()
        for followed in self._followed.values():
            followed.name_again()

    def _rows(self, partitions: list[_Followed], number: int) -> Rows:
        """Return the rows of these partitions that tell the leader anything new, by topic."""
        size_bytes_max = self._owner.settings().replica_fetch_max_bytes
        topics: Rows = {}
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

    # -- replies ----------------------------------------------------------------------------------------------------

    def take_rows(self, rows: list[FetchedRow], number: int) -> None:
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
            self._session.send_soon()

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
        self._back_off(followed, _RETRY_SOON_S if soon else _RETRY_S)

    def _fail(self, followed: _Followed, error: Exception, delay_s: float) -> None:
        self._log_failure(followed, str(error))
        self._back_off(followed, delay_s)

    @staticmethod
    def _log_failure(followed: _Followed, reason: str) -> None:
        """Log why nothing is copied, once for a reason: it is tried again several times a second."""
        if reason != followed.failure:
            followed.failure = reason
            log.error("records of the leader are not copied partition=%s error=%s", followed.partition.name, reason)
