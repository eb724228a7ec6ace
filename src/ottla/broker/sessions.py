"""Fetch sessions (KIP-227): a client names its partitions once, then only what changes. Pure: time comes in.

    id 0, epoch -1     no session wanted                      id n, epoch -1   close it, serve this one without
    any id, epoch 0    a full fetch; a new session may start  id n, epoch m    the next fetch of session n

The expected epoch moves on when a request arrives; after 2^31-1 comes 1. An answer within a session leaves out a
partition that has nothing new. A session costs memory, so there is a number of them at most, and one that was not used
for two minutes gives way to a new one.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.model.errors import ErrorCode, Refused
from ottla.wire.fetch import FetchPartition, FetchRequest

EVICTION_S = 120.0
#: a client with more of them is served without a session: they would stay in memory although it may never come back
PARTITIONS_MAX = 10_000
_FULL, _FINAL = 0, -1
_EPOCH_MAX = (1 << 31) - 1
_UNSENT = -1

Key = tuple[bytes, int]


class FetchedPartition:
    """A partition of one fetch, and within a session what its client was last told of it."""

    __slots__ = ("high_watermark", "log_start_offset", "number", "request", "topic")

    def __init__(self, topic: bytes, request: FetchPartition) -> None:
        #: the topic's name, or its id for clients that use ids
        self.topic = topic
        self.number = request.partition
        self.request = request
        self.high_watermark = _UNSENT
        self.log_start_offset = _UNSENT

    def is_news(self, error_code: int, high_watermark: int, log_start_offset: int, size_bytes: int) -> bool:
        """Whether an answer within a session must name this partition; notes what it will say."""
        news = bool(
            error_code or size_bytes
            or high_watermark != self.high_watermark or log_start_offset != self.log_start_offset
        )  # fmt: skip
        # After an error everything is sent again, whatever it is.
        self.high_watermark = _UNSENT if error_code else high_watermark
        self.log_start_offset = log_start_offset
        return news


class FetchSession:
    """What one client fetches, in the order in which it is served."""

    __slots__ = ("epoch", "partitions", "session_id", "topic_ids", "used_at")

    def __init__(self, session_id: int, topic_ids: bool, partitions: dict[Key, FetchedPartition], now: float) -> None:
        self.session_id = session_id
        self.epoch = 1
        self.topic_ids = topic_ids
        self.partitions = partitions
        self.used_at = now

    def update(self, request: FetchRequest) -> None:
        for topic, partitions in request.topics:
            for wanted in partitions:
                known = self.partitions.get((topic, wanted.partition))
                if known is None:
                    self.partitions[topic, wanted.partition] = FetchedPartition(topic, wanted)
                else:
                    known.request = wanted
        for topic, numbers in request.forgotten:
            for number in numbers:
                self.partitions.pop((topic, number), None)

    def move_to_end(self, partition: FetchedPartition) -> None:
        """It was served with data: the others come first next time."""
        key = partition.topic, partition.number
        if self.partitions.pop(key, None) is not None:
            self.partitions[key] = partition


class FetchSessions:
    """The sessions of this broker."""

    def __init__(self, slots: int, random_id: Iterable[int]) -> None:
        self._slots = slots
        self._random_id = iter(random_id)
        #: least recently used first
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: FetchRequest, topic_ids: bool, now: float
    ) -> tuple[FetchSession | None, list[FetchedPartition], bool]:
        """The request's session, the partitions to serve, and whether only news of them is wanted.

        Raises Refused with the code that answers the whole request.
        """
        if request.session_epoch in (_FULL, _FINAL):
            self._sessions.pop(request.session_id, None)
            wanted = _partitions_of(request)
            session = self._create(wanted, topic_ids, now) if request.session_epoch == _FULL else None
            return session, list(wanted.values()), False
        session = self._sessions.get(request.session_id)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.topic_ids != topic_ids:
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        session.update(request)
        session.used_at = now
        del self._sessions[session.session_id]
        if not session.partitions:
            # Everything was forgotten: the answer's session id 0 tells the client that the session is over.
            return None, list(_partitions_of(request).values()), False
        if len(session.partitions) > PARTITIONS_MAX:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions[session.session_id] = session
        return session, list(session.partitions.values()), True

    def _create(self, wanted: dict[Key, FetchedPartition], topic_ids: bool, now: float) -> FetchSession | None:
        if not wanted or len(wanted) > PARTITIONS_MAX or self._slots <= 0:
            return None
        if len(self._sessions) >= self._slots:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at < EVICTION_S:
                return None
            del self._sessions[oldest.session_id]
        session_id = next(i for i in self._random_id if i > 0 and i not in self._sessions)
        session = self._sessions[session_id] = FetchSession(session_id, topic_ids, wanted, now)
        return session


def _partitions_of(request: FetchRequest) -> dict[Key, FetchedPartition]:
    """The partitions that a request names, each once; the last mention counts."""
    return {(topic, p.partition): FetchedPartition(topic, p) for topic, rows in request.topics for p in rows}
