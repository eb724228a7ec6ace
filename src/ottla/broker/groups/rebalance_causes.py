"""A rebalance while it goes on, with its causes. Groups of both protocols collect them in the same way."""

from __future__ import annotations

from dataclasses import dataclass, field

from ottla.broker.coordinators.outcome import Moment
from ottla.broker.groups.journal import CAUSES_MAX, Cause, Rebalance

#: A detail names this many topics and gives the number of the others.
_NAMES_MAX = 3


@dataclass(slots=True, kw_only=True)
class OngoingRebalance:
    """A rebalance from its first cause on."""

    started: Moment
    members_before: int
    #: the group epoch, if it is known from the start
    generation: int = -1
    causes: list[Cause] = field(default_factory=list)
    causes_left_out: int = 0

    def add(self, cause: Cause) -> None:
        """Add a cause, unless it is known. Of more than CAUSES_MAX causes only the number is kept."""
        if cause in self.causes:
            return
        if len(self.causes) < CAUSES_MAX:
            self.causes.append(cause)
        else:
            self.causes_left_out += 1

    def finished(self, group_id: str, group_type: str, generation: int, members_after: int, now: Moment) -> Rebalance:
        """Return the rebalance, which ends now, for the journal."""
        return Rebalance(
            group_id=group_id,
            group_type=group_type,
            generation=generation,
            started_ms=self.started.wall_ms,
            duration_ms=round((now.monotonic_s - self.started.monotonic_s) * 1000),
            members_before=self.members_before,
            members_after=members_after,
            causes=tuple(self.causes),
            causes_left_out=self.causes_left_out,
        )


def listed(texts: list[str]) -> str:
    """Return the first ``_NAMES_MAX`` texts and the number of the others, as one text."""
    more = len(texts) - _NAMES_MAX
    return "; ".join(texts[:_NAMES_MAX]) + (f"; and {more} more" if more > 0 else "")


def subscription_changes(before: frozenset[str] | set[str], after: frozenset[str] | set[str]) -> list[str]:
    """Return a text for each topic that a member has subscribed to or unsubscribed from."""
    added = [f"subscribed to {name}" for name in sorted(after - before)]
    return added + [f"unsubscribed from {name}" for name in sorted(before - after)]
