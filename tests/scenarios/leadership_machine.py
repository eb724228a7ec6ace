"""Leadership for scenarios: brokers fail and return, leaders change their ISR, the controller elects."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.scenarios.script import Event

from ottla.admin.cluster import BrokerState, ClusterState
from ottla.admin.failure import Failure
from ottla.admin.moves import plan_balance, plan_decommission
from ottla.admin.topic_state import PartitionState
from ottla.broker.metadata import leadership, reassignment, unclean_marks
from ottla.broker.metadata.nodes import (
    broker_json,
    broker_path,
    ops_create_skeleton,
    registered_json,
    registered_path,
    state_path,
    topic_path,
)
from ottla.broker.metadata.store import Changed, Node
from ottla.broker.metadata.topic_plans import NewTopic, plan_create_topic
from ottla.broker.metadata.view import LOG_LOST, ClusterView, LogEnd, PartitionView, TopicView
from ottla.client.protocol.metadata import Node as ClientNode
from ottla.model.errors import KafkaError
from ottla.model.types import Endpoint, TopicPartition


class LeadershipMachine:
    """One topic ``t``. After every event the controller decides until nothing changes.

    brokers 1 2 3 [1=RACK]                  a new cluster of these brokers; settings min.insync.replicas=2
    partition replicas=1,2,3 [leader=1] [isr=1,2] [elr=3] [epoch=0]     add a partition
    create partitions=3 replicas=2          create the topic: the placement decides
    die 1 2                                 the sessions of these brokers expire
    alive 1                                 a broker registers again, after a clean stop or a lost session
    unclean 1 [epoch=5 end=90]              a broker starts after an unclean stop, and registers; without an end its
                                            log was lost
    starts 1 [epoch=5 end=90]               the same, but it does not register yet
    isr 1,2 by=1 [partition=0] [epoch=0]    a leader proposes an ISR, with the epoch that it knows
    join 2 by=1 start=0                     a leader adds a follower that fetched in its start 0
    leave 1                                 controlled shutdown
    time 3                                  seconds pass
    preferred, unclean-election             ElectLeaders for partition 0
    reassign 4,2,3, cancel                  reassignment of partition 0
    balance, decommission 4                 the plan, and its reassignments
    """

    def __init__(self, directory: Path) -> None:
        self._reset()

    def _reset(self) -> None:
        self._view = ClusterView()
        self._view.apply([Changed(op.path, Node(b"", 0)) for op in ops_create_skeleton(())])
        self._below_min = leadership.BelowMin()
        self._now = 0.0
        self._created = 0
        self._racks: dict[int, str] = {}
        self._min_isr = 2

    def __call__(self, event: Event) -> Iterator[str]:
        try:
            yield from getattr(self, "do_" + event.command.replace("-", "_"))(event) or ()
        except KafkaError as error:
            yield f"{error.code.name}: {error}"
        except Failure as failure:
            yield failure.message
        self._control()
        if (topic := self._view.topics.get("t")) is not None:
            yield from (self._describe(number, each) for number, each in enumerate(topic.partitions))

    def _control(self) -> None:
        """The controller decides until nothing changes."""
        for _ in range(10):
            options = {"min_isr": self._min, "now": self._now, "below_min": self._below_min}
            changed = leadership.elect(self._view, **options) or reassignment.progress_all(  # type: ignore[arg-type]
                self._view, min_isr=self._min
            )
            if not changed:
                return
            self._store(changed[0])
        raise AssertionError("the controller does not come to an end")

    def _min(self, topic: TopicView) -> int:
        return self._min_isr

    @property
    def _topic(self) -> TopicView:
        return self._view.topics["t"]

    def _store(self, topic: TopicView | None) -> None:
        if topic is not None:
            version = self._view.version
            self._view.apply([
                Changed(topic_path(topic.name), Node(topic.assignment_json(), version)),
                Changed(state_path(topic.name), Node(topic.state_json(), version)),
            ])  # fmt: skip

    def _store_partition(self, partition: PartitionView) -> None:
        self._store(leadership.replace_partition(self._topic, 0, partition))

    @staticmethod
    def _describe(number: int, each: PartitionView) -> str:
        def ids(title: str, brokers: tuple[int, ...]) -> str:
            return f", {title} {' '.join(map(str, brokers))}" if brokers else ""

        ends = "".join(
            f", {end.broker} {'lost its log' if end.end_offset == LOG_LOST else f'ends at {end[1]}:{end.end_offset}'}"
            for end in each.unclean
        )
        leader = "no leader" if each.leader == -1 else f"leader {each.leader}"
        return (
            f"t-{number}: {leader} in epoch {each.leader_epoch}, replicas {' '.join(map(str, each.replicas))}"
            f"{ids('isr', each.isr)}{ids('elr', each.elr)}{ends}{ids('adding', each.adding)}"
            f"{ids('removing', each.removing)}"
        )

    # -- brokers --------------------------------------------------------------------------------------------------

    def do_brokers(self, event: Event) -> None:
        self._reset()
        self._min_isr = event.number("min.insync.replicas", 2)
        self._racks = {int(name): rack for name, rack in event.values.items() if name.isdigit()}
        for each in [int(word) for word in event.words] or list(self._racks):
            self._start(each)
            self._register(each)

    def _start(self, broker: int) -> None:
        version = self._view.registered.get(broker, -1) + 1
        self._view.apply([Changed(registered_path(broker), Node(registered_json(bytes([version])), version))])

    def _register(self, broker: int) -> None:
        self._created += 1
        value = broker_json(
            [Endpoint("PLAINTEXT", f"b{broker}", 9092)], rack=self._racks.get(broker), timestamp_ms=0,
            incarnation=bytes([self._view.registered[broker]]),
        )  # fmt: skip
        self._view.apply([Changed(broker_path(broker), Node(value, 0, self._created))])

    def do_die(self, event: Event) -> None:
        self._view.apply([Changed(broker_path(int(word)), None) for word in event.words])

    def do_alive(self, event: Event) -> None:
        for word in event.words:
            if int(word) not in self._view.registered:
                self._start(int(word))
            self._register(int(word))

    def do_starts(self, event: Event) -> None:
        broker = int(event.word)
        self._start(broker)
        end = LogEnd(broker, event.number("epoch", -1), event.number("end", LOG_LOST))
        ends = dict.fromkeys(range(len(self._topic.partitions)), end)
        self._store(unclean_marks.mark_unclean(self._topic, broker, ends))

    def do_unclean(self, event: Event) -> None:
        self.do_starts(event)
        self._register(int(event.word))

    def do_leave(self, event: Event) -> None:
        for topic in leadership.leave(self._view, int(event.word), min_isr=self._min):
            self._store(topic)

    def do_time(self, event: Event) -> None:
        self._now += float(event.word)

    # -- topics ---------------------------------------------------------------------------------------------------

    def do_partition(self, event: Event) -> None:
        replicas = event.numbers("replicas")
        isr = event.numbers("isr") or replicas
        new = PartitionView(
            leader=event.number("leader", isr[0]), leader_epoch=event.number("epoch", 0), replicas=replicas, isr=isr,
            elr=event.numbers("elr"),
        )  # fmt: skip
        before = self._view.topics["t"].partitions if "t" in self._view.topics else ()
        self._store(TopicView(name="t", topic_id=bytes(16), partitions=(*before, new)))

    def do_create(self, event: Event) -> None:
        wanted = NewTopic(
            name="t", partition_count=event.number("partitions", 1), replication_factor=event.number("replicas", 1),
            assignments={}, config={},
        )  # fmt: skip
        self._store(
            plan_create_topic(
                self._view, list(self._view.brokers), wanted, topic_id=bytes(16), default_partitions=1,
                default_replication_factor=1,
            )
        )  # fmt: skip

    # -- leaders and clients --------------------------------------------------------------------------------------

    def do_isr(self, event: Event) -> None:
        self._propose(event, tuple(map(int, event.word.split(","))), dict(self._view.registered))

    def do_join(self, event: Event) -> None:
        broker = int(event.word)
        self._propose(event, (*self._topic.partitions[0].isr, broker), {broker: event.number("start", 0)})

    def _propose(self, event: Event, isr: tuple[int, ...], registered: dict[int, int]) -> None:
        number = event.number("partition", 0)
        state = leadership.change_isr(
            self._topic, number, leader=event.number("by", 0), isr=isr, alive=self._view.brokers,
            leader_epoch=event.number("epoch", self._topic.partitions[number].leader_epoch), min_isr=self._min_isr,
        )  # fmt: skip
        changed = leadership.replace_partition(self._topic, number, state)
        leadership.ops_change_isr(self._view, [changed] if changed else [], registered)
        self._store(changed)

    def do_preferred(self, event: Event) -> None:
        self._store_partition(leadership.elect_preferred(self._topic, 0, self._view.brokers))

    def do_unclean_election(self, event: Event) -> None:
        elected = leadership.elect_unclean(self._topic, 0, self._view.brokers, min_isr=self._min_isr)
        self._store_partition(elected)

    def do_reassign(self, event: Event) -> None:
        target = [int(text) for text in event.word.split(",")]
        self._reassign(0, target)

    def _reassign(self, number: int, target: list[int]) -> None:
        started = reassignment.start(
            self._topic, number, target, alive=self._view.brokers, known=self._view.registered, min_isr=self._min_isr
        )  # fmt: skip
        self._store(leadership.replace_partition(self._topic, number, started))

    def do_cancel(self, event: Event) -> None:
        alive = self._view.brokers
        self._store_partition(reassignment.cancel(self._topic, 0, alive=alive, min_isr=self._min_isr))

    def do_balance(self, event: Event) -> Iterator[str]:
        moves = plan_balance(_state_of(self._view))
        for move in moves:
            yield f"{move.partition}: {' '.join(map(str, move.old))} to {' '.join(map(str, move.new))}"
            self._reassign(move.partition.partition, list(move.new))

    def do_decommission(self, event: Event) -> Iterator[str]:
        for move in plan_decommission(_state_of(self._view), [int(word) for word in event.words]):
            yield f"{move.partition}: {' '.join(map(str, move.old))} to {' '.join(map(str, move.new))}"
            self._reassign(move.partition.partition, list(move.new))


def _state_of(view: ClusterView) -> ClusterState:
    """Return what a client of the cluster sees of the metadata."""
    brokers = {
        each.broker_id: BrokerState(node=ClientNode(each.broker_id, "localhost", 1), rack=each.rack)
        for each in view.brokers.values()
    }
    partitions = [
        PartitionState(
            name=TopicPartition(topic.name, number), leader=each.leader if each.leader >= 0 else None,
            replicas=each.replicas, isr=each.isr, adding=each.adding, removing=each.removing,
        )
        for topic in view.topics.values()
        for number, each in enumerate(topic.partitions)
    ]  # fmt: skip
    return ClusterState(cluster_id="c", controller_id=None, brokers=brokers, partitions=partitions)
