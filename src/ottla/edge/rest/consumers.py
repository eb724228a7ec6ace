"""Consumer instances: created by name, found again by the user who created them, deleted when they are idle."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

from ottla.edge.rest import admin
from ottla.edge.rest.errors import (
    CONSUMER_EXISTS,
    CONSUMER_INSTANCE_NOT_FOUND,
    CONSUMERS_EXCEEDED,
    NO_CONSUMER_FREE,
    RecordErrors,
    unprocessable,
)
from ottla.edge.rest.group_consumer import GroupConsumer, Poller
from ottla.edge.rest.kafka import READ_AHEAD, Identity, Kafka, Owner
from ottla.edge.rest.settings import RestSettings
from ottla.edge.web.app import HttpError

log = logging.getLogger(__name__)

#: more than the time after which an instance expires, because librdkafka leaves the group after max.poll.interval.ms
_POLL_INTERVAL_MORE_MS: Final = 60_000
_POLL_INTERVAL_MAX_MS: Final = 86_400_000
#: without more records for this long, an answer is complete
_QUIET_S: Final = 0.05
#: how often topics are matched with a pattern again
_PATTERN_S: Final = 10.0
#: how often a waiting GET checks whether its client is still connected
_CONNECTED_S: Final = 0.5

_NOT_FOUND: Final = (
    "Consumer instance not found. It has expired, or it belongs to another proxy: send its requests to the base_uri "
    "that the answer to its creation names."
)


#: gets the schemas of these keys and values
Load = Callable[[list[bytes | None]], Awaitable[None]]


class InstanceOptions(NamedTuple):
    """How a consumer instance was created."""

    name: str | None
    #: BINARY, JSON, AVRO …
    format: str
    auto_offset_reset: str | None
    auto_commit: bool | None
    fetch_min_bytes: int | None
    request_timeout_ms: int | None


class Reading(NamedTuple):
    """How a request reads records."""

    timeout_s: float
    bytes_max: int
    #: returns what the answer has of a record
    convert: Callable[[Any], Any]
    is_disconnected: Callable[[], Awaitable[bool]]
    #: gets the schemas of records before they are converted; None if their format has none
    load: Load | None


class Instance:
    """A consumer instance."""

    def __init__(self, name: str, group: str, owner: Owner, options: InstanceOptions, consumer: GroupConsumer) -> None:
        self.name = name
        self.group = group
        self.owner = owner
        self.options = options
        self.consumer = consumer
        self.expires_at = 0.0
        #: when the topics that match its pattern are looked up again
        self.refresh_at = 0.0
        #: one GET of records at a time
        self.reading = asyncio.Lock()
        self.requests = 0


class Instances:
    """All consumer instances of this process."""

    def __init__(self, settings: RestSettings, kafka: Kafka) -> None:
        self._settings = settings
        self._kafka = kafka
        self._instances: dict[tuple[str, str], Instance] = {}
        self._groups: Counter[str] = Counter()
        self._poller = Poller()

    def create(self, group: str, identity: Identity, options: InstanceOptions) -> Instance:
        """Create an instance. Raise HttpError if the name is taken or there are too many."""
        settings = self._settings
        name = options.name or "-".join(filter(None, ("rest-consumer", settings.id, str(uuid.uuid4()))))
        if (group, name) in self._instances:
            raise HttpError(
                409,
                CONSUMER_EXISTS,
                "Consumer with specified consumer ID already exists in the specified consumer group.",
            )
        if len(self._instances) >= settings.consumer_instances_max:
            raise HttpError(503, NO_CONSUMER_FREE, "This process has as many consumer instances as it allows.")
        if self._groups[group] >= settings.consumer_instances_per_group_max:
            raise HttpError(429, CONSUMERS_EXCEEDED, f"Group {group!r} has as many consumer instances as allowed.")
        interval_ms = max(settings.consumer_instance_timeout_ms + _POLL_INTERVAL_MORE_MS, 300_000)
        properties = {
            "group.id": group,
            "max.poll.interval.ms": str(min(interval_ms, _POLL_INTERVAL_MAX_MS)),
            # Offsets are stored for records that the client got, not for those that were read ahead.
            "enable.auto.offset.store": "false",
            **READ_AHEAD,
            # A member learns of a rebalance from its heartbeat.
            "heartbeat.interval.ms": "1000",
        }
        if options.auto_offset_reset is not None:
            properties["auto.offset.reset"] = options.auto_offset_reset
        if options.auto_commit is not None:
            properties["enable.auto.commit"] = str(options.auto_commit).lower()
        owner = Owner(identity)
        made = GroupConsumer(self._kafka.consumer(owner, properties), asyncio.get_running_loop())
        instance = Instance(name, group, owner, options, made)
        self._touch(instance)
        self._instances[group, name] = instance
        self._groups[group] += 1
        self._poller.add(made)
        return instance

    def find(self, group: str, name: str, identity: Identity) -> Instance:
        """Return an instance of this user and extend its life. Raise HttpError 404 (40403) if there is none."""
        found = self._instances.get((group, name))
        if found is None or not found.owner.is_same_user(identity):
            raise HttpError(404, CONSUMER_INSTANCE_NOT_FOUND, _NOT_FOUND)
        found.owner.renew(identity)
        self._touch(found)
        return found

    def _touch(self, instance: Instance) -> None:
        instance.expires_at = time.monotonic() + self._settings.consumer_instance_timeout_ms / 1000

    async def delete(self, instance: Instance) -> None:
        """Close an instance; its consumer leaves the group."""
        self._remove(instance)
        await self._kafka.run(instance.consumer.close)

    def _remove(self, instance: Instance) -> None:
        if self._instances.pop((instance.group, instance.name), None) is not None:
            self._groups[instance.group] -= 1
            if not self._groups[instance.group]:
                del self._groups[instance.group]
            self._poller.remove(instance.consumer)

    # Patterns

    async def subscribe_to_pattern(self, instance: Instance, pattern: str) -> None:
        """Subscribe to the topics that match a pattern, now and later. Raise HttpError 422 if it is not valid.

        The pattern is matched here, because librdkafka's regular expressions can take exponential time.
        """
        matches = _compile(pattern)
        metadata = await self._kafka.call(instance.owner.identity, admin.list_topics)
        topics = sorted(row.name for row in metadata.topics if row.name and not row.is_internal and matches(row.name))
        await self._kafka.run(lambda: instance.consumer.subscribe(topics, pattern))

    async def refresh_patterns(self) -> None:
        """Subscribe to new topics that match the patterns of instances. Called every few seconds."""
        for instance in list(self._instances.values()):
            pattern = instance.consumer.pattern
            if pattern is not None and time.monotonic() >= instance.refresh_at:
                instance.refresh_at = time.monotonic() + _PATTERN_S
                try:
                    await self.subscribe_to_pattern(instance, pattern)
                except RecordErrors as error:
                    log.warning("subscription was not refreshed group=%s error=%s", instance.group, error)

    def close_expired(self) -> None:
        """Delete instances without a request for `consumer.instance.timeout.ms`, and those whose token has expired.

        Called every second.
        """
        now = time.monotonic()
        for instance in list(self._instances.values()):
            if instance.owner.identity.is_expired or (instance.expires_at < now and not instance.requests):
                self._close_later(instance)

    def _close_later(self, instance: Instance) -> None:
        self._remove(instance)
        self._kafka.close_later(instance.consumer.close)

    async def close(self) -> None:
        """Close all instances; `Kafka.close` waits until they are closed."""
        for instance in list(self._instances.values()):
            self._close_later(instance)
        await self._kafka.run(self._poller.close)

    # Records

    async def read(self, instance: Instance, reading: Reading) -> list[Any]:
        """Wait for records and return them. A client that has disconnected gets none, and the records stay."""
        wanted = instance.options.fetch_min_bytes
        bytes_min = self._settings.fetch_min_bytes if wanted is None else wanted
        instance.requests += 1
        try:
            async with instance.reading:
                return await self._read(instance.consumer, reading, bytes_min)
        finally:
            instance.requests -= 1
            self._touch(instance)

    async def _read(self, consumer: GroupConsumer, reading: Reading, bytes_min: int) -> list[Any]:
        bytes_max = reading.bytes_max
        deadline = time.monotonic() + reading.timeout_s
        records: list[Any] = []
        size = 0
        consumer.is_waited_for = True
        try:
            while True:
                consumer.arrived.clear()
                if not records and await reading.is_disconnected():
                    return []
                if reading.load is not None:
                    await reading.load(consumer.peek())
                try:
                    found, more = consumer.take(bytes_max - size, reading.convert)
                except HttpError:
                    if records:
                        return records  # the next request gets the error
                    raise
                records += found
                size += more
                left_s = deadline - time.monotonic()
                if left_s <= 0 or size >= bytes_max or (size > bytes_min >= 0):
                    return records
                # Records that arrive together, from several partitions, belong to one answer.
                pause_s = _QUIET_S if records and bytes_min < 0 else _CONNECTED_S
                try:
                    async with asyncio.timeout(min(left_s, pause_s)):
                        await consumer.arrived.wait()
                except TimeoutError:
                    if records and bytes_min < 0:
                        return records
        finally:
            consumer.is_waited_for = False


def _compile(pattern: str) -> Callable[[str], Any]:
    """Return a function that matches whole names. Raise HttpError 422 if the pattern is not valid."""
    import re2

    options = re2.Options()
    options.log_errors = False
    try:
        compiled: Any = re2.compile(pattern, options)
        return cast(Callable[[str], Any], compiled.fullmatch)
    except re2.error as error:
        raise unprocessable(f"topic_pattern is not a regular expression: {error}") from None
