"""kafka-metadata-quorum: the state of the controllers.

An Ottla cluster keeps its metadata in ZooKeeper, and its controller is one of the brokers. It answers DescribeQuorum
with this controller as the only voter. Controllers cannot be added or removed.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import time
from collections.abc import Sequence
from typing import Any

from ottla.cli.kafka.arguments import Given, Syntax, argument, table
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.connection import connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, ToolError, check
from ottla.cli.kafka.tool import print_line
from ottla.wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)

_TOPIC = "__cluster_metadata"
_ZERO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_ID_BYTES = 16
_FIXED_TEXT = (
    "the controllers of this cluster cannot be changed: an Ottla cluster elects its controller among the brokers with "
    "ZooKeeper; start or stop brokers, or change the ensemble with 'ottla zookeeper'"
)
_DRY_RUN = argument("--dry-run", help="Check the change, and do not make it.")
SYNTAX = Syntax(
    name="kafka-metadata-quorum",
    summary="Print the state of the controllers.",
    arguments=(
        argument("--bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster."),
        argument("--bootstrap-controller", metavar="HOST:PORT,...", help="Controllers of a KRaft cluster."),
        argument("--command-config", metavar="FILE", help="Properties of the client."),
    ),
    one_of=(("bootstrap-server", "bootstrap-controller"),),
    commands=(
        Syntax(
            name="kafka-metadata-quorum describe",
            summary="Print the controllers.",
            arguments=(
                argument("--status", help="Print the leader and the voters."),
                argument("--replication", help="Print how far each controller has replicated."),
                argument("--human-readable", help="Print times as times ago."),
            ),
        ),
        Syntax(
            name="kafka-metadata-quorum add-controller",
            summary="Not possible here: see docs/reference/kafka-commands.md.",
            arguments=(_DRY_RUN,),
        ),
        Syntax(
            name="kafka-metadata-quorum remove-controller",
            summary="Not possible here: see docs/reference/kafka-commands.md.",
            arguments=(
                argument("--controller-id", "-i", metavar="ID", parse=int, is_required=True, help="The controller."),
                argument("--controller-directory-id", "-d", metavar="ID", is_required=True, help="Its directory."),
                _DRY_RUN,
            ),
        ),
    ),
)


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    return run_main(SYNTAX, words, _run, help_code=0)


def _run(given: Given) -> None:
    properties = properties_of(given["command-config"])
    if given.has("bootstrap-controller"):
        raise ToolError("Ottla has no separate controllers: name brokers with --bootstrap-server")
    if given.command == "add-controller":
        if given["command-config"] is None:
            raise ToolError(
                "You must supply the configuration file of the controller you are adding when using add-controller."
            )
        raise ToolError(_FIXED_TEXT)
    if given.command == "remove-controller":
        _check_directory(given["controller-directory-id"])
        raise ToolError(_FIXED_TEXT)
    is_status, is_replication = given.has("status"), given.has("replication")
    if is_status and is_replication:
        raise ToolError("Only one of --status or --replication should be specified with describe sub-command")
    if is_status and given.has("human-readable"):
        raise ToolError("The option --human-readable is only supported along with --replication")
    if not is_status and not is_replication:
        raise ToolError("One of --status or --replication must be specified with describe sub-command")
    with connect(given["bootstrap-server"], properties, call="describeMetadataQuorum") as admin:
        partitions = [DescribeQuorumRequestPartitionData(partition_index=0)]
        request = DescribeQuorumRequest(
            topics=[DescribeQuorumRequestTopicData(topic_name=_TOPIC, partitions=partitions)]
        )
        answer = admin.ask_any(request)
        check(answer.error_code, answer.error_message)
        row = answer.topics[0].partitions[0]
        check(row.error_code, row.error_message)
        if is_status:
            _print_status(admin.metadata([]).cluster_id or "", row, answer.nodes)
        else:
            _print_replication(row, is_readable=given.has("human-readable"))


def _check_directory(text: str) -> None:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except binascii.Error:
        raise ToolError(f"Failed to parse --controller-directory-id: Input string `{text}` is not base64") from None
    if len(data) != _ID_BYTES:
        raise ToolError(
            f"Failed to parse --controller-directory-id: Input string `{text}` decoded as {len(data)} bytes, which is "
            f"not equal to the expected {_ID_BYTES} bytes of a base64-encoded UUID"
        )


def _print_status(cluster_id: str, row: Any, nodes: Sequence[Any]) -> None:
    leader = next((each for each in row.current_voters if each.replica_id == row.leader_id), None)
    if leader is None:
        raise IllegalArgument(f"the leader {row.leader_id} is not a voter; ask again")
    behind = min([*row.current_voters, *row.observers], key=lambda each: each.log_end_offset)
    lag_ms = 0
    if behind.log_end_offset != leader.log_end_offset:
        known = behind.last_caught_up_timestamp
        lag_ms = leader.last_caught_up_timestamp - known if known >= 0 else -1
    endpoints = {each.node_id: [f"{one.name}://{one.host}:{one.port}" for one in each.listeners] for each in nodes}
    fields = {
        "ClusterId": cluster_id,
        "LeaderId": row.leader_id,
        "LeaderEpoch": row.leader_epoch,
        "HighWatermark": row.high_watermark,
        "MaxFollowerLag": leader.log_end_offset - behind.log_end_offset,
        "MaxFollowerLagTimeMs": lag_ms,
        "CurrentVoters": _replicas(row.current_voters, endpoints),
        "CurrentObservers": _replicas(row.observers, {}),
    }
    for name, value in fields.items():
        print_line(f"{name + ':':<24}{value}")


def _replicas(rows: Sequence[Any], endpoints: dict[int, list[str]]) -> str:
    texts = []
    for row in rows:
        directory = _id_text(row.replica_directory_id)
        fields: dict[str, Any] = {"id": row.replica_id}
        if directory != _ZERO_ID:
            fields["directoryId"] = directory
        if row.replica_id in endpoints:
            fields["endpoints"] = endpoints[row.replica_id]
        texts.append(json.dumps(fields))
    return f"[{', '.join(texts)}]"


def _print_replication(row: Any, *, is_readable: bool) -> None:
    now_ms = int(time.time() * 1000)
    ends = {each.replica_id: each.log_end_offset for each in row.current_voters}
    end = ends.get(row.leader_id, row.high_watermark)
    leaders = [each for each in row.current_voters if each.replica_id == row.leader_id]
    followers = [each for each in row.current_voters if each.replica_id != row.leader_id]

    def shown(timestamp: int) -> str:
        return f"{now_ms - timestamp} ms ago" if is_readable and timestamp != -1 else str(timestamp)

    rows = [
        (
            each.replica_id,
            _id_text(each.replica_directory_id),
            each.log_end_offset,
            end - each.log_end_offset,
            shown(each.last_fetch_timestamp),
            shown(each.last_caught_up_timestamp),
            status,
        )
        for status, replicas in (("Leader", leaders), ("Follower", followers), ("Observer", row.observers))
        for each in replicas
    ]
    titles = (
        "NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status",
    )  # fmt: skip
    print_line(table(titles, rows))


def _id_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def random_id() -> str:
    """Return a new id of 16 bytes in the form of Kafka's ids; it does not begin with a dash, as Kafka's do not."""
    while True:
        text = _id_text(os.urandom(_ID_BYTES))
        if not text.startswith("-"):
            return text
