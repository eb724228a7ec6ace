"""What can be done with a group: move its offsets, delete commits or the group, remove members. Each is a plan."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ottla.admin.client import AdminClient
from ottla.admin.failure import Failure, NotFound
from ottla.admin.group_state import GroupMember, GroupState
from ottla.admin.offset_plans import (
    OffsetPlan,
    Target,
    committed_partitions,
    existing_partitions,
    make_plan,
    partitions_of,
    refusal,
)
from ottla.edge.console.pages import BadInput, Change, Handler, PageRequest, Plan, Route, action
from ottla.edge.console.rendering import url
from ottla.edge.console.roles import Role
from ottla.model.figures import format_count, format_first
from ottla.model.printable import shown
from ottla.model.times import parse_duration_ms, parse_time_ms
from ottla.model.types import TopicPartition

#: where a reset moves the commits
TARGETS: Final = ("earliest", "latest", "time", "offset", "duration", "shift")
ALL_TOPICS: Final = "all topics"
#: changes that a plan names; the others are one line, so that its record stays small
_CHANGES_MAX: Final = 500
_OFFSET_MAX: Final = 2**63 - 1


def action_routes(show_reset: Handler) -> list[Route]:
    """Return the routes of the actions. The page with the form of a reset is that of the tab Resets."""
    return [
        Route("groups/{group}/reset", show_reset, plan=reset, role=Role.VIEWER, summary="Move the offsets of a group."),
        action("groups/{group}/delete-offsets", delete_offsets, Role.ADMIN, "Delete commits of a group in a topic."),
        action("groups/{group}/delete", delete, Role.ADMIN, "Delete a group."),
        action("groups/{group}/remove-members", remove_members, Role.ADMIN, "Remove members of a group."),
    ]


# -- reset ------------------------------------------------------------------------------------------------------------


async def reset(page: PageRequest) -> Plan:
    name = page.params["group"]
    page.console.sessions.check_role(page.caller, Role.EDITOR)
    target = _target(page)
    topic = page.form.get("topic", ALL_TOPICS) or ALL_TOPICS
    numbers = _numbers(page.form.get("partitions", ""))
    if numbers and topic == ALL_TOPICS:
        raise BadInput("partitions: choose the topic whose partitions these are")
    plan = await page.run(lambda client: _reset_plan(client, name, target, topic, numbers))
    changes = [
        Change(
            f"{each.name.topic}-{each.name.partition}",
            None if each.current is None else f"{each.current:,}",
            f"{each.new:,}",
            "; ".join(filter(None, (_difference(each.current, each.new), each.note))),
        )
        for each in plan.offsets
    ]
    warnings = [f"{place} is left out: {reason}" for place, reason in list(plan.skipped.items())[:5]]
    if target.kind in ("latest", "time"):
        warnings.append("New records may arrive until you confirm: the offsets are looked up again then.")
    return Plan(
        title=f"Move the offsets of {name}", changes=_limited(changes), confirm=name, warnings=warnings,
        commands=_reset_commands(page, name, topic, numbers), then=_path(name),
        apply=partial(_reset, name=name, target=target, topic=topic, numbers=numbers),
    )  # fmt: skip


def _target(page: PageRequest) -> Target:
    """Return where the form moves the commits. Raise BadInput."""
    kind, value = page.choice("to", TARGETS), page.form.get("value", "").strip()
    now_ms = time.time_ns() // 1_000_000
    try:
        match kind:
            case "offset":
                return Target("offset", page.number("value", -1, high=_OFFSET_MAX) if value else _missing())
            case "shift":
                return Target("shift", page.number("value", 0, low=-_OFFSET_MAX) if value else _missing())
            case "time":
                return Target("time", parse_time_ms(value, now_ms))
            case "duration":
                return Target("time", now_ms - parse_duration_ms(value))
            case "latest":
                return Target("latest")
            case _:
                return Target("earliest")
    except ValueError as error:
        raise BadInput(f"value: {error}") from None


def _missing() -> int:
    raise ValueError("give a number")


def _numbers(text: str) -> set[int] | None:
    """Return the partitions of a text such as `0, 3-5`; None stands for all. Raise BadInput."""
    if not text.strip():
        return None
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})\s*(?:[-\N{EN DASH}]\s*(\d{1,6})\s*)?", part, re.ASCII)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise BadInput(f"partitions: {text!r} is not a list such as 0, 3-5")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def _reset_plan(client: AdminClient, name: str, target: Target, topic: str, numbers: set[int] | None) -> OffsetPlan:
    """Return the plan. Raise Failure if the group has members: the coordinator would refuse it."""
    _described(client, name, without_members=True)
    committed = client.committed_offsets(name)
    if topic == ALL_TOPICS:
        names, _ = committed_partitions(client, committed)
    else:
        names = existing_partitions(client, {topic: numbers}) if numbers else partitions_of(client, [topic])
    if not names:
        raise Failure(f"group {shown(name)} has no committed offset to move; choose the topic to start from")
    return make_plan(client, names, committed, target)


def _described(client: AdminClient, name: str, *, without_members: bool) -> GroupState:
    (group,) = client.describe_groups([name])
    if not group.exists:
        raise NotFound(f"group {shown(name)} does not exist; it may have been deleted, see the list of groups")
    problem = refusal(group) if without_members else None
    if problem is not None:
        raise problem
    return group


def _difference(current: int | None, new: int) -> str:
    if current is None:
        return ""
    if new == current:
        return "no difference"
    words = "records are skipped" if new > current else "records are read again"
    return f"{new - current:+,}: {words}"


def _limited(changes: Sequence[Change]) -> list[Change]:
    if len(changes) <= _CHANGES_MAX:
        return list(changes)
    rest = len(changes) - _CHANGES_MAX
    return [*changes[:_CHANGES_MAX], Change(f"{rest:,} more partitions", "…", "…")]


def _reset_commands(page: PageRequest, name: str, topic: str, numbers: set[int] | None) -> tuple[str, str]:
    kind, value = page.choice("to", TARGETS), shlex.quote(page.form.get("value", "").strip())
    scope = "--all-topics"
    if topic != ALL_TOPICS:
        scope = f"--topic {shlex.quote(topic + (':' + ','.join(map(str, sorted(numbers))) if numbers else ''))}"
    flags = {
        "time": ("--to-timestamp", "--to-datetime"), "offset": ("--to-offset",) * 2, "shift": ("--shift-by",) * 2,
        "duration": ("--by-duration",) * 2,
    }  # fmt: skip
    own, kafka = (f"{flag} {value}" for flag in flags[kind]) if kind in flags else (f"--to-{kind}",) * 2
    quoted = shlex.quote(name)
    return (
        f"ottla group reset {quoted} {scope} {own} --execute",
        f"kafka-consumer-groups --reset-offsets --group {quoted} {scope} {kafka} --execute",
    )


def _reset(client: AdminClient, name: str, target: Target, topic: str, numbers: set[int] | None) -> Sequence[str]:
    plan = _reset_plan(client, name, target, topic, numbers)
    failures = client.commit_offsets(name, {each.name: each.new for each in plan.offsets})
    _raise_first(failures, len(plan.offsets), "committed")
    return [f"{format_count(len(plan.offsets), 'offset')} of {name} committed"]


def _raise_first(failures: Mapping[TopicPartition, Failure], total: int, done: str) -> None:
    if failures:
        first = next(iter(failures.values()))
        raise Failure(f"{total - len(failures)} of {total} offsets {done}; {first.message}")


# -- deletions --------------------------------------------------------------------------------------------------------


async def delete_offsets(page: PageRequest) -> Plan:
    name, topic = page.params["group"], page.form.get("topic") or page.query.get("topic", "")
    if not topic:
        raise BadInput("topic: choose the topic whose commits are deleted")
    committed = await page.run(lambda client: client.committed_offsets(name))
    places = [place for place in committed if place.topic == topic]
    if not places:
        raise NotFound(f"group {shown(name)} has no commit in topic {shown(topic)}")
    return Plan(
        title=f"Delete the commits of {name} in {topic}", confirm=name,
        changes=_limited([Change(f"{at.topic}-{at.partition}", f"{committed[at]:,}", None) for at in places]),
        warnings=["A consumer that reads the topic again begins where its auto.offset.reset says."],
        commands=(
            f"ottla group delete {shlex.quote(name)} --offsets --topic {shlex.quote(topic)}",
            f"kafka-consumer-groups --delete-offsets --group {shlex.quote(name)} --topic {shlex.quote(topic)}",
        ),
        apply=partial(_delete_offsets, name=name, places=places), then=_path(name),
    )  # fmt: skip


def _delete_offsets(client: AdminClient, name: str, places: Sequence[TopicPartition]) -> Sequence[str]:
    _raise_first(client.delete_offsets(name, places), len(places), "deleted")
    return [f"{format_count(len(places), 'commit')} of {name} deleted"]


async def delete(page: PageRequest) -> Plan:
    name = page.params["group"]

    def read(client: AdminClient) -> dict[TopicPartition, int]:
        group = _described(client, name, without_members=False)
        if group.members:
            clients = format_first(sorted({f"{each.client_id} at {each.host}" for each in group.members}))
            raise Failure(
                f"group {shown(name)} still has active members ({len(group.members)}), so it cannot be deleted; stop "
                f"{shown(clients)}, and wait until its state is Empty"
            )
        return client.committed_offsets(name)

    committed = await page.run(read)
    topics = sorted({place.topic for place in committed})
    words = f"{format_count(len(committed), 'commit')} in {format_first(topics)}" if committed else "no commits"
    return Plan(
        title=f"Delete the group {name}", changes=[Change(f"group {name}", words, None)], confirm=name,
        warnings=["Consumers with this group.id begin where their auto.offset.reset says."] if committed else [],
        commands=(
            f"ottla group delete {shlex.quote(name)}", f"kafka-consumer-groups --delete --group {shlex.quote(name)}"
        ),
        apply=partial(_delete, name=name), then="groups",
    )  # fmt: skip


def _delete(client: AdminClient, name: str) -> Sequence[str]:
    (outcome,) = client.delete_groups([name])
    if outcome.failure is not None:
        raise outcome.failure
    return [f"deleted group {name}"]


async def remove_members(page: PageRequest) -> Plan:
    name, member_id = page.params["group"], page.form.get("member_id") or page.query.get("member_id", "")
    group = await page.run(lambda client: _described(client, name, without_members=False))
    members = [each for each in group.members if not member_id or each.member_id == member_id]
    if not members:
        raise NotFound(f"group {shown(name)} has no such member; it has left, or has joined again under another id")
    changes = [
        Change(f"member {each.client_id} at {each.host}", format_count(len(each.partitions), "partition"), None)
        for each in members
    ]
    return Plan(
        title=f"Remove {format_count(len(members), 'member')} of {name}", changes=_limited(changes), confirm=name,
        warnings=[
            "A consumer that still runs joins again at its next heartbeat. Remove members whose process has ended, "
            "such as static members, and stop the others.",
            "The group rebalances.",
        ],
        apply=partial(_remove_members, name=name, members=members), then=f"{_path(name)}/members",
    )  # fmt: skip


def _remove_members(client: AdminClient, name: str, members: Sequence[GroupMember]) -> Sequence[str]:
    failures = client.remove_members(name, members)
    if failures:
        first = next(iter(failures.values()))
        raise Failure(f"{len(members) - len(failures)} of {len(members)} members removed; {first.message}")
    return [f"removed {format_count(len(members), 'member')} of {name}"]


def _path(name: str) -> str:
    return url("groups", name)[1:]
