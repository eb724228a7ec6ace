"""Faults of consumer groups, each with the check that names it. They are added to those of `doctor_faults`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, TopicPartition
from doctor_faults import fault
from doctor_place import Place, poll

_HOUR_MS = 3_600_000


@contextmanager
def _repeated(work: Callable[[], object], every_s: float = 0.2) -> Iterator[None]:
    """Do some work in a thread until the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _poll_all(consumers: list[Consumer]) -> None:
    for consumer in consumers:
        consumer.poll(0.01)


def _commit(place: Place, group: str, topic: str, offset: int) -> None:
    """Commit an offset without being a member."""
    consumer = place.consumer(group)
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


@contextmanager
def _group_with_commit(place: Place, topic: str, offset: int) -> Iterator[str]:
    group = place.name("group")
    _commit(place, group, topic, offset)
    try:
        yield group
    finally:
        place.ottla("group", "delete", group, "--yes", code=None)


@fault("idle-members")
def _(place: Place) -> Iterator[None]:
    with place.topic() as topic, place.members(place.name("group"), *[[topic]] * 4) as members:
        poll(lambda: sum(len(each.assignment()) for each in members) == 3, *members)
        _commit_all(members)
        with _repeated(lambda: _poll_all(members), 0.05):
            yield


def _commit_all(members: list[Consumer]) -> None:
    """Commit the ends of the assigned partitions, so that the group has no other finding."""
    for member in members:
        ends = [TopicPartition(each.topic, each.partition, 0) for each in member.assignment()]
        if ends:
            member.commit(offsets=ends, asynchronous=False)


@fault("unread-partitions")
def _(place: Place) -> Iterator[None]:
    old = {"topic_metadata_refresh_interval_ms": -1, "metadata_max_age_ms": 86_400_000}
    with place.topic() as topic, place.members(place.name("group"), [topic], **old) as members:
        poll(lambda: len(members[0].assignment()) == 3, *members)
        _commit_all(members)
        place.ottla("topic", "alter", topic, "--partitions", "5")
        with _repeated(lambda: _poll_all(members), 0.05):
            yield


@fault("shared-group-ids")
def _(place: Place) -> Iterator[None]:
    with (
        place.topic() as one,
        place.topic() as other,
        place.members(place.name("group"), [one], [other]) as members,
    ):
        poll(lambda: all(len(each.assignment()) == 3 for each in members), *members)
        _commit_all(members)
        with _repeated(lambda: _poll_all(members), 0.05):
            yield


@fault("groups-without-commits")
def _(place: Place) -> Iterator[None]:
    with place.topic() as topic, place.members(place.name("group"), [topic]) as members:
        poll(lambda: len(members[0].assignment()) == 3, *members)
        with _repeated(lambda: _poll_all(members), 0.05):
            yield


@fault("rebalancing-groups", compare_s=3)
def _(place: Place) -> Iterator[None]:
    group = place.name("group")
    with place.topic() as topic, place.members(group, [topic], max_poll_interval_ms=300_000) as members:
        poll(lambda: len(members[0].assignment()) == 3, *members)
        # The first member does not poll any more, so it does not join again.
        second = place.consumer(group, topic)
        with _repeated(lambda: second.poll(0.05)):
            yield
        poll(lambda: bool(second.assignment()), second, *members)
        second.close()


@fault("lost-records")
def _(place: Place) -> Iterator[None]:
    with place.topic(records=20) as topic, _group_with_commit(place, topic, 5):
        place.delete_records(topic, 10)
        yield


@fault("commits-beyond-end")
def _(place: Place) -> Iterator[None]:
    with place.topic() as topic, _group_with_commit(place, topic, 1000):
        yield


@fault("lag-near-retention")
def _(place: Place) -> Iterator[None]:
    with place.topic(records=0, retention_ms=str(_HOUR_MS), segment_ms=str(_HOUR_MS)) as topic:
        place.produce(topic, 5, timestamp_ms=int(time.time() * 1000) - _HOUR_MS * 9 // 10)
        with _group_with_commit(place, topic, 0):
            yield


@fault("stopped-groups", compare_s=3)
def _(place: Place) -> Iterator[None]:
    with (
        place.topic() as topic,
        _group_with_commit(place, topic, 0),
        _repeated(lambda: place.produce(topic, 1)),
    ):
        yield


@fault("stalled-groups", compare_s=32)
def _(place: Place) -> Iterator[None]:
    with place.topic() as topic, place.members(place.name("group"), [topic]) as members:
        poll(lambda: len(members[0].assignment()) == 3, *members)
        _commit_all(members)
        with _repeated(lambda: _poll_all(members), 0.05), _repeated(lambda: place.produce(topic, 1)):
            yield


@fault("slow-groups", compare_s=32)
def _(place: Place) -> Iterator[None]:
    with place.topic(records=0) as topic, place.members(place.name("group"), [topic]) as members:
        place.produce(topic, 1000, timestamp_ms=int(time.time() * 1000) - 5 * 60_000)
        poll(lambda: len(members[0].assignment()) == 3, *members)
        committed = iter(range(1, 900))

        def work() -> None:
            _poll_all(members)
            members[0].commit(offsets=[TopicPartition(topic, 0, next(committed))], asynchronous=False)

        with _repeated(work, 0.5), _repeated(lambda: place.produce(topic, 20)):
            yield
