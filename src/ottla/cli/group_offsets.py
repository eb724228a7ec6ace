"""`ottla group delete --offsets`: delete the committed offsets of a group in some topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from ottla.cli.connection import ClusterOptions
from ottla.cli.failure import Failure, NotFound, confirm, exit_if_failed
from ottla.cli.output import NAME, TABLE, print_rows, shown
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
    connection: ClusterOptions,
    *,
    yes: bool,
    dry_run: bool,
    output: str,
) -> None:
    """Delete the commits of these groups in the partitions of each topic with these numbers, or in all."""
    from ottla.cli.cluster import ClusterClient

    # Opened first, so that invalid properties are reported before the user is asked.
    with ClusterClient(connection) as client:
        commits = [commit for group in groups for commit in _find_commits(cluster, group, wanted)]
        if dry_run:
            _report(commits, {}, "would delete", output)
            return
        if commits and not yes:
            _ask_before_deletion(commits)
        failures = {}
        for group in groups:
            names = [commit.name for commit in commits if commit.group == group]
            for name, failure in _delete(client, group, names).items():
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


def _delete(client: ClusterClient, group: str, names: Sequence[TopicPartition]) -> dict[TopicPartition, Failure]:
    """Delete the commits. Return the failures of the partitions that were refused."""
    from ottla.cli.error_codes import check
    from ottla.client.protocol.metadata import CoordinatorType
    from ottla.model.errors import ErrorCode
    from ottla.wire.messages.offset_delete import (
        OffsetDeleteRequest,
        OffsetDeleteRequestPartition,
        OffsetDeleteRequestTopic,
        OffsetDeleteResponse,
    )

    topics = [
        OffsetDeleteRequestTopic(
            name=topic,
            partitions=[OffsetDeleteRequestPartition(partition_index=n.partition) for n in names if n.topic == topic],
        )
        for topic in dict.fromkeys(name.topic for name in names)
    ]

    def ask() -> OffsetDeleteResponse:
        node = client.coordinators(CoordinatorType.GROUP, [group])[group]
        answer: OffsetDeleteResponse = client.ask(node, OffsetDeleteRequest(group_id=group, topics=topics))
        if answer.error_code == ErrorCode.NON_EMPTY_GROUP:
            raise Failure(f"group {shown(group)} has active members; stop its consumers, then try again")
        check(answer.error_code, f"group {shown(group)}")
        return answer

    return {
        (name := TopicPartition(topic.name, row.partition_index)): _refusal(row.error_code, group, name)
        for topic in client.until_settled(ask).topics
        for row in topic.partitions
        if row.error_code
    }


def _refusal(code: int, group: str, name: TopicPartition) -> Failure:
    from ottla.cli.error_codes import failure_of
    from ottla.model.errors import ErrorCode

    where = shown(str(name))
    if code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC:
        return Failure(
            f"{where}: consumers of group {shown(group)} are subscribed to the topic; stop them, then try again, "
            f"'ottla group describe {shown(group)} --members' shows them"
        )
    return failure_of(code, where)


def _ask_before_deletion(commits: Sequence[Commit]) -> None:
    more = f" and {len(commits) - 3} more" if len(commits) > 3 else ""
    confirm("deleting offsets", f"Delete {', '.join(map(str, commits[:3]))}{more}?")


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
