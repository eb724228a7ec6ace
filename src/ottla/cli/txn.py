"""`ottla txn`: list and describe transactions, find hanging ones, and abort them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from ottla.admin.failure import NotFound, NotHealthy
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.duration import current_time_ms, format_duration_ms, format_local_time, parse_duration_ms
from ottla.cli.failure import confirm, exit_if_failed, warn_incomplete
from ottla.cli.names import TOPIC_NAME, TRANSACTIONAL_ID
from ottla.cli.options import Parsed, filter_option, yes_option
from ottla.cli.output import (
    NAME,
    TABLE,
    Column,
    format_fields,
    format_first,
    format_table,
    output_option,
    print_descriptions,
    print_rows,
)
from ottla.cli.watch import WatchCommand
from ottla.model.printable import shown
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.admin.transactions import OpenTransaction, Transaction, Transactions

_STATES = (
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Empty",
    "PrepareEpochFence",
    "Dead",
)
#: states with an open transaction; in the others its age has no meaning
_OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")

_INT64_MAX, _INT32_MAX, _INT16_MAX = (1 << 63) - 1, (1 << 31) - 1, (1 << 15) - 1

_LIST_COLUMNS = (
    Column("TRANSACTIONAL-ID", "transactional_id"),
    Column("PRODUCER-ID", "producer_id"),
    Column("STATE", "state"),
    Column("COORDINATOR", "coordinator_id"),
)
_PARTITION_COLUMNS = (Column("TOPIC", "topic_name"), Column("PARTITIONS", "partitions"))
_OPEN_COLUMNS = (
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("PRODUCER-ID", "producer_id"),
    Column("PRODUCER-EPOCH", "producer_epoch"),
    Column("COORDINATOR-EPOCH", "coordinator_epoch"),
    Column("START-OFFSET", "start_offset"),
    Column("LAST-RECORD", "last_record"),
    Column("AGE", "age"),
)


_OPEN_FIELDS = (
    "topic_name", "partition_id", "producer_id", "producer_epoch", "coordinator_epoch", "start_offset",
    "last_timestamp", "age_ms",
)  # fmt: skip
_DURATION = Parsed("duration", parse_duration_ms)


@click.group("txn")
def command() -> None:
    """Inspect transactions and abort hanging ones."""


@command.command("list", cls=WatchCommand)
@filter_option("--state", "states", _STATES, "List only ids in this state.")
@click.option(
    "--producer-id",
    "producer_ids",
    metavar="ID",
    type=click.IntRange(0, _INT64_MAX),
    multiple=True,
    help="List only the id of this producer. Repeatable.",
)
@click.option(
    "--longer-than",
    "longer_than_ms",
    metavar="DURATION",
    type=_DURATION,
    help="List only ids whose transaction has been open for longer, such as 10m or 1h30m.",
)
@click.option("--pattern", metavar="REGEX", help="List only ids that match this RE2 regular expression completely.")
@connection_options
@output_option()
def list_transactions(
    *,
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int | None,
    pattern: str | None,
    connection: ClusterOptions,
    output: str,
) -> None:
    """List transactional ids with their states. Filters are combined with and.

    If a partition of the topic __transaction_state has no leader, its ids are missing: the others are printed, with a
    warning on standard error and exit code 4.
    """
    if longer_than_ms is not None and not states:
        # Brokers report 1970 as the start for ids without an open transaction.
        states = _OPEN_STATES
    with _transactions(connection) as transactions:
        failures = transactions.missing_ids()
        try:
            found = transactions.list_ids(
                states=states, producer_ids=producer_ids, longer_than_ms=longer_than_ms, pattern=pattern
            )
        except ValueError as error:
            raise click.BadParameter(shown(str(error)), param_hint="'--pattern'") from None
        # A leader may be lost or elected while the list is made.
        failures = transactions.missing_ids() or failures
    rows = [
        {
            "transactional_id": listing.transactional_id,
            "producer_id": listing.producer_id,
            "state": listing.state,
            "coordinator_id": listing.coordinator.broker_id,
        }
        for listing in found
    ]
    print_rows(rows, _LIST_COLUMNS, output, "transactional_id")
    warn_incomplete(failures)


@command.command("describe", cls=WatchCommand)
@click.argument("ids", metavar="ID...", nargs=-1, required=True, type=TRANSACTIONAL_ID)
@connection_options
@output_option()
def describe(ids: tuple[str, ...], connection: ClusterOptions, output: str) -> None:
    """Describe transactional ids: producer, state, age, and the partitions without a marker."""
    with _transactions(connection) as transactions:
        found = transactions.describe(ids)
    now_ms = current_time_ms()
    rows = [_description(one, now_ms) for one in found.values() if one is not None]
    print_descriptions(rows, _format_description, output, "transactional_id")
    missing = [
        NotFound(f"transactional id {shown(one)} does not exist; see 'ottla txn list'")
        for one, transaction in found.items()
        if transaction is None
    ]
    exit_if_failed(missing)


@command.command("hanging", cls=WatchCommand)
@click.option(
    "--older-than",
    "older_than_ms",
    metavar="DURATION",
    type=_DURATION,
    default="15m",
    show_default=True,
    help="Only transactions whose last record is older. Use at least transaction.max.timeout.ms of the brokers.",
)
@click.option(
    "--topic",
    "topics",
    metavar="TOPIC",
    multiple=True,
    type=TOPIC_NAME,
    help="Search only this topic. Repeatable.  [default: all topics]",
)
@connection_options
@output_option()
def hanging(older_than_ms: int, topics: tuple[str, ...], connection: ClusterOptions, output: str) -> None:
    """Find transactions that are open in a partition and unknown to their coordinator.

    read_committed consumers wait at such a transaction for ever. 'ottla txn abort' aborts it.
    """
    now_ms = current_time_ms()
    with _transactions(connection) as transactions:
        wanted = list(dict.fromkeys(topics)) or None
        found, leaderless = transactions.find_hanging(wanted, now_ms - older_than_ms)
    _print_open([_open_row(one, now_ms) for one in found], output)
    if leaderless:
        names = shown(format_first(leaderless, 1))
        raise NotHealthy(f"{names} could not be checked: no leader; see 'ottla topic describe'")


@command.command("abort")
@click.option("--topic", metavar="TOPIC", required=True, type=TOPIC_NAME, help="Topic of the transaction.")
@click.option(
    "--partition",
    metavar="N",
    required=True,
    type=click.IntRange(0, _INT32_MAX),
    help="Partition of the transaction.",
)
@click.option(
    "--start-offset", metavar="N", type=click.IntRange(0, _INT64_MAX), help="The first offset of the transaction."
)
@click.option(
    "--producer-id",
    metavar="ID",
    type=click.IntRange(0, _INT64_MAX),
    help="The producer of the transaction, instead of --start-offset.",
)
@click.option(
    "--producer-epoch",
    metavar="N",
    type=click.IntRange(0, _INT16_MAX),
    help="With --producer-id: the epoch to abort with.  [default: the epoch in the partition]",
)
@click.option(
    "--coordinator-epoch",
    metavar="N",
    type=click.IntRange(-1, _INT32_MAX),
    help="With --producer-id: the coordinator epoch to abort with.  [default: the epoch in the partition]",
)
@click.option("--force", is_flag=True, help="Abort a transaction that its coordinator knows.")
@yes_option
@click.option("--dry-run", is_flag=True, help="Print what would be aborted; abort nothing.")
@connection_options
@output_option()
def abort(
    *,
    topic: str,
    partition: int,
    start_offset: int | None,
    producer_id: int | None,
    producer_epoch: int | None,
    coordinator_epoch: int | None,
    force: bool,
    yes: bool,
    dry_run: bool,
    connection: ClusterOptions,
    output: str,
) -> None:
    """Abort one transaction in one partition: read_committed consumers never get its records.

    Use it for hanging transactions, which 'ottla txn hanging' finds. A transaction that its coordinator knows ends
    by itself, at the latest at its timeout; --force aborts it in this partition, and makes it inconsistent.
    """
    _check_choice(start_offset, producer_id, producer_epoch, coordinator_epoch)

    name = TopicPartition(topic, partition)
    with _transactions(connection) as transactions:
        found = transactions.find_one(name, start_offset=start_offset, producer_id=producer_id)
        if producer_epoch is not None:
            found = replace(found, producer_epoch=producer_epoch)
        if coordinator_epoch is not None:
            found = replace(found, coordinator_epoch=coordinator_epoch if coordinator_epoch >= 0 else None)
        if not force:
            transactions.check_hanging(found)
        if not dry_run:
            if not yes:
                _ask_before_abortion(found)
            transactions.write_abort_marker(found)
    _report(found, "would abort" if dry_run else "aborted", output)


@contextmanager
def _transactions(connection: ClusterOptions) -> Iterator[Transactions]:
    from ottla.admin.transactions import Transactions
    from ottla.cli.cluster import opened_client

    with opened_client(connection) as client:
        yield Transactions(client)


def _check_choice(
    start_offset: int | None, producer_id: int | None, producer_epoch: int | None, coordinator_epoch: int | None
) -> None:
    if (start_offset is None) == (producer_id is None):
        raise click.UsageError("name the transaction by either --start-offset or --producer-id")
    if producer_id is None and (producer_epoch is not None or coordinator_epoch is not None):
        raise click.UsageError("--producer-epoch and --coordinator-epoch go with --producer-id")


def _ask_before_abortion(found: OpenTransaction) -> None:
    confirm("aborting a transaction", f"Abort {_sentence(found)}? read_committed consumers will never get its records.")


def _report(found: OpenTransaction, done: str, output: str) -> None:
    if output == TABLE:
        click.echo(f"{done} {_sentence(found)}")
    else:
        _print_open([{**_open_row(found, current_time_ms()), "result": done}], output)


def _sentence(found: OpenTransaction) -> str:
    return (
        f"the transaction of producer {found.producer_id}, epoch {found.producer_epoch}, in {shown(str(found.name))} "
        f"from offset {found.start_offset} (coordinator epoch {found.coordinator_epoch or 0})"
    )


def _description(one: Transaction, now_ms: int) -> dict[str, Any]:
    started = one.started_ms if one.state in _OPEN_STATES else None
    deadline = started + one.timeout_ms if started is not None and one.state == "Ongoing" else None
    node = one.coordinator
    return {
        "transactional_id": one.transactional_id,
        "coordinator": {"broker_id": node.broker_id, "host": node.host, "port": node.port},
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "state": one.state,
        "timeout_ms": one.timeout_ms,
        "started_ms": started,
        "age_ms": None if started is None else max(now_ms - started, 0),
        # Negative if it is overdue, because the coordinator checks timeouts periodically.
        "time_left_ms": None if deadline is None else deadline - now_ms,
        "partitions": [{"topic_name": name.topic, "partition_id": name.partition} for name in one.partitions],
    }


def _format_description(row: dict[str, Any]) -> str:
    node = row["coordinator"]
    pairs = {
        "TRANSACTIONAL ID": shown(row["transactional_id"]),
        "COORDINATOR": f"{node['broker_id']} ({shown(node['host'])}:{node['port']})",
        "PRODUCER ID": row["producer_id"],
        "PRODUCER EPOCH": row["producer_epoch"],
        "STATE": shown(row["state"]),
        "TIMEOUT": format_duration_ms(row["timeout_ms"]),
    }
    if row["started_ms"] is not None:
        pairs["STARTED"] = f"{format_local_time(row['started_ms'])} ({format_duration_ms(row['age_ms'])} ago)"
    left_ms = row["time_left_ms"]
    if left_ms is not None:
        late = f"none, overdue by {format_duration_ms(-left_ms)}"
        pairs["TIME LEFT"] = format_duration_ms(left_ms) if left_ms >= 0 else late
    numbers: dict[str, list[int]] = {}
    for one in row["partitions"]:
        numbers.setdefault(one["topic_name"], []).append(one["partition_id"])
    topics = [{"topic_name": topic, "partitions": indexes} for topic, indexes in numbers.items()]
    return f"{format_fields(pairs)}\n\n{format_table(_PARTITION_COLUMNS, topics) if topics else 'no partitions'}"


def _open_row(one: OpenTransaction, now_ms: int) -> dict[str, Any]:
    return {
        "topic_name": one.name.topic,
        "partition_id": one.name.partition,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "coordinator_epoch": one.coordinator_epoch,
        "start_offset": one.start_offset,
        "last_timestamp": one.last_timestamp,
        "age_ms": max(now_ms - one.last_timestamp, 0),
    }


def _print_open(rows: Sequence[dict[str, Any]], output: str) -> None:
    if output == TABLE:
        rows = [
            {**row, "last_record": format_local_time(row["last_timestamp"]), "age": format_duration_ms(row["age_ms"])}
            for row in rows
        ]
    elif output == NAME:
        rows = [{"name": f"{row['topic_name']}-{row['partition_id']}"} for row in rows]
    print_rows(rows, _OPEN_COLUMNS, output, "name", fields=() if output == TABLE else _OPEN_FIELDS)
