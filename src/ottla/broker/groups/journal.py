"""The rebalance journal: the causes of each rebalance, and its entry in the topic ``__ottla_rebalances``.

Groups of both protocols collect the causes of an ongoing rebalance in the same way. The broker appends one entry per
finished rebalance, as JSON that any tool can read, with the key ``<group>/<generation modulo 20>``. The topic is
compacted, so it keeps the last 20 rebalances of each group.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ottla.broker.coordinators.outcome import Moment

#: the broker creates the topic with the first entry
JOURNAL_TOPIC: Final = "__ottla_rebalances"
CAUSES_MAX: Final = 8
#: longer details are cut, because a client may send a reason of any length
DETAIL_CHARACTERS_MAX: Final = 500
REBALANCES_KEPT: Final = 20
#: A detail names this many topics and gives the number of the others.
_NAMES_MAX: Final = 3
GROUP_TYPES: Final = ("classic", "consumer")


class CauseKind(Enum):
    """The cause of a rebalance; the value is the text that users see."""

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
    """One cause of a rebalance. A rebalance may have several; the first one started it."""

    kind: CauseKind
    member_id: str = ""
    client_id: str = ""
    client_host: str = ""
    group_instance_id: str | None = None
    #: the reason that the client sent, or the coordinator's observation: free text, never parsed
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """A finished rebalance."""

    group_id: str
    #: "classic" or "consumer"
    group_type: str
    #: the resulting generation, or group epoch
    generation: int
    #: start by the wall clock, and duration by the monotonic clock
    started_ms: int
    duration_ms: int
    members_before: int
    members_after: int
    #: at most CAUSES_MAX
    causes: tuple[Cause, ...] = field(default=())
    #: number of further causes
    causes_left_out: int = 0

    def to_json(self) -> bytes:
        """Return the value of the journal record. Details are cut to DETAIL_CHARACTERS_MAX."""
        fields = {name: getattr(self, attribute) for name, attribute in _REBALANCE_FIELDS.items()}
        fields["causes"] = [_cause_to_json(cause) for cause in self.causes]
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Rebalance:
        """Return the rebalance that ``to_json`` encoded. Raise ValueError if the data is not valid."""
        try:
            found = json.loads(data.decode())
        except RecursionError:
            raise ValueError("an entry of the rebalance journal is nested too deeply") from None
        fields = _checked(found, _REBALANCE_FIELDS, texts=("groupId", "groupType"), lists=("causes",))
        if fields["group_type"] not in GROUP_TYPES:
            raise ValueError(f"groupType is {fields['group_type']!r:.80}, not one of {', '.join(GROUP_TYPES)}")
        if len(fields["causes"]) > CAUSES_MAX:
            raise ValueError(f"causes has {len(fields['causes'])} elements, more than {CAUSES_MAX}")
        fields["causes"] = tuple(_cause_from_json(cause) for cause in fields["causes"])
        return cls(**fields)


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


def journal_key(group_id: str, generation: int) -> bytes:
    """Return the key of an entry, which replaces the entry that is REBALANCES_KEPT generations older."""
    return f"{group_id}/{generation % REBALANCES_KEPT}".encode()


def listed(texts: list[str]) -> str:
    """Return the first ``_NAMES_MAX`` texts and the number of the others, as one text."""
    more = len(texts) - _NAMES_MAX
    return "; ".join(texts[:_NAMES_MAX]) + (f"; and {more} more" if more > 0 else "")


def subscription_changes(before: frozenset[str] | set[str], after: frozenset[str] | set[str]) -> list[str]:
    """Return a text for each topic that a member has subscribed to or unsubscribed from."""
    added = [f"subscribed to {name}" for name in sorted(after - before)]
    return added + [f"unsubscribed from {name}" for name in sorted(before - after)]


# JSON field -> attribute, in the order of the JSON text.
_REBALANCE_FIELDS: Final = {
    "groupId": "group_id",
    "groupType": "group_type",
    "generation": "generation",
    "startedMs": "started_ms",
    "durationMs": "duration_ms",
    "membersBefore": "members_before",
    "membersAfter": "members_after",
    "causes": "causes",
    "causesLeftOut": "causes_left_out",
}
_CAUSE_FIELDS: Final = {
    "kind": "kind",
    "memberId": "member_id",
    "clientId": "client_id",
    "clientHost": "client_host",
    "groupInstanceId": "group_instance_id",
    "detail": "detail",
}


def _cause_to_json(cause: Cause) -> dict[str, str | None]:
    fields = {name: getattr(cause, attribute) for name, attribute in _CAUSE_FIELDS.items()}
    return fields | {"kind": cause.kind.value, "detail": cause.detail[:DETAIL_CHARACTERS_MAX]}


def _cause_from_json(found: object) -> Cause:
    texts = tuple(_CAUSE_FIELDS)
    fields = _checked(found, _CAUSE_FIELDS, texts=texts, nullable=("groupInstanceId",))
    if len(fields["detail"]) > DETAIL_CHARACTERS_MAX:
        raise ValueError(f"detail has {len(fields['detail'])} characters, more than {DETAIL_CHARACTERS_MAX}")
    return Cause(**fields | {"kind": CauseKind(fields["kind"])})


def _checked(
    found: object,
    names: dict[str, str],
    *,
    texts: Sequence[str] = (),
    lists: Sequence[str] = (),
    nullable: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the fields of a JSON object by attribute. Raise ValueError if a field is missing or has the wrong type.

    Fields that are neither in ``texts`` nor in ``lists`` are integers.
    """
    if not isinstance(found, dict) or found.keys() != names.keys():
        raise ValueError(f"an entry of the rebalance journal needs an object with the fields {', '.join(names)}")
    for name, value in found.items():
        expected = str if name in texts else list if name in lists else int
        # Not isinstance, because a bool is an instance of int but not a JSON number.
        if type(value) is not expected and not (value is None and name in nullable):
            raise ValueError(f"{name} is {value!r:.80}, not a JSON {expected.__name__}")
        if isinstance(value, str):
            # JSON can contain an unpaired surrogate, which cannot be encoded: UnicodeEncodeError is a ValueError.
            value.encode()
    return {attribute: found[name] for name, attribute in names.items()}
