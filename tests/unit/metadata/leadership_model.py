"""A small model of one partition: the logs of its replicas, brokers that fail and return, and late watches.

The decisions are those of `leadership.py`. The model plays the brokers: each knows the state that it has learned, which
may be older than the stored one, and appends, fetches, acknowledges and proposes ISR changes as decisions 0013 and 0015
say. A record is acknowledged when all members of the ISR that the leader knows have it and min.insync.replicas of them
have synced it. After every step the model checks:

    a new leader has every acknowledged record, unless an unclean election was requested
    leader epoch and partition epoch only rise, and every change of the leader raises the leader epoch
    ISR and ELR are disjoint subsets of the replicas; the ISR is never empty; the leader is in the ISR
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from ottla.broker.metadata import leadership, reassignment, unclean_marks
from ottla.broker.metadata.broker_nodes import BrokerView
from ottla.broker.metadata.view import LOG_LOST, NO_LEADER, ClusterView, LogEnd, PartitionView, TopicView
from ottla.model.errors import KafkaError
from ottla.model.types import Endpoint

#: records as (leader epoch, unique number)
Record = tuple[int, int]


class Violation(AssertionError):
    """A rule of the partition does not hold."""


@dataclass
class Broker:
    """A broker process with its log; ``alive`` is what the metadata store says, ``runs`` what is true."""

    broker_id: int
    #: how often it syncs: the disk of some brokers is slow
    syncs: float
    log: list[Record] = field(default_factory=list)
    synced: int = 0
    runs: bool = True
    alive: bool = True
    is_clean: bool = True
    is_lost: bool = False
    #: version of /brokers/registered/N
    starts: int = 0
    #: the state that the broker has learned
    state: PartitionView | None = None
    #: as leader: (end, synced end, start) of the followers that have fetched in this epoch
    fetched: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    epoch_start: int = 0
    #: as leader: members of an ISR that was proposed, until the answer arrives
    proposed: tuple[int, ...] = ()
    high_watermark: int = 0


#: relative frequency of the steps
WEIGHTS = {
    "work": 30, "elect": 6, "notice": 14, "learn": 6, "append": 4, "sync": 4, "shrink": 3, "expand": 10, "expire": 2,
    "kill": 3, "power": 4, "blackout": 1, "wipe": 1, "stop": 1, "start": 14, "prefer": 1,
}  # fmt: skip


class Model:
    """One partition with ``replicas`` replicas. ``steps`` are words that the test prints when a rule is violated."""

    def __init__(self, seed: int, *, replicas: int = 3, min_isr: int = 2) -> None:
        self.random = random.Random(seed)
        # Each run has frequencies of its own: rare combinations come up when some steps are frequent and others absent.
        self.weights = {name: weight * self.random.choice((0.1, 0.5, 1, 1, 3)) for name, weight in WEIGHTS.items()}
        self.min_isr = min_isr
        ids = tuple(range(1, replicas + 1))
        self.brokers = {each: Broker(each, syncs=self.random.choice((0.02, 0.2, 0.8))) for each in ids}
        self.stored = PartitionView(leader=1, leader_epoch=0, replicas=ids, isr=ids)
        self.acknowledged: list[Record] = []
        self.records = 0
        self.elections = 0
        self.steps: list[str] = []
        self.below_min = leadership.BelowMin()
        self.now = 0.0
        for broker in self.brokers.values():
            self._learn(broker)

    # -- the metadata store ---------------------------------------------------------------------------------------

    def topic(self) -> TopicView:
        return TopicView(name="t", topic_id=bytes(16), partitions=(self.stored,))

    def view(self) -> ClusterView:
        view = ClusterView()
        view.topics["t"] = self.topic()
        for each in self.brokers.values():
            view.registered[each.broker_id] = each.starts
            if each.alive:
                view.brokers[each.broker_id] = BrokerView(
                    broker_id=each.broker_id, epoch=each.starts, endpoints=(Endpoint("P", "h", 1),), rack=None,
                    incarnation=bytes([each.starts % 256]),
                )  # fmt: skip
        return view

    def store(self, new: PartitionView, step: str, *, is_safe: bool = True) -> None:
        """Store a decision and check the rules."""
        old, self.stored = self.stored, new
        self.steps.append(f"{step}: leader {new.leader}/{new.leader_epoch} isr {new.isr} elr {new.elr} {new.unclean}")
        if new == old:
            return
        require(new.partition_epoch == old.partition_epoch + 1, "partition epoch")
        require(new.leader_epoch - old.leader_epoch in (0, 1), "leader epoch")
        require(new.leader == old.leader or new.leader_epoch > old.leader_epoch, "leader change without an epoch")
        require(bool(new.isr), "empty ISR")
        require(not set(new.isr) & set(new.elr), "ISR and ELR overlap")
        require({*new.isr, *new.elr} <= set(new.replicas), "member that is no replica")
        require({end.broker for end in new.unclean} <= {*new.isr, *new.elr}, "unclean replica that is no member")
        require(new.leader in (NO_LEADER, *new.isr), "leader outside of the ISR")
        if new.leader not in (old.leader, NO_LEADER):
            self.elections += 1
            if is_safe:
                self._check_leader(self.brokers[new.leader])
            else:
                del self.acknowledged[common(self.brokers[new.leader].log, self.acknowledged) :]

    def _check_leader(self, broker: Broker) -> None:
        """A broker that does not run does not lead, although its session has not expired yet."""
        if broker.runs:
            has_all = broker.log[: len(self.acknowledged)] == self.acknowledged
            require(has_all, f"broker {broker.broker_id} leads without acknowledged records")

    # -- steps ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        (name,) = self.random.choices(tuple(self.weights), tuple(self.weights.values()))
        broker = self.random.choice(list(self.brokers.values()))
        self.now += self.random.choice((0.1, 0.5, 2.0))
        getattr(self, f"do_{name}")(broker)

    def do_work(self, broker: Broker) -> None:
        """Some appends and fetches; some brokers sync."""
        brokers = list(self.brokers.values())
        for leader in brokers:
            self.do_append(leader)
        for _ in range(2):
            for each in self.random.sample(brokers, len(brokers)):
                if self.random.random() < 0.8:
                    self.do_fetch(each)
                if self.random.random() < each.syncs:
                    self.do_sync(each)

    def do_notice(self, broker: Broker) -> None:
        """The controller decides, and most brokers learn of it."""
        self.do_elect(broker)
        for each in self.brokers.values():
            if self.random.random() < 0.8:
                self.do_learn(each)

    def do_elect(self, _: Broker) -> None:
        for topic in leadership.elect(
            self.view(), min_isr=lambda _: self.min_isr, now=self.now, below_min=self.below_min
        ):
            self.store(topic.partitions[0], "elect")

    def do_learn(self, broker: Broker) -> None:
        if broker.runs and broker.alive:
            self._learn(broker)

    def _learn(self, broker: Broker) -> None:
        before, broker.state = broker.state, self.stored
        broker.proposed = ()
        if before is None or before.leader_epoch != self.stored.leader_epoch:
            broker.fetched.clear()
            broker.epoch_start = len(broker.log)
            if self.stored.leader == broker.broker_id:
                self._check_leader(broker)

    def do_append(self, broker: Broker) -> None:
        if self._leads(broker):
            assert broker.state is not None
            for _ in range(self.random.randint(1, 3)):
                self.records += 1
                broker.log.append((broker.state.leader_epoch, self.records))

    def do_sync(self, broker: Broker) -> None:
        if broker.runs:
            broker.synced = len(broker.log)
            if self._leads(broker):
                self._acknowledge(broker)

    def do_fetch(self, broker: Broker, count: int | None = None) -> None:
        """The broker fetches from the leader that it knows; both must know the same leader epoch."""
        state = broker.state
        leader = self.brokers.get(state.leader) if state is not None and broker.runs else None
        if leader is None or leader is broker or not self._leads(leader):
            return
        assert state is not None and leader.state is not None
        if leader.state.leader_epoch != state.leader_epoch:
            return
        same = common(leader.log, broker.log)
        del broker.log[same:]  # the diverging epoch
        broker.synced = min(broker.synced, same)
        leader.fetched[broker.broker_id] = same, broker.synced, broker.starts
        broker.log.extend(leader.log[same : same + (count or self.random.randint(1, 8))])
        self._acknowledge(leader)

    def _acknowledge(self, leader: Broker) -> None:
        assert leader.state is not None
        isr = leader.state.isr
        ends = {each: leader.fetched.get(each, (-1, -1, 0)) for each in (*isr, *leader.proposed)}
        ends[leader.broker_id] = len(leader.log), leader.synced, leader.starts
        if len(isr) < min(self.min_isr, len(self.stored.replicas)):
            return
        leader.high_watermark = max(leader.high_watermark, min(end for end, _, _ in ends.values()))
        durable = sorted((ends[each][1] for each in isr), reverse=True)[self.min_isr - 1]
        end = min(leader.high_watermark, durable)
        if end > len(self.acknowledged):
            require(leader.log[: len(self.acknowledged)] == self.acknowledged, "an old leader acknowledges")
            self.acknowledged = leader.log[:end]
            self.steps.append(f"broker {leader.broker_id} acknowledges {end}")

    def _leads(self, broker: Broker) -> bool:
        return broker.runs and broker.state is not None and broker.state.leader == broker.broker_id

    def do_shrink(self, broker: Broker) -> None:
        if self._leads(broker):
            assert broker.state is not None
            others = [each for each in broker.state.isr if each != broker.broker_id]
            if others:
                gone = self.random.choice(others)
                self._propose(broker, tuple(each for each in broker.state.isr if each != gone))

    def do_expand(self, broker: Broker) -> None:
        if not self._leads(broker):
            return
        assert broker.state is not None
        for each, (end, synced, starts) in broker.fetched.items():
            is_current = self.joins_after_restart or starts == self.brokers[each].starts
            start = max(broker.epoch_start, broker.high_watermark)
            if each not in broker.state.isr and is_current and self.joining_end(end, synced) >= start:
                self._propose(broker, (*broker.state.isr, each))
                return

    #: planted bug: the leader adds a follower because of the fetches of its earlier process
    joins_after_restart = False

    @staticmethod
    def joining_end(end: int, synced: int) -> int:
        """Return the offset that decides whether a follower may join: it must have synced that much."""
        return synced

    def _propose(self, broker: Broker, isr: tuple[int, ...]) -> None:
        assert broker.state is not None
        try:
            new = leadership.change_isr(
                self.topic(), 0, leader=broker.broker_id, leader_epoch=broker.state.leader_epoch, isr=isr,
                alive=[each.broker_id for each in self.brokers.values() if each.alive], min_isr=self.min_isr,
            )  # fmt: skip
        except KafkaError:
            return
        self.store(new, f"broker {broker.broker_id} proposes")
        broker.proposed = isr
        if self.random.random() < 0.7:  # else the answer of the store is late
            self._learn(broker)

    # -- failures -------------------------------------------------------------------------------------------------

    def do_expire(self, broker: Broker) -> None:
        """The session ends while the process runs on and knows nothing."""
        broker.alive = False
        self.steps.append(f"session of {broker.broker_id} expires")

    def do_kill(self, broker: Broker) -> None:
        """The process ends; its node may stay for a while."""
        if broker.runs:
            broker.runs = broker.is_clean = False
            broker.state = None
            broker.alive &= self.random.random() < 0.5
            self.steps.append(f"broker {broker.broker_id} is killed")

    def do_power(self, broker: Broker) -> None:
        """Records that are not synced are lost, also after the process has ended."""
        self.do_kill(broker)
        del broker.log[self.random.randint(broker.synced, len(broker.log)) :]
        self.steps.append(f"broker {broker.broker_id} loses power, {len(broker.log)} records stay")

    def do_blackout(self, _: Broker) -> None:
        for broker in self.brokers.values():
            self.do_power(broker)

    def do_wipe(self, broker: Broker) -> None:
        """At most one disk is lost: more are outside of what replication promises."""
        others = [each for each in self.brokers.values() if each is not broker]
        if not broker.runs and not any(each.is_lost for each in others) and self._is_redundant(broker):
            broker.log.clear()
            broker.synced, broker.is_lost = 0, True
            self.steps.append(f"disk of {broker.broker_id} is wiped")

    def _is_redundant(self, broker: Broker) -> bool:
        """Return whether enough other members have synced all acknowledged records."""
        count = len(self.acknowledged)
        return sum(
            each.log[:count] == self.acknowledged and each.synced >= count
            for each in self.brokers.values()
            if each is not broker
        ) >= min(self.min_isr, len(self.brokers) - 1)

    def do_stop(self, broker: Broker) -> None:
        """Controlled shutdown."""
        if broker.runs and broker.alive:
            for topic in leadership.leave(self.view(), broker.broker_id, min_isr=lambda _: self.min_isr):
                self.store(topic.partitions[0], f"broker {broker.broker_id} leaves")
            broker.synced = len(broker.log)
            broker.runs = broker.alive = False
            broker.state = None

    def do_start(self, broker: Broker) -> None:
        """The process starts, marks unclean logs and registers; or the running process registers again."""
        if broker.runs and broker.alive:
            return
        if not broker.runs:
            broker.starts += 1
            broker.alive = False
            if not broker.is_clean or broker.is_lost:
                broker.synced = len(broker.log)  # logs are synced before their ends are written
                self._mark(broker)
            broker.runs = broker.is_clean = True
            broker.is_lost = False
            broker.high_watermark = 0
            broker.fetched.clear()
        broker.alive = True
        self.steps.append(f"broker {broker.broker_id} is registered")
        self._learn(broker)

    def _mark(self, broker: Broker) -> None:
        end = LogEnd(broker.broker_id, broker.log[-1][0] if broker.log else -1, len(broker.log))
        if broker.is_lost:
            end = LogEnd(broker.broker_id, -1, LOG_LOST)
        marked = unclean_marks.mark_unclean(self.topic(), broker.broker_id, {0: end})
        if marked is not None:
            self.store(marked.partitions[0], f"broker {broker.broker_id} starts uncleanly")

    def do_prefer(self, _: Broker) -> None:
        try:
            new = leadership.elect_preferred(self.topic(), 0, self.view().brokers)
        except KafkaError:
            return
        self.store(new, "preferred election")

    # -- the end --------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """All brokers return and fetch: the partition must get a leader and a full ISR, unless a disk was lost."""
        for broker in self.brokers.values():
            self.do_start(broker)
        for _ in range(2 * len(self.brokers)):
            self.do_elect(self.brokers[1])
            for broker in self.brokers.values():
                self._learn(broker)
                self.do_sync(broker)
            for _ in range(2):
                for broker in self.brokers.values():
                    self.do_fetch(broker, self.records)
                    self.do_sync(broker)
            for broker in self.brokers.values():
                self.do_expand(broker)
        if self.stored.leader == NO_LEADER:
            lost = any(end.end_offset == LOG_LOST for end in self.stored.unclean)
            require(lost, "no leader although all brokers returned")
            new = leadership.elect_unclean(self.topic(), 0, self.view().brokers, min_isr=self.min_isr)
            self.store(new, "unclean election", is_safe=False)
            return
        require(set(self.stored.isr) == set(self.stored.replicas), "ISR is not full after all brokers returned")
        require(not self.stored.elr and not self.stored.unclean, "ELR is not empty although the ISR is full")


class Moving(Model):
    """The replicas move between five brokers while processes fail. A broker that is no replica deletes its log.

    Nothing loses power: records that only the removed replicas have synced are a limit of decision 0015.
    """

    def __init__(self, seed: int, *, replicas: int = 3, min_isr: int = 2) -> None:
        super().__init__(seed, replicas=5, min_isr=min_isr)
        self.weights |= {"power": 0, "blackout": 0, "wipe": 0, "reassign": 6, "cancel": 2}
        first = tuple(range(1, replicas + 1))
        self.stored = PartitionView(leader=1, leader_epoch=0, replicas=first, isr=first)
        self.completed = 0
        for broker in self.brokers.values():
            broker.state = None
            self._learn(broker)

    def do_reassign(self, _: Broker) -> None:
        target = self.random.sample(list(self.brokers), self.random.randint(2, 3))
        alive = self.view().brokers
        try:
            new = reassignment.start(self.topic(), 0, target, alive=alive, known=self.brokers, min_isr=self.min_isr)
        except KafkaError:
            return
        self.store(new, f"reassign to {target}")

    def do_cancel(self, _: Broker) -> None:
        try:
            new = reassignment.cancel(self.topic(), 0, alive=self.view().brokers, min_isr=self.min_isr)
        except KafkaError:
            return
        self.store(new, "cancel")

    def do_elect(self, broker: Broker) -> None:
        super().do_elect(broker)
        for topic in reassignment.progress_all(self.view(), min_isr=lambda _: self.min_isr):
            self.store(topic.partitions[0], "progress")
            self.completed += 1

    def _learn(self, broker: Broker) -> None:
        super()._learn(broker)
        if broker.broker_id not in self.stored.replicas:
            broker.log.clear()
            broker.synced = 0

    def do_fetch(self, broker: Broker, count: int | None = None) -> None:
        if broker.state is not None and broker.broker_id in broker.state.replicas:
            super().do_fetch(broker, count)


def common(one: list[Record], other: list[Record]) -> int:
    """Return how many records two logs have in common."""
    end = min(len(one), len(other))
    if one[:end] == other[:end]:
        return end
    return next(index for index in range(end) if one[index] != other[index])


def require(condition: bool, rule: str) -> None:
    if not condition:
        raise Violation(rule)


def run(seed: int, steps: int = 60, *, replicas: int = 3, min_isr: int = 2, model: type[Model] = Model) -> Model:
    """Run random steps, then heal. Raise Violation with the seed and the steps."""
    partition = model(seed, replicas=replicas, min_isr=min_isr)
    try:
        for _ in range(steps):
            partition.step()
        partition.heal()
    except Violation as error:
        raise Violation(f"{error}; seed {seed}\n" + "\n".join(partition.steps[-25:])) from None
    return partition
