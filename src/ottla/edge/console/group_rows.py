"""Groups as rows of pages: what a group is, how far it is behind, and the verdict. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ottla.admin.group_state import GroupListing, GroupMember
from ottla.edge.console.formats import UNKNOWN, count, duration, short
from ottla.edge.console.watch import WatchState
from ottla.lag.burrow import GroupStatus, Status
from ottla.lag.forecast import Forecast, Trend
from ottla.lag.observed import ObservedGroup
from ottla.lag.types import GroupLag, PartitionLag
from ottla.model.types import TopicPartition

_STATES: Final = {Status.OK: "ok", Status.WARN: "warning", Status.ERR: "error"}
_WORDS: Final = {
    Status.OK: "OK", Status.WARN: "WARN slow", Status.STOP: "ERR stopped", Status.STALL: "ERR stalled",
    Status.REWIND: "ERR rewound",
}  # fmt: skip
#: what a verdict means, by Burrow's rules
MEANINGS: Final = {
    "OK": "its lag is 0, or became smaller in the window of its last commits",
    "WARN slow": "it commits, and its lag did not become smaller from one commit to the next in the whole window",
    "ERR stopped": "its last commit is longer ago than its last commits are apart",
    "ERR stalled": "it commits the same offset again and again, and has a lag",
    "ERR rewound": "it went back to an earlier offset and has not made up for it",
}
_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance")
_SORTS: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {
    "group": lambda row: row["group"],
    "state": lambda row: row["state"],
    "members": lambda row: row["members"] or 0,
    "topics": lambda row: row["topics"] or 0,
    "lag": lambda row: row["lag"] or 0,
    "time": lambda row: row["time_lag_ms"] or 0,
}
SORTS: Final = ("", *_SORTS)
_SEVERITY: Final = {"error": 2, "warning": 1}
#: partitions of a member that are named
_ASSIGNED_SHOWN: Final = 40


def kind_of(listing: GroupListing) -> str:
    """Return what a group is: classic, consumer, simple, share, or what else its members are, such as connect."""
    if listing.group_type == "share":
        return "share"
    if not listing.is_of_consumers:
        return listing.protocol_type or listing.group_type
    return "simple" if listing.is_simple else listing.group_type


def verdict_of(status: GroupStatus | None) -> tuple[str, str]:
    """Return the verdict as a word of states and as text; of a group that was not judged yet, nothing."""
    if status is None or status.status is Status.NOTFOUND:
        return "", ""
    worst = max((each.status for each in status.partitions), default=Status.OK)
    return _STATES[status.status], _WORDS[worst]


def list_row(listing: GroupListing, lag: GroupLag | None, state: WatchState, now_ms: int) -> dict[str, Any]:
    """Return a row of the list. What is not known yet is None."""
    is_read = listing.is_of_consumers
    observed = state.groups.get(listing.group_id)
    timed = state.lag_in_time.get(listing.group_id)
    verdict_state, verdict = verdict_of(state.groups.status(listing.group_id, now_ms)) if is_read else ("", "")
    members = lag.group.members if lag is not None and lag.group is not None else None
    trend = observed.forecast().trend if observed is not None else Trend.UNKNOWN
    time_lag_ms = timed.time_lag_ms if timed is not None else lag.time_lag_ms if lag is not None else None
    return {
        "group": listing.group_id,
        "kind": kind_of(listing),
        "state": lag.state if lag is not None and lag.state != "Unknown" else listing.state,
        "members": len(members) if members is not None else None,
        "topics": len({each.topic for each in lag.partitions}) if lag is not None else None,
        "lag": lag.total if lag is not None else None,
        "time_lag_ms": 0 if lag is not None and lag.total == 0 else time_lag_ms,
        "trend": "" if trend is Trend.UNKNOWN else trend.value,
        "verdict": verdict,
        "verdict_state": verdict_state,
        "is_read": is_read,
        "problem": "; ".join(lag.problems) if lag is not None else "",
    }


def ordered(rows: Iterable[dict[str, Any]], sort: str, *, descending: bool) -> list[dict[str, Any]]:
    """Return the rows in an order; without one, what is wrong comes first, then the longest lags, then names."""
    if sort:
        return sorted(sorted(rows, key=_SORTS["group"]), key=_SORTS[sort], reverse=descending)

    def worst_first(row: Mapping[str, Any]) -> tuple[Any, ...]:
        severity = _SEVERITY.get(row["verdict_state"], 0)
        waits = row["state"] in _REBALANCING or bool(row["problem"])
        return -severity, not waits, -(row["time_lag_ms"] or 0), -(row["lag"] or 0), row["group"]

    return sorted(rows, key=worst_first)


def cells_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a row that are filled in after the page."""
    if not row["is_read"]:
        return {}
    return {
        "members": count(row["members"]),
        "topics": count(row["topics"]),
        "lag": {"text": lag_text(row), "title": count(row["lag"])},
        "time": duration(row["time_lag_ms"]) if row["lag"] is not None else lag_text(row),
        "trend": row["trend"] or UNKNOWN,
        "verdict": {"text": row["verdict"] or UNKNOWN, "state": row["verdict_state"]},
    }


def lag_text(row: Mapping[str, Any]) -> str:
    """Return the lag; a dash if the group has no commit, so that there is none."""
    return "\N{EM DASH}" if row["lag"] is None and row["topics"] is not None else short(row["lag"])


# -- one group --------------------------------------------------------------------------------------------------------


def summary(lag: GroupLag, kind: str, observed: ObservedGroup | None, status: GroupStatus | None) -> dict[str, Any]:
    """Return what the pages of a group have above their tables."""
    verdict_state, verdict = verdict_of(status)
    group = lag.group
    known = observed.forecast() if observed is not None else Forecast(trend=Trend.UNKNOWN)
    return {
        "group": lag.group_id,
        "kind": kind,
        "group_state": lag.state,
        "assignor": group.assignor if group is not None else None,
        "coordinator": group.coordinator.broker_id if group is not None else None,
        "members_total": len(group.members) if group is not None else None,
        "partitions_total": len(lag.partitions),
        "lag": lag.total,
        "time_lag_ms": lag.time_lag_ms,
        "verdict": verdict,
        "verdict_state": verdict_state,
        "meaning": MEANINGS.get(verdict, ""),
        "read_at_ms": lag.read_at_ms,
        "problems": list(lag.problems),
        **_forecast_row(known, lag.read_at_ms),
    }


def _forecast_row(known: Forecast, now_ms: int) -> dict[str, Any]:
    wait_s = known.caught_up_in_s
    return {
        "trend": "" if known.trend is Trend.UNKNOWN else known.trend.value,
        "consumed_per_s": known.consumed_per_s,
        "produced_per_s": known.produced_per_s,
        "caught_up_ms": None if wait_s is None else now_ms + round(wait_s * 1000),
        "is_caught_up": wait_s == 0,
        "is_never": known.is_never,
    }


def offset_rows(lag: GroupLag, observed: ObservedGroup | None) -> list[dict[str, Any]]:
    """Return a row for each partition; those with a problem first, then the largest lags."""
    rows = [_offset_row(each, lag.read_at_ms, observed) for each in lag.partitions.values()]
    return sorted(rows, key=lambda row: (not row["note"], -(row["lag"] or 0), row["topic"], row["partition"]))


def _offset_row(each: PartitionLag, now_ms: int, observed: ObservedGroup | None) -> dict[str, Any]:
    known = observed.forecast(each.name) if observed is not None else Forecast(trend=Trend.UNKNOWN)
    return {
        "topic": each.name.topic,
        "partition": each.name.partition,
        "member": each.member.client_id if each.member is not None else None,
        "host": each.member.host if each.member is not None else None,
        "committed": each.committed,
        "log_start": each.log_start,
        "log_end": each.log_end,
        "lag": each.lag,
        "time_lag_ms": each.time_lag_ms,
        "first_unread_ms": each.first_unread_ms,
        "note": _note(each),
        **_forecast_row(known, now_ms),
    }


def _note(each: PartitionLag) -> str:
    if each.is_beyond_end:
        return "the commit is after the end of the log"
    if each.log_end is None:
        return "the topic was deleted, or has no leader"
    if each.committed is not None and each.log_start is not None and each.committed < each.log_start:
        return f"{count(each.log_start - each.committed)} offsets were deleted unread"
    return ""


def member_rows(lag: GroupLag) -> list[dict[str, Any]]:
    """Return a row for each member; those without partitions first, then the largest lags."""
    lags: dict[str, int] = {}
    for each in lag.partitions.values():
        if each.member is not None:
            lags[each.member.member_id] = lags.get(each.member.member_id, 0) + (each.lag or 0)
    members = lag.group.members if lag.group is not None else ()
    rows = [_member_row(each, lags.get(each.member_id)) for each in members]
    return sorted(rows, key=lambda row: (bool(row["partitions_total"]), -(row["lag"] or 0), row["client_id"]))


def _member_row(member: GroupMember, lag: int | None) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "partitions_total": len(member.partitions),
        "assignment": [f"{topic}: {ranges(numbers)}" for topic, numbers in _by_topic(member.partitions).items()][
            :_ASSIGNED_SHOWN
        ],
        "lag": lag,
    }


def _by_topic(names: Sequence[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name in names:
        found.setdefault(name.topic, []).append(name.partition)
    return found


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with their neighbours put together.

    >>> ranges([3, 0, 1, 2, 7])
    '0–3, 7'
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("\N{EN DASH}".join(map(str, part)) for part in parts)
