"""`ottla offsets`: the offsets of the partitions of a topic."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Literal

import click

from ottla.cli.connection import ClusterOptions, connection_options
from ottla.cli.names import TOPIC_NAME
from ottla.cli.output import JSON, TABLE, YAML, Column, output_option, print_rows
from ottla.cli.position import parse_time_ms
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient
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


class MomentType(click.ParamType):  # type: ignore[type-arg]
    """A word, or a point in time with or without an @."""

    name = "moment"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Moment:
        text = str(value)
        if text in _WORDS:
            return _WORDS[text]
        try:
            return parse_time_ms(re.sub("^@", "", text), time.time_ns() // 1_000_000)
        except ValueError as error:
            self.fail(f"{error}, or earliest, latest, max-timestamp", param, ctx)


@click.command("offsets")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC_NAME)
@click.option(
    "--time",
    "moment",
    metavar="WHEN",
    type=MomentType(),
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
    from ottla.cli.cluster import connect

    cluster = connect(connection)
    found = cluster.find_offsets(partitions_of(cluster, topics), moment)
    rows = [
        {
            "topic_name": name.topic,
            "partition_id": name.partition,
            "offset": at.offset,
            "timestamp": at.timestamp,
            "leader_epoch": at.leader_epoch,
        }
        for name, at in found.items()
    ]
    print_rows(rows, _COLUMNS, output)


def partitions_of(cluster: ClusterClient, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Return all partitions of these topics. Raise NotFound if a topic does not exist."""
    known = cluster.topics()
    names = []
    for topic in dict.fromkeys(topics):
        state = known.get(topic) or cluster.topic(topic)
        names += [TopicPartition(topic, partition.partition) for partition in state.partitions]
    return names
