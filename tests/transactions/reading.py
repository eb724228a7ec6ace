"""Readers of committed records, and what the broker says about the end of its logs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import closing

from clients import LOG_LEVEL
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.testing.history import Place, Recorder
from ottla.testing.raw import RawClient
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

READ_S_MAX = 60.0
_ANSWER_S_MAX = 20.0
_LATEST = -1
_LIST_OFFSETS_VERSION = 7
_BATCH = 500
_AWAIT_S = 0.05


def create_topic(bootstrap: str, topic: str, partitions: int) -> list[Place]:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": LOG_LEVEL})
    (future,) = admin.create_topics([NewTopic(topic, partitions, 1)]).values()
    future.result(READ_S_MAX)
    places = [Place(topic, number) for number in range(partitions)]
    deadline = time.monotonic() + READ_S_MAX
    # In a cluster, the leader may learn of the topic after the broker that has created it.
    while any(code for _, code, _ in _ask_ends(bootstrap, places, isolation_level=0)):
        assert time.monotonic() < deadline, f"the leaders of {topic} do not know it"
        time.sleep(_AWAIT_S)
    return places


def last_stable_offsets(bootstrap: str, places: Iterable[Place]) -> dict[Place, int]:
    """Where committed records end, of all partitions in one answer."""
    return _ends(bootstrap, list(places), isolation_level=1)


def high_watermarks(bootstrap: str, places: Iterable[Place]) -> dict[Place, int]:
    return _ends(bootstrap, list(places), isolation_level=0)


def _ends(bootstrap: str, places: list[Place], isolation_level: int) -> dict[Place, int]:
    rows = _ask_ends(bootstrap, places, isolation_level)
    assert all(code == 0 for _, code, _ in rows), rows
    return {place: offset for place, _, offset in rows}


def _ask_ends(bootstrap: str, places: list[Place], isolation_level: int) -> list[tuple[Place, int, int]]:
    """Return the error code and the end of each partition."""
    topics = [
        ListOffsetsTopic(name=name, partitions=[
            ListOffsetsPartition(partition_index=place.partition, timestamp=_LATEST, current_leader_epoch=-1)
            for place in places if place.topic == name
        ])
        for name in sorted({place.topic for place in places})
    ]  # fmt: skip
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics)
    with RawClient(bootstrap) as client:
        answer = client.ask(request, _LIST_OFFSETS_VERSION)
    return [
        (Place(topic.name, row.partition_index), int(row.error_code), row.offset)
        for topic in answer.topics
        for row in topic.partitions
    ]


def await_stable(bootstrap: str, places: list[Place], recorder: Recorder | None, seconds: float = 60.0) -> bool:
    """Wait until nothing is left open; note what the broker says then, or after that time."""
    deadline = time.monotonic() + seconds
    while True:
        stable, ends = last_stable_offsets(bootstrap, places), high_watermarks(bootstrap, places)
        if stable == ends or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for place in places:
        if recorder is not None:
            recorder.log_end(place, stable[place], ends[place])
    return stable == ends


def committed_offsets(bootstrap: str, group: str, places: Iterable[Place]) -> dict[Place, int]:
    """Where a group stands when nothing is pending, -1 for nowhere. Makes the offsets topic if there is none."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "log_level": LOG_LEVEL, "isolation.level": "read_committed",
    }  # fmt: skip
    with closing(Consumer(settings)) as consumer:
        rows = consumer.committed([TopicPartition(place.topic, place.partition) for place in places], _ANSWER_S_MAX)
    return {Place(row.topic, row.partition): max(row.offset, -1) for row in rows}


def committed_consumer(bootstrap: str, places: Iterable[Place], group: str = "readers") -> Consumer:
    """A consumer of committed records that begins at the start of these partitions."""
    settings = {
        "bootstrap.servers": bootstrap, "group.id": group, "client.id": group, "isolation.level": "read_committed",
        "enable.auto.commit": False, "auto.offset.reset": "error", "enable.partition.eof": True,
        "fetch.wait.max.ms": 50, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 300,
        "log_level": LOG_LEVEL,
    }  # fmt: skip
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(place.topic, place.partition, 0) for place in places])
    return consumer


class Poller:
    """One consumer and how far it has come."""

    def __init__(self, bootstrap: str, places: list[Place]) -> None:
        self._consumer = committed_consumer(bootstrap, places)
        #: where the reader stands, markers and aborted records included
        self.positions = dict.fromkeys(places, 0)

    def poll(self, seconds: float = 0.1) -> list[tuple[Place, int, bytes]]:
        """Some records, in order."""
        records = []
        for message in self._consumer.consume(_BATCH, seconds):
            error = message.error()
            if error is None:
                place = Place(message.topic(), message.partition())
                records.append((place, message.offset(), message.value()))
                self.positions[place] = max(self.positions[place], message.offset() + 1)
            elif error.code() == KafkaError._PARTITION_EOF:
                place = Place(message.topic(), message.partition())
                self.positions[place] = max(self.positions[place], message.offset())
            elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise KafkaException(error)
        return records

    def has_reached(self, ends: dict[Place, int]) -> bool:
        return all(self.positions[place] >= end for place, end in ends.items())

    def close(self) -> None:
        self._consumer.close()


class Tail:
    """Reads along in a thread and records it."""

    def __init__(self, bootstrap: str, places: list[Place], recorder: Recorder, name: str) -> None:
        self.errors: list[str] = []
        self._name = name
        self._recorder = recorder
        self._stopping = threading.Event()
        self._poller = Poller(bootstrap, places)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(self._poller):
            while not self._stopping.is_set():
                try:
                    records = self._poller.poll(0.05)
                except KafkaException as error:
                    self.errors.append(f"{self._name}: {error}")
                    return
                for place, offset, value in records:
                    self._recorder.read(self._name, place, [(offset, value.decode())])


def read_to_end(bootstrap: str, places: list[Place]) -> dict[Place, list[tuple[int, bytes]]]:
    """Every committed record of these partitions, from a fresh consumer."""
    ends = last_stable_offsets(bootstrap, places)
    found: dict[Place, list[tuple[int, bytes]]] = {place: [] for place in places}
    with closing(Poller(bootstrap, places)) as poller:
        deadline = time.monotonic() + READ_S_MAX
        while not poller.has_reached(ends):
            assert time.monotonic() < deadline, f"read up to {poller.positions} of {ends}"
            for place, offset, value in poller.poll():
                found[place].append((offset, value))
    return found


def record_final(bootstrap: str, places: list[Place], recorder: Recorder) -> None:
    for place, records in read_to_end(bootstrap, places).items():
        recorder.read("final", place, [(offset, value.decode()) for offset, value in records])
    recorder.final("final")
