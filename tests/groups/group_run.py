"""A group under test: member processes, a producer that gives them work, and somebody who reads their offsets."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from checker import Final, History, Member, Place, Reading, Stint, parse_events, stints_of
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from campaign.processes import wait_until
from ottla.testing.raw import Closed, RawClient
from ottla.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

SESSION_S = 6.0
SETTLE_S_MAX = 240.0
#: where a machine this busy shows that something hangs
_STOP_S_MAX = 120.0
_WATCH_S = 0.2
#: between two looks at the diaries of all members
_POLL_S = 0.1
_ASK_S_MAX = 60.0
#: a question about a group, which is asked again by another client
_DESCRIBE_S_MAX = 10.0
_GIVE_UP_MS = 240_000
_OFFSET_FETCH_VERSION = 8
_SCRIPT = Path(__file__).with_name("member.py")


class MemberProcess:
    """One member; ``record`` is what the checker is told about it."""

    def __init__(self, name: str, client: str, command: list[str], directory: Path, instance: str) -> None:
        self.name = name
        self.client = client
        self.events_path = directory / f"{name}.jsonl"
        self.output_path = directory / f"{name}.log"
        self.record = Member(name, [], instance)
        with self.output_path.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--events", str(self.events_path)], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self._frozen_at: float | None = None

    @property
    def live(self) -> bool:
        return self.process.poll() is None

    @property
    def frozen(self) -> bool:
        return self._frozen_at is not None

    def events(self) -> list[dict[str, Any]]:
        """Its diary so far."""
        if self.events_path.exists():
            with self.events_path.open() as lines:
                self.record.events = parse_events(lines)
        return self.record.events

    def count(self, *kinds: str) -> int:
        return sum(event["event"] in kinds for event in self.events())

    def owned(self) -> set[Place]:
        """What it owns now, by its own word."""
        self.events()
        return {stint.place for stint in stints_of(self.record) if stint.end > time.monotonic()}

    # -- what is done to it ---------------------------------------------------------------------------------------

    def freeze(self) -> None:
        assert self._frozen_at is None
        self._frozen_at = time.monotonic()
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self.frozen:
            self.process.send_signal(signal.SIGCONT)
            self._note_thaw()

    def kill(self) -> None:
        """kill -9."""
        self._note_thaw()
        if self.live:
            self.process.kill()
            self.process.wait()
            self.record.killed_at = time.monotonic()

    def _note_thaw(self) -> None:
        if self._frozen_at is not None:
            self.record.frozen.append((self._frozen_at, time.monotonic()))
            self._frozen_at = None

    def ask_to_stop(self) -> None:
        self.thaw()
        self.record.asked_to_stop = True
        self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = _STOP_S_MAX) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} ({self.client}) did not end within {seconds:.0f} s") from None


class Writer:
    """Produces records whose key is their partition and offset, at a steady rate, in a thread."""

    def __init__(self, bootstrap: str, per_second: float, seed: int, records_max: int) -> None:
        self.errors: list[str] = []
        self.produced: Counter[Place] = Counter()
        self._bootstrap = bootstrap
        self._pause_s = 0.05
        self._per_step = max(per_second * self._pause_s, 1.0)
        self._left = records_max
        self._rng = random.Random(seed)
        self._places: list[Place] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, places: Iterable[Place]) -> None:
        with self._lock:
            self._places += places

    def finish(self) -> dict[Place, int]:
        """No more records; how many each partition has, all of them acknowledged."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_GIVE_UP_MS / 1000)
        assert not self.errors, self.errors[:5]
        return {place: self.produced[place] for place in self._places}

    def _run(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._bootstrap, "client.id": "writer", "log_level": 0, "linger.ms": 5,
                "enable.idempotence": True, "message.timeout.ms": _GIVE_UP_MS, "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )  # fmt: skip
        due = 0.0
        while not self._stopping.wait(self._pause_s) and self._left > 0:
            due += self._per_step
            while due >= 1 and self._left > 0:
                due -= 1
                self._left -= 1
                self._send(producer)
            producer.poll(0)
        if producer.flush(_GIVE_UP_MS / 1000):
            self.errors.append("records were not acknowledged")

    def _send(self, producer: Producer) -> None:
        with self._lock:
            place = self._rng.choice(self._places)
        offset = self.produced[place]

        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                self.errors.append(str(error))
            elif message.offset() != offset:
                self.errors.append(f"{place}: {offset} went to offset {message.offset()}")

        key = f"{place.partition}/{offset}"
        # A partition that was added a moment ago is unknown to the producer until it asks again.
        with suppress(KafkaException):
            producer.produce(place.topic, b"work", key, place.partition, on_delivery=on_delivery)
            self.produced[place] += 1


class Watcher:
    """Reads the committed offsets of a group all the time, from outside."""

    def __init__(self, bootstrap: str, group: str) -> None:
        self.readings: list[Reading] = []
        self.unanswered = 0
        self._bootstrap = bootstrap
        self._group = group
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(2 * _ASK_S_MAX)

    def _run(self) -> None:
        while not self._stopping.wait(_WATCH_S):
            self.read()

    def read(self) -> None:
        """Take a reading; none while the broker is away or does not know yet."""
        begin = time.monotonic()
        try:
            offsets = committed_offsets(self._bootstrap, self._group)
        except (OSError, Closed):
            offsets = None
        if offsets is None:
            self.unanswered += 1
            return
        reading = Reading(begin, time.monotonic(), offsets)
        # Of a row of equal ones the last proves all.
        if [each.offsets for each in self.readings[-2:]] == [offsets, offsets]:
            self.readings.pop()
        self.readings.append(reading)


class GroupRun:
    """A group, its topic and everybody around it. ``close`` ends every process."""

    def __init__(
        self, bootstrap: str, directory: Path, *, group: str, seed: int = 0, partitions: int = 6,
        assignor: str = "range", per_second: float = 200.0, records_max: int = 60_000, watch: bool = True,
    ) -> None:  # fmt: skip
        self.bootstrap = bootstrap
        self.group = group
        self.topic = f"{group}-work"
        self.partitions = 0
        self.assignor = assignor
        self.directory = directory
        self.members: list[MemberProcess] = []
        self.admin = AdminClient(_admin_settings(bootstrap))
        self.writer = Writer(bootstrap, per_second, seed, records_max)
        self.watcher = Watcher(bootstrap, group) if watch else None
        directory.mkdir(parents=True, exist_ok=True)
        (future,) = self.admin.create_topics([NewTopic(self.topic, partitions, 1)]).values()
        future.result(_ASK_S_MAX)
        self._count(partitions)

    def start(self) -> None:
        """The producer and the reader of offsets begin."""
        self.writer.start()
        if self.watcher is not None:
            self.watcher.start()

    def __enter__(self) -> GroupRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for member in self.members:
            member.kill()
        self.writer._stopping.set()
        if self.watcher is not None:
            self.watcher.stop()

    # -- changes --------------------------------------------------------------------------------------------------

    @property
    def live(self) -> list[MemberProcess]:
        return [member for member in self.members if member.live]

    def join(self, client: str, *, instance: str = "", assignor: str | None = None, **options: Any) -> MemberProcess:
        """Start a member."""
        name = f"m{len(self.members) + 1}-{client}"
        command = [
            sys.executable, str(_SCRIPT), "--name", name, "--client", client, "--bootstrap", self.bootstrap,
            "--group", self.group, "--topics", self.topic, "--instance", instance,
            "--assignor", assignor or self.assignor, "--session-ms", str(int(SESSION_S * 1000)),
            "--parent", str(os.getpid()),
        ]  # fmt: skip
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        member = MemberProcess(name, client, command, self.directory, instance)
        self.members.append(member)
        return member

    def grow(self, by: int) -> None:
        """Add partitions to the topic."""
        total = self.partitions + by
        (future,) = self.admin.create_partitions([NewPartitions(self.topic, total)]).values()
        future.result(_ASK_S_MAX)
        self._count(total)

    def _count(self, partitions: int) -> None:
        self.writer.add(Place(self.topic, number) for number in range(self.partitions, partitions))
        self.partitions = partitions

    # -- facts ----------------------------------------------------------------------------------------------------

    @property
    def places(self) -> list[Place]:
        return [Place(self.topic, number) for number in range(self.partitions)]

    def describe(self) -> Any:
        """The group as the broker describes it; None while it cannot."""
        with suppress(KafkaException, TimeoutError):
            (future,) = self.admin.describe_consumer_groups([self.group], request_timeout=_DESCRIBE_S_MAX).values()
            return future.result(_ASK_S_MAX)
        # A client that met a broker on its way down may go on failing, or wait for the whole time that it is given: the
        # next question is another's.
        self.admin = AdminClient(_admin_settings(self.bootstrap))
        return None

    def owners(self) -> dict[Place, list[str]]:
        """Who owns each partition, in the broker's eyes; empty unless the group is stable."""
        found: dict[Place, list[str]] = {}
        described = self.describe()
        if described is None or described.state.name != "STABLE":
            return found
        for member in described.members:
            name = self._name_of(member)
            for each in member.assignment.topic_partitions if member.assignment else ():
                found.setdefault(Place(each.topic, each.partition), []).append(name)
        return found

    def _name_of(self, described: Any) -> str:
        """A static member that came back without a rebalance is still described with the client id of its past."""
        if described.group_instance_id:
            for member in reversed(self.members):
                if member.record.instance == described.group_instance_id and member.live:
                    return member.name
        return str(described.client_id)

    def stints(self) -> list[Stint]:
        for member in self.members:
            member.events()
        return [stint for member in self.members for stint in stints_of(member.record)]

    def why_not_settled(self) -> str:
        """Empty when every live member and the broker agree on who owns what, and nothing is left out."""
        owners = self.owners()
        if set(owners) != set(self.places):
            described = self.describe()
            return f"the broker has {len(owners)} of {self.partitions} partitions assigned, state " + (
                described.state.name if described is not None else "unknown"
            )
        for member in self.live:
            own, told = member.owned(), {place for place, names in owners.items() if member.name in names}
            if own != told:
                return f"{member.name} owns {sorted(own)}, the broker says {sorted(told)}"
        names = {name for each in owners.values() for name in each}
        if strangers := names - {member.name for member in self.live}:
            return f"{sorted(strangers)} are still in the group"
        described = self.describe()
        if described is None or len(described.members) != len(self.live):
            return "the broker knows another number of members"
        return ""

    def settle(self, seconds: float = SETTLE_S_MAX) -> None:
        """Wait until the group is stable and everybody agrees on it."""
        last = ["not asked"]

        def settled() -> bool:
            for member in self.live:
                assert not member.frozen, f"{member.name} is frozen: the group cannot settle"
            last[0] = self.why_not_settled()
            return not last[0]

        wait_until(settled, lambda: f"the group is not settled: {last[0]}", seconds, poll_s=_POLL_S)

    def finish(self) -> History:
        """End the work, wait until everything is processed and committed, then end the members; what was seen."""
        self.settle()
        history = History(produced=self.writer.finish())
        watcher = self.watcher or Watcher(self.bootstrap, self.group)

        def drained() -> bool:
            watcher.read()
            last = watcher.readings[-1].offsets if watcher.readings else {}
            return all(last.get(place, 0) == count for place, count in history.produced.items())

        if self.watcher is not None:
            self.watcher.stop()
        with suppress(TimeoutError):
            # What is still missing then is for the checker to name.
            wait_until(drained, "all records are read", SETTLE_S_MAX, poll_s=_POLL_S)
        self.settle()
        history.final = Final(time.monotonic(), self.owners(), frozenset(member.name for member in self.live))
        self.stop_all()
        watcher.read()
        history.readings = watcher.readings
        history.members = [member.record for member in self.members]
        return history

    def stop_all(self) -> None:
        leaving = self.live
        for member in leaving:
            member.ask_to_stop()
        for member in leaving:
            with suppress(AssertionError):
                member.wait()
        for member in self.members:
            member.events()

    def generation(self) -> int:
        return generation_of(self.bootstrap, self.group)


def committed_offsets(bootstrap: str, group: str) -> dict[Place, int] | None:
    """All that a group has committed; None when the broker cannot tell now.

    Raw, because confluent-kafka's list_consumer_group_offsets ends the process when the answer is an error.
    """
    wanted = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)], require_stable=True)
    with RawClient(bootstrap, client_id="watcher", timeout_s=_ASK_S_MAX) as client:
        (answer,) = client.ask(wanted, _OFFSET_FETCH_VERSION).groups
    partitions = [(topic.name, each) for topic in answer.topics for each in topic.partitions]
    if answer.error_code or any(each.error_code for _, each in partitions):
        return None
    return {Place(name, each.partition_index): each.committed_offset for name, each in partitions}


_CLASSIC_KEY = 2
_CONSUMER_KEY = 3


def generation_of(bootstrap: str, group: str) -> int:
    """The generation, or epoch, that a group has come to, as kept in __consumer_offsets; 0 when there is none."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reads-without-joining", "enable.auto.commit": False,
            "auto.offset.reset": "error", "enable.partition.eof": True, "log_level": 0,
        }
    )  # fmt: skip
    try:
        numbers = consumer.list_topics("__consumer_offsets", timeout=_ASK_S_MAX).topics["__consumer_offsets"].partitions
        ends = {number: _end_offset(consumer, number) for number in numbers}
        unread = {number for number, end in ends.items() if end > 0}
        consumer.assign([TopicPartition("__consumer_offsets", number, 0) for number in unread])
        latest = 0
        deadline = time.monotonic() + 60
        while unread:
            assert time.monotonic() < deadline, "__consumer_offsets cannot be read to its end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                unread.discard(message.partition())
                continue
            if message.offset() + 1 >= ends[message.partition()]:
                unread.discard(message.partition())
            if (found := _generation_in(message.key(), message.value(), group)) is not None:
                latest = max(latest, found)
        return latest
    finally:
        consumer.close()


def _end_offset(consumer: Consumer, number: int) -> int:
    _, high = consumer.get_watermark_offsets(TopicPartition("__consumer_offsets", number), timeout=_ASK_S_MAX)
    return int(high)


def _generation_in(key: bytes, value: bytes | None, group: str) -> int | None:
    version, size = struct.unpack_from(">hh", key)
    if value is None or version not in (_CLASSIC_KEY, _CONSUMER_KEY) or key[4 : 4 + size].decode() != group:
        return None
    if version == _CONSUMER_KEY:
        return int(struct.unpack_from(">hi", value)[1])
    (protocol_type_size,) = struct.unpack_from(">h", value, 2)
    return int(struct.unpack_from(">i", value, 4 + max(protocol_type_size, 0))[0])


def _admin_settings(bootstrap: str) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, "client.id": "watcher", "log_level": 0, "reconnect.backoff.max.ms": 500}
