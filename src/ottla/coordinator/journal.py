"""Why a group rebalanced: the causes, and what is kept of each rebalance.

One entry is written per finished rebalance to the topic ``__ottla_rebalances``, as JSON that any tool can read, under
the key ``<group>/<generation modulo 20>``: the topic is compacted, so that it keeps the last 20 of each group.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

#: made by the broker with the first entry
JOURNAL_TOPIC: Final = "__ottla_rebalances"
CAUSES_MAX: Final = 8
#: a client may give a reason of any length
DETAIL_CHARACTERS_MAX: Final = 500
REBALANCES_KEPT: Final = 20
GROUP_TYPES: Final = ("classic", "consumer")


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

    def to_json(self) -> bytes:
        """The value of its record. A detail that is too long is cut."""
        fields = {name: getattr(self, attribute) for name, attribute in _REBALANCE_FIELDS.items()}
        fields["causes"] = [_cause_to_json(cause) for cause in self.causes]
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Rebalance:
        """What ``to_json`` wrote.

        :raises ValueError: if it is anything else.
        """
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


def journal_key(group_id: str, generation: int) -> bytes:
    """The key of an entry: a later one takes the place of that REBALANCES_KEPT generations before."""
    return f"{group_id}/{generation % REBALANCES_KEPT}".encode()


# Names in JSON, in the order in which people read them, and the attributes they stand for.
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
    """The fields of a JSON object by attribute; those that are neither texts nor lists are integers."""
    if not isinstance(found, dict) or found.keys() != names.keys():
        raise ValueError(f"an entry of the rebalance journal needs an object with the fields {', '.join(names)}")
    for name, value in found.items():
        expected = str if name in texts else list if name in lists else int
        # bool is an int to isinstance, and no number to JSON.
        if type(value) is not expected and not (value is None and name in nullable):
            raise ValueError(f"{name} is {value!r:.80}, not a JSON {expected.__name__}")
        if isinstance(value, str):
            # JSON can spell half a surrogate pair, which nobody could print or write again: a ValueError too.
            value.encode()
    return {attribute: found[name] for name, attribute in names.items()}
