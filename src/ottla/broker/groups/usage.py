"""How much the groups of this broker hold for each client host, and whether a host may have more. Pure.

There is no authentication yet, so a host is all that a client can be held to. Counted are members (with the ids that
were given out and not used yet), the bytes that they brought with them, and the groups that a host has created.

The counters only go up, with every request that adds something, so that nothing has to be taken back when a member
leaves, a group is deleted or a shard is loaded again: no counter can be wrong for ever. When a counter reaches its
limit, everything is counted again, at most once a second and less often the more there is to count. The request is
refused if the true number is at the limit too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from ottla.model.errors import ErrorCode, Refused
from ottla.model.settings import BrokerSettings

#: time between two counts, at least, and for each member and group that was counted: 1 us of work in 50 us of time
RECOUNT_S: Final = 1.0
RECOUNT_S_EACH: Final = 50e-6


@dataclass(slots=True)
class Tally:
    """Sums by client host."""

    members: Counter[str] = field(default_factory=Counter)
    metadata_bytes: Counter[str] = field(default_factory=Counter)
    groups: Counter[str] = field(default_factory=Counter)


class Countable(Protocol):
    """A shard."""

    def count_usage(self, tally: Tally) -> None:
        """Add all that the shard holds."""


class HostUsage:
    """The limits of client hosts, for all shards together."""

    def __init__(self, shards: Callable[[], Iterable[Countable]] = tuple) -> None:
        #: the shards that are counted
        self.shards = shards
        #: requests that were refused, and why the last one was: JoinGroup has no room for a text
        self.refused = 0
        self.last_refusal = ""
        self._tally = Tally()
        self._count_after = float("-inf")

    def check_size(self, size_bytes: int, settings: BrokerSettings) -> None:
        """Raise Refused if a member wants to join with more metadata than any may have."""
        limit = settings.group_member_max_metadata_bytes
        if size_bytes > limit:
            text = f"{size_bytes} bytes of metadata are more than group.member.max.metadata.bytes allows ({limit})"
            raise self._refusal(ErrorCode.POLICY_VIOLATION, text)

    def admit_member(self, host: str, settings: BrokerSettings, now_s: float) -> None:
        """Count a new member. Raise Refused if its host has too many."""
        limit = settings.group_max_members_per_ip
        if self._tally.members[host] >= limit and self._recount(now_s).members[host] >= limit:
            text = f"{host} has {limit} members in groups of this broker, as many as group.max.members.per.ip allows"
            raise self._refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        self._tally.members[host] += 1

    def admit_bytes(self, host: str, size_bytes: int, settings: BrokerSettings, now_s: float) -> None:
        """Count bytes that a group will keep. Raise Refused if its host has too many."""
        limit = settings.group_max_metadata_bytes_per_ip - size_bytes
        if self._tally.metadata_bytes[host] > limit and self._recount(now_s).metadata_bytes[host] > limit:
            text = f"members of {host} have more metadata than group.max.metadata.bytes.per.ip allows"
            raise self._refusal(ErrorCode.POLICY_VIOLATION, text)
        self._tally.metadata_bytes[host] += size_bytes

    def admit_group(self, host: str, group_id: str, settings: BrokerSettings, now_s: float) -> None:
        """Count a new group. Raise Refused if its host has created too many of those that exist."""
        limit = settings.group_max_groups_per_ip
        if self._tally.groups[host] >= limit and self._recount(now_s).groups[host] >= limit:
            text = f"clients of {host} have created {limit} groups, as many as group.max.groups.per.ip allows"
            raise self._refusal(ErrorCode.POLICY_VIOLATION, text)
        self._tally.groups[host] += 1
        self.admit_bytes(host, len(group_id), settings, now_s)

    def _refusal(self, code: ErrorCode, text: str) -> Refused:
        self.refused += 1
        self.last_refusal = text
        return Refused(code, text)

    def _recount(self, now_s: float) -> Tally:
        if now_s >= self._count_after:
            self._tally = tally = Tally()
            for shard in self.shards():
                shard.count_usage(tally)
            counted = tally.members.total() + tally.groups.total()
            self._count_after = now_s + max(RECOUNT_S, counted * RECOUNT_S_EACH)
        return self._tally
