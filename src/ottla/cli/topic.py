"""`ottla topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import NotFound
from ottla.admin.topic_state import Outcome, TopicState
from ottla.cli.connection import ClusterOptions, connection_options, parse_pairs
from ottla.cli.failure import confirm
from ottla.cli.names import TOPIC_NAME
from ottla.cli.options import deletion_dry_run_option, validate_only_option, yes_option
from ottla.cli.outcomes import report_outcomes
from ottla.cli.output import (
    Column,
    format_fields,
    format_table,
    output_option,
    print_descriptions,
    print_rows,
)
from ottla.cli.watch import WatchCommand

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient

#: CreateTopics: the broker's own num.partitions and default.replication.factor
_BROKER_DEFAULT = -1
#: the maximum of librdkafka
_PARTITIONS_MAX = 100_000

_LIST_COLUMNS = (
    Column("NAME", "topic_name"),
    Column("PARTITIONS", "partitions_count"),
    Column("REPLICAS", "replication_factor"),
)
_SUMMARY_FIELDS = ("topic_name", "is_internal", "partitions_count", "replication_factor")
_PARTITION_COLUMNS = (
    Column("PARTITION", "partition_id"),
    Column("LEADER", "leader"),
    Column("EPOCH", "leader_epoch"),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr"),
    Column("START", "log_start_offset"),
    Column("END", "log_end_offset"),
)
_CONFIG_COLUMNS = (Column("KEY", "name"), Column("VALUE", "value"), Column("SOURCE", "source"))

_config_option = click.option(
    "--config",
    "-c",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parse_pairs,
    help="Set a topic setting. Repeatable.",
)


@click.group("topic")
def command() -> None:
    """Create, list, describe, alter and delete topics."""


@command.command("create")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--partitions",
    "-p",
    metavar="N",
    type=click.IntRange(min=1, max=_PARTITIONS_MAX),
    default=None,
    help="Number of partitions.  [default: the broker's num.partitions]",
)
@click.option(
    "--replication-factor",
    "-r",
    metavar="N",
    type=click.IntRange(min=1),
    default=None,
    help="Number of replicas.  [default: the broker's default.replication.factor]",
)
@_config_option
@click.option("--if-not-exists", is_flag=True, help="Succeed if a topic exists already.")
@validate_only_option
@connection_options
@output_option()
def create(
    *,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: dict[str, str],
    if_not_exists: bool,
    dry_run: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Create topics."""
    cluster = connection.connect()
    existing = set(cluster.topics()) & set(names) if if_not_exists else set()
    wanted = [name for name in dict.fromkeys(names) if name not in existing]
    outcomes = (
        cluster.create_topics(
            wanted,
            partitions or _BROKER_DEFAULT,
            replication_factor or _BROKER_DEFAULT,
            config,
            dry_run=dry_run,
        )
        if wanted
        else []
    )
    if not dry_run:
        cluster.await_topics([outcome.name for outcome in outcomes if outcome.failure is None])
    for name in sorted(existing):
        click.echo(f"topic {name} already exists", err=True)
    _report(outcomes, "would create" if dry_run else "created", output)


@command.command("list", cls=WatchCommand)
@click.argument("patterns", metavar="[NAME]...", nargs=-1, type=TOPIC_NAME)
@click.option("--regex", "-r", is_flag=True, help="Treat the names as regular expressions.")
@click.option(
    "--exclude-internal", is_flag=True, help="Do not list internal topics, whose names start with two underscores."
)
@connection_options
@output_option()
def list_topics(
    patterns: tuple[str, ...], regex: bool, exclude_internal: bool, connection: ClusterOptions, output: str
) -> None:
    """List topics.

    Lists all topics, the given ones, or with -r those that match.
    """
    matches = _matcher(patterns, regex)
    known = connection.connect().topics()
    missing = [] if regex else [name for name in patterns if name not in known]
    if missing:
        raise NotFound(f"topic {', '.join(missing)} does not exist; 'ottla topic list' shows all")
    topics = [topic for topic in known.values() if matches(topic.name)]
    rows = [_summary(topic) for topic in topics if not (exclude_internal and topic.internal)]
    print_rows(rows, _LIST_COLUMNS, output, "topic_name", fields=_SUMMARY_FIELDS)


@command.command("describe", cls=WatchCommand)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=TOPIC_NAME)
@click.option("--summary", "-s", "with_summary", is_flag=True, help="Show id, counts and replication factor.")
@click.option("--configs", "-c", "with_configs", is_flag=True, help="Show settings and their sources.")
@click.option("--partitions", "-p", "with_partitions", is_flag=True, help="Show leaders, replicas and offsets.")
@connection_options
@output_option()
def describe(
    *,
    names: tuple[str, ...],
    with_summary: bool,
    with_configs: bool,
    with_partitions: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Describe topics. Without -s, -c or -p: summary and partitions.

    With -o csv: a line for each partition, with only -c for each setting, with only -s for each topic.
    """
    if not (with_summary or with_configs or with_partitions):
        with_summary = with_partitions = True
    cluster = connection.connect()
    described = []
    for topic in cluster.describe_topics(list(dict.fromkeys(names))):
        row = {**_summary(topic), "topic_id": topic.topic_id}
        if with_partitions:
            row["partitions"] = _partition_rows(cluster, topic)
        if with_configs:
            row["configs"] = [
                {"name": entry.name, "value": entry.value, "source": entry.source, "is_default": entry.is_default}
                for entry in cluster.describe_config("topic", topic.name)
            ]
        described.append(row)
    detail = "partitions" if with_partitions else "configs" if with_configs else ""
    print_descriptions(
        described, lambda row: _format_description(row, with_summary), output, "topic_name", detail=detail
    )


@command.command("alter")
@click.argument("name", metavar="NAME", type=TOPIC_NAME)
@click.option(
    "--partitions",
    "-p",
    metavar="N",
    type=click.IntRange(min=1, max=_PARTITIONS_MAX),
    help="Raise the partition count to N.",
)
@_config_option
@click.option("--delete-config", metavar="KEY", multiple=True, help="Reset a setting to its default. Repeatable.")
@validate_only_option
@connection_options
@output_option()
def alter(
    *,
    name: str,
    partitions: int | None,
    config: dict[str, str],
    delete_config: tuple[str, ...],
    dry_run: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Add partitions to a topic, or change its settings."""
    if partitions is None and not config and not delete_config:
        raise click.UsageError("nothing to alter: give --partitions, --config or --delete-config")
    cluster = connection.connect()
    cluster.topic(name)
    if config or delete_config:
        cluster.alter_config("topic", name, config, delete_config, dry_run=dry_run)
    if partitions is not None:
        cluster.create_partitions(name, partitions, dry_run=dry_run)
    _report([Outcome(name=name, failure=None)], "would alter" if dry_run else "altered", output)


@command.command("delete")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=TOPIC_NAME)
@click.option("--if-exists", is_flag=True, help="Succeed if a topic does not exist.")
@yes_option
@deletion_dry_run_option
@connection_options
@output_option()
def delete(
    *, names: tuple[str, ...], if_exists: bool, yes: bool, dry_run: bool, connection: ClusterOptions, output: str
) -> None:
    """Delete topics and all their records."""
    cluster = connection.connect()
    known = cluster.topics()
    missing = [name for name in dict.fromkeys(names) if name not in known]
    found = [name for name in dict.fromkeys(names) if name in known]
    if missing and not if_exists:
        raise NotFound(f"topic {', '.join(missing)} does not exist; nothing was deleted, see 'ottla topic list'")
    if dry_run:
        _report([Outcome(name=name, failure=None) for name in found], "would delete", output)
        return
    if found and not yes:
        confirm("deleting topics", f"Delete {', '.join(found)} and all records in it?")
    _report(cluster.delete_topics(found) if found else [], "deleted", output)


def _report(outcomes: Sequence[Outcome], done: str, output: str) -> None:
    report_outcomes(outcomes, done, output, noun="topic", name_field="topic_name")


def _matcher(patterns: tuple[str, ...], regex: bool) -> Any:
    if not patterns:
        if regex:
            raise click.UsageError("-r needs at least one regular expression")
        return lambda name: True
    if not regex:
        return set(patterns).__contains__
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except re.error as error:
        raise click.UsageError(f"{error.pattern!r} is not a valid regular expression: {error}") from None
    return lambda name: any(pattern.search(name) for pattern in compiled)


def _summary(topic: TopicState) -> dict[str, Any]:
    return {
        "topic_name": topic.name,
        "is_internal": topic.internal,
        "partitions_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
    }


def _partition_rows(cluster: ClusterClient, topic: TopicState) -> list[dict[str, Any]]:
    # Only a leader knows the offsets; the row of a partition without a leader has its replicas.
    led = [each.name for each in topic.partitions if each.leader is not None]
    starts, ends = cluster.find_offsets(led, "earliest"), cluster.find_offsets(led, "latest")
    rows = []
    for partition in topic.partitions:
        start, end = starts.get(partition.name), ends.get(partition.name)
        rows.append(
            {
                "partition_id": partition.name.partition,
                "leader": partition.leader,
                "leader_epoch": end.leader_epoch if end else None,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "log_start_offset": start.offset if start else None,
                "log_end_offset": end.offset if end else None,
            }
        )
    return rows


def _format_description(row: dict[str, Any], with_summary: bool) -> str:
    blocks = []
    if with_summary:
        pairs = {
            "NAME": row["topic_name"],
            "ID": row["topic_id"],
            "INTERNAL": "yes" if row["is_internal"] else "no",
            "PARTITIONS": row["partitions_count"],
            "REPLICAS": row["replication_factor"],
        }
        blocks.append(format_fields(pairs))
    else:
        blocks.append(f"NAME  {row['topic_name']}")
    if "configs" in row:
        blocks.append(format_table(_CONFIG_COLUMNS, row["configs"]))
    if "partitions" in row:
        blocks.append(format_table(_PARTITION_COLUMNS, row["partitions"]))
    return "\n\n".join(blocks)
