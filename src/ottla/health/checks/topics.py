"""Checks of topics: names, settings and what is in them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from ottla.health.checks.definition import INFO, WARNING, Check, Problem, check
from ottla.health.types import ClusterPicture, Part, TopicPicture
from ottla.model.figures import format_count, format_duration_ms, format_first

_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_MIB = 1 << 20
_SEGMENT_MS_MIN = 10 * _MINUTE_MS
#: a record may be older than retention.ms by one segment; more is reported
_LATE_FACTOR = 4
_AHEAD_MS = _HOUR_MS
_REPLICAS_PER_BROKER = 4000
#: shorter names differ by one letter too often
_MISSPELT_LENGTH_MIN = 5
_DIGITS = re.compile(r"\d+")
DEAD_LETTERS = re.compile(r"(^|[._-])(dlq|dlt|dead[._-]?letters?|quarantine|errors?)($|[._-])", re.IGNORECASE)


def _deletes(topic: TopicPicture) -> bool:
    return "delete" in topic.policies


@check(
    severity=WARNING,
    kind="topic",
    problem="A replica that is not in sync may become leader (unclean.leader.election.enable): acknowledged records "
    "are lost then.",
    advice="'ottla config set unclean.leader.election.enable=false --topic TOPIC', or on all brokers",
    needs=[Part.TOPIC_SETTINGS],
)
def unclean_elections(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        topic.name
        for topic in picture.topics.values()
        if topic.settings.get("unclean.leader.election.enable") == "true" and topic.replication_factor > 1
    ]
    if names:
        text = f"{format_count(len(names), 'topic')} with unclean elections ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=WARNING,
    kind="topic",
    problem="Names of topics differ only in '.' and '_': their metrics have the same name.",
    advice="rename one of them: create it under another name and copy its records",
)
def colliding_names(picture: ClusterPicture) -> Iterator[Problem]:
    by_metric: dict[str, list[str]] = defaultdict(list)
    for name in picture.topics:
        by_metric[name.replace(".", "_")].append(name)
    for names in by_metric.values():
        if len(names) > 1:
            yield Problem(f"{format_first(names)} have the same name in metrics", names)


@check(
    severity=INFO,
    kind="topic",
    problem="A topic without records has the name of another one with a letter more, less or exchanged: it was created "
    "by a misspelt name.",
    advice="check which client uses it, then 'ottla topic delete TOPIC'",
    needs=[Part.OFFSETS],
)
def misspelt_topics(picture: ClusterPicture) -> Iterator[Problem]:
    ends = _ends(picture)
    names = [topic.name for topic in picture.own_topics() if len(topic.name) >= _MISSPELT_LENGTH_MIN]
    near: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if ends.get(name):
            for piece in _pieces(name):
                near[piece].append(name)
    pairs = {}
    for name in names:
        if ends.get(name, 1):
            continue
        others = [other for piece in _pieces(name) for other in near.get(piece, ()) if _is_near(name, other)]
        if others:
            pairs[name] = min(others)
    if pairs:
        first, other = next(iter(pairs.items()))
        text = f"{format_count(len(pairs), 'empty topic')} with nearly the name of another ({first}, like {other})"
        yield Problem(text, pairs)


def _ends(picture: ClusterPicture) -> dict[str, int]:
    """Return the sum of the end offsets, by topic. A topic without known offsets is absent."""
    ends: Counter[str] = Counter()
    for name, offsets in picture.offsets.items():
        ends[name.topic] += offsets.end
    return dict(ends)


def _pieces(name: str) -> set[str]:
    """Return the name, and the name without each letter: near names have one of them in common."""
    return {name, *(name[:at] + name[at + 1 :] for at in range(len(name)))}


def _is_near(name: str, other: str) -> bool:
    """Return whether two names differ in a letter, and not only in numbers, dots and the like."""
    if _DIGITS.sub("#", name) == _DIGITS.sub("#", other) or abs(len(name) - len(other)) > 1:
        return False
    return [sign for sign in name if not sign.isalpha()] == [sign for sign in other if not sign.isalpha()]


@check(
    severity=WARNING,
    kind="topic",
    problem="Segments are very small or short: each has several open files, and recovery reads all of them.",
    advice="'ottla config set segment.bytes=1073741824 segment.ms=604800000 --topic TOPIC', or remove the settings",
    needs=[Part.TOPIC_SETTINGS],
)
def small_segments(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        topic.name
        for topic in picture.own_topics()
        if topic.number("segment.bytes", _MIB) < _MIB or topic.number("segment.ms", _HOUR_MS) < _SEGMENT_MS_MIN
    ]
    if names:
        text = f"{format_count(len(names), 'topic')} with segments below 1 MiB or 10 minutes ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=WARNING,
    kind="topic",
    problem="Segments last much longer than retention.ms: records stay for segment.ms, because whole segments are "
    "deleted.",
    advice="set segment.ms to a part of retention.ms: 'ottla config set segment.ms=… --topic TOPIC'",
    needs=[Part.TOPIC_SETTINGS],
)
def late_retention(picture: ClusterPicture) -> Iterator[Problem]:
    rows = [
        (topic.number("retention.ms", -1), topic.number("segment.ms", 0), topic.name)
        for topic in picture.own_topics()
        if _deletes(topic)
    ]
    late = [row for row in rows if row[0] > 0 and row[1] > row[0] * _LATE_FACTOR]
    if late:
        retention_ms, segment_ms, name = max(late, key=lambda row: row[1] / row[0])
        text = (
            f"{format_count(len(late), 'topic')} with longer segments than retention ({name}: retention.ms "
            f"{format_duration_ms(retention_ms)}, segment.ms {format_duration_ms(segment_ms)})"
        )
        yield Problem(text, [row[2] for row in late])


@check(
    severity=INFO,
    kind="topic",
    problem="Nothing limits a topic: no retention by time or size, and no compaction. It grows until the disk is full.",
    advice="'ottla config set retention.ms=… --topic TOPIC' or retention.bytes, or cleanup.policy=compact",
    needs=[Part.TOPIC_SETTINGS],
)
def unlimited_topics(picture: ClusterPicture) -> Iterator[Problem]:
    names = [
        topic.name
        for topic in picture.own_topics()
        if topic.settings
        and "compact" not in topic.policies
        and not (_deletes(topic) and (topic.number("retention.ms", 1) >= 0 or topic.number("retention.bytes", -1) >= 0))
    ]
    if names:
        text = f"{format_count(len(names), 'topic')} without any limit ({format_first(names)})"
        yield Problem(text, names)


@check(
    severity=INFO,
    kind="broker",
    problem="A broker has more than 4,000 replicas: starts, elections and metadata take long.",
    advice="use fewer partitions per topic, or add brokers: 'ottla cluster add'",
)
def many_partitions(picture: ClusterPicture) -> Iterator[Problem]:
    counts = Counter(number for each in picture.partitions() for number in each.replicas)
    many = [number for number, count in counts.most_common() if count > _REPLICAS_PER_BROKER]
    if many:
        yield Problem(f"broker {many[0]} has {counts[many[0]]} replicas", map(str, many))


@check(
    severity=WARNING,
    kind="partition",
    problem="Records have timestamps in the future: the clock of a producer or broker is ahead. Retention by time "
    "keeps them longer, and consumers by time skip records.",
    advice="check NTP on the producers of the topic, and on the brokers with message.timestamp.type=LogAppendTime",
    needs=[Part.TIMESTAMPS],
)
def future_timestamps(picture: ClusterPicture) -> Iterator[Problem]:
    ahead = {name: time_ms - picture.read_at_ms for name, time_ms in picture.timestamps.items()}
    worst = sorted((name for name, span in ahead.items() if span > _AHEAD_MS), key=lambda name: -ahead[name])
    if worst:
        span = format_duration_ms(ahead[worst[0]])
        text = f"{format_count(len(worst), 'partition')} with timestamps in the future ({worst[0]}: by {span})"
        yield Problem(text, map(str, worst))


@check(
    severity=INFO,
    kind="topic",
    problem="A dead-letter topic has records that no consumer could process. It is a warning while it grows.",
    advice="look at them with 'ottla consume TOPIC -J -e', correct the cause, and send them again",
    needs=[Part.OFFSETS],
)
def dead_letters(picture: ClusterPicture) -> Iterator[Problem]:
    before = _ends(picture.before) if picture.before is not None else {}
    ends = _ends(picture)
    counts: Counter[str] = Counter()
    for name, offsets in picture.offsets.items():
        if DEAD_LETTERS.search(name.topic) and not name.topic.startswith("__"):
            counts[name.topic] += offsets.end - offsets.start
    growing = {name: ends[name] - before[name] for name in counts if before.get(name, ends[name]) < ends[name]}
    if growing:
        worst = max(growing, key=lambda name: growing[name])
        span = format_duration_ms(picture.elapsed_ms)
        yield Problem(f"{worst} got {format_count(growing[worst], 'record')} in {span}", growing, severity=WARNING)
    elif +counts:
        worst, count = counts.most_common(1)[0]
        yield Problem(f"{worst} has {format_count(count, 'record')}", +counts)


CHECKS: tuple[Check, ...] = (
    unclean_elections,
    future_timestamps,
    late_retention,
    small_segments,
    colliding_names,
    dead_letters,
    unlimited_topics,
    misspelt_topics,
    many_partitions,
)
