"""kafka-transactions: list, describe and abort transactions, and find those that hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ottla.admin.failure import Failure
from ottla.admin.transactions import OpenTransaction, Transactions
from ottla.cli.kafka.arguments import Argument, Given, Syntax, argument, long, table
from ottla.cli.kafka.arguments import main as run_main
from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import RequestError, ToolError, check
from ottla.cli.kafka.tool import KAFKA_VERSION, print_line
from ottla.client.cluster import Cluster
from ottla.client.protocol.metadata import CoordinatorType, Node
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition
from ottla.wire.messages.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest

_HANGING_MINUTES = 15
_TERMINATE_TIMEOUT_MS = 30_000
_MINUTE_MS = 60_000
_TOPIC = argument("--topic", metavar="TOPIC", is_required=True, help="The topic.")
_PARTITION = argument("--partition", metavar="N", parse=int, is_required=True, help="The partition.")


def _command(word: str, summary: str, *arguments: Argument) -> Syntax:
    return Syntax(name=f"kafka-transactions.sh {word}", summary=summary, arguments=arguments)


SYNTAX = Syntax(
    name="kafka-transactions.sh",
    summary="List, describe and abort transactions, and find those that hang.",
    arguments=(
        argument("-v", "--version", help="Print the version of Kafka whose tools these follow."),
        argument("--command-config", metavar="FILE", help="Properties of the client."),
        argument("--bootstrap-server", metavar="HOST:PORT,...", is_required=True, help="Brokers of the cluster."),
    ),
    commands=(
        _command(
            "list", "List transactional ids.",
            argument("--duration-filter", metavar="MS", parse=long, help="Only transactions that are open for longer."),
            argument("--transactional-id-pattern", metavar="REGEX", help="Only ids that match."),
        ),
        _command(
            "describe", "Print the state of a transactional id.",
            argument("--transactional-id", metavar="ID", is_required=True, help="The transactional id."),
        ),
        _command(
            "describe-producers", "Print the producers of a partition.",
            argument("--broker-id", metavar="ID", parse=int, help="Ask this replica.  [default: the leader]"),
            _TOPIC, _PARTITION,
        ),
        _command(
            "abort", "Abort a transaction that hangs.", _TOPIC, _PARTITION,
            argument("--start-offset", metavar="N", parse=long, help="The first offset of the transaction."),
            argument("--producer-id", metavar="ID", parse=long, help="Its producer, for brokers before 3.0."),
            argument("--producer-epoch", metavar="N", parse=int, help="The epoch of the producer."),
            argument("--coordinator-epoch", metavar="N", parse=int, help="The epoch of the coordinator."),
        ),
        _command(
            "find-hanging", "Find transactions that are open in a partition and unknown to their coordinator.",
            argument("--broker-id", metavar="ID", parse=int, help="Search the partitions of this broker."),
            argument(
                "--max-transaction-timeout", metavar="MINUTES", parse=int, default=_HANGING_MINUTES,
                help="Only transactions without a record for so long.",
            ),
            argument("--topic", metavar="TOPIC", help="Search this topic."),
            argument("--partition", metavar="N", parse=int, help="Search this partition of the topic."),
        ),
        _command(
            "forceTerminateTransaction", "Abort the open transaction of a transactional id.",
            argument("--transactionalId", metavar="ID", is_required=True, help="The transactional id."),
        ),
    ),
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Run the tool and return its exit code."""
    # The version is asked for without the flags that are required.
    if {"-v", "--version"}.intersection(words):
        print_line(KAFKA_VERSION)
        return 0
    return run_main(SYNTAX, words, _run)


def _run(given: Given) -> None:
    properties = properties_of(given["command-config"])
    run = _COMMANDS[given.command]
    with connect(given["bootstrap-server"], properties, call="listNodes") as admin:
        run(admin, given)


@contextmanager
def _failed(what: str) -> Iterator[None]:
    """Say what could not be done, and why."""
    try:
        yield
    except (ToolError, Failure) as error:
        raise ToolError(f"{what}: {error}. Enable debug logging for additional detail.") from None


def _list(admin: Admin, given: Given) -> None:
    with _failed("Failed to list transactions"):
        longer_than_ms = given["duration-filter"]
        try:
            rows = Transactions(admin).list_ids(
                longer_than_ms=longer_than_ms if longer_than_ms is not None and longer_than_ms >= 0 else None,
                pattern=given["transactional-id-pattern"],
            )
        except ValueError as error:
            raise ToolError(str(error)) from None
    fields = [(row.transactional_id, row.coordinator.broker_id, row.producer_id, row.state) for row in rows]
    print_line(table(("TransactionalId", "Coordinator", "ProducerId", "TransactionState"), fields))


def _describe(admin: Admin, given: Given) -> None:
    name = given["transactional-id"]
    with _failed(f"Failed to describe transaction state of transactional-id `{name}`"):
        found = Transactions(admin).describe([name])[name]
        if found is None:
            raise ToolError(
                f"DescribeTransactions request for transactionalId `{name}` failed because the ID could not be found"
            )
    started = found.started_ms
    titles = (
        "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
    )  # fmt: skip
    row = (
        found.coordinator.broker_id, name, found.producer_id, found.producer_epoch, found.state, found.timeout_ms,
        "None" if started is None else started, "None" if started is None else _now_ms() - started,
        ",".join(map(str, found.partitions)),
    )  # fmt: skip
    print_line(table(titles, [row]))


def _describe_producers(admin: Admin, given: Given) -> None:
    name = TopicPartition(given["topic"], given["partition"])
    broker_id = given["broker-id"]
    where = "leader" if broker_id is None else f"broker {broker_id}"
    with _failed(f"Failed to describe producers for partition {name} on {where}"):
        rows = _producers(admin, name, _node(admin, name, broker_id))
    titles = (
        "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
        "CurrentTransactionStartOffset",
    )  # fmt: skip
    fields = [
        (row.producer_id, row.producer_epoch, row.coordinator_epoch, row.last_sequence, row.last_timestamp,
         row.current_txn_start_offset if row.current_txn_start_offset >= 0 else "None")
        for row in rows
    ]  # fmt: skip
    print_line(table(titles, fields))


def _node(admin: Admin, name: TopicPartition, broker_id: int | None) -> Node:
    """Return a broker, or the leader of the partition. Raise RequestError if there is none; Java's tool would wait."""
    if broker_id is not None:
        node = {each.broker_id: each for each in admin.brokers()}.get(broker_id)
        if node is None:
            raise ToolError(f"broker {broker_id} is not in the cluster")
        return node
    leaders, leaderless = Transactions(admin).find_leaders([name.topic])
    if name in leaderless:
        raise RequestError(ErrorCode.LEADER_NOT_AVAILABLE)
    if name not in leaders:
        raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return leaders[name]


def _producers(admin: Admin, name: TopicPartition, node: Node) -> Sequence[ProducerState]:
    topic = TopicRequest(name=name.topic, partition_indexes=[name.partition])
    answer = admin.ask(node, DescribeProducersRequest(topics=[topic]))
    row = answer.topics[0].partitions[0]
    check(row.error_code, row.error_message)
    producers: Sequence[ProducerState] = row.active_producers
    return producers


def _abort(admin: Admin, given: Given) -> None:
    name = TopicPartition(given["topic"], given["partition"])
    start, producer_id = given["start-offset"], given["producer-id"]
    if start is None and producer_id is None:
        raise ToolError(
            "The transaction to abort must be identified either with --start-offset (for brokers on 3.0 or above) or "
            "with --producer-id, --producer-epoch, and --coordinator-epoch (for older brokers)"
        )
    if start is None:
        for flag in ("producer-epoch", "coordinator-epoch"):
            if given[flag] is None:
                raise ToolError(f"Missing required argument --{flag}")
        leader = _node(admin, name, None)
        found = OpenTransaction(
            name=name, leader=leader, producer_id=producer_id, producer_epoch=given["producer-epoch"],
            coordinator_epoch=max(given["coordinator-epoch"], 0), start_offset=-1, last_timestamp=-1,
        )  # fmt: skip
    else:
        with _failed(f"Failed to validate producer state for partition {name}"):
            everything = Transactions(admin).find_open_in(name)
        matching = [one for one in everything if one.start_offset == start]
        if not matching:
            raise ToolError(f"Could not find any open transactions starting at offset {start} on partition {name}")
        found = replace(matching[0], coordinator_epoch=matching[0].coordinator_epoch or 0)
    spec = (
        f"AbortTransactionSpec(topicPartition={name}, producerId={found.producer_id}, "
        f"producerEpoch={found.producer_epoch}, coordinatorEpoch={found.coordinator_epoch})"
    )
    with _failed(f"Failed to abort transaction {spec}"):
        Transactions(admin).write_abort_marker(found)


def _find_hanging(admin: Admin, given: Given) -> None:
    topic, partition, broker_id = given["topic"], given["partition"], given["broker-id"]
    if topic is None and broker_id is None:
        raise ToolError(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    if topic is None and partition is not None:
        raise ToolError("The --partition argument requires --topic to be provided")
    transactions, now_ms = Transactions(admin), _now_ms()
    leaders, _ = transactions.find_leaders(None if topic is None else [topic])
    wanted = {
        name: node
        for name, node in leaders.items()
        if partition in (None, name.partition) and broker_id in (None, node.broker_id)
    }
    rows = [
        (one.name.topic, one.name.partition, one.producer_id, one.producer_epoch,
         -1 if one.coordinator_epoch is None else one.coordinator_epoch, one.start_offset, one.last_timestamp,
         (now_ms - one.last_timestamp) // _MINUTE_MS)
        for one in transactions.find_unknown(wanted, now_ms - given["max-transaction-timeout"] * _MINUTE_MS)
    ]  # fmt: skip
    titles = (
        "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp",
        "Duration(min)",
    )  # fmt: skip
    print_line(table(titles, rows))


def _terminate(admin: Admin, given: Given) -> None:
    """Fence the producer of a transactional id: its coordinator aborts the open transaction."""
    name = given["transactionalId"]
    request = InitProducerIdRequest(transactional_id=name, transaction_timeout=_TERMINATE_TIMEOUT_MS)

    def terminate(cluster: Cluster) -> None:
        def attempt(node: Node, deadline: float) -> None:
            answer = cluster.ask(node, request, deadline=deadline)
            check(answer.error_code)

        cluster.retry_at_coordinator(CoordinatorType.TRANSACTION, name, attempt)

    with _failed(f"Failed to force terminate transactionalId `{name}`"):
        admin.call(terminate)


def _now_ms() -> int:
    return int(time.time() * 1000)


_COMMANDS: dict[str, Callable[[Admin, Given], None]] = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "abort": _abort,
    "find-hanging": _find_hanging,
    "forceTerminateTransaction": _terminate,
}
