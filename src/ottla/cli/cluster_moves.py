"""`ottla cluster reassign`, `balance`, `add` and `decommission`: move replicas between brokers.

Each command makes a plan, shows it, and executes it in batches: the next batch starts when all new replicas of the
batch before are in sync. No state is kept on this machine: after Ctrl-C the cluster completes the batch that has
started, and the command can be run again.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli.cluster_status import opened
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.failure import exit_if_failed
from ottla.cli.options import add_options, gathered_options
from ottla.cli.output import JSON, TABLE, YAML, Column, format_table, output_option, print_data, print_rows
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.admin.cluster import ClusterAdmin, ClusterState
    from ottla.admin.moves import Move

_POLL_S = 0.3
_BATCH_DEFAULT = 50

_PLAN_COLUMNS = (
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("REPLICAS", "replicas"),
    Column("NEW-REPLICAS", "new_replicas"),
    Column("COPIED-TO", "adding"),
)
_ONGOING_COLUMNS = (
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("REPLICAS", "replicas"),
    Column("ISR", "isr"),
    Column("ADDING", "adding"),
    Column("REMOVING", "removing"),
)
_ARGUMENT = re.compile(r"(?P<topic>[^:=]+):(?P<partition>[0-9]{1,9})(?:=(?P<replicas>[0-9]+(?:,[0-9]+)*))?")

#: the replicas of a partition; None where the argument names none
Targets = dict[TopicPartition, tuple[int, ...] | None]


class Execution(NamedTuple):
    """The options that say how the moves of a plan are made."""

    dry_run: bool
    no_wait: bool
    #: partitions that move at the same time
    batch: int
    #: bytes per second that each broker sends and fetches for the moves
    throttle: int | None


#: --dry-run, --no-wait, --batch and --throttle, as `execution`, and the options of every command
_execution_options = add_options(
    gathered_options(
        "execution",
        Execution,
        click.option("--dry-run", is_flag=True, help="Show the plan; change nothing."),
        click.option("--no-wait", is_flag=True, help="Start all moves and end; do not wait for them."),
        click.option(
            "--batch", metavar="N", type=click.IntRange(min=1), default=_BATCH_DEFAULT, show_default=True,
            help="Partitions that move at the same time.",
        ),
        click.option(
            "--throttle", metavar="BYTES", type=click.IntRange(min=1),
            help="Bytes per second that each broker sends and fetches for the moves. The limit is removed at the "
            "end, or with 'ottla cluster reassign --unthrottle' after --no-wait or an interruption.",
        ),
    ),
    connection_options,
    output_option(TABLE, JSON, YAML),
)  # fmt: skip


def parse_targets(ctx: click.Context, parameter: click.Parameter, texts: tuple[str, ...]) -> Targets:
    """Return the partitions and replicas of arguments TOPIC:PARTITION=BROKER,BROKER. A click callback."""
    targets: Targets = {}
    for text in texts:
        match = _ARGUMENT.fullmatch(text)
        if match is None:
            raise click.BadParameter(f"{text!r} is not of the form TOPIC:PARTITION=BROKER,BROKER", ctx, parameter)
        replicas = match["replicas"]
        name = TopicPartition(match["topic"], int(match["partition"]))
        targets[name] = tuple(map(int, replicas.split(","))) if replicas else None
    return targets


@click.command("reassign")
@click.argument("targets", metavar="[TOPIC:PARTITION=BROKER,...]...", nargs=-1, callback=parse_targets)
@click.option(
    "--file", metavar="FILE", type=click.File(), help="Read the moves from a file of kafka-reassign-partitions."
)
@click.option("--cancel", is_flag=True, help="Cancel the moves of TOPIC:PARTITION, or all that are in progress.")
@click.option(
    "--unthrottle", is_flag=True, help="Remove the throttles of all moves, as kafka-reassign-partitions does."
)
@_execution_options
def reassign(
    *,
    targets: Targets,
    file: Any,
    cancel: bool,
    unthrottle: bool,
    execution: Execution,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Move the replicas of partitions to these brokers; the first one is the preferred leader.

    Without arguments, list the moves that are in progress.
    """
    from ottla.admin.moves import parse_plan

    if file is not None:
        try:
            targets |= parse_plan(file.read())
        except ValueError as error:
            raise Failure(f"{file.name}: {error}") from None
    with opened(connection) as admin:
        state = admin.state()
        if unthrottle and not execution.dry_run:
            _unthrottle(admin)
        if cancel:
            _cancel(admin, state, targets, dry_run=execution.dry_run, output=output)
        elif targets:
            moves = _explicit_moves(state, targets)
            _execute(admin, moves, execution, output)
        else:
            _print_ongoing(state, output)


@click.command("balance")
@_execution_options
def balance(execution: Execution, connection: ClusterOptions, output: str) -> None:
    """Spread replicas and leaders evenly over the brokers, with as few moves as possible.

    Afterwards brokers differ by one replica and one preferred leader at most, and racks hold as many different
    replicas of a partition as before.
    """
    from ottla.admin.moves import plan_balance

    with opened(connection) as admin:
        moves = plan_balance(admin.state())
        _execute(admin, moves, execution, output)


@click.command("add")
@click.argument("ids", metavar="BROKER...", nargs=-1, required=True, type=click.IntRange(min=0))
@_execution_options
def add(ids: tuple[int, ...], execution: Execution, connection: ClusterOptions, output: str) -> None:
    """Move a fair share of the replicas to new brokers. No replica moves between the other brokers.

    Start the brokers first: `ottla broker --id N -X zookeeper.connect=...`.
    """
    from ottla.admin.moves import plan_balance

    with opened(connection) as admin:
        state = admin.state()
        for number in ids:
            if number not in state.brokers:
                raise NotFound(
                    f"broker {number} is not in the cluster; start it with 'ottla broker --id {number} "
                    "-X zookeeper.connect=HOST:PORT/PATH'"
                )
        moves = [move for move in plan_balance(state) if set(move.added) & set(ids)]
        _execute(admin, moves, execution, output)


@click.command("decommission")
@click.argument("ids", metavar="BROKER...", nargs=-1, required=True, type=click.IntRange(min=0))
@_execution_options
def decommission(ids: tuple[int, ...], execution: Execution, connection: ClusterOptions, output: str) -> None:
    """Move all replicas of brokers to the others. Then the brokers can be stopped for good.

    Also replaces the replicas of brokers that do not run. No other replica moves.
    """
    from ottla.admin.moves import check_leaving, plan_decommission

    with opened(connection) as admin:
        state = admin.state()
        check_leaving(state, ids)
        moves = plan_decommission(state, ids)
        _execute(admin, moves, execution, output)
        if not execution.dry_run and not execution.no_wait:
            names = ", ".join(map(str, ids))
            click.echo(f"no replicas are left on broker {names}; it can be stopped", err=True)


def _explicit_moves(state: ClusterState, targets: Targets) -> list[Move]:
    """Return the moves to these replicas. Raise a Failure if one names no replicas or an unknown partition."""
    from ottla.admin.moves import plan_moves

    known: dict[TopicPartition, tuple[int, ...]] = {}
    for name, target in targets.items():
        if target is None:
            raise click.UsageError(f"{name.topic}:{name.partition} names no brokers; add =BROKER,BROKER, or --cancel")
        known[name] = target
    return plan_moves(state, known)


def _print_ongoing(state: ClusterState, output: str) -> None:
    rows = [
        {
            "topic_name": each.name.topic,
            "partition_id": each.name.partition,
            "replicas": list(each.replicas),
            "isr": list(each.isr),
            "adding": list(each.adding),
            "removing": list(each.removing),
        }
        for each in state.partitions
        if each.is_reassigned
    ]
    print_rows(rows, _ONGOING_COLUMNS, output, empty="no moves are in progress")


def _cancel(
    admin: ClusterAdmin, state: ClusterState, names: Iterable[TopicPartition], *, dry_run: bool, output: str
) -> None:
    """Cancel the moves of these partitions, or all."""
    ongoing = [each.name for each in state.partitions if each.is_reassigned]
    wanted = list(names) or ongoing
    failures = admin.reassign(dict.fromkeys(wanted)) if wanted and not dry_run else {}
    cancelled = [name for name in wanted if name not in failures]
    rows = [{"topic_name": name.topic, "partition_id": name.partition, "status": "cancelled"} for name in cancelled]
    if output != TABLE:
        print_data(rows, output)
    else:
        click.echo(f"{len(cancelled)} moves {'would be' if dry_run else 'were'} cancelled")
    exit_if_failed(failures.values())


# Execution


def _execute(admin: ClusterAdmin, moves: Sequence[Move], execution: Execution, output: str) -> None:
    """Show the plan and execute it. Raise a Failure if a move is refused or does not end as planned."""
    from ottla.admin.moves import finish_moves, move_row

    dry_run, no_wait, batch, throttle = execution
    if output == TABLE:
        _print_plan(moves)
    failures: dict[TopicPartition, Failure] = {}
    if moves and not dry_run:
        size = len(moves) if no_wait else batch
        if throttle is not None:
            _throttle(admin, moves, throttle)
        for start in range(0, len(moves), size):
            part = moves[start : start + size]
            failures |= admin.reassign({move.partition: move.new for move in part})
            if not no_wait:
                _wait(admin, [move.partition for move in part if move.partition not in failures], start, len(moves))
        if not no_wait:
            if throttle is not None:
                _unthrottle(admin)
            failures |= finish_moves(admin, [move for move in moves if move.partition not in failures])
    if output != TABLE:
        status = "planned" if dry_run else "started" if no_wait else "complete"
        print_data([move_row(m) | {"status": "failed" if m.partition in failures else status} for m in moves], output)
    exit_if_failed(failures.values())


def _throttle(admin: ClusterAdmin, moves: Sequence[Move], rate: int) -> None:
    from ottla.admin.throttles import throttle

    throttle(admin.client, moves, rate)
    click.echo(f"each broker copies at most {rate} bytes per second", err=True)


def _unthrottle(admin: ClusterAdmin) -> None:
    from ottla.admin.throttles import unthrottle

    unthrottle(admin.client)
    click.echo("throttles are removed", err=True)


def _print_plan(moves: Sequence[Move]) -> None:
    from ottla.admin.moves import move_row

    if not moves:
        click.echo("nothing to move")
        return
    click.echo(format_table(_PLAN_COLUMNS, [move_row(move) for move in moves]))
    click.echo(f"{len(moves)} partitions change, {sum(len(move.added) for move in moves)} replicas are copied")


def _wait(admin: ClusterAdmin, names: Sequence[TopicPartition], before: int, total: int) -> None:
    """Return when none of these partitions is being moved. Print the progress to standard error."""
    shown = -1
    try:
        while True:
            left = len(admin.reassigned().intersection(names))
            done = before + len(names) - left
            if done != shown:
                shown = done
                click.echo(f"{done} of {total} partitions moved", err=True)
            if not left:
                return
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        click.echo(
            "interrupted; the cluster continues the moves that have started: 'ottla cluster reassign' lists them, and "
            "stops them with --cancel",
            file=sys.stderr,
        )
        raise
