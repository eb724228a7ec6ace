"""kafka-log-dirs: the sizes of partitions in the log directories of brokers, as one line of JSON."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from ottla.cli.kafka.connection import connect, properties_of
from ottla.cli.kafka.errors import RequestError, ToolError, check
from ottla.cli.kafka.java import hash_order
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_line
from ottla.client.protocol.metadata import Node
from ottla.model.types import TopicPartition
from ottla.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse

_FLAGS = (
    flag("bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster. Required."),
    flag("command-config", metavar="FILE", help="Properties of the client."),
    flag("describe", help="Print the log directories. Required."),
    flag("topic-list", metavar="TOPIC,...", help="Print only partitions of these topics.", default=""),
    flag("broker-list", metavar="ID,...", help="Ask only these brokers.", default=""),
)


def _run(options: Options) -> None:
    options.require("bootstrap-server", "describe")
    properties = {"client.id": "log-dirs-tool", **properties_of(options.value("command-config"))}
    with connect(options.value("bootstrap-server"), properties, call="listNodes") as admin:
        nodes = {node.broker_id: node for node in admin.brokers()}
        wanted = _numbers(options.value("broker-list"))
        unknown = [each for each in wanted if each not in nodes]
        if unknown:
            raise ToolError(
                f"ERROR: The given brokers do not exist from --broker-list: {_joined(unknown)}. "
                f"Current existent brokers: {_joined(nodes)}"
            )
        asked = wanted or sorted(nodes)
        print_line("Querying brokers for log directories information")
        answers = {number: admin.ask(nodes[number], DescribeLogDirsRequest(topics=None)) for number in asked}
        print_line(f"Received log directory information from brokers {_joined(asked)}")
        topics = {topic for topic in options.value("topic-list").split(",") if topic}
        brokers = [_broker(nodes[number], answer, topics) for number, answer in answers.items()]
        print_line(json.dumps({"brokers": brokers, "version": 1}, separators=(",", ":"), ensure_ascii=False))


def _numbers(text: str) -> list[int]:
    numbers = set()
    for word in text.split(","):
        if not word:
            continue
        try:
            numbers.add(int(word))
        except ValueError:
            raise ToolError(f'For input string: "{word}"') from None
    return sorted(numbers)


def _joined(numbers: Collection[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


def _broker(node: Node, answer: DescribeLogDirsResponse, topics: Collection[str]) -> dict[str, Any]:
    check(answer.error_code)
    directories = []
    for row in answer.results:
        found = {
            TopicPartition(topic.name, partition.partition_index): partition
            for topic in row.topics
            if not topics or topic.name in topics
            for partition in topic.partitions
        }
        partitions = [
            {
                "partition": str(name),
                "size": found[name].partition_size,
                "offsetLag": found[name].offset_lag,
                "isFuture": found[name].is_future_key,
            }
            for name in hash_order(sorted(found))
        ]
        error = RequestError(row.error_code).java_class if row.error_code else None
        directories.append({"partitions": partitions, "error": error, "logDir": row.log_dir})
    return {"broker": node.broker_id, "logDirs": directories}


TOOL = Tool(
    name="kafka-log-dirs",
    summary="Print the log directories of brokers and the sizes of their partitions.",
    flags=_FLAGS,
    run=_run,
)
