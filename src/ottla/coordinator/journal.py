"""Why a group rebalanced: the causes, and what is kept of each rebalance.

One entry is written per finished rebalance to the topic ``__ottla_rebalances``, as JSON that any tool can read, under
the key ``<group>/<generation modulo 20>``: the topic is compacted, so that it keeps the last 20 of each group.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class CauseKind(Enum):
    """What made a group rebalance; the value is what people read."""

    JOINED = "joined"
    LEFT = "left"
    REMOVED = "removed by an administrator"
    SESSION_TIMEOUT = "session timeout"
    MAX_POLL_INTERVAL = "max poll interval"
    NEVER_SYNCED = "never fetched its assignment"
    SUBSCRIPTION_CHANGED = "metadata change"
    TOPICS_CHANGED = "new topic or partition"
    LEADER_REJOINED = "leader rejoined"
    COORDINATOR_MOVED = "coordinator moved"
    STATIC_MEMBER_FENCED = "static member fenced"
    PROTOCOL_CHANGED = "group protocol changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One reason; a rebalance may have several, the first one started it."""

    kind: CauseKind
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    group_instance_id: str | None = None
    #: what the client itself gave as its reason, or what the coordinator saw: text, never parsed
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """A finished rebalance."""

    group_id: str
    #: "classic" or "consumer"
    group_type: str
    #: the generation, or the group epoch, that it led to
    generation: int
    #: when it began, by the wall clock, and how long it took by the monotonic one
    started_ms: int
    duration_ms: int
    members_before: int
    members_after: int
    #: at most CAUSES_MAX of them
    causes: tuple[Cause, ...] = field(default=())
    #: how many more there were
    causes_left_out: int = 0


CAUSES_MAX = 8
