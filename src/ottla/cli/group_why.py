"""`ottla group why`: the last rebalances of a group, who caused them, and which setting to look at.

The records are those of `ottla.admin.rebalances`. Their texts come from clients, so they are escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound
from ottla.admin.rebalances import advice_rows, parse_journal, read_journal
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.duration import current_time_ms, format_duration_ms, format_local_time
from ottla.cli.names import GROUP_NAME
from ottla.cli.output import JSON, TABLE, YAML, format_count, output_option, print_data
from ottla.cli.watch import WatchCommand
from ottla.model.printable import shown

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient

_TIMELINE_WIDTH = 60
_BLOCKS = "▁▂▃▄▅▆▇█"


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
            {"consumer_group_id": name, "rebalances": rebalances, "advice": advice_rows(rebalances)},
            output,
        )
    elif rebalances:
        click.echo(format_report(name, rebalances, current_time_ms(), drawing=_can_draw()))


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
    for row in advice_rows(rebalances):
        settings = f" [{', '.join(row['settings'])}]" if row["settings"] else ""
        lines.append(f"{row['kind']} ({row['count']}x){settings}: {row['advice']}")
    return "\n".join(["WHAT TO LOOK AT", *lines]) if lines else ""


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
