"""`kafka-delete-records`: delete the records of partitions before an offset."""

from __future__ import annotations

from pathlib import Path

from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import RequestError, ToolError, fail
from ottla.cli.kafka.java import hash_order
from ottla.cli.kafka.json_files import offset_rows
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_line
from ottla.client.protocol.metadata import by_topic
from ottla.model.errors import ErrorCode
from ottla.model.types import TopicPartition

_FLAGS = (
    flag("bootstrap-server", help="REQUIRED. Brokers to connect to.", metavar="HOST:PORT,..."),
    flag(
        "offset-json-file",
        help='REQUIRED. File with {"partitions": [{"topic": "foo", "partition": 1, "offset": 1}], "version": 1}.',
        metavar="FILE",
    ),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
)


def _run(options: Options) -> None:
    options.require("bootstrap-server", "offset-json-file")
    properties = properties_of(options.value("command-config"))
    text = Path(options.value("offset-json-file")).read_text()
    rows = offset_rows(text)
    twice = {name for name, _ in rows if sum(name == other for other, _ in rows) > 1}
    if twice:
        listed = ",".join(map(_text, hash_order(twice)))
        fail(f"Offset json file contains duplicate topic partitions: {listed}")
    with connect(options.value("bootstrap-server"), properties, call="deleteRecords(api=METADATA)") as admin:
        print_line("Executing records delete operation")
        outcomes = _delete(admin, dict(rows))
        print_line("Records delete operation completed:")
        # Java prints them in an order that differs from run to run.
        for name in sorted(outcomes):
            outcome = outcomes[name]
            said = f"error: {outcome.java_class}: {outcome}" if isinstance(outcome, RequestError) else None
            print_line(f"partition: {_text(name)}\t{said or f'low_watermark: {outcome}'}")


def _delete(admin: Admin, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, int | RequestError]:
    from ottla.wire.messages.delete_records import (
        DeleteRecordsPartition,
        DeleteRecordsRequest,
        DeleteRecordsTopic,
    )

    outcomes: dict[TopicPartition, int | RequestError] = {}
    topics = {row.name: row for row in admin.cluster_metadata({name.topic for name in wanted}).topics}
    leaders: dict[int, list[TopicPartition]] = {}
    for name in wanted:
        topic = topics.get(name.topic)
        rows = {each.partition_index: each.leader_id for each in topic.partitions} if topic else {}
        if topic is not None and topic.error_code:
            outcomes[name] = RequestError(topic.error_code)
        elif name.partition not in rows:
            outcomes[name] = RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        else:
            leaders.setdefault(rows[name.partition], []).append(name)
    nodes = {node.broker_id: node for node in admin.brokers()}
    for leader, names in leaders.items():
        request = DeleteRecordsRequest(
            topics=[
                DeleteRecordsTopic(
                    name=topic,
                    partitions=[
                        DeleteRecordsPartition(partition_index=each.partition, offset=wanted[each]) for each in rows
                    ],
                )
                for topic, rows in by_topic(names).items()
            ],
            timeout=int(admin.timeout_s * 500),
        )
        if leader not in nodes:
            raise ToolError("There is no leader for a partition; try again when it has one.")
        for topic in admin.ask(nodes[leader], request).topics:
            for row in topic.partitions:
                name = TopicPartition(topic.name, row.partition_index)
                outcomes[name] = RequestError(row.error_code) if row.error_code else row.low_watermark
    return outcomes


def _text(name: TopicPartition) -> str:
    return f"{name.topic}-{name.partition}"


TOOL = Tool(
    name="kafka-delete-records",
    summary="This tool helps to delete records of the given partitions down to the specified offset.",
    flags=_FLAGS,
    run=_run,
)
