"""`ottla group delete --offsets`: delete the committed offsets of a group in some topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.admin.failure import Failure, NotFound
from ottla.cli.failure import confirm, exit_if_failed
from ottla.cli.output import NAME, TABLE, format_first, print_rows
from ottla.model.printable import shown
from ottla.model.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient


class Commit(NamedTuple):
    """The committed offset of a group in one partition."""

    group: str
    name: TopicPartition
    offset: int

    def __str__(self) -> str:
        return shown(f"offset {self.offset} of group {self.group} in {self.name.topic}-{self.name.partition}")


def delete_offsets(
    cluster: ClusterClient,
    groups: Sequence[str],
    wanted: Mapping[str, set[int] | None],
    *,
    yes: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Delete the commits of these groups in the partitions of each topic with these numbers, or in all."""
    commits = [commit for group in groups for commit in _find_commits(cluster, group, wanted)]
    if dry_run:
        _report(commits, {}, "would delete", output)
        return
    if commits and not yes:
        confirm("deleting offsets", f"Delete {format_first(commits)}?")
    failures = {}
    for group in groups:
        names = [commit.name for commit in commits if commit.group == group]
        for name, failure in cluster.delete_offsets(group, names).items():
            failures[group, name] = failure
    _report(commits, failures, "deleted", output)


def _find_commits(cluster: ClusterClient, group: str, wanted: Mapping[str, set[int] | None]) -> list[Commit]:
    """Return the commits to delete. Raise NotFound if one that the user names does not exist."""
    committed = cluster.committed_offsets(group)
    found = []
    for topic, numbers in wanted.items():
        there = [name for name in committed if name.topic == topic and (numbers is None or name.partition in numbers)]
        missing = sorted((numbers or set()) - {name.partition for name in there})
        if missing or not there:
            where = f"{topic}-{missing[0]}" if missing else topic
            raise NotFound(
                f"group {shown(group)} has no committed offset in {shown(where)}; nothing was deleted, see "
                f"'ottla group describe {shown(group)} --offsets'"
            )
        found += [Commit(group, name, committed[name]) for name in there]
    return found


def _report(
    commits: Iterable[Commit], failures: Mapping[tuple[str, TopicPartition], Failure], done: str, output: str
) -> None:
    """Print what was done. If some failed, print why, and end the command with the exit code of the first."""
    succeeded = [commit for commit in commits if (commit.group, commit.name) not in failures]
    if output == TABLE:
        for commit in succeeded:
            click.echo(f"{done} {commit}")
    elif output == NAME:
        for commit in succeeded:
            click.echo(shown(f"{commit.name.topic}-{commit.name.partition}"))
    else:
        rows = [
            {
                "consumer_group_id": commit.group,
                "topic_name": commit.name.topic,
                "partition_id": commit.name.partition,
                "current_offset": commit.offset,
                "result": done,
            }
            for commit in succeeded
        ]
        print_rows(rows, (), output)
    exit_if_failed(failures.values())
