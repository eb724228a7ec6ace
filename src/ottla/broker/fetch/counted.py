"""Fetch while there are quotas of fetched bytes or of request time: the same, with what clients use counted."""

from __future__ import annotations

from ottla.broker.access.throttling import with_throttle_time
from ottla.broker.fetch.api import FetchApi
from ottla.broker.fetch.fetch import Fetch
from ottla.broker.fetch.reply import FetchReply
from ottla.broker.fetch.rows import FetchRow
from ottla.broker.fetch.sessions import Begun
from ottla.model.types import FrameBuffer
from ottla.net.connection import Connection
from ottla.wire.fetch import FetchRequest, reply_shape
from ottla.wire.frame import read_client_id


def handle_counted(
    api: FetchApi,
    connection: Connection,
    buffer: FrameBuffer,
    view: memoryview,
    start: int,
    end: int,
    version: int,
    correlation_id: int,
) -> None:
    """Handle the frame ``buffer[start:end]`` and count the time."""
    throttling = api.throttling
    started, before = throttling.monotonic(), connection.newest_slot
    connection.client_id = read_client_id(buffer, start + 8, end)
    api.handle(connection, buffer, view, start, end, version, correlation_id)
    throttle_ms, slot = throttling.take_time(connection, started), connection.newest_slot
    if throttle_ms and slot is not None and slot is not before and slot.data is not None:
        slot.data = with_throttle_time(slot.data, reply_shape(version).throttle_position, throttle_ms)


class CountedFetch(Fetch):
    """A fetch whose records and time are counted. Records of followers are not."""

    __slots__ = ()

    def __init__(self, api: FetchApi, reply: FetchReply, request: FetchRequest, begun: Begun) -> None:
        if request.replica_id < 0:
            # A larger reply would mute the connection for long.
            size_bytes_max = api.throttling.records_bytes_max(reply.slot.connection)
            request = request._replace(size_bytes_max=min(request.size_bytes_max, size_bytes_max))
        super().__init__(api, reply, request, begun)

    def answer_now(self) -> None:
        started = self._api.throttling.monotonic()
        super().answer_now()
        self._api.throttling.take_time(self._reply.slot.connection, started)

    def answer(self, reads: list[FetchRow]) -> None:
        size_bytes = sum(read.region.size_bytes for read in reads if read.region is not None)
        if size_bytes and not self.is_replica:
            throttle_ms = self._api.throttling.take_records(self._reply.slot.connection, size_bytes)
            if throttle_ms:
                self._answer_without_rows(throttle_ms)
                return
        super().answer(reads)

    def _answer_without_rows(self, throttle_ms: int) -> None:
        """Send no partitions. The session keeps its news for the next fetch; a new session is ended, as in Kafka."""
        session, session_id = self._session, 0
        if session is not None and self._news_only:
            session_id = session.session_id
        elif session is not None:
            self._api.sessions.end(session)
        start = self._reply.shape.reply_start(throttle_ms, 0, session_id)
        self._reply.fill(start, [], self._api.hints)
