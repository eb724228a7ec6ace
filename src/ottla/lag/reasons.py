"""Why a group is behind, or waits: what its offsets and members say at this moment. Pure, and for every Kafka cluster.

A reading has no history: who left a group, and why, is known from the journal of rebalances that Ottla brokers write
(`ottla.admin.rebalances`), or from readings one after the other (`observed.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ottla.lag.forecast import Forecast
from ottla.lag.types import GroupLag, PartitionLag
from ottla.model.figures import format_count, format_first

#: share of the lag in one partition of several that hints at a hot key or a slow member
_HOT_SHARE: Final = 0.8
_HOT_PARTITIONS_MIN: Final = 3
_HOT_LAG_MIN: Final = 1000
_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that is wrong with a group."""

    #: error or warning
    severity: str
    text: str
    advice: str


def reasons(lag: GroupLag, forecast: Forecast | None = None) -> list[Reason]:
    """Return what is wrong with a group, the worst first; nothing if it reads its topics without delay."""
    found = [*_of_members(lag), *_of_commits(lag), *_of_speed(lag, forecast)]
    return sorted(found, key=lambda each: each.severity != "error")


def _of_members(lag: GroupLag) -> Iterator[Reason]:
    members = lag.group.members if lag.group is not None else ()
    waiting = lag.total or 0
    if lag.state in _REBALANCING:
        yield Reason(
            severity="warning",
            text=f"The group is in a rebalance ({lag.state}): its consumers wait until it has ended.",
            advice="The causes of the last rebalances are below. A member that does not join in time holds up the "
            "others for max.poll.interval.ms.",
        )
    if not members and waiting:
        yield Reason(
            severity="error",
            text=f"The group has no members, and {format_count(waiting, 'record')} wait for it.",
            advice="Start its consumers, or delete the group if it is not used any more.",
        )
    idle = [each for each in members if not each.partitions]
    if idle and len(idle) < len(members):
        names = format_first(sorted({each.client_id for each in idle}))
        yield Reason(
            severity="warning",
            text=f"{format_count(len(idle), 'member')} of {len(members)} have no partitions: {names}.",
            advice="There are more members than partitions. Stop members, or add partitions to the topics.",
        )
    unowned = [each for each in lag.partitions.values() if each.member is None and each.lag]
    # A group whose assignments cannot be read has no owners at all.
    if unowned and any(each.partitions for each in members) and lag.state not in _REBALANCING:
        yield Reason(
            severity="warning",
            text=f"No member has {_names(unowned)}, and records wait in it."
            if len(unowned) == 1
            else f"No member has {format_count(len(unowned), 'partition')} with records that wait: {_names(unowned)}.",
            advice="Members that assign partitions themselves leave some out, or have old metadata "
            "(metadata.max.age.ms). Delete the commits of topics that the group does not read any more.",
        )


def _of_commits(lag: GroupLag) -> Iterator[Reason]:
    rows = lag.partitions.values()
    beyond = [each for each in rows if each.is_beyond_end]
    if beyond:
        yield Reason(
            severity="error",
            text=f"The commit is after the end of the log in {_names(beyond)}: the topic was created again, or has "
            "lost records.",
            advice="Reset the group to the earliest or the latest offset; until then it skips new records or reads "
            "all of them again.",
        )
    lost = [
        (each, each.log_start - each.committed)
        for each in rows
        if each.committed is not None and each.log_start is not None and each.committed < each.log_start
    ]
    if lost:
        offsets = sum(count for _, count in lost)
        yield Reason(
            severity="error",
            text=f"Up to {format_count(offsets, 'record')} were deleted before the group read them, in "
            f"{_names([each for each, _ in lost])}.",
            advice="Raise retention.ms of the topics, or add consumers.",
        )
    endless = [each for each in rows if each.log_end is None]
    if endless:
        yield Reason(
            severity="warning",
            text=f"The end of {_names(endless)} is not known: the topic was deleted, or has no leader.",
            advice="See the partitions of the topic. Delete the commits of deleted topics.",
        )
    uncommitted = [each for each in rows if each.committed is None and each.log_end and each.member is not None]
    if uncommitted:
        yield Reason(
            severity="warning",
            text=f"Members have {_names(uncommitted)} and have committed nothing there.",
            advice="Commit after processing, or set enable.auto.commit=true; until then auto.offset.reset says where "
            "a restart begins.",
        )


def _of_speed(lag: GroupLag, forecast: Forecast | None) -> Iterator[Reason]:
    members = lag.group.members if lag.group is not None else ()
    if forecast is not None and forecast.is_never and members and lag.total:
        consumed, produced = forecast.consumed_per_s or 0, forecast.produced_per_s or 0
        if consumed <= 0:
            yield Reason(
                severity="error",
                text="The members commit nothing: the group has stalled.",
                advice="Look at its consumers: they are blocked, fail and retry the same record, or do not commit.",
            )
        else:
            yield Reason(
                severity="warning",
                text=f"The group consumes {consumed:,.0f} records per second and {produced:,.0f} arrive: it never "
                "catches up at this rate.",
                advice="Add consumers, up to the number of partitions, or find what slows them down.",
            )
    rows = [each for each in lag.partitions.values() if each.lag is not None]
    total = lag.total or 0
    worst = max(rows, key=lambda each: each.lag or 0, default=None)
    if (
        worst is not None
        and len(rows) >= _HOT_PARTITIONS_MIN
        and total >= _HOT_LAG_MIN
        and (worst.lag or 0) > _HOT_SHARE * total
    ):
        owner = f", which {worst.member.client_id} at {worst.member.host} reads" if worst.member is not None else ""
        yield Reason(
            severity="warning",
            text=f"{100 * (worst.lag or 0) // total} % of the lag is in {worst.name}{owner}.",
            advice="Many records have the same key, one record blocks its consumer, or that consumer is slower than "
            "the others.",
        )


def _names(rows: Sequence[PartitionLag]) -> str:
    return format_first(str(each.name) for each in rows)
