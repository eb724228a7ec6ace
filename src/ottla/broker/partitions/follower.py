"""What the leader of a partition knows of another replica. Pure."""

from __future__ import annotations

import math
from typing import Protocol


class FetchTimes(Protocol):
    """A fetch session of a follower."""

    used_at: float


class Follower:
    """What the leader knows of another replica: everything below these offsets is written, and synced, there."""

    __slots__ = (
        "_fetched_at", "_session", "broker_epoch", "caught_up_at", "end_offset", "leader_end_at_fetch",
        "log_start_offset", "sent_high_watermark", "synced_end_offset",
    )  # fmt: skip

    def __init__(self, now: float) -> None:
        """``now`` counts as the moment when it had everything, so that it has time to fetch from a new leader."""
        #: -1: it has not fetched from this leader yet
        self.end_offset = self.synced_end_offset = -1
        #: the start of its log, also after a power failure
        self.log_start_offset = -1
        #: the high watermark in the last reply to it
        self.sent_high_watermark = -1
        #: the registration of the process that fetched last
        self.broker_epoch = -1
        #: the last time at which it had every record that the leader had then
        self.caught_up_at = now
        self._fetched_at = -math.inf
        self.leader_end_at_fetch = -1
        #: the fetch session that contains this partition; each of its fetches is also one of this partition
        self._session: FetchTimes | None = None

    @property
    def fetched_at(self) -> float:
        """Return the time of the last fetch of this partition, also if the session did not name it."""
        return self._fetched_at if self._session is None else max(self._fetched_at, self._session.used_at)

    def begin_session(self, session: FetchTimes) -> None:
        self._session = session

    def end_session(self, session: FetchTimes) -> None:
        """The follower no longer fetches this partition with ``session``."""
        if self._session is session:
            self._fetched_at = self.fetched_at
            self._session = None

    def note_alive(self, fetched_at: float) -> None:
        """The follower sent a fetch at this time, which was refused."""
        self._fetched_at = max(self._fetched_at, fetched_at)

    def note_appended(self) -> None:
        """Records were appended after the follower had fetched all others: it had everything at its last fetch."""
        self.caught_up_at = max(self.caught_up_at, self.fetched_at)

    def note_fetch(
        self, end_offset: int, synced_end_offset: int, broker_epoch: int, leader_end: int, now: float
    ) -> None:
        if end_offset >= leader_end:
            self.caught_up_at = now
        elif end_offset >= self.leader_end_at_fetch >= 0:
            self.caught_up_at = max(self.caught_up_at, self._fetched_at)
        self.end_offset, self.synced_end_offset = end_offset, min(synced_end_offset, end_offset)
        self.broker_epoch = broker_epoch
        self._fetched_at, self.leader_end_at_fetch = now, leader_end
