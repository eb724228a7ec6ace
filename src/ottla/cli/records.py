"""Producers and consumers of the command line, and the only file that imports confluent-kafka.

The commands that write and read records use librdkafka. They import this file when they run, because the import is
slow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import click
from confluent_kafka import Consumer as Consumer
from confluent_kafka import KafkaError as KafkaError
from confluent_kafka import KafkaException as KafkaException
from confluent_kafka import Message as Message
from confluent_kafka import Producer as Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka import libversion

from ottla.admin import error_codes, outages
from ottla.admin.failure import Failure, NotFound, NotHealthy
from ottla.cli import interrupts
from ottla.cli.connection import ClusterOptions
from ottla.model.types import TopicPartition

#: longest call into librdkafka during which Ctrl-C is deferred
_CALL_S_MAX = 0.1
#: librdkafka's own log lines on stderr are turned off, because the command reports the errors
_LOG_LEVEL_QUIET = "2"

_NOT_FOUND = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_UNREACHABLE = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._RESOLVE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError.REQUEST_TIMED_OUT,
}
_REFUSED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._SSL}

Properties = Mapping[str, str | int | float | bool]
Delivered = Callable[[KafkaError | None, Message], None]


def client_version() -> str:
    return str(libversion()[0])


def check_properties(connection: ClusterOptions) -> None:
    """Raise UsageError if librdkafka does not know a property, or refuses its value."""
    with _failures("client"):
        Producer(_configuration(connection))


def open_writer(connection: ClusterOptions, properties: Properties) -> Writer:
    """Return a producer with these properties. Properties that the user has set with -X take precedence."""
    with _failures("producer"):
        return Writer(Producer({**_configuration(connection), **_unless_set(properties, connection)}))


def open_reader(connection: ClusterOptions, properties: Properties) -> Reader:
    """Return a consumer without a group, with these properties. Those that the user has set with -X take precedence."""
    fixed = {"enable.auto.commit": False, "enable.auto.offset.store": False, "enable.partition.eof": True}
    defaults = {"group.id": "ottla-cli", "auto.offset.reset": "earliest", **properties}
    with _failures("consumer"):
        return Reader(Consumer({**_configuration(connection), **_unless_set(defaults, connection), **fixed}))


def open_producer(connection: ClusterOptions) -> Producer:
    """Return librdkafka's own producer, for tools that use its transactions."""
    with _failures("producer"):
        return Producer(_configuration(connection))


def open_consumer(connection: ClusterOptions) -> Consumer:
    """Return librdkafka's own consumer, for tools that join groups."""
    with _failures("consumer"):
        return Consumer(_configuration(connection))


def offsets_to_commit(offsets: Mapping[tuple[str, int], int]) -> list[KafkaPartition]:
    """Return offsets by topic and partition in the form that `Consumer.commit` takes."""
    return [KafkaPartition(*name, offset) for name, offset in offsets.items()]


def ends_of(consumer: Consumer, topic: str, partitions: int, timeout_s: float) -> list[KafkaPartition]:
    """Return the ends of the partitions of a topic in the form that `Consumer.assign` takes."""
    names = [KafkaPartition(topic, number) for number in range(partitions)]
    with _failures(topic):
        return [KafkaPartition(each.topic, each.partition, consumer.get_watermark_offsets(each, timeout_s)[1])
                for each in names]  # fmt: skip


class Writer:
    """A producer whose `send` waits while its queue is full."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        #: called while the queue is full
        self.while_full: Callable[[], None] = lambda: None

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
        headers: list[tuple[str, str | bytes | None]] | None = None,
        on_delivery: Delivered | None = None,
    ) -> None:
        """Queue a record. Raise Failure if librdkafka refuses it, because it is too large for example."""
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=on_delivery,
                    timestamp=timestamp,
                    headers=headers,
                )
            except BufferError:
                self.poll(0.1)
                self.while_full()
                continue
            except KafkaException as exception:
                raise failure_of(exception.args[0], topic, topic) from None
            return

    def warm_up(self, topic: str, timeout_s: float) -> None:
        """Ask for the leaders of the topic, so that the first record does not wait for them."""
        try:
            interrupts.run_interruptibly(lambda: self._producer.list_topics(topic, timeout_s))
        except KafkaException as exception:
            raise failure_of(exception.args[0], topic, topic) from None

    def poll(self, timeout_s: float) -> None:
        """Run the callbacks of records that were delivered or have failed. Wait at most 0.1 s for the first."""
        with interrupts.deferred(), _fatal_errors():
            self._producer.poll(min(timeout_s, _CALL_S_MAX))

    def flush(self, timeout_s: float) -> int:
        """Wait at most 0.1 s for the records that were not acknowledged yet, and return how many are left."""
        with interrupts.deferred(), _fatal_errors():
            return self._producer.flush(min(timeout_s, _CALL_S_MAX))


@contextmanager
def _fatal_errors() -> Iterator[None]:
    """Raise an error that ends the producer as `Failure`."""
    try:
        yield
    except KafkaException as exception:
        raise failure_of(exception.args[0], "the producer stops") from None


class Reader:
    """A consumer that reads assigned partitions, and separates records from the ends of partitions."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def assign(self, starts: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign([KafkaPartition(*name, offset) for name, offset in starts.items()])

    def read(self, count_max: int, timeout_s: float) -> tuple[list[Message], dict[TopicPartition, int]]:
        """Return the records that have arrived, and the partitions at their end with the next offset of each.

        Waits for the first record only, so that a single record is returned at once, and many together.
        """
        with interrupts.deferred():
            first = self._consumer.poll(min(timeout_s, _CALL_S_MAX))
            if first is None:
                return [], {}
            messages = [first, *self._consumer.consume(count_max - 1, 0)] if count_max > 1 else [first]
        ends = {}
        has_errors = False
        for message in messages:
            error = message.error()
            if error is None:
                continue
            has_errors = True
            if _concerns_group(message):
                continue
            if error.code() != KafkaError._PARTITION_EOF:
                subject = f"{message.topic()}-{message.partition()}" if message.topic() else "the cluster"
                raise failure_of(error, subject, message.topic())
            ends[TopicPartition(str(message.topic()), _known(message.partition()))] = _known(message.offset())
        return ([message for message in messages if message.error() is None] if has_errors else messages), ends

    def pause(self, name: TopicPartition) -> None:
        self._consumer.pause([KafkaPartition(*name)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()


def failure_of(error: KafkaError, subject: str, topic: str | None = None) -> Failure:
    """Return the failure for an error of librdkafka or of a broker."""
    code, text = error.code(), error.str()
    if code in _NOT_FOUND and topic is not None:
        return error_codes.no_such_topic(topic)
    if code in _NOT_FOUND or code == KafkaError._UNKNOWN_PARTITION:
        return NotFound(f"{subject} does not exist; see 'ottla topic describe'")
    if code in _UNREACHABLE:
        return NotHealthy(f"{subject}: {text}; see 'ottla doctor'")
    if code == KafkaError.LEADER_NOT_AVAILABLE:
        return outages.no_leader(subject)
    if code in _REFUSED:
        return Failure(f"the broker refused this client: {text}; set security.* and sasl.* with -X")
    if code == KafkaError._UNSUPPORTED_FEATURE:
        return Failure(f"the broker does not support this request: {text}; use a newer broker")
    if code == KafkaError._INVALID_ARG and "configuration property" in text:
        raise click.UsageError(f"{text} (from -X or --command-config)", click.get_current_context(silent=True))
    # librdkafka has errors of its own, with negative codes, and texts for all errors of brokers.
    return error_codes.explain(code, subject, text) if code > 0 else Failure(f"{subject}: {text}")


def _configuration(connection: ClusterOptions) -> dict[str, Any]:
    properties = connection.properties
    quiet = {} if {"log_level", "debug"} & properties.keys() else {"log_level": _LOG_LEVEL_QUIET}

    def warn(error: KafkaError) -> None:
        # librdkafka retries for as long as records wait. The user should know why nothing happens.
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            click.echo(f"warning: lost the connection to {connection.bootstrap}, retrying", err=True)

    return {
        "client.id": "ottla-cli",
        **quiet,
        **properties,
        "bootstrap.servers": connection.bootstrap,
        "error_cb": warn,
    }


def _unless_set(defaults: Mapping[str, Any], connection: ClusterOptions) -> dict[str, Any]:
    return {key: value for key, value in defaults.items() if key not in connection.properties}


@contextmanager
def _failures(subject: str) -> Iterator[None]:
    """Raise errors of librdkafka as `Failure`."""
    try:
        yield
    except KafkaException as exception:
        raise failure_of(exception.args[0], subject) from None
    except (ValueError, TypeError) as error:
        raise Failure(f"{subject}: {error}") from None


def _concerns_group(message: Message) -> bool:
    """Return whether this is an error of the consumer's group, which a reader of assigned partitions does not use.

    librdkafka wants a group.id and looks for its coordinator, also if it reads without a group.
    """
    error = message.error()
    codes = {KafkaError.GROUP_AUTHORIZATION_FAILED, *error_codes.COORDINATOR_UNAVAILABLE}
    return error is not None and message.topic() is None and error.code() in codes


def _known(number: int | None) -> int:
    assert number is not None, "an end of partition names its partition and offset"
    return number
