"""The JoinGroup and SyncGroup requests of a classic group that wait. Pure.

Invariant: a member has at most one parked join and one parked sync, and each ticket is answered once.
"""

from __future__ import annotations

from typing import Any

from ottla.broker.coordinators.outcome import Ticket
from ottla.broker.groups.classic_members import ClassicMember
from ottla.broker.groups.context import GroupOutcome
from ottla.broker.groups.requests import JoinResult, SyncResult
from ottla.model.errors import ErrorCode

AnyOutcome = GroupOutcome[Any]


class ParkedRequests:
    """The parked requests of one group."""

    def __init__(self) -> None:
        #: the number of parked joins
        self.joins = 0
        self._members: dict[Ticket, ClassicMember] = {}

    def member_of(self, ticket: Ticket) -> ClassicMember | None:
        """Return the member whose request has this ticket; None if it is not parked."""
        return self._members.get(ticket)

    def park_join(self, member: ClassicMember, ticket: Ticket, out: AnyOutcome) -> None:
        self.answer_join(member, ErrorCode.REBALANCE_IN_PROGRESS, out)
        member.parked_join = ticket
        self._members[ticket] = member
        self.joins += 1

    def park_sync(self, member: ClassicMember, ticket: Ticket, out: AnyOutcome) -> None:
        self.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS), out)
        member.parked_sync = ticket
        self._members[ticket] = member

    def answer_join(self, member: ClassicMember, result: JoinResult | ErrorCode, out: AnyOutcome) -> None:
        """Answer the parked join of a member, if there is one."""
        ticket = member.parked_join
        if ticket is None:
            return
        member.parked_join = None
        del self._members[ticket]
        self.joins -= 1
        if isinstance(result, JoinResult):
            out.replies.append((ticket, result))
        else:
            member_id = "" if result is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
            reject_join(ticket, member_id, result, out)

    def answer_sync(self, member: ClassicMember, result: SyncResult, out: AnyOutcome) -> bool:
        """Answer the parked sync of a member. Return whether there was one."""
        ticket = member.parked_sync
        if ticket is None:
            return False
        member.parked_sync = None
        del self._members[ticket]
        out.replies.append((ticket, result))
        return True

    def refuse(self, member: ClassicMember, code: ErrorCode, out: AnyOutcome) -> None:
        """Answer all parked requests of a member with an error."""
        self.answer_join(member, code, out)
        self.answer_sync(member, SyncResult(code), out)


def reject_join(ticket: Ticket, member_id: str, code: ErrorCode, out: AnyOutcome) -> None:
    """Answer a JoinGroup with an error."""
    out.replies.append((ticket, JoinResult(error_code=code, member_id=member_id)))
