"""One member of a consumer group as a process of its own, so that it can be stopped, frozen and killed like any other.

    python member.py --name m1 --client aiokafka --bootstrap ... --group g --topics t --events m1.jsonl

It processes records, commits what it has processed, and appends what happens to it to a file of JSON lines. Times are
CLOCK_MONOTONIC, which all processes of a machine share ("t"), and wall clock ("wall"):

    started     the process runs; "client", "member"
    assigned    partitions it now owns; "generation" where the library tells
    revoked     partitions it gives away, after it has committed them
    lost        partitions that were taken from it
    processed   "ranges": topic, partition, first and last offset
    committed   "begin", "offsets", "outcome": ok, refused (the broker said no), unknown (no answer)
    misread     a record whose key is not the one that was produced there
    fenced      the broker refuses this member for good
    stopping    it was asked to end; "stopped" when it has
    failed      an error that ends it

A "processed" line is written before the commit that covers it, so nothing is committed that is not in the file.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

CLIENTS = ("confluent", "confluent-848", "aiokafka", "kafka-python")
ASSIGNORS = ("range", "roundrobin", "cooperative-sticky", "uniform")
FENCED_EXIT_CODE = 3

_EVENTS_MAX = 500_000
_POLL_S = 0.1
_POLL_RECORDS_MAX = 100
_COMMIT_EVERY_S = 0.5
_FLUSH_EVERY_S = 0.05
_COMMIT_S_MAX = 15.0
_REBALANCE_MS = 30_000
#: partition growth is noticed by clients that ask for metadata
_METADATA_AGE_MS = 1000
#: FENCED_INSTANCE_ID, UNRELEASED_INSTANCE_ID, and what librdkafka makes of errors that it cannot live with
_FENCED_CODES = (82, 111, -150)
_REQUEST_TIMED_OUT = 7
_PR_SET_PDEATHSIG = 1

Place = tuple[str, int]


class EventLog:
    """Appends one line per event; each is in the file when the call returns, whatever becomes of the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._left = _EVENTS_MAX

    def write(self, event: str, **fields: Any) -> None:
        self._left -= 1
        assert self._left > 0, f"more than {_EVENTS_MAX} events"
        line = {"t": time.monotonic(), "wall": time.time(), "event": event, **fields}
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


class Work:
    """What a member has processed and not yet committed; the same for every library."""

    def __init__(self, log: EventLog, commit_every: int) -> None:
        self.log = log
        self.stopping = False
        self._commit_every = commit_every
        #: per partition that it owns the offset to commit, and what is in the file as committed
        self._positions: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._ranges: dict[Place, list[int]] = {}
        self._since_commit = 0
        self._flushed_at = self._commit_at = 0.0

    def take(self, place: Place, offset: int, key: bytes | None) -> None:
        """Process a record."""
        if key != b"%d/%d" % (place[1], offset):
            self.log.write("misread", place=place, offset=offset, key=repr(key))
        span = self._ranges.get(place)
        if span is not None and span[1] + 1 != offset:
            self.flush()
            span = None
        if span is None:
            self._ranges[place] = [offset, offset]
        else:
            span[1] = offset
        self._positions[place] = offset + 1
        self._since_commit += 1

    def flush(self) -> None:
        self._flushed_at = time.monotonic()
        if self._ranges:
            self.log.write("processed", ranges=[[*place, *span] for place, span in self._ranges.items()])
            self._ranges = {}

    def due(self, *, idle: bool) -> dict[Place, int]:
        """What to commit now: nothing, or every position that is not committed."""
        now = time.monotonic()
        if idle or self._since_commit >= self._commit_every or now >= self._commit_at:
            self._commit_at = now + _COMMIT_EVERY_S
            return self.uncommitted(self._positions)
        if now >= self._flushed_at + _FLUSH_EVERY_S:
            self.flush()
        return {}

    def uncommitted(self, places: Iterable[Place]) -> dict[Place, int]:
        self.flush()
        self._since_commit = 0
        return {
            place: self._positions[place]
            for place in places
            if place in self._positions and self._positions[place] != self._committed.get(place)
        }

    def assigned(self, places: Iterable[Place], generation: int | None = None) -> None:
        self.flush()
        self._forget(places)
        self.log.write("assigned", partitions=sorted(places), generation=generation)

    def revoked(self, places: Iterable[Place]) -> None:
        self.flush()
        self._forget(places)
        self.log.write("revoked", partitions=sorted(places))

    def lost(self, places: Iterable[Place]) -> None:
        self.flush()
        self._forget(places)
        self.log.write("lost", partitions=sorted(places))

    def committed(self, begin: float, offsets: dict[Place, int], outcome: str, error: str = "", **more: Any) -> None:
        lines = [[*place, offset] for place, offset in offsets.items()]
        self.log.write("committed", begin=begin, offsets=lines, outcome=outcome, error=error, **more)
        if outcome == "ok":
            self._committed.update(offsets)

    def _forget(self, places: Iterable[Place]) -> None:
        for place in places:
            self._positions.pop(place, None)
            self._committed.pop(place, None)


# -- confluent-kafka ------------------------------------------------------------------------------------------------


class Confluent:
    """librdkafka, with either group protocol. Everything happens within its poll."""

    def __init__(self, options: argparse.Namespace, work: Work) -> None:
        from confluent_kafka import Consumer

        self._work = work
        self._topics = options.topics
        settings: dict[str, Any] = {
            "bootstrap.servers": options.bootstrap,
            "client.id": options.name,
            "group.id": options.group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "max.poll.interval.ms": _REBALANCE_MS,
            "topic.metadata.refresh.interval.ms": _METADATA_AGE_MS,
            "fetch.wait.max.ms": 100,
            "reconnect.backoff.max.ms": 500,
        }
        if options.instance:
            settings["group.instance.id"] = options.instance
        if options.client == "confluent-848":
            settings["group.protocol"] = "consumer"
            if options.assignor in ("uniform", "range"):
                settings["group.remote.assignor"] = options.assignor
        else:
            settings["session.timeout.ms"] = options.session_ms
            settings["heartbeat.interval.ms"] = options.heartbeat_ms
            settings["partition.assignment.strategy"] = options.assignor
        if options.debug:
            settings["debug"] = options.debug
        self._consumer = Consumer(settings)

    def run(self) -> None:
        consumer, work = self._consumer, self._work
        consumer.subscribe(
            self._topics,
            on_assign=lambda _, found: work.assigned(_places(found)),
            on_revoke=self._on_revoke,
            on_lost=lambda _, found: work.lost(_places(found)),
        )
        while not work.stopping:
            message = consumer.poll(_POLL_S)
            if message is not None and message.error() is not None:
                self._on_error(message.error())
            elif message is not None:
                work.take((message.topic(), message.partition()), message.offset(), message.key())
            self._commit(work.due(idle=message is None))
        work.log.write("stopping")
        consumer.close()

    def _on_revoke(self, _: Any, found: list[Any]) -> None:
        places = _places(found)
        self._commit(self._work.uncommitted(places))
        self._work.revoked(places)

    def _on_error(self, error: Any) -> None:
        if error.fatal() or error.code() in _FENCED_CODES:
            raise Fenced(str(error))
        print(f"librdkafka: {error}", file=sys.stderr)

    def _commit(self, offsets: dict[Place, int]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        if not offsets:
            return
        begin = time.monotonic()
        try:
            answers = self._consumer.commit(
                offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=False
            )
        except KafkaException as failure:
            error = failure.args[0]
            self._work.committed(begin, offsets, _outcome(error.code()), str(error))
            if error.fatal() or error.code() in _FENCED_CODES:
                raise Fenced(str(error)) from None
            return
        refused = {(each.topic, each.partition): each.error for each in answers if each.error is not None}
        taken = {place: offset for place, offset in offsets.items() if place not in refused}
        if taken:
            self._work.committed(begin, taken, "ok")
        for place, error in refused.items():
            self._work.committed(begin, {place: offsets[place]}, _outcome(error.code()), str(error))


def _places(found: Iterable[Any]) -> list[Place]:
    return [(each.topic, each.partition) for each in found]


def _outcome(code: int) -> str:
    """Codes of librdkafka's own are negative: then the broker has not said anything. After 7 it may be done or not."""
    return "refused" if code > 0 and code != _REQUEST_TIMED_OUT else "unknown"


# -- kafka-python ---------------------------------------------------------------------------------------------------


class KafkaPython:
    """kafka-python: listeners are called within its poll."""

    def __init__(self, options: argparse.Namespace, work: Work) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from kafka import KafkaConsumer
            from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
            from kafka.coordinator.assignors.range import RangePartitionAssignor
            from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        assignors = [RangePartitionAssignor, RoundRobinPartitionAssignor, CooperativeStickyAssignor]
        self._work = work
        self._topics = options.topics
        self._consumer = KafkaConsumer(
            bootstrap_servers=options.bootstrap, client_id=options.name, group_id=options.group,
            group_instance_id=options.instance or None, enable_auto_commit=False, auto_offset_reset="earliest",
            session_timeout_ms=options.session_ms, heartbeat_interval_ms=options.heartbeat_ms,
            max_poll_interval_ms=_REBALANCE_MS, metadata_max_age_ms=_METADATA_AGE_MS, fetch_max_wait_ms=100,
            reconnect_backoff_max_ms=500, request_timeout_ms=_REBALANCE_MS + 5000,
            partition_assignment_strategy=[each for each in assignors if each.name == options.assignor],
        )  # fmt: skip

    def run(self) -> None:
        from kafka.errors import KafkaConnectionError

        work = self._work
        self._consumer.subscribe(self._topics, listener=_kafka_python_listener(self, work))
        while not work.stopping:
            try:
                found = self._consumer.poll(timeout_ms=int(_POLL_S * 1000), max_records=_POLL_RECORDS_MAX)
            except KafkaConnectionError:
                # It does not wait for a broker that went away in the middle of a rebalance; an application has to.
                time.sleep(_POLL_S)
                continue
            self._take_up_join()
            for place, records in found.items():
                for record in records:
                    work.take((place.topic, place.partition), record.offset, record.key)
            self._commit(work.due(idle=not found))
        work.log.write("stopping")
        # Its goodbye fails when the broker is away at that moment, with whatever it met then.
        with suppress(KafkaConnectionError):
            self._consumer.close()

    def _take_up_join(self) -> None:
        """A leader that rejoins for new metadata sees no need of it once it has made the assignment.

        When its poll gives up before the answer to SyncGroup is there, it never looks at it, and has no heartbeats.
        """
        coordinator = self._consumer._coordinator
        if coordinator.rejoining and not coordinator.need_rejoin():
            coordinator.request_rejoin()

    def generation(self) -> int:
        return int(self._consumer._coordinator._generation.generation_id)

    def _commit(self, offsets: dict[Place, int]) -> None:
        from kafka.errors import KafkaError

        if not offsets:
            return
        begin, generation = time.monotonic(), self.generation()
        try:
            self._consumer.commit(self._wanted(offsets), timeout_ms=int(_COMMIT_S_MAX * 1000))
        except KafkaError as error:
            self._not_committed(begin, offsets, error, generation)
        else:
            self._work.committed(begin, offsets, "ok", generation=generation)

    async def commit_within_listener(self, offsets: dict[Place, int]) -> None:
        """The blocking call is refused there."""
        from kafka.errors import KafkaError

        if not offsets:
            return
        begin, generation = time.monotonic(), self.generation()
        # Otherwise the future is that of looking for the coordinator, and nobody tells what became of the commit.
        tells = not self._consumer._coordinator.coordinator_unknown()
        try:
            await self._consumer.commit_async(self._wanted(offsets), callback=lambda *_: None)
        except KafkaError as error:
            self._not_committed(begin, offsets, error, generation)
        else:
            self._work.committed(begin, offsets, "ok" if tells else "unknown", generation=generation)

    @staticmethod
    def _wanted(offsets: dict[Place, int]) -> dict[Any, Any]:
        from kafka import OffsetAndMetadata, TopicPartition

        return {TopicPartition(*place): OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()}

    def _not_committed(self, begin: float, offsets: dict[Place, int], error: Exception, generation: int) -> None:
        from kafka.errors import BrokerResponseError, CommitFailedError, RequestTimedOutError

        refused = isinstance(error, BrokerResponseError | CommitFailedError)
        outcome = "refused" if refused and not isinstance(error, RequestTimedOutError) else "unknown"
        self._work.committed(begin, offsets, outcome, repr(error), generation=generation)
        _check_fenced(error)


def _kafka_python_listener(member: KafkaPython, work: Work) -> Any:
    from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener

    class Listener(AsyncConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            places = _places(revoked)
            await member.commit_within_listener(work.uncommitted(places))
            work.revoked(places)

        async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            work.assigned(_places(assigned), member.generation())

        async def on_partitions_lost(self, lost: Iterable[Any]) -> None:
            work.lost(_places(lost))

    return Listener()


def _check_fenced(error: BaseException) -> None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Fenced) or type(cause).__name__ == "FencedInstanceIdError":
            raise Fenced(repr(error)) from None
        cause = cause.__cause__ or cause.__context__


# -- aiokafka -------------------------------------------------------------------------------------------------------


class Aiokafka:
    """aiokafka: its rebalances run beside the task that processes, so commits take turns."""

    def __init__(self, options: argparse.Namespace, work: Work) -> None:
        self._work = work
        self._options = options
        self._consumer: Any = None

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        options, work = self._options, self._work
        self._turn = asyncio.Lock()
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=options.bootstrap, client_id=options.name, group_id=options.group,
            group_instance_id=options.instance or None, enable_auto_commit=False, auto_offset_reset="earliest",
            session_timeout_ms=options.session_ms, heartbeat_interval_ms=options.heartbeat_ms,
            rebalance_timeout_ms=_REBALANCE_MS, max_poll_interval_ms=_REBALANCE_MS,
            metadata_max_age_ms=_METADATA_AGE_MS, fetch_max_wait_ms=100, request_timeout_ms=_REBALANCE_MS + 5000,
            partition_assignment_strategy=[
                each for each in (RangePartitionAssignor, RoundRobinPartitionAssignor) if each.name == options.assignor
            ],
        )  # fmt: skip
        while not await self._started():
            await asyncio.sleep(_POLL_S)
        self._consumer.subscribe(options.topics, listener=_aiokafka_listener(self, work))
        while not work.stopping:
            found = await self._consumer.getmany(timeout_ms=int(_POLL_S * 1000), max_records=_POLL_RECORDS_MAX)
            for place, records in found.items():
                for record in records:
                    work.take((place.topic, place.partition), record.offset, record.key)
            async with self._turn:
                await self.commit(work.due(idle=not found))
        work.log.write("stopping")
        async with self._turn:
            places = _places(self._consumer.assignment())
            await self.commit(work.uncommitted(places))
        # Its end is cut short by its own cancellations when the broker is away at that moment.
        with suppress(asyncio.CancelledError):
            await self._consumer.stop()
        # It does not tell its listener of the end.
        work.revoked(places)

    async def _started(self) -> bool:
        """It does not wait for a broker that is away at its start."""
        from aiokafka.errors import KafkaConnectionError

        try:
            await self._consumer.start()
        except KafkaConnectionError:
            return False
        return True

    def generation(self) -> int:
        return int(self._consumer._coordinator.generation)

    async def on_revoked(self, places: list[Place]) -> None:
        async with self._turn:
            await self.commit(self._work.uncommitted(places))
            self._work.revoked(places)

    async def commit(self, offsets: dict[Place, int]) -> None:
        from aiokafka import TopicPartition
        from aiokafka.errors import (
            BrokerResponseError,
            CommitFailedError,
            IllegalStateError,
            KafkaError,
            RequestTimedOutError,
        )

        # Without a generation it would commit like a client that is in no group at all, which no broker can refuse
        # while the group is empty.
        if not offsets or self.generation() < 0:
            return
        generation, begin = self.generation(), time.monotonic()
        try:
            commit = self._consumer.commit({TopicPartition(*place): offset for place, offset in offsets.items()})
            await asyncio.wait_for(commit, _COMMIT_S_MAX)
        except (KafkaError, TimeoutError) as error:
            refused = isinstance(error, BrokerResponseError | CommitFailedError | IllegalStateError)
            outcome = "refused" if refused and not isinstance(error, RequestTimedOutError) else "unknown"
            self._work.committed(begin, offsets, outcome, repr(error), generation=generation)
        else:
            self._work.committed(begin, offsets, "ok", generation=generation)


def _aiokafka_listener(member: Aiokafka, work: Work) -> Any:
    from aiokafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
            await member.on_revoked(_places(revoked))

        async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
            work.assigned(_places(assigned), member.generation())

    return Listener()


# -- the process ----------------------------------------------------------------------------------------------------


class Fenced(Exception):
    """The broker will not have this member any more."""


_LIBRARIES: dict[str, Callable[[argparse.Namespace, Work], Any]] = {
    "confluent": Confluent,
    "confluent-848": Confluent,
    "aiokafka": Aiokafka,
    "kafka-python": KafkaPython,
}


def main() -> int:
    # Whoever started this may be killed: then nobody is left to end it, and a frozen process cannot end itself.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    options = _options()
    if options.parent and os.getppid() != options.parent:
        return 1
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    log = EventLog(options.events)
    work = Work(log, options.commit_every)

    def stop(*_: object) -> None:
        work.stopping = True

    signal.signal(signal.SIGTERM, stop)
    log.write("started", client=options.client, member=options.name, instance=options.instance)
    try:
        _LIBRARIES[options.client](options, work).run()
    except Fenced as error:
        work.flush()
        log.write("fenced", error=str(error))
        return FENCED_EXIT_CODE
    except BaseException as error:
        with suppress(Fenced):
            _check_fenced(error)
            work.flush()
            log.write("failed", error=repr(error))
            traceback.print_exc()
            return 1
        work.flush()
        log.write("fenced", error=repr(error))
        return FENCED_EXIT_CODE
    work.flush()
    log.write("stopped")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="a member of a consumer group that keeps a diary")
    parser.add_argument("--name", required=True)
    parser.add_argument("--client", choices=CLIENTS, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topics", nargs="+", required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--instance", default="", help="group.instance.id of a static member")
    parser.add_argument("--assignor", choices=ASSIGNORS, default="range")
    parser.add_argument("--session-ms", type=int, default=6000)
    parser.add_argument("--heartbeat-ms", type=int, default=500)
    parser.add_argument("--commit-every", type=int, default=50, help="records between commits")
    parser.add_argument("--parent", type=int, default=0, help="the process without which this one ends")
    parser.add_argument("--debug", default="", help="librdkafka's debug contexts")
    parser.add_argument("--log-level", default="WARNING")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
