"""`ottla group why`: the last rebalances of a group, who caused them, and which setting to look at.

Ottla brokers write one JSON record per finished rebalance to a compacted topic, keyed by group and generation modulo
20. The topic is small, so all of it is read. Any client may write to it, so its records are validated and escaped.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.duration import current_time_ms, format_duration_ms, format_local_time
from ottla.cli.names import GROUP_NAME
from ottla.cli.output import JSON, TABLE, YAML, format_count, output_option, print_data
from ottla.cli.watch import WatchCommand
from ottla.model.printable import shown
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient
    from ottla.cli.records import Message, Reader
JOURNAL_TOPIC = "__ottla_rebalances"

_READ_COUNT = 1000
_POLL_S = 0.2
_TIMELINE_WIDTH = 60
_BLOCKS = "▁▂▃▄▅▆▇█"

_NUMBERS = {
    "generation": "generation",
    "startedMs": "started_ms",
    "durationMs": "duration_ms",
    "membersBefore": "members_before",
    "membersAfter": "members_after",
    "causesLeftOut": "causes_left_out",
}
_CAUSE_TEXTS = {
    "kind": "kind",
    "memberId": "member_id",
    "clientId": "client_id",
    "clientHost": "client_host",
    "groupInstanceId": "group_instance_id",
    "detail": "detail",
}


class Advice(NamedTuple):
    """The settings to check and the explanation for one kind of cause."""

    settings: tuple[str, ...]
    text: str


#: by the kind of cause, as brokers write it
ADVICE: Mapping[str, Advice] = {
    "joined": Advice(
        ("group.instance.id", "group.initial.rebalance.delay.ms"),
        "Normal when you scale out. If it happens at each restart, give members a group.instance.id; if many start at "
        "once, raise the delay.",
    ),
    "left": Advice(
        ("group.instance.id",),
        "Normal when you scale in. In a rolling restart, static members get their partitions back without a rebalance.",
    ),
    "removed by an administrator": Advice(
        (), "An administrator removed the member; check that the removal was intended and is complete."
    ),
    "session timeout": Advice(
        ("session.timeout.ms", "heartbeat.interval.ms"),
        "No heartbeat in time: a killed process, a long pause (garbage collection, a frozen container) or a lost "
        "network. Keep the session at three heartbeats or more.",
    ),
    "max poll interval": Advice(
        ("max.poll.interval.ms", "max.poll.records"),
        "Processing took longer than allowed between two polls: take fewer records at a time, or allow more time.",
    ),
    "never fetched its assignment": Advice(
        ("rebalance.timeout.ms", "max.poll.interval.ms"),
        "The member joined and then went silent: look for a crash or a block in its rebalance listener.",
    ),
    "metadata change": Advice(
        ("partition.assignment.strategy",),
        "A member changed its subscription or its assignors: expected in a deployment, otherwise find the "
        "member that changes its subscription.",
    ),
    "new topic or partition": Advice(
        ("metadata.max.age.ms",), "Expected: topics that the group reads were created, deleted or got partitions."
    ),
    "leader rejoined": Advice(
        (), "The leading member asked for a new assignment, as after it restarted or saw new partitions."
    ),
    "coordinator moved": Advice(
        (), "The broker that coordinates the group restarted, or another took over; look at the brokers' log."
    ),
    "static member fenced": Advice(
        ("group.instance.id",), "Two consumers use the same group.instance.id; give each its own."
    ),
    "group protocol changed": Advice(
        ("group.protocol",), "Members moved between the classic and the consumer protocol: expected in an upgrade."
    ),
}


@click.command("why", cls=WatchCommand)
@click.argument("name", metavar="GROUP", type=GROUP_NAME)
@click.option(
    "-n",
    "--num",
    "count",
    metavar="COUNT",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Show the last COUNT rebalances; the broker keeps 20.",
)
@connection_options
@output_option(TABLE, JSON, YAML)
def why(name: str, count: int, connection: ClusterOptions, output: str) -> None:
    """Show why a group rebalanced, newest first.

    Shows the cause, the duration and the setting to check. Reads the topic in which Ottla brokers record the causes of
    rebalances. Other brokers have no such topic.
    """
    cluster = connection.connect()
    values = read_journal(cluster, name, connection.timeout_s)
    rebalances = parse_journal(values or (), name)[:count]
    if not rebalances:
        _explain_absence(cluster, name, has_journal=values is not None)
    if output != TABLE:
        print_data(
            {"consumer_group_id": name, "rebalances": rebalances, "advice": _advice_rows(rebalances)},
            output,
        )
    elif rebalances:
        click.echo(format_report(name, rebalances, current_time_ms(), drawing=_can_draw()))


def read_journal(cluster: ClusterClient, group: str, time_limit_s: float) -> list[bytes] | None:
    """Return the last value under each key of this group in each partition; None if the cluster has no journal.

    A group has entries in several partitions if its coordinator has moved to another broker.
    """
    topic = cluster.topics().get(JOURNAL_TOPIC)
    if topic is None:
        return None
    names = [partition.name for partition in topic.partitions]
    starts, ends = cluster.find_offsets(names, "earliest"), cluster.find_offsets(names, "latest")
    unread = {
        name: at.offset for name, at in ends.items() if at.offset is not None and at.offset > (starts[name].offset or 0)
    }
    if not unread:
        return []
    with cluster.reader({"isolation.level": "read_uncommitted", "fetch.wait.max.ms": 100}) as reader:
        reader.assign({name: starts[name].offset or 0 for name in unread})
        return _keep_last_values(reader, unread, f"{group}/".encode(), time_limit_s)


def _keep_last_values(
    reader: Reader, unread: dict[TopicPartition, int], key_start: bytes, time_limit_s: float
) -> list[bytes]:
    last: dict[tuple[int, bytes], bytes] = {}
    deadline = time.monotonic() + time_limit_s
    while unread:
        if time.monotonic() >= deadline:
            raise NotHealthy(f"{JOURNAL_TOPIC} could not be read within {time_limit_s:g} s; raise --timeout")
        messages, ends = reader.read(_READ_COUNT, _POLL_S)
        for message in messages:
            _keep(last, message, key_start)
            name = TopicPartition(str(message.topic()), message.partition() or 0)
            if (message.offset() or 0) + 1 >= unread.get(name, 0):
                unread.pop(name, None)
        for name, next_offset in ends.items():
            if next_offset >= unread.get(name, 0):
                unread.pop(name, None)
    return list(last.values())


def _keep(last: dict[tuple[int, bytes], bytes], message: Message, key_start: bytes) -> None:
    key, value = message.key(), message.value()
    # The name of a group may contain slashes, so the key must end with the prefix and digits.
    if not isinstance(key, bytes) or not key.startswith(key_start) or not key[len(key_start) :].isdigit():
        return
    place = message.partition() or 0, key
    last.pop(place, None)
    if isinstance(value, bytes):
        last[place] = value


def parse_journal(values: Sequence[bytes], group: str) -> list[dict[str, Any]]:
    """Return the rebalances in these records, newest first. Other records are ignored."""
    entries = [entry for value in values if (entry := _parse_entry(value, group)) is not None]
    return sorted(entries, key=lambda entry: (entry["started_ms"], entry["generation"]), reverse=True)


def _parse_entry(value: bytes, group: str) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("groupId") != group or not isinstance(found.get("causes"), list):
        return None
    entry: dict[str, Any] = {"type": str(found.get("groupType"))}
    for field, name in _NUMBERS.items():
        number = found.get(field)
        # Larger numbers are not times that a calendar has.
        if type(number) is not int or not 0 <= number < 2**47:
            return None
        entry[name] = number
    entry["causes"] = [
        {name: _text(cause.get(field)) for field, name in _CAUSE_TEXTS.items()}
        for cause in found["causes"]
        if isinstance(cause, dict)
    ]
    return entry


def _text(value: object) -> str | None:
    # JSON can have single surrogates, which cannot be printed.
    return None if value is None else str(value).encode(errors="replace").decode()


def _explain_absence(cluster: ClusterClient, name: str, *, has_journal: bool) -> None:
    (group,) = cluster.describe_groups([name])
    if not group.exists:
        raise NotFound(f"group {shown(name)} does not exist; see 'ottla group list'")
    if not has_journal:
        raise Failure("this cluster keeps no journal of rebalances; only Ottla brokers write it")
    click.echo(f"group {shown(name)} has no rebalance in the journal", err=True)


def format_report(name: str, rebalances: Sequence[Mapping[str, Any]], now_ms: int, *, drawing: bool) -> str:
    """Return the report as text."""
    total = format_duration_ms(sum(one["duration_ms"] for one in rebalances))
    since = format_duration_ms(max(now_ms - rebalances[-1]["started_ms"], 0))
    head = f"GROUP  {shown(name)}: {format_count(len(rebalances), 'rebalance')} in the last {since}, {total} in all"
    blocks = [head]
    if drawing and len(rebalances) > 1:
        blocks.append(draw_timeline(rebalances, now_ms))
    blocks += [_format_rebalance(one, now_ms) for one in rebalances]
    advice = _format_advice(rebalances)
    return "\n\n".join([*blocks, advice] if advice else blocks)


def draw_timeline(rebalances: Sequence[Mapping[str, Any]], now_ms: int) -> str:
    """Return a bar chart over time. A bar is as high as the rebalances that began in its column took."""
    first_ms = rebalances[-1]["started_ms"]
    span_ms = max(now_ms - first_ms, 1)
    durations = [0] * _TIMELINE_WIDTH
    for one in rebalances:
        at = min(max(one["started_ms"] - first_ms, 0) * _TIMELINE_WIDTH // span_ms, _TIMELINE_WIDTH - 1)
        # A rebalance of less than a millisecond gets a bar, too.
        durations[at] += max(one["duration_ms"], 1)
    highest = max(durations)
    bar = "".join(_BLOCKS[(each * len(_BLOCKS) - 1) // highest] if each else " " for each in durations)
    left, right = format_local_time(first_ms), "now"
    legend = f"{left}{right:>{_TIMELINE_WIDTH - len(left)}}"
    return f"{bar.rstrip():<{_TIMELINE_WIDTH}}  highest {format_duration_ms(highest)}\n{legend}"


def _format_rebalance(one: Mapping[str, Any], now_ms: int) -> str:
    head = (
        f"{format_local_time(one['started_ms'])}  {_ago(now_ms - one['started_ms'])}  "
        f"took {format_duration_ms(one['duration_ms'])}  "
        f"members {one['members_before']} -> {one['members_after']}  generation {one['generation']}"
    )
    lines = [f"  {_format_cause(cause)}" for cause in one["causes"]] or ["  cause unknown"]
    if one["causes_left_out"] > 0:
        lines.append(f"  and {one['causes_left_out']} more")
    return "\n".join([head, *lines])


def _format_cause(cause: Mapping[str, str | None]) -> str:
    who = cause["client_id"] or cause["member_id"]
    words = [str(cause["kind"])]
    if who:
        words.append(f": {who}")
        if cause["client_host"]:
            words.append(f" at {cause['client_host']}")
        names = [("member", cause["member_id"]), ("instance", cause["group_instance_id"])]
        known = ", ".join(f"{label} {value}" for label, value in names if value and value != who)
        if known:
            words.append(f" ({known})")
    if cause["detail"]:
        words.append(f": {cause['detail']}")
    return shown("".join(words))


def _format_advice(rebalances: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for row in _advice_rows(rebalances):
        settings = f" [{', '.join(row['settings'])}]" if row["settings"] else ""
        lines.append(f"{row['kind']} ({row['count']}x){settings}: {row['advice']}")
    return "\n".join(["WHAT TO LOOK AT", *lines]) if lines else ""


def _advice_rows(rebalances: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each kind of cause, the most frequent first."""
    kinds = Counter(cause["kind"] for one in rebalances for cause in one["causes"])
    return [
        {"kind": kind, "count": count, "settings": list(ADVICE[kind].settings), "advice": ADVICE[kind].text}
        for kind, count in kinds.most_common()
        if kind in ADVICE
    ]


def _can_draw() -> bool:
    try:
        _BLOCKS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _ago(span_ms: int) -> str:
    """Return an age in its largest unit, such as `3 min ago`."""
    for unit_ms, unit in ((86_400_000, "day"), (3_600_000, "h"), (60_000, "min"), (1000, "s")):
        if span_ms >= unit_ms:
            count = span_ms // unit_ms
            return f"{format_count(count, unit)} ago" if unit == "day" else f"{count} {unit} ago"
    return "just now"
