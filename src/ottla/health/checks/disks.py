"""Checks of log directories."""

from __future__ import annotations

from collections.abc import Iterator

from ottla.health.checks.definition import ERROR, WARNING, Check, Problem, check
from ottla.health.types import ClusterPicture, DirectoryPicture, Part
from ottla.model.figures import format_bytes, format_count, format_duration_ms

_FREE_SHARE_LOW = 0.1
_FREE_SHARE_VERY_LOW = 0.03
#: a disk that is full later is not reported
_SOON_MS = 24 * 3_600_000
#: the shortest time between two readings that gives a rate
_RATE_MS_MIN = 10_000
#: the broker with the most data is reported if it has this many times its fair share, and this much more
_UNEQUAL_FACTOR = 1.5
_UNEQUAL_BYTES_MIN = 10 << 30


def _free_share(each: DirectoryPicture) -> float:
    """Return the free share of a file system; 1 if it is not known."""
    if not each.total_bytes or each.usable_bytes is None:
        return 1.0
    return each.usable_bytes / each.total_bytes


@check(
    severity=ERROR,
    kind="directory",
    problem="A log directory failed: its replicas are offline.",
    advice="see the log of the broker, repair or replace the disk, then restart the broker",
    needs=[Part.DIRECTORIES],
)
def offline_directories(picture: ClusterPicture) -> Iterator[Problem]:
    failed = [each for each in picture.directories() if each.error_code]
    if failed:
        yield Problem(f"{format_count(len(failed), 'log directory failure')}", [each.name for each in failed])


@check(
    severity=WARNING,
    kind="directory",
    problem="The disk of a log directory is almost full: a warning below 10 % free, an error below 3 %.",
    advice="lower retention.ms or retention.bytes of large topics, add disks, or move replicas away",
    needs=[Part.DIRECTORIES],
)
def full_disks(picture: ClusterPicture) -> Iterator[Problem]:
    low = sorted((each for each in picture.directories() if _free_share(each) < _FREE_SHARE_LOW), key=_free_share)
    if low:
        worst = low[0]
        free = format_bytes(worst.usable_bytes or 0)
        text = f"{worst.path} of broker {worst.broker_id} has {free} free ({_free_share(worst):.0%})"
        severity = ERROR if _free_share(worst) < _FREE_SHARE_VERY_LOW else None
        yield Problem(text, [each.name for each in low], severity=severity)


@check(
    severity=WARNING,
    kind="directory",
    problem="At its present rate the disk of a log directory is full within a day.",
    advice="lower retention.ms or retention.bytes of the topics that grow, or add a quota for their producers",
    needs=[Part.DIRECTORIES],
    needs_before=True,
)
def disk_full_soon(picture: ClusterPicture) -> Iterator[Problem]:
    before = {each.name: each for each in picture.before.directories()} if picture.before is not None else {}
    if picture.elapsed_ms < _RATE_MS_MIN:
        return
    rows = []
    for each in picture.directories():
        old = before.get(each.name)
        if old is None or old.usable_bytes is None or each.usable_bytes is None:
            continue
        used = old.usable_bytes - each.usable_bytes
        left_ms = each.usable_bytes * picture.elapsed_ms // used if used > 0 else _SOON_MS
        if left_ms < _SOON_MS:
            rows.append((left_ms, used, each))
    for left_ms, used, each in sorted(rows, key=lambda row: row[0])[:1]:
        rate = format_bytes(used * 1000 / picture.elapsed_ms)
        text = f"{each.path} of broker {each.broker_id} is full in {format_duration_ms(left_ms)} at {rate}/s"
        yield Problem(text, [row[2].name for row in sorted(rows, key=lambda row: row[0])])


@check(
    severity=WARNING,
    kind="broker",
    problem="One broker stores much more data than the others.",
    advice="move replicas of large partitions to brokers with less data: 'ottla cluster reassign --help'",
    needs=[Part.DIRECTORIES],
)
def unequal_disks(picture: ClusterPicture) -> Iterator[Problem]:
    sizes = {
        number: sum(each.size_bytes for each in broker.directories)
        for number, broker in picture.brokers.items()
        if broker.directories
    }
    if len(sizes) < 2:
        return
    fair = sum(sizes.values()) / len(sizes)
    most = max(sizes, key=lambda number: sizes[number])
    if sizes[most] > fair * _UNEQUAL_FACTOR and sizes[most] - fair > _UNEQUAL_BYTES_MIN:
        text = f"broker {most} stores {format_bytes(sizes[most])}, a fair share are {format_bytes(fair)}"
        yield Problem(text, [str(most)])


CHECKS: tuple[Check, ...] = (offline_directories, full_disks, disk_full_soon, unequal_disks)
