"""kafka-consumer-perf-test: read records, and print the throughput."""

from __future__ import annotations

import random
import re
import time
from datetime import datetime
from typing import Any, Final

from ottla.cli.kafka.clients import make_consumer, parse_pairs
from ottla.cli.kafka.connection import properties_of
from ottla.cli.kafka.errors import ToolError, UsageError
from ottla.cli.kafka.options import Options, flag
from ottla.cli.kafka.tool import Tool, print_error, print_line
from ottla.cli.records import KafkaException

_MB: Final = 1024 * 1024
_POLL_S: Final = 0.1
#: records of one poll, as with Java's consumer
_BATCH: Final = 500
_DATE_FORMAT: Final = "yyyy-MM-dd HH:mm:ss:SSS"
_TITLES: Final = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, fetch.time.ms, fetch.MB.sec, "
    "fetch.nMsg.sec"
)
_FLAGS = (
    flag("bootstrap-server", metavar="HOST:PORT,...", help="Brokers of the cluster. Required."),
    flag("topic", metavar="TOPIC", help="The topic."),
    flag("include", metavar="REGEX", help="The topics that match."),
    flag("group", metavar="GROUP", help="The consumer group.  [default: a new one]"),
    flag("fetch-size", metavar="BYTES", parse=int, default=_MB, help="Bytes of one partition in a fetch."),
    flag("from-latest", help="Begin at the end of partitions without a committed offset."),
    flag("socket-buffer-size", metavar="BYTES", parse=int, default=2 * _MB, help="Receive buffer of connections."),
    flag("consumer.config", metavar="FILE", help="The former name of --command-config."),
    flag("command-property", metavar="NAME=VALUE", help="A property of the consumer. Repeatable."),
    flag("command-config", metavar="FILE", help="File with properties of the consumer."),
    flag("print-metrics", help="Ignored: this consumer has other metrics than Java's."),
    flag("show-detailed-stats", help="Print a line for each interval instead of one at the end."),
    flag(
        "timeout", metavar="MS", parse=int, is_value_optional=True, default=10_000, help="Longest time without records."
    ),
    flag("num-records", metavar="N", parse=int, help="How many records. Required."),
    flag("messages", metavar="N", parse=int, help="The former name of --num-records."),
    flag("reporting-interval", metavar="MS", parse=int, default=5000, help="Time between reports."),
    flag(
        "date-format", metavar="FORMAT", default=_DATE_FORMAT, help="Form of times, as Java's SimpleDateFormat has it."
    ),
    flag("hide-header", help="Print no titles."),
)
#: letters of SimpleDateFormat
_DIRECTIVES: Final = {"y": "%Y", "M": "%m", "d": "%d", "H": "%H", "m": "%M", "s": "%S", "E": "%a", "a": "%p", "h": "%I"}


def _run(options: Options) -> None:
    options.require("bootstrap-server")
    for names in (("topic", "include"), ("messages", "num-records")):
        if len(options.any_of(*names)) != 1:
            raise UsageError(f"Exactly one of the following arguments is required: [{names[0]}], [{names[1]}]")
    if options.has("consumer.config"):
        options.refuse_with("consumer.config", ("command-config",))
        print_line("Warning: --consumer.config is deprecated. Use --command-config instead.")
    if options.has("messages"):
        print_line("Warning: --messages is deprecated. Use --num-records instead.")
    if options.has("print-metrics"):
        print_error("WARN --print-metrics is ignored: Java's metrics do not exist here")
    is_detailed = options.has("show-detailed-stats")
    if not options.has("hide-header"):
        print_line(f"{'time, threadId' if is_detailed else 'start.time, end.time'}, {_TITLES}")
    count = options.value("num-records") or options.value("messages")
    consumer = make_consumer(options.value("bootstrap-server"), _properties(options))
    # librdkafka takes a name that begins with ^ for a regular expression.
    topic = str(options.value("topic") or f"^({options.value('include')})$")
    load = Load(options, is_detailed=is_detailed)
    try:
        consumer.subscribe([topic], on_assign=load.assigned, on_revoke=load.revoked)
        load.read(consumer, int(count))
    except KafkaException as error:
        raise ToolError(error.args[0].str()) from None
    finally:
        consumer.close()


def _properties(options: Options) -> dict[str, str]:
    return {
        "client.id": "perf-consumer-client",
        "group.id": options.value("group") or f"perf-consumer-{random.randrange(100_000)}",
        "receive.buffer.bytes": str(options.value("socket-buffer-size")),
        "max.partition.fetch.bytes": str(options.value("fetch-size")),
        "auto.offset.reset": "latest" if options.has("from-latest") else "earliest",
        "check.crcs": "false",
        **properties_of(options.value("command-config") or options.value("consumer.config")),
        **parse_pairs(options.values("command-property")),
    }


class Load:
    """Reads records and measures them; the time of rebalances is measured apart."""

    def __init__(self, options: Options, *, is_detailed: bool) -> None:
        self._is_detailed = is_detailed
        self._timeout_s = float(options.value("timeout") or 10_000) / 1000
        self._interval_s = float(options.value("reporting-interval")) / 1000
        self._format = str(options.value("date-format"))
        self._joining_since: float | None = None
        self._joining_s = self._window_joining_s = 0.0

    def assigned(self, *_: Any) -> None:
        if self._joining_since is not None:
            taken_s = time.time() - self._joining_since
            self._joining_s += taken_s
            self._window_joining_s += taken_s
            self._joining_since = None

    def revoked(self, *_: Any) -> None:
        self._joining_since = time.time()

    def read(self, consumer: Any, count: int) -> None:
        """Read records until there are `count`, or none come for the timeout, and print the result."""
        started = window_started = last_s = self._joining_since = time.time()
        records = size = window_records = window_size = 0
        while records < count:
            messages = [each for each in consumer.consume(_BATCH, _POLL_S) if each.error() is None]
            now = time.time()
            if messages:
                last_s = now
                records += len(messages)
                size += sum(len(each.value() or b"") + len(each.key() or b"") for each in messages)
            elif now - last_s > self._timeout_s:
                timeout_ms = int(self._timeout_s * 1000)
                print_line(
                    "WARNING: Exiting before consuming the expected number of records: timeout "
                    f"({timeout_ms} ms) exceeded. You can use the --timeout option to increase the timeout."
                )
                break
            if self._is_detailed and now - window_started >= self._interval_s:
                self._print_window(
                    now, now - window_started, (records, records - window_records), (size, size - window_size)
                )
                window_started, window_records, window_size = now, records, size
        ended = time.time()
        if self._is_detailed:
            return
        took_s = ended - started
        joined_s = min(self._joining_s, took_s)
        rates = _rates(records, size, took_s)
        print_line(
            f"{self._text(started)}, {self._text(ended)}, {size / _MB:.4f}, {rates[0]:.4f}, {records}, {rates[1]:.4f}, "
            f"{_fetching(records, size, took_s, joined_s)}"
        )

    def _print_window(self, now: float, took_s: float, records: tuple[int, int], size: tuple[int, int]) -> None:
        rates = _rates(records[1], size[1], took_s)
        joined_s, self._window_joining_s = min(self._window_joining_s, took_s), 0.0
        print_line(
            f"{self._text(now)}, 0, {size[0] / _MB:.4f}, {rates[0]:.4f}, {records[0]}, {rates[1]:.4f}, "
            f"{_fetching(records[1], size[1], took_s, joined_s)}"
        )

    def _text(self, moment_s: float) -> str:
        return format_date(self._format, moment_s)


def _rates(records: int, size: int, took_s: float) -> tuple[float, float]:
    """Return MB and records per second."""
    return (size / _MB / took_s, records / took_s) if took_s > 0 else (0.0, 0.0)


def _fetching(records: int, size: int, took_s: float, joined_s: float) -> str:
    """Return the columns about the time that was spent outside rebalances."""
    rates = _rates(records, size, took_s - joined_s)
    return f"{int(joined_s * 1000)}, {int((took_s - joined_s) * 1000)}, {rates[0]:.4f}, {rates[1]:.4f}"


def format_date(pattern: str, moment_s: float) -> str:
    """Return a time as Java's SimpleDateFormat writes it. Texts stand between single quotes."""
    moment = datetime.fromtimestamp(moment_s)

    def replace(match: re.Match[str]) -> str:
        word = match[0]
        if word[0] == "'":
            return word[1:-1] or "'"
        if word[0] == "S":
            return f"{moment.microsecond // 1000:0{len(word)}d}"
        directive = _DIRECTIVES.get(word[0])
        if directive is None:
            raise ToolError(f"Illegal pattern character '{word[0]}'")
        text = moment.strftime("%y" if word == "yy" else directive)
        return text.lstrip("0") or "0" if len(word) == 1 and text.isdigit() else text

    return re.sub(r"'[^']*'|([A-Za-z])\1*", replace, pattern)


TOOL = Tool(
    name="kafka-consumer-perf-test",
    summary="Read records, and print the throughput.",
    flags=_FLAGS,
    run=_run,
)
