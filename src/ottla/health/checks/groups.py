"""Checks of consumer groups: rebalances, members, and commits compared with the log.

Checks that compare two readings need the lag of both. A group that reads in bursts has no finding: each of these checks
asks for an end that has moved, or for a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.health.checks.definition import ERROR, INFO, WARNING, Check, Problem, check
from ottla.health.types import ClusterPicture, GroupPicture, Part, TopicPicture
from ottla.lag.types import GroupLag, PartitionLag
from ottla.model.figures import format_count, format_duration_ms, format_first
from ottla.model.types import TopicPartition

#: two readings that are closer say nothing about progress
_PROGRESS_MS_MIN = 2000
#: share of the retention that a lag may have
_RETENTION_SHARE = 0.8
#: a group that has been behind for less may catch up
_SLOW_MS = 60_000


def _stable(picture: ClusterPicture) -> Iterator[tuple[str, GroupPicture]]:
    """Yield the groups in state Stable whose members are known."""
    for name, group in picture.groups.items():
        if group.listing.state == "Stable" and group.members:
            yield name, group


def _has_members(picture: ClusterPicture, lag: GroupLag) -> bool:
    group = picture.groups.get(lag.group_id)
    return (group.listing.state if group is not None else lag.state) not in ("Empty", "Dead")


@check(
    severity=WARNING,
    kind="group",
    problem="A group is in a rebalance at both readings: a member does not join in time, or members come and go. Its "
    "consumers wait.",
    advice="'ottla group why GROUP' names the cause and the setting",
    needs=[Part.GROUPS],
    needs_before=True,
)
def rebalancing_groups(picture: ClusterPicture) -> Iterator[Problem]:
    before = picture.before.groups if picture.before is not None else {}
    if picture.elapsed_ms < _PROGRESS_MS_MIN:
        return
    names = [
        name
        for name, group in picture.groups.items()
        if group.is_rebalancing and (old := before.get(name)) is not None and old.is_rebalancing
    ]
    if names:
        span = format_duration_ms(picture.elapsed_ms)
        text = f"{format_count(len(names), 'group')} in a rebalance for {span} ({format_first(names)})"
        yield Problem(text, names, f"'ottla group why {names[0]}' names the cause and the setting")


@check(
    severity=INFO,
    kind="group",
    problem="Members of a group have no partitions: there are more members than partitions.",
    advice="stop members, or add partitions: 'ottla topic alter TOPIC -p N' (keys then go to other partitions)",
    needs=[Part.GROUPS, Part.MEMBERS],
)
def idle_members(picture: ClusterPicture) -> Iterator[Problem]:
    idle: dict[str, int] = {}
    for name, group in _stable(picture):
        members = group.members or ()
        count = sum(1 for member in members if not member.partitions)
        # Members of a group whose assignments are not readable all look idle.
        if 0 < count < len(members):
            idle[name] = count
    if idle:
        worst = sorted(idle, key=lambda name: -idle[name])
        text = f"{format_count(len(idle), 'group')} with idle members ({worst[0]}: {idle[worst[0]]})"
        yield Problem(text, worst)


def _partitions(topic: TopicPicture | None) -> set[TopicPartition]:
    return {each.name for each in topic.partitions} if topic is not None else set()


@check(
    severity=WARNING,
    kind="partition",
    problem="A group is stable and no member reads a partition of a topic that the group is subscribed to, as after "
    "partitions were added and the consumers have old metadata.",
    advice="restart a member of the group, or lower metadata.max.age.ms of its consumers",
    needs=[Part.GROUPS, Part.MEMBERS],
)
def unread_partitions(picture: ClusterPicture) -> Iterator[Problem]:
    for name, group in _stable(picture):
        members = group.members or ()
        assigned = {partition for member in members for partition in member.partitions}
        # A group without readable assignments, such as that of an own assignor, says nothing.
        topics = {partition.topic for partition in assigned}
        missing = {each for topic in topics for each in _partitions(picture.topics.get(topic))} - assigned
        if missing:
            names = [str(each) for each in sorted(missing)]
            text = f"group {name} does not read {format_count(len(names), 'partition')} ({format_first(names)})"
            yield Problem(text, names)


@check(
    severity=WARNING,
    kind="group",
    problem="Members of one group are subscribed to different topics without a common one: two applications use the "
    "same group.id, and each rebalance of one stops the other.",
    advice="give each application its own group.id",
    needs=[Part.GROUPS, Part.MEMBERS],
)
def shared_group_ids(picture: ClusterPicture) -> Iterator[Problem]:
    for name, group in _stable(picture):
        subscriptions = {member.topics for member in group.members or () if member.topics}
        for one in subscriptions:
            other = next((each for each in subscriptions if not each & one), None)
            if other is not None:
                text = f"group {name} has members for {format_first(sorted(one))} and for {format_first(sorted(other))}"
                yield Problem(text, [name])
                break


def _lags(picture: ClusterPicture) -> Iterator[tuple[str, PartitionLag]]:
    for group in picture.lag.values():
        for each in group.partitions.values():
            yield group.group_id, each


@check(
    severity=ERROR,
    kind="group",
    problem="A commit of a group is before the log start: records were deleted before the group read them.",
    advice="raise retention.ms or add consumers; 'ottla group reset GROUP --to-earliest' moves to the first record",
    needs=[Part.LAG],
)
def lost_records(picture: ClusterPicture) -> Iterator[Problem]:
    lost: dict[str, int] = {}
    for name, each in _lags(picture):
        if each.committed is not None and each.log_start is not None and each.committed < each.log_start:
            lost[name] = lost.get(name, 0) + each.log_start - each.committed
    if lost:
        worst = sorted(lost, key=lambda name: -lost[name])
        text = f"{format_count(len(lost), 'group')} lost records ({worst[0]}: up to {lost[worst[0]]} offsets)"
        yield Problem(text, worst)


@check(
    severity=ERROR,
    kind="group",
    problem="A commit of a group is after the log end: the topic was created again, or lost records. The group skips "
    "new records until the end has passed the commit, or reads all again.",
    advice="stop the group, then 'ottla group reset GROUP --all-topics --to-earliest --execute', or --to-latest",
    needs=[Part.LAG],
)
def commits_beyond_end(picture: ClusterPicture) -> Iterator[Problem]:
    names = sorted({name for name, each in _lags(picture) if each.is_beyond_end})
    if names:
        text = f"{format_count(len(names), 'group')} with commits after the log end ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=ERROR,
    kind="group",
    problem="A group is behind by most of the retention of its topic: it will lose records.",
    advice="raise retention.ms of the topic now, then add consumers",
    needs=[Part.LAG, Part.TOPIC_SETTINGS],
)
def lag_near_retention(picture: ClusterPicture) -> Iterator[Problem]:
    near: dict[str, float] = {}
    for name, each in _lags(picture):
        topic = picture.topics.get(each.name.topic)
        retention_ms = topic.number("retention.ms", -1) if topic is not None and "delete" in topic.policies else -1
        if retention_ms > 0 and each.time_lag_ms is not None and each.time_lag_ms > retention_ms * _RETENTION_SHARE:
            near[name] = max(near.get(name, 0.0), each.time_lag_ms / retention_ms)
    if near:
        worst = sorted(near, key=lambda name: -near[name])
        share = f"{near[worst[0]]:.0%} of the retention"
        text = f"{format_count(len(near), 'group')} will lose records ({worst[0]} is behind by {share})"
        yield Problem(text, worst)


@check(
    severity=WARNING,
    kind="group",
    problem="Members of a group have partitions with records, and the group has committed no offset: after a restart "
    "it begins again where auto.offset.reset says.",
    advice="commit after processing, or set enable.auto.commit=true, unless the group stores its offsets elsewhere",
    needs=[Part.LAG, Part.GROUPS],
)
def groups_without_commits(picture: ClusterPicture) -> Iterator[Problem]:
    names = []
    for group in picture.lag.values():
        rows = list(group.partitions.values())
        has_records = any(each.log_end and each.log_end > (each.log_start or 0) for each in rows)
        if rows and has_records and _has_members(picture, group) and all(each.committed is None for each in rows):
            names.append(group.group_id)
    if names:
        text = f"{format_count(len(names), 'group')} with members and without commits ({format_first(names)})"
        yield Problem(text, names)


def _moves(picture: ClusterPicture) -> Iterator[tuple[GroupLag, int, int, int]]:
    """Yield each group with lag whose ends have moved: the commits and ends since the earlier reading, and the lag."""
    before: Mapping[str, GroupLag] = picture.before.lag if picture.before is not None else {}
    if picture.elapsed_ms < _PROGRESS_MS_MIN:
        return
    for name, now in picture.lag.items():
        old = before.get(name)
        if old is None or now.read_at_ms <= old.read_at_ms:
            continue
        pairs = [(old.partitions[key], each) for key, each in now.partitions.items() if key in old.partitions]
        known = [(a, b) for a, b in pairs if a.lag is not None and b.lag is not None]
        commits = sum((b.committed or 0) - (a.committed or 0) for a, b in known)
        ends = sum((b.log_end or 0) - (a.log_end or 0) for a, b in known)
        lag = sum(b.lag or 0 for _, b in known)
        if ends > 0 and lag > 0:
            yield now, commits, ends, lag


@check(
    severity=ERROR,
    kind="group",
    problem="A group has members and commits nothing while new records arrive: its consumers are blocked.",
    advice="look at the consumers of the group: 'ottla group describe GROUP --members'",
    needs=[Part.LAG],
    needs_before=True,
)
def stalled_groups(picture: ClusterPicture) -> Iterator[Problem]:
    # Consumers commit every five seconds by default.
    stalled = {
        now.group_id: lag
        for now, commits, _, lag in _moves(picture)
        if commits == 0 and picture.elapsed_ms >= _SLOW_MS // 2 and _has_members(picture, now)
    }
    if stalled:
        worst = sorted(stalled, key=lambda name: -stalled[name])
        span = format_duration_ms(picture.elapsed_ms)
        text = (
            f"{format_count(len(stalled), 'group')} without a commit for {span} ({worst[0]}: lag {stalled[worst[0]]})"
        )
        yield Problem(text, worst)


@check(
    severity=WARNING,
    kind="group",
    problem="A group has no members while new records arrive in its topics.",
    advice="start its consumers, or delete it: 'ottla group delete GROUP'",
    needs=[Part.LAG],
    needs_before=True,
)
def stopped_groups(picture: ClusterPicture) -> Iterator[Problem]:
    stopped = {
        now.group_id: lag for now, commits, _, lag in _moves(picture) if not commits and not _has_members(picture, now)
    }
    if stopped:
        worst = sorted(stopped, key=lambda name: -stopped[name])
        text = f"{format_count(len(stopped), 'group')} without members ({worst[0]}: lag {stopped[worst[0]]})"
        yield Problem(text, worst)


@check(
    severity=WARNING,
    kind="group",
    problem="A group consumes less than producers append, for a minute or longer: it never catches up at this rate.",
    advice="add consumers, up to the number of partitions, or find what slows them: 'ottla group why GROUP'",
    needs=[Part.LAG],
    needs_before=True,
)
def slow_groups(picture: ClusterPicture) -> Iterator[Problem]:
    slow = {
        now.group_id: lag
        for now, commits, ends, lag in _moves(picture)
        if 0 < commits < ends and (now.time_lag_ms or 0) > _SLOW_MS and picture.elapsed_ms >= _SLOW_MS // 2
    }
    if slow:
        worst = sorted(slow, key=lambda name: -slow[name])
        text = f"{format_count(len(slow), 'group')} that fall further behind ({worst[0]}: lag {slow[worst[0]]})"
        yield Problem(text, worst)


CHECKS: tuple[Check, ...] = (
    lost_records,
    commits_beyond_end,
    lag_near_retention,
    stalled_groups,
    rebalancing_groups,
    stopped_groups,
    slow_groups,
    unread_partitions,
    groups_without_commits,
    shared_group_ids,
    idle_members,
)
