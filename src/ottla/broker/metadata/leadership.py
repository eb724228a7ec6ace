"""Who leads a partition, who is in sync, and who may lead next, as pure functions of the cluster view.

A replica is **electable** if its broker is alive, it is in the ISR or the ELR, and its log is not unclean.

    every member of the ISR has every committed record, unless its log is unclean
    the high watermark does not move while the ISR is smaller than min.insync.replicas
    so this holds for every member of the ELR too, which counts only as long as the ISR is that small
    so every electable replica has every committed record

The ELR (eligible leader replicas, KIP-966) are the replicas that left the ISR when it became smaller than
``min.insync.replicas``. The ELR is emptied when the ISR is large enough again. The value of ``min.insync.replicas`` is
part of the partition's state (``set_min_isr``): leader and controller use the same one, whatever their settings are.

A log is **unclean** if its broker stopped uncleanly: records that were not synced may be missing. The broker writes the
end of such a log into the state before it registers. A log is also unclean while it is offline because its disk failed;
the broker writes that into the state at once (`unclean_marks.py`). While another replica leads, an unclean one leaves
the ISR; it comes back when the leader adds it. If all members of the ISR and of the ELR are alive and unclean, the one
with the highest (last epoch, end offset) has every acknowledged record, because ``min.insync.replicas`` replicas had
synced the record, and each member had the record and lost only the end of its log.

    leader alive and not unclean     dead and unclean members leave the ISR
    otherwise                        elect the first electable replica of the ISR, in the order of the assignment
                                     else of the ELR; then the ISR is this replica alone
                                     else the unclean replica with the highest end, if all members are back
                                     else no leader; the ISR stays, because one of its members must come back

The leader epoch rises with every change of the leader and when a dead or unclean member leaves the ISR. It does not
rise when a leader changes its ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ottla.broker.metadata.nodes import CONTROLLER_EPOCH, registered_path
from ottla.broker.metadata.store import Check, Op
from ottla.broker.metadata.topic_plans import check_topics, put_state
from ottla.broker.metadata.view import LOG_LOST, LOG_OFFLINE, NO_LEADER, ClusterView, PartitionView, TopicView
from ottla.model.errors import (
    ErrorCode,
    FencedLeaderEpoch,
    InvalidRequest,
    NotLeaderOrFollower,
    Refused,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from ottla.model.types import TopicPartition

#: how long the ISR may be smaller than min.insync.replicas before another replica is tried as leader
REPLACE_LEADER_AFTER_S = 3.0
#: maximum of that time, which doubles with every leader that does not help
_REPLACE_LEADER_AFTER_MAX_S = 300.0
#: percentage of a broker's preferred partitions that others may lead before leaders are moved back, as in Kafka
IMBALANCE_PERCENTAGE = 10

#: the setting min.insync.replicas of a topic; it counts only for partitions whose state has no value
MinIsr = Callable[[TopicView], int]
#: min.insync.replicas that the settings ask for in partitions of a topic with this many replicas
WantedMinIsr = Callable[[ClusterView, TopicView, int], int]


def effective_min_isr(partition: PartitionView, setting: int) -> int:
    """Return how many in-sync replicas acks=all needs: min.insync.replicas, at most all replicas."""
    return max(1, min(partition.min_isr or setting, len(partition.replicas)))


def set_min_isr(view: ClusterView, topic: TopicView, wanted: WantedMinIsr) -> TopicView | None:
    """Return the topic with min.insync.replicas in its state as the settings ask; None if nothing changes.

    A leader that learns of a smaller value commits records with fewer in-sync replicas, so the same write removes
    the replicas that were eligible only because of the larger value. While replicas are added or removed, the smaller
    number of them counts, so that acks=all goes on.
    """
    values: dict[int, int] = {}
    partitions = []
    for partition in topic.partitions:
        count = len(partition.replicas) - max(len(partition.adding), len(partition.removing))
        if count not in values:
            values[count] = wanted(view, topic, count)
        if partition.min_isr != values[count]:
            partition = partition.changed(min_isr=values[count])
            if partition.elr and len(partition.isr) >= effective_min_isr(partition, 1):
                partition = _without_elr(partition)
        partitions.append(partition)
    return with_partitions(topic, partitions)


def _without_elr(partition: PartitionView) -> PartitionView:
    unclean = tuple(end for end in partition.unclean if end.broker in partition.isr)
    return replace(partition, elr=(), unclean=unclean)


# -- elections by the controller --------------------------------------------------------------------------------------


def elect(
    view: ClusterView,
    topics: Collection[str] | None = None,
    *,
    min_isr: MinIsr,
    now: float = 0.0,
    below_min: BelowMin | None = None,
    unclean_allowed: Callable[[TopicView], bool] | None = None,
    limit: int | None = None,
) -> list[TopicView]:
    """Return the topics whose leaders, ISR or ELR the controller must change now, with the changes made.

    ``topics`` are the topics to look at, None for all. ``below_min`` remembers since when ISRs are too small, and
    ``now`` is its time; without it no leader is replaced for that reason. ``unclean_allowed`` is the topic setting
    unclean.leader.election.enable; internal topics ignore it, because a lost record of theirs can corrupt groups and
    transactions. At most ``limit`` topics are returned.
    """
    alive = view.brokers.keys()
    if below_min is not None:
        below_min.note(view, min_isr, now, topics)
    changed = []
    for topic in topics_of(view, topics):
        setting = min_isr(topic)
        is_unclean_allowed = unclean_allowed is not None and not topic.internal and unclean_allowed(topic)
        partitions = []
        for number, partition in enumerate(topic.partitions):
            elected = elect_partition(partition, alive, setting, unclean_allowed=is_unclean_allowed)
            if below_min and elected is partition and below_min.is_due(topic.name, number, partition, now):
                elected = _replace_leader(partition, alive, setting)
            partitions.append(elected)
        if (new := with_partitions(topic, partitions)) is not None:
            changed.append(new)
            if len(changed) == limit:
                break
    return changed


def elect_partition(
    partition: PartitionView, alive: Collection[int], min_isr: int, *, unclean_allowed: bool = False
) -> PartitionView:
    """Return the partition as the controller must change it now; the same object if nothing changes."""
    isr = partition.isr
    if partition.elr and len(isr) >= effective_min_isr(partition, min_isr):
        # The ISR is large enough, for example because the setting was lowered: the ISR alone may have newer records.
        emptied = _without_elr(partition)
        elected = elect_partition(emptied, alive, min_isr, unclean_allowed=unclean_allowed)
        return emptied.changed() if elected is emptied else elected
    if not partition.unclean and partition.leader in alive and all(each in alive for each in isr):
        return partition
    unclean = {end.broker for end in partition.unclean}
    if partition.leader in alive and partition.leader in isr and partition.leader not in unclean:
        leader = partition.leader
    else:
        leader = _electable(partition, alive)
    if leader != NO_LEADER:
        stays = tuple(each for each in isr if each in alive and each not in unclean) if leader in isr else (leader,)
        return _lead(partition, leader, stays, min_isr)
    if (leader := _highest_unclean(partition, alive)) != NO_LEADER:
        return _lead_alone(partition, leader)
    if unclean_allowed and (leader := _any_alive(partition, alive)) != NO_LEADER:
        return _lead_alone(partition, leader)
    if partition.leader == NO_LEADER:
        return partition
    return partition.changed(leader=NO_LEADER, leader_epoch=partition.leader_epoch + 1)


def _electable(partition: PartitionView, alive: Collection[int], *, but: int = NO_LEADER) -> int:
    """Return the first electable replica of the ISR, else of the ELR; NO_LEADER if there is none."""
    unclean = {end.broker for end in partition.unclean}
    for members in (partition.isr, partition.elr):
        for each in partition.replicas:
            if each in members and each in alive and each not in unclean and each != but:
                return each
    return NO_LEADER


def _highest_unclean(partition: PartitionView, alive: Collection[int]) -> int:
    """Return the replica with the highest end of its log if all members of ISR and ELR are back and unclean.

    Return NO_LEADER otherwise, and if the log of a member is lost or offline: it may be the only complete one.
    """
    ends = {end.broker: end for end in partition.unclean}
    members = [each for each in partition.replicas if each in partition.isr or each in partition.elr]
    if not members or any(each not in alive or each not in ends for each in members):
        return NO_LEADER
    if any(ends[each].end_offset < 0 for each in members):
        return NO_LEADER
    return max(members, key=lambda each: ends[each][1:])  # the first one of equal ones


def _any_alive(partition: PartitionView, alive: Collection[int]) -> int:
    """Return the live replica that is likely to have lost the fewest records; NO_LEADER if none is alive.

    None is electable.
    """
    ends = {end.broker: end for end in partition.unclean}
    offline = {end.broker for end in partition.unclean if end.end_offset == LOG_OFFLINE}
    members = [each for each in partition.replicas if each in alive and each not in offline]
    eligible = [each for each in members if each in ends and ends[each].end_offset != LOG_LOST]
    if eligible:
        return max(eligible, key=lambda each: ends[each][1:])
    outside = [each for each in members if each not in ends]
    return (outside or members or [NO_LEADER])[0]


def _lead(partition: PartitionView, leader: int, isr: tuple[int, ...], min_isr: int) -> PartitionView:
    """Return the partition with this leader and this ISR; the leader epoch rises if one of the two changes."""
    after = _with_isr(partition, isr, min_isr)
    if leader != partition.leader or isr != partition.isr:
        after = replace(after, leader=leader, leader_epoch=partition.leader_epoch + 1)
    # Both are compared after the change, because a member whose log is lost may leave the ELR alone.
    return partition if after == partition else after.changed()


def _with_isr(partition: PartitionView, isr: tuple[int, ...], min_isr: int) -> PartitionView:
    """Return the partition, which has a leader, with this ISR and the ELR and unclean logs that follow from it.

    An unclean replica whose log was not lost stays in the ELR: it may be one of those that have synced a record, while
    the members of the ISR have the record in memory only and may all lose power before they sync it.
    """
    if len(isr) >= effective_min_isr(partition, min_isr):
        elr: tuple[int, ...] = ()
    else:
        lost = {end.broker for end in partition.unclean if end.end_offset == LOG_LOST}
        eligible = {*partition.isr, *partition.elr} - {*isr} - lost
        elr = tuple(each for each in partition.replicas if each in eligible)
    # A replica that joins the ISR has everything that its leader has. One that is in the ISR already stays unclean.
    kept = {*elr, *(each for each in isr if each in partition.isr)}
    unclean = tuple(end for end in partition.unclean if end.broker in kept)
    return replace(partition, isr=isr, elr=elr, unclean=unclean)


def _lead_alone(partition: PartitionView, leader: int) -> PartitionView:
    """Return the partition with a leader whose log all others must follow, also if it is shorter than theirs."""
    return partition.changed(
        leader=leader, leader_epoch=partition.leader_epoch + 1, isr=(leader,), elr=(), unclean=()
    )  # fmt: skip


# -- leaders that cannot keep enough replicas in sync -----------------------------------------------------------------


class _Below(NamedTuple):
    """A partition whose ISR is smaller than min.insync.replicas."""

    since: float
    leader_epoch: int
    #: how long the leader has, from ``since``, before another replica is tried
    wait_s: float


class BelowMin:
    """Since when the leaders of partitions have kept too few replicas in sync, while others are eligible.

    A leader that replaces another one and does not help gets twice as much time, so that leaders do not change for ever
    while no replica can reach another.
    """

    def __init__(self) -> None:
        self._noted: dict[TopicPartition, _Below] = {}

    def __bool__(self) -> bool:
        return bool(self._noted)

    def topics(self) -> set[str]:
        return {name.topic for name in self._noted}

    def note(self, view: ClusterView, min_isr: MinIsr, now: float, topics: Collection[str] | None = None) -> None:
        """Note the partitions of these topics, or of all, whose ISR is too small now. Their others are forgotten."""
        noted = {} if topics is None else {n: each for n, each in self._noted.items() if n.topic not in topics}
        for topic in topics_of(view, topics):
            # Without an ELR there is no candidate. Most topics have none, and their settings are not looked up.
            if not any(partition.elr for partition in topic.partitions):
                continue
            setting = min_isr(topic)
            for number, partition in enumerate(topic.partitions):
                if partition.leader == NO_LEADER or len(partition.isr) >= effective_min_isr(partition, setting):
                    continue
                name, epoch = TopicPartition(topic.name, number), partition.leader_epoch
                before = self._noted.get(name) or _Below(now, epoch, REPLACE_LEADER_AFTER_S)
                if before.leader_epoch != epoch:
                    before = _Below(now, epoch, min(2 * before.wait_s, _REPLACE_LEADER_AFTER_MAX_S))
                noted[name] = before
        self._noted = noted

    def is_due(self, topic: str, number: int, partition: PartitionView, now: float) -> bool:
        """Return whether the leader of a partition has had enough time."""
        noted = self._noted.get(TopicPartition(topic, number))
        return noted is not None and noted.leader_epoch == partition.leader_epoch and now - noted.since >= noted.wait_s


def _replace_leader(partition: PartitionView, alive: Collection[int], min_isr: int) -> PartitionView:
    """Return the partition with a leader of the ELR, if one is electable and enough others are alive.

    The leader stays if fewer than min.insync.replicas others are alive: without it they could not be enough either.
    """
    others = sum(each in alive and each != partition.leader for each in partition.replicas)
    leader = _electable(replace(partition, isr=()), alive)
    if leader == NO_LEADER or others < effective_min_isr(partition, min_isr):
        return partition
    return _lead(partition, leader, (leader,), min_isr)


# -- changes by leaders and by brokers that start or stop -------------------------------------------------------------


def change_isr(
    topic: TopicView,
    number: int,
    *,
    leader: int,
    leader_epoch: int,
    isr: Sequence[int],
    alive: Collection[int],
    min_isr: int,
) -> PartitionView:
    """Return the partition with the ISR that its leader proposes; the same object if it has this ISR already.

    The leader may add a replica only if it has **synced** everything below the high watermark and has reached the start
    of the leader's epoch: the next records are acknowledged when min.insync.replicas members have synced them, and the
    older ones must be as safe. A broker that has begun a clean stop is not in ``alive``. Raise a KafkaError if the
    proposal is based on an old state or is not allowed.
    """
    partition = partition_of(topic, number)
    if leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"leader epoch {leader_epoch} is older than {partition.leader_epoch}")
    if leader_epoch > partition.leader_epoch:
        raise UnknownLeaderEpoch(f"leader epoch {leader_epoch} is newer than {partition.leader_epoch}")
    if leader != partition.leader:
        raise NotLeaderOrFollower(f"broker {partition.leader} leads {topic.name}-{number}, not broker {leader}")
    if len(set(isr)) != len(isr) or leader not in isr or not set(isr) <= set(partition.replicas):
        raise InvalidRequest(f"ISR {list(isr)} of {topic.name}-{number} is not a set of replicas with the leader")
    if set(isr) == set(partition.isr):
        return partition
    if dead := [each for each in isr if each not in alive and each not in partition.isr]:
        raise Refused(ErrorCode.INELIGIBLE_REPLICA, f"broker {dead[0]} is not alive, or stops, and cannot join the ISR")
    return _with_isr(partition, tuple(isr), min_isr).changed()


def leave(view: ClusterView, broker: int, *, min_isr: MinIsr) -> list[TopicView]:
    """Return the topics that change when a broker is about to stop: others lead, and it leaves the ISRs.

    It stays in an ISR that has no other live member; the controller elects when it is no longer alive. The broker
    announces that it stops before this change is written (`registration.announce_leave`), because the leader would add
    it to the ISR again. The leader epoch rises only where the leader changes, so that no other request is interrupted.
    """
    alive = view.brokers.keys() - {broker}
    changed = []
    for topic in view.topics.values():
        partitions = [_left(each, broker, alive, topic, min_isr) for each in topic.partitions]
        if (new := with_partitions(topic, partitions)) is not None:
            changed.append(new)
    return changed


def _left(
    partition: PartitionView, broker: int, alive: Collection[int], topic: TopicView, min_isr: MinIsr
) -> PartitionView:
    if broker not in partition.isr:
        return partition
    others = tuple(each for each in partition.isr if each != broker)
    if partition.leader != broker:
        return _with_isr(partition, others, min_isr(topic)).changed() if partition.leader in others else partition
    leader = next(
        (each for each in partition.replicas if each in others and _may_lead(partition, each, alive)), NO_LEADER
    )
    return partition if leader == NO_LEADER else _lead(partition, leader, others, min_isr(topic))


# -- elections that a client requests, and balance --------------------------------------------------------------------


def elect_preferred(topic: TopicView, number: int, alive: Collection[int]) -> PartitionView:
    """Return the partition led by its first replica. Raise a KafkaError if that leads already or is not electable."""
    partition = partition_of(topic, number)
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {preferred} leads {topic.name}-{number} already")
    if not _may_lead(partition, preferred, alive):
        raise Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {preferred}, the first replica of {topic.name}-{number}, is not alive or not in sync",
        )
    return partition.changed(leader=preferred, leader_epoch=partition.leader_epoch + 1)


def elect_unclean(topic: TopicView, number: int, alive: Collection[int], *, min_isr: int) -> PartitionView:
    """Return the partition with a leader, also if records are lost. Raise a KafkaError if it has one or none is alive.

    An electable replica is preferred, then the unclean one with the highest end, then one that was not in sync.
    """
    partition = partition_of(topic, number)
    if partition.leader in alive:
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads {topic.name}-{number}")
    elected = elect_partition(partition, alive, min_isr, unclean_allowed=True)
    if elected.leader == NO_LEADER:
        raise Refused(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"no replica of {topic.name}-{number} is alive; start one of the brokers {list(partition.replicas)}",
        )
    return elected


def imbalance(view: ClusterView) -> dict[int, float]:
    """Return, by live broker, the percentage of its preferred partitions (first replicas) that others lead."""
    preferred = dict.fromkeys(view.brokers, 0)
    elsewhere = dict.fromkeys(view.brokers, 0)
    for topic in view.topics.values():
        for partition in topic.partitions:
            first = partition.replicas[0]
            if first in preferred:
                preferred[first] += 1
                elsewhere[first] += partition.leader != first
    return {broker: 100 * elsewhere[broker] / count if count else 0.0 for broker, count in preferred.items()}


def balance_leaders(view: ClusterView, *, percentage: float = IMBALANCE_PERCENTAGE) -> list[TopicView]:
    """Return the topics with the preferred leaders of all brokers whose imbalance is above ``percentage``.

    Partitions that are being reassigned are left out, as in Kafka.
    """
    brokers = {broker for broker, value in imbalance(view).items() if value > percentage}
    alive = view.brokers.keys()

    def balanced(partition: PartitionView) -> PartitionView:
        first = partition.replicas[0]
        if first not in brokers or first == partition.leader or partition.adding or partition.removing:
            return partition
        if not _may_lead(partition, first, alive):
            return partition
        return partition.changed(leader=first, leader_epoch=partition.leader_epoch + 1)

    pairs = (with_partitions(topic, [balanced(each) for each in topic.partitions]) for topic in view.topics.values())
    return [new for new in pairs if new is not None] if brokers else []


def _may_lead(partition: PartitionView, broker: int, alive: Collection[int]) -> bool:
    """Return whether a broker is in the ISR, alive and not unclean."""
    return broker in partition.isr and broker in alive and all(end.broker != broker for end in partition.unclean)


# -- operations -------------------------------------------------------------------------------------------------------


def ops_elect(view: ClusterView, changed: Iterable[TopicView], controller_epoch: int | None = None) -> list[Op]:
    """Return the operations that replace the states of topics; none if no topic changes.

    ``controller_epoch`` belongs to the automatic decisions of the controller. It is the one in which this broker was
    elected, because the one of the view may be that of its successor. Changes that a client or a broker asks for have
    none.

    The operations conflict if a state was changed meanwhile, if a topic was deleted, if another broker became
    controller, or if a broker that joins an ISR was started again (KIP-903).
    """
    topics = list(changed)
    if not topics:
        return []
    fence = [] if controller_epoch is None else [Check(CONTROLLER_EPOCH, controller_epoch)]
    checks = [
        Check(registered_path(each), view.registered[each]) for each in _added(view, topics) if each in view.registered
    ]
    return [*fence, check_topics(view), *checks, *(put_state(view, topic) for topic in topics)]


def ops_change_isr(view: ClusterView, changed: Iterable[TopicView], registered: Mapping[int, int]) -> list[Op]:
    """Return the operations by which a leader changes the ISRs of topics; none if no topic changes.

    ``registered`` are the versions of /brokers/registered/N in the view from which the leader decided to add the
    followers. Raise INELIGIBLE_REPLICA if one of them was started again since: it may have lost records that the leader
    knows it had (KIP-903).
    """
    topics = list(changed)
    for each in _added(view, topics):
        if registered.get(each) != view.registered.get(each):
            raise Refused(ErrorCode.INELIGIBLE_REPLICA, f"broker {each} was started again and must catch up first")
    return ops_elect(view, topics)


def _added(view: ClusterView, topics: Iterable[TopicView]) -> list[int]:
    """Return the brokers that join an ISR."""
    added: set[int] = set()
    for topic in topics:
        for before, after in zip(view.topics[topic.name].partitions, topic.partitions, strict=False):
            if after.isr != before.isr:
                added.update(set(after.isr) - set(before.isr))
    return sorted(added)


def replace_partition(topic: TopicView, number: int, partition: PartitionView) -> TopicView | None:
    """Return the topic with one partition replaced; None if it is the same."""
    partitions = [*topic.partitions[:number], partition, *topic.partitions[number + 1 :]]
    return with_partitions(topic, partitions)


def partition_of(topic: TopicView, number: int) -> PartitionView:
    """Return a partition. Raise UnknownTopicOrPartition if the topic does not have it."""
    if not 0 <= number < len(topic.partitions):
        raise UnknownTopicOrPartition(f"topic {topic.name!r} has no partition {number}")
    return topic.partitions[number]


def with_partitions(topic: TopicView, partitions: list[PartitionView]) -> TopicView | None:
    """Return the topic with these partitions; None if they are the same objects."""
    if all(new is old for new, old in zip(partitions, topic.partitions, strict=True)):
        return None
    return replace(topic, partitions=tuple(partitions))


def topics_of(view: ClusterView, names: Iterable[str] | None) -> Iterable[TopicView]:
    """Return the topics of these names that exist, or all topics."""
    if names is None:
        return view.topics.values()
    return [view.topics[name] for name in names if name in view.topics]
