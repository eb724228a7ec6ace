"""`ottla offsets`: the offsets of the partitions of a topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

import click

from ottla.admin.offset_plans import partitions_of
from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.duration import current_time_ms
from ottla.cli.names import TOPIC_NAME
from ottla.cli.options import Parsed
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.cli.position import parse_time_ms
from ottla.cli.watch import WatchCommand

Moment = Literal["earliest", "latest", "max-timestamp"] | int

_COLUMNS = (
    Column("TOPIC", "topic_name"),
    Column("PARTITION", "partition_id"),
    Column("OFFSET", "offset"),
    Column("TIMESTAMP", "timestamp"),
    Column("EPOCH", "leader_epoch"),
)
#: the words, and the numbers that Kafka's own tool has for them
_WORDS: dict[str, Moment] = {
    "earliest": "earliest",
    "-2": "earliest",
    "latest": "latest",
    "-1": "latest",
    "max-timestamp": "max-timestamp",
    "-3": "max-timestamp",
}


def parse_moment(text: str) -> Moment:
    """Return what a word, or a point in time with or without an @, stands for. Raise ValueError."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return parse_time_ms(text.removeprefix("@"), current_time_ms())
    except ValueError as error:
        raise ValueError(f"{error}, or earliest, latest, max-timestamp") from None


@click.command("offsets", cls=WatchCommand)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC_NAME)
@click.option(
    "--time",
    "moment",
    metavar="WHEN",
    type=Parsed("moment", parse_moment),
    default="latest",
    show_default=True,
    help="earliest, latest, max-timestamp, @MS, @ISO8601, or a duration before now such as @-90m.",
)
@connection_options
@output_option(TABLE, JSON, YAML)
def command(topics: tuple[str, ...], moment: Moment, connection: ClusterOptions, output: str) -> None:
    """Print the end or start offsets of partitions.

    With a time, prints the first offset at or after it. A dash means that there is no such record.
    """
    cluster = connection.connect()
    found = cluster.find_offsets(partitions_of(cluster, topics), moment)
    rows = [
        {
            "topic_name": name.topic,
            "partition_id": name.partition,
            **asdict(at),
        }
        for name, at in found.items()
    ]
    print_rows(rows, _COLUMNS, output)
