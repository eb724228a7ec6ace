"""The state machines that scenarios drive. Each takes an event and returns what it decided, as lines of text."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

from tests.scenarios.leadership_machine import LeadershipMachine
from tests.scenarios.script import Event
from tests.unit.coordinators.classic_fixtures import ClassicFixture
from tests.unit.coordinators.transaction_fixtures import TransactionFixture
from tests.unit.log.log_fixtures import batch, sync, topic, write
from tests.unit.log.store_fixtures import spec
from tests.unit.partitions.test_replica_manager import ManagerFixture, Waiter

from ottla.broker.coordinators.outcome import Producer
from ottla.broker.metadata.nodes import state_path, topic_path
from ottla.broker.metadata.store import Changed, Node
from ottla.broker.metadata.topic_plans import (
    NewTopic,
    bump_leader_epochs,
    plan_create_partitions,
    plan_create_topic,
)
from ottla.broker.metadata.view import ClusterView, PartitionView, TopicView
from ottla.broker.partitions.partition import Partition
from ottla.model.errors import ErrorCode, KafkaError
from ottla.model.types import TopicPartition
from ottla.wire.messages.join_group import JoinGroupResponse
from ottla.wire.messages.sync_group import SyncGroupResponse


def name_of(code: int) -> str:
    return ErrorCode(code).name if code else "ok"


class PartitionMachine:
    """A partition of broker 1: its role, its high watermark, and the produces that wait.

    partition replicas=1,2 records=5 checkpoint=3 min.insync.replicas=2    create it; ``checkpoint`` is the stored
                                                                           high watermark
    state leader=1 epoch=3 isr=1,2 version=4                               what the metadata store says
    produce NAME acks=1|all records=1                                      append a batch in this turn
    write, sync                                                            the turn ends; the disk has synced
    follower 2 end=5 synced=5                                              a follower reports
    fetch epoch=3                                                          a client asks with the epoch that it knows
    fail                                                                   the disk fails
    """

    def __init__(self, directory: Path) -> None:
        self._fixture = ManagerFixture(directory)
        self._partition: Partition
        self._waiters: dict[str, Waiter] = {}

    def __call__(self, event: Event) -> Iterator[str]:
        if (said := getattr(self, f"do_{event.command}")(event)) is not None:
            yield said
        for name, waiter in list(self._waiters.items()):
            for code in waiter.answers:
                yield f"{name}: {name_of(code)}"
                del self._waiters[name]
        partition, log = self._partition, self._partition.log
        waiting = f", waiting: {' '.join(self._waiters)}" if self._waiters else ""
        yield (
            f"{partition.role.value} in epoch {partition.leader_epoch}, end {log.log_end_offset}, "
            f"synced {log.synced_end_offset}, high watermark {partition.high_watermark}{waiting}"
        )

    def do_partition(self, event: Event) -> None:
        store, name = self._fixture.fixture.store, TopicPartition("orders", 0)
        settings = topic(min_insync_replicas=event.number("min.insync.replicas", 1))
        made = spec(name, settings=settings)
        log = store.create(made)
        if records := event.number("records", 0):
            write(log, batch(records))
            sync(log)
        store.dir_of(log).high_watermarks[name] = event.number("checkpoint", 0)
        nobody = PartitionView(leader=-1, leader_epoch=0, replicas=event.numbers("replicas", "1"), isr=())
        self._partition = self._fixture.manager.add(made, nobody)

    def do_state(self, event: Event) -> None:
        before = self._partition
        state = PartitionView(
            leader=event.number("leader", before.leader_id), leader_epoch=event.number("epoch", before.leader_epoch),
            partition_epoch=event.number("version", before.partition_epoch), replicas=before.replicas,
            isr=event.numbers("isr", ",".join(map(str, before.isr))),
        )  # fmt: skip
        self._fixture.manager.apply_state(self._partition, state)

    def do_produce(self, event: Event) -> str | None:
        acks = -1 if event.values["acks"] == "all" else int(event.values["acks"])
        try:
            if acks == -1:
                self._partition.check_enough_replicas()
            _, end = self._fixture.append(self._partition, batch(event.number("records", 1)))
        except KafkaError as error:
            return f"{event.word}: {error.code.name}"
        self._waiters[event.word] = waiter = Waiter()
        self._fixture.manager.commits.wait(self._partition, self._partition.until(acks), end, waiter)
        return None

    def do_write(self, event: Event) -> None:
        self._fixture.manager.commits.write_turn()

    def do_sync(self, event: Event) -> None:
        self._fixture.threads.run()

    def do_follower(self, event: Event) -> None:
        self._partition.note_follower(int(event.word), event.number("end", 0), event.number("synced", 0))

    def do_fetch(self, event: Event) -> str:
        try:
            self._fixture.manager.leader_of(b"orders", 0, event.number("epoch", -1))
        except KafkaError as error:
            return error.code.name
        return "served"

    def do_fail(self, event: Event) -> None:
        self._fixture.disk.fail("write", errno.EIO)


class TopicsMachine:
    """The controller's decisions about topics.

    brokers 1 2 3                                   the brokers that are alive
    create TOPIC partitions=3 replicas=2
    partitions TOPIC count=5
    unclean-stop BROKER                             the broker was killed and starts again
    """

    def __init__(self, directory: Path) -> None:
        self._view = ClusterView()
        self._brokers: list[int] = []

    def __call__(self, event: Event) -> Iterator[str]:
        try:
            yield from getattr(self, "do_" + event.command.replace("-", "_"))(event)
        except KafkaError as error:
            yield f"{error.code.name}: {error}"

    def do_brokers(self, event: Event) -> Iterator[str]:
        self._brokers = [int(word) for word in event.words]
        yield from ()

    def do_create(self, event: Event) -> Iterator[str]:
        wanted = NewTopic(
            name=event.word, partition_count=event.number("partitions", -1),
            replication_factor=event.number("replicas", -1), assignments={}, config={},
        )  # fmt: skip
        planned = plan_create_topic(
            self._view, self._brokers, wanted, topic_id=len(self._view.topics).to_bytes(16, "big"),
            default_partitions=1, default_replication_factor=1,
        )  # fmt: skip
        self._store(planned)
        yield from self._describe(planned)

    def do_partitions(self, event: Event) -> Iterator[str]:
        planned = plan_create_partitions(
            self._view, self._view.topics[event.word], self._brokers, event.number("count", 0), None
        )  # fmt: skip
        self._store(planned)
        yield from self._describe(planned)

    def do_unclean_stop(self, event: Event) -> Iterator[str]:
        for each in list(self._view.topics.values()):
            bumped = bump_leader_epochs(each, int(event.word))
            self._store(bumped)
            yield from self._describe(bumped)

    def _store(self, changed: TopicView) -> None:
        self._view.apply([
            Changed(path, Node(value, self._view.version))
            for path, value in (
                (topic_path(changed.name), changed.assignment_json()), (state_path(changed.name), changed.state_json()),
            )
        ])  # fmt: skip

    @staticmethod
    def _describe(described: TopicView) -> Iterator[str]:
        for number, each in enumerate(described.partitions):
            yield (
                f"{described.name}-{number}: leader {each.leader}, replicas {' '.join(map(str, each.replicas))}, "
                f"leader epoch {each.leader_epoch}, partition epoch {each.partition_epoch}"
            )


class GroupMachine:
    """A classic group. Members are named by the scenario; the coordinator gives them ids.

    join NAME, sync NAME, heartbeat NAME, leave NAME, disconnect NAME
    time SECONDS
    restart                                         the coordinator loads what it has stored
    """

    def __init__(self, directory: Path) -> None:
        self._fixture = ClassicFixture(group_initial_rebalance_delay_ms="3000")
        self._ids: dict[str, str] = {}
        #: requests that wait: ticket -> name and request
        self._requests: dict[int, tuple[str, str]] = {}

    def __call__(self, event: Event) -> Iterator[str]:
        if (said := getattr(self, f"do_{event.command}")(event)) is not None:
            yield said
        for ticket, (name, request) in list(self._requests.items()):
            if ticket not in self._fixture.waiting:
                del self._requests[ticket]
                yield f"{name}: {request} {self._answer(name, ticket)}"
        group = self._fixture.group
        members = sorted(self._name(member_id) for member_id in group.members)
        waiting = f", waiting: {' '.join(name for name, _ in self._requests.values())}" if self._requests else ""
        yield f"{group.state}, generation {group.generation.number}, members: {' '.join(members) or 'none'}{waiting}"

    def _answer(self, name: str, ticket: int) -> str:
        answer = self._fixture.answers[ticket]
        assert isinstance(answer, JoinGroupResponse | SyncGroupResponse)
        if answer.error_code:
            return ErrorCode(answer.error_code).name
        if isinstance(answer, SyncGroupResponse):
            return f"ok, assignment {answer.assignment.decode() or 'none'}"
        self._ids[name] = answer.member_id
        return f"ok, generation {answer.generation_id}, leader {self._name(answer.leader)}"

    def _name(self, member_id: str) -> str:
        return next((name for name, each in self._ids.items() if each == member_id), "?")

    def do_join(self, event: Event) -> None:
        name = event.word
        before = set(self._fixture.group.members)
        ticket = self._fixture.join(self._ids.get(name, ""), session_ms=event.number("session", 10) * 1000)
        self._requests[ticket] = name, "join"
        for member_id in set(self._fixture.group.members) - before:
            self._ids[name] = member_id

    def do_sync(self, event: Event) -> None:
        member_id = self._ids[event.word]
        is_leader = member_id == self._fixture.group.leader_id
        parts = {self._ids[name]: text.encode() for name, text in event.values.items()}
        ticket = self._fixture.sync(member_id, assignments=parts if is_leader else None)
        self._requests[ticket] = event.word, "sync"

    def do_heartbeat(self, event: Event) -> str:
        return f"{event.word}: heartbeat {name_of(self._fixture.heartbeat(self._ids[event.word]))}"

    def do_leave(self, event: Event) -> str:
        (answer,) = self._fixture.leave(self._ids[event.word]).members
        return f"{event.word}: leave {name_of(answer.error_code)}"

    def do_time(self, event: Event) -> None:
        self._fixture.pass_time(float(event.word))

    def do_restart(self, event: Event) -> None:
        self._fixture.restart()


class TransactionMachine:
    """The coordinator of one transactional id. Producers are named by the scenario.

    init NAME                          InitProducerId, as a new process does
    add NAME t-0 u-0                   AddPartitionsToTxn
    commit NAME, abort NAME            EndTxn
    markers                            every marker that is outstanding is written
    time SECONDS
    restart                            the coordinator loads what it has stored, in a newer epoch
    """

    def __init__(self, directory: Path) -> None:
        self._fixture = TransactionFixture()
        self._producers: dict[str, Producer] = {}

    def __call__(self, event: Event) -> Iterator[str]:
        if (said := getattr(self, f"do_{event.command}")(event)) is not None:
            yield said
        value = self._fixture.value()
        partitions = " ".join(sorted(f"{each.topic}-{each.partition}" for each in value.partitions)) or "none"
        markers = sum(len(each.partitions) for each in self._fixture.deliveries)
        yield (
            f"{value.state.name}, producer {value.producer_id} epoch {value.producer_epoch}, partitions: {partitions}, "
            f"markers to write: {markers}"
        )

    def do_init(self, event: Event) -> str:
        answer = self._fixture.init()
        if answer.error_code:
            return f"{event.word}: {ErrorCode(answer.error_code).name}"
        self._producers[event.word] = Producer(answer.producer_id, answer.producer_epoch)
        return f"{event.word}: ok"

    def do_add(self, event: Event) -> str:
        name, *texts = event.words
        wanted = [TopicPartition(topic, int(number)) for topic, _, number in (text.rpartition("-") for text in texts)]
        codes = self._fixture.add(self._producers[name], *wanted)
        return f"{name}: " + ", ".join(f"{each.topic}-{each.partition} {name_of(codes[each])}" for each in wanted)

    def do_commit(self, event: Event) -> str:
        return f"{event.word}: {name_of(self._fixture.end(self._producers[event.word]).error_code)}"

    def do_abort(self, event: Event) -> str:
        return f"{event.word}: {name_of(self._fixture.end(self._producers[event.word], commit=False).error_code)}"

    def do_markers(self, event: Event) -> None:
        self._fixture.deliver()

    def do_time(self, event: Event) -> None:
        self._fixture.pass_time(int(event.word) * 1000)

    def do_restart(self, event: Event) -> None:
        self._fixture.restart()


MACHINES = {
    "partition": PartitionMachine,
    "topics": TopicsMachine,
    "leadership": LeadershipMachine,
    "group": GroupMachine,
    "transaction": TransactionMachine,
}
