"""The deadlines of a classic group. Pure.

Each member has a session deadline, each pending member id has a deadline, and the group has a join deadline and a sync
deadline. There are no timers: setting a deadline lowers ``wake_at`` if it is earlier, a heartbeat only changes the
member's own deadline, and ``find_wake_at`` computes it again when passed deadlines were handled.

Invariant: ``wake_at`` is not later than the earliest deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from ottla.broker.coordinators.outcome import NEVER, Moment
from ottla.broker.groups.classic_members import ClassicMember, PendingMember


class Deadline(IntEnum):
    """The kinds of deadlines. Of two equal deadlines, the kind with the lower number is handled first."""

    PENDING = 0
    SESSION = 1
    JOIN = 2
    SYNC = 3


class ClassicDeadlines:
    """The deadlines of one group with these members."""

    def __init__(self, members: Mapping[str, ClassicMember]) -> None:
        self._members = members
        #: by the member id that was returned with MEMBER_ID_REQUIRED
        self.pending: dict[str, PendingMember] = {}
        #: when the wait for joins ends; NEVER outside of PreparingRebalance
        self.join = NEVER
        #: when members that have not sent SyncGroup are removed; NEVER if there is no generation
        self.sync = NEVER
        self.wake_at = NEVER

    def due_in(self, timeout_ms: int, now: Moment) -> float:
        """Return the deadline after this time, and lower ``wake_at`` to it."""
        deadline = now.monotonic_s + timeout_ms / 1000
        self.wake_at = min(self.wake_at, deadline)
        return deadline

    def await_joins(self, timeout_ms: int, now: Moment) -> None:
        """Set the join deadline."""
        self.join = self.due_in(timeout_ms, now)

    def await_syncs(self, timeout_ms: int, now: Moment) -> None:
        """Set the sync deadline."""
        self.sync = self.due_in(timeout_ms, now)

    def renew(self, member: ClassicMember, now: Moment) -> None:
        """Begin the session of a member again. A new member has none until its first join is answered."""
        if not member.is_new:
            member.session_deadline = self.due_in(member.session_timeout_ms, now)

    def passed(self, at: float) -> list[tuple[Deadline, str]]:
        """Return the kinds and member ids of the deadlines that have passed, in the order of the deadlines."""
        due = [(each.deadline, Deadline.PENDING, name) for name, each in self.pending.items() if each.deadline <= at]
        expired = (each for each in self._members.values() if each.expires_at <= at)
        due += [(each.expires_at, Deadline.SESSION, each.member_id) for each in expired]
        due += [(self.join, Deadline.JOIN, "")] if self.join <= at else []
        due += [(self.sync, Deadline.SYNC, "")] if self.sync <= at else []
        return [(kind, member_id) for _, kind, member_id in sorted(due)]

    def find_wake_at(self) -> None:
        """Set ``wake_at`` to the earliest deadline."""
        self.wake_at = min(
            self.join,
            self.sync,
            min((each.deadline for each in self.pending.values()), default=NEVER),
            min((each.expires_at for each in self._members.values()), default=NEVER),
        )

    def clear(self) -> None:
        """Forget all deadlines but those of members: the group is retired."""
        self.pending.clear()
        self.join = self.sync = self.wake_at = NEVER


class InitialDelay:
    """How long an empty group waits for members before its first rebalance.

    It waits for ``group.initial.rebalance.delay.ms``, and for as long again while more members join, at most for the
    longest rebalance timeout.
    """

    def __init__(self, delay_ms: int, rebalance_timeout_ms: int) -> None:
        self._delay_ms = delay_ms
        self._remaining_ms = max(rebalance_timeout_ms - delay_ms, 0)
        #: whether a member has joined in the current delay
        self.has_new = False

    def extend(self, delay_ms: int) -> int | None:
        """Return how long the group waits further; None if the wait is over."""
        if not self.has_new or self._remaining_ms <= 0:
            return None
        wait_ms = min(delay_ms, self._remaining_ms)
        self.has_new = False
        self._remaining_ms = max(self._remaining_ms - self._delay_ms, 0)
        self._delay_ms = wait_ms
        return wait_ms
