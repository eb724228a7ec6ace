"""`kafka-get-offsets`: offsets of partitions at their start, at their end, or at a time."""

from __future__ import annotations

import re
from collections.abc import Callable

from ottla.cli.kafka.connection import Admin, connect, properties_of
from ottla.cli.kafka.errors import IllegalArgument, ToolError, UsageError
from ottla.cli.kafka.java import matching, parse_int, parse_long
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import FAILED, Tool, print_error, print_line
from ottla.client.cluster import Cluster, Isolation
from ottla.model.types import TopicPartition

_CLIENT_ID = "GetOffsetShell"
_FLAGS = (
    flag("bootstrap-server", help="REQUIRED. Brokers to connect to.", metavar="HOST:PORT,..."),
    flag(
        "topic-partitions", help="Patterns of partitions: topic:1,topic:0-3,topic:5-,topic:-3.", metavar="PATTERN,..."
    ),
    flag("topic", help="Regular expression for topics.", metavar="TOPIC"),
    flag("partitions", help="Numbers of partitions.", metavar="N,..."),
    flag(
        "time",
        help="Milliseconds, latest (-1), earliest (-2), max-timestamp (-3), earliest-local (-4), latest-tiered (-5) or "
        "earliest-pending-upload (-6).",
        metavar="TIME",
        default="latest",
    ),
    flag("command-config", help="File with properties of the client.", metavar="FILE"),
    flag("exclude-internal-topics", help="Leave out internal topics."),
)
_TIMES = {
    "latest": -1, "earliest": -2, "max-timestamp": -3, "earliest-local": -4, "latest-tiered": -5,
    "earliest-pending-upload": -6,
}  # fmt: skip
_RULE = re.compile(r"([^:,]*)(?::(?:([0-9]*)|(?:([0-9]*)-([0-9]*))))?")
_NAMED_TIMES = (
    "-1 or latest / -2 or earliest / -3 or max-timestamp / -4 or earliest-local / -5 or latest-tiered / -6 or "
    "earliest-pending-upload"
)
_Filter = Callable[[TopicPartition], bool]


def _run(options: Options) -> None:
    options.require("bootstrap-server")
    server = options.value("bootstrap-server")
    _check_address(server)
    if options.has("topic-partitions") and options.any_of("topic", "partitions"):
        raise ToolError("--topic-partitions cannot be used with --topic or --partitions")
    time_ms = _time(options.value("time"))
    wanted = _filter(options)
    properties = {**properties_of(options.value("command-config")), "client.id": _CLIENT_ID}
    with connect(server, properties, call="listTopics") as admin:
        topics = admin.metadata().topics
        names = matching(
            ".*", [row.name or "" for row in topics], without_internal=options.has("exclude-internal-topics")
        )
        partitions = [
            TopicPartition(row.name or "", each.partition_index)
            for row in topics
            if row.name in names
            for each in row.partitions
        ]
        chosen = sorted(filter(wanted, partitions), key=lambda name: f"{name.topic}-{name.partition}")
        if not chosen:
            raise ToolError("Could not match any topic-partitions with the specified filters")
        for name, offset in _offsets(admin, chosen, time_ms).items():
            print_line(f"{name.topic}:{name.partition}:{offset}")


def _check_address(server: str) -> None:
    for each in server.split(","):
        host, colon, port = each.strip().rpartition(":")
        if not colon or not host or not port.isdecimal():
            raise UsageError("Please provide valid host:port like host1:9091,host2:9092\n ")


def _time(text: str) -> int:
    if text in _TIMES:
        return _TIMES[text]
    try:
        return parse_long(text)
    except IllegalArgument:
        raise ToolError(
            f"Malformed time argument {text}. Please use {_NAMED_TIMES}, or a specified long format timestamp"
        ) from None


def _filter(options: Options) -> _Filter:
    """Return a function that selects partitions by the flags."""
    if options.has("topic-partitions"):
        rules = [_rule(text) for text in options.value("topic-partitions").split(",")]
        return lambda name: any(rule(name) for rule in rules)
    pattern = options.value("topic") or ".*"
    text = options.value("partitions") or ""
    try:
        numbers = {parse_int(each) for each in text.split(",")} if text else set()
    except IllegalArgument:
        raise ToolError(
            f"--partitions expects a comma separated list of numeric partition ids, but received: {text}"
        ) from None
    # An invalid pattern is an error even if there are no topics.
    matching(pattern, [])
    return lambda name: bool(matching(pattern, [name.topic])) and (not numbers or name.partition in numbers)


def _rule(text: str) -> _Filter:
    found = _RULE.fullmatch(text)
    if found is None:
        raise ToolError(f"org.apache.kafka.tools.TerseException: Invalid rule specification: {text}")
    topic, single, first, end = found.groups()
    pattern = topic or ".*"
    matching(pattern, [])
    low = int(single or first or 0)
    high = low + 1 if single else int(end) if end else None

    def is_selected(name: TopicPartition) -> bool:
        in_range = low <= name.partition and (high is None or name.partition < high)
        return in_range and bool(matching(pattern, [name.topic]))

    return is_selected


def _offsets(admin: Admin, partitions: list[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
    """Return the offset of each partition that has one. Report the partitions that refuse the request."""
    found = {}

    def ask(cluster: Cluster, names: list[TopicPartition]) -> dict[TopicPartition, int]:
        rows = cluster.list_offset_rows(dict.fromkeys(names, time_ms), isolation=Isolation.READ_UNCOMMITTED)
        return {name: row.offset for name, row in rows.items()}

    try:
        found = admin.call(lambda cluster: ask(cluster, partitions))
    except ToolError:
        for name in partitions:
            try:
                found |= admin.call(lambda cluster, name=name: ask(cluster, [name]))  # type: ignore[misc]
            except ToolError as error:
                print_error(f"Skip getting offsets for topic-partition {name} due to error: {error}")
    return {name: found[name] for name in partitions if found.get(name, -1) >= 0}


def _failed(error: ToolError) -> int:
    print_error(f"Error occurred: {error}")
    return FAILED


TOOL = Tool(
    name="kafka-get-offsets",
    summary="An interactive shell for getting topic-partition offsets.",
    flags=_FLAGS,
    run=_run,
    failed=_failed,
)
