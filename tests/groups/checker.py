"""What the members of a group have seen, and what it proves. Nothing here knows processes, sockets or clocks.

A *stint* is the time in which one member owns one partition, by its own word: from "assigned" to "revoked", "lost",
its end, or the kill that ended it. A member that hears of an assignment as soon as it goes on after it stood still may
have been given it before: then its stint may have begun as early as it was frozen. Whoever takes over begins at the
committed offset, so a broker keeps its word when:

    unprocessed       every record was processed by somebody
    phantom           nobody processed a record that was not produced, or whose key says that it is another one
    skipped           a stint begins at, or before, something that was committed, and leaves out no record
    repeated          within a stint no record comes twice
    committed-again   a stint has no record below an offset whose commit was acknowledged before the stint began. What
                      was processed and not committed then may be processed again: no other record may. A member that
                      does not know yet that it has lost a partition (it was frozen) is still in its old stint: what it
                      processes there was not committed when that stint began.
    unowned           nobody processes a partition outside of a stint
    two-owners        stints of different members overlap only when the earlier member was frozen during its stint, when
                      the later one may have been given the partition first, being frozen before it knew, or when the
                      later one has the instance id of the earlier one and so replaces it
    commit-back       of two acknowledged commits, the one that began after the other was answered is not lower. Commits
                      that ran at the same time have no order. So a commit of a frozen member that comes late is found
                      when the broker takes it.
    reading-back      the committed offset, as read from the broker all the time, never gets lower or vanishes
    commit-lost       a reading that began after a commit was acknowledged is not below it
    commit-unasked    a reading shows only what somebody asked to commit and was not refused at once
    final-owner       in the end each partition has one owner: one in the broker's description, one by the members'
                      word, the same, and it lives
    final-offset      in the end each partition is committed up to its end
    failed            no member ended with an error, and each one that was asked to stop has stopped
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

Anomalies = dict[str, list[str]]

#: a client works off within this time what came while it stood still
_CATCHES_UP_S = 1.0

#: a commit is repeated after this time at the earliest: the broker must start again
_REPEATED_S = 0.2


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int


class Commit(NamedTuple):
    """One offset that a member asked the broker to keep; ``end`` is when it had an answer."""

    place: Place
    offset: int
    begin: float
    end: float
    outcome: str
    member: str


class Reading(NamedTuple):
    """Committed offsets as the broker told them to somebody who is not in the group."""

    begin: float
    end: float
    offsets: Mapping[Place, int]


class Span(NamedTuple):
    """Records that were processed in a row."""

    t: float
    first: int
    last: int


@dataclass(slots=True)
class Stint:
    """The time in which a member owns a partition, and what it processed then."""

    member: str
    place: Place
    begin: float
    #: when it may have been given the partition; earlier than ``begin`` when it stood still then
    given: float
    end: float = math.inf
    spans: list[Span] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.place.topic}-{self.place.partition} by {self.member} from {self.begin:.2f} to {self.end:.2f}"


@dataclass(slots=True)
class Member:
    """A member's diary, and what was done to its process."""

    name: str
    events: list[dict[str, Any]]
    instance: str = ""
    killed_at: float | None = None
    #: from when to when it stood still
    frozen: list[tuple[float, float]] = field(default_factory=list)
    #: it was asked to stop and should have said goodbye
    asked_to_stop: bool = False
    #: it may end because the broker does not want it any more
    may_be_fenced: bool = False


class Final(NamedTuple):
    """The group when all changes are over: owners by the broker's description, and who lives."""

    t: float
    owners: Mapping[Place, list[str]]
    live: frozenset[str]


@dataclass(slots=True)
class History:
    """Everything that a run has brought to light."""

    members: list[Member] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    #: how many records each partition has; their offsets are 0, 1, 2...
    produced: dict[Place, int] = field(default_factory=dict)
    final: Final | None = None


def parse_events(lines: Iterable[str]) -> list[dict[str, Any]]:
    """A diary; its last line may be torn when its writer was killed."""
    events = []
    for line in lines:
        if line.endswith("\n"):
            events.append(json.loads(line))
    return events


def check(history: History) -> Anomalies:
    """Every anomaly by name, each with a line for a person; empty when the broker kept its word."""
    found: Anomalies = defaultdict(list)
    stints = [stint for member in history.members for stint in stints_of(member, found)]
    commits = [commit for member in history.members for commit in commits_of(member)]
    possible = _possible_commits(history.members, commits)
    for member in history.members:
        _check_life(member, found)
    _check_processed(history, stints, found)
    for place, ours in _by_place(stints).items():
        acknowledged = _Highest((c.end, c.offset) for c in commits if c.place == place and c.outcome == "ok")
        begun = _Highest((c.begin, c.offset) for c in possible if c.place == place)
        for stint in ours:
            _check_stint(stint, acknowledged, begun, found)
        _check_owners(ours, {member.name: member for member in history.members}, found)
    for place, asked in _by_place([c for c in commits if c.outcome == "ok"]).items():
        answered = _Highest((c.end, c.offset) for c in asked)
        for commit in asked:
            if (before := answered.before(commit.begin)) > commit.offset:
                found["commit-back"].append(f"{_show(place)} {commit} after {before}")
    _check_readings(history.readings, commits, possible, found)
    _check_final(history, stints, found)
    return dict(found)


# -- diaries --------------------------------------------------------------------------------------------------------


def stints_of(member: Member, found: Anomalies | None = None) -> list[Stint]:
    """What a member owned, and when; anything it processed beside that goes to ``found``."""
    stints: list[Stint] = []
    owned: dict[Place, Stint] = {}

    def close(places: Iterable[Place], t: float) -> None:
        for place in places:
            if place in owned:
                owned.pop(place).end = t

    for event in member.events:
        kind, t = event["event"], event["t"]
        places = [Place(*each) for each in event.get("partitions", ())]
        if kind == "assigned":
            close(places, t)
            for place in places:
                stint = owned[place] = Stint(member.name, place, t, _given_at(member, t))
                stints.append(stint)
        elif kind in ("revoked", "lost"):
            close(places, t)
        elif kind == "processed":
            for topic, partition, first, last in event["ranges"]:
                place = Place(topic, partition)
                if place in owned:
                    owned[place].spans.append(Span(t, first, last))
                elif found is not None:
                    found["unowned"].append(f"{_show(place)} {first} to {last} by {member.name} at {t:.2f}")
        elif kind in ("stopped", "fenced", "failed"):
            close(list(owned), t)
    if member.killed_at is not None:
        close(list(owned), member.killed_at)
    return stints


def _given_at(member: Member, t: float) -> float:
    return min([t, *(start for start, end in member.frozen if start < t < end + _CATCHES_UP_S)])


def commits_of(member: Member) -> list[Commit]:
    return [
        Commit(Place(topic, partition), offset, event["begin"], event["t"], event["outcome"], member.name)
        for event in member.events
        if event["event"] == "committed"
        for topic, partition, offset in event["offsets"]
    ]


def _possible_commits(members: Iterable[Member], commits: Iterable[Commit]) -> list[Commit]:
    """Commits that may have been applied, and those that a killed member may have been asking for when it died.

    A client repeats a commit whose connection was lost. The refusal may be the answer to the repetition, in a later
    generation, after a broker has applied the first request and ended.
    """
    possible = [each for each in commits if each.outcome != "refused" or each.end - each.begin > _REPEATED_S]
    for member in members:
        if member.killed_at is None:
            continue
        last = {
            Place(topic, partition): Commit(
                Place(topic, partition), end + 1, event["t"], math.inf, "unknown", member.name
            )
            for event in member.events
            if event["event"] == "processed"
            for topic, partition, _, end in event["ranges"]
        }
        possible += last.values()
    return possible


class _Highest:
    """The highest offset among those that came before a time."""

    def __init__(self, pairs: Iterable[tuple[float, int]]) -> None:
        self._times: list[float] = []
        self._offsets: list[int] = []
        highest = 0
        for t, offset in sorted(pairs):
            highest = max(highest, offset)
            self._times.append(t)
            self._offsets.append(highest)

    def before(self, t: float) -> int:
        """0 when there is none: a group without a commit begins at the start."""
        index = bisect_left(self._times, t)
        return self._offsets[index - 1] if index else 0


# -- clauses --------------------------------------------------------------------------------------------------------


def _check_life(member: Member, found: Anomalies) -> None:
    kinds = {event["event"] for event in member.events}
    for event in member.events:
        if event["event"] == "misread":
            found["phantom"].append(f"{member.name}: {event}")
        if event["event"] == "failed" or (event["event"] == "fenced" and not member.may_be_fenced):
            found["failed"].append(f"{member.name}: {event['event']}: {event['error']}")
    if member.asked_to_stop and not kinds & {"stopped", "failed", "fenced"}:
        found["failed"].append(f"{member.name} was asked to stop and has not")


def _check_processed(history: History, stints: list[Stint], found: Anomalies) -> None:
    seen = _distinct(stints)
    for place, count in history.produced.items():
        missing = [offset for offset in range(count) if offset not in seen[place]]
        if missing:
            found["unprocessed"].append(f"{_show(place)}: {len(missing)} of {count}, the first is {missing[0]}")
    for place, offsets in seen.items():
        beyond = [offset for offset in offsets if offset >= history.produced.get(place, 0)]
        if beyond:
            found["phantom"].append(f"{_show(place)}: {min(beyond)} was not produced")


def _check_stint(stint: Stint, acknowledged: _Highest, begun: _Highest, found: Anomalies) -> None:
    expected: int | None = None
    for span in stint.spans:
        if expected is None:
            if span.first < (committed := acknowledged.before(stint.given)):
                found["committed-again"].append(f"{stint}: begins at {span.first}, {committed} was committed")
            if span.first > (highest := begun.before(span.t)):
                found["skipped"].append(f"{stint}: begins at {span.first}, no more than {highest} was ever committed")
        elif span.first > expected:
            found["skipped"].append(f"{stint}: {expected} to {span.first - 1}")
        elif span.first < expected:
            found["repeated"].append(f"{stint}: {span.first} after {expected - 1}")
        expected = span.last + 1


def _check_owners(stints: list[Stint], members: Mapping[str, Member], found: Anomalies) -> None:
    """For stints of one partition."""
    ordered = sorted(stints, key=lambda stint: stint.begin)
    for index, later in enumerate(ordered):
        for earlier in ordered[:index]:
            if earlier.end <= later.begin or earlier.member == later.member:
                continue
            before, after = members[earlier.member], members[later.member]
            froze = any(start < later.begin and end > earlier.begin for start, end in before.frozen)
            replaced = bool(before.instance) and before.instance == after.instance
            late = later.given <= earlier.begin
            if not froze and not replaced and not late:
                found["two-owners"].append(f"{earlier}; {later}")


def _check_readings(
    readings: list[Reading], commits: list[Commit], possible: list[Commit], found: Anomalies
) -> None:  # fmt: skip
    acknowledged = {
        place: _Highest((c.end, c.offset) for c in ours)
        for place, ours in _by_place([c for c in commits if c.outcome == "ok"]).items()
    }
    asked = {(c.place, c.offset) for c in possible}
    last: dict[Place, int] = {}
    for reading in readings:
        for place, before in last.items():
            if (now := reading.offsets.get(place, -1)) < before:
                found["reading-back"].append(f"{_show(place)}: {now} after {before} at {reading.end:.2f}")
        for place, highest in acknowledged.items():
            if (now := reading.offsets.get(place, 0)) < (due := highest.before(reading.begin)):
                found["commit-lost"].append(f"{_show(place)}: {now} at {reading.end:.2f}, {due} was acknowledged")
        for place, offset in reading.offsets.items():
            if last.get(place) != offset and (place, offset) not in asked:
                found["commit-unasked"].append(f"{_show(place)}: {offset} at {reading.end:.2f}")
        last = dict(reading.offsets)


def _check_final(history: History, stints: list[Stint], found: Anomalies) -> None:
    final = history.final
    if final is None:
        return
    for place, count in history.produced.items():
        described = final.owners.get(place, [])
        own = [stint.member for stint in stints if stint.place == place and stint.begin <= final.t < stint.end]
        if len(described) != 1 or described != own or not set(described) <= final.live:
            found["final-owner"].append(f"{_show(place)}: the broker says {described}, members say {own}")
        committed = history.readings[-1].offsets.get(place, 0) if history.readings else 0
        if committed != count:
            found["final-offset"].append(f"{_show(place)}: {committed} is committed, {count} is the end")


# -- figures --------------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """What a run was like; nothing here is right or wrong."""

    records: int
    processed_again: int
    assignments: int
    commits: int
    commits_refused: int
    #: per partition the longest time in which nobody processed anything
    pause_s_median: float
    pause_s_max: float

    def __str__(self) -> str:
        return (
            f"{self.records} records, {self.processed_again} processed again, {self.assignments} assignments, "
            f"{self.commits} commits, {self.commits_refused} refused, "
            f"longest pause of a partition: median {self.pause_s_median:.1f} s, most {self.pause_s_max:.1f} s"
        )


def figures_of(history: History) -> Figures:
    stints = [stint for member in history.members for stint in stints_of(member)]
    commits = [commit for member in history.members for commit in commits_of(member)]
    seen = _distinct(stints)
    total = sum(span.last - span.first + 1 for stint in stints for span in stint.spans)
    events = [event for member in history.members for event in member.events]
    pauses = [pause for place in history.produced if (pause := longest_pause(stints, place)) is not None] or [0.0]
    return Figures(
        records=sum(history.produced.values()),
        processed_again=total - sum(len(offsets) for offsets in seen.values()),
        assignments=sum(event["event"] == "assigned" for event in events),
        commits=sum(commit.outcome == "ok" for commit in commits),
        commits_refused=sum(commit.outcome == "refused" for commit in commits),
        pause_s_median=median(pauses),
        pause_s_max=max(pauses),
    )


def longest_pause(
    stints: Iterable[Stint], place: Place, begin: float = 0.0, end: float = math.inf
) -> float | None:  # fmt: skip
    """The longest time between two processed lines of a partition, by anybody; None when there are fewer."""
    times = sorted({span.t for stint in stints if stint.place == place for span in stint.spans})
    times = [t for t in times if begin <= t <= end]
    return max((later - earlier for earlier, later in pairwise(times)), default=None)


def _distinct(stints: Iterable[Stint]) -> dict[Place, set[int]]:
    seen: dict[Place, set[int]] = defaultdict(set)
    for stint in stints:
        for span in stint.spans:
            seen[stint.place].update(range(span.first, span.last + 1))
    return seen


def _by_place(things: Iterable[Any]) -> dict[Place, list[Any]]:
    sorted_out: dict[Place, list[Any]] = defaultdict(list)
    for thing in things:
        sorted_out[thing.place].append(thing)
    return sorted_out


def _show(place: Place) -> str:
    return f"{place.topic}-{place.partition}"
