"""Options of ``format("ottla")``: the names, defaults and meanings of Spark's own Kafka connector. Pure.

A job moves between the two by changing the name of the format. Names are case-insensitive. An unknown name is refused
with the most similar known one. ``kafka.*`` are properties of a Kafka client: security properties configure the
connection, a few others have an effect, and those that only tune the Java client are accepted and ignored.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Self, TypeVar

from ottla.model.errors import OttlaError
from ottla.model.types import TopicPartition
from ottla.spark.offsets import EARLIEST, LATEST, Bound, PartitionOffsets
from ottla.spark.option_table import KAFKA_PROPERTIES, TOPIC_OPTIONS, Use, names, names_only

if TYPE_CHECKING:
    from ottla.spark.schema_options import SchemaOptions

T = TypeVar("T")

_SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
_READ_NAMES = names(TOPIC_OPTIONS, Use.READ)
_STREAM_ONLY = names_only(TOPIC_OPTIONS, Use.READ_STREAM)
_BATCH_ONLY = names_only(TOPIC_OPTIONS, Use.READ_BATCH)
#: Spark itself adds these to the options of a source
_SPARKS_OWN = ("path", "checkpointLocation", "queryName")

_SECURITY = re.compile(r"security\.|ssl\.|sasl\.|enable\.ssl\.")
#: properties that contradict the source, and what to do instead
REFUSED_PROPERTIES = {
    "auto.offset.reset": "set startingOffsets to earliest or latest: Spark's checkpoint decides where to continue",
    "key.deserializer": "keys arrive as bytes; set key.format to decode them with schemas of a registry",
    "value.deserializer": "values arrive as bytes; set value.format to decode them with schemas of a registry",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint; set kafka.group.id to publish them as a group",
    "interceptor.classes": "there is no Java client that could run interceptors",
}
_HONOURED = tuple(option.name for option in KAFKA_PROPERTIES)
#: properties of Java's consumer and producer that have no counterpart here and change no result
PROPERTIES_WITHOUT_EFFECT = (
    "acks", "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter", "batch.size",
    "buffer.memory", "check.crcs", "client.dns.lookup", "client.rack", "connections.max.idle.ms", "delivery.timeout.ms",
    "enable.idempotence", "enable.metrics.push", "fetch.max.bytes", "fetch.min.bytes",
    "group.instance.id", "group.protocol", "heartbeat.interval.ms", "linger.ms", "max.block.ms",
    "max.in.flight.requests.per.connection", "max.poll.interval.ms", "max.poll.records",
    "metadata.max.age.ms", "metadata.recovery.strategy", "metric.reporters", "metrics.num.samples",
    "metrics.recording.level", "metrics.sample.window.ms", "partition.assignment.strategy", "receive.buffer.bytes",
    "reconnect.backoff.max.ms", "reconnect.backoff.ms", "request.timeout.ms", "retries", "retry.backoff.max.ms",
    "retry.backoff.ms", "send.buffer.bytes", "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
)  # fmt: skip

_DURATION_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OptionError(OttlaError, ValueError):
    """An option that is wrong; the text says which, and what would be right."""


class NoMatch(Enum):
    """What ``startingOffsetsByTimestampStrategy`` says when a partition has no record as new as the timestamp."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How tasks and the driver connect to the cluster."""

    bootstrap: str
    #: ``security.*``, ``ssl.*`` and ``sasl.*``, under Kafka's names
    properties: Mapping[str, str]
    client_id: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which partitions are read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: tuple[TopicPartition, ...] = ()

    def wants(self, topic: str) -> bool:
        """Return whether a topic is read. A pattern matches whole names, as in Java."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.names

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that the options name; none if there is a pattern."""
        return self.topics or tuple(sorted({tp.topic for tp in self.assigned}))

    def partitions(self, counts: Mapping[str, int]) -> list[TopicPartition]:
        """Return the partitions to read, from the number of partitions of each topic."""
        if self.assigned:
            return sorted(tp for tp in self.assigned if tp.partition < counts.get(tp.topic, 0))
        return [
            TopicPartition(topic, partition)
            for topic in sorted(counts)
            if self.wants(topic)
            for partition in range(counts[topic])
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The checked options of a read."""

    connection: Connection
    subscription: Subscription
    starting: Bound
    ending: Bound
    no_match: NoMatch
    read_committed: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    min_partitions: int | None
    max_records_per_partition: int | None
    fail_on_data_loss: bool
    include_headers: bool
    group: str | None
    group_prefix: str | None
    #: how often the driver requests offsets before missing records count as lost
    attempts: int
    attempt_interval_s: float
    poll_timeout_s: float
    fetch_bytes: int
    fetch_wait_ms: int
    #: of keys and of values; a part without them stays bytes
    schemas: tuple[SchemaOptions, ...]
    #: given, but without effect in this kind of read
    ignored: tuple[str, ...] = field(default=())

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool) -> Self:
        """Return the checked options of a read. Raise OptionError for the first wrong one."""
        given = Options(options, _READ_NAMES)
        subscription = _subscription(given)
        starting, ending = _bounds(given, stream=stream)
        rows_min, rows_max = given.positive("minOffsetsPerTrigger"), given.positive("maxOffsetsPerTrigger")
        if rows_min and rows_max and rows_min > rows_max:
            raise OptionError(f"minOffsetsPerTrigger ({rows_min}) is higher than maxOffsetsPerTrigger ({rows_max})")
        ignored = [name for name in (() if stream else _STREAM_ONLY) if given.text(name) is not None]
        return cls(
            connection=given.connection(),
            subscription=subscription,
            starting=starting,
            ending=ending,
            no_match=given.choice("startingOffsetsByTimestampStrategy", NoMatch, NoMatch.ERROR),
            read_committed=given.read_committed(),
            max_offsets_per_trigger=rows_max,
            min_offsets_per_trigger=rows_min,
            max_trigger_delay_s=given.duration_s("maxTriggerDelay", 900.0),
            min_partitions=given.positive("minPartitions"),
            max_records_per_partition=given.positive("maxRecordsPerPartition"),
            fail_on_data_loss=given.flag("failOnDataLoss", True),
            include_headers=given.flag("includeHeaders", False),
            group=given.properties.get("group.id"),
            group_prefix=given.text("groupIdPrefix"),
            attempts=given.positive("fetchOffset.numRetries") or 3,
            attempt_interval_s=given.duration_s("fetchOffset.retryIntervalMs", 1.0),
            poll_timeout_s=given.duration_s("kafkaConsumer.pollTimeoutMs", 120.0),
            fetch_bytes=given.property_number("max.partition.fetch.bytes", 2 << 20),
            fetch_wait_ms=given.property_number("fetch.max.wait.ms", 500),
            schemas=_schemas(given, subscription),
            ignored=tuple(ignored),
        )


class Options:
    """Options from Spark by lower-case name, and how their texts are parsed. Raises OptionError for unknown names."""

    def __init__(self, options: Mapping[str, str], names: Iterable[str]) -> None:
        self._names = {name.lower(): name for name in (*names, *_SPARKS_OWN)}
        self._values: dict[str, str] = {}
        #: options ``kafka.*``, without the prefix
        self.properties: dict[str, str] = {}
        for name, value in options.items():
            name, value = name.lower(), str(value)
            if name.startswith("kafka."):
                self.properties[name.removeprefix("kafka.")] = value
            elif name in self._names:
                self._values[name] = value
            else:
                raise OptionError(f"unknown option {name!r}{nearest(name, self._names.values())}")
        for name in self.properties:
            self._check_property(name)

    @staticmethod
    def _check_property(name: str) -> None:
        if name in REFUSED_PROPERTIES:
            raise OptionError(f"the option 'kafka.{name}' is not supported: {REFUSED_PROPERTIES[name]}")
        known = (*_HONOURED, *PROPERTIES_WITHOUT_EFFECT)
        # There are many security properties: the client checks them and refuses unknown ones.
        if name not in known and not _SECURITY.match(name):
            raise OptionError(f"unknown option 'kafka.{name}'{nearest(f'kafka.{name}', [f'kafka.{k}' for k in known])}")

    def text(self, name: str) -> str | None:
        value = self._values.get(name.lower())
        return None if value is None else value.strip()

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionError(f"the option {name} is true or false, not {text!r}")
        return text.lower() == "true"

    def positive(self, name: str) -> int | None:
        text = self.text(name)
        return None if text is None else _positive(name, text)

    def property_number(self, name: str, default: int) -> int:
        text = self.properties.get(name)
        return default if text is None else _positive(f"kafka.{name}", text.strip())

    def duration_s(self, name: str, default: float) -> float:
        """Return a duration, in Spark's form: ``15m``, ``30s``, ``500ms``; a plain number is milliseconds."""
        text = self.text(name)
        if text is None:
            return default
        match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower())
        if not match or (match[2] or "ms") not in _DURATION_MS:
            raise OptionError(f"the option {name} is a time such as 500ms, 30s, 15m or 1h, not {text!r}")
        return int(match[1]) * _DURATION_MS[match[2] or "ms"] / 1000

    def choice(self, name: str, kind: Callable[[str], T], default: T) -> T:
        text = self.text(name)
        if text is None:
            return default
        try:
            return kind(text.lower())
        except ValueError as error:
            raise OptionError(f"the option {name}: {error}") from None

    def batch(self, *, stream: bool) -> tuple[str | None, int | None]:
        """Return the name of the sink and the id of the batch that is written. Raise OptionError if they do not fit."""
        sink_name, batch_id = self.text("ottla.sink.name"), self.text("ottla.batch.id")
        if batch_id is not None and not batch_id.isdecimal():
            raise OptionError(f"the option ottla.batch.id is the number of a batch, not {batch_id!r}")
        if stream and batch_id is not None:
            raise OptionError("the option ottla.batch.id is for writes inside foreachBatch: a stream knows its batch")
        if not stream and (batch_id is None) != (sink_name is None):
            raise OptionError("a batch write takes ottla.sink.name and ottla.batch.id together, or neither")
        return sink_name, None if batch_id is None else int(batch_id)

    def connection(self) -> Connection:
        bootstrap = self.properties.get("bootstrap.servers", "").strip()
        if not bootstrap:
            raise OptionError(
                "the option 'kafka.bootstrap.servers' is missing: give the brokers as host:port,host:port"
            )
        return Connection(
            bootstrap=bootstrap,
            properties={name: value for name, value in self.properties.items() if _SECURITY.match(name)},
            client_id=self.properties.get("client.id", "ottla-spark"),
            timeout_s=self.property_number("default.api.timeout.ms", 60_000) / 1000,
        )

    def read_committed(self) -> bool:
        level = self.properties.get("isolation.level", "read_uncommitted").strip().lower()
        if level not in ("read_committed", "read_uncommitted"):
            raise OptionError(f"the option kafka.isolation.level is read_committed or read_uncommitted, not {level!r}")
        return level == "read_committed"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the most similar known one, if there is any."""
    lowered = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f", did you mean {lowered[found[0]]!r}?" if found else ""


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) <= 0:
        raise OptionError(f"the option {name} is a whole number above zero, not {text!r}")
    return int(text)


def _subscription(given: Options) -> Subscription:
    chosen = [(name, text) for name in _SUBSCRIPTIONS if (text := given.text(name)) is not None]
    if len(chosen) != 1:
        found = "none is" if not chosen else f"{' and '.join(name for name, _ in chosen)} are"
        raise OptionError(f"exactly one of the options subscribe, subscribePattern and assign must be set, {found}")
    name, text = chosen[0]
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic for part in text.split(",") if (topic := part.strip())))
        if not topics:
            raise OptionError(f"the option subscribe names no topic: {text!r}")
        return Subscription(topics=topics)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError(f"the option subscribePattern is not a regular expression: {error}") from None
        if not text:
            raise OptionError("the option subscribePattern is empty; .* would be all topics")
        return Subscription(pattern=text)
    return Subscription(assigned=_assigned(text))


def _schemas(given: Options, subscription: Subscription) -> tuple[SchemaOptions, ...]:
    from ottla.spark.schema_options import parse_schema_options

    return parse_schema_options(given, subscription.names[0] if len(subscription.names) == 1 else None)


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    complaint = f'the option assign looks like {{"topic":[0,1]}}, not {text!r}'
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise OptionError(f"{complaint}: {error}") from None
    if not isinstance(document, dict) or not all(isinstance(each, list) for each in document.values()):
        raise OptionError(complaint)
    partitions = {TopicPartition(topic, partition) for topic, each in document.items() for partition in each}
    if not partitions or not all(type(tp.partition) is int and tp.partition >= 0 for tp in partitions):
        raise OptionError(complaint)
    return tuple(sorted(partitions))


def _bounds(given: Options, *, stream: bool) -> tuple[Bound, Bound]:
    if stream:
        for name in _BATCH_ONLY:
            if given.text(name) is not None:
                raise OptionError(f"the option {name} is for batch reads: a stream has no end")
        return _bound(given, "starting", LATEST), Bound(everywhere=LATEST)
    starting, ending = _bound(given, "starting", EARLIEST), _bound(given, "ending", LATEST)
    _check_edge(starting, LATEST, "startingOffsets of a batch read cannot be latest: there would be nothing to read")
    _check_edge(ending, EARLIEST, "endingOffsets of a batch read cannot be earliest: there would be nothing to read")
    if starting.each and ending.each and starting.by_timestamp == ending.by_timestamp:
        for tp, start in starting.each.items():
            end = ending.each.get(tp, start)
            if 0 <= end < start:
                raise OptionError(f"of {tp} the start ({start}) is after the end ({end})")
    return starting, ending


def _bound(given: Options, which: str, default: int) -> Bound:
    """Return one end of the read. As in Spark, a timestamp for all precedes timestamps for each, these offsets."""
    timestamp = given.text(f"{which}Timestamp")
    if timestamp is not None:
        if not timestamp.isdecimal():
            raise OptionError(f"the option {which}Timestamp is milliseconds since 1970, not {timestamp!r}")
        return Bound(by_timestamp=True, everywhere=int(timestamp))
    timestamps = given.text(f"{which}OffsetsByTimestamp")
    if timestamps is not None:
        return Bound(by_timestamp=True, each=_each(f"{which}OffsetsByTimestamp", timestamps, at_least=0))
    offsets = given.text(f"{which}Offsets")
    if offsets is None:
        return Bound(everywhere=default)
    if offsets.lower() in ("earliest", "latest"):
        return Bound(everywhere=EARLIEST if offsets.lower() == "earliest" else LATEST)
    return Bound(each=_each(f"{which}Offsets", offsets, at_least=EARLIEST))


def _each(option: str, text: str, *, at_least: int) -> PartitionOffsets:
    try:
        each = PartitionOffsets.from_json(text)
    except ValueError as error:
        raise OptionError(f"the option {option} is not understood: {error}") from None
    if not each:
        raise OptionError(f"the option {option} names no partition")
    for tp, number in each.items():
        if number < at_least:
            raise OptionError(f"the option {option} has {number} for {tp}; the least is {at_least}")
    return each


def _check_edge(bound: Bound, edge: int, complaint: str) -> None:
    if not bound.by_timestamp and (bound.everywhere == edge or edge in bound.each.values()):
        raise OptionError(complaint)
