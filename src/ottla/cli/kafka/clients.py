"""Producers and consumers of tools: librdkafka's, configured with the properties of Java's clients."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from ottla.admin.failure import Failure
from ottla.cli import java_properties
from ottla.cli.connection import ClusterOptions
from ottla.cli.kafka.errors import IllegalArgument, ToolError
from ottla.cli.kafka.tool import print_error
from ottla.cli.records import Consumer, Producer, open_consumer, open_producer

#: Java's names, and librdkafka's for the same
_RENAMED: Final = {
    "buffer.memory": "queue.buffering.max.kbytes",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "max.request.size": "message.max.bytes",
    "compression.gzip.level": "compression.level",
    "compression.lz4.level": "compression.level",
    "compression.zstd.level": "compression.level",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
}
#: settings of Java's clients that have no meaning for another client
_JAVA_ONLY: Final = frozenset({
    "auto.include.jmx.reporter", "client.dns.lookup", "default.api.timeout.ms", "exclude.internal.topics",
    "interceptor.classes", "internal.auto.downgrade.txn.commit", "key.deserializer", "key.serializer", "max.block.ms",
    "max.poll.records", "metadata.max.idle.ms", "metadata.recovery.strategy", "metric.reporters", "metrics.num.samples",
    "metrics.recording.level", "metrics.sample.window.ms", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms", "partitioner.class", "partitioner.ignore.keys", "request.timeout.ms",
    "reconnect.backoff.ms.max", "security.providers", "throw.on.fetch.stable.offset.unsupported", "value.deserializer",
    "value.serializer",
})  # fmt: skip
_ASSIGNORS: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "CooperativeStickyAssignor": "cooperative-sticky",
    "StickyAssignor": "cooperative-sticky",
}
_ASSIGNOR_NAME: Final = "partition.assignment.strategy"
_RESETS: Final = {"none": "error"}
_UNKNOWN = re.compile(r'No such configuration property: "([^"]+)"')
_KB: Final = 1024
_TIMEOUT_S: Final = 60.0

_T = TypeVar("_T")


def make_producer(bootstrap: str | None, properties: Mapping[str, str]) -> Producer:
    """Return a producer. Raise ToolError if a property has a value that librdkafka refuses."""
    return _open(open_producer, bootstrap, properties)


def make_consumer(bootstrap: str | None, properties: Mapping[str, str]) -> Consumer:
    """Return a consumer, which has subscribed to no topic. Raise ToolError as `make_producer` does."""
    return _open(open_consumer, bootstrap, properties)


def librdkafka_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return Java's properties under librdkafka's names. Raise IllegalArgument if one cannot be read."""
    found: dict[str, str] = {}
    for name, value in properties.items():
        if name in _JAVA_ONLY:
            continue
        if name == "buffer.memory":
            value = str(max(int(value) // _KB, 1))
        elif name == _ASSIGNOR_NAME:
            value = ",".join(_ASSIGNORS.get(each.strip().rpartition(".")[2], each.strip()) for each in value.split(","))
        elif name == "auto.offset.reset":
            value = _RESETS.get(value, value)
        found[_RENAMED.get(name, name)] = value
    try:
        return java_properties.translate(found)
    except ValueError as error:
        raise IllegalArgument(str(error)) from None


def _open(make: Callable[[ClusterOptions], _T], bootstrap: str | None, properties: Mapping[str, str]) -> _T:
    settings: dict[str, Any] = librdkafka_properties(properties)
    address = bootstrap or settings.pop("bootstrap.servers", None)
    settings.pop("bootstrap.servers", None)
    if not address:
        raise ToolError("No resolvable bootstrap urls given in bootstrap.servers")
    while True:
        options = ClusterOptions(bootstrap=address, bootstrap_named=True, properties=settings, timeout_s=_TIMEOUT_S)
        try:
            return make(options)
        except (Failure, click.UsageError) as error:
            text = error.message
            unknown = _UNKNOWN.search(text)
            if unknown is None or settings.pop(unknown[1], None) is None:
                raise ToolError(text) from None
            # As Kafka's clients do.
            print_error(f"WARN These configurations '[{unknown[1]}]' were supplied but are not used yet.")


def parse_pairs(texts: list[str]) -> dict[str, str]:
    """Return the properties of NAME=VALUE words. Raise IllegalArgument for another word."""
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise IllegalArgument(f"Invalid property: {text}")
        pairs[name] = value
    return pairs
