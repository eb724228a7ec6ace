"""`ottla cluster status`, `brokers` and `elect`: the health of a cluster, its brokers, and elections of leaders."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import NOT_HEALTHY, Failure, NotFound
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.failure import exit_if_failed
from ottla.cli.names import TOPIC_NAME
from ottla.cli.output import JSON, TABLE, YAML, Column, format_table, output_option, print_data, print_rows
from ottla.cli.watch import WatchCommand
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.admin.cluster import ClusterAdmin, ClusterState
    from ottla.admin.topic_state import PartitionState


#: partitions that the table of `status` shows
_SHOWN_MAX = 20

_STATUS_ROWS = (
    ("CLUSTER", "cluster_id"),
    ("CONTROLLER", "controller_id"),
    ("BROKERS", "brokers"),
    ("TOPICS", "topics"),
    ("PARTITIONS", "partitions"),
    ("OFFLINE", "offline_partitions"),
    ("UNDER-MIN-ISR", "under_min_isr_partitions"),
    ("UNDER-REPLICATED", "under_replicated_partitions"),
    ("REASSIGNING", "reassigning_partitions"),
    ("NOT-PREFERRED-LEADER", "not_preferred_leaders"),
    ("HEALTHY", "healthy"),
)
_PROBLEM_COLUMNS = (
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("LEADER", "leader"),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr"),
    Column("PROBLEM", "problem"),
    Column("LAG-RECORDS", "lag_records"),
    Column("LAG-BYTES", "lag_bytes"),
)
_BROKER_COLUMNS = (
    Column("ID", "broker_id"),
    Column("HOST", "host"),
    Column("PORT", "port"),
    Column("RACK", "rack"),
    Column("CONTROLLER", "controller"),
    Column("LEADERS", "leaders"),
    Column("PREFERRED", "preferred_leaders"),
    Column("REPLICAS", "replicas"),
    Column("IN-SYNC", "in_sync_replicas"),
)
_ELECTION_COLUMNS = (
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("LEADER", "leader"),
    Column("NEW-LEADER", "new_leader"),
    Column("ISR", "isr"),
)


@contextmanager
def opened(connection: ClusterOptions) -> Iterator[ClusterAdmin]:
    """Connect to the cluster, and close the connections at the end of the block."""
    from ottla.admin.cluster import ClusterAdmin
    from ottla.cli.cluster import opened_client

    with opened_client(connection) as client:
        yield ClusterAdmin(client, connection.timeout_s)


@click.command("status", cls=WatchCommand)
@click.option("--wait", is_flag=True, help="Wait until the cluster is healthy, for at most --timeout.")
@connection_options
@output_option(TABLE, JSON, YAML)
def status(wait: bool, connection: ClusterOptions, output: str) -> None:
    """Show whether the cluster is healthy, and which partitions have a problem.

    A cluster is healthy if it has a controller, every partition has a leader, and all replicas are in sync. The exit
    code is 4 if it is not. The lag is that of the replica that is furthest behind, of those whose brokers run.
    """
    from ottla.admin.status import describe_status, is_healthy

    with opened(connection) as admin:
        state = admin.wait_for(is_healthy) if wait else admin.state()
        summary = describe_status(state, admin.min_isr, admin.replica_logs)
    if output == TABLE:
        _print_status(summary)
    else:
        print_data(summary, output)
    if not summary["healthy"]:
        sys.exit(NOT_HEALTHY)


def _print_status(summary: dict[str, Any]) -> None:
    width = max(len(heading) for heading, _ in _STATUS_ROWS)
    for heading, field in _STATUS_ROWS:
        value = summary[field]
        text = ("yes" if value else "no") if isinstance(value, bool) else "none" if value is None else value
        click.echo(f"{heading.ljust(width)}  {text}")
    problems = summary["problems"]
    if problems:
        click.echo()
        click.echo(format_table(_PROBLEM_COLUMNS, problems[:_SHOWN_MAX]))
        if len(problems) > _SHOWN_MAX:
            click.echo(f"and {len(problems) - _SHOWN_MAX} more; -o json shows all")


@click.command("brokers", cls=WatchCommand)
@connection_options
@output_option()
def brokers(connection: ClusterOptions, output: str) -> None:
    """List the brokers that are alive, with their leaders and replicas.

    PREFERRED counts the partitions of which the broker is the first replica, IN-SYNC its replicas that are in sync.
    """
    with opened(connection) as admin:
        state = admin.state()
    leaders = Counter(each.leader for each in state.partitions)
    preferred = Counter(each.preferred for each in state.partitions)
    replicas = Counter(number for each in state.partitions for number in each.replicas)
    in_sync = Counter(number for each in state.partitions for number in each.isr)
    rows = [
        {
            "broker_id": number,
            "host": broker.node.host,
            "port": broker.node.port,
            "rack": broker.rack,
            "controller": number == state.controller_id,
            "leaders": leaders[number],
            "preferred_leaders": preferred[number],
            "replicas": replicas[number],
            "in_sync_replicas": in_sync[number],
        }
        for number, broker in state.brokers.items()
    ]
    print_rows(rows, _BROKER_COLUMNS, output, "broker_id")
    missing = sorted(number for number in replicas if number not in state.brokers)
    if missing and output == TABLE:
        click.echo(f"brokers with replicas that do not run: {', '.join(map(str, missing))}", err=True)


@click.command("elect")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, type=TOPIC_NAME)
@click.option(
    "--partition", "-p", "numbers", metavar="N", type=click.IntRange(min=0), multiple=True,
    help="Only this partition of the topics. Repeatable.",
)  # fmt: skip
@click.option(
    "--unclean", is_flag=True,
    help="Elect a replica that is not in sync where there is no leader. Committed records may be lost.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Show the elections; change nothing.")
@connection_options
@output_option(TABLE, JSON, YAML)
def elect(
    *,
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
    unclean: bool,
    dry_run: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Let the preferred replicas lead: the first ones of the partitions, if they are in sync.

    Applies to all topics, or to the given ones. An unclean election needs the names of topics.
    """
    from ottla.admin.cluster import Election
    from ottla.admin.moves import needs_election
    from ottla.admin.status import partition_row

    if unclean and not topics:
        raise click.UsageError("--unclean needs the names of topics, because committed records may be lost")
    with opened(connection) as admin:
        wanted = [
            each
            for each in select(admin.state(), topics)
            if (not numbers or each.name.partition in numbers) and needs_election(each, unclean=unclean)
        ]
        rows = [
            {**partition_row(each), "new_leader": None if unclean else each.preferred} for each in wanted
        ]  # fmt: skip
        failures: dict[TopicPartition, Failure] = {}
        if not dry_run:
            kind = Election.UNCLEAN if unclean else Election.PREFERRED
            failures = admin.elect(kind, [each.name for each in wanted])
            elected = {each.name: each.preferred for each in wanted if each.name not in failures}
            leaders = _leaders(admin.wait_for(lambda state: _has_elected(state, elected, unclean=unclean)))
            for row, each in zip(rows, wanted, strict=True):
                row["new_leader"] = leaders.get(each.name)
    print_rows(rows, _ELECTION_COLUMNS, output, empty="no election is needed")
    exit_if_failed(failures.values())


def _leaders(state: ClusterState) -> dict[TopicPartition, int | None]:
    return {each.name: each.leader for each in state.partitions}


def _has_elected(state: ClusterState, preferred: Mapping[TopicPartition, int], *, unclean: bool) -> bool:
    """Return whether these partitions have their preferred leaders, or any leaders after an unclean election."""
    leaders = _leaders(state)
    return all(
        leaders.get(name, leader) == leader or (unclean and leaders[name] is not None)
        for name, leader in preferred.items()
    )


def select(state: ClusterState, topics: Sequence[str]) -> list[PartitionState]:
    """Return the partitions of these topics, or all without names. Raise NotFound if a topic does not exist."""
    for name in topics:
        if name not in state.topics:
            raise NotFound(f"topic {name} does not exist; see 'ottla topic list'")
    return [each for each in state.partitions if not topics or each.name.topic in topics]
