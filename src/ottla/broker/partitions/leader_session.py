"""LeaderSession: the connection to one leader broker, with a fetch session for all partitions that it leads.

    nothing in flight       ──► a fetch, which waits at the leader until records are written there
    one fetch in flight     ──► another one, if there is something new to tell the leader; it answers the first one then
    the connection is lost  ──► opened again after a back-off, with a new session, in which everything is named again
    the session is lost     ──► a new session on the same connection

The first fetch of a session names all partitions; each later one names those that have changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol

from ottla.client.async_connections import AsyncBrokerConnection, PeerUnreachable
from ottla.model.errors import ErrorCode
from ottla.model.types import Endpoint
from ottla.wire import WireError
from ottla.wire.replica_fetch import FetchedRow, FollowerRow, follower_fetch, parse_reply

if TYPE_CHECKING:
    from ottla.broker.partitions.follower_fetchers import ReplicaFetchers

log = logging.getLogger(__name__)

#: before a lost connection is opened again
_REOPEN_S = 0.2
#: how long clients get no leader for partitions of a broker whose connection was closed: an election takes less
_JUST_LOST_S = 1.0
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

#: rows and numbers of partitions, by topic id
Rows = dict[bytes, list[FollowerRow]]
Forgotten = dict[bytes, list[int]]


class SessionPartitions(Protocol):
    """The partitions that a session fetches, and what is done with their records."""

    @property
    def is_empty(self) -> bool: ...

    @property
    def is_waiting(self) -> bool:
        """Return whether no partition is fetched for a while."""

    @property
    def has_news(self) -> bool:
        """Return whether the next fetch has something to tell the leader."""

    def take_news(self, number: int, *, is_full: bool) -> tuple[Rows, Forgotten]:
        """Return the partitions that request ``number`` names and forgets. ``is_full``: it names all."""

    def take_rows(self, rows: list[FetchedRow], number: int) -> None:
        """Handle the rows of the reply to request ``number``."""

    def name_all_again(self) -> None:
        """The leader knows no partition any more, because the session has ended."""


class LeaderSession:
    """The connection to one leader."""

    def __init__(self, owner: ReplicaFetchers, endpoint: Endpoint, partitions: SessionPartitions) -> None:
        self._owner = owner
        self._loop = owner.loop
        self._partitions = partitions
        self.endpoint = endpoint

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
    def is_just_lost(self) -> bool:
        """Return whether the connection was closed within the last second and is not open again."""
        if self._connection is not None:
            return self._connection.is_lost
        return self._loop.time() - self._lost_at < _JUST_LOST_S

    def send_soon(self) -> None:
        """Send a fetch in this iteration of the loop, after all partitions that change in it."""
        if not self._is_armed and not self._is_closed:
            self._is_armed = True
            self._loop.call_soon(self._send_armed)

    def close(self) -> None:
        self._is_closed = True
        for timer in (self._reopen, self._timeout):
            if timer is not None:
                timer.cancel()
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.close()

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
            self._reopen = self._loop.call_later(_REOPEN_S, self._reopen_now)

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
        self._partitions.name_all_again()

    # -- requests -------------------------------------------------------------------------------------------------

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
            if not self._partitions.is_empty:
                self._opening = self._owner.tasks.start(self._open(), f"connect to leader {self.endpoint}")
            return
        is_full = self._session_epoch == 0
        if self._in_flight:
            if is_full or len(self._in_flight) >= _IN_FLIGHT_MAX or not self._partitions.has_news:
                return
        elif self._partitions.is_waiting:
            # A session without partitions ends.
            self._end_session()
            self._is_new = True
            return
        number = next(self._numbers)
        topics, forgotten = self._partitions.take_news(number, is_full=is_full)
        if topics or forgotten or not self._in_flight:
            self._send_fetch(connection, number, topics, forgotten)

    def _send_fetch(self, connection: AsyncBrokerConnection, number: int, topics: Rows, forgotten: Forgotten) -> None:
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
                self._partitions.take_rows(parsed.rows, number)
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
