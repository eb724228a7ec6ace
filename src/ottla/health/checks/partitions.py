"""Checks of partitions: leaders, in-sync replicas, placement and reassignments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ottla.admin.topic_state import PartitionState
from ottla.health.checks.definition import ERROR, WARNING, Check, Problem, check
from ottla.health.types import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    ClusterPicture,
    Part,
    TopicPicture,
    parse_number,
)
from ottla.model.figures import format_count, format_duration_ms, format_first
from ottla.model.types import TopicPartition

MIN_ISR = "min.insync.replicas"
THROTTLED_REPLICAS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
THROTTLED_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
#: share of partitions that may be led by other replicas than the preferred ones; brokers use the same limit
_NOT_PREFERRED_MAX = 0.1
#: a broker with this many times its fair share is reported, if the difference is at least _SKEW_MIN
_SKEW_FACTOR = 1.5
_SKEW_MIN = 10
_REPLICAS_GOOD = 3


def _brokers_of(picture: ClusterPicture, partitions: list[PartitionState]) -> str:
    """Return what to do about brokers with replicas of these partitions."""
    missing = sorted({number for each in partitions for number in each.replicas} - picture.brokers.keys())
    if missing:
        return f"start {'brokers' if len(missing) > 1 else 'broker'} {', '.join(map(str, missing))}"
    return "see the logs of the brokers with these replicas"


def _min_isr(topic: TopicPicture) -> int:
    """Return min.insync.replicas; brokers take the number of replicas if that is smaller."""
    return topic.number(MIN_ISR, 1)


def _named(partitions: list[PartitionState]) -> list[str]:
    return [str(each.name) for each in partitions]


def _where(picture: ClusterPicture, matches: Callable[[TopicPicture, PartitionState], bool]) -> list[PartitionState]:
    return [each for topic in picture.topics.values() for each in topic.partitions if matches(topic, each)]


@check(
    severity=ERROR,
    kind="partition",
    problem="Partitions have no leader: they accept no records and return none.",
    advice="start the brokers with their replicas; only if their data is lost: 'ottla cluster elect --unclean TOPIC'",
)
def offline_partitions(picture: ClusterPicture) -> Iterator[Problem]:
    found = [each for each in picture.partitions() if each.leader is None]
    if found:
        advice = f"{_brokers_of(picture, found)}; only if data is lost: 'ottla cluster elect --unclean TOPIC'"
        text = f"{format_count(len(found), 'partition')} without a leader ({format_first(_named(found))})"
        yield Problem(text, _named(found), advice)


@check(
    severity=ERROR,
    kind="partition",
    problem="Partitions of an internal topic have no leader: their groups or transactional ids have no coordinator.",
    advice="start the brokers with their replicas",
)
def coordinators_offline(picture: ClusterPicture) -> Iterator[Problem]:
    for name, what in ((CONSUMER_OFFSETS, "groups"), (TRANSACTION_STATE, "transactional ids")):
        topic = picture.topics.get(name)
        found = [each for each in topic.partitions if each.leader is None] if topic is not None else []
        if topic is not None and found:
            text = f"{len(found)} of {len(topic.partitions)} partitions of {name} without a leader: their {what} stop"
            yield Problem(text, _named(found), _brokers_of(picture, found))


def _is_below_min(topic: TopicPicture, each: PartitionState) -> bool:
    return each.leader is not None and len(each.isr) < min(_min_isr(topic), len(each.replicas))


def _is_at_min(topic: TopicPicture, each: PartitionState) -> bool:
    return each.leader is not None and each.is_under_replicated and len(each.isr) == _min_isr(topic)


@check(
    severity=ERROR,
    kind="partition",
    problem="Partitions have fewer in-sync replicas than min.insync.replicas: producers with acks=all are refused.",
    advice="start the brokers with the missing replicas",
    needs=[Part.TOPIC_SETTINGS],
)
def under_min_isr(picture: ClusterPicture) -> Iterator[Problem]:
    found = _where(picture, _is_below_min)
    if found:
        text = f"{format_count(len(found), 'partition')} refuse acks=all ({format_first(_named(found))})"
        yield Problem(text, _named(found), _brokers_of(picture, found))


@check(
    severity=WARNING,
    kind="partition",
    problem="Replicas are missing, and with one more failure producers with acks=all are refused.",
    advice="start the brokers with the missing replicas before you restart others",
    needs=[Part.TOPIC_SETTINGS],
)
def at_min_isr(picture: ClusterPicture) -> Iterator[Problem]:
    found = [each for each in _where(picture, _is_at_min) if not each.adding]
    if found:
        text = (
            f"{format_count(len(found), 'partition')} with just min.insync.replicas in sync "
            f"({format_first(_named(found))})"
        )
        yield Problem(text, _named(found), f"{_brokers_of(picture, found)}, before you restart other brokers")


@check(
    severity=WARNING,
    kind="partition",
    problem="Replicas are not in sync: the partition tolerates fewer failures. Replicas that a move adds are left out.",
    advice="start their brokers; 'ottla cluster status --wait' waits until they are in sync",
)
def under_replicated(picture: ClusterPicture) -> Iterator[Problem]:
    def matches(topic: TopicPicture, each: PartitionState) -> bool:
        is_worse = Part.TOPIC_SETTINGS not in picture.unknown and (
            _is_below_min(topic, each) or _is_at_min(topic, each)
        )
        return each.leader is not None and each.is_under_replicated and not each.adding and not is_worse

    found = _where(picture, matches)
    if found:
        text = f"{format_count(len(found), 'partition')} with replicas not in sync ({format_first(_named(found))})"
        advice = f"{_brokers_of(picture, found)}; 'ottla cluster status --wait' waits until they are in sync"
        yield Problem(text, _named(found), advice)


@check(
    severity=WARNING,
    kind="topic",
    problem="A topic has one replica in a cluster of several brokers: each restart of a broker stops it.",
    advice="add replicas, for example 'ottla cluster reassign TOPIC:0=1,2,3' for each partition",
)
def single_replica(picture: ClusterPicture) -> Iterator[Problem]:
    if len(picture.brokers) < 2:
        return
    names = [topic.name for topic in picture.own_topics() if topic.replication_factor == 1]
    if names:
        yield Problem(f"{format_count(len(names), 'topic')} with one replica ({format_first(names)})", names)


@check(
    severity=WARNING,
    kind="topic",
    problem="An internal topic has fewer replicas than there could be: one failure can stop groups or transactions.",
    advice="add replicas: 'ottla cluster reassign --file', and set offsets.topic.replication.factor=3 and "
    "transaction.state.log.replication.factor=3",
)
def internal_topic_replicas(picture: ClusterPicture) -> Iterator[Problem]:
    wanted = min(_REPLICAS_GOOD, len(picture.brokers))
    for name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
        topic = picture.topics.get(name)
        fewest = min((len(each.replicas) for each in topic.partitions), default=wanted) if topic else wanted
        if fewest < wanted:
            yield Problem(f"{name} has {format_count(fewest, 'replica')}, {wanted} brokers could hold one each", [name])


@check(
    severity=WARNING,
    kind="topic",
    problem="min.insync.replicas is not smaller than the number of replicas: while one broker restarts, producers with "
    "acks=all are refused.",
    advice="one less than the replicas is enough: 'ottla config set min.insync.replicas=2 --topic TOPIC'",
    needs=[Part.TOPIC_SETTINGS],
)
def no_failure_tolerated(picture: ClusterPicture) -> Iterator[Problem]:
    names = [topic.name for topic in picture.own_topics() if 1 < topic.replication_factor <= _min_isr(topic)]
    if names:
        text = f"{format_count(len(names), 'topic')} that stop writes when one broker stops ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=WARNING,
    kind="topic",
    problem="min.insync.replicas is 1 with three or more replicas: records that only the leader has are acknowledged, "
    "and lost with it.",
    advice="'ottla config set min.insync.replicas=2 --topic TOPIC', or on all brokers",
    needs=[Part.TOPIC_SETTINGS],
)
def min_isr_one(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        topic.name
        for topic in picture.own_topics()
        if topic.replication_factor >= _REPLICAS_GOOD and topic.settings.get(MIN_ISR) == "1"
    ]
    if names:
        text = f"{format_count(len(names), 'topic')} with min.insync.replicas=1 ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=WARNING,
    kind="topic",
    problem="Partitions of one topic have different numbers of replicas, as after a move of some of them.",
    advice="give all partitions the same number: 'ottla cluster reassign TOPIC:PARTITION=BROKER,BROKER,BROKER'",
)
def uneven_replication(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        topic.name
        for topic in picture.topics.values()
        if len({len(each.replicas) for each in topic.partitions if not each.is_reassigned}) > 1
    ]
    if names:
        text = f"{format_count(len(names), 'topic')} whose partitions differ in replicas ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=WARNING,
    kind="partition",
    problem="More than a tenth of the partitions are not led by their preferred replicas: some brokers do more work.",
    advice="'ottla cluster elect' moves the leaders back; brokers do so by themselves every few minutes",
)
def leaders_not_preferred(picture: ClusterPicture) -> Iterator[Problem]:
    partitions = list(picture.partitions())
    found = [each for each in partitions if each.leader not in (None, each.preferred)]
    if len(found) > len(partitions) * _NOT_PREFERRED_MAX:
        text = f"{len(found)} of {len(partitions)} partitions are not led by their preferred replicas"
        yield Problem(text, _named(found))


def _skew(picture: ClusterPicture, counts: Counter[int], noun: str) -> Iterator[Problem]:
    fair = sum(counts.values()) / max(len(picture.brokers), 1)
    most = sorted(picture.brokers, key=lambda number: -counts[number])
    names = [number for number in most if counts[number] > fair * _SKEW_FACTOR and counts[number] - fair >= _SKEW_MIN]
    if names:
        text = f"broker {names[0]} has {counts[names[0]]} {noun}, a fair share are {fair:.0f}"
        yield Problem(text, map(str, names))


@check(
    severity=WARNING,
    kind="broker",
    problem="A broker is the preferred leader of many more partitions than others.",
    advice="'ottla cluster balance --dry-run' plans moves that spread leaders and replicas",
)
def leaders_skewed(picture: ClusterPicture) -> Iterator[Problem]:
    yield from _skew(picture, Counter(each.preferred for each in picture.partitions() if each.replicas), "leaders")


@check(
    severity=WARNING,
    kind="broker",
    problem="A broker has many more replicas than others, as after a broker was added.",
    advice="'ottla cluster balance --dry-run' plans moves, 'ottla cluster add BROKER --dry-run' those to a new broker",
)
def replicas_skewed(picture: ClusterPicture) -> Iterator[Problem]:
    counts = Counter(number for each in picture.partitions() for number in each.replicas)
    yield from _skew(picture, counts, "replicas")


@check(
    severity=WARNING,
    kind="partition",
    problem="All replicas of a partition are in one rack: it is offline when that rack fails.",
    advice="move a replica to another rack: 'ottla cluster reassign TOPIC:PARTITION=BROKER,BROKER,BROKER'",
)
def one_rack(picture: ClusterPicture) -> Iterator[Problem]:
    racks = {number: broker.rack for number, broker in picture.brokers.items() if broker.rack}
    if len(set(racks.values())) < 2:
        return
    found = [
        each
        for each in picture.partitions()
        if len(each.replicas) > 1
        and all(number in racks for number in each.replicas)
        and len({racks[number] for number in each.replicas}) == 1
    ]
    if found:
        text = f"{format_count(len(found), 'partition')} with all replicas in one rack ({format_first(_named(found))})"
        yield Problem(text, _named(found))


@check(
    severity=WARNING,
    kind="partition",
    problem="A move of replicas makes no progress: the new replica's broker does not run, or it copies nothing.",
    advice="start the broker, raise the throttle, or cancel: 'ottla cluster reassign --cancel TOPIC:PARTITION'",
    needs=[Part.REASSIGNMENTS],
)
def stuck_reassignment(picture: ClusterPicture) -> Iterator[Problem]:
    found = [
        each
        for each in picture.partitions()
        if each.adding and (not set(each.adding) <= picture.brokers.keys() or _copies_nothing(picture, each))
    ]
    if found:
        since = f" in {format_duration_ms(picture.elapsed_ms)}" if picture.before is not None else ""
        text = f"{format_count(len(found), 'move')} of replicas without progress{since} ({format_first(_named(found))})"
        yield Problem(text, _named(found))


def _copies_nothing(picture: ClusterPicture, each: PartitionState) -> bool:
    """Return whether the same move was in progress at the earlier reading, and no new replica has grown since."""
    before = picture.before
    topic = before.topics.get(each.name.topic) if before is not None else None
    if before is None or topic is None or Part.DIRECTORIES in {*picture.unknown, *before.unknown}:
        return False
    same = any(old.name == each.name and old.adding == each.adding and old.isr == each.isr for old in topic.partitions)
    waiting = [number for number in each.adding if number not in each.isr]
    keys = [(each.name, number) for number in waiting]
    return same and bool(keys) and all(picture.added_bytes.get(key) == before.added_bytes.get(key) for key in keys)


@check(
    severity=WARNING,
    kind="topic",
    problem="The throttle of a finished move of replicas is still set: replicas that fall behind catch up slowly.",
    advice="'ottla cluster reassign --unthrottle' removes it",
    needs=[Part.TOPIC_SETTINGS, Part.BROKER_SETTINGS, Part.REASSIGNMENTS],
)
def throttle_left_behind(picture: ClusterPicture) -> Iterator[Problem]:
    if any(each.is_reassigned for each in picture.partitions()):
        return
    topics = [
        topic.name for topic in picture.topics.values() if any(topic.settings.get(key) for key in THROTTLED_REPLICAS)
    ]
    brokers = [
        number
        for number, broker in picture.brokers.items()
        if any(0 <= parse_number(broker.settings.get(key), -1) < 2**62 for key in THROTTLED_RATES)
    ]
    if topics:
        yield Problem(
            f"replicas of {format_count(len(topics), 'topic')} are throttled ({format_first(topics)})", topics
        )
    elif brokers:
        text = f"brokers {format_first(brokers)} have a replication throttle, and no move is in progress"
        yield Problem(text, map(str, brokers))


@check(
    severity=WARNING,
    kind="broker",
    problem="Brokers with replicas are not registered: they do not run, or are cut off.",
    advice="start them; if one is lost for good: 'ottla cluster decommission BROKER'",
)
def missing_brokers(picture: ClusterPicture) -> Iterator[Problem]:
    counts = Counter(number for each in picture.partitions() for number in each.replicas)
    missing = sorted(counts.keys() - picture.brokers.keys(), key=lambda number: -counts[number])
    if missing:
        lost = sum(counts[number] for number in missing)
        text = f"brokers with replicas that do not run: {format_first(missing)} ({format_count(lost, 'replica')})"
        advice = f"start them; if one is lost for good: 'ottla cluster decommission {missing[0]}'"
        yield Problem(text, map(str, missing), advice)


def added_replicas(picture: ClusterPicture) -> Iterator[tuple[TopicPartition, int]]:
    """Yield partition and broker of each replica that a move adds."""
    for each in picture.partitions():
        for number in each.adding:
            yield each.name, number


CHECKS: tuple[Check, ...] = (
    offline_partitions,
    coordinators_offline,
    under_min_isr,
    missing_brokers,
    internal_topic_replicas,
    at_min_isr,
    under_replicated,
    stuck_reassignment,
    throttle_left_behind,
    single_replica,
    no_failure_tolerated,
    min_isr_one,
    uneven_replication,
    one_rack,
    leaders_not_preferred,
    leaders_skewed,
    replicas_skewed,
)
