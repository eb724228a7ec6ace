"""Topics that the user of a request may write to.

Nothing is done for a produce request, and no schema is looked up or registered for it, before the cluster has said that
its user may write to the topic. Code that needs this permission takes a `WritableTopic`, which only this file makes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final, NamedTuple

from ottla.client.cluster import Cluster
from ottla.edge.rest import admin
from ottla.edge.rest.admin import ConfigTarget
from ottla.edge.rest.errors import KafkaRefusal, partition_not_found
from ottla.edge.rest.kafka import Identity, Kafka
from ottla.edge.rest.resources import OPERATIONS
from ottla.edge.web.app import HttpError
from ottla.model.errors import ErrorCode

_KNOWN_MAX: Final = 10_000
_KNOWN_S: Final = 10.0
_WRITE_BIT: Final = 1 << OPERATIONS.index("WRITE")
#: Kafka's default of max.message.bytes
_BATCH_BYTES_MAX: Final = 1_048_588
#: a batch's header and the smallest header of a record
_BATCH_OVERHEAD: Final = 68


class WritableTopic(NamedTuple):
    """A topic that a user may write to, and what a producer has to know about it."""

    name: str
    partitions: int
    #: the topic's max.message.bytes
    batch_bytes_max: int


class Topics:
    """Remembers for a few seconds which topics a user may write to and what they allow.

    librdkafka would wait for an unknown topic to appear; a client of the proxy gets its error at once.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._known: OrderedDict[tuple[Identity, str], tuple[WritableTopic, float]] = OrderedDict()

    async def find(self, identity: Identity, topic: str, partition: int | None = None) -> WritableTopic:
        """Return a topic. Raise KafkaRefusal if it is unknown or the user may not write to it.

        Raise HttpError 404 if the partition is unknown.
        """
        known = self._known.get((identity, topic))
        if known is not None and known[1] > time.monotonic() and (partition is None or partition < known[0].partitions):
            return known[0]
        found = await self._kafka.call(identity, _read, topic)
        self._known[identity, topic] = (found, time.monotonic() + _KNOWN_S)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        if partition is not None and partition >= found.partitions:
            raise partition_not_found(topic, partition)
        return found

    async def may_write(self, identity: Identity, topic: str) -> bool:
        """Return whether a topic exists and the user may write to it. The topic is not created."""
        try:
            await self._kafka.call(identity, _count_partitions, topic, create=False)
        except KafkaRefusal as refusal:
            if refusal.http.status in (400, 403, 404):
                return False
            raise
        return True


def _read(cluster: Cluster, topic: str) -> WritableTopic:
    # The broker creates the topic if it is configured to do so, as for every other producer.
    partitions = _count_partitions(cluster, topic, create=True)
    target = ConfigTarget(admin.TOPIC, topic)
    try:
        (row,) = admin.describe_configs(cluster, [target], ["max.message.bytes"])[target].configs
        return WritableTopic(topic, partitions, int(row.value or _BATCH_BYTES_MAX))
    except (KafkaRefusal, ValueError):
        # The user may not be allowed to see configs.
        return WritableTopic(topic, partitions, _BATCH_BYTES_MAX)


def _count_partitions(cluster: Cluster, topic: str, *, create: bool) -> int:
    """Return the number of partitions. Raise KafkaRefusal if the user of the cluster's client may not write."""
    found = admin.describe_topic(cluster, topic, with_operations=True, create=create)
    if not found.topic_authorized_operations & _WRITE_BIT:
        raise KafkaRefusal(ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"topic {topic}")
    return len(found.partitions)


def check_size(topic: WritableTopic, *parts: bytes | None) -> None:
    """Raise HttpError 413 if a batch with this record alone is larger than the topic allows."""
    size = _BATCH_OVERHEAD + sum(len(part) for part in parts if part is not None)
    if size > topic.batch_bytes_max:
        raise HttpError(
            413, 413, f"The record is larger than the topic's max.message.bytes, {topic.batch_bytes_max:,}."
        )
