"""Helps librdkafka out of a wait that has no end, when the coordinator of a consumer group has ended.

To add offsets to a transaction, a client sends AddOffsetsToTxn to the coordinator of the transaction, and then
TxnOffsetCommit to the coordinator of the group. librdkafka (2.16) keeps the coordinator of a group in a cache, but
forgets a broker that Metadata does not list any more. TxnOffsetCommit then waits for a connection that is never opened,
and has no time limit. It looks for the new coordinator when any of its connections is closed. So if AddOffsetsToTxn is
not followed by TxnOffsetCommit, its connection is closed. The client opens it again; nothing was in flight.
"""

from __future__ import annotations

from ottla.env.timers import Expiring, TimerWheel
from ottla.net.connection import Connection

#: all clients send TxnOffsetCommit right after the reply to AddOffsetsToTxn
_WAIT_S = 1.0


class _Awaited:
    """A TxnOffsetCommit that has not arrived."""

    __slots__ = ("_awaited", "_connection", "_transactional_id", "timer_bucket")

    def __init__(self, awaited: dict[str, _Awaited], transactional_id: str, connection: Connection) -> None:
        self._awaited, self._transactional_id, self._connection = awaited, transactional_id, connection
        self.timer_bucket: dict[Expiring, None] | None = None

    def expire(self) -> None:
        del self._awaited[self._transactional_id]
        self._connection.close()


class AwaitedCommits:
    """The transactions of librdkafka clients whose TxnOffsetCommit has not arrived, one for each transactional id."""

    def __init__(self, wheel: TimerWheel) -> None:
        self._wheel = wheel
        self._awaited: dict[str, _Awaited] = {}

    def expect(self, transactional_id: str, connection: Connection) -> None:
        """AddOffsetsToTxn has arrived on this connection."""
        if is_librdkafka(connection):
            self.note_arrived(transactional_id)
            awaited = self._awaited[transactional_id] = _Awaited(self._awaited, transactional_id, connection)
            self._wheel.add(awaited, _WAIT_S)

    def note_arrived(self, transactional_id: str) -> None:
        """TxnOffsetCommit has arrived at this or another broker, which verifies the transaction."""
        awaited = self._awaited.pop(transactional_id, None)
        if awaited is not None:
            self._wheel.remove(awaited)


def is_librdkafka(connection: Connection) -> bool:
    """Return whether the client has named librdkafka, or a library on top of it, in ApiVersions."""
    return "rdkafka" in connection.software or connection.software.startswith("confluent-kafka-")
