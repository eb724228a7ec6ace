"""`ottla group reset` and `ottla group seek`: move the committed offsets of a group whose consumers are stopped.

Both make a plan, print it and commit it. `reset` has the options of Kafka's own tool and changes nothing without
--execute; `seek` has fewer options and commits at once.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from ottla.admin.failure import Failure, NotFound
from ottla.admin.offset_plans import (
    OffsetPlan,
    PlannedOffset,
    Target,
    committed_partitions,
    existing_partitions,
    make_plan,
    partitions_of,
    refusal,
)
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.duration import current_time_ms, parse_duration_ms
from ottla.cli.failure import exit_if_failed
from ottla.cli.names import GROUP_NAME, TOPIC_NAME
from ottla.cli.options import Parsed
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.cli.position import parse_time_ms
from ottla.model.printable import shown
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.admin.group_state import GroupState
    from ottla.cli.cluster import ClusterClient

_Function = TypeVar("_Function", bound=Callable[..., Any])

#: the output of --export: lines that --from-file reads
_OFFSETS_FILE = "offsets-file"
_COLUMNS = (
    Column("GROUP", "consumer_group_id"),
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("CURRENT", "current_offset"),
    Column("NEW", "new_offset"),
)
#: the key in click's context under which the options of a command collect the targets
_TARGETS = "ottla.group.targets"


def _target_option(flag: str, convert: Callable[[Any], Target], **attributes: Any) -> Callable[[_Function], _Function]:
    """Return an option that names a target. All targets are collected, so that two of them can be rejected."""

    def collect(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        if value is None or value is False:
            return
        try:
            target = convert(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from None
        ctx.meta.setdefault(_TARGETS, []).append((flag, target))

    return click.option(flag, expose_value=False, callback=collect, **attributes)


@click.command("reset")
@click.argument("group", metavar="GROUP", type=GROUP_NAME)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:P,...]",
    multiple=True,
    type=TOPIC_NAME,
    help="Reset this topic, or these partitions of it. Repeatable.",
)
@click.option("--all-topics", is_flag=True, help="Reset every partition that the group has committed.")
@_target_option("--to-earliest", lambda _: Target("earliest"), is_flag=True, help="To the first record.")
@_target_option("--to-latest", lambda _: Target("latest"), is_flag=True, help="To the end of the log.")
@_target_option("--to-current", lambda _: Target("current"), is_flag=True, help="To the current offsets; for --export.")
@_target_option(
    "--to-offset",
    lambda number: Target("offset", number),
    metavar="N",
    type=click.IntRange(min=0),
    help="To this offset.",
)
@_target_option(
    "--to-timestamp",
    lambda text: Target("time", _parse_time(text)),
    metavar="TIME",
    help="To the first record at or after TIME: milliseconds, ISO 8601, or a duration before now such as -90m.",
)
@_target_option(
    "--to-datetime",
    lambda text: Target("time", _parse_time(text)),
    metavar="TIME",
    help="Kafka's name for --to-timestamp.",
)
@_target_option(
    "--by-duration",
    lambda text: Target("time", current_time_ms() - parse_duration_ms(text)),
    metavar="SPAN",
    help="To the first record of the last SPAN, such as 1h30m or PT1H30M.",
)
@_target_option(
    "--shift-by",
    lambda number: Target("shift", number),
    metavar="N",
    type=int,
    help="By N records; a negative N moves back.",
)
@_target_option(
    "--from-file",
    lambda file: Target("file", offsets=parse_offsets_file(file)),
    metavar="FILE",
    type=click.File(encoding="utf-8"),
    help="To the offsets in a file of TOPIC,PARTITION,OFFSET lines, as --export writes it; - is standard input.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing; this is the default.")
@click.option("--execute", is_flag=True, help="Commit the new offsets.")
@click.option("--export", is_flag=True, help="Print the plan as TOPIC,PARTITION,OFFSET lines.")
@connection_options
@output_option(TABLE, JSON, YAML)
@click.pass_context
def reset(
    ctx: click.Context,
    *,
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Move the offsets of a group. Shows the plan; changes nothing without --execute.

    The consumers of the group must be stopped. Offsets outside the log are moved to its start or end. A group
    that does not exist yet is created by its first offsets.
    """
    target = _only_target(ctx)
    _check_scope(topics, all_topics, target)
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute cannot be combined")
    if export and output != TABLE:
        raise click.UsageError(f"--export has its own format and cannot be combined with -o {output}")
    cluster = connection.connect()
    (state,) = cluster.describe_groups([group])
    if not state.exists and (all_topics or target.kind == "shift"):
        raise NotFound(f"group {shown(group)} does not exist; name topics with --topic to create it, or see "
                       "'ottla group list'")  # fmt: skip
    committed = cluster.committed_offsets(group)
    if target.offsets is not None:
        names = _partitions_in_file(cluster, target.offsets)
    else:
        names = _existing_committed(cluster, committed) if all_topics else _named_partitions(cluster, topics)
    plan = _noted(make_plan(cluster, names, committed, target))
    undone = "" if export else "nothing was changed; add --execute to commit this"
    _run(cluster, state, plan, execute=execute, undone=undone, output=_OFFSETS_FILE if export else output)


def _parse_where(text: str) -> Target:
    if text in ("start", "beginning"):
        return Target("earliest")
    if text == "end":
        return Target("latest")
    if re.fullmatch(r"\d{1,18}", text, re.ASCII):
        return Target("offset", int(text))
    try:
        return Target("time", _parse_time(text.removeprefix("@")))
    except ValueError as error:
        raise ValueError(f"{error}, or start, end, an offset") from None


def _parse_time(text: str) -> int:
    return parse_time_ms(text, current_time_ms())


@click.command("seek")
@click.argument("group", metavar="GROUP", type=GROUP_NAME)
@click.option(
    "--to",
    "target",
    metavar="start|end|TIME|OFFSET",
    type=Parsed("position", _parse_where),
    required=True,
    help="start, end, an offset, or a time: @MS, ISO 8601, or a duration before now such as -90m.",
)
@click.option(
    "--topics",
    metavar="TOPIC,...",
    multiple=True,
    help="These topics only. Repeatable.  [default: every partition that the group has committed]",
)
@click.option("--dry-run", is_flag=True, help="Show the plan and change nothing.")
@connection_options
@output_option(TABLE, JSON, YAML)
def seek(
    *, group: str, target: Target, topics: tuple[str, ...], dry_run: bool, connection: ClusterOptions, output: str
) -> None:
    """Move the offsets of a group: the short form of reset --execute.

    The consumers of the group must be stopped.
    """
    cluster = connection.connect()
    (state,) = cluster.describe_groups([group])
    if not state.exists:
        raise NotFound(f"group {shown(group)} does not exist; 'ottla group reset' can create it")
    committed = cluster.committed_offsets(group)
    wanted = tuple(topic for text in topics for topic in text.split(",") if topic)
    names = partitions_of(cluster, wanted) if wanted else _existing_committed(cluster, committed)
    plan = _noted(make_plan(cluster, names, committed, target))
    if target.kind == "offset" and plan and all(planned.new < target.value for planned in plan):
        # The user may have meant a time and forgotten the @. Committing the end would skip all records.
        raise Failure(
            f"offset {target.value} is beyond the end of every partition; write @{target.value} if it is a time, or "
            "--to end"
        )
    _run(cluster, state, plan, execute=not dry_run, undone="nothing was changed", output=output)


def parse_offsets_file(file: Iterable[str] | IO[str]) -> dict[tuple[str, int], int]:
    """Return the offsets in lines of TOPIC,PARTITION,OFFSET. Raise ValueError, which names the wrong line."""
    offsets: dict[tuple[str, int], int] = {}
    lines = csv.reader(file)
    try:
        for cells in lines:
            if not cells:
                continue
            words = [cell.strip() for cell in cells]
            if len(words) != 3 or not all(re.fullmatch(r"\d{1,18}", word, re.ASCII) for word in words[1:]):
                raise ValueError(f"line {lines.line_num}: {','.join(cells)!r:.80} is not TOPIC,PARTITION,OFFSET")
            name = (words[0], int(words[1]))
            if name in offsets:
                raise ValueError(f"line {lines.line_num}: {name[0]}-{name[1]} occurs twice; keep one of the lines")
            offsets[name] = int(words[2])
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"line {lines.line_num + 1}: {error}") from None
    if not offsets:
        raise ValueError("the file has no lines")
    return offsets


def _run(
    cluster: ClusterClient, group: GroupState, plan: Sequence[PlannedOffset], *, execute: bool, undone: str, output: str
) -> None:
    """Print the plan. With `execute` commit it, otherwise print `undone`."""
    if not plan:
        raise Failure(f"group {shown(group.group_id)} has no committed offset to move; name the topics to start from")
    reason = refusal(group)
    if execute and reason is not None:
        raise reason
    if output == TABLE:
        _print_plan(group, plan, {}, output)
    for planned in plan:
        if planned.note:
            click.echo(f"note: {planned.name.topic}-{planned.name.partition}: {planned.note}", err=True)
    failures = {}
    if execute:
        failures = cluster.commit_offsets(group.group_id, {planned.name: planned.new for planned in plan})
    if output != TABLE:
        _print_plan(group, plan, failures, output)
    if not execute:
        if reason is not None:
            click.echo(f"warning: {reason.message}", err=True)
        if undone:
            click.echo(undone, err=True)
        return
    click.echo(f"{len(plan) - len(failures)} of {len(plan)} offsets of {shown(group.group_id)} committed", err=True)
    exit_if_failed(failures.values())


def _print_plan(
    group: GroupState, plan: Sequence[PlannedOffset], failures: Mapping[TopicPartition, Failure], output: str
) -> None:
    if output == _OFFSETS_FILE:
        for planned in plan:
            click.echo(f"{planned.name.topic},{planned.name.partition},{planned.new}")
        return
    rows = [
        {
            "consumer_group_id": group.group_id,
            "topic_name": planned.name.topic,
            "partition_id": planned.name.partition,
            "current_offset": planned.current,
            "new_offset": planned.new,
            "note": planned.note or None,
            "error": failures[planned.name].message if planned.name in failures else None,
        }
        for planned in plan
    ]
    print_rows(rows, _COLUMNS, output)


def _only_target(ctx: click.Context) -> Target:
    targets: list[tuple[str, Target]] = ctx.meta.get(_TARGETS, [])
    if not targets:
        names = "--to-earliest, --to-latest, --to-offset, --to-timestamp, --by-duration, --shift-by, --to-current"
        raise click.UsageError(f"choose a target: {names} or --from-file")
    if len(targets) > 1:
        raise click.UsageError(f"{' and '.join(flag for flag, _ in targets)} cannot be combined")
    return targets[0][1]


def _check_scope(topics: tuple[str, ...], all_topics: bool, target: Target) -> None:
    named = [flag for flag, given in (("--topic", topics), ("--all-topics", all_topics)) if given]
    if target.kind == "file" and named:
        raise click.UsageError(f"--from-file contains the partitions and cannot be combined with {named[0]}")
    if len(named) > 1:
        raise click.UsageError("--topic and --all-topics cannot be combined")
    if not named and target.kind != "file":
        raise click.UsageError("choose the topics: --topic TOPIC[:P,...] or --all-topics")


def _named_partitions(cluster: ClusterClient, texts: Iterable[str]) -> list[TopicPartition]:
    return existing_partitions(cluster, parse_topics(texts))


def parse_topics(texts: Iterable[str]) -> dict[str, set[int] | None]:
    """Return the partition numbers of each topic in texts of the form TOPIC[:P,...]; None stands for all."""
    wanted: dict[str, set[int] | None] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        if not colon:
            wanted[topic] = None
        elif not re.fullmatch(r"\d{1,9}(,\d{1,9})*", numbers, re.ASCII):
            raise click.UsageError(f"--topic {text!r} is not of the form TOPIC:0,1")
        elif (known := wanted.setdefault(topic, set())) is not None:
            known.update(map(int, numbers.split(",")))
    return wanted


def _partitions_in_file(cluster: ClusterClient, offsets: Mapping[tuple[str, int], int]) -> list[TopicPartition]:
    wanted: dict[str, set[int] | None] = {}
    for topic, partition in offsets:
        if (known := wanted.setdefault(topic, set())) is not None:
            known.add(partition)
    return existing_partitions(cluster, wanted)


def _existing_committed(cluster: ClusterClient, committed: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    existing, deleted = committed_partitions(cluster, committed)
    for name in deleted:
        click.echo(f"note: {name.topic}-{name.partition} is skipped: it no longer exists", err=True)
    return existing


def _noted(plan: OffsetPlan) -> tuple[PlannedOffset, ...]:
    for name, reason in plan.skipped.items():
        click.echo(f"note: {name.topic}-{name.partition} is skipped: {reason}", err=True)
    return plan.offsets
