"""Checks of brokers: controller, addresses, racks, versions, and settings that must be the same on all of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ottla.health.checks.definition import ERROR, INFO, WARNING, Check, Problem, check
from ottla.health.types import BrokerPicture, ClusterPicture, Part, parse_number
from ottla.model.figures import format_count, format_first
from ottla.model.types import is_loopback

_DAY_MINUTES = 24 * 60
#: settings that make no sense with different values on the brokers of one cluster
SAME_SETTINGS = (
    "allow.everyone.if.no.acl.found",
    "authorizer.class.name",
    "auto.create.topics.enable",
    "compression.type",
    "default.replication.factor",
    "delete.topic.enable",
    "group.consumer.session.timeout.ms",
    "group.max.session.timeout.ms",
    "group.min.session.timeout.ms",
    "inter.broker.protocol.version",
    "log.cleanup.policy",
    "log.message.timestamp.type",
    "log.retention.bytes",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "log.segment.bytes",
    "max.incremental.fetch.session.cache.slots",
    "message.max.bytes",
    "min.insync.replicas",
    "num.partitions",
    "offsets.retention.minutes",
    "offsets.topic.num.partitions",
    "offsets.topic.replication.factor",
    "replica.fetch.max.bytes",
    "replica.lag.time.max.ms",
    "sasl.enabled.mechanisms",
    "security.inter.broker.protocol",
    "super.users",
    "transaction.max.timeout.ms",
    "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
    "transactional.id.expiration.ms",
    "unclean.leader.election.enable",
    "zookeeper.connect",
)


def with_settings(picture: ClusterPicture) -> list[BrokerPicture]:
    """Return the brokers whose settings are known."""
    return [each for each in picture.brokers.values() if each.settings]


def _ids(brokers: list[BrokerPicture]) -> list[str]:
    return [str(each.id) for each in brokers]


@check(
    severity=ERROR,
    kind="cluster",
    problem="No broker is the controller: leaders are not elected, topics are not created.",
    advice="check that ZooKeeper, or the quorum of controllers, runs, and that the brokers reach it",
)
def no_controller(picture: ClusterPicture) -> Iterator[Problem]:
    if picture.controller_id is None:
        yield Problem("no broker is the controller", [picture.cluster_id])


@check(
    severity=ERROR,
    kind="broker",
    problem="A broker is registered and gives no answer at its advertised address: it is paused, overloaded or cut "
    "off, or the address is wrong for this network.",
    advice="check the process and its log, and that advertised.listeners is an address that clients can reach",
)
def silent_brokers(picture: ClusterPicture) -> Iterator[Problem]:
    silent = [each for each in picture.brokers.values() if each.problem]
    if silent:
        text = f"{format_count(len(silent), 'broker')} without an answer: {silent[0].problem}"
        yield Problem(text, _ids(silent))


@check(
    severity=ERROR,
    kind="broker",
    problem="Two brokers advertise the same address: clients of one reach the other.",
    advice="give each broker its own advertised.listeners",
)
def same_address(picture: ClusterPicture) -> Iterator[Problem]:
    by_address: dict[tuple[str, int], list[BrokerPicture]] = defaultdict(list)
    for each in picture.brokers.values():
        by_address[each.node.address].append(each)
    for (host, port), brokers in by_address.items():
        if len(brokers) > 1:
            yield Problem(f"brokers {format_first(_ids(brokers))} advertise {host}:{port}", _ids(brokers))


@check(
    severity=ERROR,
    kind="broker",
    problem="A broker advertises an address that exists on its own machine only, such as localhost: clients on other "
    "machines connect to themselves.",
    advice="set advertised.listeners to a name or an address that clients can reach",
)
def loopback_address(picture: ClusterPicture) -> Iterator[Problem]:
    local = [each for each in picture.brokers.values() if is_loopback(each.node.host)]
    # A cluster on one machine, for a trial, is used through the loopback address alone.
    is_trial = len(local) == len(picture.brokers) and all(map(is_loopback, picture.bootstrap_hosts))
    if local and not is_trial:
        text = f"{format_count(len(local), 'broker')} advertised at {local[0].node.host}"
        yield Problem(text, _ids(local))


@check(
    severity=WARNING,
    kind="broker",
    problem="Some brokers have a rack and others have none: Kafka then refuses to place replicas by rack.",
    advice="set broker.rack on all brokers, or on none",
)
def racks_partly_set(picture: ClusterPicture) -> Iterator[Problem]:
    without = [each for each in picture.brokers.values() if not each.rack]
    if 0 < len(without) < len(picture.brokers):
        yield Problem(f"{format_count(len(without), 'broker')} without broker.rack", _ids(without))


@check(
    severity=WARNING,
    kind="broker",
    problem="Brokers run different versions: fine during a rolling upgrade, a forgotten broker after it.",
    advice="finish the upgrade of the brokers that are named",
    needs=[Part.VERSIONS],
)
def mixed_versions(picture: ClusterPicture) -> Iterator[Problem]:
    brokers = [each for each in picture.brokers.values() if each.versions]
    counts = Counter(tuple(sorted(each.versions.items())) for each in brokers)
    if len(counts) > 1:
        newest = max(counts, key=lambda apis: (len(apis), sum(versions[1] for _, versions in apis), counts[apis]))
        old = [each for each in brokers if tuple(sorted(each.versions.items())) != newest]
        text = f"{format_count(len(old), 'broker')} with older APIs than the others"
        yield Problem(text, _ids(old))


@check(
    severity=INFO,
    kind="cluster",
    problem="All brokers support a higher level of a feature than the cluster uses: an upgrade was not finished.",
    advice="once you will not go back: 'kafka-features upgrade', or UpdateFeatures with another tool",
    needs=[Part.VERSIONS],
)
def upgrade_not_finished(picture: ClusterPicture) -> Iterator[Problem]:
    brokers = [each for each in picture.brokers.values() if each.features]
    names = sorted({name for each in brokers for name in each.features})
    for name in names:
        rows = [each.features[name] for each in brokers if name in each.features]
        supported, finalized = min(row.supported for row in rows), max(row.finalized for row in rows)
        if len(rows) == len(brokers) and finalized < supported:
            yield Problem(f"{name} is at {finalized}, all brokers support {supported}", [name])


@check(
    severity=WARNING,
    kind="broker",
    problem="A setting differs between brokers: the behaviour of a topic or group depends on its leader.",
    advice="give all brokers the same value, for example with 'ottla config set --broker-defaults NAME=VALUE'",
    needs=[Part.BROKER_SETTINGS],
)
def different_settings(picture: ClusterPicture) -> Iterator[Problem]:
    brokers = with_settings(picture)
    for name in SAME_SETTINGS:
        values = {each.id: each.settings.get(name) for each in brokers}
        counts = Counter(values.values())
        if len(counts) > 1:
            usual = counts.most_common(1)[0][0]
            others = [number for number, value in values.items() if value != usual]
            shown_value = values[others[0]] if values[others[0]] is not None else "not set"
            text = f"{name} is {shown_value or 'empty'} on broker {others[0]}, {usual or 'empty'} on most others"
            yield Problem(text, map(str, others))


@check(
    severity=WARNING,
    kind="broker",
    problem="New topics get one replica by default in a cluster of several brokers.",
    advice="set default.replication.factor=3 on all brokers",
    needs=[Part.BROKER_SETTINGS],
)
def default_single_replica(picture: ClusterPicture) -> Iterator[Problem]:
    brokers = [each for each in with_settings(picture) if each.settings.get("default.replication.factor") == "1"]
    if brokers and len(picture.brokers) > 2:
        yield Problem("default.replication.factor is 1", _ids(brokers))


@check(
    severity=INFO,
    kind="broker",
    problem="Clients create topics by using them: a misspelt name becomes a topic.",
    advice="set auto.create.topics.enable=false on all brokers, and create topics with 'ottla topic create'",
    needs=[Part.BROKER_SETTINGS],
)
def auto_created_topics(picture: ClusterPicture) -> Iterator[Problem]:
    brokers = [each for each in with_settings(picture) if each.settings.get("auto.create.topics.enable") == "true"]
    if brokers and len(picture.brokers) > 2:
        yield Problem("clients create topics by using them (auto.create.topics.enable=true)", _ids(brokers))


@check(
    severity=WARNING,
    kind="broker",
    problem="Committed offsets expire within a day: a group that is stopped over a weekend starts again elsewhere.",
    advice="set offsets.retention.minutes=10080 on all brokers",
    needs=[Part.BROKER_SETTINGS],
)
def short_offsets_retention(picture: ClusterPicture) -> Iterator[Problem]:
    rows = [
        (parse_number(each.settings.get("offsets.retention.minutes"), 10_080), each) for each in with_settings(picture)
    ]
    short = [each for minutes, each in rows if minutes < _DAY_MINUTES]
    if short:
        fewest = min(minutes for minutes, _ in rows)
        yield Problem(f"offsets.retention.minutes is {fewest}", _ids(short))


@check(
    severity=WARNING,
    kind="broker",
    problem="message.max.bytes is larger than what a replica fetches at once (replica.fetch.max.bytes): followers "
    "fetch large batches one by one and fall behind.",
    advice="set replica.fetch.max.bytes to message.max.bytes at least",
    needs=[Part.BROKER_SETTINGS, Part.TOPIC_SETTINGS],
)
def small_replica_fetch(picture: ClusterPicture) -> Iterator[Problem]:
    fetch = [parse_number(each.settings.get("replica.fetch.max.bytes"), 0) for each in with_settings(picture)]
    if not fetch or not min(fetch):
        return
    # The default of message.max.bytes is 12 bytes above that of replica.fetch.max.bytes, the size of a batch's start.
    limit = min(fetch) + 1024
    for each in with_settings(picture):
        size = parse_number(each.settings.get("message.max.bytes"), 0)
        if size > limit:
            yield Problem(
                f"message.max.bytes is {size} on broker {each.id}, replicas fetch {min(fetch)}", [str(each.id)]
            )
    topics = [topic.name for topic in picture.topics.values() if topic.number("max.message.bytes", 0) > limit]
    if topics:
        text = (
            f"{format_count(len(topics), 'topic')} with max.message.bytes above {min(fetch)} ({format_first(topics)})"
        )
        yield Problem(text, _ids(with_settings(picture)))


CHECKS: tuple[Check, ...] = (
    no_controller,
    silent_brokers,
    same_address,
    loopback_address,
    mixed_versions,
    different_settings,
    racks_partly_set,
    default_single_replica,
    short_offsets_retention,
    small_replica_fetch,
    upgrade_not_finished,
    auto_created_topics,
)
