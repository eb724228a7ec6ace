"""Fetch sessions (KIP-227): a client names its partitions once, then only what changes. Pure: time comes in.

    id 0, epoch -1     no session wanted                      id n, epoch -1   close it, serve this one without
    any id, epoch 0    a full fetch; a new session may start  id n, epoch m    the next fetch of session n

A session belongs to the principal that began it, to the listener, and to one follower or to consumers. For all other
clients its id is unknown: they can neither read from the session nor change or end it. Ids are random, so that no
client can guess them.

The expected epoch moves on when a request arrives; after 2^31-1 comes 1. An answer within a session leaves out a
partition that has nothing new.

A session knows which of its partitions may have news (``changed``), so that a fetch that changes nothing costs the same
however many partitions there are. A partition leaves ``changed`` when an answer found it read to its end, with nothing
that was not sent to the client; from then on it is registered as a reader of it (`partitions/partition.py`).
It comes back with the first event there: records, a moved high watermark or log start, the end of the partition. It
also comes back when the client changes what it asks for. An event that no fetch waits for ends the registration, so a
session that its client has abandoned costs writers nothing.

The session of a follower differs in two ways, because a follower sends a fetch before the reply to the one before has
arrived. After records, an error or a diverging epoch were sent for a partition, it is not looked at until the follower
names it with its new fetch offset: otherwise the same records would be sent twice. And a row with a maximum of 0 bytes
only reports how far the follower's log is synced.

A session costs memory, so the sessions and their partitions are limited in number. When a new session needs a place,
one that was not used for two minutes is evicted, else, as in Kafka, the smallest one that began more than two minutes
ago if it has fewer partitions than the new one. Followers have places of their own (`apis/fetch.py`). A client that may
read none of the topics it names gets no session, so that it cannot take the places of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import Protocol

from ottla.broker.partitions.follower import Follower
from ottla.broker.partitions.partition import Partition
from ottla.model.errors import ErrorCode, Refused
from ottla.wire.fetch import FetchPartition, FetchRequest

EVICTION_S = 120.0
#: a client with more partitions is served without a session: they would stay in memory although it may never come back
PARTITIONS_MAX = 10_000
#: how often sessions are searched for one that is smaller than a new one
_SEARCH_S = 1.0
#: partitions of all sessions; one takes about 500 bytes
PARTITIONS_TOTAL_MAX = 100_000
_FULL, _FINAL = 0, -1
_EPOCH_MAX = (1 << 31) - 1
_UNSENT = -1

Key = tuple[bytes, int]


class Client(Protocol):
    """The connection of a client, as far as sessions know it."""

    listener: str
    principal: str


class WaitingFetch(Protocol):
    """A fetch of a session that waits for news of its partitions."""

    def on_high_watermark(self, size_bytes: int) -> None: ...

    def on_stable(self) -> None: ...

    def on_changed(self) -> None: ...

    def on_log_start(self) -> None: ...

    def on_partition_deleted(self) -> None: ...

    def answer_now(self) -> None:
        """Answer with what there is, before this returns."""


class FetchedPartition:
    """A partition of one fetch, and within a session what was last sent to its client."""

    __slots__ = ("high_watermark", "log_start_offset", "number", "request", "topic")

    def __init__(self, topic: bytes, request: FetchPartition) -> None:
        #: the topic's name, or its id for clients that use ids
        self.topic = topic
        self.number = request.partition
        self.request = request
        self.high_watermark = _UNSENT
        self.log_start_offset = _UNSENT

    @property
    def was_sent_start(self) -> bool:
        """Return whether a log start was sent to the client."""
        return self.log_start_offset != _UNSENT

    def must_be_sent(self, error_code: int, high_watermark: int, log_start_offset: int, size_bytes: int) -> bool:
        """Return whether an answer within a session must name this partition, and note what it will say."""
        news = bool(
            error_code or size_bytes
            or high_watermark != self.high_watermark or log_start_offset != self.log_start_offset
        )  # fmt: skip
        # After an error everything is sent again, whatever it is.
        self.high_watermark = _UNSENT if error_code else high_watermark
        self.log_start_offset = log_start_offset
        return news


class SessionPartition(FetchedPartition):
    """A partition of a session: a reader of that partition as long as the session waits for its news."""

    __slots__ = ("_registered_in", "_session", "follower")

    def __init__(self, topic: bytes, request: FetchPartition, session: FetchSession) -> None:
        super().__init__(topic, request)
        self._session = session
        self._registered_in: Partition | None = None
        #: what the leader knows of the follower that fetches; None for a consumer
        self.follower: Follower | None = None

    def register(self, partition: Partition) -> None:
        """Wait for news of the partition."""
        if self._registered_in is not partition:
            self.unregister()
            session = self._session
            partition.park(self, read_committed=session.read_committed, replica=session.replica_id >= 0)
            self._registered_in = partition

    def unregister(self) -> None:
        if self._registered_in is not None:
            self._registered_in.unpark(self)
            self._registered_in = None

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if it waits for news of a partition that is not served."""
        assert self._registered_in is None or self._registered_in in served, "_registered_in"

    def follow(self, follower: Follower) -> None:
        """Each fetch of the session counts as one of this partition, until ``leave``."""
        if self.follower is not follower:
            self.leave()
            self.follower = follower
            follower.begin_session(self._session)

    def leave(self) -> None:
        """Wait for no news of the partition any more: the client has forgotten it, or the session ends."""
        self.unregister()
        if self.follower is not None:
            self.follower.end_session(self._session)
            self.follower = None

    # -- events of the partition (replica.partition.Reader) ---------------------------------------------------------

    def on_high_watermark(self, size_bytes: int) -> None:
        session = self._session
        session.changed[self] = None
        if self.follower is not None:
            self.follower.note_appended()
        if session.waiting is not None:
            session.waiting.on_high_watermark(size_bytes)
        else:
            self.unregister()

    def on_stable(self) -> None:
        session = self._session
        session.changed[self] = None
        if session.waiting is not None:
            session.waiting.on_stable()
        else:
            self.unregister()

    def on_changed(self) -> None:
        session = self._session
        session.changed[self] = None
        if session.waiting is not None:
            session.waiting.on_changed()
        else:
            self.unregister()

    def on_log_start(self) -> None:
        session = self._session
        session.changed[self] = None
        if session.waiting is not None:
            session.waiting.on_log_start()
        else:
            self.unregister()

    def on_partition_deleted(self) -> None:
        session = self._session
        session.changed[self] = None
        self._registered_in = None
        if session.waiting is not None:
            session.waiting.on_partition_deleted()


class FetchSession:
    """What one client fetches."""

    __slots__ = (
        "access_generation", "began_at", "changed", "epoch", "listener", "partitions", "principal", "read_committed",
        "replica_id", "session_id", "topic_ids", "used_at", "waiting",
    )  # fmt: skip

    def __init__(self, session_id: int, topic_ids: bool, request: FetchRequest, now: float, client: Client) -> None:
        self.session_id = session_id
        #: whom the session belongs to, and the listener that it came through
        self.principal, self.listener = client.principal, client.listener
        self.epoch = 1
        #: the ACLs with which all partitions were last looked at
        self.access_generation = -1
        self.topic_ids = topic_ids
        self.read_committed = request.read_committed
        #: the broker that follows the partitions; -1 for a consumer
        self.replica_id = request.replica_id
        self.partitions: dict[Key, SessionPartition] = {}
        #: the partitions to look at, in the order in which they are served; the others have no news
        self.changed: dict[SessionPartition, None] = {}
        #: the fetch that waits for news, and gets all events of the partitions
        self.waiting: WaitingFetch | None = None
        self.began_at = self.used_at = now
        self._add(request)

    def update(self, request: FetchRequest) -> None:
        """Take over what a request adds, changes and forgets."""
        self._add(request)
        for topic, numbers in request.forgotten:
            for number in numbers:
                forgotten = self.partitions.pop((topic, number), None)
                if forgotten is not None:
                    forgotten.leave()
                    self.changed.pop(forgotten, None)

    def _add(self, request: FetchRequest) -> None:
        for topic, partitions in request.topics:
            for wanted in partitions:
                known = self.partitions.get((topic, wanted.partition))
                if known is None:
                    known = self.partitions[topic, wanted.partition] = SessionPartition(topic, wanted, self)
                elif not wanted.size_bytes_max and self.replica_id >= 0:
                    continue
                else:
                    known.request = wanted
                    if self.replica_id >= 0:
                        # The follower ignores replies to fetches before this one if its leader epoch has changed.
                        known.high_watermark = _UNSENT
                self.changed[known] = None

    def follow_access(self, generation: int) -> None:
        """Look at all partitions again if ACLs have changed: the client may read fewer of them, or more."""
        if self.access_generation != generation:
            self.access_generation = generation
            self.changed |= dict.fromkeys(self.partitions.values())

    def move_to_end(self, partition: SessionPartition) -> None:
        """Serve the other partitions first next time: this one was served with data or an error."""
        if partition in self.changed:
            del self.changed[partition]
            self.changed[partition] = None

    def pause(self, partition: SessionPartition) -> None:
        """Look at a partition again only after the follower has named it with its new fetch offset."""
        self.changed.pop(partition, None)
        partition.unregister()

    def note_caught_up(self, wanted: SessionPartition, partition: Partition) -> None:
        """Look at a partition again only after an event there: its client has received everything."""
        if wanted in self.changed:
            wanted.register(partition)
            del self.changed[wanted]

    def close(self) -> None:
        """Answer the fetch that waits, and wait for nothing any more."""
        if self.waiting is not None:
            self.waiting.answer_now()
        for partition in self.partitions.values():
            partition.leave()


#: the session of a request, the partitions to look at, and whether only news of them is wanted
Begun = tuple[FetchSession | None, list[FetchedPartition], bool]


class FetchSessions:
    """The sessions of this broker."""

    def __init__(
        self,
        slots: int,
        random_id: Iterable[int],
        *,
        partitions_max: int = PARTITIONS_MAX,
        partitions_total_max: int = PARTITIONS_TOTAL_MAX,
    ) -> None:
        self._slots = slots
        self._partitions_max = partitions_max
        self._partitions_total_max = partitions_total_max
        self._random_id = iter(random_id)
        self._search_due = 0.0
        #: least recently used first
        self._sessions: dict[int, FetchSession] = {}
        #: of all sessions
        self.partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def check_invariants(self, served: Set[Partition]) -> None:
        """Raise AssertionError if a session waits for news of a partition that is not served."""
        for session in self._sessions.values():
            for partition in session.partitions.values():
                partition.check_invariants(served)

    def begin(
        self, request: FetchRequest, topic_ids: bool, now: float, client: Client, *, may_create: bool = True
    ) -> Begun:
        """Return the request's session, the partitions to look at, and whether only news of them is wanted.

        Without ``may_create`` no session begins. Raise Refused with the code that answers the whole request.
        """
        if request.session_epoch in (_FULL, _FINAL):
            if (known := self._own(request, client)) is not None:
                self._remove(known)
            if request.session_epoch == _FULL and may_create:
                new = self._create(request, topic_ids, now, client)
                if new is not None:
                    return new, list(new.partitions.values()), False
            return None, partitions_of(request), False
        session = self._find(request, topic_ids, client)
        if session.waiting is not None:
            # A client sends its next request after the answer to the last, so nothing reads that answer any more.
            session.waiting.answer_now()
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else 1
        self.partitions -= len(session.partitions)
        session.update(request)
        self.partitions += len(session.partitions)
        session.used_at = now
        if not session.partitions:
            # Everything was forgotten: the answer's session id 0 tells the client that the session is over.
            self._remove(session)
            return None, partitions_of(request), False
        if len(session.partitions) > self._partitions_max or self.partitions > self._partitions_total_max:
            self._remove(session)
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        del self._sessions[session.session_id]
        self._sessions[session.session_id] = session
        return session, list(session.changed), True

    def end_before(self, session_id: int, time_s: float) -> bool:
        """End the session with this id if it began before ``time_s``. Return whether it began after that."""
        session = self._sessions.get(session_id)
        if session is not None and session.began_at <= time_s:
            self._remove(session)
        return session is not None and session.began_at > time_s

    def end_others(self, replica_id: int, current: FetchSession) -> None:
        """End the sessions of a follower other than ``current``: it has opened a new connection."""
        for session in [each for each in self._sessions.values() if each.replica_id == replica_id]:
            if session is not current:
                self._remove(session)

    def end(self, session: FetchSession) -> None:
        """End a session that its client does not know yet."""
        if self._sessions.get(session.session_id) is session:
            self._remove(session)

    def _own(self, request: FetchRequest, client: Client) -> FetchSession | None:
        """Return the session that a request names; None if there is none, or another client has it."""
        session = self._sessions.get(request.session_id)
        if (
            session is not None
            and session.principal == client.principal
            and session.listener == client.listener
            and session.replica_id == request.replica_id
        ):
            return session
        return None

    def _find(self, request: FetchRequest, topic_ids: bool, client: Client) -> FetchSession:
        session = self._own(request, client)
        if session is None:
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise Refused(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.topic_ids != topic_ids:
            raise Refused(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.read_committed != request.read_committed:
            # Which partitions have news depends on it. No client changes it; one that does starts a new session.
            self._remove(session)
            raise Refused(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return session

    def _create(self, request: FetchRequest, topic_ids: bool, now: float, client: Client) -> FetchSession | None:
        count = sum(len(rows) for _, rows in request.topics)
        if not count or count > self._partitions_max or self._slots <= 0:
            return None
        while len(self._sessions) >= self._slots or self.partitions + count > self._partitions_total_max:
            evicted = self._evictable(count, now)
            if evicted is None:
                return None
            self._remove(evicted)
        session_id = next(i for i in self._random_id if i > 0 and i not in self._sessions)
        session = FetchSession(session_id, topic_ids, request, now, client)
        self._sessions[session_id] = session
        self.partitions += len(session.partitions)
        return session

    def _evictable(self, count: int, now: float) -> FetchSession | None:
        """Return the session that makes room for a new one of ``count`` partitions; None if there is none."""
        oldest = next(iter(self._sessions.values()))
        if now - oldest.used_at >= EVICTION_S:
            return oldest
        # Only for a place: many small sessions are not evicted for the partitions of one large session.
        if len(self._sessions) < self._slots or now < self._search_due:
            return None
        old = (each for each in self._sessions.values() if now - each.began_at > EVICTION_S)
        smallest = min(old, key=lambda each: len(each.partitions), default=None)
        if smallest is not None and len(smallest.partitions) < count:
            return smallest
        # Clients without a session ask with each fetch, and the search looks at all sessions.
        self._search_due = now + _SEARCH_S
        return None

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self.partitions -= len(session.partitions)
        session.close()


def partitions_of(request: FetchRequest) -> list[FetchedPartition]:
    """Return the partitions that a request names, each once; the last mention counts."""
    topics = request.topics
    if len(topics) == 1 and len(topics[0][1]) == 1:
        return [FetchedPartition(topics[0][0], topics[0][1][0])]
    return list({(topic, p.partition): FetchedPartition(topic, p) for topic, rows in topics for p in rows}.values())


def random_ids(random_bytes: Callable[[], bytes]) -> Iterator[int]:
    """Yield ids for sessions: 31 random bits each. ``random_bytes`` returns at least four bytes."""
    while True:
        yield int.from_bytes(random_bytes()[:4], "big") & _EPOCH_MAX
