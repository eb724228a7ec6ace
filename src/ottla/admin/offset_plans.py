"""Plans to move the committed offsets of a group: from which offset to which one, in each partition.

`ottla group reset`, the console and the aliases of Kafka's commands make the same plans. A plan changes nothing;
`AdminClient.commit_offsets` does. A group with members refuses that: see `refusal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ottla.admin.failure import Failure, NotFound
from ottla.model.figures import format_first
from ottla.model.printable import shown
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.admin.client import AdminClient
    from ottla.admin.group_state import GroupState


@dataclass(frozen=True, slots=True)
class Target:
    """The new offsets; `value` is an offset, a distance or a time in ms."""

    kind: Literal["earliest", "latest", "offset", "time", "shift", "current", "file"]
    value: int = 0
    #: for "file": the offset of each topic and partition
    offsets: Mapping[tuple[str, int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOffset:
    """The change of one partition."""

    name: TopicPartition
    current: int | None
    new: int
    #: why the new offset differs from the requested one; empty if it does not
    note: str


@dataclass(frozen=True, slots=True)
class OffsetPlan:
    """The planned offsets, and the partitions that are left out with the reason."""

    offsets: tuple[PlannedOffset, ...]
    skipped: Mapping[TopicPartition, str]


def make_plan(
    client: AdminClient, names: Sequence[TopicPartition], committed: Mapping[TopicPartition, int], target: Target
) -> OffsetPlan:
    """Return the new offset of each partition, which is inside its log."""
    starts, ends = client.find_offsets(names, "earliest"), client.find_offsets(names, "latest")
    at_time = client.find_offsets(names, target.value) if target.kind == "time" else {}
    plan: list[PlannedOffset] = []
    skipped: dict[TopicPartition, str] = {}
    for name in names:
        start, end, current = starts[name].offset or 0, ends[name].offset or 0, committed.get(name)
        found = at_time[name].offset if target.kind == "time" else None
        wanted, note = _requested(target, name, (start, end), current, found)
        if wanted is None:
            skipped[name] = note
            continue
        if wanted < start:
            note = f"offset {wanted} is before the start of the log, moved to {start}"
        elif wanted > end:
            note = f"offset {wanted} is beyond the end of the log, moved to {end}"
        plan.append(PlannedOffset(name=name, current=current, new=min(max(wanted, start), end), note=note))
    return OffsetPlan(tuple(plan), skipped)


def _requested(
    target: Target, name: TopicPartition, log: tuple[int, int], current: int | None, found: int | None
) -> tuple[int | None, str]:
    """Return the offset that was asked for, or None, and a note about it. `log` has its first and its end offset."""
    start, end = log
    match target.kind:
        case "earliest":
            return start, ""
        case "latest":
            return end, ""
        case "offset":
            return target.value, ""
        case "time":
            return (end, "no record is at or after this time, moved to the end") if found is None else (found, "")
        case "shift":
            return (None, "no commit to shift from") if current is None else (current + target.value, "")
        case "current":
            return (end, "no commit, moved to the end") if current is None else (current, "")
        case "file":
            assert target.offsets is not None, "a target of this kind has offsets"
            return target.offsets[name], ""


def refusal(group: GroupState) -> Failure | None:
    """Return why the offsets of this group cannot be set; None if they can."""
    if not group.members:
        return None
    clients = sorted({f"{member.client_id} at {member.host}" for member in group.members})
    return Failure(
        f"group {shown(group.group_id)} still has active members ({len(group.members)}), so its offsets cannot be set; "
        f"stop {shown(format_first(clients))}, wait until 'ottla group describe' says Empty, then try again"
    )


def partitions_of(client: AdminClient, topics: Sequence[str]) -> list[TopicPartition]:
    """Return all partitions of these topics. Raise NotFound if a topic does not exist."""
    known = client.topics()
    names = []
    for topic in dict.fromkeys(topics):
        state = known.get(topic) or client.topic(topic)
        names += [partition.name for partition in state.partitions]
    return names


def existing_partitions(client: AdminClient, wanted: Mapping[str, set[int] | None]) -> list[TopicPartition]:
    """Return the partitions of each topic with these numbers, or all. Raise NotFound if one does not exist."""
    every = partitions_of(client, tuple(wanted))
    for topic, numbers in wanted.items():
        missing = (numbers or set()) - {name.partition for name in every if name.topic == topic}
        if missing:
            raise NotFound(f"{topic} has no partition {min(missing)}; see 'ottla topic describe {topic}'")
    return sorted(name for name in every if (numbers := wanted[name.topic]) is None or name.partition in numbers)


def committed_partitions(
    client: AdminClient, committed: Mapping[TopicPartition, int]
) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """Return the committed partitions that still exist, and the others: a commit is kept when its topic is deleted."""
    known = client.topics()
    existing = [
        name
        for name in committed
        if (state := known.get(name.topic)) is not None and name.partition < len(state.partitions)
    ]
    return existing, [name for name in committed if name not in set(existing)]
