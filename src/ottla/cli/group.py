"""`ottla group`: list, describe and delete consumer groups; the other commands have files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure, NotFound
from ottla.admin.topic_state import Outcome
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.duration import format_duration_ms
from ottla.cli.failure import confirm, exit_if_failed, warn_incomplete
from ottla.cli.group_lag import measure_lag
from ottla.cli.group_offsets import delete_offsets
from ottla.cli.group_reset import parse_topics, reset, seek
from ottla.cli.group_why import why
from ottla.cli.names import GROUP_NAME, TOPIC_NAME
from ottla.cli.options import deletion_dry_run_option, filter_option, yes_option
from ottla.cli.outcomes import report_outcomes
from ottla.cli.output import (
    NAME,
    TABLE,
    Column,
    format_fields,
    format_table,
    output_option,
    print_descriptions,
    print_rows,
)
from ottla.cli.watch import WatchCommand
from ottla.model.printable import shown

if TYPE_CHECKING:
    from ottla.admin.group_state import GroupState
    from ottla.lag.types import PartitionLag

_STATES = ("Stable", "PreparingRebalance", "CompletingRebalance", "Empty", "Dead", "Unknown")
_TYPES = ("classic", "consumer")

_LIST_COLUMNS = (
    Column("GROUP", "consumer_group_id"),
    Column("TYPE", "type"),
    Column("STATE", "state"),
    Column("PROTOCOL TYPE", "protocol_type"),
)
_LIST_FIELDS = ("consumer_group_id", "is_simple", "type", "state", "protocol_type")
_OFFSET_COLUMNS = (
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("COMMITTED", "current_offset"),
    Column("END", "log_end_offset"),
    Column("LAG", "lag"),
    Column("TIME-LAG", "time_lag"),
    Column("CONSUMER-ID", "consumer_id"),
    Column("CLIENT-ID", "client_id"),
    Column("HOST", "host"),
)
_MEMBER_COLUMNS = (
    Column("CONSUMER-ID", "consumer_id"),
    Column("INSTANCE-ID", "instance_id"),
    Column("CLIENT-ID", "client_id"),
    Column("HOST", "host"),
    Column("PARTITIONS", "partitions_count"),
    Column("ASSIGNMENT", "assignment"),
)


@click.group("group")
def command() -> None:
    """Manage consumer groups and explain their rebalances."""


@command.command("list", cls=WatchCommand)
@filter_option("--state", "states", _STATES, "List only groups in this state.")
@filter_option("--type", "types", _TYPES, "List only groups of this type.")
@connection_options
@output_option()
def list_groups(states: tuple[str, ...], types: tuple[str, ...], connection: ClusterOptions, output: str) -> None:
    """List consumer groups.

    If a partition of the topic __consumer_offsets has no leader, its groups are missing: the others are printed, with a
    warning on standard error and exit code 4.
    """
    groups, failures = connection.connect().groups()
    rows = [
        {
            "consumer_group_id": group.group_id,
            "is_simple": group.is_simple,
            "type": group.group_type,
            "state": group.state,
            # The list has groups of consumers, and groups that never had a member.
            "protocol_type": None if group.is_simple else "consumer",
        }
        for group in groups
        if (not states or group.state in states) and (not types or group.group_type in types)
    ]
    print_rows(rows, _LIST_COLUMNS, output, "consumer_group_id", fields=_LIST_FIELDS)
    warn_incomplete(failures)


@command.command("describe", cls=WatchCommand)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, type=GROUP_NAME)
@click.option("--state", "with_state", is_flag=True, help="Show coordinator, type, state, assignor and total lag.")
@click.option("--members", "with_members", is_flag=True, help="Show the members and their assigned partitions.")
@click.option("--offsets", "with_offsets", is_flag=True, help="Show commits, log ends and lag of each partition.")
@connection_options
@output_option()
def describe(
    *,
    names: tuple[str, ...],
    with_state: bool,
    with_members: bool,
    with_offsets: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Describe consumer groups. Without --state, --members or --offsets: state and offsets.

    Shows all partitions of the topics in which the group has commits or assigned partitions. TIME-LAG is the age of
    the first record that is not consumed yet, read from the log. A dash means unknown: a partition without a commit
    has no lag, which differs from a lag of 0. The states Assigning and Reconciling of groups of type consumer are
    shown as Unknown. With -o csv: a line for each partition, with only --members for each member, with only --state
    for each group.
    """
    everything = not (with_state or with_members or with_offsets)
    cluster = connection.connect()
    states = cluster.describe_groups(list(dict.fromkeys(names)))
    described = []
    for group in states:
        if group.exists:
            time_limit_s = connection.timeout_s if everything or with_offsets else None
            lags = [] if output == NAME else measure_lag(cluster, group.group_id, time_limit_s=time_limit_s)
            described.append(_description(group, lags))
    wanted = {
        "state": everything or with_state,
        "members": with_members or (everything and output != TABLE),
        "offsets": everything or with_offsets,
    }
    if output != TABLE:
        hidden = {view for view in ("members", "offsets") if not wanted[view]}
        described = [{key: value for key, value in row.items() if key not in hidden} for row in described]
    detail = "offsets" if wanted["offsets"] else "members" if with_members else ""
    print_descriptions(
        described, lambda row: _format_description(row, wanted), output, "consumer_group_id", detail=detail
    )
    _fail_if_missing(states)


@command.command("delete")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, type=GROUP_NAME)
@click.option("--offsets", "only_offsets", is_flag=True, help="Keep the groups; delete only their commits in --topic.")
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC[:P,...]",
    multiple=True,
    type=TOPIC_NAME,
    help="With --offsets: delete the commits in this topic, or in these partitions of it. Repeatable.",
)
@click.option("--if-exists", is_flag=True, help="Succeed if a group does not exist.")
@yes_option
@deletion_dry_run_option
@connection_options
@output_option()
def delete(
    *,
    names: tuple[str, ...],
    only_offsets: bool,
    topics: tuple[str, ...],
    if_exists: bool,
    yes: bool,
    dry_run: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Delete consumer groups and their committed offsets. Their consumers must be stopped first.

    With --offsets the groups are kept, and only their commits in the given topics are deleted. Their consumers may
    keep running, unless they are subscribed to one of these topics.
    """
    if only_offsets != bool(topics):
        raise click.UsageError("--offsets and --topic go together; without both, the whole group is deleted")
    cluster = connection.connect()
    states = cluster.describe_groups(list(dict.fromkeys(names)))
    missing = [shown(group.group_id) for group in states if not group.exists]
    if missing and not if_exists:
        raise NotFound(f"group {', '.join(missing)} does not exist; nothing was deleted, see 'ottla group list'")
    if only_offsets:
        found = [group.group_id for group in states if group.exists]
        delete_offsets(cluster, found, parse_topics(topics), yes=yes, dry_run=dry_run, output=output)
        return
    for group in states:
        if group.members:
            raise Failure(
                f"group {shown(group.group_id)} still has active members ({len(group.members)}); nothing was deleted: "
                f"stop its consumers first, 'ottla group describe {shown(group.group_id)} --members' shows them"
            )
    found = [group.group_id for group in states if group.exists]
    if dry_run:
        _report([Outcome(name=name, failure=None) for name in found], "would delete", output)
        return
    if found and not yes:
        confirm("deleting groups", f"Delete {', '.join(map(shown, found))} and all commits in it?")
    _report(cluster.delete_groups(found) if found else [], "deleted", output)


command.add_command(reset)
command.add_command(seek)
command.add_command(why)


def _report(outcomes: Sequence[Outcome], done: str, output: str) -> None:
    report_outcomes(outcomes, done, output, noun="group", name_field="consumer_group_id")


def _fail_if_missing(states: Iterable[GroupState]) -> None:
    missing = [
        NotFound(f"group {shown(g.group_id)} does not exist; see 'ottla group list'") for g in states if not g.exists
    ]
    exit_if_failed(missing)


def _description(group: GroupState, lags: Sequence[PartitionLag]) -> dict[str, Any]:
    known = [lag.lag for lag in lags if lag.lag is not None]
    times = [lag.time_lag_ms for lag in lags if lag.time_lag_ms is not None]
    node = group.coordinator
    return {
        "consumer_group_id": group.group_id,
        "is_simple": group.is_simple,
        "type": group.group_type,
        "state": group.state,
        "partition_assignor": group.assignor,
        "coordinator": {"broker_id": node.broker_id, "host": node.host, "port": node.port},
        "members_count": len(group.members),
        "total_lag": sum(known) if known else None,
        "max_lag": max(known, default=None),
        "max_time_lag_ms": max(times, default=None),
        "members": [
            {
                "consumer_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "assignments": [
                    {"topic_name": name.topic, "partition_id": name.partition} for name in member.partitions
                ],
            }
            for member in group.members
        ],
        "offsets": [_offset_row(lag) for lag in lags],
    }


def _offset_row(lag: PartitionLag) -> dict[str, Any]:
    return {
        "topic_name": lag.name.topic,
        "partition_id": lag.name.partition,
        "current_offset": lag.committed,
        "log_end_offset": lag.log_end,
        "lag": lag.lag,
        "time_lag_ms": lag.time_lag_ms,
        "consumer_id": lag.member.member_id if lag.member else None,
        "instance_id": lag.member.instance_id if lag.member else None,
        "client_id": lag.member.client_id if lag.member else None,
        "host": lag.member.host if lag.member else None,
    }


def _format_description(row: dict[str, Any], wanted: dict[str, bool]) -> str:
    blocks = [_format_state(row) if wanted["state"] else f"GROUP  {shown(row['consumer_group_id'])}"]
    if wanted["members"]:
        members = [
            {**member, "partitions_count": len(member["assignments"]), "assignment": _format_assignment(member)}
            for member in row["members"]
        ]
        blocks.append(format_table(_MEMBER_COLUMNS, members) if members else "no members")
    if wanted["offsets"]:
        # Members without partitions are listed below the partitions.
        idle = [member for member in row["members"] if not member["assignments"]]
        rows = [
            *({**one, "time_lag": _format_time_lag(one["time_lag_ms"])} for one in row["offsets"]),
            *idle,
        ]
        blocks.append(format_table(_OFFSET_COLUMNS, rows) if rows else "no committed offsets")
        blocks += _notes(row)
    return "\n\n".join(blocks)


def _format_state(row: dict[str, Any]) -> str:
    node = row["coordinator"]
    uncommitted = sum(one["current_offset"] is None for one in row["offsets"])
    total = "-" if row["total_lag"] is None else str(row["total_lag"])
    pairs = {
        "GROUP": shown(row["consumer_group_id"]),
        "COORDINATOR": f"{node['broker_id']} ({node['host']}:{node['port']})",
        "TYPE": row["type"],
        "STATE": row["state"],
        "ASSIGNOR": shown(row["partition_assignor"] or "-"),
        "MEMBERS": row["members_count"],
        "TOTAL LAG": f"{total} ({uncommitted} of {len(row['offsets'])} partitions have no commit)"
        if uncommitted
        else total,
    }
    if row["max_time_lag_ms"] is not None:
        pairs["TIME LAG"] = _format_time_lag(row["max_time_lag_ms"])
    return format_fields(pairs)


def _format_assignment(member: dict[str, Any]) -> str | None:
    partitions: dict[str, list[str]] = {}
    for one in member["assignments"]:
        partitions.setdefault(one["topic_name"], []).append(str(one["partition_id"]))
    return " ".join(f"{topic}:{','.join(numbers)}" for topic, numbers in partitions.items()) or None


def _format_time_lag(time_lag_ms: int | None) -> str | None:
    return None if time_lag_ms is None else format_duration_ms(time_lag_ms)


def _notes(row: dict[str, Any]) -> list[str]:
    """Return explanations of values that are missing in the table."""
    beyond = [
        f"{one['topic_name']}-{one['partition_id']}"
        for one in row["offsets"]
        if one["current_offset"] is not None
        and one["log_end_offset"] is not None
        and one["current_offset"] > one["log_end_offset"]
    ]
    endless = sorted({one["topic_name"] for one in row["offsets"] if one["log_end_offset"] is None})
    notes = []
    if beyond:
        notes.append(
            f"Committed beyond the end of the log: {', '.join(beyond)}. Was the topic deleted and created again? "
            "'ottla group reset' moves the group to an offset in the log."
        )
    if endless:
        notes.append(
            f"No log end: {', '.join(endless)}. The topic was deleted or has no leader; see 'ottla topic describe'."
        )
    return notes
