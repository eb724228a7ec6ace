"""The messages of `ottla produce` while the cluster does not acknowledge its records, and after the time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from ottla.admin.failure import Failure
from ottla.admin.outages import describe_partitions, without_leader

if TYPE_CHECKING:
    from ottla.cli.cluster import ClusterClient

#: librdkafka's property and its other name
_LIMITS = ("message.timeout.ms", "delivery.timeout.ms")
LIMIT_MS_DEFAULT = 120_000
#: the reason is printed when no record was acknowledged for this time
_FIRST_S = 3.0
#: after this time the reason is checked again, and printed if it has changed
_NEXT_S = 10.0
#: limit for the metadata that show the reason
_METADATA_S_MAX = 3.0


class Waiting:
    """Prints what records wait for. Call `look` often: it does nothing until no record is acknowledged for 3 s."""

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        partition: int | None,
        properties: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`partition` is the only one that records are sent to, `properties` are those that the user has set."""
        self._cluster = cluster
        self._topic = topic
        self._partition = partition
        self._limit_s = (
            next((float(properties[name]) for name in _LIMITS if name in properties), LIMIT_MS_DEFAULT) / 1e3
        )
        self._clock = clock
        #: records with an outcome when `look` was called last
        self._completed = -1
        #: when the reason is checked next
        self._look_at = 0.0
        self._reason = ""

    def look(self, in_flight: int, completed: int) -> None:
        """Print the reason if it is time to. The arguments count the records without and with an outcome."""
        now = self._clock()
        if not in_flight or completed != self._completed:
            self._completed, self._look_at, self._reason = completed, now + _FIRST_S, ""
            return
        if now < self._look_at:
            return
        reason = self.find_reason()
        self._look_at = self._clock() + _NEXT_S
        if reason != self._reason:
            self._reason = reason
            records = "1 record is" if in_flight == 1 else f"{in_flight} records are"
            end = f"giving up {self._limit_s:g} s after each was read" if self._limit_s else "without a limit"
            click.echo(f"waiting: {records} not acknowledged: {reason}; {end}", err=True)

    def find_reason(self) -> str:
        """Return what the records wait for, as far as the metadata of the cluster show it."""
        try:
            topics = self._cluster.topics(_METADATA_S_MAX)
        except Failure as failure:
            return failure.message
        topic = topics.get(self._topic)
        if topic is None:
            return f"topic {self._topic} does not exist"
        if offline := without_leader(topic, self._partition):
            return describe_partitions(self._topic, offline)
        for each in topic.partitions:
            number = each.name.partition
            if each.is_under_replicated and self._partition in (None, number):
                return (
                    f"partition {number} of topic {self._topic} has {len(each.isr)} of {len(each.replicas)} "
                    "replicas in sync, and acks=all needs min.insync.replicas of them"
                )
        return f"the leader of the partition has not answered, and topic {self._topic} has all its leaders"

    def describe_timeout(self) -> str:
        """Return why records were not stored in time, and the next step."""
        return (
            f"not acknowledged within {self._limit_s:g} s: {self.find_reason()}; see 'ottla cluster status' and start "
            "the brokers that do not run, then send these records again, or wait longer with -X message.timeout.ms=MS"
        )
