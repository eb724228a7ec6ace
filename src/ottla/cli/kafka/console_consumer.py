"""`kafka-console-consumer`: print records of topics."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from ottla.cli import interrupts
from ottla.cli.kafka.console_options import either, filed, pairs, refuse_both
from ottla.cli.kafka.errors import IllegalArgument, ToolError, UsageError
from ottla.cli.kafka.java import parse_int, parse_long
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.record_formatter import DEFAULT, LOGGING, NO_OP, Formatter
from ottla.cli.kafka.tool import FAILED, OK, Tool, print_error, print_line

_FORMATTER_TEXT = (
    "print.timestamp, print.key, print.offset, print.epoch, print.partition, print.headers, print.value, "
    "key.separator, line.separator, headers.separator, null.literal, key.deserializer, value.deserializer or "
    "headers.deserializer. Repeatable."
)
_FLAGS = (
    flag("topic", help="Topic to read.", metavar="TOPIC"),
    flag("include", help="Regular expression for the topics to read.", metavar="REGEX"),
    flag("partition", help="Partition to read, from its end without --offset.", metavar="N", parse=parse_int),
    flag("offset", help="Offset to begin with: a number, earliest or latest.", metavar="OFFSET", default="latest"),
    flag("consumer-property", help="Deprecated: --command-property.", metavar="NAME=VALUE"),
    flag("command-property", help="Property of the consumer. Repeatable.", metavar="NAME=VALUE"),
    flag("consumer.config", help="Deprecated: --command-config.", metavar="FILE"),
    flag("command-config", help="File with properties of the consumer.", metavar="FILE"),
    flag(
        "formatter",
        help=f"{DEFAULT}, LoggingMessageFormatter or NoOpMessageFormatter.",
        metavar="CLASS",
        default=DEFAULT,
    ),
    flag("property", help="Deprecated: --formatter-property.", metavar="NAME=VALUE"),
    flag("formatter-property", help=_FORMATTER_TEXT, metavar="NAME=VALUE"),
    flag("formatter-config", help="File with these properties.", metavar="FILE"),
    flag("from-beginning", help="Begin with the first record, unless the group has committed offsets."),
    flag("max-messages", help="End after this number of records.", metavar="N", parse=parse_int),
    flag("timeout-ms", help="End if no record arrives in this time.", metavar="MS", parse=parse_long),
    flag("skip-message-on-error", help="Continue after a record that cannot be printed."),
    flag("bootstrap-server", help="REQUIRED. Brokers to connect to.", metavar="HOST:PORT,..."),
    flag("key-deserializer", help="Class that decodes keys.", metavar="CLASS"),
    flag("value-deserializer", help="Class that decodes values.", metavar="CLASS"),
    flag("enable-systest-events", help="Print shutdown_complete at the end."),
    flag("isolation-level", help="read_committed or read_uncommitted.", metavar="LEVEL", default="read_uncommitted"),
    flag("group", help="Group of the consumer.", metavar="GROUP"),
)
_RESET, _GROUP, _COMMIT = "auto.offset.reset", "group.id", "enable.auto.commit"
_EARLIEST, _LATEST = -2, -1
_READ_COUNT = 500
_POLL_S = 0.1


def _run(options: Options) -> int:
    _check(options)
    properties = _properties(options)
    start = _start(options)
    formatter = _formatter(options)
    # librdkafka is loaded when it is known what to read.
    from ottla.cli.kafka.clients import make_consumer

    consumer = make_consumer(options.value("bootstrap-server"), properties)
    _subscribe(consumer, options, start)
    reading = _Reading(consumer, options, formatter, commits=properties.get(_COMMIT, "true") == "true")
    with interrupts.handled():
        try:
            return reading.run()
        finally:
            with interrupts.deferred():
                consumer.close()
            print_error(f"Processed a total of {reading.count} messages")
            if options.has("enable-systest-events"):
                print_line("shutdown_complete")


# Flags


def _check(options: Options) -> None:
    if len(options.any_of("topic", "include")) != 1:
        raise UsageError("Exactly one of the following arguments is required: [topic], [include]")
    if options.has("partition"):
        options.value("partition")
        if not options.has("topic"):
            raise UsageError("The topic is required when partition is specified.")
        if options.has("from-beginning") and options.has("offset"):
            raise UsageError("Options from-beginning and offset cannot be specified together.")
    elif options.has("offset"):
        raise UsageError("The partition is required when offset is specified.")
    options.require("bootstrap-server")
    refuse_both(options, {"consumer-property": "command-property", "consumer.config": "command-config"})
    for name, new in (("consumer-property", "command-property"), ("consumer.config", "command-config")):
        if options.has(name):
            print_line(f"Option --{name} is deprecated and will be removed in a future version. Use --{new} instead.")


def _properties(options: Options) -> dict[str, str]:
    """Return the properties of the consumer. Raise UsageError if flags and properties contradict each other."""
    from_file = filed(options, either(options, "command-config", "consumer.config"))
    given = pairs(options.values(either(options, "command-property", "consumer-property")))
    groups = {options.value("group"), from_file.get(_GROUP), given.get(_GROUP)} - {None}
    if len(groups) > 1:
        listed = ", ".join(f"'{name}'" for name in sorted(groups))
        raise UsageError(
            "The group ids provided in different places (directly using '--group', via '--consumer-property', or via "
            f"'--consumer.config') do not match. Detected group ids: {listed}"
        )
    if groups and options.has("partition"):
        raise UsageError("Options group and partition cannot be specified together.")
    properties = {**from_file, **given}
    is_first = options.has("from-beginning")
    if is_first and properties.get(_RESET, "earliest") != "earliest":
        raise ToolError(
            f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={properties[_RESET]}', please "
            "remove one option"
        )
    properties.setdefault(_RESET, "earliest" if is_first else "latest")
    if options.has("isolation-level") or "isolation.level" not in properties:
        properties["isolation.level"] = options.value("isolation-level")
    if not groups:
        properties.setdefault(_COMMIT, "false")
    properties[_GROUP] = next(iter(groups)) if groups else f"console-consumer-{random.randrange(100_000)}"
    defaults = {
        "client.id": "console-consumer",
        "allow.auto.create.topics": "true",
        # Offsets are stored for records that were printed.
        "enable.auto.offset.store": "false",
        "fetch.wait.max.ms": "100",
    }
    if options.has("include"):
        defaults["topic.blacklist"] = "^__consumer_offsets$,^__transaction_state$,^__share_group_state$"
    return defaults | properties


def _start(options: Options) -> int:
    """Return the offset at which a partition is read."""
    text = options.value("offset")
    if not options.has("offset"):
        return _EARLIEST if options.has("from-beginning") else _LATEST
    if text.lower() in ("earliest", "latest"):
        return _EARLIEST if text.lower() == "earliest" else _LATEST
    try:
        offset = parse_long(text)
    except IllegalArgument:
        offset = -1
    if offset < 0:
        raise UsageError(
            f"The provided offset value '{text}' is incorrect. Valid values are 'earliest', 'latest', or a "
            "non-negative long."
        )
    return offset


def _formatter(options: Options) -> Callable[[Any], bytes]:
    name = options.value("formatter")
    if name not in (DEFAULT, LOGGING, NO_OP):
        raise UsageError(name)
    refuse_both(options, {"property": "formatter-property"})
    if options.has("property"):
        print_line(
            "Option --property is deprecated and will be removed in a future version. Use --formatter-property instead."
        )
    properties = filed(options, "formatter-config")
    for part in ("key", "value"):
        if options.value(f"{part}-deserializer"):
            properties[f"{part}.deserializer"] = options.value(f"{part}-deserializer")
    properties |= pairs(options.values(either(options, "formatter-property", "property")))
    return (lambda message: b"") if name == NO_OP else Formatter(properties)


def _subscribe(consumer: Any, options: Options, start: int) -> None:
    if options.has("partition"):
        from ottla.cli.records import offsets_to_commit

        consumer.assign(offsets_to_commit({(options.value("topic"), options.value("partition")): start}))
    elif options.has("topic"):
        consumer.subscribe([options.value("topic")])
    else:
        # librdkafka takes a name with ^ for a regular expression.
        consumer.subscribe([f"^({options.value('include')})$"])


# Records


class _Reading:
    """Prints records until the limits of the flags."""

    def __init__(self, consumer: Any, options: Options, formatter: Callable[[Any], bytes], *, commits: bool) -> None:
        self._consumer = consumer
        self._format = formatter
        self._commits = commits
        self._is_skipping = options.has("skip-message-on-error")
        self._count_max = options.value("max-messages") if options.has("max-messages") else -1
        timeout_ms = options.value("timeout-ms")
        self._timeout_s = timeout_ms / 1000 if timeout_ms is not None and timeout_ms >= 0 else None
        #: the records that were read
        self.count = 0

    def run(self) -> int:
        """Return the exit code."""
        since = time.monotonic()
        out = sys.stdout.buffer
        sys.stdout.flush()
        while self._count_max < 0 or self.count < self._count_max:
            wanted = _READ_COUNT if self._count_max < 0 else min(_READ_COUNT, self._count_max - self.count)
            # A long wait would make each batch late; the first record ends the wait.
            with interrupts.deferred():
                first = self._consumer.poll(_POLL_S)
                rest = self._consumer.consume(wanted - 1, 0) if first is not None and wanted > 1 else []
            if first is None:
                if self._timeout_s is not None and time.monotonic() - since > self._timeout_s:
                    print_error("ERROR Error processing message, terminating consumer process: TimeoutException")
                    return OK
                continue
            since = time.monotonic()
            try:
                for message in (first, *rest):
                    code = self._take(message, out)
                    if code is not None:
                        return code
            finally:
                out.flush()
        return OK

    def _take(self, message: Any, out: Any) -> int | None:
        """Print a record, or report an error. Return the exit code if the tool ends."""
        error = message.error()
        if error is not None:
            return _error(error)
        self.count += 1
        try:
            out.write(self._format(message))
        except ToolError as refused:
            print_error(f"ERROR Error processing message: {refused}")
            if not self._is_skipping:
                return FAILED
        if self._commits:
            self._consumer.store_offsets(message)
        return None


def _error(error: Any) -> int | None:
    """Report an error of the consumer. Return the exit code if it ends the tool."""
    from ottla.cli.records import KafkaError

    print_error(f"WARN {error.str()}")
    if error.code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE):
        # Java's consumer waits for the topic.
        return None
    if error.code() in (KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED):
        return FAILED
    return OK if error.fatal() or error.code() > 0 else None


TOOL = Tool(
    name="kafka-console-consumer",
    summary="This tool helps to read data from Kafka topics and outputs it to standard output.",
    flags=_FLAGS,
    run=_run,
)
